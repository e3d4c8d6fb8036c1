"""What the policy decides on, what it is told of the calls to come, and what it can decide.

A forecast may be wrong. A use that does not come costs another model some seconds in memory; a use
that was not expected costs a load that was not prepared.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from harness.residency.ledger import Ledger, Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Strand:
    """Models that are used one after another, such as by one call of a node."""

    name: str
    """No other strand of the forecast has it."""
    uses: tuple[str, ...]
    """Tags, the present or next one first; calls of one model in a row count as one use."""
    after: frozenset[str] = frozenset()
    """Names of the strands that must end before this one begins; a name that is not in the forecast
    has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is still to come."""

    strands: tuple[Strand, ...] = ()
    """Side by side, except for `after`; their order means nothing."""
    is_complete: bool = False
    """Whether only these models will be called, so that others can go."""

    @property
    def models(self) -> frozenset[str]:
        """The models that are still to be called."""
        return frozenset(itertools.chain.from_iterable(strand.uses for strand in self.strands))

    def expects(self, model: str) -> bool:
        """Whether `models` has it; cheaper."""
        return any(model in strand.uses for strand in self.strands)


NOTHING_KNOWN = Forecast()


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that has not been granted its model."""

    id: int
    """Unique in the budget; later calls have higher ones."""
    model: str
    since_ns: int
    kv_tokens: int = 0
    """At most, in the model's KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a decision rests on. Equal states make equal decisions."""

    now_ns: int
    ledger: Ledger
    tenants: Mapping[str, Tenant]
    """By tag."""
    waiting: tuple[WaitingCall, ...] = ()
    """The oldest first."""
    forecast: Forecast = NOTHING_KNOWN
    """May have some of the waiting calls, or none."""
    max_wait_ns: int = 60_000_000_000
    """How long a call may be put off in favour of others."""
    failed: frozenset[str] = frozenset()
    """Models whose last load or unload failed, or that were loaded ahead and not used: only a call
    moves them."""

    @property
    def is_crowded(self) -> bool:
        """Whether models must take turns: there is no room for all at once."""
        return any(
            sum(tenant.need.get(name, 0) for tenant in self.tenants.values()) > device.room_bytes
            for name, device in self.ledger.devices.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """These calls may begin."""

    calls: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A model comes; others go first."""

    model: str
    evict: tuple[str, ...] = ()
    """Idle models."""
    reason: str
    is_prefetch: bool = False
    """Whether no call waits for it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """A model goes, although no other comes."""

    model: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do before something changes or this time has come."""

    until_ns: int | None = None
    """None if only a change matters."""


Decision = Grant | Load | Unload | Wait
