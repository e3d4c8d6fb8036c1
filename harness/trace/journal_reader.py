"""Reading a run's journal, however large, and whatever ended it.

A journal is read from beginning to end as often as needed, and never held in memory: what is kept
is the flows, and eight bytes for each span that was recorded in two parts. A journal that is still
being written reads as it was when it was opened. Processes that joined the run left files of their
own beside the first; they are merged by time. One of those that is damaged takes nothing from the
run but what stands in it from there on.
"""

from __future__ import annotations

import heapq
import mmap
from array import array
from collections.abc import Iterator
from glob import escape
from pathlib import Path
from typing import BinaryIO

import structlog

from harness.errors import JournalInvalid
from harness.trace.journal_line import decode, line_start
from harness.trace.records import (
    SCHEMA_VERSION,
    Content,
    CounterSet,
    Flow,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    joined,
    last_moment,
)

Item = SpanRecord | Instant | CounterSet | Content | NodeOutput
"""What a journal holds between its first record and its last; flows are kept apart."""

HINT = "harness trace check says what is wrong"
"""How a message about a damaged journal ends."""

_log = structlog.get_logger(__name__)
_INDEXED = (line_start(SpanEnded), line_start(Flow), line_start(RunEnded))


class Journal:
    """A run, as its journal's files have it.

    Args:
        path: The main process's file; those of others are found beside it. One that cannot be
            read is left out, one that is damaged ends there, each with a warning in the log.

    Raises:
        JournalInvalid: It is no journal, or a newer version wrote it.
        OSError: It cannot be read.

    Attributes:
        path: As given.
        started: The run's identity and its clock's anchor.
        ended: None when the run was killed, or is not over.
        flows: Every flow.
    """

    def __init__(self, path: Path) -> None:
        files = [_File(path)]
        self.path = path
        self.started = files[0].started
        self.ended = files[0].ended
        files += _joined_files(path, self.started.run_id)
        self._parts = [
            _Part(file, number=number, of=len(files), main=files[0])
            for number, file in enumerate(files)
        ]
        self.flows = tuple(flow for part in self._parts for flow in part.flows())

    def items(self) -> Iterator[Item]:
        """Everything, in the order it was recorded; a span stands after the span it is in.

        Spans are recorded when they begin, and so in the order of their starts; those known only
        afterwards, such as the phases that a server reports with its reply, when they are known.
        Processes are merged by that order: what one recorded late stands beside what the others
        recorded then.

        Raises:
            JournalInvalid: A line in the middle of the main process's file is not a record.
        """
        if len(self._parts) == 1:
            return self._parts[0].file.items()
        timed = heapq.merge(*(part.items() for part in self._parts), key=lambda pair: pair[0])
        return (item for _, item in timed)

    def spans(self) -> Iterator[SpanRecord]:
        """The spans alone, in the order of `items`."""
        return (item for item in self.items() if type(item) is SpanRecord)

    @property
    def last_ns(self) -> int:
        """When the last thing happened, on the run's clock."""
        return max(part.file.last_ns + part.shift_ns for part in self._parts)

    @property
    def duration_ns(self) -> int:
        """From the first record to the last."""
        return self.last_ns - self.started.time_ns


class _Part:
    """One process's file as a part of the run: on the run's clock, with ids that are the run's.

    Args:
        file: Its records.
        number: Which part this is; 0 is the main process.
        of: How many there are.
        main: The main process's file.
    """

    def __init__(self, file: _File, *, number: int, of: int, main: _File) -> None:
        self.file = file
        self._number = number
        self._of = of
        self.shift_ns = clock_shift_ns(
            file.started, file.ended, main=main.started, main_ended=main.ended
        )
        parent = file.started.parent
        self._parent = None if parent is None else self._id(parent, number=0)

    def flows(self) -> Iterator[Flow]:
        """The flows between its spans."""
        for flow in self.file.flows:
            yield Flow(flow.name, self._id(flow.source), self._id(flow.target))

    def items(self) -> Iterator[tuple[int, Item]]:
        """Every item, with the time it is merged by."""
        time_ns = self.file.started.time_ns + self.shift_ns
        for item in self.file.items():
            moved: Item = item
            if type(item) is SpanRecord:
                time_ns = max(time_ns, item.start_ns + self.shift_ns)
                # What a joined process does outermost, it does for the span that asked it to join.
                parent = self._parent if item.parent is None else self._id(item.parent)
                moved = item._replace(
                    id=self._id(item.id),
                    parent=parent,
                    start_ns=item.start_ns + self.shift_ns,
                    end_ns=item.end_ns + self.shift_ns,
                )
            elif isinstance(item, Instant | CounterSet):
                time_ns = max(time_ns, item.time_ns + self.shift_ns)
                span = None if item.span is None else self._id(item.span)
                if span is None and getattr(item, "track", None) is None:
                    span = self._parent
                moved = item._replace(time_ns=item.time_ns + self.shift_ns, span=span)
            yield time_ns, moved

    def _id(self, span: int, *, number: int | None = None) -> int:
        """Ids count from 1 in each process; interleaved, no two are the same in the run."""
        return (span - 1) * self._of + (self._number if number is None else number) + 1


