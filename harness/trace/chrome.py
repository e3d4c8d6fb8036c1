"""The Chrome Trace export: JSON that Perfetto and `chrome://tracing` open.

The importers require that times are microseconds relative to the run's start (an epoch would lose
its fraction), that process and thread ids are small, that complete events on one thread nest, and
that no value is NaN, which would abort the whole load. A group of tracks is a process, the only
kind of group in this format. Integers from 2**63 on are misread; Perfetto's own format keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from harness.files import whole_file
from harness.trace.journal_line import dump_json
from harness.trace.journal_reader import Journal
from harness.trace.records import CounterSet, Instant, SpanRecord
from harness.trace.summary_tracks import SUMMED, SummaryTracks
from harness.trace.timeline import (
    Arrows,
    Lane,
    Lanes,
    excerpts_of,
    on_lane,
    shown_counter,
    slice_title,
    span_arguments,
    track_rank,
)

_BATCH = 500

Event = dict[str, object]
"""One element of `traceEvents`."""


def write_chrome_trace(journal: Journal, path: Path) -> None:
    """Writes a run as Chrome Trace JSON, in memory that hardly grows with the run.

    Raises:
        JournalInvalid: A line in the middle of the journal is not a record.
        OSError: The file cannot be written.
    """
    about: Event = {
        "run_id": journal.started.run_id,
        "pipeline": journal.started.name,
        # A text, since readers of JSON round integers beyond 2**53.
        "started_wall_ns": str(journal.started.wall_ns),
    }
    events = chrome_events(journal)
    with whole_file(path) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":' + _json(about))
        file.write(b',"traceEvents":[\n' + _json(next(events)))
        while batch := list(islice(events, _BATCH)):
            # Without the list's own brackets.
            file.write(b",\n" + _json(batch)[1:-1])
        file.write(b"\n]}\n")


def chrome_events(journal: Journal) -> Iterator[Event]:
    """The events of a run, in the order they began; a track is named before its first event."""
    origin_ns = journal.started.time_ns
    lanes = Lanes(f"run {journal.started.name}")
    arrows, excerpts = Arrows(journal.flows), excerpts_of(journal)
    run_id = journal.started.run_id
    threads = _Threads(origin_ns)
    summary = SummaryTracks()
    yield from threads.names(lanes.track(None))
    for item in chain(journal.items(SpanRecord, Instant, CounterSet), summary.counters()):
        if type(item) is SpanRecord:
            if item.name in SUMMED:
                summary.add(item)
            lane = lanes.place(item)
            if lane.number >= threads.named:
                yield from threads.names(lane)
            yield {
                "ph": "X",
                **threads.place(lane, item.start_ns),
                "dur": (item.end_ns - item.start_ns) / 1000,
                "name": slice_title(item),
                # The kind of span, whatever its title: to color, filter and sum by.
                "cat": item.name,
                "args": span_arguments(item, lane, excerpts=excerpts, run_id=run_id),
            }
            # Arrows at the span's very beginning: what lies inside it begins later.
            for end in arrows.at(item, lanes):
                place = threads.place(end.mark or lane, item.start_ns)
                if end.mark:
                    yield {"ph": "i", "s": "t", **place, "name": end.name}
                yield {
                    # Without `bp`, it would end at the next slice, not at the one around it.
                    **({"ph": "s"} if end.leaves else {"ph": "f", "bp": "e"}),
                    **place,
                    "id": end.number,
                    "cat": "flow",
                    "name": end.name,
                }
        elif type(item) is Instant:
            lane = lanes.of(item.span)
            yield {
                "ph": "i",
                "s": "t",
                **threads.place(lane, item.time_ns),
                "name": item.name,
                "args": dict(item.attributes),
            }
        elif type(item) is CounterSet:
            counter = shown_counter(item)
            lane = lanes.of(item.span, item.track)
            yield from threads.names(lane)
            yield {
                "ph": "C",
                "pid": threads.processes[lane.track],
                "ts": (item.time_ns - origin_ns) / 1000,
                # Counters of one process differ by their names alone.
                "name": on_lane(item.name, lane),
                # Perfetto names the counter "name key".
                "args": {counter.unit: counter.value},
            }


class _Threads:
    """Tracks as processes, lanes as threads, both with small numbers.

    Attributes:
        processes: By track.
        named: How many lanes have their names: all below this number.
    """

    def __init__(self, origin_ns: int) -> None:
        self.processes: dict[str, int] = {}
        self.named = 0
        self._origin_ns = origin_ns

    def place(self, lane: Lane, time_ns: int) -> Event:
        """Where and when an event is drawn."""
        ts = (time_ns - self._origin_ns) / 1000
        return {"pid": self.processes[lane.track], "tid": lane.number + 1, "ts": ts}

    def names(self, lane: Lane) -> Iterator[Event]:
        """The metadata of a lane, when it is new: lanes are numbered as they appear."""
        if lane.number < self.named:
            return
        self.named += 1
        thread = lane.number + 1
        if lane.track not in self.processes:
            self.processes[lane.track] = process = len(self.processes) + 1
            rank = track_rank(lane.track) * 1_000_000 + process
            yield _metadata("process_name", process, 0, name=lane.track)
            yield _metadata("process_sort_index", process, 0, sort_index=rank)
        process = self.processes[lane.track]
        yield _metadata("thread_name", process, thread, name=on_lane(lane.track, lane))
        yield _metadata("thread_sort_index", process, thread, sort_index=lane.index)


def _metadata(what: str, process: int, thread: int, **arguments: object) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": arguments}


def _json(value: Event | list[Event]) -> bytes:
    r"""JSON for Perfetto's importer: there a quote after a backslash never ends a text.

    So `\\`, which may be a text's last character, is written in another way. See `ScanString` in
    `src/trace_processor/util/json_parser.h`.
    """
    data = dump_json(value)
    return data.replace(b"\\\\", b"\\u005c") if b'\\\\"' in data else data
