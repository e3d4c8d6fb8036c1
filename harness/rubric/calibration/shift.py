"""Measures how far two judgings of the same drafts differ, without labels.

They may be by two evaluators, such as a model at two quantizations, or by one evaluator at two
times. Only labels tell which one is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.rubric.calibration.agreement import Estimate, Resamples, estimate
from harness.rubric.load import at_any_threshold
from harness.rubric.rubric import Rubric
from harness.rubric.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """The scores of one dimension, or the composites, in both judgings."""

    drafts: int
    """Drafts with both scores."""
    means: tuple[float, float]
    deviations: tuple[float, float]
    """Standard deviations over the drafts; 0 where a judge gives all drafts the same."""
    offset: Estimate
    """The mean of second minus first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SameRate:
    """A threshold for the second judging, at which as many drafts pass as in the first."""

    threshold: Estimate
    """The one nearest to the rubric's own `pass_at`, or if none keeps the rate, one that comes
    closest; with its bootstrap interval."""
    passed: int
    """In the second judging, at this threshold."""
    flipped: int
    """Drafts that are still decided otherwise than in the first judging."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """What the second judging changes."""

    drafts: int
    groups: int
    moved: Mapping[str, Moved]
    """By judged dimension, and of `composite`."""
    passed: tuple[int, int]
    """At the rubric's own threshold."""
    flipped: tuple[str, ...]
    """The drafts that pass in one judging alone, those whose composites lie farthest apart
    first."""
    same_rate: SameRate


def shift(
    first: Mapping[str, Verdict],
    second: Mapping[str, Verdict],
    rubric: Rubric,
    *,
    groups: Mapping[str, str],
    confidence: float,
    generator: np.random.Generator,
) -> Shift:
    """What the second judging changes for the drafts that are in both; at least one.

    `groups` has what a draft shares with others, such as a source; one without is independent.
    """
    names = [name for name in first if name in second]
    pairs = [(first[name], second[name]) for name in names]
    resamples = Resamples([groups.get(name) or f"draft {name}" for name in names], generator)
    passed = np.array([[one.passed for one in pair] for pair in pairs]).T
    composites = np.array([[one.composite for one in pair] for pair in pairs]).T

    # 1. Scores, of the drafts that have both.
    moved = {}
    for dimension in rubric.judged:
        each = [[one.vector.get(dimension.name, np.nan) for one in pair] for pair in pairs]
        scores = np.array(each).T
        if not np.isnan(scores.sum(axis=0)).all():
            moved[dimension.name] = _moved(scores, resamples, confidence)
    moved["composite"] = _moved(composites, resamples, confidence)

    # 2. Decisions.
    apart = np.abs(composites[1] - composites[0])
    flipped = sorted(np.flatnonzero(passed[0] != passed[1]), key=lambda place: -apart[place])
    stopped = [bool(one.below_floor or one.gates or one.missing) for _, one in pairs]
    return Shift(
        drafts=len(names),
        groups=len(set(resamples.codes)),
        moved=moved,
        passed=(int(passed[0].sum()), int(passed[1].sum())),
        flipped=tuple(names[place] for place in flipped),
        same_rate=_same_rate(
            passed[0],
            np.where(stopped, -np.inf, composites[1]),
            rubric,
            resamples=resamples,
            confidence=confidence,
        ),
    )


def _moved(scores: NDArray[np.float64], resamples: Resamples, confidence: float) -> Moved:
    """`scores` is `(2, drafts)`, NaN where missing."""
    both = ~np.isnan(scores.sum(axis=0))
    apart = np.where(both, scores[1] - scores[0], 0)
    sums = resamples.sums(np.column_stack([both, apart]).astype(float))
    with np.errstate(invalid="ignore"):
        offsets = sums[:, 1] / sums[:, 0]
    first, second = scores[:, both]
    return Moved(
        drafts=int(both.sum()),
        means=(float(first.mean()), float(second.mean())),
        deviations=(_deviation(first), _deviation(second)),
        offset=estimate(offsets, confidence=confidence),
    )


def _deviation(scores: NDArray[np.float64]) -> float:
    # Computed of equal numbers, it would not always be 0.
    return float(scores.std()) if np.ptp(scores) else 0.0


def _same_rate(
    passed: NDArray[np.bool_],
    reached: NDArray[np.float64],
    rubric: Rubric,
    *,
    resamples: Resamples,
    confidence: float,
) -> SameRate:
    """`reached` has the second composites, of drafts that no threshold lets through -inf."""
    # Of thresholds that do equally well, the first here is taken.
    grid = sorted(at_any_threshold(rubric).values(), key=lambda at: abs(at - rubric.pass_at))
    passes = reached[:, None] >= np.array(grid)
    sums = resamples.sums(np.column_stack([passed, passes]).astype(float))
    places = np.abs(sums[:, 1:] - sums[:, :1]).argmin(axis=1)
    return SameRate(
        threshold=estimate(np.array(grid)[places], confidence=confidence),
        passed=int(passes[:, places[0]].sum()),
        flipped=int((passes[:, places[0]] != passed).sum()),
    )
