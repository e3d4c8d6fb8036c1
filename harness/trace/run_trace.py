"""The tracer of one run, and the files it leaves.

Inside the `with` block of a `RunTrace` the journal grows; when the block ends, in whatever way, the
journal is closed and the timelines are written beside it. A timeline that cannot be written, or an
observer that fails, is a warning in the log; `[trace] on_failure` says what a journal that cannot
be written means. A `RunLock` keeps a run from being resumed while it goes on.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Literal, Self
from weakref import WeakSet

from harness.errors import InvalidInput, JournalInvalid, RunLimitReached
from harness.log import log_warning
from harness.trace.chrome import write_chrome_trace
from harness.trace.clock import Clock, monotonic
from harness.trace.journal import Durability, JournalWriter, OnFailure, sync_path
from harness.trace.journal_reader import JOURNAL_SUFFIX, Journal, journal_of, next_part, part_path
from harness.trace.perfetto import write_perfetto_trace
from harness.trace.records import SCHEMA_VERSION, Instant, RunEnd, RunEnded, RunStarted, describe
from harness.trace.secrets import Redactor
from harness.trace.tracer import ContentPolicy, RecordMaker, Sink, Tracer, status_of

TimelineFormat = Literal["chrome", "perfetto"]

ID_TIME = "%Y%m%dT%H%M%SZ"
"""How a run's id begins: the time in UTC."""

TIMELINES: dict[TimelineFormat, tuple[str, Callable[[Journal, Path], None]]] = {
    "chrome": (".json", write_chrome_trace),
    "perfetto": (".pftrace", write_perfetto_trace),
}
"""Format → the ending of its files, and the function that writes one."""

