"""Places models: each goes whole to the GPU with the most room, or else to the machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from harness.inference import MACHINE
from harness.residency.ledger import Device, Need


def place(
    models: Mapping[str, Callable[[str], Need]],
    devices: Mapping[str, Device],
    *,
    needs_taken: Iterable[Need],
) -> dict[str, str]:
    """Devices for models that would take so much, the first choosing first, beside what is taken.

    On GPUs all have room side by side; in the machine they take turns.
    """
    gpus = sorted(devices.keys() - {MACHINE})
    needs, places = [*needs_taken], dict[str, str]()

    def free_bytes(device: str) -> int:
        rivals = () if device == MACHINE else needs
        return devices[device].room_bytes - sum(need.get(device, 0) for need in rivals)

    for model, need_on in models.items():
        for gpu in sorted(gpus, key=free_bytes, reverse=True):
            need = need_on(gpu)
            if all(size <= free_bytes(device) for device, size in need.items()):
                needs.append(need)
                places[model] = gpu
                break
        else:
            places[model] = MACHINE
    return places
