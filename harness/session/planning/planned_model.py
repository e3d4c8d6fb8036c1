"""One model of a plan: what it is, what it takes, and where there is room for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.errors import ModelFileInvalid
from harness.hardware import Footprint
from harness.inference import FILE_BACKENDS, Endpoint, provider_of
from harness.session.planning.load_times import LoadTime
from harness.session.planning.planned_cast import Purpose
from harness.session.planning.planned_memory import Fit, PlannedMemory
from harness.session.separation import ComparedModels
from harness.session.tenancy import is_managed, slots_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """An endpoint that the pipeline needs, or whose model is in memory in any case."""

    tag: str
    """The endpoint's."""
    roles: tuple[str, ...]
    """Those in which the pipeline asks it."""
    others: tuple[str, ...]
    """What else it is there for, in words."""
    backend: str
    """How it is spoken to."""
    model: str
    """The name of its file, or what its server calls it."""
    quantisation: str | None
    """How its weights are packed; None when that is not known."""
    context_tokens: int | None
    """Of one call; None where its server decides that."""
    slots: int | None
    """Calls side by side; None where its server decides that."""
    footprint: Footprint | None
    """What a model from a file takes, in parts, the cache being that of this context, for all
    slots; None for a model of a server's."""
    need: Mapping[str, int]
    """Bytes that it takes in all, by device; empty where that is not known, or not counted."""
    is_managed: bool
    """Whether it is the budget's to load and to let go."""
    device: str
    """The one that its endpoint names."""
    fit: Fit
    """Whether there is room for it."""
    beside: tuple[str, ...]
    """Tags of the others of the plan each of which can be in memory at the same time."""
    pin: bool
    """Whether its endpoint has it stay in memory for the whole run."""
    priority: int
    """Of models that want the same room, the highest is loaded first."""
    loads: int | None
    """How often it will be loaded, as predicted; None where it is not."""
    load_time: LoadTime | None
    """What one load takes; None where it is not the budget's, or its size not known."""
    problem: str | None
    """Why its size is not known; None for nothing."""

    @property
    def need_bytes(self) -> int:
        """What it takes on all devices together, as far as is known."""
        return sum(self.need.values())


def planned_model(
    endpoint: Endpoint,
    *,
    purpose: Purpose,
    memory: PlannedMemory,
    models: ComparedModels,
    loads: int | None,
) -> PlannedModel:
    """What is to be shown of an endpoint.

    Args:
        endpoint: As written down.
        purpose: What it is there for.
        memory: What there is room for.
        models: What is behind the tags.
        loads: How often it will be loaded.
    """
    tag, size, tenant = endpoint.tag, memory.sizes[endpoint.tag], memory.tenants.get(endpoint.tag)
    says_context = endpoint.backend in FILE_BACKENDS or (
        provider_of(endpoint).takes_context and "context_tokens" in endpoint.model_fields_set
    )
    return PlannedModel(
        tag=tag,
        roles=tuple(purpose.roles),
        others=tuple(purpose.others),
        backend=endpoint.backend,
        model=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        quantisation=_quantisation(tag, models),
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


def _quantisation(tag: str, models: ComparedModels) -> str | None:
    try:
        return models.identity(tag).quantisation
    except ModelFileInvalid:
        return None  # its size is not known for the same reason, and that is told
