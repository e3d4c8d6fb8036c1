"""Verdicts: what an evaluation found, dimension by dimension, and what code makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Literal

from harness.rubric.finding import Finding
from harness.rubric.rubric import Rubric


@dataclass(frozen=True, slots=True, kw_only=True)
class DimensionScore:
    """One dimension's part of a verdict."""

    name: str
    """The dimension."""
    score: float
    """On the rubric's scale, a multiple of its step."""
    source: Literal["checked", "judged"]
    """By code, or by the evaluator model."""
    reason: str
    """Why not more; for a judged dimension, in the evaluator's words."""
    findings: tuple[Finding, ...] = ()
    """What to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A whole evaluation of one draft."""

    rubric: str
    """The rubric's id."""
    scores: tuple[DimensionScore, ...]
    """In the rubric's order."""
    composite: float
    """Weighted mean, rounded half up to 0.1."""
    passed: bool
    """Composite and every floor reached: decided by code, never by the evaluator."""
    below_floor: tuple[str, ...] = ()
    """Dimensions under their floor: with any, the draft fails whatever its composite."""
    unjudged: tuple[str, ...] = ()
    """Optional dimensions that no evaluator was there to judge; they do not count."""
    evaluator: str | None = None
    """Tag of the evaluator's endpoint; None when code alone decided."""
    compressed: bool = False
    """Whether the evaluator saw a shortened draft."""

    @property
    def vector(self) -> dict[str, float]:
        """The scores by dimension."""
        return {score.name: score.score for score in self.scores}


def reach_verdict(
    rubric: Rubric,
    scores: Iterable[DimensionScore],
    *,
    unjudged: tuple[str, ...] = (),
    evaluator: str | None = None,
    compressed: bool = False,
) -> Verdict:
    """The verdict that validated scores amount to.

    Args:
        rubric: Weights, floors and threshold.
        scores: One for each dimension that is not in `unjudged`.
        unjudged: Dimensions left out.
        evaluator: Who judged.
        compressed: Whether the evaluator saw a shortened draft.
    """
    by_name = {score.name: score for score in scores}
    counted = [d for d in rubric.dimensions if d.name in by_name]
    weight = sum(d.weight for d in counted)
    composite = half_up(sum(by_name[d.name].score * d.weight for d in counted) / weight, 0.1)
    below_floor = tuple(
        d.name for d in counted if d.floor is not None and by_name[d.name].score < d.floor
    )
    return Verdict(
        rubric=rubric.id,
        scores=tuple(by_name[d.name] for d in counted),
        composite=composite,
        passed=composite >= rubric.pass_at and not below_floor,
        below_floor=below_floor,
        unjudged=unjudged,
        evaluator=evaluator,
        compressed=compressed,
    )


def half_up(value: float, step: float, *, start: float = 0.0) -> float:
    """The nearest number in whole steps from `start`, halves going up.

    8.25 in steps of 0.1 is 8.3; Python's `round` says 8.2.
    """
    exact_step, exact_start = Decimal(str(step)), Decimal(str(start))
    # Twelve digits shed the noise of float arithmetic, so that a true half is seen as one.
    steps = (Decimal(f"{value:.12g}") - exact_start) / exact_step
    # ROUND_HALF_UP would take the halves below zero down.
    whole = (steps + Decimal("0.5")).to_integral_value(ROUND_FLOOR)
    return float(exact_start + whole * exact_step)
