"""What a loop, or a whole run, may take, and which call does not fit any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self

from harness.errors import InvalidInput
from harness.wiggum.spent import Spent

LimitName = Literal["tokens", "cost", "time", "calls"]
"""What is limited, as `LimitReached.limit` says it."""

LEAST_S = 0.05
"""With less time left no call is sent: the clocks of timeouts and ours may differ by so much."""

FIELD_OF: Mapping[LimitName, str] = {
    "tokens": "max_tokens",
    "cost": "max_cost_usd",
    "time": "max_seconds",
    "calls": "max_calls",
}
"""The field of `Limits` that says how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be taken; None where there is no limit.

    Raises:
        InvalidInput: One of them leaves nothing to be done.
    """

    max_tokens: int | None = None
    """Of all calls together, in and out."""
    max_cost_usd: float | None = None
    """Of all calls whose price is known."""
    max_seconds: float | None = None
    """By the clock."""
    max_calls: int | None = None
    """To models."""

    def __post_init__(self) -> None:
        for name in FIELD_OF.values():
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InvalidInput(
                    f"{name} is {limit:g}; it must be more than 0, or left out",
                    code="loop.limit-not-positive",
                )

    def said(self, limit: LimitName) -> str:
        """One of them as messages say it: `max_tokens = 4000`."""
        name = FIELD_OF[limit]
        value = getattr(self, name)
        return f"{name} = {value if isinstance(value, int) else format(value, '.6g')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits(Limits):
    """How much a loop may take. It ends with the best draft it has when more does not fit.

    Its seconds run from the making of the loop's meter.

    Raises:
        InvalidInput: One of them leaves nothing to be done.
    """

    max_rounds: int = 3
    """Evaluations in all, so one revision fewer."""
    of_run: frozenset[LimitName] = frozenset()
    """Those of them that are all that the whole run has left; the loop itself was given more."""

    def __post_init__(self) -> None:
        if self.max_rounds < 1:
            raise InvalidInput(
                f"max_rounds is {self.max_rounds}; at least one round is needed",
                code="loop.rounds-not-positive",
            )
        # Not super(): a class with slots is made twice, and super() means the first.
        Limits.__post_init__(self)

    def said(self, limit: LimitName) -> str:
        """As for any limits; says too when it is the run's."""
        whose = " (all that the run has left)" if limit in self.of_run else ""
        return Limits.said(self, limit) + whose

    def within(self, left: Limits) -> Self:
        """The same, but nowhere more than the run has left."""
        tighter: set[LimitName] = set()
        for limit, name in FIELD_OF.items():
            own, of_run = getattr(self, name), getattr(left, name)
            if of_run is not None and (own is None or of_run < own):
                tighter.add(limit)
        return replace(
            self,
            of_run=self.of_run | tighter,
            **{FIELD_OF[limit]: getattr(left, FIELD_OF[limit]) for limit in tighter},
        )


def merged(*limits: Limits | None) -> Limits:
    """Of each kind the first that is given: `merged(command_line, pipeline, settings)`."""
    together = Limits()
    for one in limits:
        open_fields = [n for n in FIELD_OF.values() if getattr(together, n) is None]
        if one is not None:
            together = replace(together, **{name: getattr(one, name) for name in open_fields})
    return together


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What calls take at most, before anybody knows what they take."""

    tokens: int = 0
    """In and out."""
    usd: float = 0.0
    """Dollars, as far as prices are known."""
    seconds: float = 0.0
    """By the clock."""
    calls: int = 0
    """To models."""

    def __add__(self, other: Room) -> Room:
        """For both together."""
        return Room(
            tokens=self.tokens + other.tokens,
            usd=self.usd + other.usd,
            seconds=self.seconds + other.seconds,
            calls=self.calls + other.calls,
        )

    def __sub__(self, other: Room) -> Room:
        """Without the other, which is in it."""
        return Room(
            tokens=self.tokens - other.tokens,
            usd=self.usd - other.usd,
            seconds=self.seconds - other.seconds,
            calls=self.calls - other.calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call is not sent."""

    limit: LimitName
    """What there is too little of."""
    message: str
    """How much it may take, and what is left."""


def left_of(limits: Limits, *, spent: Spent, held: Room) -> tuple[int | None, float | None]:
    """How many tokens and dollars there are for a call; None without a limit."""
    tokens, usd = limits.max_tokens, limits.max_cost_usd
    return (
        None if tokens is None else tokens - spent.tokens - held.tokens,
        None if usd is None else usd - (spent.cost_usd or 0.0) - held.usd,
    )


def refusal(limits: Limits, *, model: str, need: Room, spent: Spent, held: Room) -> Refusal | None:
    """What keeps a call from being sent; None if it fits.

    Args:
        limits: Of whoever asks.
        model: The one that is to be called.
        need: What the call takes at most.
        spent: What was taken so far.
        held: What others may still take: calls that are under way, or those that are to follow.
    """
    left, left_usd = left_of(limits, spent=spent, held=held)
    if left is not None and need.tokens > left:
        kept = f", beside {held.tokens} kept" if held.tokens else ""
        return Refusal(
            limit="tokens",
            message=f"a call to '{model}' may take {need.tokens} tokens, and of "
            f"{limits.said('tokens')} there are {max(left, 0)} left{kept}",
        )
    # Without a price in the settings a call's cost is known only afterwards.
    if left_usd is not None and (left_usd <= 0 or need.usd > left_usd):
        return Refusal(
            limit="cost",
            message=f"a call to '{model}' may cost {need.usd:.4g} dollars, and of "
            f"{limits.said('cost')} there are {max(left_usd, 0):.4g} left",
        )
    if limits.max_calls is not None and spent.calls + held.calls + need.calls > limits.max_calls:
        return Refusal(
            limit="calls",
            message=f"call limit reached ({limits.said('calls')}); '{model}' was not called",
        )
    left_s = seconds_left(limits, spent=spent, held=held)
    if left_s is not None and left_s < LEAST_S:
        return Refusal(
            limit="time",
            message=f"time limit reached ({limits.said('time')}); '{model}' was not called",
        )
    return None


def seconds_left(limits: Limits, *, spent: Spent, held: Room) -> float | None:
    """How long there is; None without a limit."""
    if limits.max_seconds is None:
        return None
    return limits.max_seconds - spent.seconds - held.seconds
