"""The Chrome Trace export: JSON that Perfetto and `chrome://tracing` open.

The importers require that complete events on one thread nest, and that no value is NaN, which would
abort the whole load. Integers from 2**63 on are misread; Perfetto's own format keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from harness.files import whole_file
from harness.trace.journal_line import dump_json
from harness.trace.journal_reader import Journal
from harness.trace.records import CounterSet, Instant, SpanRecord
from harness.trace.timeline import Lane, TimelineDrawing, on_lane, slice_title, track_rank

_BATCH = 500

Event = dict[str, object]  # one element of `traceEvents`


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
    drawing, threads = TimelineDrawing(journal), _Threads(journal.started.time_ns)
    yield from threads.names(drawing.lanes.track(None))
    for item, lane in drawing.items():
        if lane.number >= threads.named:
            yield from threads.names(lane)
        if type(item) is SpanRecord:
            yield {
                "ph": "X",
                **threads.place(lane, item.start_ns),
                "dur": (item.end_ns - item.start_ns) / 1000,
                "name": slice_title(item),
                # The kind of span, whatever its title: to color, filter and sum by.
                "cat": item.name,
                "args": drawing.arguments(item, lane),
            }
            # Arrows are at the very beginning of the span, since spans inside it begin later.
            for end in drawing.arrows(item):
                place = threads.place(end.mark or lane, item.start_ns)
                if end.mark:
                    yield {"ph": "i", "s": "t", **place, "name": end.name}
                yield {
                    # Without `bp`, the arrow would end at the next slice, not at this one.
                    **({"ph": "s"} if end.leaves else {"ph": "f", "bp": "e"}),
                    **place,
                    "id": end.number,
                    "cat": "flow",
                    "name": end.name,
                }
        elif type(item) is Instant:
            yield {
                "ph": "i",
                "s": "t",
                **threads.place(lane, item.time_ns),
                "name": item.name,
                "args": dict(item.attributes),
            }
        elif type(item) is CounterSet:
            place = threads.place(lane, item.time_ns)
            yield {
                "ph": "C",
                "pid": place["pid"],
                "ts": place["ts"],
                # Counters of one process differ by their names alone.
                "name": on_lane(item.name, lane),
                # Perfetto names the counter "name key".
                "args": {item.unit: item.value},
            }


class _Threads:
    """Tracks as processes, lanes as threads."""

    def __init__(self, origin_ns: int) -> None:
        # A process is the only kind of group in this format. Importers require small numbers.
        self._processes: dict[str, int] = {}
        self.named = 0  # lanes with smaller numbers have their names
        self._origin_ns = origin_ns

    def place(self, lane: Lane, time_ns: int) -> Event:
        """The fields that say where and when an event is drawn."""
        # Microseconds from the run's start: as Unix time, a float would lose its fraction.
        ts = (time_ns - self._origin_ns) / 1000
        return {"pid": self._processes[lane.track], "tid": lane.number + 1, "ts": ts}

    def names(self, lane: Lane) -> Iterator[Event]:
        """The metadata of a new lane; lanes are numbered as they appear."""
        self.named += 1
        thread = lane.number + 1
        if lane.track not in self._processes:
            self._processes[lane.track] = process = len(self._processes) + 1
            rank = track_rank(lane.track) * 1_000_000 + process
            yield _metadata("process_name", process, 0, name=lane.track)
            yield _metadata("process_sort_index", process, 0, sort_index=rank)
        process = self._processes[lane.track]
        yield _metadata("thread_name", process, thread, name=on_lane(lane.track, lane))
        yield _metadata("thread_sort_index", process, thread, sort_index=lane.index)


def _metadata(kind: str, process: int, thread: int, **arguments: object) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": arguments}


def _json(value: Event | list[Event]) -> bytes:
    # For Perfetto's importer, a quote after a backslash never ends a text, even if the backslash is
    # the text's last character: see `ScanString` in `src/trace_processor/util/json_parser.h`.
    data = dump_json(value)
    return data.replace(b"\\\\", b"\\u005c") if b'\\\\"' in data else data
