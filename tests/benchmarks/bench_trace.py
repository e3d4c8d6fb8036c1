"""What tracing costs, and how fast a long run becomes a timeline.

    python tests/benchmarks/bench_trace.py [--json] [--spans 1000000] [--megabytes 500]

Four parts, each a ratio against something in the same run, or a limit:

1. A span, begun and ended in a hot loop: against two readings of the clock and an append, against
   the least that Python charges for a `with` block that does this and keeps a context variable,
   and against a span of the OpenTelemetry SDK with an in-memory exporter (extra `bench`), if that
   is installed.
2. The export of a long journal: seconds, also of reading its lines with Python's `json`, bytes a
   span, and the peak memory of a process that does nothing else.
3. Report, diagnosis and export of a journal that is mostly prompts and replies: the same figures.
4. 64 concurrent scripted calls of 5 ms each: wall time with a journal against without any tracing,
   and the processor time of the calling thread, which a busy machine does not falsify.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from heapq import merge
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import NamedTuple

from figures import Figure, print_figures

from harness.analysis import diagnose, report_of
from harness.inference import ChatRequest, Client, Endpoint, Message, ScriptedBackend
from harness.inference.client import Route
from harness.inference.gate import Gate
from harness.trace import (
    TIMELINES,
    Content,
    CounterSet,
    Flow,
    Instant,
    Journal,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    TraceOptions,
    Tracer,
)
from harness.trace.journal_line import encode, seal

ONLY_A_JOURNAL = TraceOptions(timelines=())
clock = time.perf_counter_ns


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--spans", type=int, default=1_000_000)
    arguments.add_argument("--megabytes", type=int, default=500)
    arguments.add_argument("--alone", nargs=2, metavar=("JOB", "JOURNAL"), help="internal")
    options = arguments.parse_args()
    if options.alone:
        do_alone(options.alone[0], Path(options.alone[1]))
        return
    figures = [
        *span_figures(),
        *export_figures(options.spans),
        *model_run_figures(options.megabytes),
        *overhead_figures(),
    ]
    print_figures(figures, as_json=options.json)


# --- 1. A span ----------------------------------------------------------------------------------

ROUNDS, BURST = 60, 1_000


def span_figures() -> list[Figure]:
    """Nanoseconds a span, by the median of bursts that take turns."""
    otel, forget = otel_spans() if find_spec("opentelemetry.sdk") else (None, lambda: None)
    with (
        tempfile.TemporaryDirectory() as directory,
        RunTrace(Path(directory), name="bench", options=ONLY_A_JOURNAL) as trace,
    ):
        loops: dict[str, Callable[[], None]] = {
            "bare": bare,
            "with": with_block,
            "ours": lambda: our_spans(trace),
            "ours with two attributes": lambda: our_spans_with_attributes(trace),
            **({"otel": otel} if otel else {}),
        }
        times: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(ROUNDS):
            for name, loop in loops.items():
                start = time.perf_counter()
                loop()
                times[name].append((time.perf_counter() - start) / BURST * 1e9)
            forget()
            # The journal's thread catches up here, as it does in a run that waits for models.
            time.sleep(0.03)
    ns = {name: statistics.median(values) for name, values in times.items()}
    return [
        Figure("two clock readings and an append, ns", ns["bare"]),
        Figure("the same in a with block, two appends, a context variable, ns", ns["with"]),
        Figure("a span, ns", ns["ours"]),
        Figure("a span with two attributes, ns", ns["ours with two attributes"]),
        Figure("a span / the bare readings and append", ns["ours"] / ns["bare"], "aim ≤ 2.5"),
        Figure("a span / the bare with block", ns["ours"] / ns["with"]),
        *(
            [
                Figure("a span of the OpenTelemetry SDK, ns", ns["otel"]),
                Figure("OpenTelemetry / a span", ns["otel"] / ns["ours"], "aim ≥ 15"),
            ]
            if otel
            else []
        ),
    ]


def bare() -> None:
    append = deque[object]().append
    for _ in range(BURST):
        start = clock()
        append((start, clock()))


_current: ContextVar[object] = ContextVar("bench_current", default=None)


class Bare:
    """The least that a span as a with block has to do."""

    __slots__ = ("append", "end", "outer", "start")

    def __init__(self, append: Callable[[object], None]) -> None:
        self.append = append

    def __enter__(self) -> None:
        self.outer = _current.get()
        _current.set(self)
        self.start = clock()
        self.append(self)

    def __exit__(self, *_: object) -> None:
        self.end = clock()
        _current.set(self.outer)
        self.append(self)


def with_block() -> None:
    append = deque[object]().append
    for _ in range(BURST):
        with Bare(append):
            pass


def our_spans(trace: Tracer) -> None:
    for _ in range(BURST):
        with trace.span("work"):
            pass


def our_spans_with_attributes(trace: Tracer) -> None:
    for number in range(BURST):
        with trace.span("work", model="small", number=number):
            pass


def otel_spans() -> tuple[Callable[[], None], Callable[[], None]]:
    """A loop of OpenTelemetry's spans, and what empties its exporter."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("bench")

    def loop() -> None:
        for _ in range(BURST):
            with tracer.start_as_current_span("work"):
                pass

    return loop, exporter.clear


