"""Reads a run's journal, of any size, however the run ended.

A journal is read from beginning to end as often as needed and never held in memory, except its
flows, and eight bytes for each span recorded in two records. A journal that is still being written
is read as it was when opened. A file that `harness runs prune --compress` packed keeps its name and
is read the same, but for the lines of ends of spans, which stay in memory.

The files of a run, where RUN is the journal's name without `.jsonl`:

    RUN.jsonl                   the journal: the first part of the run
    RUN.1.jsonl, RUN.2.jsonl    the parts that resumed it

The run's clock is that of the first part. A part that resumes the run begins at the end of the part
before, so the pause between them is in no figure and on no timeline; an instant records its length.
Damage in a part is an error, since the rest of the run builds on it.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from array import array
from collections.abc import Collection, Iterable, Iterator
from glob import escape
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO, cast, get_args

from harness.errors import JournalInvalid
from harness.trace.journal_line import decode, line_start, sealed_number
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

JOURNAL_SUFFIX = ".jsonl"

_BESIDE = re.compile(r"(?P<run>.+)\.(?P<part>[1-9]\d{0,8})")  # the stem of a file beside a journal

Item = SpanRecord | Instant | CounterSet | Content | NodeOutput
"""The records between a journal's first and last; flows are kept apart."""

_ITEMS: tuple[type[Item], ...] = get_args(Item)
# Bytes read at once: a third of the time of the usual 8 KiB, with long texts in it.
_BUFFER = 1 << 18
_INDEXED = tuple(map(line_start, (SpanEnded, Flow, Flows, RunEnded)))
# How a packed file begins (RFC 1952); a journal's lines begin with a brace.
_GZIP = b"\x1f\x8b"


class _Packed(gzip.GzipFile):
    """A packed journal. If it is damaged, it ends with an incomplete line, which is no record."""

    _is_damaged = False

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - whatever holds bytes
        data = b""
        try:
            if not self._is_damaged:
                # Unlike `read`, `read1` does not lose the text before the damage.
                data = self.read1(len(buffer))
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self._is_damaged = True
            data = b"\n"
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._is_damaged = False
        return super().seek(offset, whence)


def open_journal(path: Path) -> BinaryIO:
    """A journal's file for reading, unpacked if it is packed; raises `OSError`."""
    if not is_packed(path):
        return path.open("rb", _BUFFER)
    return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, _Packed(path)), _BUFFER))


def is_packed(path: Path) -> bool:
    """Whether a journal's file is packed."""
    with path.open("rb") as file:
        return file.read(2) == _GZIP


