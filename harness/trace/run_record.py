"""A whole run, put together again from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    """`unfinished`: the process was killed first, or a thread outlived the run."""
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
    """In the order of their records: a parent stands before its children."""
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
        if self.ended is not None:
            return self.ended.time_ns - self.started.time_ns
        last_ns = max(
            [
                self.started.time_ns,
                *(span.end_ns for span in self.spans),
                *(instant.time_ns for instant in self.instants),
                *(counter.time_ns for counter in self.counters),
            ]
        )
        return last_ns - self.started.time_ns


def load_run(path: Path) -> RunRecord:
    """Reads a journal.

    Raises:
        JournalInvalid: The file is not a journal.
        OSError: The file cannot be read.
    """
    line = 1

    def numbered() -> Iterator[Record]:
        nonlocal line
        for line, record in enumerate(read_journal(path), start=1):  # noqa: B007 - read below
            yield record

    try:
        return assemble(numbered())
    except ValueError as error:
        raise JournalInvalid(str(error), path=path, line=line) from error


def assemble(records: Iterable[Record]) -> RunRecord:
    """Puts a run's records together; what was open at the end is `unfinished`.

    Raises:
        ValueError: The first is not a `RunStarted`, or a span ends that never began.
    """
    records = iter(records)
    started = next(records, None)
    if not isinstance(started, RunStarted):
        raise ValueError("not a journal: it does not begin with a run")
    ended: RunEnded | None = None
    spans: dict[int, SpanRecord] = {}
    instants: list[Instant] = []
    counters: list[CounterSet] = []
    outputs: list[NodeOutput] = []
    contents: dict[str, str] = {}
    last_ns = started.time_ns
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
                begun = spans.get(record.id)
                if begun is None:
                    raise ValueError(f"span {record.id} ends and has not begun")
                spans[record.id] = replace(
                    begun,
                    end_ns=record.time_ns,
                    status=record.status,
                    error=record.error,
                    attributes={**begun.attributes, **record.attributes},
                )
            case Instant():
                instants.append(record)
            case CounterSet():
                counters.append(record)
            case NodeOutput():
                outputs.append(record)
            case Content():
                contents[record.sha256] = record.text
            case RunEnded():
                ended = record
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
