"""RunTrace: the tracer of one run, and the files it leaves.

Inside the `with` block the journal grows; on leaving it, however it is left, the journal is closed
and the timelines are written beside it. A record that cannot be written, or an observer that fails,
is a warning in the log: the run goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Self

import structlog
from pydantic import BaseModel, ValidationError

from harness.errors import InvalidInput, JournalInvalid
from harness.trace.clock import Clock, boot_id, monotonic
from harness.trace.journal import Durability, JournalWriter
from harness.trace.journal_reader import Journal
from harness.trace.records import SCHEMA_VERSION, RunEnded, RunStarted
from harness.trace.secrets import Redactor, secret_values
from harness.trace.timelines.formats import TIMELINES, TimelineFormat
from harness.trace.tracer import ContentPolicy, RecordMaker, Sink, Tracer, describe, status_of

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a run is recorded."""

    content: ContentPolicy = "full"
    """What is recorded of prompts, completions, drafts and outputs."""
    durability: Durability = "node"
    """When records are safe from a crash."""
    timelines: tuple[TimelineFormat, ...] = ("chrome", "perfetto")
    """What is written beside the journal when the run ends."""
    secrets: Collection[str] = field(default=(), repr=False)
    """Values that no file may hold."""
    secret_variables: tuple[str, ...] = ()
    """Names of variables that are secret, so that a process that joins can look up theirs."""


class Invitation(BaseModel):
    """What another process needs to know to join a run: text to hand over, without secrets."""

    journal: Path
    """The main process's journal."""
    run_id: str
    """The run's."""
    name: str
    """The run's."""
    span: int | None
    """The span that the other process works for."""
    time_ns: int
    """The main process's clock when it asked."""
    content: ContentPolicy
    """As in the main process."""
    durability: Durability
    """As in the main process."""
    secret_variables: tuple[str, ...] = ()
    """Names, never values, of what is secret in the other process's environment too."""


class _JournalTracer(Tracer):
    """A tracer whose records go to a file of its own."""

    def __init__(
        self,
        path: Path,
        started: RunStarted,
        *,
        options: TraceOptions,
        clock: Clock,
        observers: Sequence[Sink] = (),
    ) -> None:
        super().__init__(clock=clock, content=options.content)
        self.name = started.name
        self.run_id = started.run_id
        self.journal_path = path
        self.redactor = Redactor(options.secrets)
        self._options = options
        self._journal = JournalWriter(
            path,
            maker=RecordMaker(content=options.content, redactor=self.redactor),
            redactor=self.redactor,
            durability=options.durability,
            observers=observers,
        )
        self._take = self._journal.append
        self._take(started)

    async def persisted(self) -> None:
        """See `Tracer.persisted`, and `Durability`."""
        await self._journal.persisted()

    def _relieve(self) -> None:
        self._journal.relieve()

    def __enter__(self) -> Self:
        self._journal.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._take(RunEnded(self.now_ns(), status_of(exc), describe(exc)))
        self._journal.close()


class RunTrace(_JournalTracer):
    """Traces one run into `<directory>/<run_id>.jsonl`, and timelines beside it.

    Args:
        directory: Where runs land; made if missing.
        name: What is run.
        options: How it is recorded.
        clock: The run's time.
        wall_ns: Unix time in nanoseconds.
        observers: Called with each record when it is written, from the thread that writes; live
            progress, say.

    Raises:
        OSError: The directory or the journal cannot be made.

    Attributes:
        journal_path: The journal.
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
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        chosen = options or TraceOptions()
        started_ns = wall_ns()
        run_id = new_run_id(started_ns)
        super().__init__(
            directory / f"{run_id}.jsonl",
            RunStarted(
                SCHEMA_VERSION,
                run_id,
                name,
                started_ns,
                clock(),
                os.getpid(),
                boot_id=_boot_id_of(clock),
            ),
            options=chosen,
            clock=clock,
            observers=observers,
        )
        self.timeline_paths = {
            form: directory / f"{run_id}{TIMELINES[form][0]}" for form in chosen.timelines
        }

    def invitation(self) -> str:
        """What `JoinedTrace` takes, in another process, to record what it does for this span."""
        return Invitation(
            journal=self.journal_path.absolute(),
            run_id=self.run_id,
            name=self.name,
            span=self.current_id,
            time_ns=self.now_ns(),
            content=self._options.content,
            durability=self._options.durability,
            secret_variables=self._options.secret_variables,
        ).model_dump_json()

    def journal(self) -> Journal | None:
        """The run as recorded so far, be it cut short by a full disk; None if there is nothing."""
        try:
            return Journal(self.journal_path)
        except (OSError, JournalInvalid) as error:
            _log.warning("the journal cannot be read", error=str(error))
            return None

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(exc_type, exc, traceback)
        if self._journal.is_forked:
            return
        journal = self.journal()
        if journal is None:
            self.timeline_paths.clear()
            return
        for form, path in list(self.timeline_paths.items()):
            try:
                TIMELINES[form][1](journal, path)
            except Exception as error:  # noqa: BLE001 - it can be drawn again, and not be run again
                del self.timeline_paths[form]
                _log.warning("a timeline is missing", path=str(path), error=describe(error))


class JoinedTrace(_JournalTracer):
    """Traces what another process does for a run, into a file beside the run's journal.

    The values of secret variables are kept out of it: of those that the run names, and those whose
    names say so. What the run knows as secret from elsewhere, such as the credentials in an
    endpoint's address, is not known here: what no pattern gives away has to be given as `secrets`.

    Args:
        invitation: Of `RunTrace.invitation`.
        secrets: Further values that no file may hold; the invitation does not carry them.
        environment: Where the secret variables' values are.
        clock: This process's time.
        wall_ns: Unix time in nanoseconds.

    Raises:
        InvalidInput: The invitation is none.
        OSError: The file cannot be made.
    """

    def __init__(
        self,
        invitation: str,
        *,
        secrets: Collection[str] = (),
        environment: Mapping[str, str] = os.environ,
        clock: Clock = monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        try:
            invited = Invitation.model_validate_json(invitation)
        except ValidationError as error:
            raise InvalidInput(
                "not an invitation to a run; hand over what RunTrace.invitation returned"
            ) from error
        super().__init__(
            invited.journal.with_suffix(f".{os.getpid()}-{_random()}.jsonl"),
            RunStarted(
                SCHEMA_VERSION,
                invited.run_id,
                invited.name,
                wall_ns(),
                clock(),
                os.getpid(),
                parent=invited.span,
                joined_ns=invited.time_ns,
                boot_id=_boot_id_of(clock),
            ),
            options=TraceOptions(
                content=invited.content,
                durability=invited.durability,
                secrets=secret_values(environment, named=invited.secret_variables).union(secrets),
                secret_variables=invited.secret_variables,
            ),
            clock=clock,
        )


def new_run_id(wall_ns: int) -> str:
    """A run's name: sorts by time, and no two are the same.

    Args:
        wall_ns: Unix time in nanoseconds.
    """
    moment = datetime.fromtimestamp(wall_ns // 1_000_000_000, tz=UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{_random()}"


def _boot_id_of(clock: Clock) -> str | None:
    """Names the clock, if it is the machine's own: other processes' clocks show the same then."""
    return boot_id() if clock is monotonic else None


def _random() -> str:
    return token_hex(6)
