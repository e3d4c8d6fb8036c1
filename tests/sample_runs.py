"""Runs made up for tests: by hand, and at random."""

import random
from dataclasses import dataclass
from pathlib import Path

from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Instant,
    Journal,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanRecord,
)
from harness.trace.journal_line import decode, encode, seal

STARTED = RunStarted(
    schema=1, run_id="20260102T030405Z-00", name="essay", wall_ns=0, time_ns=0, process_id=1
)


def span(
    number: int,
    start_ns: int,
    end_ns: int,
    *,
    parent: int | None = None,
    name: str = "work",
    status: str = "ok",
    **attributes: object,
) -> SpanRecord:
    return SpanRecord(number, parent, name, start_ns, end_ns, status, None, attributes)


def sealed(*records: Record, first: int = 1) -> bytes:
    """The lines of these records, which stand in a file from line `first` on."""
    return b"".join(seal(encode(one), number) for number, one in enumerate(records, start=first))


def write_journal(path: Path, *records: Record, started: RunStarted = STARTED) -> Journal:
    """A journal of these records, read back."""
    path.write_bytes(sealed(started, *records))
    return Journal(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A whole run in memory, some 700 bytes a span; exports and reports read as they go."""

    started: RunStarted
    ended: RunEnded | None
    """None when the run was killed."""
    duration_ns: int
    spans: tuple[SpanRecord, ...]
    """In the order of `Journal.items`."""
    instants: tuple[Instant, ...]
    counters: tuple[CounterSet, ...]
    flows: tuple[Flow, ...]
    outputs: tuple[NodeOutput, ...]
    contents: dict[str, str]
    """Texts by their SHA-256."""


def load_run(path: Path) -> RunRecord:
    """Reads the journal of a run that ended, was killed, or is still going.

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


def journal_lines(path: Path) -> list[Record]:
    """The records of a journal's file, line by line."""
    return [decode(line) for line in path.read_bytes().splitlines()]


def whole_lines(path: Path) -> list[Record]:
    """The same of a file that is being written to: its last line may be there in part."""
    return [decode(line) for line in path.read_bytes().rpartition(b"\n")[0].splitlines()]


def random_spans(randomness: random.Random, *, count: int, within_ns: int) -> list[SpanRecord]:
    """Spans whose parents stand before them, and whose times owe nothing to their parents'."""
    spans = []
    for number in range(1, count + 1):
        start_ns = randomness.randint(0, within_ns)
        track = randomness.choice([None, None, None, "planner", "writer"])
        spans.append(
            span(
                number,
                start_ns,
                start_ns + randomness.randint(0, within_ns // 2),
                parent=randomness.choice([None, *range(1, number)]),
                **({} if track is None else {"track": track}),
            )
        )
    return spans
