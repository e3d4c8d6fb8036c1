"""Usage of calls, their limits, and the check whether a further call fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from harness.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A sum over calls."""

    calls: int = 0
    """Failed ones included."""
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
        if other is NOTHING:  # most that is added
            return self
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        sums = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return Spent(cost_usd=sum(costs) if costs else None, **sums)

    def __neg__(self) -> Spent:
        values = {name: getattr(self, name) for name in Spent.__slots__}
        # `and`, since a cost may be None.
        return Spent(**{name: value and -value for name, value in values.items()})


_COUNTS = [name for name in Spent.__slots__ if name != "cost_usd"]

NOTHING = Spent()

LimitName = Literal["tokens", "cost", "time", "calls"]
"""The limited quantity, as in `LimitReached.limit`."""

# With less time left no call is sent: the clocks of timeouts and ours may differ by so much.
LEAST_S = 0.05

FIELD_OF: Mapping[LimitName, str] = {
    "tokens": "max_tokens",
    "cost": "max_cost_usd",
    "time": "max_seconds",
    "calls": "max_calls",
}


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

    def __post_init__(self) -> None:
        for name in FIELD_OF.values():
            limit = getattr(self, name)
            if isinstance(limit, bool) or not isinstance(limit, int | float | None):
                raise InvalidInput(
                    f"{name} is {limit!r:.80}; give a number, or leave it out",
                    code="loop.limit-wrong-type",
                )
            if limit is not None and not 0 < limit < float("inf"):
                raise InvalidInput(
                    f"{name} is {limit:g}; it must be more than 0 and finite, or left out",
                    code="loop.limit-not-positive",
                )

    def left(self, limit: LimitName, used: Spent) -> float | None:
        """How much `used` leaves of a limit; None without that limit."""
        maximum: float | None = getattr(self, FIELD_OF[limit])
        amounts = {"tokens": used.tokens, "cost": used.cost_usd or 0.0}
        amounts |= {"time": used.seconds, "calls": used.calls}
        return None if maximum is None else maximum - amounts[limit]

    def said(self, limit: LimitName) -> str:
        """A limit as messages show it: `max_tokens = 4000`."""
        value = getattr(self, FIELD_OF[limit])
        return f"{FIELD_OF[limit]} = {value if isinstance(value, int) else format(value, '.10g')}"


def merged(*limits: Limits | None) -> Limits:
    """The first limit that is set of each kind: `merged(command_line, pipeline, settings)`."""
    values: dict[str, Any] = {}
    for level in filter(None, reversed(limits)):
        values |= {name: value for name, value in asdict(level).items() if value is not None}
    return Limits(**values)


def refusal(
    limits: Limits, *, model: str, need: Spent, used: Spent
) -> tuple[LimitName, str] | None:
    """The limit that forbids a request, and why in words; None if `used` leaves what it needs.

    Time limits no request by itself, but all that a call does: `Meter.in_time`.
    """
    tokens = limits.left("tokens", used)
    if tokens is not None and need.tokens > tokens:
        remainder = f"of {limits.said('tokens')} there are {max(tokens, 0):.0f} left"
        return "tokens", f"a call to '{model}' may take {need.tokens} tokens, and {remainder}"
    usd, cost = limits.left("cost", used), need.cost_usd or 0.0
    # Without a price in the settings a call's cost is known only afterwards.
    if usd is not None and (usd <= 0 or cost > usd):
        remainder = f"of {limits.said('cost')} there are {max(usd, 0):.4g} left"
        return "cost", f"a call to '{model}' may cost {cost:.4g} dollars, and {remainder}"
    calls = limits.left("calls", used)
    if calls is not None and calls < need.calls:
        return "calls", f"call limit reached ({limits.said('calls')}); '{model}' was not called"
    return None
