"""The plan of a pipeline's models: what each takes, where it fits, how often it will be loaded.

Nothing is loaded for it. The loads follow from the budget's own choice of models, and from what the
nodes declare or asked in the last run.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from harness.errors import (
    ConfigurationInvalid,
    HarnessError,
    ModelFileInvalid,
    Notice,
)
from harness.graph import Graph
from harness.inference import Endpoint
from harness.residency import Device, Strand, planned_loads
from harness.session.casting import Casting
from harness.session.demand import MEMORY, Demand, Players, ancestors, demand_of, last_asked
from harness.session.models import known_endpoints
from harness.session.planned_models import (
    PlannedMemory,
    PlannedModel,
    planned_memory,
    planned_model,
    planned_warnings,
    size_up,
)
from harness.session.roles import EVALUATOR
from harness.session.separation import evaluator_pool
from harness.session.settings import WORDLLAMA, Settings
from harness.session.tenancy import (
    check_managed,
    is_managed,
)
from harness.trace import Tracer

ITEMS = 4
"""How often a node alternates between the roles that it declares, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """Memory of the budget."""

    name: str
    """`machine`, `gpu0`, …"""
    capacity_bytes: int
    """What the budget may use of it, the reserve included."""
    reserve_bytes: int
    wanted_bytes: int
    """What the models of the plan take there, all of them together."""

    @property
    def has_room(self) -> bool:
        """Whether all of them can be in memory at once."""
        return self.wanted_bytes <= self.capacity_bytes - self.reserve_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """What is known of a pipeline's models before it is run."""

    pipeline: str
    items: int
    """How often a node was taken to alternate between roles."""
    devices: tuple[PlannedDevice, ...]
    """`machine` is the first."""
    models: tuple[PlannedModel, ...]
    """Those that the pipeline asks come first."""
    unused: tuple[str, ...]
    """Tags of the endpoints that have nothing to do with it."""
    loads: int | None
    """How often models will be loaded; None if not predicted."""
    load_s: float | None
    """What that takes in all; None as above."""
    notes: tuple[str, ...]
    """What the prediction rests on, or why it is missing."""
    warnings: tuple[Notice, ...]
    refusals: tuple[Notice, ...]
    """Why a run of it does not begin; empty as a rule."""


async def plan_models(
    graph: Graph, settings: Settings, *, environment: Mapping[str, str], items: int = ITEMS
) -> ModelPlan:
    """What a run of the pipeline would do with its models.

    Servers are asked how large a managed model is if its endpoint does not say so, and what they
    serve, as at the beginning of a run. One that does not answer has a row that says so.

    Args:
        graph: The pipeline.
        settings: Say who plays what, and how much memory there is.
        environment: Holds the keys that endpoints name.
        items: How often a node is taken to alternate between the roles that it declares.

    Raises:
        PipelineInvalid: The pipeline has a mistake.
        ConfigurationInvalid: The settings contradict themselves, a role has no model, or the
            capacity of a device is unknown.
        SameModel: Producer and evaluator, or those that can answer for them, are one model.
        SameFamily: They are relatives, and the settings refuse those.
        ModelFileInvalid: A file that must be compared with another cannot be read.
    """
    # 1. Who is asked.
    graph.check()
    endpoints = known_endpoints(settings)
    check_managed(endpoints.values())
    casting = Casting(endpoints, settings)
    await casting.ask_servers(Tracer(), environment=environment)
    judges, is_drawn = _judges(casting, settings)
    embedder = settings.memory.embedder
    players = Players(
        roles=casting.roles.with_evaluators(*judges),
        embedder=None if embedder == WORDLLAMA else embedder,
        summarizer=casting.summarizer,
    )
    seen = await asyncio.to_thread(last_asked, settings.traces, graph.name)
    demand = demand_of(graph, seen)
    unknown = [name for name, one in demand.items() if one.source == "unknown"]
    asked = _asked(demand, players)
    there = _purposes(asked, casting, settings, endpoints, all_of_them=bool(unknown))

    # 2. How large they are, and what there is room for.
    sizes = await asyncio.gather(*(size_up(endpoints[tag], environment) for tag in there))
    memory = await asyncio.to_thread(planned_memory, dict(zip(there, sizes, strict=True)), settings)
    needed = casting.required | {tag for tags in asked.values() for tag in tags}
    refusals = tuple(
        Notice(code=error.code, message=str(error)) for error in _refusals(needed, memory)
    )

    # 3. How often they are loaded.
    seated = players
    if is_drawn:  # counted with the largest, so that a run is no worse
        largest = max(judges, key=memory.need_bytes)
        seated = replace(players, roles=casting.roles.with_evaluators(largest))
    uses = {name: _uses(one, seated, memory, times=items) for name, one in demand.items()}
    is_predicted = not refusals and not unknown
    loads = None
    if is_predicted:
        strands = [
            Strand(name=name, uses=used, after=frozenset(ancestors(graph, name)))
            for name, used in uses.items()
        ]
        counted = planned_loads(strands, devices=memory.devices, tenants=memory.tenants)
        loads = {tag: counted[tag] for tag in memory.tenants}

    # 4. All of it side by side.
    models = tuple(
        planned_model(
            endpoints[tag],
            roles=purpose.roles,
            others=purpose.others,
            memory=memory,
            models=casting.models,
            loads=None if loads is None else loads.get(tag),
        )
        for tag, purpose in there.items()
    )
    load_s = None
    if loads is not None:
        load_s = math.fsum(count * memory.times[tag].seconds for tag, count in loads.items())
    notes = [*_notes(demand, uses, unknown, times=items)]
    if casting.summarizer is not None:
        notes.append(f"'{casting.summarizer}' shortens drafts that are too long; not counted")
    if loads:
        notes.append(
            "no model is taken to be in memory yet, all items of a mapped node to be under way at "
            "once, and no call to wait longer than max_wait_s"
        )
    if is_drawn:
        notes.append(
            f"the evaluator is drawn from the pool when a run begins; counted with '{largest}', "
            "the largest"
        )
    return ModelPlan(
        pipeline=graph.name,
        items=items,
        devices=tuple(_planned_device(device, models) for device in memory.devices.values()),
        models=models,
        unused=tuple(tag for tag in endpoints if tag not in there),
        loads=None if loads is None else sum(loads.values()),
        load_s=load_s,
        notes=tuple(notes),
        warnings=tuple(
            planned_warnings(
                models,
                memory,
                endpoints,
                casting,
                evaluators=judges,
                uses=uses,
                loads=loads,
                needed=needed | memory.pinned,
            )
        ),
        refusals=refusals,
    )


