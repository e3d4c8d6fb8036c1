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
    """Uses of models that come one after another, such as those of one node's call."""

    name: str
    """No other strand of the forecast has it."""
    uses: tuple[str, ...]
    """Tags of models, the present or next one first; however many calls are made of it before the
    next one's turn, it stands here once."""
    after: frozenset[str] = frozenset()
    """Names of the strands that must have ended before this one begins; those that are not in the
    forecast have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is still to come."""

    strands: tuple[Strand, ...] = ()
    """In no particular order; side by side but for what they come after."""
    is_complete: bool = False
    """Whether no other model will be called than stands here, so that the others can go."""

    @property
    def models(self) -> frozenset[str]:
        """Those that are still to be called."""
        return frozenset(itertools.chain.from_iterable(strand.uses for strand in self.strands))

    def expects(self, model: str) -> bool:
        """Whether it is one of those; cheaper, and asked at every call."""
        return any(model in strand.uses for strand in self.strands)


NOTHING_KNOWN = Forecast()
"""Where nobody says what comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that has not been granted its model."""

    id: int
    """No other call of the budget has it; later ones are higher."""
    model: str
    """The endpoint's tag."""
    since_ns: int
    """When it came."""
    kv_tokens: int = 0
    """What it may come to hold in the model's KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """All that a decision rests on. Equal states make equal decisions."""

    now_ns: int
    """The time."""
    ledger: Ledger
    """What is in memory."""
    tenants: Mapping[str, Tenant]
    """Every model of the budget, by tag."""
    waiting: tuple[WaitingCall, ...] = ()
    """The oldest first."""
    forecast: Forecast = NOTHING_KNOWN
    """What is to come, these calls included as far as it knows of them."""
    max_wait_ns: int = 60_000_000_000
    """How long a call may be put off in favour of others."""
    failed: frozenset[str] = frozenset()
    """Models whose last load failed, or that were loaded ahead in vain, or did not go when they
    should: they move for a call, and not without one."""

    @property
    def is_crowded(self) -> bool:
        """Whether there is no room for all models at once, so that they must take turns."""
        return any(
            sum(tenant.need.get(name, 0) for tenant in self.tenants.values()) > device.room_bytes
            for name, device in self.ledger.devices.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """These calls may begin."""

    calls: tuple[int, ...]
    """Their ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """This model is to come, and these are to go first."""

    model: str
    """Which."""
    evict: tuple[str, ...] = ()
    """Idle models."""
    guests: tuple[str, ...] = ()
    """Guests, the largest first."""
    reason: str
    """Why now, and why those."""
    is_prefetch: bool = False
    """Whether no call waits for it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unload:
    """This model is to go, although none is to come."""

    model: str
    """Which."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing is to be done before something changes, or this time has come."""

    until_ns: int | None = None
    """When to ask again, whatever happens."""


Decision = Grant | Load | Unload | Wait
