"""Compares how well two sets of scores of the same labeled drafts agree with people.

Drafts are resampled by groups, and each resample holds both sets: what makes a draft hard for both
does not widen the interval of their difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.errors import InvalidInput
from harness.rubric.calibration.agreement import (
    Estimate,
    Resamples,
    Values,
    auc,
    linear,
    mean_of,
)
from harness.rubric.calibration.bounds import Aim, AtThreshold, Steps, named_step, steps_of
from harness.rubric.calibration.calibration_files import Attempts
from harness.rubric.calibration.labels import COMPOSITE, HOLD, Labeled
from harness.rubric.calibration.tuning import (
    Scored,
    one_per_group,
    scored_drafts,
    seen_in,
    shared_aim,
)
from harness.rubric.rubric import Rubric

Pair = tuple[Scored, Scored]
Rubrics = tuple[Rubric, Rubric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A statistic of either side, and by how much the second is higher."""

    first: float
    second: float
    difference: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Which side agrees better with people, and which thresholds they may have."""

    drafts: int
    """With labels, and with scores of both."""
    groups: int
    agreement: Mapping[str, Mapping[str, Difference]]
    """By dimension that both have, and of `composite`: `pearson` and `kappa` with the mean of
    people, and `offset` from it; of `composite`, also `auc`: how often a draft that people accept
    outscores one that they reject."""
    own: tuple[AtThreshold, AtThreshold]
    """At either rubric's own `pass_at`."""
    named: tuple[AtThreshold | None, AtThreshold | None]
    """The lowest threshold of either that keeps the aim."""
    aim: Aim
    """Shared by both, and by earlier looks at these labels."""
    attempts: Attempts
    """Includes these two."""


def paired(
    first: Sequence[Labeled], second: Sequence[Labeled], rubrics: Rubrics, *, accept_at: float
) -> list[Pair]:
    """The labeled drafts of which both have scores.

    Those of `second` need no labels: what people decide goes by `first` and its rubric.

    Raises:
        InvalidInput: Labels or texts differ, or no draft has both scores.
    """
    others = {one.id: one for one in second}
    both = [(one, others[one.id]) for one in first if one.id in others]
    if differ := [a.id for a, b in both if not _may_be_one(a, b)]:
        raise InvalidInput(
            f"labels, groups or texts of {len(differ)} drafts differ between the two files, for "
            f"example of '{differ[0]}'; compare scores of the same drafts",
            code="compare.drafts-differ",
        )
    other = [a.model_copy(update={"scores": b.scores, "evaluator": b.evaluator}) for a, b in both]
    sides = [
        {one.labeled.id: one for one in scored_drafts(side, rubric, accept_at=accept_at)[0]}
        for side, rubric in zip(([a for a, _ in both], other), rubrics, strict=True)
    ]
    pairs = [(one, sides[1][name]) for name, one in sides[0].items() if name in sides[1]]
    if not pairs:
        raise InvalidInput(
            "no draft has labels and is scored in both files; drafts are matched by id",
            code="compare.no-pairs",
        )
    return [(a, replace(b, accept=a.accept)) for a, b in pairs]


def _may_be_one(one: Labeled, other: Labeled) -> bool:
    """Whether nothing that both say differs."""
    people = [(one.people[name], other.people[name]) for name in one.people.keys() & other.people]
    said = [(one.draft, other.draft), (one.group, other.group), (one.accept, other.accept)]
    return all(a == b for a, b in [*said, *people] if a and b)


def compare(
    pairs: Sequence[Pair],
    rubrics: Rubrics,
    aim: Aim,
    *,
    attempts: Attempts,
    generator: np.random.Generator,
) -> Comparison:
    """Which side agrees better with people; the arguments are as for `paired` and `tune`."""
    resamples = Resamples([one.group for one, _ in pairs], generator)

    def told(draws: Sequence[Values]) -> Difference:
        first, second = draws
        apart = resamples.estimate(second - first, confidence=aim.confidence)
        return Difference(first=float(first[0]), second=float(second[0]), difference=apart)

    # 1. Agreement, on the same drafts and resamples.
    agreement: dict[str, dict[str, Difference]] = {}
    for name, ab in _scores(pairs, rubrics).items():
        people = _people(pairs, COMPOSITE if name == "composite" else name)
        both = ~np.isnan(people + ab[0] + ab[1])
        if both.any():
            each = [linear(resamples, both, people[both], scores[both]) for scores in ab]
            kinds = ("pearson", "kappa", "offset")
            agreement[name] = {kind: told([one[kind] for one in each]) for kind in kinds}
    accepted = np.array([one.accept for one, _ in pairs])
    areas = [auc(scores, accepted, resamples=resamples) for scores in ab]  # of the composites
    agreement["composite"] = {**agreement.get("composite", {}), "auc": told(areas)}

    # 2. Thresholds: what may go wrong is shared by both, and by earlier looks.
    held = [pair for pair in pairs if pair[0].labeled.split == HOLD] or pairs
    sides = [one_per_group(pair[side] for pair in held) for side in (0, 1)]
    for rubric, drafts in zip(rubrics, sides, strict=True):
        attempts = attempts.after(rubric.pass_at, seen_in(drafts), drafts=len(drafts))
    aim = shared_aim(aim, attempts.on(seen_in(sides[0])))
    first, second = (
        steps_of(np.array([d.reached for d in side]), np.array([not d.accept for d in side]))
        for side in sides
    )
    return Comparison(
        drafts=len(pairs),
        groups=len(set(resamples.codes)),
        agreement=agreement,
        own=(first.at(rubrics[0].pass_at), second.at(rubrics[1].pass_at)),
        named=(_named(first, aim), _named(second, aim)),
        aim=aim,
        attempts=attempts,
    )


def _scores(pairs: Sequence[Pair], rubrics: Rubrics) -> dict[str, Values]:
    """By dimension that both have, then of the composite: `(2, drafts)`, NaN where missing."""
    others = {dimension.name for dimension in rubrics[1].dimensions}
    names = [one.name for one in rubrics[0].dimensions if one.name in others]
    found = {
        name: np.array([[one.scores.get(name, np.nan) for one in pair] for pair in pairs]).T
        for name in names
    }
    return {**found, "composite": np.array([[one.composite for one in pair] for pair in pairs]).T}


def _people(pairs: Sequence[Pair], name: str) -> Values:
    by_draft = [one.labeled.people.get(name, {}) for one, _ in pairs]
    raters = sorted({rater for by in by_draft for rater in by})
    rows = [[by.get(rater, np.nan) for rater in raters] for by in by_draft]
    return mean_of(np.array(rows, dtype=float).reshape(len(pairs), -1))


def _named(steps: Steps, aim: Aim) -> AtThreshold | None:
    place = int(named_step(steps, aim)) if len(steps.thresholds) else -1
    return steps.at(float(steps.thresholds[place])) if place >= 0 else None
