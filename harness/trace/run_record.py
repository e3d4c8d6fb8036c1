"""A whole run in memory, for whoever wants to look at it in Python.

Exports and reports read the journal as they go; this holds everything at once, some 700 bytes a
span.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.trace.journal_reader import Journal
from harness.trace.records import (
    Content,
    CounterSet,
    Flow,
    Instant,
    NodeOutput,
    RunEnded,
    RunStarted,
    SpanRecord,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything a journal holds."""

    started: RunStarted
    """The run's identity and its clock's anchor."""
    ended: RunEnded | None
    """None when the run was killed."""
    duration_ns: int
    """From the first record to the last."""
    spans: tuple[SpanRecord, ...]
    """In the order of `Journal.items`: a parent stands before its children, and those known only
    afterwards stand where they became known."""
    instants: tuple[Instant, ...]
    """In order."""
    counters: tuple[CounterSet, ...]
    """In order."""
    flows: tuple[Flow, ...]
    """In order."""
    outputs: tuple[NodeOutput, ...]
    """What nodes returned, in order."""
    contents: dict[str, str]
    """Texts by their SHA-256."""


def load_run(path: Path) -> RunRecord:
    """Reads a journal, of a run that ended, was killed, or is still going.

    Raises:
        JournalInvalid: The file is not a journal, or cannot be read.
    """
    journal = Journal(path)
    items = list(journal.items())
    return RunRecord(
        started=journal.started,
        ended=journal.ended,
        duration_ns=journal.duration_ns,
        spans=tuple(item for item in items if isinstance(item, SpanRecord)),
        instants=tuple(item for item in items if isinstance(item, Instant)),
        counters=tuple(item for item in items if isinstance(item, CounterSet)),
        flows=journal.flows,
        outputs=tuple(item for item in items if isinstance(item, NodeOutput)),
        contents={item.sha256: item.text for item in items if isinstance(item, Content)},
    )
