"""What tracing costs, and how fast a long run becomes a timeline.

    python tests/benchmarks/bench_trace.py [--json] [--spans 1000000]

Three parts, each a ratio against something in the same run, or a limit:

1. A span, begun and ended in a hot loop: against two readings of the clock and an append, against
   the least that Python charges for a `with` block that does this and keeps a context variable,
   and against a span of the OpenTelemetry SDK with an in-memory exporter (extra `bench`).
2. The export of a long journal: seconds, bytes a span, and the peak memory of a process that does
   nothing else.
3. 64 concurrent scripted calls of 5 ms each: wall time with a journal against without any tracing,
   and the processor time of the calling thread, which a busy machine does not falsify.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from harness.inference import ChatRequest, Client, Endpoint, Gate, Line, Message, ScriptedBackend
from harness.trace import TIMELINES, Journal, RunTrace, TraceOptions, Tracer

ONLY_A_JOURNAL = TraceOptions(timelines=())
clock = time.perf_counter_ns


class Figure(NamedTuple):
    """One line of the table."""

    figure: str
    value: float
    aim: str = ""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--spans", type=int, default=1_000_000)
    arguments.add_argument("--export", nargs=2, metavar=("FORMAT", "JOURNAL"), help="internal")
    options = arguments.parse_args()
    if options.export:
        export_alone(options.export[0], Path(options.export[1]))
        return
    figures = [*span_figures(), *export_figures(options.spans), *overhead_figures()]
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
        return
    for figure in figures:
        print(f"{figure.figure:<66}{figure.value:>12,.2f}  {figure.aim}")


# --- 1. A span ----------------------------------------------------------------------------------

ROUNDS, BURST = 60, 1_000


def span_figures() -> list[Figure]:
    """Nanoseconds a span, by the median of bursts that take turns."""
    otel, forget = otel_spans()
    with (
        tempfile.TemporaryDirectory() as directory,
        RunTrace(Path(directory), name="bench", options=ONLY_A_JOURNAL) as trace,
    ):
        loops: dict[str, Callable[[], None]] = {
            "bare": bare,
            "with": with_block,
            "ours": lambda: our_spans(trace),
            "ours with two attributes": lambda: our_spans_with_attributes(trace),
            "otel": otel,
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
        Figure("a span of the OpenTelemetry SDK, ns", ns["otel"]),
        Figure("a span / the bare readings and append", ns["ours"] / ns["bare"], "aim ≤ 2.5"),
        Figure("a span / the bare with block", ns["ours"] / ns["with"]),
        Figure("OpenTelemetry / a span", ns["otel"] / ns["ours"], "aim ≥ 15"),
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
        ]
        for form, (time_aim, size_aim, memory_aim) in _AIMS.items():
            done = subprocess.run(
                [sys.executable, __file__, "--export", form, str(journal)],
                check=True,
                capture_output=True,
                text=True,
            )
            seconds, size, memory_mb = json.loads(done.stdout)
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


def export_alone(form: str, path: Path) -> None:
    """Exports a journal in this process; prints seconds, bytes and megabytes."""
    suffix, write = next(TIMELINES[known] for known in TIMELINES if known == form)
    target = path.with_suffix(suffix)
    start = time.perf_counter()
    write(Journal(path), target)
    seconds = time.perf_counter() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(json.dumps([seconds, target.stat().st_size, peak_mb]))


# --- 3. Overhead --------------------------------------------------------------------------------

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
    line = Line(endpoint=endpoint, backend=backend, gate=Gate(tracer=tracer))
    return Client(lines={"small": line}, tracer=tracer)


def request(number: int) -> ChatRequest:
    prompt = f"Summarize this, number {number}: " + "some words of a usual prompt " * 20
    return ChatRequest(model="small", role="producer", messages=(Message("user", prompt),))


if __name__ == "__main__":
    main()