# --- 2. Export ----------------------------------------------------------------------------------

_AIMS = {
    "chrome": ("aim ≤ 3", "", "aim < 300"),
    "perfetto": ("aim ≤ 5", "aim ≤ 70", "aim < 300"),
}


def export_figures(spans: int) -> list[Figure]:
    """Seconds, bytes a span and megabytes of memory, by format."""
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        journal = record_long_run(Path(directory), spans)
        took_s = time.perf_counter() - start
        figures = [
            Figure(f"recording {spans:,} spans in one hot loop, s", took_s),
            Figure("journal, bytes a span", journal.stat().st_size / spans),
            Figure("its lines read by Python's json, s", alone("json", journal)[0]),
        ]
        for form, (time_aim, size_aim, memory_aim) in _AIMS.items():
            seconds, memory_mb = alone(form, journal)
            size = journal.with_suffix(TIMELINES[form][0]).stat().st_size
            figures += [
                Figure(f"export to {form}, s", seconds, time_aim),
                Figure(f"export to {form}, bytes a span", size / spans, size_aim),
                Figure(f"export to {form}, peak memory of the process, MB", memory_mb, memory_aim),
            ]
    return figures


def record_long_run(directory: Path, spans: int) -> Path:
    """A run of nodes with calls with phases; three attributes on each call and each phase."""
    with RunTrace(directory, name="long", options=ONLY_A_JOURNAL) as trace, trace.span("run"):
        for item in range(spans // 10):
            with trace.span("node", track="node sections", item=item):
                for call in range(3):
                    with trace.span(
                        "chat", track="model small", role="producer", seed=call, tokens=item
                    ):
                        with trace.span("prefill", source="measured", tokens=item, cached=call):
                            pass
                        with trace.span("decode", source="measured", tokens=item, cached=call):
                            pass
    return trace.journal_path


def alone(job: str, journal: Path) -> tuple[float, float]:
    """Seconds and megabytes of a process that does nothing else; the best of three."""
    command = [sys.executable, __file__, "--alone", job, str(journal)]
    done = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(3)]
    seconds, memory_mb = min(json.loads(one.stdout) for one in done)
    return seconds, memory_mb


def do_alone(job: str, path: Path) -> None:
    """Makes something of a journal in this process; prints seconds and megabytes."""
    start = time.perf_counter()
    if job == "json":  # a peer, for machines of other speeds
        with path.open("rb") as file:
            deque(map(json.loads, file), maxlen=0)
        print(json.dumps([time.perf_counter() - start, 0]))
        return
    journal = Journal(path)
    if job == "report":
        report_of(journal)
    elif job == "diagnose":
        diagnose(journal)
    else:
        for suffix, write in (TIMELINES[form] for form in TIMELINES if job in {form, "both"}):
            write(journal, path.with_suffix(suffix))
    seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps([seconds, peak_mb]))


# --- 3. A run of models --------------------------------------------------------------------------

AT_ONCE, CALLS_OF_A_NODE, PROMPT_CHARS, REPLY_CHARS = 16, 4, 4_000, 800


