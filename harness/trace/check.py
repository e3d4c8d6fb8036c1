"""Is a journal whole? Looks at every line of a file, and goes on where readers would stop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from harness.trace.open_span import OpenSpan
from harness.trace.records import (
    SCHEMA_VERSION,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    decode,
)
from harness.trace.timelines.timeline import title

_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCheck:
    """What was found in one file."""

    path: str
    """The file."""
    run_id: str | None
    """The run's, if the first line says so."""
    records: dict[str, int]
    """How many of each class."""
    ended: str | None
    """How the run ended; None when it was killed, or is not over."""
    torn_bytes: int
    """Bytes of a last line that was not written to its end."""
    problems: tuple[str, ...]
    """What should not be there, with its line; the first twenty."""
    open_spans: tuple[OpenSpan, ...]
    """What was under way at the end, outermost first."""

    @property
    def is_readable(self) -> bool:
        """Whether timelines and reports can be made of it."""
        return self.run_id is not None and not self.problems

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing: the run came to its end, and so did its last line."""
        return self.is_readable and self.ended is not None and not self.torn_bytes


def check_journal(path: Path) -> JournalCheck:
    """Looks a journal's file over.

    Raises:
        OSError: It cannot be read.
    """
    seen = _Seen()
    torn_bytes = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                torn_bytes = len(line)
                break
            try:
                seen.add(decode(line), number)
            except ValueError as error:
                seen.problems.append(f"line {number}: {error}")
    return JournalCheck(
        path=str(path),
        run_id=seen.run_id,
        records=dict(seen.counts),
        ended=seen.ended,
        torn_bytes=torn_bytes,
        problems=tuple(seen.problems[:_SHOWN]),
        open_spans=tuple(
            OpenSpan(
                name=span.name,
                title=title(span),
                start_ns=span.time_ns - seen.started_ns,
                open_ns=seen.last_ns - span.time_ns,
            )
            for span in seen.open.values()
        ),
    )


class _Seen:
    def __init__(self) -> None:
        self.run_id: str | None = None
        self.ended: str | None = None
        self.counts: Counter[str] = Counter()
        self.open: dict[int, SpanStarted] = {}
        self.problems: list[str] = []
        self.started_ns = self.last_ns = 0

    def add(self, record: Record, line: int) -> None:
        self.counts[type(record).__name__] += 1
        if line == 1 and not isinstance(record, RunStarted):
            self.problems.append("line 1: a journal begins with its run")
        match record:
            case RunStarted():
                self.run_id, self.started_ns = record.run_id, record.time_ns
                if record.schema > SCHEMA_VERSION:
                    self.problems.append(f"line {line}: written by a newer version")
            case SpanStarted():
                self.open[record.id] = record
            case SpanEnded():
                if self.open.pop(record.id, None) is None:
                    self.problems.append(f"line {line}: span {record.id} ends and has not begun")
            case RunEnded():
                self.ended = record.status
        time_ns = record.end_ns if isinstance(record, SpanRecord) else getattr(record, "time_ns", 0)
        self.last_ns = max(self.last_ns, time_ns)
