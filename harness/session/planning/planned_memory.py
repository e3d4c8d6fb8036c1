"""The memory of a plan: what there is, which models want some of it, and which of them fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from harness.errors import DoesNotFit
from harness.residency import Device, Tenant, check_fits
from harness.session.planning.load_times import LoadTime, load_seconds, measured_loads
from harness.session.planning.model_size import ModelSize
from harness.session.settings import Settings
from harness.session.tenancy import devices_of

Fit = Literal["whole", "split", "never", "unknown", "not counted"]
"""On one device; over several; on none, whatever goes; nobody says how large it is; or it is its
server's own affair whether it is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """Devices, and the models that the budget would put there."""

    devices: Mapping[str, Device]
    """By name; `machine` is the first."""
    sizes: Mapping[str, ModelSize]
    """By tag, of every model of the plan."""
    tenants: Mapping[str, Tenant]
    """Those of known size."""
    times: Mapping[str, LoadTime]
    """How long loading these takes."""

    @property
    def pinned(self) -> frozenset[str]:
        """The models that stay for the whole run."""
        return frozenset(tag for tag, tenant in self.tenants.items() if tenant.pin)

    def fit(self, tag: str) -> Fit:
        """Whether there is room for a model."""
        if self.sizes[tag].error is not None:
            return "unknown"
        if tag not in self.tenants:
            return "not counted"
        if self.never(tag) is not None:
            return "never"
        return "split" if self.tenants[tag].is_split else "whole"

    def never(self, tag: str) -> DoesNotFit | None:
        """The sum that says that a model never fits; None for one that does, or may."""
        if tag not in self.tenants:
            return None
        try:
            check_fits(tag, self.tenants, self.devices)
        except DoesNotFit as error:
            return error
        return None

    def beside(self, tag: str) -> Iterator[str]:
        """The others each of which can be there at the same time, with all that is pinned."""
        for other in self.tenants:
            if tag in self.tenants and other != tag and not any(self.overflows({tag, other})):
                yield other

    def overflows(self, tags: Collection[str]) -> Iterator[tuple[Device, int]]:
        """The devices that have no room for these beside what is pinned, and by how many bytes."""
        for device in self.devices.values():
            there = {*tags, *self.pinned}
            wanted_bytes = sum(self.tenants[tag].need.get(device.name, 0) for tag in there)
            if wanted_bytes > device.room_bytes:
                yield device, wanted_bytes - device.room_bytes


def planned_memory(sizes: Mapping[str, ModelSize], settings: Settings) -> PlannedMemory:
    """The memory of a run with these models; the journals of earlier runs are looked at.

    Raises:
        ConfigurationInvalid: Nobody says how much memory a device has.
    """
    measured = measured_loads(settings.traces)
    tenants = {tag: size.tenant for tag, size in sizes.items() if size.tenant is not None}
    times = {tag: load_seconds(tenant, measured) for tag, tenant in tenants.items()}
    named = [device for tenant in tenants.values() for device in tenant.need]
    return PlannedMemory(
        devices={device.name: device for device in devices_of(settings.budget, named=named)},
        sizes=sizes,
        tenants={tag: replace(one, load_s=times[tag].seconds) for tag, one in tenants.items()},
        times=times,
    )
