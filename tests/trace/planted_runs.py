"""Runs written by hand, each with one fault planted in it or with none; times in milliseconds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Instant,
    Journal,
    RunEnded,
    RunStarted,
    SpanRecord,
)
from harness.trace.journal_line import encode
from harness.trace.records import (
    Record,
    SpanStatus,
)

MS = 1_000_000
DOCUMENT = "\n".join(f"Line {n} of the handbook says what to do in case {n}." for n in range(60))


class Made(NamedTuple):
    """A call that has been written."""

    id: int
    end_ms: int


class PlantedRun:
    """Collects records; `journal` writes them in the order they began."""

    def __init__(self) -> None:
        self._ids = 0
        self._records: list[tuple[int, Record]] = []
        self._flows: list[Record] = []
        self._end_ms = 0
        self.root = self.span("run", 0, None)

    def span(
        self, name: str, at_ms: int, ms: int | None, parent: int | None = None, **attributes: Any
    ) -> int:
        """`ms` None: until the end of the run."""
        self._ids += 1
        status, error = attributes.pop("status", "ok"), attributes.pop("error", None)
        end_ms = at_ms + (ms or 0)
        self._end_ms = max(self._end_ms, end_ms)
        end_ns = -1 if ms is None else end_ms * MS
        span = SpanRecord(self._ids, parent, name, at_ms * MS, end_ns, status, error, attributes)
        self._records.append((at_ms, span))
        return self._ids

    def endpoint(self, tag: str, **settings: Any) -> None:
        self._records.append((0, Instant(None, "endpoint", 0, {"model": tag, **settings})))

    def device(self, name: str, **sizes: int) -> None:
        self._records.append((0, Instant(None, "budget", 0, {"device": name, **sizes})))

    def node(
        self, name: str, at_ms: int, ms: int, *, after: Iterable[int] = (), **more: Any
    ) -> int:
        span = self.span("node", at_ms, ms, self.root, node=name, **more)
        self.flow("output", after, span)
        return span

    def flow(self, name: str, sources: Iterable[int], target: int) -> None:
        self._flows += [Flow(name, source, target) for source in sources]

    def call(
        self,
        at_ms: int,
        *,
        parent: int | None = None,
        model: str = "small",
        role: str = "writer",
        wait_ms: int = 0,
        load_ms: int = 0,
        queue_ms: int = 0,
        prefill_ms: int = 40,
        tokens: int = 20,
        itl_ms: int = 10,
        input_tokens: int = 60,
        cached_tokens: int | None = None,
        prompt: str | None = None,
        reply: str = "",
        quiet: bool = False,
        turn_ms: int = 0,
        **more: Any,
    ) -> Made:
        """A call that succeeds: waits here, loads, queues, is read, is answered.

        `quiet`: the server tells nothing of its queue, so that it counts as prefill.
        `turn_ms`: waits before all that for its turn under the endpoint's max_concurrency.
        """
        begun_ms, at_ms = at_ms, at_ms + turn_ms
        sent_ms = at_ms + wait_ms + load_ms
        ttft_ms, decode_ms = queue_ms + prefill_ms, (tokens - 1) * itl_ms
        call = self.span(
            "chat",
            begun_ms,
            turn_ms + wait_ms + load_ms + ttft_ms + decode_ms,
            parent or self.root,
            model=model,
            role=role,
            ttft_ns=ttft_ms * MS,
            itl_mean_ns=itl_ms * MS,
            input_tokens=input_tokens,
            cached_tokens=cached_tokens,
            output_tokens=tokens,
            **({} if prompt is None else self._texts(prompt, reply)),
            **more,
        )
        if turn_ms:
            reason = "max_concurrency = 2"
            self.span("queue", begun_ms, turn_ms, call, source="measured", reason=reason)
        phases = [
            ("queue", at_ms, wait_ms),
            ("load", at_ms + wait_ms, load_ms),
            ("queue", sent_ms, 0 if quiet else queue_ms),
            ("prefill", sent_ms + (0 if quiet else queue_ms), ttft_ms - (0 if quiet else queue_ms)),
            ("decode", sent_ms + ttft_ms, decode_ms),
        ]
        for name, start_ms, ms in phases:
            if ms:
                of_load = {"model": model, "need_bytes": 150 << 20} if name == "load" else {}
                self.span(name, start_ms, ms, call, **of_load)
        return Made(call, sent_ms + ttft_ms + decode_ms)

    def cached_call(self, at_ms: int, *, model: str = "small", **more: Any) -> Made:
        """A call that an earlier one's reply answers, in no time."""
        call = self.span("chat", at_ms, 0, self.root, model=model, from_cache=True, **more)
        return Made(call, at_ms)

    def fallback(self, at_ms: int, to: str, reason: str, *, model: str = "small") -> None:
        said = {"model": model, "to": to, "reason": reason}
        self._records.append((at_ms, Instant(self.root, "fallback", at_ms * MS, said)))

    def circuit(self, change: str, at_ms: int, *, model: str = "small", **said: Any) -> None:
        """`change`: opened or closed."""
        instant = Instant(self.root, f"circuit {change}", at_ms * MS, {"model": model, **said})
        self._records.append((at_ms, instant))

    def failed_call(self, at_ms: int, ms: int, error: str, *, model: str = "small") -> Made:
        call = self.span("chat", at_ms, ms, self.root, model=model, status="error", error=error)
        return Made(call, at_ms + ms)

    def retry(self, at_ms: int, delay_ms: int, reason: str, *, model: str = "small") -> int:
        """Returns when the next attempt is due."""
        said = {"model": model, "reason": reason, "delay_s": delay_ms / 1000}
        self._records.append((at_ms, Instant(self.root, "retry", at_ms * MS, said)))
        return at_ms + delay_ms

    def counter(self, name: str, *values: tuple[int, float], tag: str = "small") -> None:
        for at_ms, value in values:
            counter = CounterSet(name, "any", at_ms * MS, value, track=f"server {tag}")
            self._records.append((at_ms, counter))

    def journal(self, directory: Path, *, ended: SpanStatus = "ok") -> Journal:
        started = RunStarted(1, "20260102T030405Z-00", "planted", 0, 0, 1)
        end_ns = self._end_ms * MS
        records = [record for _, record in sorted(self._records, key=lambda pair: pair[0])]
        whole = [
            one._replace(end_ns=end_ns) if isinstance(one, SpanRecord) and one.end_ns < 0 else one
            for one in records
        ]
        path = directory / "planted.jsonl"
        lines = map(encode, [started, *whole, *self._flows, RunEnded(end_ns, ended)])
        path.write_bytes(b"".join(lines))
        return Journal(path)

    def _texts(self, prompt: str, reply: str) -> dict[str, str]:
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in (prompt, reply)]
        for sha256, text in zip(hashes, (prompt, reply), strict=True):
            self._records.append((0, Content(sha256, text)))
        return {"prompt_sha256": hashes[0], "reply_sha256": hashes[1]}


