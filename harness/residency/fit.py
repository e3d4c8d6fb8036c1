"""Whether a model can ever be lent: what no eviction can make room for is refused at the start."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from harness.errors import DoesNotFit
from harness.hardware import format_bytes
from harness.inference import MACHINE
from harness.residency.ledger import Device, Tenant


def check_fits(model: str, tenants: Mapping[str, Tenant], devices: Mapping[str, Device]) -> None:
    """Holds a model against its devices, less what is pinned there.

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
    """Where a person sets how much of it there is: the table in harness.toml."""
    return "[budget]" if device.name == MACHINE else f"[budget.devices.{device.name}]"


def _remedy(device: Device, pinned: Collection[str]) -> str:
    ways = ["lower its context_tokens or slots", "use a smaller quantisation"]
    if pinned:
        ways.append("leave out a pin")
    if device.reserve_bytes:
        ways.append("lower the reserve")
    return f"{', '.join(ways)}, or raise capacity under {capacity_table(device)}"
