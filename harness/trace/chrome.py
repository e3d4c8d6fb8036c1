"""The Chrome Trace export: JSON that Perfetto and `chrome://tracing` open.

What the importers enforce, and this file therefore does: times are microseconds relative to the
run's start (an epoch would lose its fraction), thread ids are small, complete events on one thread
nest, and no value is NaN, which would abort the whole load.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from harness.trace.lanes import Lane, assign_lanes
from harness.trace.lenient_json import dump_json
from harness.trace.run_record import RunRecord, SpanRecord

_PROCESS = 1

Event = dict[str, object]
"""One element of `traceEvents`."""


def write_chrome_trace(run: RunRecord, path: Path) -> None:
    """Writes a run as Chrome Trace JSON.

    Raises:
        OSError: The file cannot be written.
    """
    # The file appears whole or not at all: half a JSON object does not load.
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            _write(run, file)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def chrome_events(run: RunRecord) -> Iterator[Event]:
    """The events of a run: names first, then spans with parents before children, then the rest."""
    lanes = assign_lanes(run.spans, root_track=run.started.name)
    threads = {lane: number for number, lane in enumerate(_in_order(lanes), start=1)}
    yield _metadata("process_name", 0, f"{run.started.name} {run.started.run_id}")
    for lane, thread in threads.items():
        name = lane.track if lane.index == 0 else f"{lane.track} ({lane.index + 1})"
        yield _metadata("thread_name", thread, name)
        yield {
            "ph": "M",
            "pid": _PROCESS,
            "tid": thread,
            "name": "thread_sort_index",
            "args": {"sort_index": thread},
        }

    origin_ns = run.started.time_ns
    for span in run.spans:
        yield {
            "ph": "X",
            "pid": _PROCESS,
            "tid": threads[lanes[span.id]],
            "ts": _microseconds(span.start_ns - origin_ns),
            "dur": _microseconds(span.duration_ns),
            "name": str(span.attributes.get("label") or span.name),
            # What kind of span it is, whatever its title: to colour, filter and sum by.
            "cat": span.name,
            "args": _arguments(span),
        }
    for instant in run.instants:
        place = lanes.get(instant.span) if instant.span is not None else None
        yield {
            "ph": "i",
            "s": "t" if place else "p",
            "pid": _PROCESS,
            "tid": threads[place] if place else 0,
            "ts": _microseconds(instant.time_ns - origin_ns),
            "name": instant.name,
            "args": dict(instant.attributes),
        }
    for counter in run.counters:
        yield {
            "ph": "C",
            "pid": _PROCESS,
            "ts": _microseconds(counter.time_ns - origin_ns),
            "name": counter.name,
            # Perfetto names the counter "name key".
            "args": {counter.unit: counter.value},
        }


def _write(run: RunRecord, file: BinaryIO) -> None:
    about = {
        "run_id": run.started.run_id,
        "pipeline": run.started.name,
        "started_wall_ns": str(run.started.wall_ns),
    }
    file.write(b'{"displayTimeUnit":"ms","otherData":' + dump_json(about))
    file.write(b',"traceEvents":[\n')
    for number, event in enumerate(chrome_events(run)):
        file.write(b",\n" if number else b"")
        file.write(dump_json(event))
    file.write(b"\n]}\n")


def _in_order(lanes: dict[int, Lane]) -> list[Lane]:
    """Tracks as they first appear, each with its lanes together."""
    tracks = {lane.track: None for lane in lanes.values()}
    position = {track: number for number, track in enumerate(tracks)}
    return sorted(set(lanes.values()), key=lambda lane: (position[lane.track], lane.index))


def _arguments(span: SpanRecord) -> dict[str, object]:
    arguments: dict[str, object] = {"span": span.id, "parent": span.parent, **span.attributes}
    if span.status != "ok":
        arguments["status"] = span.status
    if span.error:
        arguments["error"] = span.error
    return arguments


def _metadata(name: str, thread: int, value: str) -> Event:
    return {"ph": "M", "pid": _PROCESS, "tid": thread, "name": name, "args": {"name": value}}


def _microseconds(ns: int) -> float:
    return ns / 1000