_held: WeakSet[RunLock] = WeakSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a run is recorded."""

    content: ContentPolicy = "full"
    durability: Durability = "node"
    timelines: tuple[TimelineFormat, ...] = ("chrome", "perfetto")
    on_failure: OnFailure = "stop"
    secrets: Collection[str] = field(default=(), repr=False)
    """Values that no file may hold."""


class RunTrace(Tracer):
    """Traces one run into `<directory>/<run_id>.jsonl`, and timelines beside it.

    A run that was killed, failed, waits or was stopped can be resumed: a further part goes into a
    file beside its journal, under the same id. When the part ends, the timelines of the whole run
    are drawn again. See `Journal`.

    Args:
        directory: The directory of runs; made if missing. A resumed run stays in its own.
        name: The pipeline's name.
        options: How it is recorded.
        clock: The run's time.
        wall_ns: Unix time in nanoseconds.
        observers: Called with each record from the writing thread, for example for live progress.
        resume: The journal of a run to resume.

    Raises:
        InvalidInput: The run to resume is still going, or the file is only a part of one.
        JournalInvalid: The run to resume cannot be read.
        OSError: The directory or the journal cannot be made or read.

    Attributes:
        part: Which part of the run this is, from 0.
        journal_path: The journal: the file of the run's first part.
        timeline_paths: The file of each timeline; after the run, only written ones.
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
        super().__init__(clock=clock, content=chosen.content)
        self.redactor = Redactor(chosen.secrets)
        self.hears_text = any(getattr(observer, "hears_text", False) for observer in observers)
        self._options = chosen
        self._end: tuple[RunEnd, str | None] | None = None
        started = RunStarted(SCHEMA_VERSION, "", name, wall_ns(), clock(), os.getpid())
        if resume is None:
            directory.mkdir(parents=True, exist_ok=True)
            moment = datetime.fromtimestamp(started.wall_ns // 1_000_000_000, tz=UTC)
            # An id is unique, and ids sort by time.
            started = started._replace(run_id=f"{moment:{ID_TIME}}-{token_hex(6)}")
            self.journal_path = directory / f"{started.run_id}{JOURNAL_SUFFIX}"
            self._begin(self.journal_path, started, observers)
            # The file must exist to be locked; no other process knows its name yet.
            self._lock = RunLock(self.journal_path)
        else:
            self.journal_path = resume
            # Locked before it is read, since another process may be resuming it.
            self._lock = RunLock(resume)
            try:
                earlier = Journal(resume)
                self._begin(*_next_part(earlier, started), observers)
            except BaseException:
                self._lock.release()
                raise
            # Wall clocks may have been set in the meantime, so the difference may be below 0.
            away_s = max(0, started.wall_ns - earlier.last_wall_ns) / 1e9
            self._take(
                Instant(None, "resumed", started.time_ns, {"part": self.part, "away_s": away_s})
            )
            if chosen.durability != "exit":
                # A part that was killed may not have put its records on the disk.
                for path in earlier.paths:
                    sync_path(path)
        self.timeline_paths = {
            form: self.journal_path.with_suffix(TIMELINES[form][0]) for form in chosen.timelines
        }

    def _begin(self, path: Path, started: RunStarted, observers: Sequence[Sink]) -> None:
        """Opens the file of this part, and writes its first record."""
        self.name, self.run_id, self.part = started.name, started.run_id, started.part
        self._journal = JournalWriter(
            path,
            maker=RecordMaker(content=self._options.content, redactor=self.redactor),
            redactor=self.redactor,
            durability=self._options.durability,
            observers=[getattr(o, "of_run", lambda sink=o: sink)() for o in observers],
        )
        self._take = self._journal.append
        self._take(started)

    def end_as(self, status: RunEnd, error: str | None = None) -> None:
        """Sets how the run ended, for a run that fails, waits or is stopped without raising."""
        self._end = (status, error)

    def warned(self, message: str, details: Mapping[str, object]) -> dict[str, object]:
        """See `Tracer.warned`."""
        return {"run_id": self.run_id, **super().warned(message, details)}

    async def persisted(self) -> None:
        """See `Tracer.persisted`, and `Durability`."""
        await self._journal.persisted()

    @property
    def failure(self) -> OSError | None:
        """Why the journal was cut short; None while it can be written."""
        return self._journal.failure

    def check_written(self) -> None:
        """See `Tracer.check_written`, and `OnFailure`."""
        if self.failure is not None and self._options.on_failure == "stop":
            calls = self.calls_under_way
            raise RunLimitReached(
                f"the journal cannot be written ({self.failure.strerror}), so nothing more was "
                f"begun; {calls} call{'' if calls == 1 else 's'} under way then will be made "
                'again on resume; make room, or set on_failure = "continue" under [trace]',
                limit="journal",
                code="run.journal-failed",
            )

    def flush(self) -> None:
        """See `Tracer.flush`."""
        self._journal.flush()

    def _relieve(self) -> None:
        self._journal.relieve()

    def __enter__(self) -> Self:
        self._journal.start()
        return self

    def journal(self) -> Journal | None:
        """The run as recorded so far; None if the journal cannot be read."""
        try:
            return Journal(self.journal_path)
        except JournalInvalid as error:
            log_warning(
                "the journal cannot be read", code="trace.journal-unreadable", error=str(error)
            )
            return None

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            status, error_text = self._end or (status_of(error), describe(error))
            self._take(RunEnded(self.now_ns(), status, error_text))
            self._journal.close()
            # A forked child leaves the block too, and must not write over its parent's files.
            if not self._journal.is_forked:
                self._draw()
        finally:
            self._lock.release()

    def _draw(self) -> None:
        journal = self.journal() if self.timeline_paths else None
        if journal is None:
            self.timeline_paths.clear()
            return
        for form, path in list(self.timeline_paths.items()):
            try:
                TIMELINES[form][1](journal, path)
            except Exception as error:  # noqa: BLE001 - a timeline can be drawn again, a run cannot
                del self.timeline_paths[form]
                log_warning(
                    "a timeline is missing",
                    code="trace.timeline-missing",
                    path=str(path),
                    error=describe(error),
                )


def _next_part(run: Journal, started: RunStarted) -> tuple[Path, RunStarted]:
    """The file and first record of the run's next part; `started` is what a new run begins with."""
    if run.started.joined_ns is not None:
        raise InvalidInput(
            f"only a part of a run; resume the run: {journal_of(run.path).name}",
            code="run.only-a-part",
            path=run.path,
        )
    part = next_part(run.path)
    return part_path(run.path, part), started._replace(
        run_id=run.started.run_id, joined_ns=run.last_ns, part=part
    )


class RunLock:
    """Locks a run against a resume by another process, until it is released or its process ends.

    Raises `InvalidInput` if the run is held already, `OSError` if its journal cannot be opened.
    """

    def __init__(self, journal: Path) -> None:
        # Opened for writing, although nothing is written: over NFS, no other file can be locked.
        self._descriptor: int | None = os.open(journal, os.O_RDWR)
        self.is_certain = True  # whether the file could be locked
        try:
            # Advisory (`man 2 flock`): everyone can still read and write the file.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been replaced or deleted since it was opened.
            if not os.fstat(self._descriptor).st_nlink:
                raise BlockingIOError
        except BlockingIOError as error:
            self.release()
            raise InvalidInput(
                "the run is still going; resume it when it has ended",
                code="run.still-going",
                path=journal,
            ) from error
        except OSError as error:
            # In some network directories nothing can be locked: the run goes on without a lock.
            self.is_certain = False
            log_warning(
                "the run's journal cannot be locked, so another process could resume it",
                code="trace.lock-refused",
                path=str(journal),
                error=str(error),
            )
        _held.add(self)

    def release(self) -> None:
        """Releases the run; a second time does nothing."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_going(journal: Path) -> bool:
    """Whether a process holds the run's lock; a run on a directory without locks never is."""
    try:
        RunLock(journal).release()
    except InvalidInput:
        return True
    return False


def _release_all() -> None:
    for lock in _held:
        lock.release()


# A forked child has the locks too, and might outlive a process that was killed.
os.register_at_fork(after_in_child=_release_all)
