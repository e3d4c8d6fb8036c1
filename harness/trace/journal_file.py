"""One file of a run, read as often as needed and never held in memory.

What is kept of it is its flows, and eight bytes for each span that was recorded in two records.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from harness.errors import JournalInvalid
from harness.trace.journal_line import decode, line_start
from harness.trace.records import (
    SCHEMA_VERSION,
    Content,
    CounterSet,
    Flow,
    Flows,
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

HINT = "harness trace check says what is wrong, harness resume --salvage goes on without it"
"""How a message about a damaged journal ends."""

_INDEXED = tuple(map(line_start, (SpanEnded, Flow, Flows, RunEnded)))


class JournalFile:
    """One file's records, with the two ends of each span joined.

    Args:
        path: It is read as it is now; what is appended later is not seen.
        size: How many bytes of it, if not all.

    Raises:
        JournalInvalid: It is no journal, or a newer version wrote it.
        OSError: It cannot be read.

    Attributes:
        path: As given.
        started: Its first record.
        ended: Its last; None when the process was killed, or is not over.
        flows: Every flow.
    """

    def __init__(self, path: Path, *, size: int | None = None) -> None:
        self.path = path
        self.ended: RunEnded | None = None
        self.flows: list[Flow] = []
        self._ends = array("q")  # by span id: where the line of its end begins, or 0
        self._last_ns: int | None = None
        with path.open("rb") as file:
            first = file.readline()
            self.started = first_record(first, path)
            self._size = self._index(file, offset=len(first), size=size)

    def items(self) -> Iterator[Item]:
        """Every item, in the order of the lines.

        Raises:
            JournalInvalid: A line in the middle is not a record.
        """
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
                    case Flows(name=name, sources=sources, target=target):
                        self.flows += [Flow(name, source, target) for source in sources]
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


def first_record(line: bytes, path: Path) -> RunStarted:
    """The record that a file of a run begins with.

    Raises:
        JournalInvalid: It does not, or a newer version wrote it.
    """
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
            code="journal.newer-version",
            path=path,
            line=1,
        )
    return record


def _record(line: bytes, path: Path, number: int) -> Record:
    try:
        return decode(line, number=number)
    except ValueError as error:
        raise JournalInvalid(f"{error}; {HINT}", path=path, line=number) from error
