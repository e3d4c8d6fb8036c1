"""What is asked of a model that is to be served: by hand, or as a recorded run asked it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.hardware.footprint import padded_tokens
from harness.hardware.quantization import ROLE_FLOORS
from harness.trace.calls import Call, answered_by_model
from harness.trace.intervals import depths


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of a model."""

    users: int = 1
    """Sequences at once."""
    prompt_tokens: int = 2000
    output_tokens: int = 500
    rate_per_s: float | None = None
    """Requests that come in a second, at random; None if all users ask at the same moment."""
    shared: float = 0.0
    """Of a prompt, the share that a prefix cache has of it."""
    calls: int | None = None
    """Of the run that the load is from."""
    ttft_s: float = 2.0
    itl_s: float = 0.05

    @property
    def context_tokens(self) -> int:
        """Of one sequence, in whole blocks."""
        return padded_tokens(self.prompt_tokens + self.output_tokens)

    @property
    def middle_tokens(self) -> int:
        """Of one sequence, when half of its reply is written."""
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def cached_tokens(self) -> int:
        """Of a prompt."""
        return round(self.shared * self.prompt_tokens)

    def part(self, replicas: int) -> Load:
        """What is asked of each of so many replicas."""
        rate_per_s = self.rate_per_s and self.rate_per_s / replicas
        return replace(self, users=-(-self.users // replicas), rate_per_s=rate_per_s)


def loads_of(calls: Sequence[Call]) -> dict[str, tuple[tuple[str, ...], Load]]:
    """By the tag of each model: its roles, the evaluator's first, and what the run asked of it.

    Lengths are the 95th percentile's; users are the most calls under way, those that wait included.
    """
    found = {}
    for model, some in answered_by_model(calls).items():
        asked, told, cached = (
            [count or 0 for count in counts]
            for counts in zip(
                *((c.input_tokens, c.output_tokens, c.cached_tokens) for c in some), strict=True
            )
        )
        took_ns = max(call.end_ns for call in some) - min(call.start_ns for call in some)
        load = Load(
            users=max(depth for _, depth in depths(some)),
            prompt_tokens=max(_high(asked), 1),
            output_tokens=max(_high(told), 1),
            rate_per_s=len(some) * 1e9 / max(took_ns, 1),
            shared=min(sum(cached) / max(sum(asked), 1), 1.0),
            calls=len(some),
        )
        roles = sorted(
            {call.role or model for call in some}, key=lambda one: one not in ROLE_FLOORS
        )
        found[model] = tuple(roles), load
    return found


def _high(values: list[int]) -> int:
    return round(statistics.quantiles(values * 2, n=20, method="inclusive")[-1])
