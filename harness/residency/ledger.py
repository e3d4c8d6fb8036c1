"""The ledger: what is in memory on which device, who uses it, and how much room is left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
        """What models may take together."""
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
class Ledger:
    """What the budget holds in memory."""

    devices: Mapping[str, Device]
    """By name; `machine` is always among them."""
    residents: Mapping[str, Resident] = field(default_factory=dict)
    """By tag."""
    moving: Resident | None = None
    """The model on its way in or out; its bytes are taken."""

    def taken_bytes(self, device: str) -> int:
        """What models take there, the moving one included."""
        there = [*self.residents.values(), *([self.moving] if self.moving else [])]
        return sum(one.need.get(device, 0) for one in there)

    def free_bytes(self, device: str) -> int:
        """Below 0 if too much is taken."""
        return self.devices[device].room_bytes - self.taken_bytes(device)

    def with_resident(self, resident: Resident) -> Ledger:
        """A ledger with this entry in place of the model's earlier one."""
        return replace(self, residents={**self.residents, resident.model: resident})

    def without(self, model: str) -> Ledger:
        """A ledger without this model."""
        rest = {name: one for name, one in self.residents.items() if name != model}
        return replace(self, residents=rest)


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
