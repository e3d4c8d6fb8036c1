"""Turns the results of checks and judges into scores of dimensions.

A check's grade or a model's judgement becomes a score on the rubric's scale, caps hold it down, and
the scores of several judges become one.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from harness.compress import Section
from harness.compress.edits import plain_title
from harness.errors import EvaluationFailed
from harness.rubric.checks import Check, Grade, mean_of
from harness.rubric.draft import Draft, Finding
from harness.rubric.prompt import rule_keys
from harness.rubric.rubric import Cap, Dimension, Rubric
from harness.rubric.verdict import ECHO, Combine, DimensionScore, Judges, SingleJudgement, half_up


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An evaluator model's words on one dimension, before code makes a score of them."""

    score: float
    """On the dimension's scale and step."""
    reason: str = ""
    """Why the score is not higher; empty if the model did not say."""
    issues: tuple[Finding, ...] = ()
    """What should be changed; the draft may not have a section as the model wrote its heading."""
    rules: Mapping[str, bool] = field(default_factory=dict)
    """The key of a cap's statement → whether it is true of the draft; without those that the model
    left open."""
    repaired: bool = False
    """Whether a second call was needed to read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedCap:
    """A cap that applies to a draft, or whose check could not judge the draft."""

    at_most: float
    rule: str
    findings: tuple[Finding, ...] = ()
    unjudged: str = ""
    """Why its check could not judge the draft: then it lowers no score."""


def checked_score(dimension: Dimension, draft: Draft, rubric: Rubric) -> DimensionScore | str:
    """The mean of a dimension's checks, on its scale; or why none of them could judge the draft."""
    grades = [_graded(check, draft) for check in dimension.checks]
    grade = mean_of(grades)
    scale = dimension.scale or rubric.scale
    if grade.unjudged:
        return grade.unjudged

    def score_at(share: float) -> float:
        # On pass and fail, a check passes if it is met in full.
        share = float(share >= 1) if scale.is_pass_fail else share
        exact = scale.min + share * (scale.max - scale.min)
        return half_up(exact, scale.step, start=scale.min)

    # The floor holds for each check that judged something.
    lowest = score_at(min(grade.share for grade in grades if not grade.unjudged))
    is_under_floor = dimension.floor is not None and lowest < dimension.floor
    score = DimensionScore(
        name=dimension.name,
        score=lowest if is_under_floor else score_at(grade.share),
        source="checked",
        reason="; ".join(
            f"{f.section}: {f.message}" if f.section else f.message for f in grade.findings
        ),
        findings=grade.findings,
    )
    return capped(score, caps_by_checks(dimension, draft))


def echo_score(rubric: Rubric, findings: tuple[Finding, ...]) -> DimensionScore:
    """The score of a draft with words of the loop."""
    reason = findings[0].message
    return DimensionScore(
        name=ECHO, score=rubric.scale.min, source="checked", reason=reason, findings=findings
    )


def judged_score(
    dimension: Dimension, judgement: Judgement, draft: Draft, *, applied_caps: Iterable[AppliedCap]
) -> DimensionScore:
    """The score of a dimension by a model's judgement; `applied_caps` are those by checks."""
    findings = dict.fromkeys(  # each once, in order
        draft.finding(issue.message, section_named(issue.section or "", draft.sections), code="")
        for issue in judgement.issues
    )
    messages = [issue.message for issue in judgement.issues]
    score = DimensionScore(
        name=dimension.name,
        score=judgement.score,
        source="judged",
        reason=judgement.reason or "; ".join(messages),
        findings=tuple(findings),
    )
    # A rule may lack an answer only if its cap could not lower the score.
    true = [rule for key, rule in rule_keys(dimension).items() if judgement.rules.get(key)]
    caps_by_rules = [_applied(c, c.when) for c in dimension.caps if c.when and c.when in true]
    return capped(score, [*applied_caps, *caps_by_rules])


def _graded(check: Check, draft: Draft) -> Grade:
    """What a check finds; raises `EvaluationFailed` if its code, a plugin's perhaps, raises."""
    try:
        return check.grade(draft)
    except EvaluationFailed:
        raise
    except Exception as error:
        raise EvaluationFailed(
            f"the check {type(check).__name__} raised {type(error).__name__}: {error}"
        ) from error


def caps_by_checks(dimension: Dimension, draft: Draft) -> tuple[AppliedCap, ...]:
    """The caps that apply because a check is not met in full, or cannot judge the draft."""
    caps = []
    for cap in dimension.caps:
        if cap.unless is None:
            continue
        grade = _graded(cap.unless, draft)
        rule = f"unless: {cap.unless.requirement}"
        if grade.unjudged:
            caps.append(replace(_applied(cap, rule), unjudged=grade.unjudged))
        elif grade.share < 1:
            caps.append(_applied(cap, rule, grade.findings))
    return tuple(caps)


