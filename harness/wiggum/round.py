"""One turn of the loop: a draft and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.rubric import Verdict

StopReason = Literal["passed", "max_rounds", "cycling", "evaluator_error", "producer_error"]
"""Why a loop ended.

`passed`: the best draft meets the rubric. `max_rounds`: it does not, and no round is left.
`cycling`: a revision scored exactly as the round before, or as the draft it was made from,
dimension by dimension.
`evaluator_error`: no valid verdict could be had. `producer_error`: no revision could be had.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An evaluated draft; a draft that nobody evaluated is never a round."""

    number: int
    """Counted from 1, the first draft."""
    draft: str
    """The text that was evaluated."""
    verdict: Verdict
    """What the evaluation found."""


def best_round(rounds: Sequence[Round]) -> Round:
    """The round with the highest composite.

    One that passed goes before one that did not, and the earlier of equals before the later.

    Raises:
        ValueError: There are no rounds.
    """
    return max(rounds, key=lambda r: (r.verdict.passed, r.verdict.composite, -r.number))