def _refusals(needed: Collection[str], memory: PlannedMemory) -> Iterator[HarnessError]:
    """Why a run does not begin: something that it needs never fits, or is no model."""
    for tag, size in memory.sizes.items():
        never = memory.never(tag)
        if never is not None and (tag in needed or tag in memory.pinned):
            yield never
        if isinstance(size.error, ModelFileInvalid) and tag in needed:
            yield size.error


def _planned_device(device: Device, models: Sequence[PlannedModel]) -> PlannedDevice:
    return PlannedDevice(
        name=device.name,
        capacity_bytes=device.capacity_bytes,
        reserve_bytes=device.reserve_bytes,
        wanted_bytes=sum(model.need.get(device.name, 0) for model in models),
    )


# --- who is asked ---------------------------------------------------------------------------------


def _judges(casting: Casting, settings: Settings) -> tuple[tuple[str, ...], bool]:
    """The models that evaluate, and whether one of them will be drawn when a run begins."""
    pool = casting.roles.pool
    if pool is not None and settings.evaluation.panel is settings.separation.pool_seed is None:
        members = evaluator_pool(pool, producer=casting.roles.producer, models=casting.models)
        return tuple(dict.fromkeys(members.members)), True
    if pool is not None:
        casting.choose_evaluators(Tracer(), task="", run_id="")
    return casting.roles.evaluators, False


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
                        f"node '{node}' needs '{role}': {error}", code="roles.unassigned"
                    ) from error
    return asked


@dataclass(slots=True)
class _Purpose:
    """What an endpoint is there for."""

    roles: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def _purposes(
    asked: Mapping[str, tuple[str, ...]],
    casting: Casting,
    settings: Settings,
    endpoints: Mapping[str, Endpoint],
    *,
    all_of_them: bool,
) -> dict[str, _Purpose]:
    """What each endpoint is there for that a run needs or has in memory; those asked first.

    With `all_of_them`, any endpoint may be asked: what some node asks is unknown.
    """
    found: dict[str, _Purpose] = {}

    def of(tag: str) -> _Purpose:
        return found.setdefault(tag, _Purpose())

    for role, tags in asked.items():
        for tag in tags:
            of(tag).roles.append(role)
    if casting.summarizer is not None:
        of(casting.summarizer).others.append("shortens drafts")
    for role, named in settings.roles.items():
        if isinstance(named, str) and role not in asked:
            how = "may be asked" if all_of_them else "which no node asks"
            of(named).others.append(f"is '{role}', {how}")
    for tag, endpoint in endpoints.items():
        if all_of_them or tag in casting.required or (endpoint.pin and is_managed(endpoint)):
            of(tag)
    for tag in tuple(found):
        for fallback in endpoints[tag].fallback:
            of(fallback).others.append(f"stands in for '{tag}'")
    return found


# --- how often they are loaded --------------------------------------------------------------------


def _uses(
    demand: Demand, players: Players, memory: PlannedMemory, *, times: int
) -> tuple[str, ...]:
    """What one call of a node asks, of the models whose loads can be predicted."""
    uses = demand.uses(players)
    fitting = tuple(tag for tag in uses if tag in memory.tenants and memory.never(tag) is None)
    is_alternating = demand.source == "declared" and len(set(uses)) > 1
    return fitting * times if is_alternating else fitting


def _notes(
    demand: Mapping[str, Demand],
    uses: Mapping[str, Sequence[str]],
    unknown: Sequence[str],
    *,
    times: int,
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
                f"assuming {times}"
            )