def _applied(cap: Cap, rule: str, findings: tuple[Finding, ...] = ()) -> AppliedCap:
    return AppliedCap(
        at_most=cap.at_most,
        rule=f"at most {cap.at_most:g}: {rule}",
        findings=findings or (Finding(rule.removeprefix("unless: "), code="check.cap-applies"),),
    )


def capped(score: DimensionScore, caps: Iterable[AppliedCap]) -> DimensionScore:
    """The score under its caps, with the reasons of the caps that lower it, or would."""
    lower = [cap for cap in caps if cap.at_most < score.score]
    open_caps = tuple(f"{cap.rule} ({cap.unjudged})" for cap in lower if cap.unjudged)
    score = replace(score, open_caps=open_caps)
    lowering = [cap for cap in lower if not cap.unjudged]
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


# How many letters are needed to recognize a heading by its beginning.
_LEAST_TITLE_CHARS = 8
_NUMBERING = re.compile(
    r"(?:section |chapter |part )?\(?(?:\d+(?:[. ]\d+)*|[ivx]+(?=[.)]))[.):]*\s+"
)


def section_named(heading: str, sections: Sequence[Section]) -> int | None:
    """The index of the only section with this heading; None if there is none, or several.

    Case, numbering and markup do not matter.
    """
    sought = _plain(heading)
    if not sought:
        return None
    # A line break stands in no heading.
    titles = [_plain(section.title) if section.level else "\n" for section in sections]
    unnumbered = [_NUMBERING.sub("", title, count=1) for title in titles]
    # From the surest way to compare them to the vaguest.
    comparisons = [
        [title == sought for title in titles],
        [title == _NUMBERING.sub("", sought, count=1) for title in unnumbered],
        [title == re.sub(r"^the | section$", "", sought) for title in unnumbered],
        [len(sought) >= _LEAST_TITLE_CHARS and t.startswith(sought) for t in unnumbered],
    ]
    for matches in comparisons:
        if any(matches):
            # None of several: to revise the wrong section is worse than to revise all.
            return matches.index(True) if matches.count(True) == 1 else None
    return None


def _plain(heading: str) -> str:
    # A model may quote a heading, and its marks with it.
    return re.sub("[\"'#]", "", plain_title(heading)).strip(" :.-")


_AVERAGES: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "majority": statistics.median,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """One evaluator's scores on all dimensions that it was asked for."""

    evaluator: str
    scores: tuple[DimensionScore, ...]
    repaired: tuple[str, ...] = ()
    """Dimensions whose first judgement could not be read, or was incomplete."""


def combined(opinions: Sequence[Opinion], how: Combine) -> tuple[DimensionScore, ...]:
    """The scores that several opinions amount to, of the same dimensions in the same order."""
    if len(opinions) == 1:
        return opinions[0].scores
    judges = [opinion.evaluator for opinion in opinions]
    scores_by_dimension = zip(*(opinion.scores for opinion in opinions), strict=True)
    return tuple(_combined_score(scores, judges, how) for scores in scores_by_dimension)


def samples_of(judges: Judges) -> dict[str, list[float]]:
    """Judged dimension → the judges' combined scores, one for each time that they were asked."""
    by_judge: dict[str, list[SingleJudgement]] = {}
    for judgement in judges.each:
        by_judge.setdefault(judgement.evaluator, []).append(judgement)
    # The first judgements of all judges are one round, their second ones the next.
    rounds = [[j for j in judgements if j] for judgements in zip_longest(*by_judge.values())]
    average = _AVERAGES[judges.combine]
    return {
        name: [half_up(average([j.scores[name] for j in round_]), 0.01) for round_ in rounds]
        for name in judges.each[0].scores
    }


def _combined_score(
    scores: Sequence[DimensionScore], judges: Sequence[str], how: Combine
) -> DimensionScore:
    """One score of several opinions: with the reason of the lowest, and the findings of all."""
    values = [score.score for score in scores]
    lowest = min(scores, key=lambda score: score.score)
    values_by_judge: dict[str, list[float]] = {}
    for judge, value in zip(judges, values, strict=True):
        values_by_judge.setdefault(judge, []).append(value)
    # The samples of one judge are always averaged, as their median is further from what people say;
    # `how` is for the judges' averages.
    averages = [statistics.fmean(samples) for samples in values_by_judge.values()]
    return replace(
        lowest,
        score=half_up(_AVERAGES[how](averages), 0.01),
        findings=_each_once(finding for score in scores for finding in score.findings),
        spread=statistics.stdev(values),
        capped=tuple(dict.fromkeys(rule for score in scores for rule in score.capped)),
        open_caps=tuple(dict.fromkeys(cap for score in scores for cap in score.open_caps)),
    )


def _each_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings without those that repeat another's words about the same section."""
    findings_by_words: dict[tuple[int | None, str], Finding] = {}
    for finding in findings:
        words = " ".join(re.findall(r"\w+", finding.message.casefold()))
        findings_by_words.setdefault((finding.section_index, words), finding)
    return tuple(findings_by_words.values())
