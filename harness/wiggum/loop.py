"""The loop itself: a thin shell that performs what the policy decides.

It never returns a draft that nobody evaluated, never a worse one than it had, and always says why
it stopped. Every round is in the journal before the next begins, so that a loop that was killed
can go on from there: see `rounds_from`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.compress import sections_of
from harness.errors import EvaluatorAbstained, HarnessError, InvalidInput, LimitReached
from harness.inference.limits import NOTHING, Spent
from harness.rubric import DimensionScore, Draft, Evaluator, Rescore, Rubric, Verdict
from harness.trace import Span, Tracer
from harness.wiggum.meter import Meter
from harness.wiggum.policy import (
    LoopPolicy,
    Revise,
    Round,
    Stop,
    StopReason,
    best_round,
    changed_chars,
    decide,
    decide_on_draft,
    greatest,
    next_revision,
)
from harness.wiggum.record import reasons_in, record_round, verdict_attributes
from harness.wiggum.reviser import Reviser


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
    of its own when its draft could not be had, could not be evaluated, or was an earlier one."""
    best: Round
    """The round whose draft is returned."""
    stop_reason: StopReason
    """Why no further round was made."""
    stop_detail: str = ""
    """What there is to say about that: the error's message when an error stopped it."""
    spent: Spent = NOTHING
    """What the loop took in all."""

    @property
    def passed(self) -> bool:
        """Whether the returned draft meets the rubric."""
        return self.best.verdict.passed


async def revise_until_met(
    first_draft: Draft,
    *,
    evaluator: Evaluator,
    reviser: Reviser,
    meter: Meter,
    tracer: Tracer,
    policy: LoopPolicy | None = None,
    draft_span: int | None = None,
    rounds: Sequence[Round] = (),
    key: str | None = None,
) -> WiggumResult:
    """Evaluates, sends back what failed, revises, and keeps the best round.

    Args:
        first_draft: Evaluated as round 1.
        evaluator: Scores each draft; asks by way of the meter.
        reviser: Makes the next one; asks by way of the meter.
        meter: Has the limits, and counts what the loop takes.
        tracer: Sees every evaluation and revision.
        policy: What to revise, and when to give up.
        draft_span: The span in which the first draft was written, for the trace alone.
        rounds: Those that this loop had before it was cut off: it goes on behind them.
        key: What the record knows the loop by; see `recorded_loops`.

    Raises:
        InvalidInput: The rounds are not of this draft, or not by this rubric.
        HarnessError: Even the first draft could not be evaluated, so there is no round to return:
            mostly `EvaluationFailed`, or an `InferenceError` of the evaluator's.
    """
    loop = _Loop(
        first_draft,
        evaluator=evaluator,
        reviser=reviser,
        meter=meter,
        tracer=tracer,
        policy=policy or LoopPolicy(),
    )
    check_rounds(rounds, first_draft, evaluator.rubric)
    rubric = evaluator.rubric
    with tracer.span("wiggum", rubric=rubric.id, rubric_sha256=rubric.sha256, key=key) as span:
        try:
            loop.go_on_from(rounds)
            stop = await loop.run(draft_span)
        except asyncio.CancelledError:
            loop.say_stopped(Stop(reason="cancelled"), span)
            raise
        loop.say_stopped(stop, span)
    best = best_round(loop.rounds)
    return WiggumResult(
        rubric=rubric,
        text=best.draft,
        rounds=tuple(loop.rounds),
        revisions=tuple(loop.revisions),
        best=best,
        stop_reason=stop.reason,
        stop_detail=stop.detail,
        spent=meter.spent,
    )


