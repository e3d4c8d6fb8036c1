"""Makes a damaged run readable again: keeps the records that can be trusted, by their checksums."""

from __future__ import annotations

import os
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.analysis.finding import counted
from harness.errors import JournalInvalid
from harness.files import whole_file
from harness.trace.events import NodeAttempt, PipelineEvent, Salvaged
from harness.trace.journal_line import decode, encode, seal, sealed_number
from harness.trace.journal_reader import beginning_of, open_journal, paths_beside
from harness.trace.records import Instant, NodeOutput, Record, label_of
from harness.trace.run_trace import RunLock


def salvage_run(path: Path) -> None:
    """Reduces each damaged part of a run to its trustworthy records, and adds what it has lost.

    Damaged files are kept beside the journal.

    Raises:
        InvalidInput: The run is still going.
        JournalInvalid: The beginning of a part is lost, or a newer version wrote it. Nothing has
            changed then.
        OSError: A file cannot be read or written.
    """
    lock = RunLock(path)
    try:
        # 1. All is read before anything is written.
        run_id = None
        damaged = []
        for part in [path, *paths_beside(path)]:
            started = beginning_of(part)
            run_id = run_id or (started and started.run_id)
            if started is not None and started.run_id == run_id:
                records, lost = _trusted(part)
                if lost:
                    damaged.append((part, started, records, lost))
        # 2. A damaged file keeps its content under another name.
        for part, started, records, lost in damaged:
            uncertain = _uncertain(records, lost)
            loss = f"{part.name}: {counted(len(lost), 'line')} lost, from line {lost[0]} on"
            if uncertain:
                outputs = ", ".join(dict.fromkeys(uncertain.values()))
                loss += f"; these outputs are made again: {outputs}"
            beginning, *certain = [
                record for line, record in records.items() if line not in uncertain
            ]
            note = Instant(None, Salvaged.NAME, started.time_ns, {"detail": loss})
            # A link, not a move: there is a journal at every moment, should the process be killed.
            os.link(part, _free_name(part))
            with whole_file(part) as file:
                for line, record in enumerate([beginning, note, *certain], start=1):
                    file.write(seal(encode(record), line))
    finally:
        lock.release()


def _trusted(path: Path) -> tuple[dict[int, Record], list[int]]:
    """Line number → trustworthy record of a part; and the numbers of the lines that are lost.

    Raises:
        JournalInvalid: The record of the part's beginning is lost.
    """
    records: dict[int, Record] = {}
    last = 0
    ends_damaged = False
    for number, record in _lines(path):
        # A line with a number that is not new was copied or moved here.
        ends_damaged = record is None or number <= last
        if record is not None and number > last:
            records[number] = record
            last = number
    # Lines have numbers, so that missing lines are noticed too.
    lost = [number for number in range(1, last) if number not in records]
    if ends_damaged:
        # No number after the damage shows how many lines are lost: at least one.
        lost.append(last + 1)
    # This event, among a part's first lines, says what the run was started with.
    if lost and not any(map(PipelineEvent.of, records.values())):
        raise JournalInvalid(
            "the first line of this part of the run is lost; begin a new run, or, if it is not "
            "the first part, move the file away to resume from the part before it",
            code="journal.beginning-lost",
            path=path,
            line=lost[0],
        )
    return records, lost


def _lines(path: Path) -> Iterator[tuple[int, Record | None]]:
    """The number and record of each line; the record is None if it cannot be trusted."""
    with open_journal(path) as file:
        for line in file:
            if not line.endswith(b"\n"):
                return  # Cut off by a crash, as the journals of killed runs are.
            number = sealed_number(line)
            try:
                # The number need not be its place in the file: lines before it may be gone.
                yield number or 0, None if number is None else decode(line)
            except ValueError:
                yield 0, None


def _uncertain(records: Mapping[int, Record], lost: Sequence[int]) -> dict[int, str]:
    """Line number of an output that may be incomplete → the label of its call."""
    labels = {}
    # (node, item) → the line at which the call began.
    starts: dict[object, int] = {}
    for number, record in records.items():
        if call := NodeAttempt.of(record):
            starts.setdefault((call.node, call.item), number)
        elif isinstance(record, NodeOutput):
            # The items that one call generates have no spans of their own, but the call's.
            start = starts.get((record.node, record.item), starts.get((record.node, None), 0))
            # A lost line in between might hold what the call remembered, or how its loops ended.
            if bisect(lost, start) < bisect(lost, number):
                labels[number] = label_of(record.node, record.item)
    return labels


def _free_name(path: Path) -> Path:
    name, number = path.with_name(f"{path.name}.damaged"), 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}.damaged-{number}")
    return name
