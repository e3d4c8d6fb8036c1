"""Runs written by hand, each with one fault planted in it or with none; times in milliseconds."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from sample_runs import STARTED, write_journal

from harness.trace import Content, CounterSet, Flow, Instant, Journal, Record, RunEnded, SpanRecord
from harness.trace.records import SpanStatus

MS = 1_000_000
DOCUMENT = "\n".join(f"Line {n} of the handbook says what to do in case {n}." for n in range(60))


class PlantedRun:
    """Collects records; `journal` writes them in the order they began.

    What is given no time begins when the last call ended.

    Args:
        backend: Of the endpoint `small`; None for a run that does not say.
        settings: Of that endpoint.
    """

    def __init__(self, backend: str | None = None, **settings: Any) -> None:
        self.now_ms = 0
        self._ids = 0
        self._records: list[tuple[int, Record]] = []
        self._flows: list[Record] = []
        self._end_ms = 0
        self.root = self.span("run", 0, None)
        if backend is not None:
            self.endpoint("small", backend=backend, **settings)

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

    def instant(self, name: str, *, span: int | None = None, **said: Any) -> None:
        self._instant(name, 0, span, **said)

    def round(self, loop: int, **said: Any) -> None:
        self._instant("round", 0, loop, **said)

    def endpoint(self, tag: str, **settings: Any) -> None:
        self._instant("endpoint", 0, None, model=tag, **settings)

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
        at_ms: int | None = None,
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
        decode_ms: int | None = None,
        input_tokens: int = 60,
        cached_tokens: int | None = None,
        prompt: str | None = None,
        reply: str = "",
        quiet: bool = False,
        turn_ms: int = 0,
        **more: Any,
    ) -> int:
        """A call that succeeds: waits here, loads, queues, is read, is answered.

        `quiet`: the server tells nothing of its queue, so that it counts as prefill.
        `decode_ms`: of the tokens that were shown, if not all were.
        `turn_ms`: waits before all that for its turn under the max_parallel of the endpoint.
        """
        begun_ms = self.now_ms if at_ms is None else at_ms
        let_in_ms = begun_ms + turn_ms
        sent_ms = let_in_ms + wait_ms + load_ms
        ttft_ms = queue_ms + prefill_ms
        decode_ms = (tokens - 1) * itl_ms if decode_ms is None else decode_ms
        self.now_ms = sent_ms + ttft_ms + decode_ms
        call = self.span(
            "chat",
            begun_ms,
            self.now_ms - begun_ms,
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
            reason = "max_parallel = 2"
            self.span("queue", begun_ms, turn_ms, call, source="measured", reason=reason)
        told_ms = 0 if quiet else queue_ms
        for name, start_ms, ms in (
            ("queue", let_in_ms, wait_ms),
            ("load", let_in_ms + wait_ms, load_ms),
            ("queue", sent_ms, told_ms),
            ("prefill", sent_ms + told_ms, ttft_ms - told_ms),
            ("decode", sent_ms + ttft_ms, decode_ms),
        ):
            if ms:
                of_load = {"model": model, "need_bytes": 150 << 20} if name == "load" else {}
                self.span(name, start_ms, ms, call, **of_load)
        return call

    def calls(self, count: int, at_ms: int | None = None, **more: Any) -> None:
        """So many of a kind: at once if a time is given, else one after the other."""
        for _ in range(count):
            self.call(at_ms, **more)

    def cached_call(self, **more: Any) -> None:
        """A call that an earlier one's reply answers, in no time."""
        self.span("chat", self.now_ms, 0, self.root, model="small", from_cache=True, **more)

    def failed_call(self, ms: int, error: str, *, model: str = "small", **more: Any) -> None:
        said: dict[str, Any] = {"model": model, "status": "error", "error": error, **more}
        self.span("chat", self.now_ms, ms, self.root, **said)
        self.now_ms += ms

    def retry(self, delay_ms: int, reason: str) -> None:
        """The next call is made after the pause."""
        delay_s = delay_ms / 1000
        self._instant("retry", self.now_ms, model="small", reason=reason, delay_s=delay_s)
        self.now_ms += delay_ms

    def fallback(self, to: str, reason: str, *, model: str = "small") -> None:
        self._instant("fallback", self.now_ms, model=model, to=to, reason=reason)

    def counter(self, name: str, *values: tuple[int, float]) -> None:
        for at_ms, value in values:
            counter = CounterSet(name, "any", at_ms * MS, value, track="server small")
            self._records.append((at_ms, counter))

    def journal(
        self, directory: Path, *, ended: SpanStatus | None = "ok", error: str | None = None
    ) -> Journal:
        """`ended` None: the run was killed."""
        end_ns = self._end_ms * MS
        records = [
            one._replace(end_ns=end_ns) if isinstance(one, SpanRecord) and one.end_ns < 0 else one
            for _, one in sorted(self._records, key=lambda pair: pair[0])
        ]
        end = [] if ended is None else [RunEnded(end_ns, ended, error)]
        path = directory / "planted.jsonl"
        return write_journal(path, *records, *self._flows, *end, started=STARTED)

    def _instant(self, name: str, at_ms: int, span: int | None = 1, **said: Any) -> None:
        self._records.append((at_ms, Instant(span, name, at_ms * MS, said)))

    def _texts(self, prompt: str, reply: str) -> dict[str, str]:
        hashes = [hashlib.sha256(text.encode()).hexdigest() for text in (prompt, reply)]
        for sha256, text in zip(hashes, (prompt, reply), strict=True):
            self._records.append((0, Content(sha256, text)))
        return {"prompt_sha256": hashes[0], "reply_sha256": hashes[1]}


