"""The evaluator: checks first, then one model or a panel for what only a reader can judge.

A draft near the threshold is judged several times.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from harness.errors import (
    ConfigurationInvalid,
    EvaluatorAbstained,
    HarnessError,
    InferenceError,
    LimitReached,
)
from harness.inference.request import most_tokens_in, most_tokens_of
from harness.rubric.checks.echo import echoes
from harness.rubric.draft import Draft
from harness.rubric.judge import Ask, Case, judge, judge_request
from harness.rubric.noise import is_undecided
from harness.rubric.prompt import asked_of, prompt_sha256, shown
from harness.rubric.rubric import Rubric
from harness.rubric.scoring import Opinion, caps_by_checks, checked_score, combined, echo_score
from harness.rubric.verdict import (
    Checked,
    Combine,
    DimensionScore,
    Judges,
    SingleJudgement,
    Verdict,
    reach_verdict,
    shut_gates,
    weighted_mean,
)


class Evaluator:
    """Scores drafts by one rubric; several models judge as a panel.

    `noise` is the measured standard deviation of the composites that one draft gets when each of
    them judges it once.

    Raises:
        ConfigurationInvalid: The rubric needs a judge and there is no evaluator model.
    """

    def __init__(
        self,
        rubric: Rubric,
        *,
        ask: Ask,
        models: Sequence[str] = (),
        combine: Combine = "mean",
        noise: float | None = None,
    ) -> None:
        self.rubric = rubric
        self._ask = ask
        self._models = tuple(models)
        self._combine = combine
        self._noise = noise
        if not models and (needed := [d.name for d in rubric.judged if not d.optional]):
            raise ConfigurationInvalid(
                f"rubric '{rubric.id}' has dimensions that a model must judge "
                f"({', '.join(needed)}), and no evaluator is configured; name one under [roles] in "
                "harness.toml, or give an endpoint in HARNESS_ENDPOINTS the tag 'evaluator'",
                code="config.evaluator-missing",
            )

    async def evaluate(self, draft: Draft, *, samples: int | None = None) -> Verdict:
        """One verdict; with `samples`, each model judges the draft that many times.

        Without, it is judged again only while its composite is too near the threshold to tell.

        Raises:
            EvaluatorAbstained: The models answered, and no judgement could be read.
            EvaluationFailed: A check could not be made, or nothing could be judged at all.
            InferenceError: No model could be asked.
            LimitReached: A limit left no room for the first judgement.
        """
        rubric = self.rubric
        draft = self._in_its_language(draft)
        # 1. What code scores. A gate that is shut spares the models.
        checked, reasons = _checked_scores(rubric, draft)
        dimensions = asked_of(rubric, draft) if self._models else ()
        if not dimensions or shut_gates(rubric, checked):
            return reach_verdict(rubric, checked, reasons=reasons)
        case = Case(
            rubric=rubric,
            draft=draft,
            shown=shown(rubric, draft),
            dimensions=dimensions,
            applied_caps={d.name: caps_by_checks(d, draft) for d in dimensions},
        )
        # 2. What the models judge.
        rounds, absent = await self._judge(case, checked, samples=samples)
        if not rounds:
            raise _failure(absent)
        # 3. One verdict.
        scores = combined(list(chain.from_iterable(rounds)), self._combine)
        judges = self._record(case, checked, rounds, absent)
        return reach_verdict(rubric, [*checked, *scores], reasons=reasons, judges=judges)

    async def _judge(
        self, case: Case, checked: Sequence[DimensionScore], *, samples: int | None
    ) -> tuple[list[list[Opinion]], list[HarnessError]]:
        """The opinions of each time that the models were asked, and why some are missing."""
        # Repeats are worth their calls where the noise was measured, or the rubric asks for them.
        is_repeated = self._noise is not None or "repeats" in self.rubric.model_fields_set
        limit = samples or (self.rubric.repeats if is_repeated else 1)
        rounds: list[list[Opinion]] = []
        absent: list[HarnessError] = []
        # A greedy judgement (sample 0) cannot be averaged with sampled ones.
        is_one_of_several = bool(samples) or limit > 1
        for sample in range(1, limit + 1) if is_one_of_several else (0,):
            opinions, errors = await self._ask_all(case, sample=sample)
            rounds += [opinions] if opinions else []
            absent += errors
            have_all_answered = all(isinstance(error, EvaluatorAbstained) for error in errors)
            if not have_all_answered:
                # Calibration needs all samples.
                if samples is not None:
                    raise _failure(errors)
                # If a model could not be asked, none is asked again.
                break
            if samples is None and not (rounds and self._is_undecided(checked, rounds)):
                break
        return rounds, absent

    def checked(self, draft: Draft) -> Checked:
        """The scores of a draft by the checks alone: no model is asked."""
        rubric = self.rubric
        scores, _ = _checked_scores(rubric, self._in_its_language(draft))
        if not scores:
            return Checked()
        verdict = reach_verdict(rubric, scores)
        mean = weighted_mean(rubric, scores)
        return Checked(
            rank=(verdict.passed and not draft.cut, not verdict.gates, mean),
            short=tuple(s for s in verdict.scores if s.score < rubric.scale_of(s.name).max),
        )

    def most_tokens(self, draft: Draft) -> int:
        """The most that one evaluation takes, without repairs and repeats."""
        rubric = self.rubric
        dimensions = asked_of(rubric, draft)
        if not dimensions or not self._models:
            return 0
        seen = shown(rubric, draft)
        case = Case(rubric=rubric, draft=draft, shown=seen, dimensions=dimensions, applied_caps={})
        # The draft to come may rely on more of the sources: they count with all the room they have.
        limit = rubric.shorten.payload_chars if seen.sources_shortened else 0
        tokens = 0
        for dimensions_of_call in case.calls:
            request = judge_request(case, dimensions_of_call, model="")
            unused = max(0, limit - sum(len(message.content) for message in request.messages))
            tokens += most_tokens_in(" " * unused) + most_tokens_of(request)
        return tokens * len(self._models)

    def _in_its_language(self, draft: Draft) -> Draft:
        # Not replaced without need: a draft keeps its parts once they are computed.
        language = self.rubric.language
        return draft if draft.language == language else replace(draft, language=language)

    async def _ask_all(
        self, case: Case, *, sample: int
    ) -> tuple[list[Opinion], list[HarnessError]]:
        """The opinions of all models, asked at once, and the errors of models without one."""

        async def opinion_of(model: str) -> Opinion | HarnessError:
            try:
                return await judge(case, ask=self._ask, model=model, sample=sample)
            except (EvaluatorAbstained, InferenceError, LimitReached) as error:
                return error

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(opinion_of(model)) for model in self._models]
        except ExceptionGroup as failed:
            # Callers catch an error by its class, not in a group.
            raise failed.exceptions[0] from None
        results = [task.result() for task in tasks]
        opinions = [result for result in results if isinstance(result, Opinion)]
        return opinions, [result for result in results if isinstance(result, HarnessError)]

    def _is_undecided(
        self, checked: Sequence[DimensionScore], rounds: Sequence[Sequence[Opinion]]
    ) -> bool:
        """Whether chance could still decide after these rounds."""
        opinions = list(chain.from_iterable(rounds))
        verdicts_by_judge: dict[str, list[Verdict]] = {}
        for opinion in opinions:
            verdict = self._verdict_by(checked, [opinion])
            verdicts_by_judge.setdefault(opinion.evaluator, []).append(verdict)
        verdict = self._verdict_by(checked, opinions)
        judgements = list(verdicts_by_judge.values())
        return is_undecided(verdict, judgements, self.rubric, noise=self._noise)

    def _verdict_by(
        self, checked: Sequence[DimensionScore], opinions: Sequence[Opinion]
    ) -> Verdict:
        return reach_verdict(self.rubric, [*checked, *combined(opinions, self._combine)])

    def _record(
        self,
        case: Case,
        checked: Sequence[DimensionScore],
        rounds: Sequence[Sequence[Opinion]],
        absent: Sequence[HarnessError],
    ) -> Judges:
        """Who judged the case, and what each judgement came to."""
        opinions = list(chain.from_iterable(rounds))
        verdicts = [self._verdict_by(checked, [opinion]) for opinion in opinions]
        round_verdicts = [self._verdict_by(checked, of_round) for of_round in rounds]
        is_repeated = len(opinions) > 1
        return Judges(
            evaluators=tuple(dict.fromkeys(opinion.evaluator for opinion in opinions)),
            prompt_sha256=prompt_sha256(self.rubric, case.calls),
            judgements=len(opinions),
            abstentions=sum(isinstance(error, EvaluatorAbstained) for error in absent),
            absent=tuple(str(error) for error in absent),
            spread=statistics.stdev(v.composite for v in verdicts) if is_repeated else None,
            pass_share=statistics.fmean(v.passed for v in verdicts) if is_repeated else None,
            combine=self._combine,
            shortened=case.shown.shortened,
            sources_shortened=case.shown.sources_shortened,
            composites=tuple(verdict.composite for verdict in round_verdicts),
            borderline=None if self._noise is None else self._is_undecided(checked, rounds),
            each=tuple(
                SingleJudgement(
                    evaluator=opinion.evaluator,
                    scores={score.name: score.score for score in opinion.scores},
                    composite=verdict.composite,
                    repaired=opinion.repaired,
                )
                for opinion, verdict in zip(opinions, verdicts, strict=True)
            ),
        )


def _failure(errors: Sequence[HarnessError]) -> HarnessError:
    """The error to raise if no model judged: a call that failed before a reply without scores."""
    for kind in (LimitReached, InferenceError):
        for error in errors:
            if isinstance(error, kind):
                return error
    if len(errors) == 1:
        return errors[0]
    return EvaluatorAbstained(
        "no evaluator gave a judgement. " + ". ".join(map(str, errors)), abstentions=len(errors)
    )


def _checked_scores(rubric: Rubric, draft: Draft) -> tuple[list[DimensionScore], dict[str, str]]:
    """The scores by code; and why a dimension has none, if its checks cannot judge the draft."""
    results = {d.name: checked_score(d, draft, rubric) for d in rubric.checked}
    scores = [score for score in results.values() if isinstance(score, DimensionScore)]
    # Words of the loop in the draft count as a dimension of their own.
    if draft.told and (findings := echoes(draft)):
        scores.append(echo_score(rubric, findings))
    return scores, {name: why for name, why in results.items() if isinstance(why, str)}
