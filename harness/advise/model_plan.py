"""The plan of a pipeline's models: the size of each, and where it fits. Planning loads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from harness.errors import ConfigurationInvalid, DoesNotFit, HarnessError, ModelFileInvalid, Notice
from harness.graph import Graph
from harness.hardware import Footprint
from harness.inference import FILE_BACKENDS, Endpoint, provider_of
from harness.residency import Device, Tenant, check_fits
from harness.session.casting import Casting
from harness.session.demand import MEMORY, Players, demand_of, judges
from harness.session.models import known_endpoints, opened_host
from harness.session.roles import EVALUATOR
from harness.session.settings import BudgetSettings, Settings
from harness.session.tenancy import (
    check_managed,
    devices_of,
    file_footprint,
    is_managed,
    slots_of,
    tenant_of,
)
from harness.trace import Tracer

Fit = Literal["whole", "split", "never", "unknown", "not counted"]
"""It fits on one device; over several; on none; its size is unknown; or its server alone decides
about loading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """An endpoint that the pipeline needs, or whose model is in memory in any case."""

    tag: str
    roles: tuple[str, ...]
    """The roles in which nodes ask it."""
    backend: str
    model: str
    """The name of its file, or its server's name for it."""
    context_tokens: int | None
    """Context of one call; None if its server decides that."""
    slots: int | None
    """Calls at once; None if its server decides that."""
    footprint: Footprint | None
    """The parts of a model from a file, the cache for all slots; None for a server's model."""
    need: Mapping[str, int]
    """Bytes by device; empty if unknown or not counted."""
    is_managed: bool
    """Whether the budget loads and unloads it."""
    fit: Fit
    pin: bool
    problem: str | None
    """Why its size is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice(Device):
    """Memory of the budget."""

    wanted_bytes: int
    """The total size of the plan's models on the device."""

    @property
    def has_room(self) -> bool:
        """Whether all of them can be in memory at once."""
        return self.wanted_bytes <= self.room_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The plan of a pipeline's models, before a run."""

    pipeline: str
    devices: tuple[PlannedDevice, ...]
    """`machine` is the first."""
    models: tuple[PlannedModel, ...]
    """Models that the pipeline asks come first."""
    refusals: tuple[Notice, ...]
    """Why a run would be refused; usually empty."""


async def plan_models(
    graph: Graph,
    settings: Settings,
    *,
    environment: Mapping[str, str],
) -> ModelPlan:
    """Plans a run's use of its models.

    Servers are asked for the size of a managed model if its endpoint does not give it, and for the
    models they serve, as at the beginning of a run. The row of a silent server says so.

    Raises:
        PipelineInvalid: The pipeline has a mistake.
        ConfigurationInvalid: The settings contradict themselves, a role has no model, or the
            capacity of a device is unknown.
        SameModel: Producer and evaluator, or their fallbacks, are one model.
        SameFamily: They are relatives, and the settings refuse that.
        ModelFileInvalid: A file that must be compared with another cannot be read.
    """
    # 1. Who is asked.
    graph.check()
    endpoints = known_endpoints(settings)
    check_managed(endpoints.values())
    casting = Casting(endpoints, settings)
    if judges(graph):
        casting.check()
        await casting.ask_servers(Tracer(), environment=environment)
        casting.choose_evaluators(Tracer(), task="", run_id="")
    players = Players(roles=casting.roles, memory=settings.memory.models)
    demand = demand_of(graph)
    declared = {name: roles for name, roles in demand.items() if roles is not None}
    is_unknown = len(declared) < len(demand)
    roles = _roles(_asked(declared, players), casting, endpoints, all_of_them=is_unknown)

    # 2. How large they are, and what there is room for.
    sizes = await asyncio.gather(*(_size_up(endpoints[tag], environment) for tag in roles))
    memory = _Memory(dict(zip(roles, sizes, strict=True)), settings.budget)
    needed = casting.required | {tag for tag, played in roles.items() if played}
    refusals = tuple(
        Notice(code=error.code, message=str(error)) for error in _refusals(needed, memory)
    )

    # 3. All of it side by side.
    models = tuple(_planned_model(endpoints[tag], played, memory) for tag, played in roles.items())
    return ModelPlan(
        pipeline=graph.name,
        devices=tuple(
            PlannedDevice(
                **asdict(device),
                wanted_bytes=sum(model.need.get(device.name, 0) for model in models),
            )
            for device in memory.devices.values()
        ),
        models=models,
        refusals=refusals,
    )


