"""JoinedTrace: the tracer of another process that works for a run, and how that is invited."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from secrets import token_hex

from pydantic import BaseModel, ValidationError

from harness.errors import InvalidInput
from harness.trace.clock import Clock, monotonic
from harness.trace.journal import Durability
from harness.trace.journal_tracer import JournalTracer, TraceOptions, boot_id_of
from harness.trace.records import SCHEMA_VERSION, RunStarted
from harness.trace.run_files import joined_path
from harness.trace.secrets import secret_values
from harness.trace.tracer import ContentPolicy


class Invitation(BaseModel):
    """What another process needs to know to join a run: text to hand over, without secrets."""

    journal: Path
    """The run's journal, by the main process."""
    run_id: str
    """The run's."""
    name: str
    """The run's."""
    span: int | None
    """The span that the other process works for."""
    part: int = 0
    """Which part of the run."""
    time_ns: int
    """The main process's clock when it asked."""
    content: ContentPolicy
    """As in the main process."""
    durability: Durability
    """As in the main process."""
    secret_variables: tuple[str, ...] = ()
    """Names, never values, of what is secret in the other process's environment too."""


class JoinedTrace(JournalTracer):
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
                "not an invitation to a run; hand over what RunTrace.invitation returned",
                code="run.not-an-invitation",
            ) from error
        self.journal_path = joined_path(invited.journal, os.getpid(), token_hex(6))
        super().__init__(
            self.journal_path,
            RunStarted(
                SCHEMA_VERSION,
                invited.run_id,
                invited.name,
                wall_ns(),
                clock(),
                os.getpid(),
                parent=invited.span,
                joined_ns=invited.time_ns,
                boot_id=boot_id_of(clock),
                part=invited.part,
            ),
            options=TraceOptions(
                content=invited.content,
                durability=invited.durability,
                secrets=secret_values(environment, named=invited.secret_variables).union(secrets),
                secret_variables=invited.secret_variables,
            ),
            clock=clock,
        )
