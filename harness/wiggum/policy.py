"""The policy of the loop: decides the next step from its rounds, its limits and its use so far.

Pure: no model, clock, tracer or file. `decide` names the next step, and the loop performs it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from harness.errors import InvalidInput
from harness.inference.limits import NOTHING, LimitName, Spent
from harness.inference.meter import Rest
from harness.rubric import DimensionScore, Verdict
from harness.wiggum.ratchet import Tried

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
"""Why a loop ended; `STOPPED_SINCE` says it in words. In a `cycle`, a draft is the same as an
earlier one, or scored in every dimension as the round before or as the draft that was revised."""

STOPPED_SINCE: Mapping[str, str] = {
    "passed": "the draft meets the rubric",
    "max_rounds": "no round was left, and the rubric is not met",
    "plateau": "the last revisions or candidates gained nothing beyond the evaluator's noise",
    "cycle": "a revision was an earlier draft again, or changed no score",
    "regression": "the last revisions only lost",
    "budget": "its tokens, calls, cost or time do not suffice for another round",
    "abstained": "no score could be read from what the evaluator said",
    "producer_empty": "a revision had no text",
    "producer_failed": "no revision could be had",
    "evaluator_failed": "no verdict could be had",
    "cancelled": "it was ended from outside",
}
"""Why a loop ended, as the end of a sentence."""

FINAL_TEXT: Collection[StopReason] = {"passed", "max_rounds", "plateau", "cycle", "regression"}
"""The reasons of loops whose text no further round would have changed."""

_PATIENCE = 2  # a loop stops after this many revisions in a row without a gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """An evaluated draft. A draft that was not evaluated is never a round."""

    number: int
    """Counted from 1, the first draft."""
    draft: str
    verdict: Verdict
    cut: bool = False
    """Whether the reply was cut. Such a draft does not pass, whatever its score."""
    base_round: int | None = None
    """The round whose draft was revised; None for the first draft."""
    changed_chars: int = 0
    """See the function of this name."""
    drafting: Spent = NOTHING
    """The cost of writing the draft; nothing if the caller gave it."""
    judging: Spent = NOTHING
    """The cost of its verdict."""
    tried: tuple[Tried, ...] = ()
    """The candidates that the draft was chosen from; empty if there was only one."""

    @property
    def spent(self) -> Spent:
        """The whole cost of the round."""
        return self.drafting + self.judging


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPolicy:
    """What a loop revises, and when revising further is useless; raises `InvalidInput`."""

    max_rounds: int = 3  # most evaluations, so one revision fewer
    focus_below: float = 7.0  # dimensions under this score are revised
    # The noise of a draft's composite, in points; a gain within it does not count.
    noise: float = 0.0
    revise_from: Literal["best", "last"] = "best"  # the round whose draft is revised

    def __post_init__(self) -> None:
        check_count("max_rounds", self.max_rounds)
        check_choice("revise_from", self.revise_from, Literal["best", "last"])


def check_count(name: str, value: object) -> None:
    """Raises `InvalidInput` for what is no whole number from 1 on."""
    if type(value) is not int or value < 1:  # True is an int too
        raise InvalidInput(
            f"{name} is {value!r:.80}; give a whole number, 1 or more",
            code="loop.number-not-positive",
        )


def check_choice(name: str, value: str, choices: Any) -> None:  # noqa: ANN401 - a Literal
    """Raises `InvalidInput` for a value that is none of the choices."""
    if value not in get_args(choices):
        raise InvalidInput(
            f"{name} is {value!r:.80}; it can be {' or '.join(get_args(choices))}",
            code="loop.choice-unknown",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """End the loop."""

    reason: StopReason
    detail: str = ""  # for people
    may_go_on: bool = False  # whether a failed call ended it that may succeed later


@dataclass(frozen=True, slots=True, kw_only=True)
class Revise:
    """Make another draft."""

    base: Round
    focus: tuple[DimensionScore, ...]  # what failed, worst first; never empty


def decide(
    rounds: Sequence[Round],
    *,
    policy: LoopPolicy,
    rest_of: Callable[[LimitName], Rest | None],
    most_tokens: Callable[[Revise], int],
) -> Stop | Revise:
    """The next step after the last round's verdict.

    `rest_of` returns what is left of a limit, `most_tokens` the most tokens that a revision and its
    evaluation can take.
    """
    # 1. Is there nothing to gain? Asked before the limits, since the reason says more.
    if rounds[-1].verdict.passed:
        return Stop(reason="passed")
    if twin := _round_with_same_scores(rounds):
        detail = f"round {rounds[-1].number} scored as round {twin.number} in every dimension"
        return Stop(reason="cycle", detail=detail)
    gains = _last_gains(rounds)
    if gains and all(gain < -policy.noise for gain in gains):
        return Stop(reason="regression")
    if gains and all(gain <= policy.noise for gain in gains):
        chance = f"a gain of {policy.noise:.2g} points or less may be chance"
        return Stop(reason="plateau", detail=chance if policy.noise else "")
    # 2. Is there nothing left to spend?
    if len(rounds) >= policy.max_rounds:
        return Stop(reason="max_rounds")
    base = best_round(rounds) if policy.revise_from == "best" else rounds[-1]
    step = Revise(base=base, focus=focus_of(base, policy.focus_below))
    lacking = _lacking(rounds, rest_of, lambda: most_tokens(step))
    return Stop(reason="budget", detail=lacking) if lacking else step


def decide_on_draft(
    text: str, rounds: Sequence[Round], *, tried: Sequence[Tried] = ()
) -> Stop | None:
    """Stops the loop at a revision without text, or one that was evaluated before."""
    if not text.strip() and any(fate.outcome == "no_gain" for fate in tried):
        detail = f"none of {len(tried)} candidates raised what the checks score"
        return Stop(reason="plateau", detail=detail)
    if not text.strip():
        return Stop(reason="producer_empty", detail="the revision has no text of its own")
    for round_ in rounds:
        if round_.draft == text:
            detail = f"the revision is the draft of round {round_.number} again"
            return Stop(reason="cycle", detail=detail)
    return None


def focus_of(base: Round, below: float) -> tuple[DimensionScore, ...]:
    """The dimensions to revise for: those below `below` or their floor, else the two lowest."""
    verdict = base.verdict
    # By points, which are on one scale; the scores of dimensions need not be.
    worst_first = sorted(verdict.scores, key=lambda s: s.points)
    failed = tuple(s for s in worst_first if s.points < below or s.name in verdict.below_floor)
    if failed:
        return failed
    # A draft can fail although no dimension is below the line: `pass_at` may be above it.
    lowest = tuple(worst_first[:2])
    return tuple(s for s in lowest if s.reason) or lowest


def best_round(rounds: Sequence[Round]) -> Round:
    """The round of at least one whose verdict has the greatest rank; the earlier of equals."""
    return max(rounds, key=lambda r: (r.verdict.rank, -r.number))


def changed_chars(before: str, after: str) -> int:
    """The characters of all lines that only one of two texts has, or has more often.

    By lines, as `diff` counts: a paragraph on one line with one word changed counts whole, twice.
    Unlike there, a line that only moved does not count.
    """
    # Not by difflib: 60,000 characters of short lines that repeat take it 17 s.
    old = Counter(before.splitlines(keepends=True))
    new = Counter(after.splitlines(keepends=True))
    return sum(len(line) * times for line, times in ((old - new) + (new - old)).items())


def greatest(stages: Sequence[Spent]) -> Spent:
    """The most calls, dollars and time of any stage; not tokens, which the texts tell better."""
    return Spent(
        calls=max(stage.calls for stage in stages),
        cost_usd=max(stage.cost_usd or 0.0 for stage in stages),
        time_ns=max(stage.time_ns for stage in stages),
    )


def _round_with_same_scores(rounds: Sequence[Round]) -> Round | None:
    """The round before the last, or its base, if it scored as the last in every dimension."""
    last = rounds[-1]
    for round_ in rounds[:-1]:
        is_compared = round_.number in (last.number - 1, last.base_round)
        if is_compared and round_.verdict.vector == last.verdict.vector:
            return round_
    return None


def _last_gains(rounds: Sequence[Round]) -> list[float]:
    """The gains of the last revisions over the best round before them; empty if too few."""
    if len(rounds) <= _PATIENCE:
        return []
    # In a rank, passing and gates come before the composite.
    *best_gates, best_composite = best_round(rounds[:-_PATIENCE]).verdict.rank
    gains = []
    for round_ in rounds[-_PATIENCE:]:
        *gates, composite = round_.verdict.rank
        if gates == best_gates:
            # Rounded, since in floats 8.3 - 8.0 is more than 0.3.
            gains.append(round(composite - best_composite, 6))
        else:
            # Other gates are shut, so the composites are of other dimensions.
            gains.append(math.inf if gates > best_gates else -math.inf)
    return gains


def _lacking(
    rounds: Sequence[Round], rest_of: Callable[[LimitName], Rest | None], tokens: Callable[[], int]
) -> str:
    """Which limit a revision as costly as those before would exceed, in words; empty if none."""
    drafting = greatest([round_.drafting for round_ in rounds])
    cost = drafting + greatest([round_.judging for round_ in rounds])
    # If the caller gave the first draft, no round shows that a revision takes a call.
    calls = cost.calls if drafting.calls else cost.calls + 1
    # As functions, called only if there is such a limit: to count tokens, prompts must be built.
    needs: tuple[tuple[LimitName, Callable[[], float], str], ...] = (
        ("tokens", tokens, "tokens"),
        ("calls", lambda: calls, "calls"),
        ("cost", lambda: cost.cost_usd or 0.0, "dollars"),
        ("time", lambda: cost.seconds, "seconds"),
    )
    for name, need_of, unit in needs:
        rest = rest_of(name)
        if rest is not None and (need := need_of()) > rest.amount:
            return (
                f"a revision and its evaluation may take {need:.6g} {unit}, and of "
                f"{rest.limit} there are {max(rest.amount, 0):.6g} left"
            )
    return ""
