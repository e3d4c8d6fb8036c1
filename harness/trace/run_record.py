"""A whole run, put together again from its journal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.errors import JournalInvalid
from harness.trace.journal import read_journal
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanStarted,
    SpanStatus,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRecord:
    """A span with both its ends."""

    id: int
    """Unique in the run."""
    parent: int | None
    """The span it happened inside of."""
    name: str
    """A fixed phrase."""
    start_ns: int
    """When it began, on the run's clock."""
    end_ns: int
    """When it ended; the run's last moment for a span that never did."""
    status: SpanStatus | Literal["unfinished"]
    """`unfinished`: open when the process was killed."""
    error: str | None
    """What left it, if an exception did."""
    attributes: Attributes
    """Those of its start and its end, joined."""

    @property
    def duration_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything a journal holds."""

    started: RunStarted
    """The run's identity and its clock's anchor."""
    ended: RunEnded | None
    """None when the run was killed."""
    spans: tuple[SpanRecord, ...]
    """In the order they were begun: a parent stands before its children."""
    instants: tuple[Instant, ...]
    """In order."""
    counters: tuple[CounterSet, ...]
    """In order."""
    outputs: tuple[NodeOutput, ...]
    """What nodes returned, in order."""
    contents: dict[str, str]
    """Texts by their SHA-256."""

    @property
    def duration_ns(self) -> int:
        """From the first record to the last."""
        last = max((span.end_ns for span in self.spans), default=self.started.time_ns)
        return (self.ended.time_ns if self.ended else last) - self.started.time_ns


def load_run(path: Path) -> RunRecord:
    """Reads a journal.

    Raises:
        JournalInvalid: The file is not a journal.
        OSError: The file cannot be read.
    """
    try:
        return assemble(read_journal(path))
    except ValueError as error:
        raise JournalInvalid(str(error), path=path, line=1) from error


def assemble(records: Iterable[Record]) -> RunRecord:
    """Puts a run's records together; what was open at the end is `unfinished`.

    Raises:
        ValueError: There is no `RunStarted` among them.
    """
    started: RunStarted | None = None
    ended: RunEnded | None = None
    spans: dict[int, SpanRecord] = {}
    instants: list[Instant] = []
    counters: list[CounterSet] = []
    outputs: list[NodeOutput] = []
    contents: dict[str, str] = {}
    last_ns = 0
    for record in records:
        last_ns = max(last_ns, getattr(record, "time_ns", 0))
        match record:
            case SpanStarted():
                spans[record.id] = SpanRecord(
                    id=record.id,
                    parent=record.parent,
                    name=record.name,
                    start_ns=record.time_ns,
                    end_ns=record.time_ns,
                    status="unfinished",
                    error=None,
                    attributes=record.attributes,
                )
            case SpanEnded():
                spans[record.id] = replace(
                    spans[record.id],
                    end_ns=record.time_ns,
                    status=record.status,
                    error=record.error,
                    attributes={**spans[record.id].attributes, **record.attributes},
                )
            case Instant():
                instants.append(record)
            case CounterSet():
                counters.append(record)
            case NodeOutput():
                outputs.append(record)
            case Content():
                contents[record.sha256] = record.text
            case RunStarted():
                started = record
            case RunEnded():
                ended = record
    if started is None:
        raise ValueError("not a journal: it does not begin with a run")
    return RunRecord(
        started=started,
        ended=ended,
        spans=tuple(
            replace(span, end_ns=last_ns) if span.status == "unfinished" else span
            for span in spans.values()
        ),
        instants=tuple(instants),
        counters=tuple(counters),
        outputs=tuple(outputs),
        contents=contents,
    )
