"""The plan of a pipeline's models: what each takes, where it fits, how often it will be loaded.

Nothing is loaded for it. The loads are those of a run in numbers, by the budget's own policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.errors import HarnessError, ModelFileInvalid, Notice
from harness.graph import Graph
from harness.residency import Device
from harness.residency.simulation import simulate
from harness.session.cast import Cast
from harness.session.casting import Casting
from harness.session.models import known_endpoints
from harness.session.planning import warnings
from harness.session.planning.asked_models import AskedModels, Stages, asked_models, players_of
from harness.session.planning.model_size import size_up
from harness.session.planning.planned_cast import judges_of, purposes
from harness.session.planning.planned_jobs import CALL_S, planned_jobs
from harness.session.planning.planned_memory import PlannedMemory, planned_memory
from harness.session.planning.planned_model import PlannedModel, planned_model
from harness.session.settings import WORDLLAMA, Settings
from harness.session.tenancy import check_managed
from harness.session.uses import uses_of
from harness.session.usual_rounds import usual_rounds
from harness.trace import AUDIT_LOG, Tracer

ITEMS = 4
"""Of every mapped node, unless told otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedDevice:
    """Memory of the budget."""

    name: str
    """`machine`, `gpu0`, …"""
    capacity_bytes: int
    """What the budget may use of it, the reserve included."""
    reserve_bytes: int
    """What is kept free of it."""
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
    """Its name."""
    items: int
    """How many items every mapped node was taken to have."""
    devices: tuple[PlannedDevice, ...]
    """`machine` is the first."""
    models: tuple[PlannedModel, ...]
    """Those that the pipeline asks come first."""
    unused: tuple[str, ...]
    """Tags of the endpoints that have nothing to do with it."""
    loads: int | None
    """How often models will be loaded, as predicted; None where that cannot be."""
    load_s: float | None
    """What that takes in all; None as above."""
    notes: tuple[str, ...]
    """What the prediction rests on."""
    warnings: tuple[Notice, ...]
    """What is to be kept in mind."""
    refusals: tuple[Notice, ...]
    """Why a run of it does not begin; none, as a rule."""


async def plan_models(
    graph: Graph, settings: Settings, *, environment: Mapping[str, str], items: int = ITEMS
) -> ModelPlan:
    """What a run of the pipeline would do with its models.

    Servers are asked how large a model is, where it is the budget's and nobody has said; and what
    they serve, as at the beginning of a run. One that does not answer has a row that says so.

    Args:
        graph: The pipeline.
        settings: Say who plays what, and how much memory there is.
        environment: Holds the keys that endpoints name.
        items: How many items every mapped node is taken to have.

    Raises:
        PipelineInvalid: The pipeline has a mistake.
        ConfigurationInvalid: The settings contradict themselves, a role has no model, or nobody
            says how much memory a device has.
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
    judges = judges_of(casting, settings)
    embedder = settings.memory.embedder
    cast = Cast(
        roles=casting.roles.with_evaluators(*judges.tags),
        embedder=None if embedder == WORDLLAMA else embedder,
        usual=await asyncio.to_thread(usual_rounds, settings.traces / AUDIT_LOG, graph.name),
    )
    uses = await asyncio.to_thread(uses_of, graph)
    players = players_of(uses, cast)
    there = purposes(players, casting, settings, endpoints)

    # 2. How large they are, and what there is room for.
    sizes = await asyncio.gather(*(size_up(endpoints[tag], environment) for tag in there))
    sized = dict(zip(there, sizes, strict=True))
    memory = await asyncio.to_thread(planned_memory, sized, settings)
    needed = casting.required | {tag for tags in players.values() for tag in tags}
    refusals = tuple(
        Notice(code=error.code, message=str(error)) for error in _refusals(needed, memory)
    )

    # 3. A run in numbers.
    seated = judges.seated(memory.tenants)
    cast = replace(cast, roles=casting.roles.with_evaluators(*seated))
    asked = asked_models(uses, cast, times=items)
    calls = _calls_to(memory, asked)
    loads = None if refusals else _loads(graph, calls, memory, settings, items=items)

    # 4. All of it side by side.
    models = tuple(
        planned_model(
            endpoints[tag],
            purpose=purpose,
            memory=memory,
            models=casting.models,
            loads=None if loads is None else loads.get(tag),
        )
        for tag, purpose in there.items()
    )
    notes = []
    if casting.summariser is not None:
        notes.append(f"'{casting.summariser}' shortens drafts that are too long; not counted")
    if loads:
        notes.append(
            f"every call is taken to last {CALL_S:g} s, every mapped node to have {items} items, "
            "and a revise loop as many rounds as are usual, or else as it may; nothing is taken to "
            "be in memory yet"
        )
    if loads is None and not refusals:
        notes.append("the budget's policy came to no end with these models")
    if judges.is_drawn:
        notes.append(
            "who of the pool evaluates is drawn when a run begins; counted with "
            f"'{seated[0]}', the largest"
        )
    return ModelPlan(
        pipeline=graph.name,
        items=items,
        devices=tuple(_planned_device(device, models) for device in memory.devices.values()),
        models=models,
        unused=tuple(tag for tag in endpoints if tag not in there),
        loads=None if loads is None else sum(loads.values()),
        load_s=None
        if loads is None
        else sum(count * memory.times[tag].seconds for tag, count in loads.items()),
        notes=(*notes, *asked.notes),
        warnings=(
            *warnings.on_evaluators(judges.tags, casting),
            *warnings.on_same_weights(models, endpoints, casting.models),
            *warnings.on_turns(calls, memory, loads or {}),
            *warnings.on_offload(models, endpoints),
            *warnings.on_unsized(models),
            *warnings.on_spares(models, needed | memory.pinned),
        ),
        refusals=refusals,
    )


def _refusals(needed: Collection[str], memory: PlannedMemory) -> Iterator[HarnessError]:
    """Why a run does not begin: of what it needs, something never fits, or is no model."""
    for tag, size in memory.sizes.items():
        never = memory.never(tag)
        if never is not None and (tag in needed or tag in memory.pinned):
            yield never
        if isinstance(size.error, ModelFileInvalid) and tag in needed:
            yield size.error


def _calls_to(memory: PlannedMemory, asked: AskedModels) -> dict[str, Stages]:
    """The calls of the nodes, as far as they are to models whose loads can be predicted."""
    fitting = {tag for tag in memory.tenants if memory.fit(tag) in {"whole", "split"}}

    def among(stages: Stages) -> Iterator[tuple[str, ...]]:
        for stage in stages:
            tags = tuple(tag for tag in stage if tag in fitting)
            if tags:
                yield tags

    return {node: tuple(among(stages)) for node, stages in asked.by_node.items()}


def _loads(
    graph: Graph,
    calls: Mapping[str, Stages],
    memory: PlannedMemory,
    settings: Settings,
    *,
    items: int,
) -> Mapping[str, int] | None:
    """How often each model will be loaded; None where the run in numbers has no end."""
    seen = simulate(
        planned_jobs(graph, calls, items=items),
        devices=memory.devices.values(),
        tenants=memory.tenants.values(),
        max_wait_s=settings.budget.max_wait_s,
    )
    return None if seen.unfinished else {tag: seen.loads_of.get(tag, 0) for tag in memory.tenants}


def _planned_device(device: Device, models: Sequence[PlannedModel]) -> PlannedDevice:
    return PlannedDevice(
        name=device.name,
        capacity_bytes=device.capacity_bytes,
        reserve_bytes=device.reserve_bytes,
        wanted_bytes=sum(model.need.get(device.name, 0) for model in models),
    )
