"""How far an evaluator agrees with people: by dimension, and by repeated samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Self

import numpy as np
from numpy.typing import NDArray

from harness.rubric.calibration.bounds import library

Values = NDArray[np.float64]

_DRAWS = 1_000
# A resample takes 8 bytes a group: a thousand of 100,000 groups would be 800 MB.
_MANY_GROUPS = 10_000
_DRAWS_OF_MANY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A statistic with its bootstrap interval; NaN where it is undefined."""

    value: float
    low: float
    high: float

    @property
    def higher(self) -> str:
        """Which side is higher, if this estimates second minus first; or `cannot tell`."""
        if self.low > 0:
            return "second"
        return "first" if self.high < 0 else "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """An evaluator's scores against the mean of people's, on one dimension."""

    name: str
    drafts: int
    estimates: Mapping[str, Estimate]
    """`pearson`, `spearman`; `kappa`, Cohen's with quadratic weights; `offset`, the mean of the
    evaluator minus people."""
    is_frozen: bool
    """Whether the evaluator gave every draft the same score."""
    length_bias: float
    """Spearman's rho of evaluator minus people with the draft's length; NaN if unknown."""
    ceiling: float
    """Pearson's r of one person with the mean of the others, averaged; NaN if no two people scored
    the same drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """How far people agree on which drafts they accept, where several of them decided.

    `ties` are accepted by half of them; `kappa` is Fleiss' (1971), NaN if all votes are alike.
    """

    several: int
    disputed: int
    ties: int
    kappa: float

    @classmethod
    def of(cls, drafts: Iterable[Mapping[str, bool]]) -> Self:
        """The votes on drafts, each by person."""
        votes = np.array([(sum(d.values()), len(d)) for d in drafts if len(d) > 1]).reshape(-1, 2)
        yes, n = votes.T
        share = yes.sum() / max(n.sum(), 1)
        # A pair of people on one draft, and of any two votes.
        apart, by_chance = 2 * yes * (n - yes) / (n - 1) / n, 2 * share * (1 - share)
        return cls(
            several=len(n),
            disputed=int(((yes > 0) & (yes < n)).sum()),
            ties=int((2 * yes == n).sum()),
            kappa=float(1 - apart.mean() / by_chance) if by_chance else math.nan,
        )


class Resamples:
    """Bootstrap resamples of groups of drafts; an independent draft is a group by itself."""

    def __init__(self, groups: Sequence[str], *, seed: int = 0) -> None:
        # Drafts of one source are not independent: resampled one by one, they give intervals that
        # are too narrow.
        _, self.codes = np.unique(np.asarray(groups), return_inverse=True)
        count = int(self.codes.max(initial=-1)) + 1
        draws = _DRAWS if count <= _MANY_GROUPS else _DRAWS_OF_MANY
        # Seeded: the same scores have the same intervals each time.
        generator = np.random.default_rng(seed)
        # The groups of each draw get numbers of their own, so that one count serves all draws.
        picked = generator.integers(count, size=(draws, count)) + np.arange(draws)[:, None] * count
        times = np.bincount(picked.ravel(), minlength=draws * count).reshape(draws, count)
        # The first row has each group once: its statistic is the estimate.
        self._times = np.vstack([np.ones(count), times])

    def sums(self, features: Values) -> Values:
        """`(1 + draws, k)`: sums of `(drafts, k)` over these drafts, then over each resample."""
        # Every statistic with an interval is made of such sums: a resample only weighs the groups.
        by_group = np.zeros((self._times.shape[1], features.shape[1]))
        np.add.at(by_group, self.codes, features)
        return np.asarray(self._times @ by_group)

    def estimate(self, values: Values, *, confidence: float) -> Estimate:
        """The first value with an interval by percentiles of the others; NaN up to two groups."""
        finite = values[1:][np.isfinite(values[1:])]
        free = self._times.shape[1] - 2  # degrees of freedom
        low = high = np.nan
        # Percentiles of a bootstrap are as narrow as if the variance were known, and that of n
        # groups is too small by (n - 1) / n. So they are taken farther out (Hesterberg 2015, "What
        # teachers should know about the bootstrap"), with n - 2 in place of n - 1: two things are
        # compared.
        if len(finite) and free > 0:
            z = NormalDist().inv_cdf((1 - confidence) / 2)
            # Student's t, by the first terms of Cornish and Fisher.
            t = z + (z**3 + z) / (4 * free) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * free**2)
            tail = NormalDist().cdf(t * math.sqrt((free + 2) / free))
            low, high = np.quantile(finite, [tail, 1 - tail])
        return Estimate(value=float(values[0]), low=float(low), high=float(high))


