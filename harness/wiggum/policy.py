"""What the loop does next, decided from the rounds so far and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import InvalidInput
from harness.rubric import DimensionScore
from harness.wiggum.round import Round, StopReason, best_round


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """When to give up."""

    max_rounds: int = 3
    """Evaluations in all, so one revision fewer; `InvalidInput` below 1. A revision is only begun
    if a round is left to evaluate it in."""
    focus_below: float = 7.0
    """Dimensions under this score are revised."""

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise InvalidInput(f"max_rounds is {self.max_rounds}; at least one round is needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the loop."""

    reason: StopReason
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revise:
    """Make another draft."""

    base: Round
    """Which draft to start from: the best, which need not be the last."""
    focus: tuple[DimensionScore, ...]
    """What failed, worst first; never empty."""


def decide(rounds: Sequence[Round], limits: LoopLimits) -> Stop | Revise:
    """The next step after the last round's verdict.

    Args:
        rounds: All so far, at least one.
        limits: When to give up.
    """
    last, best = rounds[-1], best_round(rounds)
    if last.verdict.passed:
        return Stop(reason="passed")
    if len(rounds) >= 2:
        # The round before, and the one that this was made from, which need not be the same.
        earlier = rounds[-2], best_round(rounds[:-1])
        if any(last.verdict.vector == one.verdict.vector for one in earlier):
            return Stop(reason="cycling")
    if len(rounds) >= limits.max_rounds:
        return Stop(reason="max_rounds")
    return Revise(base=best, focus=focus_of(best, limits.focus_below))


def focus_of(base: Round, below: float) -> tuple[DimensionScore, ...]:
    """The dimensions to revise for: those under the line or their floor, else the two lowest.

    A draft can fail with every dimension above the line, because the threshold is higher. Of the
    two lowest, one that nothing is said against is left out.
    """
    verdict = base.verdict
    worst_first = sorted(verdict.scores, key=lambda s: s.score)
    failed = tuple(s for s in worst_first if s.score < below or s.name in verdict.below_floor)
    lowest = tuple(worst_first[:2])
    return failed or tuple(s for s in lowest if s.reason) or lowest
