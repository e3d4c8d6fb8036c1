"""The plan of a pipeline's models: the size of each, where it fits, how often it will be loaded.

Planning loads nothing. The loads follow from the budget's policy, and from the models that the
nodes declare or asked in the last run.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Final, Literal

from harness.errors import (
    ConfigurationInvalid,
    DoesNotFit,
    HarnessError,
    ModelFileInvalid,
    Notice,
)
from harness.graph import Graph
from harness.hardware import Footprint, format_bytes
from harness.inference import FILE_BACKENDS, MACHINE, Endpoint, provider_of
from harness.inference.endpoint import AUTO
from harness.residency import Device, Strand, Tenant, check_fits, planned_loads
from harness.residency.ledger import capacity_table
from harness.session.casting import Casting
from harness.session.demand import MEMORY, Demand, Players, ancestors, demand_of, last_asked
from harness.session.models import known_endpoints, opened_host
from harness.session.roles import EVALUATOR
from harness.session.settings import WORDLLAMA, BudgetSettings, Settings
from harness.session.tenancy import (
    check_managed,
    devices_of,
    file_footprint,
    is_managed,
    placed,
    slots_of,
    tenant_of,
)
from harness.trace import Journal, Tracer

TURNS: Final = 4
"""How often a node is assumed to alternate between its declared roles."""

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
    loads: int | None
    """None if not predicted."""
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
    loads: int | None
    """How often models will be loaded; None if not predicted."""
    proposals: Mapping[str, str]
    """By tag: the line of `harness.toml` that gives a model a better device, and the reason."""
    notes: tuple[str, ...]
    """The basis of the prediction, or why there is none."""
    warnings: tuple[Notice, ...]
    refusals: tuple[Notice, ...]
    """Why a run would be refused; usually empty."""


async def plan_models(
    graph: Graph,
    settings: Settings,
    *,
    environment: Mapping[str, str],
    endures: Callable[[Journal, Collection[str]], bool] = lambda *_: False,
) -> ModelPlan:
    """Plans a run's use of its models.

    Servers are asked for the size of a managed model if its endpoint does not give it, and for the
    models they serve, as at the beginning of a run. The row of a silent server says so.

    The plan assumes that no model is in memory yet, that all items of a mapped node run at once,
    and that no call waits longer than `max_wait_s`. `endures` says whether a run would have ended
    as soon with these nodes' models on the processor.

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
    await casting.ask_servers(Tracer(), environment=environment)
    casting.choose_evaluators(Tracer(), task="", run_id="")
    embedder = settings.memory.embedder
    players = Players(
        roles=casting.roles,
        embedder=None if embedder == WORDLLAMA else embedder,
    )
    seen, last = await asyncio.to_thread(last_asked, settings.traces, graph.name)
    demand = demand_of(graph, seen)
    unknown = [name for name, one in demand.items() if one.source == "unknown"]
    roles = _roles(_asked(demand, players), casting, endpoints, all_of_them=bool(unknown))

    # 2. How large they are, and what there is room for.
    sizes = await asyncio.gather(*(_size_up(endpoints[tag], environment) for tag in roles))
    memory = _Memory(dict(zip(roles, sizes, strict=True)), settings.budget)
    needed = casting.required | {tag for tag, played in roles.items() if played}
    refusals = tuple(
        Notice(code=error.code, message=str(error)) for error in _refusals(needed, memory)
    )

    # 3. How often they are loaded.
    uses = {name: _uses(one, players, memory) for name, one in demand.items()}
    loads: Mapping[str, int] | None = None
    if not refusals and not unknown:
        strands = [
            Strand(name=name, uses=used, after=frozenset(ancestors(graph, name)))
            for name, used in uses.items()
        ]
        counted = planned_loads(strands, devices=memory.devices, tenants=memory.tenants)
        loads = {tag: counted[tag] for tag in memory.tenants}

    # 4. Where they would be better off.
    slow = {}
    for tag, tenant in memory.tenants.items():
        nodes = [name for name, one in demand.items() if tag in one.uses(players)]
        has_run = nodes and seen.keys() >= {*nodes}
        fits = tenant.need_bytes <= memory.devices[MACHINE].room_bytes
        if last and has_run and fits and EVALUATOR not in roles[tag] and endures(last, nodes):
            said = "', '".join(nodes)
            slow[tag] = f"ten times slower, '{said}' would not have delayed the last run"
    sized = {tag: endpoints[tag] for tag in roles if memory.sizes[tag].error is None}
    proposals = dict(_proposals(sized, settings, slow))
    unseen = ["no run of it ended well: which models may be slow is unknown"] if proposals else []

    # 5. All of it side by side.
    models = tuple(
        _planned_model(endpoints[tag], played, memory, loads=loads) for tag, played in roles.items()
    )
    return ModelPlan(
        pipeline=graph.name,
        devices=tuple(_planned_device(device, models) for device in memory.devices.values()),
        models=models,
        loads=None if loads is None else sum(loads.values()),
        proposals=proposals,
        notes=(*_notes(demand, uses, unknown, casting), *([] if last else unseen)),
        warnings=tuple(_on_turns(uses, memory)),
        refusals=refusals,
    )


