"""The ledger: what is in memory on which device, who uses it, and how much room is left."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from harness.errors import DoesNotFit
from harness.hardware import format_bytes
from harness.inference import MACHINE

Need = Mapping[str, int]
"""Bytes by device."""

_FORGETTING = 0.95
"""The share of the longest call's length that still counts after another call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Memory that models share."""

    name: str
    """`machine`, `gpu0`, …"""
    capacity_bytes: int
    """What the budget may use, the reserve included."""
    reserve_bytes: int = 0
    """Kept free for memory that is not counted."""

    @property
    def room_bytes(self) -> int:
        """What models and guests may take together."""
        return self.capacity_bytes - self.reserve_bytes

    def __str__(self) -> str:
        kept = f" less {format_bytes(self.reserve_bytes)} in reserve" if self.reserve_bytes else ""
        return f"{format_bytes(self.capacity_bytes)} on '{self.name}'{kept}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A model that the budget decides about, resident or not, as far as it is known."""

    model: str
    need: Need
    """Of weights, KV cache and compute buffers."""
    load_s: float = 1.0
    """Measured, or else expected."""
    call_s: float = 0.0
    """What a call takes, rather too much than too little; 0 while unknown."""
    is_split: bool = False
    """Whether several devices compute it; the slowest sets its speed."""
    slots: int | None = None
    """Calls that it answers side by side; None for any number."""
    kv_tokens: int | None = None
    """Of its KV cache, for all calls together; None for no limit."""
    load_timeout_s: float = 600.0
    """Of loading, and of unloading."""
    pin: bool = False
    """Whether it is loaded at the start and stays."""
    priority: int = 0
    """Of two models that want the same room, the higher is loaded first and goes last."""

    @property
    def need_bytes(self) -> int:
        """On all devices together."""
        return sum(self.need.values())

    def after_call(self, call_s: float) -> Tenant:
        """The tenant after a call: `call_s` is the longest one, slowly forgotten."""
        return replace(self, call_s=max(call_s, _FORGETTING * self.call_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resident:
    """A model that is in memory."""

    model: str
    need: Need
    leases: int = 0
    """Calls that use it now."""
    kv_tokens: int = 0
    """At most, in its KV cache, for these calls together."""
    since_ns: int = 0
    idle_since_ns: int = 0
    """When its last call ended, or else its load; meaningless while it has leases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestEntry:
    """A guest, as it was at the last look: guests grow by themselves."""

    name: str
    resident_bytes: int
    """0 when it is out."""
    needed_bytes: int
    """What it takes when it is back."""
    is_out: bool = False
    """Whether it was evicted, to come back later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What the budget holds in memory."""

    devices: Mapping[str, Device]
    """By name; `machine` is always among them."""
    residents: Mapping[str, Resident] = field(default_factory=dict)
    """By tag."""
    guests: tuple[GuestEntry, ...] = ()
    """In the order they were admitted, also those that are out; all on the machine."""
    moving: Resident | None = None
    """The model on its way in or out; its bytes are taken."""

    def model_bytes(self, device: str) -> int:
        """What models take there, the moving one included."""
        there = [*self.residents.values(), *([self.moving] if self.moving else [])]
        return sum(one.need.get(device, 0) for one in there)

    def taken_bytes(self, device: str) -> int:
        """What models and guests take there."""
        return self.model_bytes(device) + (self.guest_bytes if device == MACHINE else 0)

    @property
    def guest_bytes(self) -> int:
        """What guests take."""
        return sum(guest.resident_bytes for guest in self.guests)

    def free_bytes(self, device: str) -> int:
        """Below 0 if too much is taken."""
        return self.devices[device].room_bytes - self.taken_bytes(device)

    def room_for_models(self, device: str) -> int:
        """What no model takes: guests go for a model. Below 0 if too much is taken."""
        return self.devices[device].room_bytes - self.model_bytes(device)

    def with_resident(self, resident: Resident) -> Ledger:
        """A ledger with this entry in place of the model's earlier one."""
        return replace(self, residents={**self.residents, resident.model: resident})

    def without(self, model: str) -> Ledger:
        """A ledger without this model."""
        rest = {name: one for name, one in self.residents.items() if name != model}
        return replace(self, residents=rest)

    def without_guests(self, names: Collection[str]) -> Ledger:
        """A ledger without these guests."""
        return replace(self, guests=tuple(one for one in self.guests if one.name not in names))


def guests_in_the_way(ledger: Ledger, need: Need | None = None) -> tuple[str, ...]:
    """The guests that must go so that a model can come: as few as possible, the largest first.

    Args:
        ledger: The present.
        need: The model's; None if guests only go when they have outgrown the room.
    """
    room_bytes = ledger.room_for_models(MACHINE) - (need or {}).get(MACHINE, 0)
    return _too_many(ledger.guests, room_bytes=room_bytes)


def returning_guests(ledger: Ledger) -> tuple[str, ...]:
    """The guests that may come back, the smallest first: as many as there is room for."""
    room_bytes = ledger.free_bytes(MACHINE)
    names = []
    out = [guest for guest in ledger.guests if guest.is_out]
    for guest in sorted(out, key=lambda g: (g.needed_bytes, g.name)):
        room_bytes -= guest.needed_bytes
        if room_bytes < 0:
            break
        names.append(guest.name)
    return tuple(names)


def _too_many(guests: Iterable[GuestEntry], *, room_bytes: int) -> tuple[str, ...]:
    there = sorted((g for g in guests if not g.is_out), key=lambda g: (-g.resident_bytes, g.name))
    taken_bytes = sum(guest.resident_bytes for guest in there)
    names = []
    for guest in there:
        if taken_bytes <= room_bytes:
            break
        names.append(guest.name)
        taken_bytes -= guest.resident_bytes
    return tuple(names)


def check_fits(model: str, tenants: Mapping[str, Tenant], devices: Mapping[str, Device]) -> None:
    """Whether a model fits on its devices beside what is pinned there.

    Raises:
        DoesNotFit: It has no room, whatever goes; the message has the sum.
    """
    tenant = tenants[model]
    for name, need_bytes in tenant.need.items():
        device = devices[name]
        pinned = {
            other.model: other.need[name]
            for other in tenants.values()
            if other.pin and other.model != model and name in other.need
        }
        room_bytes = device.room_bytes - sum(pinned.values())
        if need_bytes <= room_bytes:
            continue
        parts = [format_bytes(device.capacity_bytes)]
        if device.reserve_bytes:
            parts.append(f"less {format_bytes(device.reserve_bytes)} in reserve")
        parts += [f"less {format_bytes(size)} of pinned '{m}'" for m, size in pinned.items()]
        leaves = f", which leaves {format_bytes(max(room_bytes, 0))}" if len(parts) > 1 else ""
        raise DoesNotFit(
            f"model '{model}' needs {format_bytes(need_bytes)} and the whole budget of '{name}' is "
            f"{' '.join(parts)}{leaves}; {_remedy(device, pinned)}",
            model=model,
            need_bytes=need_bytes,
            capacity_bytes=device.capacity_bytes,
        )


def capacity_table(device: Device) -> str:
    """The table in harness.toml that sets its capacity."""
    return "[budget]" if device.name == MACHINE else f"[budget.devices.{device.name}]"


def _remedy(device: Device, pinned: Collection[str]) -> str:
    ways = ["lower its context_tokens or slots", "use a smaller quantization"]
    if pinned:
        ways.append("leave out a pin")
    if device.reserve_bytes:
        ways.append("lower the reserve")
    return f"{', '.join(ways)}, or raise capacity under {capacity_table(device)}"
