"""The Wiggum loop: evaluate, revise what failed, keep the best round.

A thin shell: `policy` decides, this file performs. The result is always a draft that was evaluated,
the best of all rounds, with the reason why the loop stopped. Each round is in the journal before
the next begins, so that a killed loop can continue: see `rounds_from`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.errors import EvaluatorAbstained, HarnessError, InvalidInput, LimitReached, ReplyEmpty
from harness.inference import as_messages
from harness.inference.call_spans import conversation_text
from harness.inference.health import another_may_answer
from harness.inference.limits import NOTHING, Spent
from harness.inference.meter import Meter
from harness.rubric import Draft, Evaluator, Rubric, Verdict, how_to_make_optional
from harness.trace import Span, Tracer, events
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
)
from harness.wiggum.prompts import FailedDraft
from harness.wiggum.ratchet import Finalist, Selection, Tried, with_winner
from harness.wiggum.record import reasons_in, record_round, verdict_attributes
from harness.wiggum.reviser import Reviser

# High, so that no draft is longer than expected: English has about four.
_MOST_CHARS_PER_TOKEN = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class WiggumResult:
    """The result of a loop."""

    rubric: Rubric
    text: str
    """The draft of the best round."""
    rounds: tuple[Round, ...]
    """Every evaluated draft, in order; at least one."""
    best: Round
    stop_reason: StopReason
    stop_detail: str = ""
    """Details of the stop reason: the message of an error that stopped the loop."""
    spent: Spent = NOTHING
    _may_go_on: bool = False  # as `Stop.may_go_on`

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
    first_drafts: Selection | None = None,
    rounds: Sequence[Round] = (),
    key: str | None = None,
) -> WiggumResult:
    """Evaluates, revises what failed, and keeps the best round.

    `first_drafts` has the candidates that the first draft was chosen from. If the loop was cut off
    before, `rounds` are its rounds until then, after which it continues. For `key`, see `loop_key`.

    Raises `InvalidInput` for rounds of another draft or another rubric, and the error of the first
    draft's evaluation, since there is no round to return then.
    """
    rubric = evaluator.rubric
    check_rounds(rounds, first_draft, rubric)
    loop = _RunningLoop(
        first_draft=first_draft,
        evaluator=evaluator,
        reviser=reviser,
        meter=meter,
        tracer=tracer,
        policy=policy or LoopPolicy(),
    )
    begun = events.LoopEvent(
        rubric=rubric.id,
        rubric_sha256=rubric.sha256,
        prompts_sha256=rubric.prompts.sha256,
        task_sha256=tracer.content(first_draft.task),
        # The same text as the call for a first draft has, so that the journal stores it only once.
        prompt_sha256=tracer.content(
            lambda: conversation_text(as_messages(reviser.prompts.first(first_draft)))
        ),
        key=key,
    )
    with tracer.span(begun) as span:
        try:
            stop = await loop.run(rounds, first_drafts)
        except asyncio.CancelledError:
            loop.record_end(Stop(reason="cancelled"), span)
            raise
        loop.record_end(stop, span)
    best = best_round(loop.rounds)
    return WiggumResult(
        rubric=rubric,
        text=best.draft,
        rounds=tuple(loop.rounds),
        best=best,
        stop_reason=stop.reason,
        stop_detail=stop.detail,
        spent=meter.spent,
        _may_go_on=stop.may_go_on,
    )


def check_sources(rubric: Rubric, sources: Sequence[str]) -> None:
    """Raises `InvalidInput` if checks by sources decide, and there are none."""
    by_sources = [
        dimension.name
        for dimension in rubric.checked
        if not dimension.optional and all(check.by_sources for check in dimension.checks)
    ]
    if by_sources and not any(source.strip() for source in sources):
        raise InvalidInput(
            f"rubric '{rubric.id}' checks {' and '.join(by_sources)} by sources, and the loop has "
            "none, so no draft could pass; give it sources, or "
            + how_to_make_optional(rubric, by_sources),
            code="loop.no-sources",
        )


def check_rounds(rounds: Sequence[Round], first_draft: Draft, rubric: Rubric) -> None:
    """Raises `InvalidInput` if a loop with this draft and rubric cannot continue these rounds."""
    if not rounds:
        return
    is_complete = [round_.number for round_ in rounds] == list(range(1, len(rounds) + 1))
    has_draft = rounds[0].draft == first_draft.text
    has_rubric = all(round_.verdict.rubric_sha256 == rubric.sha256 for round_ in rounds)
    if not (is_complete and has_draft and has_rubric):
        raise InvalidInput(
            "the earlier rounds are not this loop's; they must be complete, from round 1 on, begin "
            f"with this loop's draft, and be scored by this version of rubric '{rubric.id}'",
            code="loop.other-rounds",
        )


def lengthened(draft: Draft, *, tokens: int) -> Draft:
    """The draft, longer by the most words that fit into these tokens."""
    words = tokens * _MOST_CHARS_PER_TOKEN // len(" word")
    return replace(draft, text=draft.text + " word" * words)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    finalist: Finalist
    verdict: Verdict
    span: int  # id of the span of its evaluation


@dataclass(slots=True, kw_only=True)
class _RunningLoop:
    first_draft: Draft
    evaluator: Evaluator
    reviser: Reviser
    meter: Meter
    tracer: Tracer
    policy: LoopPolicy
    rounds: list[Round] = field(default_factory=list)
    # Round → the span of its evaluation, for arrows from there to its revision.
    evaluation_spans: dict[int, int] = field(default_factory=dict)

    async def run(self, earlier: Sequence[Round], first_drafts: Selection | None) -> Stop:
        """Adds rounds until there is a reason to stop."""
        # 1. Take over the rounds of an earlier part of the run; else evaluate the first draft. An
        #    error there is raised, since there is no round to return.
        for round_ in earlier:
            self._take_over(round_)
        if not self.rounds:
            first = Finalist(text=self.first_draft.text, cut=self.first_draft.cut)
            await self._evaluate(first_drafts or Selection(finalists=(first,)), None)
        while True:
            # 2. Decide, from the rounds and the limits alone.
            step = decide(
                self.rounds,
                policy=self.policy,
                rest_of=self.meter.left,
                most_tokens=self._most_tokens,
            )
            if isinstance(step, Stop):
                return step
            # 3. Revise.
            try:
                revision = await self._revise(step)
            except HarnessError as error:
                return _stop_for(error, otherwise="producer_failed")
            if stop := decide_on_draft(revision.best.text, self.rounds, tried=revision.tried):
                self._record_tried(revision.tried)
                return stop
            # 4. Evaluate. If that fails, the rounds so far are the result.
            try:
                await self._evaluate(revision, step)
            except HarnessError as error:
                return _stop_for(error, otherwise="evaluator_failed")

    def record_end(self, stop: Stop, span: Span) -> None:
        """Writes how the loop ended, on its span and as an instant."""
        # A loop that is cancelled in its first round has none.
        best = best_round(self.rounds) if self.rounds else None
        number = best.number if best else None
        passed = best.verdict.passed if best else None
        composites = [round_.verdict.composite for round_ in self.rounds]
        span.set(stop_reason=stop.reason, best_round=number, passed=passed, composites=composites)
        detail = self.tracer.excerpt(stop.detail)
        self.tracer.instant(events.StopEvent(reason=stop.reason, detail=detail, best_round=number))

    def _take_over(self, round_: Round) -> None:
        """Adds a round that was evaluated before, and writes it into this run's journal too."""
        self.meter.go_on_from(round_.drafting)
        self.meter.go_on_from(round_.judging)
        self.rounds.append(round_)
        record_round(round_, self.tracer)

    def _most_tokens(self, step: Revise) -> int:
        """The most that a revision and its evaluation can use."""
        failed = self._failed(step)
        revision, growth = self.reviser.most_tokens(failed)
        evaluation = self.evaluator.most_tokens(lengthened(failed.draft, tokens=growth))
        return revision + self.reviser.finalists * evaluation

    def _failed(self, step: Revise) -> FailedDraft:
        draft = self._draft(step.base.draft, cut=step.base.cut)
        return FailedDraft(draft, step.focus, self.rounds)

    def _draft(self, text: str, *, cut: bool) -> Draft:
        """A draft with `told`, sentences of the prompt: repeating one counts as a fault."""
        findings = (f.message for r in self.rounds for s in r.verdict.scores for f in s.findings)
        told = (*self.reviser.prompts.told, *dict.fromkeys(findings))
        return replace(self.first_draft, text=text, cut=cut, told=told)

    async def _revise(self, step: Revise) -> Selection:
        """The next draft."""
        number = self.rounds[-1].number + 1
        focus = [score.name for score in step.focus]
        begun = events.Revise(f"revise for round {number}", number, step.base.number, focus)
        with self.tracer.span(begun) as span:
            evaluation = self.evaluation_spans.get(step.base.number)
            self.tracer.flow("verdict", source=evaluation, target=span.id)
            # The revision must leave enough for its evaluation.
            with self.meter.holding(greatest([round_.judging for round_ in self.rounds])):
                revision = await self.reviser.revise(self._failed(step))
            span.set(
                draft_sha256=self.tracer.content(revision.best.text),
                how=revision.how,
                candidates=len(revision.tried) or None,
            )
        return replace(revision, written_in=span.id)

    async def _evaluate(self, revision: Selection, step: Revise | None) -> None:
        """Adds the next round: of several finalists, the one with the highest verdict."""
        drafting = self.meter.lap()  # what was spent since the last verdict
        judged = await self._judged_finalists(revision)
        best = max(judged, key=lambda judgement: judgement.verdict.rank)  # the earlier of equals
        tried = revision.tried
        # The first finalist is the checks' choice, which `tried` calls taken.
        if best is not judged[0]:
            scored = [judgement.finalist for judgement in judged]
            tried = with_winner(tried, winner=best.finalist, scored=scored)
        text = best.finalist.text
        base = step.base if step else None
        round_ = Round(
            number=len(self.rounds) + 1,
            draft=text,
            verdict=best.verdict,
            cut=best.finalist.cut,
            base_round=base.number if base else None,
            changed_chars=changed_chars(base.draft, text) if base else 0,
            drafting=drafting,
            judging=self.meter.lap(),
            tried=tried,
        )
        self._record_tried(tried)
        self.rounds.append(round_)
        self.evaluation_spans[round_.number] = best.span
        record_round(round_, self.tracer)
        # Before the next round begins, since a killed loop continues from the journal.
        await self.tracer.persisted()

    async def _judged_finalists(self, revision: Selection) -> list[_Judged]:
        """The verdicts of finalists, up to one that passes; at least that of the first."""
        earlier = {round_.draft for round_ in self.rounds}
        judged: list[_Judged] = []
        for number, finalist in enumerate(revision.finalists):
            # `decide_on_draft` has compared only the first finalist with earlier drafts.
            if number and finalist.text in earlier:
                continue
            try:
                judged.append(await self._judged(finalist, written_in=revision.written_in))
            except HarnessError:
                if not judged:
                    raise
                break
            # A draft that passes ends the loop, so a better one is worth no call.
            if judged[-1].verdict.passed:
                break
        return judged

    async def _judged(self, finalist: Finalist, *, written_in: int | None) -> _Judged:
        tracer, number = self.tracer, len(self.rounds) + 1
        draft = self._draft(finalist.text, cut=finalist.cut)
        begun = events.Evaluate(
            label=f"evaluate round {number}", round=number, draft_sha256=tracer.content(draft.text)
        )
        with tracer.span(begun) as span:
            tracer.flow("draft", source=written_in, target=span.id)
            # A candidate that was made without a call has no span (`Candidate.number` 0).
            chosen = [candidate.span for candidate in finalist.taken if candidate.span is not None]
            tracer.flows("candidate", sources=chosen, target=span.id)
            verdict = await self.evaluator.evaluate(draft)
            verdict = replace(verdict, passed=verdict.passed and not draft.cut)
            span.set(**verdict_attributes(verdict), findings=tracer.excerpt(reasons_in(verdict)))
            unit = f"points of {self.evaluator.rubric.scale.max:g}"
            tracer.counter("composite", verdict.composite, unit=unit)
            for score in verdict.scores:
                tracer.counter(score.name, score.points, unit=unit)
        return _Judged(finalist=finalist, verdict=verdict, span=span.id)

    def _record_tried(self, tried: Sequence[Tried]) -> None:
        """Writes the fate of each candidate for the next round, which may not come."""
        for fate in tried:
            event = events.CandidateFate(
                round=len(self.rounds) + 1,
                section=self.tracer.excerpt(fate.section),
                number=fate.number,
                seed=fate.seed,
                outcome=fate.outcome,
                checked=fate.checked,
                text_sha256=self.tracer.content(fate.text) if fate.text else None,
                detail=self.tracer.excerpt(fate.error) or None,
            )
            self.tracer.instant(event)


def _stop_for(error: HarnessError, *, otherwise: StopReason) -> Stop:
    reason = otherwise
    is_outage = isinstance(error, LimitReached) and error.limit == "outage"
    # Whichever model's call met the limit: it is the loop's limit, not that model's fault.
    if isinstance(error, LimitReached) and not is_outage:
        reason = "budget"
    elif isinstance(error, EvaluatorAbstained):
        reason = "abstained"
    elif isinstance(error, ReplyEmpty) and otherwise == "producer_failed":
        reason = "producer_empty"
    return Stop(reason=reason, detail=str(error), may_go_on=is_outage or another_may_answer(error))
