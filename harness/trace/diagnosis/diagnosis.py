"""All that is said of one run."""

from __future__ import annotations

from dataclasses import dataclass

from harness.errors import Notice
from harness.trace.diagnosis.finding import Finding
from harness.trace.records import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was wrong with a run, and what cannot be told of it."""

    run_id: str
    """The run's."""
    status: RunState
    """How it ended; `unfinished` when it was killed, or is not over."""
    findings: tuple[Finding, ...] = ()
    """Worst first: errors, then what took the most time."""
    unexplained: Notice | None = None
    """How slow its calls were, where most missed the targets and no finding says why."""
    not_examined: tuple[Notice, ...] = ()
    """What no rule could look at, and why, a phrase for each."""
