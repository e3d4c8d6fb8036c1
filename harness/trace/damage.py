"""Checks the files of a run for damage, and repairs them.

`check_journal` reads every line as readers do and goes on where they would stop. `repair_journal`
and `salvage_run` copy the records that can be trusted. A record is trusted if its line's checksum
holds or, in a journal of a version that wrote none, if it can be read. Lines are numbered, so that
missing ones are known too. An output is trusted only if no line is lost between the beginning of
its call and the output itself: it might hold what the call remembered, or how its loops ended.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import mkdtemp

from harness.errors import InvalidInput, JournalInvalid, Problem
from harness.files import private
from harness.trace.journal_line import decode, encode, kind_of, seal, sealed_number
from harness.trace.journal_reader import (
    Journal,
    joined_shift_ns,
    part_of,
    part_shift_ns,
    paths_beside,
)
from harness.trace.records import (
    SCHEMA_VERSION,
    Instant,
    NodeOutput,
    OpenSpan,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    last_moment,
    title,
)
from harness.trace.run_trace import RunLock

_SHOWN = 20

SALVAGED = "salvaged"
"""The instant that says in a repaired file what it lacks."""

DAMAGED = ".damaged"
"""Ends the name under which a file is kept as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCheck:
    """What was found in one file, which is what one process did for one part of a run."""

    path: str
    part: int
    """Which part of the run, from 0; for a process that joined, the part that it joined."""
    is_joined: bool
    run_id: str | None
    """None if the first line does not say."""
    records: dict[str, int]
    ended: str | None
    """How it ended; None when it was killed, or is not over."""
    torn_bytes: int
    """Bytes of a last line that was not written to its end."""
    problems: tuple[Problem, ...]
    """The first twenty."""
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
    """First the main process's, one for each part of the run; then those of joined processes."""

    @property
    def run_id(self) -> str | None:
        """None if the first file does not say."""
        return self.files[0].run_id

    @property
    def parts(self) -> tuple[FileCheck, ...]:
        """The main process's files: more than one if the run was resumed."""
        return tuple(file for file in self.files if not file.is_joined)

    @property
    def open_spans(self) -> tuple[OpenSpan, ...]:
        """What was under way at the end of the last part, in all processes."""
        return tuple(span for file in self._of_the_last_part for span in file.open_spans)

    @property
    def is_readable(self) -> bool:
        """Whether timelines and reports can be made of it: joined processes may be cut short."""
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
    """Checks all files of a run, found beside its journal.

    Raises:
        OSError: A file cannot be read.
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
        elif seen.has_lines:  # readers too skip a part that was killed before its first line
            parts[number] = seen
    return JournalCheck(
        files=(
            *(part.as_check(first, joined=None) for part in parts.values()),
            *(seen.as_check(first, joined=parts.get(seen.part, first)) for seen in joined),
        )
    )


class _Seen:
    """A file, read line by line; `number` is its part by its name, None for a joined process."""

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
        """What to add to its times to get the run's, as far as that is known."""
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
        """What was found; times count from the start of `first`, the run's first part."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What one file of a run has lost."""

    path: Path
    lines: tuple[range, ...]
    """By number, from 1; at the file's end there may be more."""
    outputs: tuple[str, ...]
    """Calls of nodes whose outputs are left out, since lines that belong to them are lost."""
    beginning: bool
    """Whether the start of this part is lost: its inputs, say."""

    def __str__(self) -> str:
        ranges = (
            f"{one.start}" if len(one) == 1 else f"{one.start} to {one.stop - 1}"
            for one in self.lines
        )
        said = f"{self.path.name}: lines that cannot be read: {', '.join(ranges)}"
        if self.beginning:
            said += "; with them, what this part of the run began with"
        if self.outputs:
            said += f"; these outputs are made again: {', '.join(self.outputs)}"
        return said


def repair_journal(path: Path, out: Path) -> tuple[Loss, ...]:
    """Writes what can be trusted of a run's files to others.

    Args:
        path: The run's journal.
        out: Where its copy goes; further files of the run stand beside it.

    Returns:
        What is lost; empty if nothing is, and the files are copies.

    Raises:
        InvalidInput: There is something at `out`.
        JournalInvalid: Nothing can be trusted, or a newer version wrote it.
        OSError: A file cannot be read or written.
    """
    if out.exists() or paths_beside(out):
        raise InvalidInput(
            "there is a run already; name a file that does not exist",
            path=out,
            code="journal.repair-exists",
        )
    run = next((one for one in map(_started, [path, *paths_beside(path)]) if one), None)
    losses = []
    for file in (path, *paths_beside(path)):
        number = 0 if file == path else part_of(file, path)
        found = _Trusted(file)
        if not (found.records or found.lost) or not found.is_of(run):
            continue
        if found.started is None:
            if number is None:
                continue  # of a process that joined, readers do without it too
            found.begin_with(_beginning(found, run, number=number, path=path, out=out))
        loss = found.loss(is_part=number is not None)
        target = out if file == path else out.with_name(out.stem + file.name[len(path.stem) :])
        with open(target, "xb", opener=private) as copy:
            copy.writelines(seal(encode(one), n) for n, one in enumerate(found.written(loss), 1))
        losses += [loss] if loss else []
    if not out.exists():
        raise JournalInvalid("nothing in it can be trusted", path=path, line=1)
    Journal(out)  # as readers want it
    return tuple(losses)