def clock_shift_ns(
    own: RunStarted, ended: RunEnded | None, *, main: RunStarted, main_ended: RunEnded | None
) -> int:
    """What to add to a process's times to have them on the run's clock, in nanoseconds.

    Args:
        own: The first record of the process.
        ended: Its last, if it came to its end.
        main: The first record of the main process.
        main_ended: Its last, if it came to its end.
    """
    if own is main:
        return 0
    by_wall_ns = (own.wall_ns - own.time_ns) - (main.wall_ns - main.time_ns)
    if own.joined_ns is None:
        return by_wall_ns
    earliest_ns = own.joined_ns - own.time_ns
    if own.boot_id is not None and own.boot_id == main.boot_id and earliest_ns <= 0:
        return 0  # the clock is the same
    # Wall clocks are set, and differ between machines; that it was asked before it began is
    # certain, and that it ended before the main process is likely where there was time for it.
    shift_ns = max(by_wall_ns, earliest_ns)
    if ended is None or main_ended is None:
        return shift_ns
    latest_ns = main_ended.time_ns - ended.time_ns
    return min(shift_ns, latest_ns) if latest_ns >= earliest_ns else shift_ns


class _File:
    """One file's records, with the two parts of each span joined.

    Args:
        path: It is read as it is now; what is appended later is not seen.
        size: How many bytes of it, if not all.
    """

    def __init__(self, path: Path, *, size: int | None = None) -> None:
        self.path = path
        self.ended: RunEnded | None = None
        self.flows: list[Flow] = []
        self._ends = array("q")  # by span id: where the line of its end begins, or 0
        self._last_ns: int | None = None
        with path.open("rb") as file:
            first = file.readline()
            self.started = _first_record(first, path)
            self._size = self._index(file, offset=len(first), size=size)

    def items(self) -> Iterator[Item]:
        """Every item, in the order of the lines."""
        with (
            self.path.open("rb") as file,
            mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ) as whole,
        ):
            for number, line in self._lines():
                record = _record(line, self.path, number)
                if type(record) is SpanRecord:
                    yield record
                elif type(record) is SpanStarted:
                    yield joined(record, self._end_of(record, whole))
                elif isinstance(record, Item):
                    yield record

    @property
    def last_ns(self) -> int:
        """When the last thing in it happened, on its own clock."""
        if self.ended is not None:
            return self.ended.time_ns
        if self._last_ns is None:
            records = (_record(line, self.path, number) for number, line in self._lines())
            self._last_ns = max(map(last_moment, records))
        return self._last_ns

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """The lines that were whole when the file was opened, counted from 1."""
        offset = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                offset += len(line)
                if offset > self._size:
                    return
                yield number, line

    def _index(self, file: BinaryIO, *, offset: int, size: int | None) -> int:
        """Notes flows, and where spans end; returns where the last whole line does."""
        for number, line in enumerate(file, start=2):
            if not line.endswith(b"\n"):
                break  # cut off by a crash, or being written
            if size is not None and offset + len(line) > size:
                break
            if line.startswith(_INDEXED):
                match _record(line, self.path, number):
                    case SpanEnded(id=span):
                        if span >= len(self._ends):
                            self._ends.extend([0] * (2 * span - len(self._ends)))
                        self._ends[span] = offset
                    case Flow() as flow:
                        self.flows.append(flow)
                    case RunEnded() as ended:
                        self.ended = ended
            offset += len(line)
        return offset

    def _end_of(self, started: SpanStarted, whole: mmap.mmap) -> SpanEnded:
        offset = self._ends[started.id] if started.id < len(self._ends) else 0
        if offset == 0:
            # A thread may begin a span when the run is over.
            last_ns = max(self.last_ns, started.time_ns)
            return SpanEnded(started.id, last_ns, "unfinished")
        whole.seek(offset)
        end = decode(whole.readline())
        assert isinstance(end, SpanEnded), "as the index found it"
        return end


def joined_paths(path: Path) -> list[Path]:
    """The files beside a main process's that may be of processes that joined its run."""
    return sorted(path.parent.glob(f"{escape(path.stem)}.*.jsonl"))


def _joined_files(path: Path, run_id: str) -> Iterator[_File]:
    """The files of processes that joined a run, as far as they can be read."""
    for beside in joined_paths(path):
        try:
            with beside.open("rb") as file:
                first = file.readline()
                # One that was killed first left no whole line.
                if not first.endswith(b"\n") or _first_record(first, beside).run_id != run_id:
                    continue
                size = len(first) + _sound_bytes(file, beside)
            yield _File(beside, size=size)
        except (JournalInvalid, OSError) as error:
            _log.warning(
                "what a process did for the run is left out",
                path=str(beside),
                error=str(error),
                hint=HINT,
            )


def _sound_bytes(file: BinaryIO, path: Path) -> int:
    """How much of the rest of a file is records up to where it is damaged, if it is."""
    size = 0
    for number, line in enumerate(file, start=2):
        if not line.endswith(b"\n"):
            break
        try:
            decode(line, number=number)
        except ValueError as error:
            _log.warning(
                "what a process did for the run is known in part",
                path=str(path),
                line=number,
                error=str(error),
                hint=HINT,
            )
            break
        size += len(line)
    return size


def _first_record(line: bytes, path: Path) -> RunStarted:
    try:
        record = decode(line, number=1) if line.endswith(b"\n") else None
    except ValueError:
        record = None
    if not isinstance(record, RunStarted):
        raise JournalInvalid("not a journal: it does not begin with a run", path=path, line=1)
    if record.schema > SCHEMA_VERSION:
        raise JournalInvalid(
            f"written by a newer version (schema {record.schema}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade wiggum-harness to read it",
            path=path,
            line=1,
        )
    return record


def _record(line: bytes, path: Path, number: int) -> Record:
    try:
        return decode(line, number=number)
    except ValueError as error:
        raise JournalInvalid(f"{error}; {HINT}", path=path, line=number) from error
