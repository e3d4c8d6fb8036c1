"""The plan of a pipeline's models: the size of each, and where it fits. Planning loads nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal, NamedTuple

from harness.errors import DoesNotFit, HarnessError, ModelFileInvalid, Notice
from harness.graph import Graph
from harness.hardware import Footprint
from harness.inference import FILE_BACKENDS, Endpoint, provider_of
from harness.residency import Device, Tenant, check_fits
from harness.session.casting import Casting
from harness.session.demand import MEMORY, Players, demand_of, judges
from harness.session.models import known_endpoints, opened_host
from harness.session.roles import EVALUATOR
from harness.session.session import models_for
from harness.session.settings import Settings
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
    sizes = await asyncio.gather(
        *(_sized(endpoints[tag], played, environment) for tag, played in roles.items())
    )
    tenants = {model.tag: tenant for model, tenant, _ in sizes if tenant is not None}
    named = [device for tenant in tenants.values() for device in tenant.need]
    devices = {device.name: device for device in devices_of(settings.budget, named=named)}
    needed = casting.required | {tag for tag, played in roles.items() if played}
    models, refusals = [], list[HarnessError]()
    for model, tenant, error in sizes:
        fit = model.fit
        if tenant is not None:
            fit = "split" if tenant.is_split else "whole"
            try:
                check_fits(model.tag, tenants, devices)
            except DoesNotFit as never:
                fit = "never"
                refusals += [never] if model.tag in needed or tenant.pin else []
        if isinstance(error, ModelFileInvalid) and model.tag in needed:
            refusals.append(error)
        models.append(replace(model, fit=fit))

    # 3. All of it side by side.
    return ModelPlan(
        pipeline=graph.name,
        devices=tuple(
            PlannedDevice(
                **asdict(device),
                wanted_bytes=sum(model.need.get(device.name, 0) for model in models),
            )
            for device in devices.values()
        ),
        models=tuple(models),
        refusals=tuple(Notice(code=one.code, message=str(one)) for one in refusals),
    )


# --- who is asked ---------------------------------------------------------------------------------


def _asked(declared: Mapping[str, Sequence[str]], players: Players) -> dict[str, tuple[str, ...]]:
    """By role, the tags of its models, for all roles that nodes ask in.

    The evaluator may have none: then code alone checks. So may the memory: wordllama embeds.

    Raises:
        ConfigurationInvalid: Another role has no model.
    """
    asking = {role: f"node '{node}'" for node, roles in declared.items() for role in roles}
    asked = {role: players.of(role) for role in asking}
    lacking = (role for role, tags in asked.items() if not tags)
    needed = {role: asking[role] for role in lacking if role not in {EVALUATOR, MEMORY}}
    models_for(needed, players.roles)
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


async def _sized(
    endpoint: Endpoint, roles: Sequence[str], environment: Mapping[str, str]
) -> _Sized:
    """An endpoint's model and its size, found without loading it."""
    says_context = endpoint.backend in FILE_BACKENDS or (
        provider_of(endpoint).takes_context and "context_tokens" in endpoint.model_fields_set
    )
    tenant, footprint, error = None, None, None
    if is_managed(endpoint):
        try:
            footprint = file_footprint(endpoint)
            async with opened_host(endpoint, environment) as host:
                tenant = await tenant_of(endpoint, host)
        except HarnessError as failed:
            error = failed
    model = PlannedModel(
        tag=endpoint.tag,
        roles=tuple(roles),
        backend=endpoint.backend,
        model=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        context_tokens=endpoint.context_tokens if says_context else None,
        slots=slots_of(endpoint),
        footprint=footprint,
        need={} if tenant is None else tenant.need,
        is_managed=is_managed(endpoint),
        fit="unknown" if error else "not counted" if tenant is None else "whole",
        pin=endpoint.pin,
        problem=None if error is None else error.statement,
    )
    return _Sized(model, tenant, error)


class _Sized(NamedTuple):
    """A model of the plan, and what the budget would know of it."""

    model: PlannedModel
    tenant: Tenant | None
    """None if the budget does not count it, or its size is unknown."""
    error: HarnessError | None
    """Why no more is known."""
