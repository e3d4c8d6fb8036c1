"""RunTrace: the tracer of one run, and the files it leaves.

Inside the `with` block the journal grows; on leaving it, however it is left, the journal is closed
and the timelines are written beside it. A record that cannot be written, or an observer that fails,
is a warning in the log: the run goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import NamedTuple

from harness.errors import InvalidInput, JournalInvalid
from harness.log import log_warning
from harness.trace.clock import Clock, monotonic
from harness.trace.joined_trace import Invitation
from harness.trace.journal import sync_path
from harness.trace.journal_reader import Journal
from harness.trace.journal_tracer import JournalTracer, TraceOptions, boot_id_of
from harness.trace.records import SCHEMA_VERSION, Instant, RunStarted
from harness.trace.run_files import JOURNAL_SUFFIX, journal_of, next_part, part_path
from harness.trace.run_lock import RunLock
from harness.trace.timelines.formats import TIMELINES
from harness.trace.tracer import Sink, describe


class RunTrace(JournalTracer):
    """Traces one run into `<directory>/<run_id>.jsonl`, and timelines beside it.

    A run that was killed, failed, waits or was stopped can be resumed: a further part of it goes
    into a file beside its journal, under the same id, and the timelines of the whole run are drawn
    anew when that ends. See `Journal`.

    Args:
        directory: Where runs land; made if missing. A run that is resumed stays where it is.
        name: What is run.
        options: How it is recorded.
        clock: The run's time.
        wall_ns: Unix time in nanoseconds.
        observers: Called with each record when it is written, from the thread that writes; live
            progress, say.
        resume: The journal of a run to go on with.

    Raises:
        InvalidInput: The run to resume is still going, or what is given is no run's journal but a
            further file of one.
        JournalInvalid: The run to resume cannot be read.
        OSError: The directory or the journal cannot be made, or not be read.

    Attributes:
        part: Which part of the run this is, from 0.
        journal_path: The journal: the file of the run's first part.
        timeline_paths: Where each timeline is; once the run is over, those that could be written.
        redactor: Cleans what else is written about the run.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        options: TraceOptions | None = None,
        clock: Clock = monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        observers: Sequence[Sink] = (),
        resume: Path | None = None,
    ) -> None:
        chosen = options or TraceOptions()
        started = RunStarted(
            SCHEMA_VERSION, "", name, wall_ns(), clock(), os.getpid(), boot_id=boot_id_of(clock)
        )
        if resume is None:
            directory.mkdir(parents=True, exist_ok=True)
            started = started._replace(run_id=new_run_id(started.wall_ns))
            self.journal_path = directory / f"{started.run_id}{JOURNAL_SUFFIX}"
            super().__init__(
                self.journal_path, started, options=chosen, clock=clock, observers=observers
            )
            self._lock = RunLock(self.journal_path)
        else:
            self.journal_path = resume
            self._lock = RunLock(resume)
            try:
                part = _next_part(resume, started)
                super().__init__(
                    part.path, part.started, options=chosen, clock=clock, observers=observers
                )
            except BaseException:
                self._lock.release()
                raise
            self._take(part.resumed)
            if chosen.durability != "exit":
                # This part will rest on what those before it had no time to put on the disk.
                for path in part.earlier:
                    sync_path(path)
        self.timeline_paths = {
            form: self.journal_path.with_suffix(TIMELINES[form][0]) for form in chosen.timelines
        }

    def invitation(self) -> str:
        """What `JoinedTrace` takes, in another process, to record what it does for this span."""
        return Invitation(
            journal=self.journal_path.absolute(),
            run_id=self.run_id,
            name=self.name,
            span=self.current_id,
            part=self.part,
            time_ns=self.now_ns(),
            content=self._options.content,
            durability=self._options.durability,
            secret_variables=self._options.secret_variables,
        ).model_dump_json()

    def journal(self) -> Journal | None:
        """The run as recorded so far, be it cut short by a full disk; None if there is nothing."""
        try:
            return Journal(self.journal_path)
        except JournalInvalid as error:
            log_warning(
                "the journal cannot be read", code="trace.journal-unreadable", error=str(error)
            )
            return None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(exc_type, exc, traceback)
            if not self._journal.is_forked:
                self._draw()
        finally:
            self._lock.release()

    def _draw(self) -> None:
        """The timelines of all the run."""
        journal = self.journal() if self.timeline_paths else None
        if journal is None:
            self.timeline_paths.clear()
            return
        for form, path in list(self.timeline_paths.items()):
            try:
                TIMELINES[form][1](journal, path)
            except Exception as error:  # noqa: BLE001 - it can be drawn again, and not be run again
                del self.timeline_paths[form]
                log_warning(
                    "a timeline is missing",
                    code="trace.timeline-missing",
                    path=str(path),
                    error=describe(error),
                )


def new_run_id(wall_ns: int) -> str:
    """A run's name: sorts by time, and no two are the same.

    Args:
        wall_ns: Unix time in nanoseconds.
    """
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{token_hex(6)}"


class _Part(NamedTuple):
    """A part that is about to begin: file, first two records, and the run's files before it."""

    path: Path
    started: RunStarted
    resumed: Instant
    earlier: tuple[Path, ...]


def _next_part(path: Path, started: RunStarted) -> _Part:
    """The next part of the run with this journal; `started` is what a new run would begin with."""
    journal = Journal(path)
    if journal.started.joined_ns is not None:
        raise InvalidInput(
            f"only a part of a run; resume the run: {journal_of(path).name}",
            code="run.only-a-part",
            path=path,
        )
    part = next_part(path)
    # By wall clocks, which may have been set in the meantime.
    away_ns = max(0, started.wall_ns - journal.last_wall_ns)
    return _Part(
        path=part_path(path, part),
        started=started._replace(
            run_id=journal.started.run_id, joined_ns=journal.last_ns, part=part
        ),
        resumed=Instant(None, "resumed", started.time_ns, {"part": part, "away_s": away_ns / 1e9}),
        earlier=journal.paths,
    )
