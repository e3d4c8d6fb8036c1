"""A run's line in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from harness.session.roles import Roles
from harness.trace import AuditEntry, Journal, LoopEntry, summarise_models
from harness.wiggum import WiggumResult

AUDIT_LOG = "runs.jsonl"


def audit_entry(
    journal: Journal,
    *,
    task: str,
    roles: Roles,
    loops: Sequence[WiggumResult],
) -> AuditEntry:
    """What the log keeps of a run.

    Args:
        journal: The whole run.
        task: Its `task` input, or an empty text.
        roles: Who produced and who evaluated.
        loops: How its revise loops ended.
    """
    models = summarise_models(journal.spans())
    ended = journal.ended
    failed = ended is None or ended.status != "ok"
    return AuditEntry(
        run_id=journal.started.run_id,
        timestamp=datetime.fromtimestamp(journal.started.wall_ns / 1e9, tz=UTC).isoformat(),
        pipeline=journal.started.name,
        task=task,
        producer_model=roles.producer,
        evaluator_model=roles.evaluator,
        run_duration_s=journal.duration_ns / 1e9,
        input_tokens=sum(model.input_tokens for model in models),
        output_tokens=sum(model.output_tokens for model in models),
        loops=tuple(_loop_entry(loop) for loop in loops),
        final="ERROR" if failed else "PASS" if all(loop.passed for loop in loops) else "FAIL",
        error=ended.error if ended else "killed",
    )


def _loop_entry(loop: WiggumResult) -> LoopEntry:
    return LoopEntry(
        rubric=loop.rubric.id,
        rubric_sha256=loop.rubric.sha256,
        stop_reason=loop.stop_reason,
        best_round=loop.best.number,
        scores=tuple(r.verdict.composite for r in loop.rounds),
        dimensions=tuple(r.verdict.vector for r in loop.rounds),
    )
