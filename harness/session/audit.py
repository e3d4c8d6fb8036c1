"""A run's line in the audit log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from harness.inference import NOTHING, Spent
from harness.session.casting import Casting
from harness.session.result import all_passed
from harness.trace import (
    AuditEntry,
    Call,
    CallGroup,
    ContentPolicy,
    Journal,
    LoopEntry,
    Redactor,
    RoundEntry,
    RunEnded,
    RunVerdict,
    SpanRecord,
    StageUse,
    group_calls,
    sha256_of,
)
from harness.wiggum import RecordedLoop, Round, WiggumResult, restored_rounds


def audit_entry(
    journal: Journal,
    *,
    calls: Sequence[Call],
    task: str,
    casting: Casting,
    loops: Sequence[WiggumResult],
    earlier_loops: Sequence[RecordedLoop] = (),
    redactor: Redactor,
    content: ContentPolicy = "full",
) -> AuditEntry:
    """What the log keeps of a run.

    Args:
        journal: The whole run.
        calls: All of its model calls.
        task: Its `task` input, or an empty text.
        casting: Who produced and who evaluated, and what is to be said about it.
        loops: How its revise loops ended.
        earlier_loops: The same of those of earlier parts of the run, which come first.
        redactor: The journal's: a draft is known there by the hash of what it left of it.
        content: What the run records of texts; the line holds no more.
    """
    started, ended = journal.started, journal.ended
    stages = group_calls(calls, by=lambda call: call.role)
    spans = [span for span in journal.spans() if span.name in {"node", "recall"}]
    earlier = restored_rounds(earlier_loops, journal)
    is_skipped = any(one.code == "run.result-skipped" for one in casting.warnings)
    roles, draw, separation = casting.roles, casting.draw, casting.separation
    return AuditEntry(
        run_id=started.run_id,
        timestamp=datetime.fromtimestamp(started.wall_ns / 1e9, tz=UTC).isoformat(),
        pipeline=started.name,
        task=task if content == "full" else "",
        producer_model=roles.producer,
        evaluator_model=", ".join(roles.evaluators) or None,
        # A task's text may be the seed.
        evaluator_seed=draw.seed if draw is not None and content == "full" else None,
        separation=separation.relation if separation is not None else None,
        warnings=tuple(casting.warnings),
        run_duration_s=journal.duration_ns / 1e9,
        stages={stage.name or "other": _stage_use(stage) for stage in stages},
        subtask_count=sum(span.name == "node" for span in spans),
        memory_context_titles=tuple(_recalled_titles(spans)),
        loops=(
            *(
                _earlier_entry(one, earlier[str(one.key)], redactor, content)
                for one in earlier_loops
            ),
            *(_loop_entry(loop, redactor, content) for loop in loops),
        ),
        final=_final(ended, is_skipped=is_skipped, passed=all_passed([*earlier_loops, *loops])),
        error=ended.error if ended else "killed",
    )


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
        case _:
            return "ERROR"


def _stage_use(calls: CallGroup) -> StageUse:
    return StageUse(
        input=calls.input_tokens,
        output=calls.output_tokens,
        calls=calls.calls,
        total_ms=calls.total_ns / 1e6,
        prompt_ms=calls.prefill_ns / 1e6,
        eval_ms=calls.decode_ns / 1e6,
        tok_s=calls.decode_tokens_per_s,
    )


def _recalled_titles(spans: Sequence[SpanRecord]) -> Iterator[str]:
    for span in spans:
        hits: Any = span.attributes.get("hits", ()) if span.name == "recall" else ()
        yield from (hit["title"] for hit in hits if hit["title"])


def _loop_entry(loop: WiggumResult, redactor: Redactor, content: ContentPolicy) -> LoopEntry:
    return LoopEntry(
        rubric=loop.rubric.id,
        rubric_sha256=loop.rubric.sha256,
        stop_reason=loop.stop_reason,
        best_round=loop.best.number,
        rounds=tuple(_round_entry(one, redactor, content) for one in loop.rounds),
        **_took(loop.spent),
    )


def _earlier_entry(
    loop: RecordedLoop, rounds: Sequence[Round] | str, redactor: Redactor, content: ContentPolicy
) -> LoopEntry:
    """A loop as the journal has it; without its rounds if they cannot be restored."""
    rounds = () if isinstance(rounds, str) else rounds
    return LoopEntry(
        rubric=loop.rubric,
        rubric_sha256=loop.rubric_sha256,
        stop_reason=loop.stop_reason or "cancelled",
        best_round=loop.best_round,
        rounds=tuple(_round_entry(one, redactor, content) for one in rounds),
        **_took(sum((one.spent for one in rounds), NOTHING)),
    )


def _took(spent: Spent) -> dict[str, Any]:
    return {
        "calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "cost_usd": spent.cost_usd,
    }


def _round_entry(one: Round, redactor: Redactor, content: ContentPolicy) -> RoundEntry:
    verdict, judges = one.verdict, one.verdict.judges
    reasons = tuple(score.reason for score in verdict.scores if score.reason)
    return RoundEntry(
        round=one.number,
        score=verdict.composite,
        dims=verdict.vector,
        issues=reasons if content == "full" else (),
        content_sha256=sha256_of(redactor.clean(one.draft)) if content != "none" else None,
        compressed=verdict.compressed,
        prompt_sha256=judges.prompt_sha256 if judges else None,
        judgements=judges.judgements if judges else 0,
        abstentions=judges.abstentions if judges else 0,
        spread=judges.spread if judges else None,
        changed_chars=one.changed_chars,
    )
