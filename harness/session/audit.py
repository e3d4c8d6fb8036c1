"""A run's line in the audit log: its result in figures, without the texts of drafts and replies.

The journal has the rest. Names that end in `_s` are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Literal

from harness.session.casting import Casting
from harness.session.result import all_passed
from harness.trace import Call, ContentPolicy, Journal, RunEnded
from harness.trace.calls import call_group
from harness.wiggum import RecordedLoop, WiggumResult

RunVerdict = Literal[
    "PASS", "FAIL", "DONE", "SKIPPED", "ERROR", "WAITING", "STOPPED", "INTERRUPTED"
]
"""PASS: every loop, or every draft of a scoring batch, passed. DONE: it finished, and nothing was
judged. SKIPPED: it finished, and the node that gives its result was skipped. ERROR: the run did not
finish. WAITING, STOPPED, INTERRUPTED: for an answer, at a limit, by a person; it may be resumed.
"""


def audit_line(
    journal: Journal,
    *,
    calls: Sequence[Call],
    task: str,
    casting: Casting,
    loops: Sequence[WiggumResult],
    earlier_loops: Sequence[RecordedLoop] = (),
    scored: Sequence[bool] = (),
    figures: Mapping[str, float] | None = None,
    tenant: str | None = None,
    content: ContentPolicy = "full",
) -> dict[str, object]:
    """The log's line about a run; with the task only if `content` is full."""
    started, ended = journal.started, journal.ended
    use = call_group(calls)
    entries = (
        *(_earlier_entry(loop) for loop in earlier_loops),
        *(_loop_entry(loop) for loop in loops),
    )
    last: Mapping[str, Any] = entries[-1] if entries else {}
    passed = all(scored) if scored else all_passed([*earlier_loops, *loops])
    is_skipped = any(notice.code == "run.result-skipped" for notice in casting.warnings)
    roles, separation = casting.roles, casting.separation
    return {
        "run_id": started.run_id,
        "timestamp": datetime.fromtimestamp(started.wall_ns / 1e9, tz=UTC).isoformat(),
        "pipeline": started.name,
        "task": task if content == "full" else "",
        "producer_model": roles.producer,
        "evaluator_model": ", ".join(roles.evaluators) or None,  # None when only code checked
        "separation": separation.relation if separation is not None else None,
        "warnings": [asdict(notice) for notice in casting.warnings],
        "run_duration_s": journal.duration_ns / 1e9,
        "input_tokens": use.input_tokens,
        "output_tokens": use.output_tokens,
        "wiggum_scores": last.get("scores", ()),
        "stop_reason": last.get("stop_reason"),
        "loops": entries,
        **({"evaluation": figures} if figures else {}),
        **({"tenant": tenant} if tenant else {}),
        "final": _final(ended, is_skipped=is_skipped, passed=passed),
        "error": ended.error if ended else "killed",
    }


def _final(ended: RunEnded | None, *, is_skipped: bool, passed: bool | None) -> RunVerdict:
    match ended:
        case RunEnded(status="ok") if is_skipped:
            return "SKIPPED"
        case RunEnded(status="ok"):
            return "DONE" if passed is None else "PASS" if passed else "FAIL"
        case RunEnded(status="waiting"):
            return "WAITING"
        case RunEnded(status="stopped"):
            return "STOPPED"
        case RunEnded(status="cancelled"):
            return "INTERRUPTED"
        case _:
            return "ERROR"


def _loop_entry(loop: WiggumResult) -> dict[str, Any]:
    return {
        "rubric": loop.rubric.id,
        "rubric_sha256": loop.rubric.sha256,
        "stop_reason": loop.stop_reason,
        "best_round": loop.best.number,
        "scores": tuple(round_.verdict.composite for round_ in loop.rounds),
    }


def _earlier_entry(loop: RecordedLoop) -> dict[str, Any]:
    """A loop of an earlier part, as the journal has it."""
    return {
        "rubric": loop.rubric,
        "rubric_sha256": loop.rubric_sha256,
        "stop_reason": loop.stop_reason or "cancelled",
        "best_round": loop.best_round,
        "scores": loop.composites,
    }