def model_run_figures(megabytes: int) -> list[Figure]:
    """Seconds and megabytes of memory for what is made of a journal of prompts and replies."""
    with tempfile.TemporaryDirectory() as directory:
        journal = Path(directory, "models.jsonl")
        calls = write_model_run(journal, megabytes * 1_000_000)
        figures = [
            Figure(f"model calls in {megabytes} MB of journal", calls),
            Figure("its lines read by Python's json, s", alone("json", journal)[0]),
        ]
        for job, time_aim in {"report": "aim ≤ 6", "diagnose": "aim ≤ 6", "both": ""}.items():
            said = {"both": "export of both timelines"}.get(job, job)
            seconds, memory_mb = alone(job, journal)
            figures += [
                Figure(f"{said}, s", seconds, time_aim),
                Figure(f"{said}, peak memory of the process, MB", memory_mb, "aim < 300"),
            ]
    return figures


def write_model_run(path: Path, size_bytes: int) -> int:
    """A journal of nodes that call a model, several at once; returns how many calls it has."""
    randomness = Random(1)
    words = [f"word{number}" for number in range(2_000)] + ["line\n", 'a "quote"', "Übersicht"]
    text = " ".join(randomness.choices(words, k=200_000))
    call_bytes = PROMPT_CHARS + REPLY_CHARS + 2_300
    places = [
        _place(
            number, randomness, text, nodes=size_bytes // call_bytes // AT_ONCE // CALLS_OF_A_NODE
        )
        for number in range(AT_ONCE)
    ]
    calls = 0
    last_ns = 0
    with path.open("wb") as file:
        started = RunStarted(1, "20260102T030405Z-00", "models", 0, 0, 1)
        whole = SpanStarted(1, None, "run", 0, {"label": "models", "max_parallel": AT_ONCE})
        about = Instant(1, "endpoint", 0, {"model": "small", "backend": "vllm", "slots": AT_ONCE})
        file.write(b"".join(seal(encode(r), n) for n, r in enumerate((started, whole, about), 1)))
        for number, (time_ns, record) in enumerate(merge(*places, key=itemgetter(0)), 4):
            last_ns = time_ns
            calls += type(record) is SpanStarted and record.name == "chat"
            file.write(seal(encode(record), number))
        file.write(seal(encode(SpanEnded(1, last_ns)), number + 1))
        file.write(seal(encode(RunEnded(last_ns, "ok")), number + 2))
    return calls


def _place(
    place: int, randomness: Random, text: str, *, nodes: int
) -> Iterator[tuple[int, Record]]:
    """The records of the node calls that one place runs, one after another, with their times."""

    def content(chars: int) -> Content:
        start = randomness.randrange(len(text) - chars)
        said = f"{randomness.random()} {text[start : start + chars]}"
        return Content(hashlib.sha256(said.encode()).hexdigest(), said)

    now_ns, width = 1_000_000 * (place + 1), 1 + CALLS_OF_A_NODE * 4
    for item in range(place, nodes * AT_ONCE, AT_ONCE):
        node = 2 + item * width
        said = {"track": "node parts", "label": f"parts[{item}]", "node": "parts", "item": item}
        yield now_ns, SpanStarted(node, 1, "node", now_ns, said)
        for chat in range(node + 1, node + width, 4):
            prompt, reply = content(PROMPT_CHARS), content(REPLY_CHARS)
            asked = {
                "track": "model small", "model": "small", "role": "producer",
                "label": f"parts[{item}] · producer", "temperature": 0.7, "seed": chat,
                "max_output_tokens": 512, "structured": False, "prompt_chars": PROMPT_CHARS,
                "prompt_sha256": prompt.sha256,
            }  # fmt: skip
            sent_ns, now_ns = now_ns, now_ns + randomness.randrange(20_000, 200_000)
            yield sent_ns, prompt
            yield sent_ns, SpanStarted(chat, node, "chat", sent_ns, asked)
            steps_ns = [now_ns]
            for longest_ms in (50, 400, 3_000):
                steps_ns.append(steps_ns[-1] + randomness.randrange(1_000_000, longest_ms * 10**6))
            queued_ns, begun_ns, first_ns, now_ns = steps_ns
            phases = {"queue": (queued_ns, begun_ns), "prefill": (begun_ns, first_ns)}
            phases["decode"] = (first_ns, now_ns)
            for phase, (name, times_ns) in enumerate(phases.items(), chat + 1):
                source = {"source": "reported"}
                yield now_ns, SpanRecord(phase, chat, name, *times_ns, attributes=source)
            yield now_ns, Instant(chat, "first token", first_ns)
            tokens = randomness.randrange(100, 300)
            itl_ns = (now_ns - first_ns) // tokens
            got = {
                "ttft_ns": first_ns - queued_ns, "itl_mean_ns": itl_ns, "itl_p95_ns": 2 * itl_ns,
                "itl_p99_ns": 3 * itl_ns, "itl_max_ns": 4 * itl_ns, "input_tokens": 1_000,
                "cached_tokens": 0, "output_tokens": tokens, "model_id": "small",
                "finish_reason": "stop", "reply_sha256": reply.sha256,
            }  # fmt: skip
            yield now_ns, reply
            yield now_ns, SpanEnded(chat, now_ns, attributes=got)
            yield now_ns, CounterSet("running", "calls", now_ns, place, track="server small")
        yield now_ns, SpanEnded(node, now_ns)
        yield now_ns, NodeOutput("parts", item, reply.text, {"task": "0" * 64}, digest="1" * 64)
        if item >= AT_ONCE:
            yield now_ns, Flow("output", node - width * AT_ONCE, node)