def salvage_run(path: Path) -> tuple[Loss, ...]:
    """Repairs a run's files in place, and keeps the damaged ones beside them.

    Raises:
        InvalidInput: The run is still going.
        JournalInvalid: Nothing can be trusted, or a newer version wrote it.
        OSError: A file cannot be read or written; nothing was changed.
    """
    lock = RunLock(path)
    made = Path(mkdtemp(prefix=".salvage-", dir=path.parent))
    try:
        losses = repair_journal(path, made / path.name)
        for loss in losses:
            kept = loss.path.with_name(f"{loss.path.name}{DAMAGED}")
            number = 1
            while kept.exists():
                number += 1
                kept = loss.path.with_name(f"{loss.path.name}{DAMAGED}-{number}")
            os.link(loss.path, kept)
            (made / loss.path.name).replace(loss.path)
    finally:
        shutil.rmtree(made, ignore_errors=True)
        lock.release()
    return losses


@dataclass(slots=True)
class _Trusted:
    """The records of one file that can be trusted, with their line numbers, and the lost lines."""

    path: Path
    started: RunStarted | None = None
    records: list[tuple[int, Record]] = field(default_factory=list)
    lost: list[range] = field(default_factory=list)

    def __post_init__(self) -> None:
        last = 0
        is_lost = False
        for number, record in _lines(self.path):
            if record is None or number <= last:
                is_lost = True
                continue
            if number > last + 1:
                self.lost.append(range(last + 1, number))
            last, is_lost = number, False
            self.records.append((number, record))
        if is_lost:
            self.lost.append(range(last + 1, last + 2))
        if self.records and isinstance(first := self.records[0][1], RunStarted):
            self.started = first
            if first.schema > SCHEMA_VERSION:
                raise JournalInvalid(
                    "written by a newer version; upgrade wiggum-harness to read it",
                    code="journal.newer-version",
                    path=self.path,
                    line=1,
                )

    def is_of(self, run: RunStarted | None) -> bool:
        return self.started is None or run is None or self.started.run_id == run.run_id

    def begin_with(self, started: RunStarted) -> None:
        self.started = started
        self.records.insert(0, (1, started))

    def loss(self, *, is_part: bool) -> Loss | None:
        if not self.lost:
            return None
        return Loss(
            path=self.path,
            lines=tuple(self.lost),
            outputs=tuple(dict.fromkeys(_label(self.records[n][1]) for n in self._uncertain())),
            beginning=is_part and not any(_begins(record) for _, record in self.records),
        )

    def written(self, loss: Loss | None) -> Iterator[Record]:
        left_out = set(self._uncertain()) if loss else set()
        begun = set()
        for place, (_, record) in enumerate(self.records):
            if isinstance(record, SpanStarted):
                begun.add(record.id)
            elif loss and isinstance(record, SpanEnded) and record.id not in begun:
                continue
            if place not in left_out:
                yield record
            if place == 0 and loss:
                assert self.started is not None
                now = self.started.time_ns
                if loss.beginning:
                    yield Instant(None, "pipeline", now, {"content": "full", "is_lost": True})
                yield Instant(None, SALVAGED, now, {"detail": str(loss)})

    def _uncertain(self) -> Iterator[int]:
        """The places of outputs that may miss something."""
        begins: dict[object, int] = {}
        for place, (number, record) in enumerate(self.records):
            if isinstance(record, SpanStarted | SpanRecord) and record.name == "node":
                said = record.attributes
                begins.setdefault((said.get("node"), said.get("item")), number)
            elif isinstance(record, NodeOutput):
                # What a call generates item by item has the call's own span.
                began = begins.get((record.node, record.item), begins.get((record.node, None), 0))
                if any(began < one.start < number for one in self.lost):
                    yield place


def _lines(path: Path) -> Iterator[tuple[int, Record | None]]:
    """The number and record of each line; the record is None if it cannot be trusted."""
    with path.open("rb") as file:
        has_seals = any(sealed_number(line) is not None for line in file)
        file.seek(0)
        for place, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return  # cut off by a crash, as the journals of killed runs are
            number = sealed_number(line) if has_seals else place
            try:
                yield number or 0, None if number is None else decode(line)
            except ValueError:
                yield 0, None


def _started(path: Path) -> RunStarted | None:
    return next((one for _, one in _lines(path) if isinstance(one, RunStarted)), None)


def _beginning(
    found: _Trusted, run: RunStarted | None, *, number: int, path: Path, out: Path
) -> RunStarted:
    """A part's first record, restored from the others.

    Raises:
        JournalInvalid: They do not say enough.
    """
    times = [moment for _, one in found.records if (moment := _first_moment(one))]
    names = (
        one.attributes.get("pipeline")
        for _, one in found.records
        if isinstance(one, Instant) and _begins(one)
    )
    name = next(names, None) if run is None else run.name
    if not isinstance(name, str):
        raise JournalInvalid("nothing in it can be trusted", path=found.path, line=1)
    run_id = path.stem if run is None else run.run_id
    try:
        began = datetime.strptime(run_id.partition("-")[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        wall_ns = int(began.timestamp()) * 10**9
    except ValueError:
        wall_ns = found.path.stat().st_mtime_ns
    joined_ns = Journal(out).last_ns if number else None
    return RunStarted(
        SCHEMA_VERSION,
        run_id,
        name,
        wall_ns,
        min(times, default=0),
        0,
        joined_ns=joined_ns,
        part=number,
    )


def _first_moment(record: Record) -> int:
    return record.start_ns if isinstance(record, SpanRecord) else last_moment(record)


def _begins(record: Record) -> bool:
    return isinstance(record, Instant) and record.name == "pipeline"


def _label(record: Record) -> str:
    assert isinstance(record, NodeOutput)
    return record.node if record.item is None else f"{record.node}[{record.item}]"