class _Loop:
    """One loop's rounds, and the steps that lead to the next.

    Attributes:
        rounds: What was evaluated so far.
        revisions: What was asked for so far.
    """

    def __init__(
        self,
        first_draft: Draft,
        *,
        evaluator: Evaluator,
        reviser: Reviser,
        meter: Meter,
        tracer: Tracer,
        policy: LoopPolicy,
    ) -> None:
        self.rounds: list[Round] = []
        self.revisions: list[Revise] = []
        self._first_draft = first_draft
        self._evaluator = evaluator
        self._reviser = reviser
        self._meter = meter
        self._tracer = tracer
        self._policy = policy
        # By round, for the arrows between drafts and verdicts.
        self._judged_in: dict[int, int] = {}

    def go_on_from(self, rounds: Sequence[Round]) -> None:
        """Takes over the rounds of a loop that was cut off, into this run's journal as well."""
        for one in rounds:
            if self.rounds:
                self.revisions.append(next_revision(self.rounds, self._policy))
            self._meter.go_on_from(one.drafting)
            self._meter.go_on_from(one.judging)
            self.rounds.append(one)
            record_round(one, self._tracer)

    async def run(self, draft_span: int | None) -> Stop:
        """Adds rounds until there is a reason to stop."""
        if not self.rounds:
            # An error here is the caller's: there is nothing to return.
            await self._evaluate(self._first_draft, None, written_in=draft_span)
        while True:
            # 1. Decide.
            step = self._decide()
            if isinstance(step, Stop):
                return step
            # 2. Revise.
            self.revisions.append(step)
            try:
                draft, written_in = await self._revise(step)
            except HarnessError as error:
                return _stop_for(error, otherwise="producer_failed")
            if stop := decide_on_draft(draft.text, self.rounds):
                return stop
            # 3. Evaluate. An error leaves the rounds before it.
            try:
                await self._evaluate(draft, step, written_in=written_in)
            except HarnessError as error:
                return _stop_for(error, otherwise="evaluator_failed")

    def say_stopped(self, stop: Stop, span: Span) -> None:
        """Says how the loop ended, on its span and as an instant."""
        best = best_round(self.rounds) if self.rounds else None
        span.set(
            stop_reason=stop.reason,
            best_round=best.number if best else None,
            passed=best.verdict.passed if best else None,
            composites=[one.verdict.composite for one in self.rounds],
        )
        self._tracer.instant(
            "stop",
            reason=stop.reason,
            detail=self._tracer.excerpt(stop.detail),
            best_round=best.number if best else None,
        )

    def _decide(self) -> Stop | Revise:
        return decide(
            self.rounds,
            limits=self._meter.limits,
            policy=self._policy,
            spent=self._meter.spent,
            most_tokens=self._most_tokens,
        )

    def _most_tokens(self, step: Revise) -> int:
        """What a revision and its evaluation take at most."""
        base = self._base(step)
        written = self._reviser.most_output_tokens(base, step.focus, rounds=self.rounds)
        evaluation = self._evaluator.most_tokens(lengthened(base, tokens=written))
        # What is judged anew in part may have to be judged as a whole after that.
        evaluations = 2 if self._policy.rescore == "changed" else 1
        revision = self._reviser.most_tokens(base, step.focus, rounds=self.rounds)
        return revision + evaluations * evaluation

    def _base(self, step: Revise) -> Draft:
        return replace(self._first_draft, text=step.base.draft, cut=step.base.cut)

    async def _revise(self, step: Revise) -> tuple[Draft, int]:
        """The next draft, and the id of the span that it was written in."""
        tracer = self._tracer
        number = self.rounds[-1].number + 1
        with tracer.span(
            "revise",
            label=f"revise for round {number}",
            round=number,
            base_round=step.base.number,
            focus=[score.name for score in step.focus],
        ) as span:
            judged_in = self._judged_in.get(step.base.number)
            tracer.flow("verdict", source=judged_in, target=span.id)
            base = self._base(step)
            cost, seconds = greatest([one.judging for one in self.rounds])
            # What is left of both is not all for the revision: it has to be evaluated too.
            with self._meter.holding(usd=cost, seconds=seconds):
                revision = await self._reviser.revise(base, step.focus, rounds=self.rounds)
            span.set(draft_sha256=tracer.content(revision.text), how=revision.how)
        return replace(base, text=revision.text, cut=revision.cut), span.id

    async def _evaluate(self, draft: Draft, step: Revise | None, *, written_in: int | None) -> None:
        """Adds the draft's round.

        Args:
            draft: What to evaluate.
            step: What it was made for; None for the first.
            written_in: The id of the span that it was written in.
        """
        tracer = self._tracer
        number = len(self.rounds) + 1
        drafting = self._meter.lap()
        with tracer.span(
            "evaluate",
            label=f"evaluate round {number}",
            round=number,
            draft_sha256=tracer.content(draft.text),
        ) as span:
            tracer.flow("draft", source=written_in, target=span.id)
            verdict = await self._verdict(draft, step)
            verdict = replace(verdict, passed=verdict.passed and not draft.cut)
            span.set(**verdict_attributes(verdict), findings=tracer.excerpt(reasons_in(verdict)))
            tracer.counter("composite", verdict.composite, unit="points")
            for score in verdict.scores:
                tracer.counter(score.name, score.score, unit="points")
        base = step.base if step else None
        one = Round(
            number=number,
            draft=draft.text,
            verdict=verdict,
            cut=draft.cut,
            base_round=base.number if base else None,
            changed_chars=changed_chars(base.draft, draft.text) if base else 0,
            drafting=drafting,
            judging=self._meter.lap(),
        )
        self.rounds.append(one)
        self._judged_in[number] = span.id
        record_round(one, tracer)
        await tracer.persisted()

    async def _verdict(self, draft: Draft, step: Revise | None) -> Verdict:
        if step is not None and self._policy.rescore == "changed":
            rescore = rescore_of(draft, step.base, step.focus)
            if rescore is not None:
                return await evaluate_changed(
                    self._evaluator, draft, rescore, meter=self._meter, tracer=self._tracer
                )
        return await self._evaluator.evaluate(draft)