class Journal:
    """A run, read from its files.

    Args:
        path: The first part's file; the others are found beside it.

    Raises:
        JournalInvalid: It, or one of its parts, is not a journal, cannot be read, or was written
            by a newer version.

    Attributes:
        path: As given.
        started: The first record.
        ended: How the last part ended; None if it was killed or is still going.
        parts: Number of parts: more than 1 if the run was resumed.
        resumed_ns: When each part but the first began, on the run's clock.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        try:
            first = JournalFile(path)
            files = [first, *_further_parts(path, first.started.run_id)]
        except OSError as error:
            raise JournalInvalid(
                f"it cannot be read ({error.strerror})", code="journal.unreadable", path=path
            ) from error
        self.path = path
        self.started = first.started
        self.ended = files[-1].ended
        self.parts = len(files)
        self._files = files
        # The shift from the clock of each part to that of the first, which is the run's.
        self.resumed_ns = tuple(file.started.joined_ns or 0 for file in files[1:])
        begins_ns = zip(self.resumed_ns, files[1:], strict=True)
        self._shifts_ns = [0, *(joined_ns - f.started.time_ns for joined_ns, f in begins_ns)]
        self.flows = tuple(
            Flow(flow.name, self._id_of(flow.source, part), self._id_of(flow.target, part))
            for part, file in enumerate(files)
            for flow in file.flows
        )

    def items(self, *kinds: type[Item]) -> Iterator[Item]:
        """Everything, in the order it was recorded; a span comes after its parent.

        Spans come in the order of their starts, except spans known only afterwards, such as the
        phases that a server reports with its reply. Spans that were open when a part was killed end
        with that part, unfinished.

        Args:
            kinds: The classes to read, if not all. Of other lines, only the checksums are read.

        Raises:
            JournalInvalid: A line in the middle of a part's file is not a record.
        """
        parts = [file.items(kinds or _ITEMS) for file in self._files]
        if len(parts) == 1:
            return parts[0]
        return (self._moved(item, part) for part, items in enumerate(parts) for item in items)

    def spans(self) -> Iterator[SpanRecord]:
        """The spans alone, in the order of `items`."""
        return (item for item in self.items(SpanRecord) if type(item) is SpanRecord)

    def texts(self, hashes: Collection[object]) -> dict[object, str]:
        """The recorded texts with these SHA-256 digests; reads until all are found."""
        texts: dict[object, str] = {}
        for item in self.items(Content) if hashes else ():
            if type(item) is Content and item.sha256 in hashes:
                texts[item.sha256] = item.text
                if len(texts) == len(hashes):
                    break
        return texts

    def resumed_after(self, time_ns: int) -> bool:
        """Whether a part of the run began at this time of the run's clock, or later."""
        return any(time_ns <= resumed_ns for resumed_ns in self.resumed_ns)

    @property
    def last_ns(self) -> int:
        """The time of the last record, on the run's clock."""
        return self._files[-1].last_ns + self._shifts_ns[-1]

    @property
    def last_wall_ns(self) -> int:
        """The time of the last record in Unix time, by the clock of the last part's machine."""
        last = self._files[-1]
        return last.last_ns - last.started.time_ns + last.started.wall_ns

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files it is read from."""
        return tuple(file.path for file in self._files)

    @property
    def duration_ns(self) -> int:
        """From the first record to the last, without the pauses before it was resumed."""
        return self.last_ns - self.started.time_ns

    def _moved(self, item: Item, part: int) -> Item:
        """An item of a part, on the run's clock."""
        shift_ns = self._shifts_ns[part]
        if type(item) is SpanRecord:
            return item._replace(
                id=self._id_of(item.id, part),
                parent=None if item.parent is None else self._id_of(item.parent, part),
                start_ns=item.start_ns + shift_ns,
                end_ns=item.end_ns + shift_ns,
            )
        if isinstance(item, Instant | CounterSet):
            span = None if item.span is None else self._id_of(item.span, part)
            return item._replace(time_ns=item.time_ns + shift_ns, span=span)
        return item

    def _id_of(self, span: int, part: int) -> int:
        # Ids count from 1 in each part; interleaved, no two are the same in the run.
        return (span - 1) * self.parts + part + 1


def _further_parts(path: Path, run_id: str) -> Iterator[JournalFile]:
    for beside in paths_beside(path):
        number = part_of(beside, path)
        started = beginning_of(beside)
        # Another run may have a name that looks like a part's of this one.
        if started is None or started.run_id != run_id:
            continue
        if started.part != number or started.joined_ns is None:
            raise JournalInvalid(
                f"not part {number} of the run; {_hint(path)}", path=beside, line=1
            )
        yield JournalFile(beside)


def beginning_of(path: Path) -> RunStarted | None:
    """A file's first record; None if its process was killed before writing it."""
    with open_journal(path) as file:
        line = file.readline()
    return first_record(line, path) if line.endswith(b"\n") else None


