"""RunTrace: the tracer of one run, and the files it leaves.

Inside the `with` block the journal grows; on leaving it, however it is left, the journal is closed
and the Chrome trace is written beside it. A record that cannot be written, or an observer that
fails, is a warning in the log: the run goes on.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from harness.errors import JournalInvalid
from harness.trace.chrome import write_chrome_trace
from harness.trace.clock import Clock, monotonic
from harness.trace.journal import JournalWriter
from harness.trace.records import SCHEMA_VERSION, Record, RunEnded, RunStarted
from harness.trace.run_record import RunRecord, load_run
from harness.trace.tracer import Sink, Tracer, describe, status_of

_log = structlog.get_logger(__name__)


class RunTrace(Tracer):
    """Traces one run into `<directory>/<run_id>.jsonl` and `<directory>/<run_id>.json`.

    Args:
        directory: Where runs land; made if missing.
        name: What is run.
        clock: The run's time.
        wall_ns: Unix time in nanoseconds.
        observers: Called with each record after it is in the journal; live progress, say. Plain
            nodes call them from threads.

    Raises:
        OSError: The directory or the journal cannot be made.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        clock: Clock = monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        observers: Sequence[Sink] = (),
    ) -> None:
        super().__init__(self._record, clock=clock)
        directory.mkdir(parents=True, exist_ok=True)
        started_wall_ns = wall_ns()
        self.name = name
        self.run_id = new_run_id(started_wall_ns)
        self.journal_path = directory / f"{self.run_id}.jsonl"
        self.chrome_path = directory / f"{self.run_id}.json"
        self.record: RunRecord | None = None
        """The whole run, once it is over; None before, and when the journal is incomplete."""
        self._observers = tuple(observers)
        self._journal = JournalWriter(self.journal_path)
        self._started = RunStarted(
            schema=SCHEMA_VERSION,
            run_id=self.run_id,
            name=name,
            wall_ns=started_wall_ns,
            time_ns=clock(),
            process_id=os.getpid(),
        )

    def __enter__(self) -> Self:
        self._record(self._started)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._record(RunEnded(time_ns=self.now_ns(), status=status_of(exc), error=describe(exc)))
        self._journal.close()
        if self._journal.failure is not None:
            return
        try:
            self.record = load_run(self.journal_path)
            write_chrome_trace(self.record, self.chrome_path)
        except (OSError, JournalInvalid) as error:
            _log.warning("the trace is incomplete", path=str(self.chrome_path), error=str(error))

    def _record(self, record: Record) -> None:
        self._journal.append(record)
        for observe in self._observers:
            try:
                observe(record)
            except Exception as error:  # noqa: BLE001 - whatever an observer raises is not the run's
                self._observers = tuple(o for o in self._observers if o is not observe)
                _log.warning("an observer failed and is called no more", error=describe(error))


def new_run_id(wall_ns: int) -> str:
    """A run's name: sorts by time, and no two are the same.

    Args:
        wall_ns: Unix time in nanoseconds.
    """
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(6)}"