def check_rounds(rounds: Sequence[Round], first_draft: Draft, rubric: Rubric) -> None:
    """That these rounds are what a loop could have had.

    Raises:
        InvalidInput: They are not of this draft, or not by this rubric.
    """
    if not rounds:
        return
    if [one.number for one in rounds] != list(range(1, len(rounds) + 1)):
        raise InvalidInput(
            "the rounds to go on from are not all from the first on, in order",
            code="loop.rounds-out-of-order",
        )
    if rounds[0].draft != first_draft.text:
        raise InvalidInput(
            "the rounds to go on from began with another draft; begin with that of the first round",
            code="loop.other-draft",
        )
    if any(one.verdict.rubric_sha256 != rubric.sha256 for one in rounds):
        raise InvalidInput(
            f"the rounds to go on from were not scored by rubric '{rubric.id}' as it is now; "
            "begin the loop anew",
            code="loop.other-rubric",
        )


def _stop_for(error: HarnessError, *, otherwise: StopReason) -> Stop:
    """The end that an error puts to the loop."""
    reason = otherwise
    if isinstance(error, LimitReached):
        reason = "budget"
    elif isinstance(error, EvaluatorAbstained):
        reason = "abstained"
    return Stop(reason=reason, detail=str(error))


def rescore_of(draft: Draft, base: Round, focus: Sequence[DimensionScore]) -> Rescore | None:
    """What of a draft is to be judged anew; None for all of it.

    All, where sections do not tell what changed: there are no headings, every section is another,
    none is, or some are gone. All too where the base has no judged score to keep.
    """
    before, after = sections_of(base.draft), draft.sections
    if not any(section.level for section in after):
        return None
    old, new = Counter(s.text.strip() for s in before), Counter(s.text.strip() for s in after)
    fresh = new - old
    changed = [index for index, section in enumerate(after) if section.text.strip() in fresh]
    gone = len(before) > len(after)
    if not changed or gone or len(changed) == len(after):
        return None
    revised = frozenset(score.name for score in focus)
    kept = [s for s in base.verdict.scores if s.source == "judged" and s.name not in revised]
    if not kept:
        return None
    return Rescore(base=base.verdict, dimensions=revised, sections=frozenset(changed))


async def evaluate_changed(
    evaluator: Evaluator, draft: Draft, rescore: Rescore, *, meter: Meter, tracer: Tracer
) -> Verdict:
    """The verdict on what changed, or on the whole draft if by that one it would pass.

    Only the full evaluation accepts a draft: a score that is carried over may be another's by now.

    Raises:
        EvaluationFailed: No verdict could be reached.
        InferenceError: The evaluator could not be asked.
        LimitReached: The loop's limits left no room for it.
    """
    # Room for the full evaluation is kept while the other one may repeat itself.
    with meter.holding(tokens=evaluator.most_tokens(draft)):
        verdict = await evaluator.evaluate(draft, rescore=rescore)
    if not verdict.passed:
        return verdict
    tracer.instant("rescored", composite=verdict.composite, carried=list(verdict.carried))
    return await evaluator.evaluate(draft)


_MOST_CHARS_PER_TOKEN = 6
"""High, so that a draft is not longer than was expected: in English there are about four."""


def lengthened(draft: Draft, *, tokens: int) -> Draft:
    """The draft, longer by so many tokens' worth of words."""
    words = tokens * _MOST_CHARS_PER_TOKEN // len(" word")
    return replace(draft, text=draft.text + " word" * words)