# --- faults ----------------------------------------------------------------------------------


def cold_start() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="embedded", slots=2)
    at_ms = run.call(0, load_ms=3000).end_ms
    for _ in range(3):
        at_ms = run.call(at_ms).end_ms
    return run


def swap_thrash() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="embedded")
    run.endpoint("large", backend="embedded")
    at_ms = 0
    for turn in range(6):
        model, other = ("small", "large") if turn % 2 else ("large", "small")
        if turn:
            run.span("unload", at_ms, 50, run.root, model=other)
            at_ms += 50
        at_ms = run.call(at_ms, model=model, load_ms=900).end_ms
    return run


def budget_wait() -> PlantedRun:
    """A long call to one model keeps three to another waiting for its memory."""
    run = PlantedRun()
    run.endpoint("large", backend="embedded")
    node = run.node("all", 0, 12_000)
    run.call(0, parent=node, model="small", tokens=400)
    for at_ms in (100, 200, 300):
        run.call(at_ms, parent=node, model="large", wait_ms=4000 - at_ms)
    return run


def queueing() -> PlantedRun:
    """Eight calls at once, and the server takes them one by one and says so."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    for number in range(8):
        run.call(0, queue_ms=500 * number, prefill_ms=40, tokens=47)
    run.counter("waiting", (0, 7), (2000, 3), (3500, 0))
    return run


def queueing_by_counter() -> PlantedRun:
    """The server tells nothing with its replies; its counter does."""
    run = PlantedRun()
    run.endpoint("small", backend="openai")
    for number in range(6):
        run.call(0, queue_ms=600 * number, quiet=True)
    run.counter("waiting", (0, 5), (1500, 2), (3100, 0))
    return run


def queueing_unsaid() -> PlantedRun:
    """Neither replies nor counters tell; replies only begin as others end."""
    run = PlantedRun()
    run.endpoint("small", backend="ollama")
    for number in range(6):
        run.call(0, queue_ms=540 * number, prefill_ms=40, tokens=51, quiet=True)
    return run


def queueing_for_kv() -> PlantedRun:
    run = queueing()
    run.counter("KV cache", (0, 0.97), (3500, 0.2))
    return run


def behind_prefill() -> PlantedRun:
    """Three calls at once on four slots: the last two wait while the first prompt is read."""
    run = PlantedRun()
    run.endpoint("small", backend="embedded", file="small.gguf")
    for queue_ms, prefill_ms in ((10, 2400), (2400, 500), (2500, 600)):
        run.call(0, queue_ms=queue_ms, prefill_ms=prefill_ms, input_tokens=600)
    run.counter("waiting", (0, 0))
    return run


def convoy() -> PlantedRun:
    """Batches of four; in the second, one long reply keeps the next four waiting."""
    run = PlantedRun()
    run.endpoint("small", backend="openai")
    for _ in range(4):
        run.call(0, quiet=True)
    for tokens in (20, 20, 20, 500):
        run.call(300, tokens=tokens, quiet=True)
    for _ in range(4):
        run.call(700, queue_ms=5400 - 700, quiet=True)
    return run


def tail() -> PlantedRun:
    """Two workers and sixty short prompts, and now and then a very long one among them."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    for node_name in ("left", "right"):
        node = run.node(node_name, 0, 25_000)
        at_ms = 0
        for number in range(40):
            long = number in {11, 24, 33}
            at_ms = run.call(
                at_ms,
                parent=node,
                prefill_ms=2000 if long else 60,
                input_tokens=6000 if long else 80,
            ).end_ms
    return run


