"""What the policy decides on, and what it can decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.residency.forecast import NOTHING_KNOWN, Forecast
from harness.residency.ledger import Ledger, Tenant


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