# --- faults ----------------------------------------------------------------------------------


def cold_start() -> PlantedRun:
    run = PlantedRun("embedded", slots=2)
    run.call(load_ms=3000)
    run.calls(3)
    return run


def swap_thrash(**settings: Any) -> PlantedRun:
    run = PlantedRun("embedded", **settings)
    run.endpoint("large", backend="embedded", **settings)
    for turn in range(6):
        model, other = ("small", "large") if turn % 2 else ("large", "small")
        if turn:
            run.span("unload", run.now_ms, 50, run.root, model=other)
            run.now_ms += 50
        run.call(model=model, load_ms=900)
    return run


def queueing(backend: str = "vllm", **settings: Any) -> PlantedRun:
    """Eight calls at once, and the server takes them one by one and says so."""
    run = PlantedRun(backend, **settings)
    for number in range(8):
        run.call(0, queue_ms=500 * number, tokens=47)
    run.counter("waiting", (0, 7), (2000, 3), (3500, 0))
    return run


def queueing_for_one_place() -> PlantedRun:
    """A server takes one call at a time, and mostly reads: two at once could be as quick."""
    run = PlantedRun("vllm")
    for number in range(8):
        run.call(0, queue_ms=500 * number, prefill_ms=400, tokens=11)
    return run


def queueing_for_room() -> PlantedRun:
    """The same, and it is the KV cache that has no room."""
    run = queueing()
    run.counter("KV cache", (0, 0.97))
    return run


def queueing_at_its_limit() -> PlantedRun:
    """The same, and the processor cannot compute more: it reads 150 tokens a second."""
    run = PlantedRun("embedded", file="small.gguf")
    run.instant("weights", model="small", active_bytes=10**6)
    run.instant("machine", memory_bytes_per_s=10**10, cores=1, source="measured")
    for number in range(8):
        run.call(0, queue_ms=900 * number, prefill_ms=400, tokens=47)
    run.counter("waiting", (0, 7), (2000, 3), (7000, 0))
    return run


def queueing_by_counter() -> PlantedRun:
    """The server tells nothing with its replies; its counter does."""
    run = PlantedRun("openai")
    for number in range(6):
        run.call(0, queue_ms=600 * number, quiet=True)
    run.counter("waiting", (0, 5), (1500, 2), (3100, 0))
    return run


def queueing_unsaid(backend: str = "ollama") -> PlantedRun:
    """Neither replies nor counters tell; replies only begin as others end."""
    run = PlantedRun(backend)
    for number in range(6):
        run.call(0, queue_ms=540 * number, tokens=51, quiet=True)
    return run