def prefill_bound() -> PlantedRun:
    """Five different documents, read slowly."""
    run = PlantedRun()
    run.endpoint("small", backend="llamacpp")
    at_ms = 0
    for number in range(5):
        at_ms = run.call(
            at_ms,
            prefill_ms=2500,
            input_tokens=1500,
            cached_tokens=0,
            prompt="".join(random.Random(number).choices("abcdefgh ", k=6000)),
            reply=f"So much for number {number}, of which there are many.",
        ).end_ms
    return run


def drifting_prefix(*, texts: bool = True, cached_tokens: int | None = 0) -> PlantedRun:
    """The time stands before the document in each prompt."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    node, at_ms, last = run.node("notes", 0, 15_000), 0, "none so far, to begin with"
    for number in range(5):
        reply = f"Note {number} is about what to do when case {number} happens"
        at_ms = run.call(
            at_ms,
            parent=node,
            prefill_ms=2000,
            input_tokens=1200,
            cached_tokens=cached_tokens,
            prompt=f"[user]\nIt is 10:{number}7.\n\n{DOCUMENT}\n\nLast: {last}" if texts else None,
            reply=reply,
        ).end_ms
        last = reply
    return run


def uncached_prefix() -> PlantedRun:
    """The document stands first and is read anew: the server keeps nothing."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    node, at_ms, last = run.node("notes", 0, 15_000), 0, "none so far, to begin with"
    for number in range(5):
        reply = f"Note {number} is about what to do when case {number} happens"
        at_ms = run.call(
            at_ms,
            parent=node,
            prefill_ms=2000,
            input_tokens=1200,
            cached_tokens=0,
            prompt=f"[user]\n{DOCUMENT}\n\nLast: {last}",
            reply=reply,
        ).end_ms
        last = reply
    return run


