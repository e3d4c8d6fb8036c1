"""The scores of many outputs by a rubric, summed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from harness.rubric.calibration.agreement import Resamples
from harness.rubric.rubric import Rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScores:
    """The scores of a batch's outputs by a rubric."""

    rubric: str
    scored: int
    passed: int
    passed_within: tuple[float, float]
    """The share that passes, with 95 % confidence (Wilson 1927)."""
    mean: float
    """Of the composites."""
    mean_within: tuple[float, float]
    """The same of all such rows, with 95 % confidence, by a bootstrap over the rows."""
    quantiles: tuple[float, ...]
    """Of the composites: the lowest, the quartiles, the highest."""
    dimensions: Mapping[str, float]
    """The mean of each."""


def batch_scores(rubric: Rubric, scores: Sequence[Mapping[str, Any]]) -> BatchScores | None:
    """The summary of scores that have `composite`, `passed` and `scores`; None without any."""
    if not scores:
        return None
    composites = np.array([row["composite"] for row in scores], dtype=float)
    passed = sum(row["passed"] for row in scores)
    # Seeded: the same scores have the same interval, whoever asks.
    resamples = Resamples([str(n) for n in range(len(scores))], np.random.default_rng(0))
    means = resamples.sums(composites[:, None])[:, 0] / len(scores)
    mean = resamples.estimate(means, confidence=0.95)
    by_name = {
        dimension.name: [o["scores"][n] for o in scores if (n := dimension.name) in o["scores"]]
        for dimension in rubric.dimensions
    }
    return BatchScores(
        rubric=rubric.id,
        scored=len(scores),
        passed=passed,
        passed_within=_wilson(passed, len(scores)),
        mean=mean.value,
        mean_within=(mean.low, mean.high),
        quantiles=tuple(map(float, np.quantile(composites, [0, 0.25, 0.5, 0.75, 1]))),
        dimensions={name: float(np.mean(values)) for name, values in by_name.items() if values},
    )


def _wilson(count: int, of: int) -> tuple[float, float]:
    """The interval of a share with 95 % confidence."""
    z = NormalDist().inv_cdf(0.975)
    share, weight = count / of, z * z / of
    middle = (share + weight / 2) / (1 + weight)
    half = z / (1 + weight) * (share * (1 - share) / of + weight / of / 4) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)
