"""Reading a run's journal, however large, and whatever ended it.

A journal is read from beginning to end as often as needed, and never held in memory. One that is
still being written reads as it was when it was opened.

A run that was killed, or waits, goes on in a further file when it is resumed: a further part of one
and the same run. Its clock goes on where it had stopped, so that the pause between two parts, in
which nothing ran, is in no figure and on no timeline; an instant says how long it was. Processes
that joined a part left files of their own too. All are merged by time.

What is damaged in a part of the main process, nobody can do without, so that it is an error; a
process that joined takes nothing from the run but what stands in its file from there on.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import JournalInvalid
from harness.log import log_warning
from harness.trace.journal_file import HINT, Item, JournalFile, first_record
from harness.trace.journal_line import decode
from harness.trace.records import CounterSet, Flow, Instant, RunStarted, SpanRecord
from harness.trace.run_clock import joined_shift_ns, part_shift_ns
from harness.trace.run_files import part_of, paths_beside


class Journal:
    """A run, as its journal's files have it.

    Args:
        path: The first part's file, by the main process; the others are found beside it. One of a
            process that joined and cannot be read is left out, one that is damaged ends there,
            each with a warning in the log.

    Raises:
        JournalInvalid: It is no journal, or one of its parts is none, or a newer version wrote it,
            or it cannot be read.

    Attributes:
        path: As given.
        started: The run's identity and its clock's anchor.
        ended: How the last part ended; None when it was killed, or is not over.
        parts: How many parts it has, from 1: it was resumed in all but the first.
        resumed_ns: When the last of them began, on the run's clock; None if it is the first.
        flows: Every flow.
    """

    def __init__(self, path: Path) -> None:
        try:
            first = JournalFile(path)
            parts = [first, *_further_parts(path, first.started.run_id)]
            files = [*parts, *_joined_files(path, parts)]
        except OSError as error:
            raise JournalInvalid(
                f"it cannot be read ({error.strerror})", code="journal.unreadable", path=path
            ) from error
        self.path = path
        self.started = first.started
        self.ended = parts[-1].ended
        self.parts = len(parts)
        self._processes: list[_Process] = []
        for number, file in enumerate(files):
            of_part = next((one for one in self._processes if one.part == file.started.part), None)
            self._processes.append(_Process(file, number=number, of=len(files), of_part=of_part))
        self.resumed_ns = parts[-1].started.joined_ns if len(parts) > 1 else None
        self.flows = tuple(flow for process in self._processes for flow in process.flows())

    def items(self) -> Iterator[Item]:
        """Everything, in the order it was recorded; a span stands after the span it is in.

        Spans are recorded when they begin, and so in the order of their starts; those known only
        afterwards, such as the phases that a server reports with its reply, when they are known.
        Processes are merged by that order: what one recorded late stands beside what the others
        recorded then. What was under way when a part was killed ends with that part, unfinished.

        Raises:
            JournalInvalid: A line in the middle of a part's file is not a record.
        """
        if len(self._processes) == 1:
            return self._processes[0].file.items()
        timed = heapq.merge(
            *(process.items() for process in self._processes), key=lambda pair: pair[0]
        )
        return (item for _, item in timed)

    def spans(self) -> Iterator[SpanRecord]:
        """The spans alone, in the order of `items`."""
        return (item for item in self.items() if type(item) is SpanRecord)

    def resumed_after(self, time_ns: int) -> bool:
        """Whether a part of the run began at a moment or later: what ended then, the run outlived.

        Args:
            time_ns: On the run's clock.
        """
        return self.resumed_ns is not None and time_ns <= self.resumed_ns

    @property
    def last_ns(self) -> int:
        """When the last thing happened, on the run's clock."""
        return max(process.file.last_ns + process.shift_ns for process in self._processes)

    @property
    def last_wall_ns(self) -> int:
        """The same in Unix time, by the clock of the machine that the last part ran on."""
        last = self._processes[self.parts - 1]
        started = last.file.started
        return self.last_ns - last.shift_ns - started.time_ns + started.wall_ns

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files that it is read from."""
        return tuple(process.file.path for process in self._processes)

    @property
    def duration_ns(self) -> int:
        """From the first record to the last, the pauses before it was resumed left out."""
        return self.last_ns - self.started.time_ns


class _Process:
    """One file of a run on the run's clock, with ids that are the run's.

    Args:
        file: Its records.
        number: Which file this is; 0 is that of the first part.
        of: How many there are.
        of_part: For a process that joined, the part that it joined; None for a part.
    """

    def __init__(
        self, file: JournalFile, *, number: int, of: int, of_part: _Process | None
    ) -> None:
        self.file = file
        self.part = file.started.part
        self._number = number
        self._of = of
        self._parent: int | None = None
        started = file.started
        if of_part is None:
            self.shift_ns = 0 if number == 0 else part_shift_ns(started)
        else:
            main = of_part.file
            self.shift_ns = of_part.shift_ns + joined_shift_ns(
                started, file.ended, main=main.started, main_ended=main.ended
            )
            if started.parent is not None:
                self._parent = of_part.id_of(started.parent)

    def flows(self) -> Iterator[Flow]:
        """The flows between its spans."""
        for flow in self.file.flows:
            yield Flow(flow.name, self.id_of(flow.source), self.id_of(flow.target))

    def items(self) -> Iterator[tuple[int, Item]]:
        """Every item, with the time it is merged by."""
        time_ns = self.file.started.time_ns + self.shift_ns
        for item in self.file.items():
            moved: Item = item
            if type(item) is SpanRecord:
                time_ns = max(time_ns, item.start_ns + self.shift_ns)
                # What a joined process does outermost, it does for the span that asked it to join.
                parent = self._parent if item.parent is None else self.id_of(item.parent)
                moved = item._replace(
                    id=self.id_of(item.id),
                    parent=parent,
                    start_ns=item.start_ns + self.shift_ns,
                    end_ns=item.end_ns + self.shift_ns,
                )
            elif isinstance(item, Instant | CounterSet):
                time_ns = max(time_ns, item.time_ns + self.shift_ns)
                span = None if item.span is None else self.id_of(item.span)
                if span is None and getattr(item, "track", None) is None:
                    span = self._parent
                moved = item._replace(time_ns=item.time_ns + self.shift_ns, span=span)
            yield time_ns, moved

    def id_of(self, span: int) -> int:
        """Ids count from 1 in each process; interleaved, no two are the same in the run."""
        return (span - 1) * self._of + self._number + 1


def _further_parts(path: Path, run_id: str) -> Iterator[JournalFile]:
    """The files of the parts that resumed a run, in their order."""
    for beside in paths_beside(path):
        number = part_of(beside, path)
        started = None if number is None else _beginning(beside)
        if started is None or started.run_id != run_id:
            continue
        if started.part != number or started.joined_ns is None:
            raise JournalInvalid(f"not part {number} of the run; {HINT}", path=beside, line=1)
        yield JournalFile(beside)


def _joined_files(path: Path, parts: Sequence[JournalFile]) -> Iterator[JournalFile]:
    """The files of processes that joined a run, as far as they can be read."""
    known = {part.started.part for part in parts}
    for beside in paths_beside(path):
        if part_of(beside, path) is not None:
            continue
        try:
            started = _beginning(beside)
            if started is None or started.run_id != parts[0].started.run_id:
                continue
            if started.part not in known:
                raise JournalInvalid(
                    f"of part {started.part} of the run, which is not there", path=beside, line=1
                )
            yield JournalFile(beside, size=_sound_bytes(beside))
        except (JournalInvalid, OSError) as error:
            log_warning(
                "what a process did for the run is left out",
                code="trace.process-left-out",
                path=str(beside),
                error=str(error),
                hint=HINT,
            )


def _beginning(path: Path) -> RunStarted | None:
    """A file's first record; None if its process was killed before that was written."""
    with path.open("rb") as file:
        line = file.readline()
    return first_record(line, path) if line.endswith(b"\n") else None


def _sound_bytes(path: Path) -> int:
    """How much of a file is records up to where it is damaged, if it is."""
    size = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                decode(line, number=number)
            except ValueError as error:
                log_warning(
                    "what a process did for the run is known in part",
                    code="trace.process-known-in-part",
                    path=str(path),
                    line=number,
                    error=str(error),
                    hint=HINT,
                )
                break
            size += len(line)
    return size