def agreement(
    name: str,
    *,
    evaluator: Values,
    people: Values,
    resamples: Resamples,
    lengths: Values,
    confidence: float,
) -> Agreement:
    """How an evaluator agrees with people on one dimension.

    `evaluator` and `lengths` are `(drafts,)`, `people` are `(drafts, raters)`, NaN where missing.
    """
    rank = library("scipy.stats").rankdata
    mean = mean_of(people)
    both = ~np.isnan(evaluator) & ~np.isnan(mean)
    x = mean[both]
    y = evaluator[both]
    lengths = lengths[both]
    statistics = linear(resamples, both, x, y)
    # A resample keeps the ranks that its drafts have among all.
    statistics["spearman"] = linear(resamples, both, rank(x), rank(y))["pearson"]
    return Agreement(
        name=name,
        drafts=len(x),
        estimates={n: resamples.estimate(v, confidence=confidence) for n, v in statistics.items()},
        is_frozen=len(y) > 1 and bool(np.all(y == y[0])),
        length_bias=np.nan if np.isnan(lengths).any() else _pearson(rank(y - x), rank(lengths)),
        ceiling=_ceiling(people[both]),
    )


def mean_of(people: Values) -> Values:
    """`(drafts,)`: the mean over raters; NaN for an unscored draft."""
    scored = ~np.isnan(people)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(scored, people, 0).sum(axis=1) / scored.sum(axis=1))


def linear(
    resamples: Resamples, both: NDArray[np.bool_], x: Values, y: Values
) -> dict[str, Values]:
    """`pearson`, `kappa` and `offset`, each `(1 + draws,)`; see `Agreement`.

    `x` are people's scores, `y` an evaluator's, of the drafts that `both` marks among all drafts of
    `resamples`.
    """
    # Less their mean, since the squares of large numbers lose digits.
    middle = np.mean([x, y]) if len(x) else 0
    x = x - middle
    y = y - middle
    features = np.zeros((len(both), 6))
    features[both] = np.column_stack([np.ones_like(x), x, y, x * x, y * y, x * y])
    sums = resamples.sums(features)
    n = sums[:, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        mx, my, xx, yy, xy = (sums[:, 1:] / n[:, None]).T
        vx, vy, cov, apart = xx - mx**2, yy - my**2, xy - mx * my, (mx - my) ** 2
        # If all scores are equal, rounding leaves a variance near 0.
        vx, vy = (np.where(v < 1e-12, 0, v) for v in (vx, vy))
        squares = vx + vy - 2 * cov + apart
        return {
            "pearson": np.where(vx * vy > 0, cov / np.sqrt(vx * vy), np.nan),
            # The mean square of the differences against what two scorers with these scores would
            # have by chance: with quadratic weights, kappa needs no table.
            "kappa": 1 - squares / (vx + vy + apart),
            "offset": my - mx,
        }


def _pearson(x: Values, y: Values) -> float:
    is_flat = len(x) < 2 or np.all(x == x[0]) or np.all(y == y[0])
    return np.nan if is_flat else float(np.corrcoef(x, y)[0, 1])


def _ceiling(people: Values) -> float:
    correlations = []
    for rater in range(people.shape[1]):
        mean_of_others = mean_of(np.delete(people, rater, axis=1))
        both = ~np.isnan(people[:, rater]) & ~np.isnan(mean_of_others)
        correlations.append(_pearson(people[both, rater], mean_of_others[both]))
    return float(np.mean([r for r in correlations if not np.isnan(r)] or [np.nan]))


def auc(scores: Values, accepted: NDArray[np.bool_], *, resamples: Resamples) -> Values:
    """`(1 + draws,)`: the area under the ROC curve, of the drafts with scores and of each resample.

    How often an accepted draft outscores a rejected one; of equal scores, each does by half.
    """
    counted = np.flatnonzero(~np.isnan(scores))
    values, ranks = np.unique(scores[counted], return_inverse=True)
    features = np.zeros((len(scores), 2 * len(values)))
    # A column for each score of rejected drafts, then one for each score of accepted drafts.
    features[counted, ranks + len(values) * accepted[counted]] = 1
    bad, good = np.split(resamples.sums(features), 2, axis=1)
    # How many rejected drafts score below each score, equal ones as a half.
    below = np.cumsum(bad, axis=1) - bad / 2
    with np.errstate(invalid="ignore"):
        return np.asarray((good * below).sum(axis=1) / (good.sum(axis=1) * bad.sum(axis=1)))