def prefill_bound(backend: str = "llamacpp", **settings: Any) -> PlantedRun:
    """Five different documents, read slowly."""
    run = PlantedRun(backend, **settings)
    for number in range(5):
        run.call(
            prefill_ms=2500,
            input_tokens=1500,
            cached_tokens=0,
            prompt="".join(random.Random(number).choices("abcdefgh ", k=6000)),
            reply=f"So much for number {number}, of which there are many.",
        )
    return run


def _notes(prompt: str | None, *, cached_tokens: int | None = 0) -> PlantedRun:
    """Five notes on one document, each on the one before.

    `prompt`: A template; None where texts are not recorded.
    """
    run = PlantedRun("vllm")
    node, last = run.node("notes", 0, 15_000), "none so far, to begin with"
    for n in range(5):
        reply = f"Note {n} is about what to do when case {n} happens"
        run.call(
            parent=node,
            prefill_ms=2000,
            input_tokens=1200,
            cached_tokens=cached_tokens,
            prompt=None if prompt is None else prompt.format(n=n, document=DOCUMENT, last=last),
            reply=reply,
        )
        last = reply
    return run


def drifting_prefix(*, texts: bool = True, cached_tokens: int | None = 0) -> PlantedRun:
    """The time stands before the document in each prompt."""
    prompt = "[user]\nIt is 10:{n}7.\n\n{document}\n\nLast: {last}" if texts else None
    return _notes(prompt, cached_tokens=cached_tokens)


def uncached_prefix() -> PlantedRun:
    """The document stands first and is read anew: the server keeps nothing."""
    return _notes("[user]\n{document}\n\nLast: {last}")


def resent_history(*, cached: bool = False, told: bool = True) -> PlantedRun:
    """A conversation of eight turns; the server tells what it had cached, or its pace does."""
    run = PlantedRun("vllm")
    node, history, tokens = run.node("talk", 0, 4_800 if cached else 17_800), "[user]\nHello.", 300
    for number in range(8):
        reply = f"This is answer number {number}, and it goes on for quite a while."
        run.call(
            parent=node,
            prefill_ms=100 if cached else 2 * tokens,
            tokens=100,
            itl_ms=5,
            input_tokens=tokens,
            cached_tokens=(tokens - 160 if cached and number else 0) if told else None,
            prompt=history,
            reply=reply,
        )
        history += f"\n\n[assistant]\n{reply}\n\n[user]\nAnd then, after {number}?"
        tokens += 160
    return run


def preemptions() -> PlantedRun:
    run = PlantedRun("vllm")
    run.calls(8, 0)
    run.counter("preempted", (0, 0), (3000, 2), (4000, 5))
    return run


def bandwidth_bound() -> PlantedRun:
    """Every token takes 150 ms, in calls that have the server to themselves."""
    run = PlantedRun("vllm")
    run.calls(3, tokens=40, itl_ms=150)
    return run


def known_limits(weight_mb: int, **call: int) -> PlantedRun:
    """Three slow calls on a machine of one core, whose memory gives 10 GB a second."""
    run = PlantedRun("embedded", file="small.gguf")
    run.instant("weights", model="small", active_bytes=weight_mb * 10**6)
    run.instant("machine", memory_bytes_per_s=10**10, cores=1, source="measured")
    run.calls(3, tokens=40, itl_ms=150, **call)
    return run


def slow_decode() -> PlantedRun:
    """Eight calls at once on two cores, and two threads that wait for each other spinning."""
    run = PlantedRun("embedded", slots=8, threads=2, file="small.gguf")
    run.calls(8, 0, prefill_ms=2900, itl_ms=440, tokens=40)
    run.counter("waiting", (0, 0))
    return run


def serial_loop(backend: str = "vllm", **settings: Any) -> PlantedRun:
    """One function asks about eight things, one after another."""
    run = PlantedRun(backend, **settings)
    node = run.node("sentences", 0, 2000)
    for thing in ("tea", "salt", "rain", "bread", "sand", "glass", "wool", "ink"):
        reply = f"Nobody can say for certain what {thing} really was before."
        step = run.span("agent step", run.now_ms, 230, node)
        run.call(parent=step, prompt=f"Say in one sentence what {thing} is.", reply=reply)
    return run