def resent_history(*, cached: bool = False) -> PlantedRun:
    """A conversation of eight turns."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    node, at_ms, history, tokens = run.node("talk", 0, 30_000), 0, "[user]\nHello.", 300
    for number in range(8):
        reply = f"This is answer number {number}, and it goes on for quite a while."
        at_ms = run.call(
            at_ms,
            parent=node,
            prefill_ms=100 if cached else 2 * tokens,
            tokens=100,
            itl_ms=5,
            input_tokens=tokens,
            cached_tokens=tokens - 160 if cached and number else 0,
            prompt=history,
            reply=reply,
        ).end_ms
        history += f"\n\n[assistant]\n{reply}\n\n[user]\nAnd then, after {number}?"
        tokens += 160
    return run


def kv_pressure(*, share: float = 0.93) -> PlantedRun:
    """Four calls by twos, then eight at once: with a full cache each token takes thrice as long."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    for at_ms in (0, 0, 1100, 1100):
        run.call(at_ms, tokens=50, itl_ms=20)
    for _ in range(8):
        run.call(2200, tokens=80, itl_ms=60)
    run.counter("KV cache", (0, 0.3), (2300, share), (6900, 0.1))
    return run


def preemptions() -> PlantedRun:
    run = kv_pressure()
    run.counter("preempted", (0, 0), (3000, 2), (4000, 5))
    return run


def bandwidth_bound() -> PlantedRun:
    """Every token takes 150 ms, in calls that have the server to themselves."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    at_ms = 0
    for _ in range(3):
        at_ms = run.call(at_ms, tokens=40, itl_ms=150).end_ms
    return run


def slow_decode() -> PlantedRun:
    """Eight calls at once on two cores, and two threads that wait for each other spinning."""
    run = PlantedRun()
    run.endpoint("small", backend="embedded", slots=8, threads=2, file="small.gguf")
    for _ in range(8):
        run.call(0, prefill_ms=2900, itl_ms=440, tokens=40)
    run.counter("waiting", (0, 0))
    return run


def serial_loop(backend: str = "vllm", **settings: Any) -> PlantedRun:
    """One function asks about eight things, one after another."""
    run = PlantedRun()
    run.endpoint("small", backend=backend, **settings)
    node, at_ms = run.node("sentences", 0, 2000), 0
    for thing in ("tea", "salt", "rain", "bread", "sand", "glass", "wool", "ink"):
        at_ms = run.call(
            at_ms,
            parent=node,
            prompt=f"Say in one sentence what {thing} is.",
            reply=f"Nobody can say for certain what {thing} really was before.",
        ).end_ms
    return run


def serial_pairs() -> PlantedRun:
    """For each of six items a question and then one about its answer; items are independent."""
    run = PlantedRun()
    node, at_ms = run.node("pairs", 0, 3000), 0
    for number in range(6):
        first = f"The number {number} is what it has always been, {number}."
        asked = [f"What is {number}?", f"Is this right? {first}"]
        for prompt, reply in zip(asked, [first, "I would say so."], strict=True):
            at_ms = run.call(at_ms, parent=node, prompt=prompt, reply=reply).end_ms
    return run


def serial_siblings() -> PlantedRun:
    """Five nodes that no arrow joins, of which each begins when the one before has ended."""
    run = PlantedRun()
    at_ms = 0
    for number in range(5):
        node = run.node(f"part {number}", at_ms, 240)
        at_ms = run.call(at_ms, parent=node).end_ms + 10
    return run


def idle_device() -> PlantedRun:
    """Sixteen nodes that do something else hold all places; eight calls wait for one."""
    run = PlantedRun()
    things = run.node("things", 0, 100)
    for _ in range(16):
        run.node("download", 101, 5000, after=[things])
    for item in range(8):
        node = run.node("sections", 5101, 300, after=[things], item=item)
        run.call(5101, parent=node)
    return run


def idle_server() -> PlantedRun:
    """Calls have been sent, and the server says it has none."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    for _ in range(4):
        run.call(0, prefill_ms=6000, tokens=100)
    run.counter("running", (0, 0), (5900, 4), (6900, 0))
    run.counter("waiting", (0, 0))
    return run


def out_of_memory_at_start() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("large", backend="embedded", context_tokens=32_768)
    run.failed_call(
        0, 5, "DoesNotFit: model 'large' needs 9.1 GiB and the whole budget is 4 GiB", model="large"
    )
    return run


def out_of_memory_later() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="ollama")
    at_ms = 0
    for _ in range(3):
        at_ms = run.call(at_ms).end_ms
    run.failed_call(at_ms, 900, "ServerError: small: HTTP 500: cudaMalloc failed: out of memory")
    return run


