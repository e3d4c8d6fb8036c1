"""Scores of dimensions: by checks, or from a model's judgement, held down by the rubric's caps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from harness.rubric.checks import mean_of
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.judging.judgement import Judgement
from harness.rubric.judging.located import located
from harness.rubric.judging.reply_schema import rule_keys
from harness.rubric.rubric import Cap, Dimension, Rubric
from harness.rubric.verdict import DimensionScore, half_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A cap that applies."""

    at_most: float
    """The highest score there can be."""
    rule: str
    """What it says, for people."""
    findings: tuple[Finding, ...]
    """What to change for it no longer to apply."""


def checked_score(dimension: Dimension, draft: Draft, rubric: Rubric) -> DimensionScore | None:
    """The score of a dimension by its checks: their mean, on the rubric's scale.

    None if there was nothing that they could judge by.
    """
    grade = mean_of([check.grade(draft) for check in dimension.checks])
    if grade.unjudged:
        return None
    scale = rubric.scale
    score = DimensionScore(
        name=dimension.name,
        score=half_up(
            scale.min + grade.share * (scale.max - scale.min), scale.step, start=scale.min
        ),
        source="checked",
        reason="; ".join(
            f"{f.section}: {f.message}" if f.section else f.message for f in grade.findings
        ),
        findings=grade.findings,
    )
    return held_down(score, held_by_checks(dimension, draft))


def judged_score(
    dimension: Dimension,
    judgement: Judgement,
    draft: Draft,
    *,
    held: Iterable[Held],
    expected: float | None = None,
) -> DimensionScore:
    """The score of a dimension by a model's judgement.

    Args:
        dimension: What was judged.
        judgement: What the model said.
        draft: Of which draft.
        held: The caps that hold it down by a check.
        expected: The score by the probabilities of all that it could have given.
    """
    score = DimensionScore(
        name=dimension.name,
        score=judgement.score if expected is None else expected,
        source="judged",
        reason=judgement.reason or "; ".join(issue.problem for issue in judgement.issues),
        findings=tuple(dict.fromkeys(located(issue, draft) for issue in judgement.issues)),
        from_logprobs=expected is not None,
    )
    return held_down(score, [*held, *_held_by_answers(dimension, judgement.rules)])


def carried_score(
    dimension: Dimension, score: DimensionScore, draft: Draft
) -> DimensionScore | None:
    """An earlier draft's score as it stands for this one, by whose checks its caps now go.

    None where a check held it down and no longer does: what it would be without, nobody said.
    """
    held = held_by_checks(dimension, draft)
    applying = {cap.rule for cap in held}
    by_checks = {_rule(cap) for cap in dimension.caps if cap.unless is not None}
    if any(rule in by_checks - applying for rule in score.capped):
        return None
    return held_down(score, held)


def held_by_checks(dimension: Dimension, draft: Draft) -> tuple[Held, ...]:
    """The caps that apply since a check is not met in full."""
    held = []
    for cap in dimension.caps:
        if cap.unless is None:
            continue
        grade = cap.unless.grade(draft)
        if grade.share < 1 and not grade.unjudged:
            findings = grade.findings or (
                Finding(cap.unless.requirement, code="check.cap-applies"),
            )
            held.append(Held(at_most=cap.at_most, rule=_rule(cap), findings=findings))
    return tuple(held)


def _held_by_answers(dimension: Dimension, answers: Mapping[str, bool]) -> list[Held]:
    """The caps whose statement the evaluator called true; one it left open does not apply."""
    true = {rule for key, rule in rule_keys(dimension).items() if answers.get(key)}
    return [
        Held(
            at_most=cap.at_most,
            rule=_rule(cap),
            findings=(Finding(cap.when, code="check.cap-applies"),),
        )
        for cap in dimension.caps
        if cap.when is not None and cap.when in true
    ]


def _rule(cap: Cap) -> str:
    rule = f"unless: {cap.unless.requirement}" if cap.unless else cap.when
    return f"at most {cap.at_most:g}: {rule}"


def held_down(score: DimensionScore, held: Iterable[Held]) -> DimensionScore:
    """The score under its caps, with the reasons of those that lower it."""
    lowering = [cap for cap in held if cap.at_most < score.score]
    if not lowering:
        return score
    findings = (*score.findings, *(finding for cap in lowering for finding in cap.findings))
    rules = tuple(cap.rule for cap in lowering)
    return replace(
        score,
        score=min(cap.at_most for cap in lowering),
        reason="; ".join(part for part in (score.reason, *rules) if part),
        findings=tuple(dict.fromkeys(findings)),
        capped=(*score.capped, *rules),
    )
