"""A tracer whose records go to a file: what `RunTrace` and `JoinedTrace` have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.errors import RunLimitReached
from harness.trace.clock import Clock, boot_id, monotonic
from harness.trace.journal import Durability, JournalWriter, OnFailure
from harness.trace.records import RunEnd, RunEnded, RunStarted
from harness.trace.secrets import Redactor
from harness.trace.timelines.formats import TimelineFormat
from harness.trace.tracer import ContentPolicy, RecordMaker, Sink, Tracer, describe, status_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """How a run is recorded."""

    content: ContentPolicy = "full"
    """What is recorded of prompts, completions, drafts and outputs."""
    durability: Durability = "node"
    """When records are safe from a crash."""
    timelines: tuple[TimelineFormat, ...] = ("chrome", "perfetto")
    """What is written beside the journal when the run ends."""
    on_failure: OnFailure = "stop"
    """What becomes of the run when its journal cannot be written any more."""
    secrets: Collection[str] = field(default=(), repr=False)
    """Values that no file may hold."""
    secret_variables: tuple[str, ...] = ()
    """Names of variables that are secret, so that a process that joins can look up theirs."""


class JournalTracer(Tracer):
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
        self.part = started.part
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
        self._end: tuple[RunEnd, str | None] | None = None
        self._take(started)

    def end_as(self, status: RunEnd, error: str | None = None) -> None:
        """Says how it ended, in place of what would be said by the way in which the block is left.

        For a run that failed and leaves its block in peace, that waits, or that was stopped.

        Args:
            status: What the last record will say.
            error: What ended it.
        """
        self._end = (status, error)

    def warned(self, message: str, details: Mapping[str, object]) -> dict[str, object]:
        """See `Tracer.warned`."""
        return {"run_id": self.run_id, **super().warned(message, details)}

    async def persisted(self) -> None:
        """See `Tracer.persisted`, and `Durability`."""
        await self._journal.persisted()

    @property
    def failure(self) -> OSError | None:
        """Why the journal lacks what came after, if it does."""
        return self._journal.failure

    def check_written(self) -> None:
        """See `Tracer.check_written`, and `OnFailure`."""
        if self.failure is not None and self._options.on_failure == "stop":
            raise RunLimitReached(
                f"the journal cannot be written ({self.failure.strerror}), so nothing more was "
                'begun; make room, or set on_failure = "continue" under [trace]',
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        status, error = self._end or (status_of(exc), describe(exc))
        self._take(RunEnded(self.now_ns(), status, error))
        self._journal.close()


def boot_id_of(clock: Clock) -> str | None:
    """Names the clock, if it is the machine's own: other processes' clocks show the same then."""
    return boot_id() if clock is monotonic else None
