"""Verdicts: the scores of one evaluation, and whether they pass."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_FLOOR, Decimal
from operator import not_
from typing import Annotated, Literal

from pydantic import Field

from harness.errors import EvaluationFailed
from harness.rubric.draft import Finding
from harness.rubric.rubric import Rubric

ECHO = "no-echo"
"""The gate that each loop adds to its rubric. It has a score in a verdict only where it is shut."""

Combine = Literal["mean", "median", "majority"]
"""How several evaluators' judgements become one: the mean or the median of each dimension's scores;
or the medians, with the draft passed when more than half of the evaluators would pass it."""

# Not written while empty: else a verdict that an earlier version kept would have another digest,
# and be reached again.
_IF_ANY = Field(exclude_if=not_)


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionScore:
    """One dimension's part of a verdict."""

    name: str
    score: float
    """On the dimension's scale: a multiple of its step, or of 0.01 if it comes from several
    judgements."""
    source: Literal["checked", "judged"]
    reason: str
    """Why it is not higher; for a judged dimension, in the evaluator's words."""
    findings: tuple[Finding, ...] = ()
    """What to change; with several judgements, the findings of all."""
    spread: float | None = None
    """Standard deviation of the judgements' scores; None if there was one."""
    capped: tuple[str, ...] = ()
    open_caps: Annotated[tuple[str, ...], _IF_ANY] = ()
    """Caps that could lower it, whose check could not judge the draft; each with the reason."""
    shared: float | None = None
    """The score on the rubric's scale; None if the dimension has no other."""

    @property
    def points(self) -> float:
        """The score on the rubric's scale, on which all dimensions can be compared."""
        return self.score if self.shared is None else self.shared

    @property
    def own_reason(self) -> str:
        """The reason without what its findings and caps say; often empty."""
        if self.source == "checked" and self.findings:
            # A check's reason is its findings, joined.
            return ""
        reason = self.reason
        # `capped` in scoring.py has put these behind the reason.
        for cap in self.capped:
            reason = reason.replace(cap, "").removesuffix("; ")
        return reason

    @property
    def own_findings(self) -> tuple[Finding, ...]:
        """The findings that neither the reason nor a cap repeats."""
        return tuple(
            finding
            for finding in self.findings
            if not any(cap.endswith(f": {finding.message}") for cap in self.capped)
            and not (self.source == "judged" and finding.message == self.own_reason)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """How the evaluator's view of a draft, or of its sources, was shortened.

    Such scores do not compare with others.
    """

    before_chars: int
    after_chars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleJudgement:
    """One of the judgements that a verdict was made of."""

    evaluator: str
    scores: Mapping[str, float]
    composite: float
    repaired: tuple[str, ...] = ()
    """Dimensions whose score comes from a second call, since the first reply could not be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judges:
    """Who judged a draft, by what, and how often."""

    evaluators: tuple[str, ...]
    """Tags of the endpoints whose judgements count, each once."""
    prompt_sha256: str
    """Digest of everything the evaluator was told except task, sources and draft."""
    judgements: int = 1
    abstentions: int = 0
    """How many replies had no judgement that could be read. They do not count."""
    absent: tuple[str, ...] = ()
    """Why each missing judgement is missing: abstentions, and models that could not be asked."""
    spread: float | None = None
    """Standard deviation of the judgements' composites; None if there was one."""
    pass_share: float | None = None
    """The share of judgements that would pass the draft by themselves; None if there was one."""
    combine: Combine = "mean"
    shortened: Shortened | None = None
    sources_shortened: Shortened | None = None
    """How the sources were shortened, all together."""
    composites: tuple[float, ...] = ()
    """The composite of each round, in which every judge is asked once."""
    borderline: bool | None = None
    """Whether the composite lies so near the threshold that chance may have decided; None if the
    evaluator's noise was never measured."""
    each: tuple[SingleJudgement, ...] = ()
    """The judgements, in the order they were made; empty in older journals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The evaluation of one draft."""

    rubric: str
    rubric_sha256: str
    """Digest of the rubric's values; verdicts with different digests cannot be compared."""
    scores: tuple[DimensionScore, ...]
    composite: float
    """Weighted mean on the rubric's scale, to which scores on other scales are stretched. Rounded
    half up to the scale's `composite_step`: 0.1 from 0 to 10 by 0.5; to more digits where that
    would carry it over `pass_at`, or over its best score."""
    passed: bool
    """Whether the composite and all floors are reached, and nothing is missing: decided by code,
    never by the evaluator."""
    below_floor: tuple[str, ...] = ()
    """Dimensions below their floor; any of them fails the draft."""
    gates: tuple[str, ...] = ()
    """The gates in `below_floor`; with any, no model was asked, and `composite` covers the checks
    alone."""
    unjudged: tuple[str, ...] = ()
    """Dimensions without a score. Judged ones: optional ones without an evaluator, ones that lack
    their sources, and all behind a shut gate. Checked ones: those whose checks had nothing to
    check, such as Python, or nothing to check by, such as sources."""
    unjudged_reasons: Annotated[Mapping[str, str], _IF_ANY] = field(default_factory=dict)
    """Checked dimension without a score → why; empty in older journals."""
    missing: tuple[str, ...] = ()
    """The checked dimensions in `unjudged` that are not optional; any of them fails the draft."""
    judges: Judges | None = None
    """None if code alone decided."""

    @property
    def vector(self) -> dict[str, float]:
        """Dimension → its score, on its own scale."""
        return {score.name: score.score for score in self.scores}

    @property
    def evaluator(self) -> str | None:
        """Tags of the evaluators, for people; None if code alone decided."""
        return ", ".join(self.judges.evaluators) if self.judges else None

    @property
    def compressed(self) -> bool:
        """Whether the evaluator saw a shortened draft, or shortened sources."""
        judges = self.judges
        return judges is not None and bool(judges.shortened or judges.sources_shortened)

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sorts drafts, greater is better: passing first, then no shut gate, then the composite."""
        # With a shut gate, the composite covers other dimensions.
        return self.passed, not self.gates, self.composite


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The scores of a draft by the checks alone."""

    rank: tuple[bool, bool, float] = (False, True, 0.0)
    """As a verdict's, by the checked dimensions and their mean. Without checked dimensions, all
    drafts have the same rank."""
    short: tuple[DimensionScore, ...] = ()
    """The scores below the best."""

    @property
    def mean(self) -> float:
        """The weighted mean of the checked dimensions, not rounded."""
        return self.rank[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A verdict, and how it was reached."""

    verdict: Verdict
    passed: bool | None
    """None if only the checks were made, and a judge would have to decide."""
    evaluator: str
    """Tags of the endpoints that judge, for people; empty if code alone scores."""
    samples: int | None
    """How often the draft was judged; None if that was not fixed."""


def reach_verdict(
    rubric: Rubric,
    scores: Iterable[DimensionScore],
    *,
    reasons: Mapping[str, str] | None = None,
    judges: Judges | None = None,
) -> Verdict:
    """The verdict on a draft with these scores; dimensions without one are unjudged.

    `reasons` are checked dimension without a score → why it has none.

    Raises:
        EvaluationFailed: No dimension has a score.
    """
    reasons = reasons or {}
    by_name: dict[str, DimensionScore] = {}
    for score in scores:
        has_own_scale = rubric.scale_of(score.name) is not rubric.scale
        shared = rubric.shared(score.name, score.score) if has_own_scale else None
        by_name[score.name] = replace(score, shared=shared)
    unjudged = tuple(d.name for d in rubric.dimensions if d.name not in by_name)
    if not by_name:
        whys = [f"{name}: {why}" for name, why in reasons.items()]
        if judged := [name for name in unjudged if name not in reasons]:
            whys.append(f"there are no sources, or no evaluator, to judge {', '.join(judged)} by")
        raise EvaluationFailed(
            f"no dimension of rubric '{rubric.id}' could be judged: {'; '.join(whys)}"
        )
    counted = [d for d in rubric.dimensions if d.name in by_name]
    composite = _composite(rubric, by_name.values())
    failed = [d.name for d in counted if d.floor is not None and by_name[d.name].score < d.floor]
    # Words of the loop fail a draft as a floor does, whatever its composite.
    echo = [ECHO] if ECHO in by_name else []
    gates = shut_gates(rubric, by_name.values())
    # Without the score of a required check, the composite is not of the whole rubric.
    missing = tuple(d.name for d in rubric.checked if d.name in unjudged and not d.optional)
    passed = composite >= rubric.pass_at and not failed and not echo
    if judges is not None and judges.combine == "majority" and judges.pass_share is not None:
        # Each judgement that passes the draft has looked at the floors for itself.
        passed = judges.pass_share > 0.5
    return Verdict(
        rubric=rubric.id,
        rubric_sha256=rubric.sha256,
        scores=tuple(by_name[name] for name in (*(d.name for d in counted), *echo)),
        composite=composite,
        passed=passed and not gates and not missing,
        below_floor=(*failed, *echo),
        gates=gates,
        unjudged=unjudged,
        unjudged_reasons=reasons,
        missing=missing,
        judges=judges,
    )


def _composite(rubric: Rubric, scores: Collection[DimensionScore]) -> float:
    """The weighted mean, rounded to as few digits as decide like all of them."""
    # In floats, a mean of 8 may come out just below 8.
    mean = float(f"{weighted_mean(rubric, scores):.12g}")
    best = max(score.points for score in scores)
    step = rubric.scale.composite_step
    # In finer steps until rounding lifts it over no threshold: 7.95 does not pass as 8.
    while step > 1e-9:
        composite = half_up(mean, step)
        if (composite >= rubric.pass_at) == (mean >= rubric.pass_at) and composite <= best:
            return composite
        step = float(f"{step / 10:g}")
    return mean


def weighted_mean(rubric: Rubric, scores: Iterable[DimensionScore]) -> float:
    """The composite before it is rounded; at least one score is needed."""
    weights = {d.name: d.weight for d in rubric.dimensions}
    weighted = [(rubric.shared(s.name, s.score), weights.get(s.name, 1)) for s in scores]
    return sum(score * weight for score, weight in weighted) / sum(w for _, w in weighted)


def shut_gates(rubric: Rubric, scores: Iterable[DimensionScore]) -> tuple[str, ...]:
    """The gates that stop a draft with these scores."""
    by_name = {score.name: score.score for score in scores}
    gates = [
        d.name
        for d in rubric.dimensions
        if d.gate and d.floor is not None and by_name.get(d.name, d.floor) < d.floor
    ]
    return (*gates, *([ECHO] if ECHO in by_name else []))


def half_up(value: float, step: float, *, start: float = 0.0) -> float:
    """The nearest number in whole steps from `start`, halves going up."""
    # 8.25 in steps of 0.1 is 8.3; Python's `round` says 8.2.
    exact_step, exact_start = Decimal(str(step)), Decimal(str(start))
    # Twelve digits shed the noise of float arithmetic, so that a true half is seen as one.
    steps = (Decimal(f"{value:.12g}") - exact_start) / exact_step
    # ROUND_HALF_UP would take the halves below zero down.
    whole = (steps + Decimal("0.5")).to_integral_value(ROUND_FLOOR)
    return float(exact_start + whole * exact_step)
