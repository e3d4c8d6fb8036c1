"""The loop itself: a thin shell that performs what the policy decides.

It never returns a draft that nobody evaluated, never a worse one than it had, and always says why
it stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.errors import HarnessError
from harness.rubric import Draft, Evaluator, Rubric, Verdict
from harness.trace import Tracer
from harness.wiggum.policy import LoopLimits, Revise, Stop, decide
from harness.wiggum.reviser import Reviser
from harness.wiggum.round import Round, StopReason, best_round


@dataclass(frozen=True, slots=True, kw_only=True)
class WiggumResult:
    """How a loop ended."""

    rubric: Rubric
    """What the drafts were measured by."""
    text: str
    """The draft of the best round."""
    rounds: tuple[Round, ...]
    """Every evaluated draft, in order; at least one."""
    revisions: tuple[Revise, ...]
    """What was asked for after each round but the last, in order; the last of these has no round
    of its own when an error stopped it."""
    best: Round
    """The round whose draft is returned."""
    stop_reason: StopReason
    """Why no further round was made."""
    stop_detail: str = ""
    """The error's message when an error stopped it."""

    @property
    def passed(self) -> bool:
        """Whether the returned draft meets the rubric."""
        return self.best.verdict.passed


async def revise_until_met(
    first_draft: Draft,
    *,
    evaluator: Evaluator,
    reviser: Reviser,
    limits: LoopLimits,
    tracer: Tracer,
    draft_span: int | None = None,
) -> WiggumResult:
    """Evaluates, sends back what failed, revises, and keeps the best round.

    Args:
        first_draft: Evaluated as round 1.
        evaluator: Scores each draft.
        reviser: Makes the next one.
        limits: When to give up.
        tracer: Sees every evaluation and revision.
        draft_span: The span in which the first draft was written, for the trace alone.

    Raises:
        HarnessError: Even the first draft could not be evaluated, so there is no round to return:
            mostly `EvaluationFailed`, or an `InferenceError` of the evaluator's.
    """
    rubric = evaluator.rubric
    with tracer.span("wiggum", rubric=rubric.id, rubric_sha256=rubric.sha256) as span:
        rounds: list[Round] = []
        revisions: list[Revise] = []
        # Where drafts were written and judged, for the arrows between them.
        draft, written_in = first_draft, draft_span
        judged_in: list[int] = []
        stop_detail = ""
        while True:
            # 1. Evaluate. An error here leaves the rounds before it; with none, it is the caller's.
            try:
                evaluated, span_id = await _evaluate(
                    draft, len(rounds) + 1, evaluator, tracer, written_in=written_in
                )
            except HarnessError as error:
                if not rounds:
                    raise
                reason: StopReason = "evaluator_error"
                stop_detail = str(error)
                break
            rounds.append(evaluated)
            judged_in.append(span_id)

            # 2. Decide.
            step = decide(rounds, limits)
            if isinstance(step, Stop):
                reason = step.reason
                break

            # 3. Revise.
            revisions.append(step)
            try:
                draft, written_in = await _revise(
                    first_draft,
                    step,
                    len(rounds) + 1,
                    reviser,
                    tracer,
                    judged_in=judged_in[step.base.number - 1],
                )
            except HarnessError as error:
                reason = "producer_error"
                stop_detail = str(error)
                break

        best = best_round(rounds)
        span.set(
            stop_reason=reason,
            best_round=best.number,
            passed=best.verdict.passed,
            composites=[r.verdict.composite for r in rounds],
        )
        tracer.instant("stop", reason=reason, detail=tracer.excerpt(stop_detail))
    return WiggumResult(
        rubric=rubric,
        text=best.draft,
        rounds=tuple(rounds),
        revisions=tuple(revisions),
        best=best,
        stop_reason=reason,
        stop_detail=stop_detail,
    )


async def _evaluate(
    draft: Draft, number: int, evaluator: Evaluator, tracer: Tracer, *, written_in: int | None
) -> tuple[Round, int]:
    """The round, and the id of its span."""
    with tracer.span(
        "evaluate",
        label=f"evaluate round {number}",
        round=number,
        draft_sha256=tracer.content(draft.text),
    ) as span:
        tracer.flow("draft", source=written_in, target=span.id)
        verdict = await evaluator.evaluate(draft)
        span.set(**_attributes(verdict), findings=tracer.excerpt(_findings(verdict)))
        tracer.counter("composite", verdict.composite, unit="points")
        for score in verdict.scores:
            tracer.counter(score.name, score.score, unit="points")
    return Round(number=number, draft=draft.text, verdict=verdict), span.id


async def _revise(
    first_draft: Draft,
    step: Revise,
    number: int,
    reviser: Reviser,
    tracer: Tracer,
    *,
    judged_in: int,
) -> tuple[Draft, int]:
    """The next draft, and the id of the span that it was written in."""
    focus = [score.name for score in step.focus]
    with tracer.span(
        "revise",
        label=f"revise for round {number}",
        round=number,
        base_round=step.base.number,
        focus=focus,
    ) as span:
        tracer.flow("verdict", source=judged_in, target=span.id)
        base = replace(first_draft, text=step.base.draft)
        text = await reviser.revise(base, step.focus, round_number=number)
        span.set(draft_sha256=tracer.content(text))
    return replace(first_draft, text=text), span.id


def _attributes(verdict: Verdict) -> dict[str, object]:
    return {
        "composite": verdict.composite,
        "passed": verdict.passed,
        "scores": verdict.vector,
        "evaluator": verdict.evaluator or "checks",
        "unjudged": list(verdict.unjudged),
        "compressed": verdict.compressed,
    }


def _findings(verdict: Verdict) -> list[str]:
    return [f"{score.name}: {score.reason}" for score in verdict.scores if score.reason]
