"""The models of a plan: how large each is, how long it loads, and where there is room for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from harness.errors import (
    DoesNotFit,
    HarnessError,
    JournalInvalid,
    ModelFileInvalid,
)
from harness.hardware import Footprint
from harness.inference import FILE_BACKENDS, Endpoint, provider_of
from harness.residency import Device, Tenant, check_fits
from harness.session.demand import latest_journals
from harness.session.opened_endpoint import open_endpoint
from harness.session.separation import ComparedModels
from harness.session.settings import Settings
from harness.session.tenancy import (
    devices_of,
    file_footprint,
    is_managed,
    slots_of,
    tenant_of,
)
from harness.trace import monotonic

Fit = Literal["whole", "split", "never", "unknown", "not counted"]
"""On one device; over several; on none, whatever goes; its size is unknown; or its server alone
decides whether it is loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTime:
    """What one load takes."""

    seconds: float
    source: Literal["measured", "guess"]
    """The median of the last runs' loads, or from the model's size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """An endpoint that the pipeline needs, or whose model is in memory in any case."""

    tag: str
    roles: tuple[str, ...]
    """Those in which the pipeline asks it."""
    others: tuple[str, ...]
    """What else it is there for, in words."""
    backend: str
    model: str
    """The name of its file, or its server's name for it."""
    quantization: str | None
    """None if unknown."""
    context_tokens: int | None
    """Of one call; None if its server decides that."""
    slots: int | None
    """Calls side by side; None if its server decides that."""
    footprint: Footprint | None
    """The parts of a model from a file, the cache for all slots; None for a server's model."""
    need: Mapping[str, int]
    """Bytes by device; empty if unknown or not counted."""
    is_managed: bool
    """Whether the budget loads it and lets it go."""
    device: str
    """The one that its endpoint names."""
    fit: Fit
    beside: tuple[str, ...]
    """Tags of the others of the plan that can each be in memory at the same time."""
    pin: bool
    priority: int
    loads: int | None
    """How often it will be loaded; None if not predicted."""
    load_time: LoadTime | None
    """None if it is not the budget's, or its size is unknown."""
    problem: str | None
    """Why its size is unknown."""

    @property
    def need_bytes(self) -> int:
        """What it takes on all devices together, as far as is known."""
        return sum(self.need.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What could be found out of a model; nothing if it is not the budget's."""

    tenant: Tenant | None = None
    footprint: Footprint | None = None
    """The parts of a model from a file."""
    error: HarnessError | None = None
    """Why no more is known."""


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
        """The others that can each be there at the same time, beside all that is pinned."""
        for other in self.tenants:
            if tag in self.tenants and other != tag and not any(self.overflows({tag, other})):
                yield other

    def overflows(self, tags: Collection[str]) -> Iterator[tuple[Device, int]]:
        """The devices without room for these beside what is pinned, and the bytes too much."""
        for device in self.devices.values():
            there = {*tags, *self.pinned}
            wanted_bytes = sum(self.tenants[tag].need.get(device.name, 0) for tag in there)
            if wanted_bytes > device.room_bytes:
                yield device, wanted_bytes - device.room_bytes


async def size_up(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelSize:
    """How large an endpoint's model is, found out without loading it.

    A server is asked only if its model is the budget's and its endpoint does not give its size.
    """
    if not is_managed(endpoint):
        return ModelSize()
    footprint = None
    try:
        footprint = file_footprint(endpoint)
        opened = open_endpoint(endpoint, environment=environment, cached=False, clock=monotonic)
        assert opened.host is not None
        try:
            tenant = await tenant_of(endpoint, opened.host)
        finally:
            await opened.host.aclose()
            await opened.backend.aclose()
        return ModelSize(tenant=tenant, footprint=footprint)
    except HarnessError as error:
        return ModelSize(footprint=footprint, error=error)


def planned_memory(sizes: Mapping[str, ModelSize], settings: Settings) -> PlannedMemory:
    """The memory of a run with models of these sizes; journals of earlier runs are looked at.

    Raises:
        ConfigurationInvalid: The capacity of a device is unknown.
    """
    measured = _measured_loads(settings.traces)
    tenants = {tag: size.tenant for tag, size in sizes.items() if size.tenant is not None}
    times = {}
    for tag, tenant in tenants.items():
        loads_s = measured.get((tag, tenant.need_bytes))
        times[tag] = (
            LoadTime(seconds=median(loads_s), source="measured")
            if loads_s
            else LoadTime(seconds=tenant.load_s, source="guess")
        )
    named = [device for tenant in tenants.values() for device in tenant.need]
    return PlannedMemory(
        devices={device.name: device for device in devices_of(settings.budget, named=named)},
        sizes=sizes,
        tenants={tag: replace(one, load_s=times[tag].seconds) for tag, one in tenants.items()},
        times=times,
    )


def _measured_loads(traces: Path) -> dict[tuple[str, int], list[float]]:
    """Seconds of each load in the latest runs, by tag and by the bytes that were to be taken.

    With other settings, or another file, the bytes are others.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for journal in latest_journals(traces):
        try:
            for span in journal.spans():
                # A call that waits for a load has a span of that name too.
                if span.name != "load" or span.status != "ok" or "waits_for" in span.attributes:
                    continue
                model, need_bytes = (span.attributes.get(name) for name in ("model", "need_bytes"))
                if isinstance(model, str) and isinstance(need_bytes, int):
                    found.setdefault((model, need_bytes), []).append(span.duration_ns / 1e9)
        except (JournalInvalid, OSError):
            continue
    return found


def planned_model(
    endpoint: Endpoint,
    *,
    roles: Sequence[str],
    others: Sequence[str],
    memory: PlannedMemory,
    models: ComparedModels,
    loads: int | None,
) -> PlannedModel:
    """The row of an endpoint."""
    tag, size, tenant = endpoint.tag, memory.sizes[endpoint.tag], memory.tenants.get(endpoint.tag)
    says_context = endpoint.backend in FILE_BACKENDS or (
        provider_of(endpoint).takes_context and "context_tokens" in endpoint.model_fields_set
    )
    try:
        quantization = models.identity(tag).quantization
    except ModelFileInvalid:
        quantization = None  # its size is unknown for the same reason, which is told
    return PlannedModel(
        tag=tag,
        roles=tuple(roles),
        others=tuple(others),
        backend=endpoint.backend,
        model=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        quantization=quantization,
        context_tokens=endpoint.context_tokens if says_context else None,
        slots=slots_of(endpoint),
        footprint=size.footprint,
        need={} if tenant is None else tenant.need,
        is_managed=is_managed(endpoint),
        device=endpoint.device,
        fit=memory.fit(tag),
        beside=tuple(memory.beside(tag)),
        pin=endpoint.pin,
        priority=endpoint.priority,
        loads=loads,
        load_time=memory.times.get(tag),
        problem=None if size.error is None else str(size.error).removeprefix(f"{tag}: "),
    )
