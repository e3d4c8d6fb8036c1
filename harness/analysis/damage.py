"""Checks the files of a run for damage, and removes the records that cannot be trusted.

`check_journal` reads every line as readers do, and continues where they would stop. `salvage_run`
keeps the records with a valid checksum.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.errors import JournalInvalid, Notice, Problem
from harness.files import whole_file
from harness.trace.events import NodeAttempt, PipelineEvent, Salvaged
from harness.trace.journal_line import decode, encode, kind_of, seal, sealed_number
from harness.trace.journal_reader import beginning_of, open_journal, part_of, paths_beside
from harness.trace.records import (
    SCHEMA_VERSION,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanStarted,
    label_of,
)
from harness.trace.run_trace import RunLock

# The most problems of a file that are listed.
_MOST_PROBLEMS = 20
DAMAGED = ".damaged"  # the ending of a kept damaged file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """The check of one file, the record of one part of a run."""

    is_whole: bool  # whether nothing is missing: it came to its end, and so did its last line
    is_readable: bool  # whether every whole line is valid; a torn last line is no damage
    path: str
    part: int  # which part of the run, from 0
    run_id: str | None  # None if the first line does not show it
    records: dict[str, int]
    ended: str | None  # how it ended; None if it was killed, or is still going
    torn_bytes: int  # bytes of an incomplete last line
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalCheck:
    """The check of all files of a run."""

    is_whole: bool  # whether the run came to its end and nothing is missing from its last part
    is_readable: bool  # whether timelines and reports can be made of it
    run_id: str | None  # None if the first file does not say
    parts: int
    files: tuple[FileCheck, ...]


def check_journal(path: Path) -> JournalCheck:
    """Checks all files of a run, found beside its journal.

    Raises:
        OSError: A file cannot be read.
    """
    first = _check_file(path, part=0)
    files = [first]
    for beside in paths_beside(path):
        check = _check_file(beside, part=part_of(beside, path) or 0)
        has_lines = check.records or any(problem.line for problem in check.problems)
        # Readers too skip a part that was killed before its first line.
        if has_lines and (None in {check.run_id, first.run_id} or check.run_id == first.run_id):
            files.append(check)
    is_readable = all(file.is_readable for file in files)
    return JournalCheck(
        # Earlier parts may have been killed: the run went on after them.
        is_whole=is_readable and files[-1].is_whole,
        is_readable=is_readable,
        run_id=first.run_id,
        parts=len(files),
        files=tuple(files),
    )


def _check_file(path: Path, *, part: int) -> FileCheck:
    """What a file's lines show, as far as they can be decoded; its name says which `part` it is."""
    started: RunStarted | None = None
    ended: RunEnded | None = None
    counts: Counter[str] = Counter()
    open_spans: set[int] = set()
    problems: list[Problem] = []
    torn_bytes, line = 0, b""
    with open_journal(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                torn_bytes = len(line)
                break
            try:
                record = decode(line, number=number)
            except ValueError as error:
                mistakes = [Notice(message=f"{error}", code="journal.line-invalid")]
            else:
                counts[kind_of(record)] += 1
                mistakes = [*_mistakes(record, line=number, part=part, open_spans=open_spans)]
                if isinstance(record, RunStarted) and number == 1:
                    started = record
                elif isinstance(record, RunEnded):
                    ended = record
            problems += [Problem(path=path, line=number, **asdict(each)) for each in mistakes]
            del problems[_MOST_PROBLEMS:]
    if not line:
        problem = Problem(path=path, line=None, message="the file is empty", code="journal.empty")
        problems.append(problem)
    is_readable = started is not None and not problems
    return FileCheck(
        is_whole=is_readable and ended is not None and not torn_bytes,
        is_readable=is_readable,
        path=str(path),
        part=part,
        run_id=None if started is None else started.run_id,
        records=dict(counts),
        ended=None if ended is None else ended.status,
        torn_bytes=torn_bytes,
        problems=tuple(problems),
    )


def _mistakes(record: Record, *, line: int, part: int, open_spans: set[int]) -> Iterator[Notice]:
    """What is wrong with a record at its place. Adds its span to `open_spans`, or removes it."""
    if line == 1 and not isinstance(record, RunStarted):
        yield Notice(message="it does not begin with a run", code="journal.no-run")
    match record:
        case RunStarted() if line > 1:
            yield Notice(message="another run begins", code="journal.second-run")
        case RunStarted() if record.schema > SCHEMA_VERSION:
            yield Notice(message="written by a newer version", code="journal.newer-version")
        # The first part has the number 0, and resumed nothing.
        case RunStarted() if part and (record.part != part or record.joined_ns is None):
            yield Notice(message=f"not part {part} of the run", code="journal.wrong-part")
        case SpanStarted():
            open_spans.add(record.id)
        case SpanEnded() if record.id in open_spans:
            open_spans.remove(record.id)
        case SpanEnded():
            yield Notice(
                message=f"span {record.id} ends and has not begun",
                code="journal.end-without-beginning",
            )


# --- salvage --------------------------------------------------------------------------------------


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
                records, gaps = _trusted(part)
                if gaps:
                    damaged.append((part, records, gaps))
        # 2. A damaged file keeps its content under another name.
        for part, records, gaps in damaged:
            uncertain = _uncertain(records, gaps)
            loss = _loss(part, gaps, outputs=dict.fromkeys(uncertain.values()))
            certain = [record for line, record in records.items() if line not in uncertain]
            # A link, not a move: there is a journal at every moment, should the process be killed.
            os.link(part, _free_name(part))
            with whole_file(part) as file:
                salvaged = enumerate(_with_loss(certain, loss), start=1)
                file.writelines(seal(encode(record), line) for line, record in salvaged)
    finally:
        lock.release()


def _trusted(path: Path) -> tuple[dict[int, Record], list[range]]:
    """Line number → trustworthy record of a part; and the ranges of lines that are lost.

    Raises:
        JournalInvalid: The record of the part's beginning is lost.
    """
    records: dict[int, Record] = {}
    gaps: list[range] = []
    last = 0
    ends_damaged = False
    for number, record in _lines(path):
        # A line with a number that is not new was copied or moved here.
        if record is None or number <= last:
            ends_damaged = True
            continue
        # Lines have numbers, so that missing lines are noticed too.
        if number > last + 1:
            gaps.append(range(last + 1, number))
        last = number
        ends_damaged = False
        records[number] = record
    if ends_damaged:
        # No number after the damage shows how many lines are lost: at least one.
        gaps.append(range(last + 1, last + 2))
    # This event, among a part's first lines, says what the run was started with.
    if gaps and not any(map(PipelineEvent.of, records.values())):
        raise JournalInvalid(
            "the first line of this part of the run is lost; begin a new run, or, if it is not "
            "the first part, move the file away to resume from the part before it",
            code="journal.beginning-lost",
            path=path,
            line=gaps[0].start,
        )
    return records, gaps


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


def _uncertain(records: Mapping[int, Record], gaps: Sequence[range]) -> dict[int, str]:
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
            if any(start < gap.start < number for gap in gaps):
                labels[number] = label_of(record.node, record.item)
    return labels


def _loss(part: Path, gaps: Sequence[range], *, outputs: Collection[str]) -> str:
    """What a part has lost, in a sentence."""
    ranges = (f"{gap.start}" if len(gap) == 1 else f"{gap.start} to {gap.stop - 1}" for gap in gaps)
    sentence = f"{part.name}: lines that cannot be read: {', '.join(ranges)}"
    if outputs:
        sentence += f"; these outputs are made again: {', '.join(outputs)}"
    return sentence


def _free_name(path: Path) -> Path:
    name, number = path.with_name(f"{path.name}{DAMAGED}"), 1
    while name.exists():
        number += 1
        name = path.with_name(f"{path.name}{DAMAGED}-{number}")
    return name


def _with_loss(records: Iterable[Record], loss: str) -> Iterator[Record]:
    """The records to keep; the second of them says what is lost."""
    begun = set()
    for record in records:
        if isinstance(record, SpanStarted):
            begun.add(record.id)
        elif isinstance(record, SpanEnded) and record.id not in begun:
            # The beginning of this span is lost, and readers call an end alone damage.
            continue
        yield record
        if isinstance(record, RunStarted):
            yield Instant(None, Salvaged.NAME, record.time_ns, {"detail": loss})