class JournalFile:
    """One file's records, with the two ends of each span joined.

    It is read as it is now, without what is appended later. Raises `OSError` if it cannot be read,
    `JournalInvalid` if it is not a journal, or a newer version wrote it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended: RunEnded | None = None
        self.flows: list[Flow] = []
        # Span id → where the line of its end begins; 0 without an end, since no end begins there.
        self._ends = array("q")
        # The lines of ends of a packed file, in which each seek would read from its beginning.
        self._end_lines = bytearray(b"\n") if is_packed(path) else None
        self._last_ns: int | None = None
        with open_journal(path) as file:
            self.started = first_record(file.readline(), path)
            file.seek(0)
            self._lines = self._index(file)

    def items(self, kinds: Collection[type[Item]] = _ITEMS) -> Iterator[Item]:
        """Every item of these classes, in the order of the lines; a span comes where it began."""
        classes = {*kinds, SpanStarted} if SpanRecord in kinds else {*kinds}
        skipped = {*_ITEMS, SpanStarted} - classes
        left_out = (*_INDEXED, *map(line_start, skipped))
        with open_journal(self.path) as file, self._open_ends() as ends:
            for number, line in enumerate(islice(file, self._lines), start=1):
                # Not parsed, since that takes time. It is sound, so no damage stays unnoticed: the
                # indexed lines were decoded when the file was opened.
                if line.startswith(_INDEXED) or (
                    line.startswith(left_out) and sealed_number(line) == number
                ):
                    continue
                record = _decoded(line, self.path, number)
                if type(record) is SpanStarted:
                    if SpanStarted in classes:
                        yield joined(record, self._end_of(record, ends))
                elif type(record) in classes:
                    yield cast(Item, record)

    @property
    def last_ns(self) -> int:
        """The time of its last record, on its own clock."""
        if self.ended is not None:
            return self.ended.time_ns
        if self._last_ns is None:
            with open_journal(self.path) as file:
                lines = enumerate(islice(file, self._lines), start=1)
                records = (_decoded(line, self.path, number) for number, line in lines)
                self._last_ns = max(map(last_moment, records))
        return self._last_ns

    def _index(self, file: BinaryIO) -> int:
        """Records flows, and where spans end; returns the number of whole lines."""
        number, line = 0, b""
        for number, line in enumerate(file, start=1):
            if line.startswith(_INDEXED) and line.endswith(b"\n"):
                match _decoded(line, self.path, number):
                    case SpanEnded(id=span):
                        if span >= len(self._ends):
                            # Doubled, so that a long run does not extend it for every span.
                            self._ends.extend([0] * (2 * span - len(self._ends)))
                        if self._end_lines is None:
                            self._ends[span] = file.tell() - len(line)
                        else:
                            self._ends[span] = len(self._end_lines)
                            self._end_lines += line
                    case Flow() as flow:
                        self.flows.append(flow)
                    case Flows(name=name, sources=sources, target=target):
                        self.flows += [Flow(name, source, target) for source in sources]
                    case RunEnded() as ended:
                        self.ended = ended
        # The last line may be cut off by a crash, or is being written.
        return number if line.endswith(b"\n") else number - 1

    def _open_ends(self) -> BinaryIO:
        """The file that the offsets of ends are of."""
        packed = self._end_lines
        return self.path.open("rb") if packed is None else io.BytesIO(packed)

    def _end_of(self, started: SpanStarted, file: BinaryIO) -> SpanEnded:
        # 0 is where the file's first record is, and no span's end.
        offset = self._ends[started.id] if started.id < len(self._ends) else 0
        if offset == 0:
            # A thread may begin a span after the run's last record.
            last_ns = max(self.last_ns, started.time_ns)
            return SpanEnded(started.id, last_ns, "unfinished")
        file.seek(offset)
        end = decode(file.readline())
        assert isinstance(end, SpanEnded), "as the index found it"
        return end


def first_record(line: bytes, path: Path) -> RunStarted:
    """The record that a file of a run begins with; raises as `JournalFile` does."""
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


def _decoded(line: bytes, path: Path, number: int) -> Record:
    try:
        return decode(line, number=number)
    except ValueError as error:
        raise JournalInvalid(f"{error}; {_hint(path)}", path=path, line=number) from error


def _hint(path: Path) -> str:
    """How a message about a damaged journal ends."""
    run = quote(str(path))
    return f"'harness resume {run} --salvage' goes on with what can be trusted"


def part_path(journal: Path, part: int) -> Path:
    """The file of a part that resumes a run; parts count from 1."""
    return journal.with_suffix(f".{part}{JOURNAL_SUFFIX}")


def next_part(journal: Path) -> int:
    """The number for a further part: one more than the highest, whatever gaps there are."""
    return 1 + max((part_of(path, journal) or 0 for path in paths_beside(journal)), default=0)


def paths_beside(journal: Path) -> list[Path]:
    """The files beside a journal that may be further parts of its run, in order."""
    paths = journal.parent.glob(f"{escape(journal.stem)}.*{JOURNAL_SUFFIX}")
    return journals_among(paths, journal)


def journals_among(paths: Iterable[Path], journal: Path) -> list[Path]:
    """The files that are a run's journal or, by their names, further parts of it, in order."""
    files = (path for path in paths if path.suffix == JOURNAL_SUFFIX)
    parts = {path: 0 if path == journal else part_of(path, journal) for path in files}
    numbered = [(part, path) for path, part in parts.items() if part is not None]
    return [path for _, path in sorted(numbered)]


def part_of(path: Path, journal: Path) -> int | None:
    """Which part of a run a file is by its name, from 1; None if it is not a further part."""
    match = _BESIDE.fullmatch(path.stem)
    return int(match["part"]) if match and match["run"] == journal.stem else None


def journal_of(path: Path) -> Path:
    """The journal that a file of a run belongs to, by its name; maybe the file itself."""
    match = _BESIDE.fullmatch(path.stem)
    return path.with_name(match["run"] + JOURNAL_SUFFIX) if match else path
