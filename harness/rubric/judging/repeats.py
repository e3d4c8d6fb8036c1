"""Whether one judgement is enough: near the threshold, chance decides, and several know better."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from harness.rubric.rubric import Rubric
from harness.rubric.verdict import Verdict

_DEVIATIONS = 2
"""A mean lies within so many standard errors of the true one in about 95 of 100 cases. This saves
calls; it is no test."""


def is_undecided(
    verdicts: Sequence[Verdict], rubric: Rubric, *, noise: float | None = None
) -> bool:
    """Whether another judgement could turn the outcome.

    Args:
        verdicts: What each judgement by itself comes to; at least one.
        rubric: Its threshold and floors.
        noise: Standard deviation of one judgement's composite, where it was measured.
    """
    composites = [verdict.composite for verdict in verdicts]
    near = rubric.repeat_within if noise is None else _DEVIATIONS * noise
    if not _straddles(composites, rubric.pass_at, near=near, deviation=noise):
        return False
    return not any(
        dimension.floor is not None and _is_clearly_below(dimension.floor, scores, near=near)
        for dimension in rubric.dimensions
        if (scores := [v.vector[dimension.name] for v in verdicts if dimension.name in v.vector])
    )


def _straddles(
    values: Sequence[float], threshold: float, *, near: float, deviation: float | None
) -> bool:
    """Whether the interval around their mean has the threshold in it; never if it has no width."""
    width = _half_width(values, near=near, deviation=deviation)
    return width > 0 and round(abs(statistics.fmean(values) - threshold) - width, 9) <= 0


def _is_clearly_below(floor: float, scores: Sequence[float], *, near: float) -> bool:
    width = _half_width(scores, near=near, deviation=None)
    return round(statistics.fmean(scores) + width - floor, 9) < 0


def _half_width(values: Sequence[float], *, near: float, deviation: float | None) -> float:
    if len(values) == 1:
        return near
    one = statistics.stdev(values) if deviation is None else deviation
    return _DEVIATIONS * one / math.sqrt(len(values))