def places_without_models() -> PlantedRun:
    """Sixteen nodes that do something else hold all places; eight calls wait for one."""
    run = PlantedRun()
    run.span("run", 0, 5700, max_parallel=16)
    things = run.node("things", 0, 100)
    for _ in range(16):
        run.node("download", 101, 5000, after=[things])
    waited = {"place_wait_ns": 5000 * MS}
    for item in range(8):
        node = run.node("sections", 5101, 300, after=[things], item=item, **waited)
        run.call(5101, parent=node)
    return run


def places(waiting: float | None = 0) -> PlantedRun:
    """Twelve items of which four run at a time, each with a call to a server that could do more."""
    run = PlantedRun("vllm")
    run.span("run", 0, 3600, max_parallel=4)
    if waiting is not None:
        run.counter("waiting", (0, waiting))
    for item in range(12):
        begins_ms = 1200 * (item // 4)
        waited = {"place_wait_ns": begins_ms * MS} if begins_ms else {}
        node = run.node("sections", begins_ms, 1200, item=item, **waited)
        run.call(begins_ms, parent=node, tokens=100)
    return run


def places_of_a_node() -> PlantedRun:
    """The node's own limit lets two through, and the pipeline would run sixteen."""
    run = PlantedRun("openai")
    run.span("run", 0, 2400, max_parallel=16)
    for item in range(8):
        begins_ms = 600 * (item // 2)
        waited = {"concurrency_wait_ns": begins_ms * MS} if begins_ms else {}
        node = run.node("spoken", begins_ms, 600, item=item, **waited)
        run.call(begins_ms, parent=node, tokens=50)
    return run


def slow_first_call() -> PlantedRun:
    """The server loads its model when the first call comes, and says nothing of it."""
    run = PlantedRun()
    run.call(prefill_ms=3000)
    for _ in range(3):
        run.call(prefill_ms=150, prompt="The same again.")
    return run


def swaps_in_a_server() -> PlantedRun:
    """Two models take turns in a server that says nothing of it."""
    run = PlantedRun()
    for turn in range(3):
        for model in ("small", "large"):
            run.call(model=model, prefill_ms=1500, input_tokens=30, prompt=f"{model} {turn}")
    return run


def straggler() -> PlantedRun:
    """Of five items side by side one takes five times as long, and a sum waits for all."""
    run = PlantedRun("vllm")
    items = [run.node("items", 0, 600, item=item, label=f"items[{item}]") for item in range(4)]
    items.append(run.node("items", 0, 3000, item=4, label="items[4]"))
    for item in items[:4]:
        run.call(0, parent=item, tokens=50)
    run.call(0, parent=items[4], tokens=290)
    run.call(3000, parent=run.node("sum", 3000, 300, after=items))
    return run


def slow_code() -> PlantedRun:
    """A node waits for a tool for most of the run."""
    run = PlantedRun("vllm")
    search = run.node("search", 0, 2500)
    run.call(2500, parent=run.node("answer", 2500, 300, after=[search]))
    return run


def timed_out_attempts() -> PlantedRun:
    """A node's timeout ends two attempts; the third is quick enough."""
    run = PlantedRun("vllm")
    for number in range(2):
        late = {"status": "error", "error": "NodeTimedOut: took longer than total_s = 1 s"}
        node = run.node("summary", 1100 * number, 1000, label="summary", attempt=number + 1, **late)
        run.span("chat", 1100 * number, 1000, node, model="small", status="cancelled")
    run.call(2200, parent=run.node("summary", 2200, 300, label="summary", attempt=3))
    return run


def stalled_replies() -> PlantedRun:
    """Three replies stand still for 1.5 s each, one after the other."""
    run = PlantedRun("vllm")
    waits = {"itl_p95_ns": 12 * MS, "itl_max_ns": 1500 * MS}
    for turn in range(3):
        run.call(tokens=40, itl_ms=48, prompt=f"Turn {turn}, after all before.", **waits)
    return run


def client_lag(function: str | None = "count") -> PlantedRun:
    """A node's function blocks the event loop twice, while others wait for their replies."""
    run = PlantedRun()
    for item in range(4):
        node = run.node("answers", 0, 3000, item=item)
        run.call(0, parent=node, tokens=200, unreliable=["ttft_ns"])
    run.node("parse", 500, 2100)
    place = {"at": "mine.py:12", "function": function} if function else {}
    run.span("client lag", 520, 1200, track="client lag", **place)
    run.span("client lag", 1800, 700, track="client lag", **place)
    run.call(2700)
    return run


def blocked_alone() -> PlantedRun:
    """The only thing that goes on computes: it keeps nothing else waiting."""
    run = PlantedRun()
    run.calls(3)
    run.span("client lag", run.now_ms + 20, 1900, track="client lag", at="mine.py:12", function="f")
    run.node("parse", run.now_ms, 2000)
    return run


def out_of_memory_at_start() -> PlantedRun:
    run = PlantedRun()
    run.endpoint("large", backend="embedded", context_tokens=32_768)
    run.failed_call(5, "DoesNotFit: model 'large' needs 9.1 GiB, the budget is 4", model="large")
    return run


def out_of_memory_later() -> PlantedRun:
    run = PlantedRun("ollama")
    run.calls(3)
    run.failed_call(900, "ServerError: small: HTTP 500: cudaMalloc failed: out of memory")
    return run


def retries() -> PlantedRun:
    run = PlantedRun("litellm")
    for delay_ms in (800, 1500, 2600):
        run.failed_call(60, "RateLimited: small: the account is at its limit")
        run.retry(delay_ms, "RateLimited")
    run.call(tokens=100)
    return run


def failed_calls(**allowed: Any) -> PlantedRun:
    run = PlantedRun("vllm")
    run.call()
    said = "This model's maximum context length is 4096 tokens; your request has 9000"
    run.failed_call(30, f"ContextOverflow: small: {said}", **allowed)
    return run


def context_filled() -> PlantedRun:
    run = PlantedRun("vllm")
    run.calls(3, tokens=40, finish_reason="length", max_output_tokens=4000)
    run.call()
    return run


def replies_cut_by_the_server() -> PlantedRun:
    run = PlantedRun("vllm")
    run.calls(3, tokens=13, finish_reason="length")
    run.call()
    return run


def turns() -> PlantedRun:
    """Six calls at once, two of which are let through at a time, to a server without a queue."""
    run = turns_unsaid("vllm")
    run.counter("waiting", (0, 0))
    return run


def turns_unsaid(backend: str = "openai") -> PlantedRun:
    """The same, and the server tells nothing of itself."""
    run = PlantedRun(backend, max_parallel=2)
    for number in range(6):
        run.call(0, turn_ms=450 * (number // 2), tokens=42)
    return run


def fell_back() -> PlantedRun:
    """Two of three calls were more than the server takes, and went to another."""
    run = PlantedRun("vllm", fallback=["large"])
    run.call()
    for _ in range(2):
        run.failed_call(400, "Overloaded: small: the server is full")
        run.fallback("large", "Overloaded")
        run.call(model="large")
    return run


def out_of_reach(*, fallback: bool = False) -> PlantedRun:
    """Five calls find no server."""
    run = PlantedRun("llamacpp")
    run.call()
    for _ in range(5):
        run.failed_call(300, "EndpointUnreachable: small: nothing answers")
        if fallback:
            run.fallback("large", "EndpointUnreachable")
            run.call(model="large")
    return run


def back_after_a_while() -> PlantedRun:
    """Three calls find no server, and the next one waits until it is looked for again."""
    run = PlantedRun("llamacpp")
    run.call()
    for _ in range(3):
        run.failed_call(300, "EndpointUnreachable: small: nothing answers")
    run.span("hold", run.now_ms, 2000, run.root)
    run.call(run.now_ms + 2000)
    return run


# --- nothing wrong ---------------------------------------------------------------------------


def parallel_on_a_warm_server() -> PlantedRun:
    """Sixteen items at once, then a node that needs all of them, over and over for a while."""
    run = PlantedRun("vllm")
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
    written = run.span("draft", 0, 500, node)
    run.call(parent=written, tokens=45)
    loop = run.span("wiggum", run.now_ms, 5000, node)
    for _ in range(5):
        judged = run.span("evaluate", run.now_ms, 400, loop)
        run.flow("draft", [written], judged)
        run.call(parent=judged, model="judge", role="evaluator")
        written = run.span("revise", run.now_ms, 500, loop)
        run.flow("verdict", [judged], written)
        run.call(parent=written, tokens=45)
    return run


def chain_in_one_function() -> PlantedRun:
    """Twenty short calls; each prompt holds the reply of the one before."""
    run = PlantedRun()
    node, text = run.node("chain", 0, 6000), "Once upon a time there was a tree."
    for number in range(20):
        reply = f"And then, for the {number}th time, something else happened to it."
        run.call(parent=node, prompt=f"Continue in one sentence: {text}", reply=reply)
        text = reply
    return run


def loop_without_texts() -> PlantedRun:
    """Twenty short calls of one function, each in a step; nothing is known of their texts."""
    run = PlantedRun()
    chain = run.node("chain", 0, 6000)
    for _ in range(20):
        run.call(parent=run.span("agent step", run.now_ms, 230, chain))
    return run


def loads_made_ahead() -> PlantedRun:
    """Nobody waits for them."""
    run = PlantedRun()
    for turn in range(6):
        model, other = ("small", "large") if turn % 2 else ("large", "small")
        run.span("load", run.now_ms, 900, model=other, need_bytes=1, prefetch=True)
        run.call(model=model, tokens=100)
    return run


def nodes_in_a_row() -> PlantedRun:
    """A pipeline whose nodes need each other."""
    run = PlantedRun()
    before: list[int] = []
    for number in range(8):
        before = [run.node(f"step {number}", run.now_ms, 240, after=before)]
        run.call(parent=before[0])
        run.now_ms += 10
    return run


def cached_history() -> PlantedRun:
    """A conversation whose history comes out of the prefix cache."""
    return resent_history(cached=True)


def one_retry() -> PlantedRun:
    run = PlantedRun()
    run.failed_call(20, "Overloaded: small: the server is loading or full")
    run.retry(300, "Overloaded")
    run.calls(3, tokens=100)
    return run


def serial_on_one_slot() -> PlantedRun:
    """The engine answers one call at a time, however many there are."""
    return serial_loop("embedded", slots=1)


def answered_from_the_cache() -> PlantedRun:
    """One call is new; the others were made before, by another run."""
    run = PlantedRun("vllm")
    run.call(tokens=100)
    for _ in range(8):
        run.cached_call(structured=True, schema="advisory", dropped=["seed"])
    return run


def schema_enforced() -> PlantedRun:
    run = PlantedRun("vllm")
    call = run.call(400, structured=True, schema="enforced")
    run.span("schema probe", 0, 400, call, model="small", schema="enforced")
    return run


def turns_before_a_full_server() -> PlantedRun:
    """Two of the calls that are let through at a time queue in the server all the same."""
    run = turns()
    run.counter("waiting", (200, 2), (900, 0))
    return run


def turns_that_keep_to_an_accounts_limit() -> PlantedRun:
    run = turns_unsaid()
    run.now_ms = 0
    run.failed_call(20, "RateLimited: small: the account is at its limit")
    run.retry(40, "RateLimited")
    return run


Make = Callable[[], PlantedRun]


def loads_for_another_context() -> PlantedRun:
    """One model under two endpoints: its server tells with each reply that it was loaded."""
    run = PlantedRun()
    for tag, tokens in (("small", 4096), ("wide", 8192)):
        settings = {"url": "http://here", "model_id": "m", "context_tokens": tokens}
        run.endpoint(tag, backend="ollama", **settings)
    for turn in range(6):
        call = run.call(model="wide" if turn % 2 else "small", prompt=f"Part {turn}.")
        run.span("load", run.now_ms, 900, call, source="reported")
        run.now_ms += 900
    return run


def queueing_behind_others() -> PlantedRun:
    """One call at a time, and the server's counters show four."""
    run = PlantedRun("vllm")
    for number in range(5):
        run.call(queue_ms=1200, prompt=f"Question {number}.")
    run.counter("running", (0, 4))
    run.counter("waiting", (0, 5))
    return run


def held_in_the_node() -> PlantedRun:
    """Eight items side by side, whose calls pass a lock one by one."""
    run = PlantedRun("vllm")
    for item in range(8):
        node = run.node("notes", 0, 1990, item=item)
        run.call(parent=node, prompt=f"Note {item}.", reply=f"This is what number {item} says.")
    return run


def a_schema_before_each_reply() -> PlantedRun:
    run = PlantedRun("vllm")
    call: dict[str, Any] = {"structured": True, "prompt": "The same?", "reply": '{"answer": "yes"}'}
    run.calls(6, prefill_ms=950, tokens=17, input_tokens=10, **call)
    return run


def kept_back_while_it_stood_still() -> PlantedRun:
    """Whole replies at once, one of them read by a process that stood still."""
    run = PlantedRun("openai")
    for _ in range(2):
        run.call(prefill_ms=1900, tokens=110, itl_ms=0)
    node = run.call(prefill_ms=1900, tokens=110, itl_ms=0, unreliable=["itl_mean_ns"])
    run.span("decode", run.now_ms, 48, node, source="unreliable")
    return run


def held_by_run_map() -> PlantedRun:
    """A node's `run.map` with `max_parallel=1`."""
    run = PlantedRun("openai")
    node = run.node("notes", 0, 8 * 250)
    for item in range(8):
        waited = {"concurrency_wait_ns": 250 * item * MS} if item else {}
        part = run.span("node", 250 * item, 250, node, node="notes/line", item=item, **waited)
        run.call(
            250 * item,
            parent=part,
            prompt=f"Note {item}.",
            reply=f"This is what number {item} says.",
        )
    return run


def refused_beside_each_other() -> PlantedRun:
    """The account lets two calls through at once, and five are made."""
    run = PlantedRun("openai")
    error = "RateLimited: small: the account is at its limit"
    for start_ms in (0, 1000, 2000):
        for _ in range(2):
            run.call(start_ms, tokens=90)
        for _ in range(3):
            run.now_ms = start_ms
            run.failed_call(5, error)
            run.retry(995, "RateLimited")
    run.call(3000)
    return run


def overloaded_by_others() -> PlantedRun:
    run = PlantedRun("openai")
    for _ in range(3):
        run.failed_call(900, "Overloaded: small: the server is loading or full")
        run.retry(600, "Overloaded")
        run.call()
    return run


def first_tokens_out_of_time() -> PlantedRun:
    run = PlantedRun("openai")
    for _ in range(3):
        nothing = "nothing of the reply within first_token_timeout_s = 2 s"
        run.failed_call(2000, f"CallTimeout: small: {nothing}")
        run.retry(600, "CallTimeout")
    run.call()
    return run


def reasoning_not_counted() -> PlantedRun:
    """Short answers after 400 tokens that were neither shown nor counted apart."""
    run = PlantedRun("openai")
    for question in ("tea", "salt", "rain"):
        answer = f"Nobody can say what {question} is."
        run.call(
            prefill_ms=4000, tokens=408, decode_ms=70, prompt=f"What is {question}?", reply=answer
        )
    return run


def reasoning_before_labels() -> PlantedRun:
    run = PlantedRun("openai")
    run.calls(3, prefill_ms=4000, tokens=405, reasoning_tokens=400, decode_ms=40)
    return run


def swaps_behind_prompts() -> PlantedRun:
    """Two models take turns; at the pace of writing, reading their prompts would take longer."""
    run = PlantedRun("openai")
    same: dict[str, Any] = {"input_tokens": 1000, "reply": "A text of its own."}
    for turn in range(4):
        for model in ("small", "large"):
            cached, ms = (800, 2000) if turn else (0, 2400)
            prompt = f"{model} {turn}"
            run.call(model=model, prefill_ms=ms, cached_tokens=cached, prompt=prompt, **same)
    # One after its own model, which does not wait.
    run.call(model="large", cached_tokens=800, prompt="large 4", **same)
    return run


def long_prompts_sent_together() -> PlantedRun:
    """A server reads six long prompts one after another, and says nothing of a queue."""
    run = PlantedRun("openai")
    for place in range(6):
        run.call(0, prefill_ms=2000 * (place + 1), tokens=8, input_tokens=8000)
    return run


def fixed_wait() -> PlantedRun:
    """Each reply begins half a second after its call, whatever the length of the prompt."""
    run = PlantedRun("openai")
    for number in range(5):
        text = {"prompt": f"It is {number}.\n{DOCUMENT}", "reply": f"Of number {number}, enough."}
        run.call(prefill_ms=504, input_tokens=1500, **text)
    for number in range(4):
        text = {"prompt": f"Say {number}.", "reply": f"It is {number}, as you wish."}
        run.call(prefill_ms=503, input_tokens=18, **text)
    return run


def far_gateways() -> PlantedRun:
    """Two models on two servers, each of which is a second away."""
    run = PlantedRun()
    for model in ("small", "large"):
        run.endpoint(model, backend="openai", url=f"http://{model}/v1")
    for turn in range(4):
        for model in ("small", "large"):
            prompt, reply = f"{model} {turn}", f"What {model} says on {turn}."
            run.call(model=model, prefill_ms=1000, input_tokens=30, prompt=prompt, reply=reply)
    return run


def labels_in_a_list() -> PlantedRun:
    """Each prompt holds what was replied before: values of JSON, and a label before reasoning."""
    run = PlantedRun("vllm")
    for form in (
        '{{"answer": "{}-yes"}}',
        "{}-yes\n\n[reasoning_content]\nhm hm hm hm hm hm hm hm",
    ):
        replied: list[str] = []
        for topic in ("billing", "logins", "uploads", "search"):
            run.call(prompt=f"Is {topic} in scope? {replied}", reply=form.format(topic), tokens=60)
            replied.append(f"{topic}-yes")
    return run


def a_person_answers() -> PlantedRun:
    """An item of a node asks a person, and its question holds the event loop."""
    run = PlantedRun()
    run.node("draft", 0, 500, label="draft")
    run.call(0, tokens=40)
    for item in range(4):
        run.node("approved", 500, 100, label=f"approved[{item}]", item=item)
    asks = run.node("approved", 500, 3500, label="approved[4]", item=4)
    run.span("client lag", 510, 3480, track="client lag", at="mine.py:12", function="asker")
    run.instant("answer", span=asks, key="approved#1", answer="yes")
    return run


def failures_that_cost_nothing() -> PlantedRun:
    """A node's third attempt succeeds; a node is skipped at its timeout, and a call left behind."""
    run = PlantedRun()
    for attempt in (1, 2):
        failed: dict[str, Any] = {"status": "error", "error": "ServerError: small: boom"}
        node = run.node("draft", 10 * attempt, 8, label="draft", attempt=attempt, **failed)
        run.instant("retry", span=node, model="small", reason="ServerError", delay_s=0.0)
        for at_ms in (0, 4):
            run.span("chat", 10 * attempt + at_ms, 2, node, model="small", **failed)
    run.call(30, parent=run.node("draft", 30, 230, label="draft", attempt=3))
    run.node("late", 0, 250, label="late", status="error", error="NodeTimedOut: total_s = 0.2 s")
    run.failed_call(5, "LeftBehind: it went on although it was cancelled")
    return run


HEALTHY: list[Make] = [
    a_person_answers,
    failures_that_cost_nothing,
    parallel_on_a_warm_server,
    revise_loop,
    chain_in_one_function,
    loop_without_texts,
    loads_made_ahead,
    nodes_in_a_row,
    cached_history,
    one_retry,
    serial_on_one_slot,
    answered_from_the_cache,
    labels_in_a_list,
    schema_enforced,
    turns_before_a_full_server,
    turns_that_keep_to_an_accounts_limit,
]