# --- 4. Overhead --------------------------------------------------------------------------------

CALLS, CALL_S, TURNS, IN_A_ROW = 64, 0.005, 20, 10


def overhead_figures() -> list[Figure]:
    """Wall time of a batch of calls at once, with tracing and without, by the median of turns.

    Ten batches in a row, so that the journal's thread writes the last ones while the next run; and
    nothing of it is left to write when it is the turn of the untraced.
    """
    with tempfile.TemporaryDirectory() as directory:
        plain, traced = asyncio.run(both(Path(directory)))
    return [
        Figure(f"{CALLS} concurrent calls of 5 ms, untraced, ms", plain.wall_s * 1e3),
        Figure(f"{CALLS} concurrent calls of 5 ms, traced, ms", traced.wall_s * 1e3),
        Figure("overhead of tracing, %", (traced.wall_s / plain.wall_s - 1) * 100, "aim ≤ 3"),
        Figure("processor time of a call, untraced, µs", plain.cpu_s / CALLS * 1e6),
        Figure("processor time of a call, traced, µs", traced.cpu_s / CALLS * 1e6),
    ]


class Took(NamedTuple):
    """What a batch of calls took."""

    wall_s: float
    cpu_s: float


async def both(directory: Path) -> tuple[Took, Took]:
    plain = ScriptedBackend(lambda _: "A reply of a few words.", delay_s=CALL_S)
    with RunTrace(directory, name="bench", options=ONLY_A_JOURNAL) as trace:
        traced, untraced = client_of(plain, trace), client_of(plain, Tracer())
        times: tuple[list[Took], list[Took]] = ([], [])
        for _ in range(TURNS):
            for backend, taken in zip((untraced, traced), times, strict=True):
                await trace.persisted()
                start, cpu = time.perf_counter(), time.thread_time()
                for _ in range(IN_A_ROW):
                    await asyncio.gather(*(backend.chat(request(n)) for n in range(CALLS)))
                wall_s, cpu_s = time.perf_counter() - start, time.thread_time() - cpu
                taken.append(Took(wall_s / IN_A_ROW, cpu_s / IN_A_ROW))
    plain, traced = (Took(*map(statistics.median, zip(*one, strict=True))) for one in times)
    return plain, traced


def client_of(backend: ScriptedBackend, tracer: Tracer) -> Client:
    endpoint = Endpoint(tag="small", backend="scripted")
    gate = Gate(endpoint=endpoint, tracer=tracer)
    line = Route(endpoint=endpoint, backends=(backend,), gate=gate)
    return Client(routes={"small": line}, tracer=tracer)


def request(number: int) -> ChatRequest:
    prompt = f"Summarize this, number {number}: " + "some words of a usual prompt " * 20
    return ChatRequest(model="small", role="producer", messages=(Message("user", prompt),))


if __name__ == "__main__":
    main()
