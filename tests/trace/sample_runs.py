"""Runs made up for tests: by hand, at random, and as code leaves them."""

import asyncio
import random
from pathlib import Path

from harness.trace import (
    Journal,
    ManualClock,
    Record,
    RunStarted,
    RunTrace,
    SpanRecord,
)
from harness.trace.journal_line import decode, encode

STARTED = RunStarted(
    schema=1, run_id="20260102T030405Z-00", name="essay", wall_ns=0, time_ns=0, process_id=1
)


def span(
    number: int,
    start_ns: int,
    end_ns: int,
    *,
    parent: int | None = None,
    name: str = "work",
    status: str = "ok",
    **attributes: object,
) -> SpanRecord:
    return SpanRecord(
        id=number,
        parent=parent,
        name=name,
        start_ns=start_ns,
        end_ns=end_ns,
        status=status,
        error=None,
        attributes=attributes,
    )


def write_journal(path: Path, *records: Record, started: RunStarted = STARTED) -> Journal:
    """A journal of these records, read back."""
    path.write_bytes(b"".join(encode(record) for record in (started, *records)))
    return Journal(path)


def journal_lines(path: Path) -> list[Record]:
    """The records of a journal's file, line by line."""
    return [decode(line) for line in path.read_bytes().splitlines()]


def whole_lines(path: Path) -> list[Record]:
    """The same of a file that is being written to: its last line may be there in part."""
    return [decode(line) for line in path.read_bytes().rpartition(b"\n")[0].splitlines()]


def random_spans(randomness: random.Random, *, count: int, within_ns: int) -> list[SpanRecord]:
    """Spans whose parents stand before them, and whose times owe nothing to their parents'."""
    spans = []
    for number in range(1, count + 1):
        start_ns = randomness.randint(0, within_ns)
        track = randomness.choice([None, None, None, "planner", "writer"])
        spans.append(
            span(
                number,
                start_ns,
                start_ns + randomness.randint(0, within_ns // 2),
                parent=randomness.choice([None, *range(1, number)]),
                **({} if track is None else {"track": track}),
            )
        )
    return spans


def record_eventful_run(directory: Path) -> RunTrace:
    """A run with nesting, eight calls at once, failures, many scripts, and a span left open."""
    clock = ManualClock(start_ns=7_000_000_123)
    trace = RunTrace(directory, name="Übersicht 概要", clock=clock)

    async def call(number: int, barrier: asyncio.Barrier) -> None:
        with trace.span("node", track="sections", label=f"sections[{number}]"):
            clock.advance(ns=101)
            with trace.span("chat", model="küken-🐣", prompt='"quoted"\n\u2028') as chat:
                await barrier.wait()
                clock.advance(ns=1_000_003)
                trace.completed_span(
                    "prefill", start_ns=clock() - 1_000_003, end_ns=clock() - 1, source="derived"
                )
                trace.instant("first token", at_ns=clock() - 1)
                chat.set(output_tokens=number)
            trace.counter("calls done", number, unit="calls")

    async def everything() -> None:
        with trace.span("run", label="Übersicht 概要"):
            trace.instant("begun")
            clock.advance(ns=7)
            barrier = asyncio.Barrier(8)
            async with asyncio.TaskGroup() as group:
                for number in range(8):
                    group.create_task(call(number, barrier))
            trace.counter("composite", 6.25, unit="points")
            clock.advance(ms=2)
            try:
                with trace.span("evaluate", round=1, scores={"tone": 3.5}, missing=None):
                    clock.advance(ns=1)
                    raise ValueError("the judge said \ud800 nothing")
            except ValueError:
                trace.instant("stop", reason="evaluator_failed")
            trace.counter("composite", -1, unit="points")
            clock.advance(ns=999)

    async def never_closed() -> None:
        trace.span("load", track="engine", model="big").__enter__()
        clock.advance(ns=5)

    async def both() -> None:
        await asyncio.create_task(never_closed())
        await asyncio.create_task(everything())

    with trace:
        trace.instant("before any span")
        asyncio.run(both())
    return trace