def retries() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="litellm")
    at_ms = 0
    for delay_ms in (800, 1500, 2600):
        at_ms = run.failed_call(at_ms, 60, "RateLimited: small: the account is at its limit").end_ms
        at_ms = run.retry(at_ms, delay_ms, "RateLimited")
    run.call(at_ms, tokens=100)
    return run


def failed_calls() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    at_ms = run.call(0).end_ms
    run.failed_call(at_ms, 30, "ContextOverflow: small: 9000 tokens are more than 4096")
    return run


def schema_ignored() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="triton-openai")
    at_ms = 0
    for _ in range(3):
        at_ms = run.call(at_ms, structured=True, schema="ignored").end_ms
    return run


def schema_advisory() -> PlantedRun:
    """Replies are JSON, and nothing sees to it that they match."""
    run = PlantedRun()
    run.endpoint("small", backend="tensorrt-llm")
    run.call(0, structured=True, schema="advisory")
    return run


def fields_dropped() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="litellm")
    at_ms = run.call(0).end_ms
    run.call(at_ms, temperature=0.0, dropped=["temperature"])
    return run


def turns() -> PlantedRun:
    """Six calls at once, two of which are let through at a time, to a server without a queue."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm", max_concurrency=2)
    for number in range(6):
        run.call(0, turn_ms=450 * (number // 2), tokens=42)
    run.counter("waiting", (0, 0))
    return run


def turns_unsaid() -> PlantedRun:
    """The same, and the server tells nothing of itself."""
    run = PlantedRun()
    run.endpoint("small", backend="openai", max_concurrency=2)
    for number in range(6):
        run.call(0, turn_ms=450 * (number // 2), tokens=42)
    return run


def fell_back() -> PlantedRun:
    """Two of three calls were more than the server takes, and went to another."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm", fallback=["large"])
    at_ms = run.call(0).end_ms
    for _ in range(2):
        at_ms = run.failed_call(at_ms, 400, "Overloaded: small: the server is full").end_ms
        run.fallback(at_ms, "large", "Overloaded")
        at_ms = run.call(at_ms, model="large").end_ms
    return run


def out_of_reach(*, fallback: bool = False) -> PlantedRun:
    """Three calls find nobody there, and two more are not even sent."""
    run = PlantedRun()
    run.endpoint("small", backend="llamacpp")
    at_ms = run.call(0).end_ms
    for number in range(5):
        kind, ms = ("EndpointUnreachable", 300) if number < 3 else ("CircuitOpen", 0)
        at_ms = run.failed_call(at_ms, ms, f"{kind}: small: nothing answers").end_ms
        if number == 2:
            run.circuit("opened", at_ms, reason="EndpointUnreachable", pause_s=5.0)
        if fallback:
            run.fallback(at_ms, "large", kind)
            at_ms = run.call(at_ms, model="large").end_ms
    return run


def rejected_drafts() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="llamacpp")
    at_ms = 0
    for _ in range(3):
        at_ms = run.call(at_ms, tokens=120, draft_tokens=270, accepted_tokens=40).end_ms
    return run


# --- nothing wrong ---------------------------------------------------------------------------


