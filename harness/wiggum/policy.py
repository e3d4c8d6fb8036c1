"""What the loop does next, decided from the rounds so far and from nothing else."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import InvalidInput
from harness.inference.limits import NOTHING, LimitName, Spent
from harness.rubric import DimensionScore, Verdict
from harness.wiggum.meter import LoopLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPolicy:
    """What a loop revises, and when it sees that there is no use in going on.

    Raises:
        InvalidInput: A number is out of its range.
    """

    focus_below: float = 7.0
    """Dimensions under this score are revised."""
    noise: float = 0.0
    """How far two composites of one draft may lie apart, in points: a smaller gain is none."""
    patience: int = 2
    """How many revisions in a row may gain nothing."""
    revise_from: Literal["best", "last"] = "best"
    """Which draft the next is made from."""
    rescore: Literal["all", "changed"] = "all"
    """Whether a revision is judged anew in every dimension, or in those that it was made for while
    the others keep their scores. What would pass is judged anew in all before it does."""

    def __post_init__(self) -> None:
        if not self.noise >= 0:
            raise InvalidInput(
                f"noise is {self.noise:g}; it cannot be less than 0", code="loop.noise-negative"
            )
        if self.patience < 1:
            raise InvalidInput(
                f"patience is {self.patience}; it must be 1 or more",
                code="loop.patience-not-positive",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the loop."""

    reason: StopReason
    """Why."""
    detail: str = ""
    """What there is to say about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revise:
    """Make another draft."""

    base: Round
    """Which draft to start from."""
    focus: tuple[DimensionScore, ...]
    """What failed, worst first; never empty."""


def decide(
    rounds: Sequence[Round],
    *,
    limits: LoopLimits,
    policy: LoopPolicy,
    spent: Spent,
    most_tokens: Callable[[Revise], int],
) -> Stop | Revise:
    """The next step after the last round's verdict.

    That nothing is to be gained goes before that nothing is left: it says more.

    Args:
        rounds: All so far, at least one.
        limits: What the loop may take.
        policy: What it is after.
        spent: What it took so far.
        most_tokens: What a revision and its evaluation take at most.
    """
    if rounds[-1].verdict.passed:
        return Stop(reason="passed")
    if same := _same_scores(rounds):
        detail = f"round {rounds[-1].number} scored as round {same.number} in every dimension"
        return Stop(reason="cycle", detail=detail)
    gains = _last_gains(rounds, policy.patience)
    if gains and all(gain < -policy.noise for gain in gains):
        return Stop(reason="regression")
    if gains and all(gain <= policy.noise for gain in gains):
        chance = f"a gain of {policy.noise:.2g} points or less may be chance"
        return Stop(reason="plateau", detail=chance if policy.noise else "")
    if len(rounds) >= limits.max_rounds:
        return Stop(reason="max_rounds")
    step = next_revision(rounds, policy)
    # To know it, the revision's prompts are made: only where it matters.
    tokens = 0 if limits.max_tokens is None else most_tokens(step)
    lacking = _lacking(rounds, limits, spent, tokens)
    return Stop(reason="budget", detail=lacking) if lacking else step


def decide_on_draft(text: str, rounds: Sequence[Round]) -> Stop | None:
    """Whether a new draft ends the loop: one without text, or one that was evaluated before."""
    if not text.strip():
        return Stop(reason="producer_empty", detail="the revision has no text of its own")
    same = next((one for one in rounds if one.draft == text), None)
    if same is None:
        return None
    return Stop(reason="cycle", detail=f"the revision is the draft of round {same.number} again")


def next_revision(rounds: Sequence[Round], policy: LoopPolicy) -> Revise:
    """The revision to make after these rounds, if one is."""
    base = best_round(rounds) if policy.revise_from == "best" else rounds[-1]
    return Revise(base=base, focus=focus_of(base, policy.focus_below))


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


def greatest(stages: Sequence[Spent]) -> tuple[float, float]:
    """The most that one of them cost, in dollars, and that one of them lasted, in seconds."""
    return max(one.cost_usd or 0.0 for one in stages), max(one.seconds for one in stages)


def _same_scores(rounds: Sequence[Round]) -> Round | None:
    """The round before the last, or its base, if it scored as the last in every dimension."""
    last = rounds[-1]
    before = (one for one in rounds[:-1] if one.number in (last.number - 1, last.base_round))
    return next((one for one in before if one.verdict.vector == last.verdict.vector), None)


def _last_gains(rounds: Sequence[Round], patience: int) -> list[float]:
    """What each of the last revisions gained over the best before them; none before there are."""
    if len(rounds) <= patience:
        return []
    best = best_round(rounds[:-patience]).verdict
    gains = []
    for one in rounds[-patience:]:
        *kind, composite = one.verdict.rank
        *best_kind, best_composite = best.rank
        # A composite that a gate cut short is of other dimensions.
        beyond = math.inf if kind > best_kind else -math.inf
        # Rounded, since in floats 8.3 - 8.0 is more than 0.3.
        gains.append(round(composite - best_composite, 6) if kind == best_kind else beyond)
    return gains


def _lacking(rounds: Sequence[Round], limits: LoopLimits, spent: Spent, tokens: int) -> str:
    """What there is too little of for another revision and its evaluation; empty if nothing.

    What they cost and how long they last is known only from those before.
    """
    draft_usd, draft_s = greatest([one.drafting for one in rounds])
    verdict_usd, verdict_s = greatest([one.judging for one in rounds])
    usd = spent.cost_usd or 0.0
    needs: tuple[tuple[LimitName, float | None, float, float, str], ...] = (
        ("tokens", limits.max_tokens, spent.tokens, tokens, "tokens"),
        ("cost", limits.max_cost_usd, usd, draft_usd + verdict_usd, "dollars"),
        ("time", limits.max_seconds, spent.seconds, draft_s + verdict_s, "seconds"),
    )
    for name, limit, gone, need, unit in needs:
        if limit is not None and gone + need > limit:
            return (
                f"a revision and its evaluation may take {need:.6g} {unit}, and of "
                f"{limits.said(name)} there are {max(limit - gone, 0):.6g} left"
            )
    return ""


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
