"""One turn of the loop: a draft and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.rubric import Verdict
from harness.wiggum.spent import NOTHING, Spent

StopReason = Literal[
    "passed",
    "max_rounds",
    "plateau",
    "cycle",
    "regression",
    "budget",
    "abstained",
    "producer_empty",
    "producer_failed",
    "evaluator_failed",
    "cancelled",
]
"""Why a loop ended.

`passed`: the best draft meets the rubric. `max_rounds`: it does not, and no round is left.
`plateau`: the last revisions gained nothing beyond the noise. `regression`: the last revisions all
lost more than the noise. `cycle`: a revision is an earlier draft again, or scored exactly as the
round before or the draft it was made from, dimension by dimension. `budget`: what is left of the
tokens, the cost or the time does not suffice for another revision and its evaluation. `abstained`:
no score could be read from what the evaluator said. `producer_empty`: a revision without text.
`producer_failed`, `evaluator_failed`: no revision, or no verdict, could be had. `cancelled`: from
outside.
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
    cut: bool = False
    """Whether the reply that it is was cut. Such a draft does not pass, whatever its score."""
    base_round: int | None = None
    """The round whose draft it was made from; None for the first draft."""
    changed_chars: int = 0
    """How much of that is different: see `changed_chars`."""
    drafting: Spent = NOTHING
    """What the draft took; the first one nothing, unless it was asked for by the loop's meter."""
    judging: Spent = NOTHING
    """What its evaluation took."""

    @property
    def spent(self) -> Spent:
        """What the round took in all."""
        return self.drafting + self.judging


def best_round(rounds: Sequence[Round]) -> Round:
    """The round whose verdict has the greatest rank; the earlier of equals.

    Raises:
        ValueError: There are no rounds.
    """
    return max(rounds, key=lambda r: (r.verdict.rank, -r.number))


def changed_chars(before: str, after: str) -> int:
    """The characters of all lines that one of two texts has and the other has not, or less often.

    By lines, as `diff` counts: a paragraph on one line with one word changed counts whole, twice.
    Unlike there, a line that only moved counts for nothing.
    """
    # Not by difflib: 60,000 characters of short lines that repeat take it 17 s.
    old = Counter(before.splitlines(keepends=True))
    new = Counter(after.splitlines(keepends=True))
    return sum(len(line) * times for line, times in ((old - new) + (new - old)).items())
