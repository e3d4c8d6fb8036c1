"""Is a run's journal whole? Looks at every line of its files, and goes on where readers would stop.

What is asked of a line is what readers ask, `decode`, and that spans end which have begun.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Problem
from harness.trace.journal_line import decode, kind_of
from harness.trace.open_span import OpenSpan
from harness.trace.records import (
    SCHEMA_VERSION,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanStarted,
    last_moment,
)
from harness.trace.run_clock import joined_shift_ns, part_shift_ns
from harness.trace.run_files import part_of, paths_beside
from harness.trace.timelines.timeline import title

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """What was found in one file: what one process did for one part of a run."""

    path: str
    """The file."""
    part: int
    """Which part of the run it is, or a process of which part: 0 is the first."""
    is_joined: bool
    """Whether it is of a process that joined the part, and not of the main process."""
    run_id: str | None
    """The run's, if the first line says so."""
    records: dict[str, int]
    """How many of each kind, by the journal's own words."""
    ended: str | None
    """How the process's part ended; None when it was killed, or is not over."""
    torn_bytes: int
    """Bytes of a last line that was not written to its end."""
    problems: tuple[Problem, ...]
    """What should not be there, with its line; the first twenty."""
    open_spans: tuple[OpenSpan, ...]
    """What was under way at the end, outermost first."""

    @property
    def is_readable(self) -> bool:
        """Whether every whole line is as it should be."""
        return self.run_id is not None and not self.problems

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing: it came to its end, and so did its last line."""
        return self.is_readable and self.ended is not None and not self.torn_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCheck:
    """What was found in all the files of a run."""

    files: tuple[FileCheck, ...]
    """The main process's first, a file for each part of the run, then those of processes that
    joined."""

    @property
    def run_id(self) -> str | None:
        """The run's, if the first file says so."""
        return self.files[0].run_id

    @property
    def parts(self) -> tuple[FileCheck, ...]:
        """The main process's files: one, and one for each time that the run was resumed."""
        return tuple(file for file in self.files if not file.is_joined)

    @property
    def open_spans(self) -> tuple[OpenSpan, ...]:
        """What was under way at the end of the last part, in all processes."""
        return tuple(span for file in self._of_the_last_part for span in file.open_spans)

    @property
    def is_readable(self) -> bool:
        """Whether timelines and reports can be made of it.

        If need be, without what follows the damage in the file of a process that joined.
        """
        return all(part.is_readable for part in self.parts)

    @property
    def is_whole(self) -> bool:
        """Whether the run came to its end and nothing is missing from its last part.

        Earlier ones may have been killed: it went on after them.
        """
        return all(file.is_readable for file in self.files) and all(
            file.is_whole for file in self._of_the_last_part
        )

    @property
    def _of_the_last_part(self) -> list[FileCheck]:
        return [file for file in self.files if file.part == self.parts[-1].part]


def check_journal(path: Path) -> JournalCheck:
    """Looks a run's files over.

    Args:
        path: That of its first part; the others are found beside it.

    Raises:
        OSError: One cannot be read.
    """
    first = _Seen(path, number=0)
    parts, joined = {0: first}, []
    for beside in paths_beside(path):
        number = part_of(beside, path)
        seen = _Seen(beside, number=number)
        if seen.run_id is not None and first.run_id is not None and seen.run_id != first.run_id:
            continue
        if number is None:
            joined.append(seen)
        elif seen.has_lines:  # to readers, what was killed before it wrote one is no part either
            parts[number] = seen
    return JournalCheck(
        files=(
            *(part.as_check(first, joined=None) for part in parts.values()),
            *(seen.as_check(first, joined=parts.get(seen.part, first)) for seen in joined),
        )
    )


class _Seen:
    """A file's lines, one after the other.

    Args:
        path: The file.
        number: Which part of the run it is by its name; None for a process that joined.
    """

    def __init__(self, path: Path, *, number: int | None) -> None:
        self.has_lines = False
        self._path = path
        self._number = number
        self._started: RunStarted | None = None
        self._ended: RunEnded | None = None
        self._counts: Counter[str] = Counter()
        self._open: dict[int, SpanStarted] = {}
        self._problems: list[Problem] = []
        self._last_ns = 0
        self._torn_bytes = 0
        self._read()

    @property
    def run_id(self) -> str | None:
        return None if self._started is None else self._started.run_id

    @property
    def part(self) -> int:
        if self._number is not None:
            return self._number
        return 0 if self._started is None else self._started.part

    def shift_ns(self, joined: _Seen | None) -> int:
        """What to add to its times to have them on the run's clock, as far as that is known."""
        started = self._started
        if started is None or self._number == 0:
            return 0
        if joined is None:
            return 0 if started.joined_ns is None else part_shift_ns(started)
        main, main_ended = joined._started, joined._ended  # noqa: SLF001 - another one
        if main is None:
            return 0
        shift_ns = joined_shift_ns(started, self._ended, main=main, main_ended=main_ended)
        return joined.shift_ns(None) + shift_ns

    def as_check(self, first: _Seen, *, joined: _Seen | None) -> FileCheck:
        """What was found.

        Args:
            first: The run's first part: moments are counted from its start.
            joined: For a process that joined, the part that it joined.
        """
        origin = first._started or self._started
        since_ns = 0 if origin is None else origin.time_ns - self.shift_ns(joined)
        return FileCheck(
            path=str(self._path),
            part=self.part,
            is_joined=joined is not None,
            run_id=self.run_id,
            records=dict(self._counts),
            ended=None if self._ended is None else self._ended.status,
            torn_bytes=self._torn_bytes,
            problems=tuple(self._problems),
            open_spans=tuple(
                OpenSpan(
                    name=span.name,
                    title=title(span),
                    start_ns=span.time_ns - since_ns,
                    open_ns=self._last_ns - span.time_ns,
                )
                for span in self._open.values()
            ),
        )

    def _read(self) -> None:
        line = b""
        with self._path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    self._torn_bytes = len(line)
                    break
                self.has_lines = True
                try:
                    self._add(decode(line, number=number), number)
                except ValueError as error:
                    self._complain(f"{error}", line=number, code="journal.line-invalid")
        if not line:
            self._complain("the file is empty", line=None, code="journal.empty")

    def _add(self, record: Record, line: int) -> None:
        self._counts[kind_of(record)] += 1
        self._last_ns = max(self._last_ns, last_moment(record))
        if line == 1 and not isinstance(record, RunStarted):
            self._complain("a journal begins with its run", line=line, code="journal.no-run")
        match record:
            case RunStarted() if line > 1:
                self._complain("another run begins", line=line, code="journal.second-run")
            case RunStarted():
                self._started = record
                if record.schema > SCHEMA_VERSION:
                    self._complain(
                        "written by a newer version", line=line, code="journal.newer-version"
                    )
                elif self._number and (record.part != self._number or record.joined_ns is None):
                    self._complain(
                        f"not part {self._number} of the run", line=line, code="journal.wrong-part"
                    )
            case SpanStarted():
                self._open[record.id] = record
            case SpanEnded():
                if self._open.pop(record.id, None) is None:
                    self._complain(
                        f"span {record.id} ends and has not begun",
                        line=line,
                        code="journal.end-without-beginning",
                    )
            case RunEnded():
                self._ended = record

    def _complain(self, message: str, *, line: int | None, code: str) -> None:
        if len(self._problems) < _SHOWN:
            problem = Problem(path=self._path, line=line, message=message, code=code)
            self._problems.append(problem)