def parallel_on_a_warm_server() -> PlantedRun:
    """Sixteen items at once, then a node that needs all of them, over and over for a while."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    before: list[int] = []
    for at_ms in range(0, 4000, 1000):
        nodes = [run.node("items", at_ms, 700, after=before, item=item) for item in range(16)]
        for node in nodes:
            run.call(at_ms, parent=node, queue_ms=2, prefill_ms=90, tokens=50, itl_ms=12)
        before = [run.node("sum", at_ms + 705, 280, after=nodes)]
        run.call(at_ms + 705, parent=before[0], queue_ms=2, prefill_ms=60, tokens=20)
    run.counter("running", (250, 16), (500, 16), (750, 1), (1250, 16))
    run.counter("waiting", (250, 0))
    run.counter("KV cache", (250, 0.3))
    return run


def revise_loop() -> PlantedRun:
    """Draft, verdict, revision, verdict: serial because each needs the one before."""
    run = PlantedRun()
    node = run.node("text", 0, 6000)
    draft = run.span("draft", 0, 500, node)
    at_ms = run.call(0, parent=draft, tokens=45).end_ms
    loop, written = run.span("wiggum", at_ms, 5000, node), draft
    for _ in range(5):
        judged = run.span("evaluate", at_ms, 400, loop)
        run.flow("draft", [written], judged)
        at_ms = run.call(at_ms, parent=judged, model="judge", role="evaluator").end_ms
        written = run.span("revise", at_ms, 500, loop)
        run.flow("verdict", [judged], written)
        at_ms = run.call(at_ms, parent=written, tokens=45).end_ms
    return run


def single_call() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    run.call(0, prefill_ms=300, tokens=60, input_tokens=900, cached_tokens=0)
    return run


def chain_in_one_function() -> PlantedRun:
    """Twenty short calls; each prompt holds the reply of the one before."""
    run = PlantedRun()
    node, at_ms, text = run.node("chain", 0, 6000), 0, "Once upon a time there was a tree."
    for number in range(20):
        reply = f"And then, for the {number}th time, something else happened to it."
        at_ms = run.call(
            at_ms, parent=node, prompt=f"Continue in one sentence: {text}", reply=reply
        ).end_ms
        text = reply
    return run


def loop_without_texts() -> PlantedRun:
    """Twenty short calls of one function, and nothing is known of their texts."""
    run = PlantedRun()
    node, at_ms = run.node("chain", 0, 6000), 0
    for _ in range(20):
        at_ms = run.call(at_ms, parent=node).end_ms
    return run


def two_models_that_fit() -> PlantedRun:
    """Each is loaded once, and they alternate for a long while."""
    run = PlantedRun()
    run.endpoint("small", backend="embedded")
    run.endpoint("large", backend="embedded")
    at_ms = run.call(0, model="small", load_ms=300, tokens=200).end_ms
    at_ms = run.call(at_ms, model="large", load_ms=300, tokens=200).end_ms
    for turn in range(10):
        at_ms = run.call(at_ms, model=("small", "large")[turn % 2], tokens=200).end_ms
    return run


def nodes_in_a_row() -> PlantedRun:
    """A pipeline whose nodes need each other."""
    run = PlantedRun()
    at_ms, before = 0, list[int]()
    for number in range(8):
        before = [run.node(f"step {number}", at_ms, 240, after=before)]
        at_ms = run.call(at_ms, parent=before[0]).end_ms + 10
    return run


def cached_history() -> PlantedRun:
    """A conversation whose history comes out of the prefix cache."""
    return resent_history(cached=True)


def one_retry() -> PlantedRun:
    run = PlantedRun()
    at_ms = run.failed_call(0, 20, "Overloaded: small: the server is loading or full").end_ms
    at_ms = run.retry(at_ms, 300, "Overloaded")
    for _ in range(3):
        at_ms = run.call(at_ms, tokens=100).end_ms
    return run


def busy_but_not_full() -> PlantedRun:
    """The same company as under KV pressure, and the cache has room."""
    return kv_pressure(share=0.6)


def questions_of_a_person() -> PlantedRun:
    """Nothing in common, and seconds between them."""
    run = PlantedRun()
    at_ms = 0
    for number in range(8):
        asked = run.call(at_ms, prompt=f"Question {number}?", reply="Who can say.", tokens=90)
        at_ms = asked.end_ms + 4000
    return run


def no_calls() -> PlantedRun:
    """Forty node calls of one second, sixteen at a time: no model could have been busy."""
    run = PlantedRun()
    things = run.node("things", 0, 10)
    for number in range(40):
        run.node("count", 10 + 1000 * (number // 16), 1000, after=[things])
    return run


def nodes_that_begin_at_once() -> PlantedRun:
    """Each begins a millisecond after what it needs; the calls that follow are few."""
    run = PlantedRun()
    before = [run.node("things", 0, 100)]
    for at_ms in range(101, 5000, 501):
        before = [run.node("work", at_ms + n % 3, 498, after=before) for n in range(16)]
    run.call(5200, parent=run.node("text", 5200, 300, after=before))
    return run


def items_in_step() -> PlantedRun:
    """Thirty-two items in two rows; arrows go from item to item, and yet all wait for all."""
    run = PlantedRun()
    items = [run.node("first", 1000 * (n // 16), 1000, item=n) for n in range(32)]
    for n, before in enumerate(items[:16]):
        node = run.node("second", 2001, 500, after=[before], item=n)
        run.call(2001, parent=node)
    return run


def serial_on_one_slot() -> PlantedRun:
    """The engine answers one call at a time, however many there are."""
    return serial_loop("embedded", slots=1)


def answered_from_the_cache() -> PlantedRun:
    """One call is new; the others were made before, by another run."""
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    at_ms = run.call(0, tokens=100).end_ms
    for _ in range(8):
        run.cached_call(at_ms, structured=True, schema="advisory", dropped=["seed"])
    return run


def schema_enforced() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="vllm")
    call = run.call(400, structured=True, schema="enforced")
    run.span("schema probe", 0, 400, call.id, model="small", schema="enforced")
    return run


def turns_before_a_full_server() -> PlantedRun:
    """Two of the calls that are let through at a time queue in the server all the same."""
    run = turns()
    run.counter("waiting", (200, 2), (900, 0))
    return run


def turns_for_an_engine_that_computes_one_at_a_time() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="llama-cpp-python", max_concurrency=1)
    for number in range(6):
        run.call(0, turn_ms=230 * number)
    return run


def turns_that_keep_to_an_accounts_limit() -> PlantedRun:
    run = turns_unsaid()
    run.failed_call(0, 20, "RateLimited: small: the account is at its limit")
    run.retry(20, 40, "RateLimited")
    return run


def drafts_that_pay() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("small", backend="llamacpp")
    run.call(0, tokens=400, draft_tokens=400, accepted_tokens=250)
    return run


def few_drafts() -> PlantedRun:
    run = PlantedRun()
    run.call(0, draft_tokens=30, accepted_tokens=1)
    return run


Make = Callable[[], PlantedRun]

FAULTS: list[tuple[Make, str, set[str]]] = [
    (cold_start, "cold-start", set()),
    (swap_thrash, "swap-thrash", {"cold-start"}),
    (budget_wait, "budget-wait", set()),
    (queueing, "queueing", set()),
    (queueing_by_counter, "queueing", set()),
    (queueing_unsaid, "queueing", set()),
    (queueing_for_kv, "queueing", set()),
    (behind_prefill, "behind-prefill", set()),
    (convoy, "convoy", set()),
    (tail, "tail", set()),
    (prefill_bound, "prefill-bound", {"serial-client"}),
    (drifting_prefix, "drifting-prefix", set()),
    (uncached_prefix, "uncached-prefix", set()),
    (resent_history, "resent-history", set()),
    (kv_pressure, "kv-pressure", set()),
    (preemptions, "preemptions", {"kv-pressure"}),
    (bandwidth_bound, "bandwidth-bound", set()),
    (slow_decode, "slow-decode", set()),
    (serial_loop, "serial-client", set()),
    (serial_pairs, "serial-client", set()),
    (serial_siblings, "serial-client", set()),
    (idle_device, "idle-device", set()),
    (idle_server, "idle-device", set()),
    (out_of_memory_at_start, "out-of-memory-at-start", set()),
    (out_of_memory_later, "out-of-memory-later", set()),
    (retries, "retries", set()),
    (failed_calls, "failed-calls", set()),
    (schema_ignored, "schema-not-enforced", set()),
    (schema_advisory, "schema-not-enforced", set()),
    (fields_dropped, "dropped-fields", set()),
    (turns, "max-concurrency", set()),
    (turns_unsaid, "max-concurrency", set()),
    (fell_back, "fallbacks", set()),
    (out_of_reach, "out-of-reach", set()),
    (rejected_drafts, "rejected-drafts", set()),
]
"""Each run, the fault planted in it, and what else may rightly be said of it."""

HEALTHY: list[Make] = [
    parallel_on_a_warm_server,
    revise_loop,
    single_call,
    chain_in_one_function,
    loop_without_texts,
    two_models_that_fit,
    nodes_in_a_row,
    cached_history,
    one_retry,
    busy_but_not_full,
    questions_of_a_person,
    no_calls,
    nodes_that_begin_at_once,
    items_in_step,
    serial_on_one_slot,
    answered_from_the_cache,
    schema_enforced,
    turns_before_a_full_server,
    turns_for_an_engine_that_computes_one_at_a_time,
    turns_that_keep_to_an_accounts_limit,
    drafts_that_pay,
    few_drafts,
]
