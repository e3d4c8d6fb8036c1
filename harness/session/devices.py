"""The memory that a budget shares out: what the settings give of each device, or the device has."""

from __future__ import annotations

from collections.abc import Collection

from harness.errors import ConfigurationInvalid
from harness.inference import MACHINE, machine_memory_bytes
from harness.residency import Device
from harness.residency.devices import read_gpus
from harness.session.settings import BudgetSettings, DeviceSettings

_SHARE_OF_MACHINE = 0.8
"""Of the machine's memory, what models may take unless told otherwise."""


def devices_of(settings: BudgetSettings, *, named: Collection[str] = ()) -> tuple[Device, ...]:
    """The devices of the settings, and those that endpoints name; `machine` is the first.

    Args:
        settings: Say how much of them may be used.
        named: By endpoints.

    Raises:
        ConfigurationInvalid: Nobody says how much memory one has.
    """
    capacity_bytes = settings.capacity_bytes or int(machine_memory_bytes() * _SHARE_OF_MACHINE)
    devices = [
        Device(name=MACHINE, capacity_bytes=capacity_bytes, reserve_bytes=settings.reserve_bytes)
    ]
    names = [name for name in dict.fromkeys([*settings.devices, *named]) if name != MACHINE]
    read = {gpu.name: gpu.total_bytes for gpu in read_gpus()} if names else {}
    for name in names:
        said = settings.devices.get(name, DeviceSettings())
        size_bytes = said.capacity_bytes or read.get(name)
        if size_bytes is None:
            raise ConfigurationInvalid(
                f"nobody says how much memory '{name}' has; write [budget.devices.{name}] with "
                'capacity = "24 GiB", or install wiggum-harness[nvidia], which reads it of gpu0, '
                "gpu1, …",
                code="budget.capacity-unknown",
            )
        devices.append(
            Device(name=name, capacity_bytes=size_bytes, reserve_bytes=said.reserve_bytes)
        )
    return tuple(devices)
