"""Places models: each goes whole to the GPU with the most room, or else to the machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.inference import MACHINE
from harness.residency.ledger import Device, Need

Where = str | dict[str, float]
"""A device, or the shares of a model's layers that several have."""


def place(
    models: Mapping[str, Callable[[Where], Need]],
    devices: Mapping[str, Device],
    *,
    taken: Iterable[Need],
    may_split: bool = False,
) -> dict[str, Where]:
    """Devices for models that would take so much, the first choosing first, beside what is `taken`.

    On GPUs all have room side by side; in the machine they take turns. With `may_split`, a model
    that is whole on no GPU may go to several, after all that are.
    """
    gpus = sorted(devices.keys() - {MACHINE})
    needs = [*taken]
    found: dict[str, Where] = {}

    def free_bytes(device: str) -> int:
        there = () if device == MACHINE else needs
        return devices[device].room_bytes - sum(need.get(device, 0) for need in there)

    def put(model: str, where: Where) -> bool:
        need = models[model](where)
        if model in found or any(size > free_bytes(device) for device, size in need.items()):
            return False
        needs.append(need)
        found[model] = where
        return True

    for model in models:
        any(put(model, gpu) for gpu in sorted(gpus, key=free_bytes, reverse=True))
    for model in models:
        # In GiB with a decimal, as people write them down.
        free = {gpu: free_bytes(gpu) / 2**30 for gpu in gpus}
        shares = {gpu: round(gib, 1) for gpu, gib in free.items() if gib >= 1}
        if not (may_split and len(shares) > 1 and put(model, shares)):
            found.setdefault(model, MACHINE)
    return found