def _planned_model(endpoint: Endpoint, roles: Sequence[str], memory: _Memory) -> PlannedModel:
    tag = endpoint.tag
    size, tenant = memory.sizes[tag], memory.tenants.get(tag)
    says_context = endpoint.backend in FILE_BACKENDS or (
        provider_of(endpoint).takes_context and "context_tokens" in endpoint.model_fields_set
    )
    return PlannedModel(
        tag=tag,
        roles=tuple(roles),
        backend=endpoint.backend,
        model=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        context_tokens=endpoint.context_tokens if says_context else None,
        slots=slots_of(endpoint),
        footprint=size.footprint,
        need={} if tenant is None else tenant.need,
        is_managed=is_managed(endpoint),
        fit=memory.fit(tag),
        pin=endpoint.pin,
        problem=None if size.error is None else size.error.statement,
    )


# --- who is asked ---------------------------------------------------------------------------------


def _asked(declared: Mapping[str, Sequence[str]], players: Players) -> dict[str, tuple[str, ...]]:
    """By role, the tags of its models, for all roles that nodes ask in.

    The evaluator may have none: then code alone checks. So may the memory: wordllama embeds.

    Raises:
        ConfigurationInvalid: Another role has no model.
    """
    asked: dict[str, tuple[str, ...]] = {}
    for node, roles in declared.items():
        for role in roles:
            asked[role] = players.of(role)
            if not asked[role] and role not in {EVALUATOR, MEMORY}:
                try:
                    players.roles.model(role)
                except ConfigurationInvalid as error:
                    raise ConfigurationInvalid(
                        f"node '{node}' needs '{role}': {error}", code=error.code
                    ) from error
    return asked


def _roles(
    asked: Mapping[str, tuple[str, ...]],
    casting: Casting,
    endpoints: Mapping[str, Endpoint],
    *,
    all_of_them: bool,
) -> dict[str, list[str]]:
    """The roles of each endpoint that a run needs or has in memory; those asked come first.

    With `all_of_them`, any endpoint may be asked: what some node asks is unknown.
    """
    found: dict[str, list[str]] = {}
    for role, tags in asked.items():
        for tag in tags:
            found.setdefault(tag, []).append(role)
    wanted = casting.required.union(casting.roles.pool or ())
    for tag, endpoint in endpoints.items():
        if all_of_them or tag in wanted or (endpoint.pin and is_managed(endpoint)):
            found.setdefault(tag, [])
    for tag in tuple(found):
        for fallback in endpoints[tag].fallback:
            found.setdefault(fallback, [])
    return found


# --- how large they are ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """The known facts about a model's size; empty if the budget does not count it."""

    tenant: Tenant | None = None
    footprint: Footprint | None = None
    error: HarnessError | None = None
    """Why no more is known."""


async def _size_up(endpoint: Endpoint, environment: Mapping[str, str]) -> _Size:
    """The size of an endpoint's model, found without loading it."""
    if not is_managed(endpoint):
        return _Size()
    footprint = None
    try:
        footprint = file_footprint(endpoint)
        async with opened_host(endpoint, environment) as host:
            return _Size(tenant=await tenant_of(endpoint, host), footprint=footprint)
    except HarnessError as error:
        return _Size(footprint=footprint, error=error)


class _Memory:
    """Devices, and the models that the budget would put there.

    Raises:
        ConfigurationInvalid: The capacity of a device is unknown.
    """

    def __init__(self, sizes: Mapping[str, _Size], settings: BudgetSettings) -> None:
        self.sizes = sizes
        self.tenants = {tag: one.tenant for tag, one in sizes.items() if one.tenant is not None}
        named = [device for tenant in self.tenants.values() for device in tenant.need]
        self.devices = {device.name: device for device in devices_of(settings, named=named)}
        self.pinned = frozenset(tag for tag, tenant in self.tenants.items() if tenant.pin)

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
        """The sum that shows that a model never fits; None for one that fits, or may fit."""
        if tag not in self.tenants:
            return None
        try:
            check_fits(tag, self.tenants, self.devices)
        except DoesNotFit as error:
            return error
        return None


def _refusals(needed: Collection[str], memory: _Memory) -> Iterator[HarnessError]:
    """Why a run would be refused: a needed model never fits, or its file is no model."""
    for tag, size in memory.sizes.items():
        never = memory.never(tag)
        if never is not None and (tag in needed or tag in memory.pinned):
            yield never
        if isinstance(size.error, ModelFileInvalid) and tag in needed:
            yield size.error
