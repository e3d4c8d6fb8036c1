"""Usage of calls, their limits, and the check whether a further call fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A sum over calls."""

    calls: int = 0
    """Number of sent calls, including failed ones."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    """Dollars of the calls with a known price; None without any."""
    time_ns: int = 0
    estimated_calls: int = 0
    """Calls whose server did not count tokens; their tokens are estimated from their length."""
    unpriced_calls: int = 0
    """Calls that may have cost something which is not in `cost_usd`."""

    @property
    def tokens(self) -> int:
        """Input and output."""
        return self.input_tokens + self.output_tokens

    @property
    def seconds(self) -> float:
        """`time_ns`, in seconds."""
        return self.time_ns / 1e9

    def __add__(self, other: Spent) -> Spent:
        costs = [one.cost_usd for one in (self, other) if one.cost_usd is not None]
        return Spent(
            calls=self.calls + other.calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=sum(costs) if costs else None,
            time_ns=self.time_ns + other.time_ns,
            estimated_calls=self.estimated_calls + other.estimated_calls,
            unpriced_calls=self.unpriced_calls + other.unpriced_calls,
        )


NOTHING = Spent()
"""The beginning of every sum."""


LimitName = Literal["tokens", "cost", "time", "calls"]
"""The limited quantity, as in `LimitReached.limit`."""

LEAST_S = 0.05
"""With less time left no call is sent: the clocks of timeouts and ours may differ by so much."""

FIELD_OF: Mapping[LimitName, str] = {
    "tokens": "max_tokens",
    "cost": "max_cost_usd",
    "time": "max_seconds",
    "calls": "max_calls",
}
"""The field of `Limits` for the quantity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a run or a loop; None for no limit.

    Raises:
        InvalidInput: A limit leaves nothing to be done.
    """

    max_tokens: int | None = None
    """Tokens of all calls together, in and out."""
    max_cost_usd: float | None = None
    """Dollars of all calls with a known price."""
    max_seconds: float | None = None
    """Wall-clock time."""
    max_calls: int | None = None
    """Calls to models."""

    def __post_init__(self) -> None:
        for name in FIELD_OF.values():
            limit = getattr(self, name)
            if isinstance(limit, bool) or not isinstance(limit, int | float | None):
                raise InvalidInput(
                    f"{name} is {limit!r:.80}; give a number, or leave it out",
                    code="loop.limit-wrong-type",
                )
            if limit is not None and not limit > 0:
                raise InvalidInput(
                    f"{name} is {limit:g}; it must be more than 0, or left out",
                    code="loop.limit-not-positive",
                )

    def said(self, limit: LimitName) -> str:
        """A limit as messages show it: `max_tokens = 4000`."""
        name = FIELD_OF[limit]
        value = getattr(self, name)
        return f"{name} = {value if isinstance(value, int) else format(value, '.6g')}"


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
    """The most that calls can use, before their use is known."""

    tokens: int = 0
    """Input and output."""
    usd: float = 0.0
    """As far as prices are known."""
    seconds: float = 0.0
    calls: int = 0

    def __add__(self, other: Room) -> Room:
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
    message: str


def left_of(limits: Limits, *, spent: Spent, held: Room) -> tuple[int | None, float | None]:
    """Tokens and dollars left for a call; None without a limit."""
    tokens, usd = limits.max_tokens, limits.max_cost_usd
    return (
        None if tokens is None else tokens - spent.tokens - held.tokens,
        None if usd is None else usd - (spent.cost_usd or 0.0) - held.usd,
    )


def refusal(limits: Limits, *, model: str, need: Room, spent: Spent, held: Room) -> Refusal | None:
    """The limit that forbids a call; None if it fits.

    `held` is the most that calls under way, or reserved calls, may still use.
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
    """Seconds left; None without a limit."""
    if limits.max_seconds is None:
        return None
    return limits.max_seconds - spent.seconds - held.seconds
