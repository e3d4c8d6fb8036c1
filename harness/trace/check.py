"""Is a run's journal whole? Looks at every line of its files, and goes on where readers would stop.

What is asked of a line is what readers ask, `decode`, and that spans end which have begun.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.trace.journal_line import decode, kind_of
from harness.trace.journal_reader import clock_shift_ns, joined_paths
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
from harness.trace.timelines.timeline import title

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """What was found in one file: one process's part of a run."""

    path: str
    """The file."""
    run_id: str | None
    """The run's, if the first line says so."""
    records: dict[str, int]
    """How many of each kind, by the journal's own words."""
    ended: str | None
    """How the process's part ended; None when it was killed, or is not over."""
    torn_bytes: int
    """Bytes of a last line that was not written to its end."""
    problems: tuple[str, ...]
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
    """The main process's first, then those of processes that joined."""

    @property
    def run_id(self) -> str | None:
        """The run's, if the main process's file says so."""
        return self.files[0].run_id

    @property
    def open_spans(self) -> tuple[OpenSpan, ...]:
        """What was under way at the end, in all processes."""
        return tuple(span for file in self.files for span in file.open_spans)

    @property
    def is_readable(self) -> bool:
        """Whether timelines and reports can be made of it, if without a damaged file's rest."""
        return self.files[0].is_readable

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing from any file."""
        return all(file.is_whole for file in self.files)


def check_journal(path: Path) -> JournalCheck:
    """Looks a run's files over.

    Args:
        path: The main process's; those of others are found beside it.

    Raises:
        OSError: One cannot be read.
    """
    main = _Seen(path)
    joined = [
        seen
        for seen in map(_Seen, joined_paths(path))
        if seen.run_id is None or main.run_id is None or seen.run_id == main.run_id
    ]
    return JournalCheck(files=tuple(seen.as_check(main) for seen in (main, *joined)))


class _Seen:
    """A file's lines, one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started: RunStarted | None = None
        self._ended: RunEnded | None = None
        self._counts: Counter[str] = Counter()
        self._open: dict[int, SpanStarted] = {}
        self._problems: list[str] = []
        self._last_ns = 0
        self._torn_bytes = 0
        self._read()

    @property
    def run_id(self) -> str | None:
        return None if self._started is None else self._started.run_id

    def as_check(self, main: _Seen) -> FileCheck:
        """What was found; moments are counted from the start of the main process's part."""
        origin = main._started or self._started
        since_ns = 0 if origin is None else origin.time_ns
        if self._started is not None and main._started is not None:
            since_ns -= clock_shift_ns(
                self._started, self._ended, main=main._started, main_ended=main._ended
            )
        return FileCheck(
            path=str(self._path),
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
                try:
                    self._add(decode(line, number=number), number)
                except ValueError as error:
                    self._complain(f"line {number}: {error}")
        if not line:
            self._complain("the file is empty")

    def _add(self, record: Record, line: int) -> None:
        self._counts[kind_of(record)] += 1
        self._last_ns = max(self._last_ns, last_moment(record))
        if line == 1 and not isinstance(record, RunStarted):
            self._complain("line 1: a journal begins with its run")
        match record:
            case RunStarted() if line > 1:
                self._complain(f"line {line}: another run begins")
            case RunStarted():
                self._started = record
                if record.schema > SCHEMA_VERSION:
                    self._complain(f"line {line}: written by a newer version")
            case SpanStarted():
                self._open[record.id] = record
            case SpanEnded():
                if self._open.pop(record.id, None) is None:
                    self._complain(f"line {line}: span {record.id} ends and has not begun")
            case RunEnded():
                self._ended = record

    def _complain(self, problem: str) -> None:
        if len(self._problems) < _SHOWN:
            self._problems.append(problem)
