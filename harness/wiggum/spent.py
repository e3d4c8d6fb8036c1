"""What calls to models took: tokens, money, time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A sum over calls."""

    calls: int = 0
    """How many were sent, those that failed included."""
    input_tokens: int = 0
    """Of their prompts."""
    output_tokens: int = 0
    """Of their replies."""
    cost_usd: float | None = None
    """Dollars, of the calls whose price is known; None when there is none."""
    time_ns: int = 0
    """How long it took, by the clock."""
    estimated_calls: int = 0
    """Calls whose tokens nobody counted: they are estimated from their length."""
    unpriced_calls: int = 0
    """Calls that may have cost something which is not in `cost_usd`."""

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.input_tokens + self.output_tokens

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.time_ns / 1e9

    def __add__(self, other: Spent) -> Spent:
        """Both together."""
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