def _planned_model(
    endpoint: Endpoint, roles: Sequence[str], memory: _Memory, *, loads: Mapping[str, int] | None
) -> PlannedModel:
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
        loads=None if loads is None else loads.get(tag),
        problem=None if size.error is None else str(size.error).removeprefix(f"{tag}: "),
    )


def _planned_device(device: Device, models: Sequence[PlannedModel]) -> PlannedDevice:
    return PlannedDevice(
        name=device.name,
        capacity_bytes=device.capacity_bytes,
        reserve_bytes=device.reserve_bytes,
        wanted_bytes=sum(model.need.get(device.name, 0) for model in models),
    )


# --- who is asked ---------------------------------------------------------------------------------


def _asked(demand: Mapping[str, Demand], players: Players) -> dict[str, tuple[str, ...]]:
    """By role, the tags of its models, for all roles that nodes ask in.

    The evaluator may have none: then code alone checks. So may the memory: wordllama embeds.

    Raises:
        ConfigurationInvalid: Another role has no model.
    """
    asked: dict[str, tuple[str, ...]] = {}
    for node, one in demand.items():
        for role in one.roles:
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

    def overflows(self, tags: Collection[str]) -> Iterator[tuple[Device, int]]:
        """The devices without room for these beside what is pinned, and the bytes too much."""
        for device in self.devices.values():
            there = {*tags, *self.pinned}
            wanted_bytes = sum(self.tenants[tag].need.get(device.name, 0) for tag in there)
            if wanted_bytes > device.room_bytes:
                yield device, wanted_bytes - device.room_bytes


def _refusals(needed: Collection[str], memory: _Memory) -> Iterator[HarnessError]:
    """Why a run would be refused: a needed model never fits, or its file is no model."""
    for tag, size in memory.sizes.items():
        never = memory.never(tag)
        if never is not None and (tag in needed or tag in memory.pinned):
            yield never
        if isinstance(size.error, ModelFileInvalid) and tag in needed:
            yield size.error


# --- how often they are loaded --------------------------------------------------------------------


def _uses(demand: Demand, players: Players, memory: _Memory) -> tuple[str, ...]:
    """The models that one call of a node asks, if their loads can be predicted."""
    uses = demand.uses(players)
    fitting = tuple(tag for tag in uses if tag in memory.tenants and memory.never(tag) is None)
    is_alternating = demand.source == "declared" and len(set(uses)) > 1
    return fitting * TURNS if is_alternating else fitting


def _proposals(
    endpoints: Mapping[str, Endpoint], settings: Settings, slow: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Lines for models from files. Those in `slow`, with their nodes, may be on the processor."""
    free = [one for one in endpoints.values() if one.path and one.gpu_layers is None]
    free.sort(key=lambda one: one.device == MACHINE)  # of equals, one that has a GPU keeps it
    asked = {one.tag: MACHINE if one.tag in slow else AUTO for one in free}
    moved = {one.tag: one.model_copy(update={"device": asked[one.tag]}) for one in free}
    better = placed({**moved, **endpoints, **moved}, settings, may_split=True)
    for one in free:
        device = better[one.tag].device
        if device != one.device:
            is_whole = isinstance(device, str) and device != MACHINE
            why = slow.get(one.tag, "whole" if is_whole else "no GPU has room for all of it")
            yield one.tag, f"device = {json.dumps(device).replace(':', ' =')}  # {why}"


def _notes(
    demand: Mapping[str, Demand],
    uses: Mapping[str, Sequence[str]],
    unknown: Sequence[str],
    casting: Casting,
) -> Iterator[str]:
    if unknown:
        nodes = ", ".join(f"'{node}'" for node in unknown)
        yield (
            f"the order of calls is unknown: no run of {nodes} was found; run the pipeline once, "
            "or declare the roles that a node asks with models=[…]"
        )
    for node, one in demand.items():
        tags = dict.fromkeys(uses[node])
        if one.source == "declared" and len(tags) > 1:
            listed = " and ".join(f"'{tag}'" for tag in tags)
            yield (
                f"node '{node}' alternates between {listed} an unknown number of times; "
                f"assuming {TURNS}"
            )
    if casting.draw is not None:
        yield f"each run draws its evaluator from the pool; counted with '{casting.draw.evaluator}'"


def _on_turns(uses: Mapping[str, Sequence[str]], memory: _Memory) -> Iterator[Notice]:
    """Models that take turns within one call of a node, and have no room beside each other."""
    nodes: dict[tuple[str, str], tuple[str, int]] = {}
    for node, tags in uses.items():
        for pair, turns in _taking_turns(tags):
            nodes.setdefault(pair, (node, turns))
    for (one, other), (node, turns) in nodes.items():
        for device, excess_bytes in memory.overflows({one, other}):
            yield Notice(
                code="plan.takes-turns",
                message=f"node '{node}' alternates between '{one}' and '{other}', {turns} turns in "
                f"one call, and '{device.name}' has no room for both "
                f"({format_bytes(excess_bytes)} too much), so each round costs two loads; "
                f"remedies: more capacity under {capacity_table(device)}, less context_tokens or "
                "slots, or a smaller quantization",
            )


def _taking_turns(tags: Sequence[str]) -> Iterator[tuple[tuple[str, str], int]]:
    for one, other in combinations(dict.fromkeys(tags), 2):
        turns = [tag for tag, _ in groupby(tag for tag in tags if tag in (one, other))]
        if len(turns) > 2:
            yield (one, other), len(turns)
