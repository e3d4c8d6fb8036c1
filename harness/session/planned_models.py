"""The models of a plan: how large each is, where it has room, and what is to be said against it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from pathlib import Path
from statistics import median
from typing import Literal

from harness.errors import (
    DoesNotFit,
    HarnessError,
    JournalInvalid,
    ModelFileInvalid,
    Notice,
)
from harness.hardware import (
    Footprint,
    first_gpu_layer,
    format_bytes,
    read_gguf_header,
    split_footprint,
)
from harness.hardware.speed import GPU_SPEEDUP
from harness.inference import (
    FILE_BACKENDS,
    MACHINE,
    Endpoint,
    loading_of,
    provider_of,
    server_address,
)
from harness.residency import Device, Tenant, check_fits
from harness.residency.ledger import capacity_table
from harness.session.casting import Casting
from harness.session.demand import latest_journals
from harness.session.models import open_endpoint
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

_FILE_SETTINGS = ("context_tokens", "cache_type_k", "cache_type_v", "gpu_layers", "embeddings")
"""With another of these, a file is loaded another way."""

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
    others: tuple[str, ...]
    """What else it is there for, in words."""
    backend: str
    model: str
    """The name of its file, or its server's name for it."""
    quantization: str | None
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
    fit: Fit
    beside: tuple[str, ...]
    """Tags of the others of the plan that can each be in memory at the same time."""
    pin: bool
    priority: int
    loads: int | None
    """None if not predicted."""
    load_time: LoadTime | None
    """None if it is not the budget's, or its size is unknown."""
    problem: str | None
    """Why its size is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """What could be found out about a model; nothing if it is not the budget's."""

    tenant: Tenant | None = None
    footprint: Footprint | None = None
    error: HarnessError | None = None
    """Why no more is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMemory:
    """Devices, and the models that the budget would put there."""

    devices: Mapping[str, Device]
    """By name; `machine` is the first."""
    sizes: Mapping[str, ModelSize]
    """By tag, of all models of the plan."""
    tenants: Mapping[str, Tenant]
    """Those of known size."""
    times: Mapping[str, LoadTime]

    @property
    def pinned(self) -> frozenset[str]:
        """Models that stay for the whole run."""
        return frozenset(tag for tag, tenant in self.tenants.items() if tenant.pin)

    def need_bytes(self, tag: str) -> int:
        """0 if unknown."""
        return self.tenants[tag].need_bytes if tag in self.tenants else 0

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


# --- what is warned of ----------------------------------------------------------------------------


def planned_warnings(
    models: Sequence[PlannedModel],
    memory: PlannedMemory,
    endpoints: Mapping[str, Endpoint],
    casting: Casting,
    *,
    evaluators: Sequence[str],
    uses: Mapping[str, Sequence[str]],
    loads: Mapping[str, int] | None,
    needed: Collection[str],
) -> Iterator[Notice]:
    """What a person should know before the run.

    Args:
        models: The rows of the plan.
        memory: Where they have room.
        endpoints: By tag.
        casting: Knows which models are relatives.
        evaluators: Tags of those that evaluate, or may come to.
        uses: By node, the models that one call of it asks, in order.
        loads: By tag; None if not predicted.
        needed: Tags of the models without which the run does not begin.
    """
    yield from _on_evaluators(evaluators, casting)
    yield from _on_same_weights(models, endpoints, casting.models)
    yield from _on_turns(uses, memory, loads)
    yield from _on_offload(models, endpoints)
    for model in models:
        if model.is_managed and model.problem is not None:
            begins = "a run that needs it does not begin, and " if model.roles else ""
            yield Notice(
                code="plan.size-unknown",
                message=f"it is not known what '{model.tag}' takes ({model.problem}): {begins}what "
                "is predicted leaves it out",
            )
    for model in models:
        if model.fit == "never" and model.tag not in needed:
            yield Notice(
                code="plan.never-fits",
                message=f"'{model.tag}' never fits: a call that falls back on it fails",
            )


def _on_evaluators(evaluators: Sequence[str], casting: Casting) -> Iterator[Notice]:
    """What a run warns of: kinship between models, and an evaluator of few bits."""
    producer = casting.roles.producer
    if producer is None:
        return
    for tag in evaluators:
        yield from casting.models.warnings(casting.models.refuse_kin(producer, tag))


def _on_same_weights(
    models: Sequence[PlannedModel], endpoints: Mapping[str, Endpoint], compared: ComparedModels
) -> Iterator[Notice]:
    """Endpoints of different roles that lead to one file or one model of a server."""
    used = [model for model in models if model.roles and model.problem is None]
    for one, other in combinations(used, 2):
        mine, its = endpoints[one.tag], endpoints[other.tag]
        if _weights(mine, compared) != _weights(its, compared):
            continue
        both = f"{_who(one)} and {_who(other)}"
        differing = ", ".join(_differences(mine, its))
        if mine.backend in FILE_BACKENDS:
            size = format_bytes(sum(one.need.values()) + sum(other.need.values()))
            file = " and ".join(dict.fromkeys((one.model, other.model)))
            why = f", with different {differing}" if differing else ""
            yield Notice(
                code="plan.weights-twice",
                message=f"{both} want the same weights ({file}){why}: they are loaded twice, and "
                f"take {size} together; give both roles one endpoint, whose settings do for either",
            )
        elif differing:
            yield Notice(
                code="plan.model-reloaded",
                message=f"{both} want the same model of one server, '{one.model}', with different "
                f"{differing}: {_reloads(mine)}; give both roles one endpoint, or the two the same "
                f"{differing}",
            )
        elif mine.manage and its.manage:
            yield Notice(
                code="plan.managed-twice",
                message=f"{both} are the same model of one server, '{one.model}', and both are "
                "managed: it is counted twice, and when one is let go the other is gone; give "
                "both roles one endpoint",
            )


def _on_turns(
    uses: Mapping[str, Sequence[str]], memory: PlannedMemory, loads: Mapping[str, int] | None
) -> Iterator[Notice]:
    """Models that take turns within one call of a node, and have no room beside each other."""
    nodes: dict[tuple[str, str], tuple[str, int]] = {}
    for node, tags in uses.items():
        for pair, turns in _taking_turns(tags):
            nodes.setdefault(pair, (node, turns))
    for (one, other), (node, turns) in nodes.items():
        both = "" if loads is None else f", and the run {loads[one] + loads[other]} of these two"
        for device, excess_bytes in memory.overflows({one, other}):
            yield Notice(
                code="plan.takes-turns",
                message=f"node '{node}' goes back and forth between '{one}' and '{other}', "
                f"{turns} turns in one call, and '{device.name}' has no room for both "
                f"({_sum([one, other], memory, device)}: {format_bytes(excess_bytes)} too much), "
                f"so that each round costs two loads{both}; "
                f"{_remedies([one, other], memory, device)}",
            )


def _on_offload(
    models: Sequence[PlannedModel], endpoints: Mapping[str, Endpoint]
) -> Iterator[Notice]:
    """Models with only a part on a GPU, and the speed that Amdahl's law leaves them."""
    for model in models:
        estimate = None if model.problem else _offload_estimate(endpoints[model.tag])
        if estimate is not None:
            yield Notice(code="plan.split", message=f"'{model.tag}' is split: {estimate}")


def _weights(endpoint: Endpoint, compared: ComparedModels) -> object:
    """Equal for endpoints that lead to the same weights in the same place."""
    if endpoint.path is not None:
        return compared.identity(endpoint.tag).fingerprint
    if endpoint.url is None:
        return endpoint.tag
    return server_address(endpoint.url), endpoint.model_id


def _who(model: PlannedModel) -> str:
    return f"'{model.tag}' ({', '.join(model.roles)})"


def _differences(one: Endpoint, other: Endpoint) -> Iterator[str]:
    names = _FILE_SETTINGS if one.backend in FILE_BACKENDS else ("context_tokens", "embeddings")
    for name in names:
        mine, its = (_said(name, endpoint) for endpoint in (one, other))
        if mine != its:
            yield f"{name} ({mine} and {its})"
    if one.backend in FILE_BACKENDS and slots_of(one) != slots_of(other):
        yield f"slots ({slots_of(one)} and {slots_of(other)})"


def _said(name: str, endpoint: Endpoint) -> object:
    value: object = getattr(endpoint, name)
    told = endpoint.backend in FILE_BACKENDS or name in endpoint.model_fields_set
    if name == "context_tokens" and not told:
        return "the server's own"
    return "all" if name == "gpu_layers" and value is None else value


def _reloads(endpoint: Endpoint) -> str:
    provider = provider_of(endpoint)
    if provider.takes_context:
        return f"{provider.title} loads it again whenever a call has another context than the last"
    return "the server may load it again for each"


def _taking_turns(tags: Sequence[str]) -> Iterator[tuple[tuple[str, str], int]]:
    for one, other in combinations(dict.fromkeys(tags), 2):
        turns = [tag for tag, _ in groupby(tag for tag in tags if tag in (one, other))]
        if len(turns) > 2:
            yield (one, other), len(turns)


def _sum(both: Sequence[str], memory: PlannedMemory, device: Device) -> str:
    def size(tag: str) -> str:
        return format_bytes(memory.tenants[tag].need.get(device.name, 0))

    parts = [size(tag) for tag in both]
    parts += [f"{size(tag)} of pinned '{tag}'" for tag in sorted(memory.pinned.difference(both))]
    return f"{' + '.join(parts)} of {format_bytes(device.room_bytes)}"


def _remedies(both: Sequence[str], memory: PlannedMemory, device: Device) -> str:
    ways = [f"more capacity under {capacity_table(device)}"]
    caches = [(tag, parts.kv_bytes) for tag in both if (parts := memory.sizes[tag].footprint)]
    if caches:
        sizes = " and ".join(f"{format_bytes(size)} of '{tag}'" for tag, size in caches)
        ways.append(
            f'a smaller cache ({sizes}) by less context_tokens or slots, or by "q8_0" for '
            "cache_type_k and cache_type_v"
        )
    return f"what would help: {', '.join(ways)}, or a smaller quantization"


def _offload_estimate(endpoint: Endpoint) -> str | None:
    layers = endpoint.gpu_layers
    if layers is None or endpoint.backend not in FILE_BACKENDS or endpoint.device == MACHINE:
        return None
    assert endpoint.path is not None
    header = read_gguf_header(endpoint.path)
    on_machine = first_gpu_layer(header, layers)
    if on_machine == 0:
        return None
    split = split_footprint(header, loading_of(endpoint, header), gpu_layers=layers)
    return (
        f"with gpu_layers = {layers}, {max(header.block_count - on_machine, 0)} of its "
        f"{header.block_count} layers and {split.gpu_share:.0%} of its weights are on "
        f"'{endpoint.device}': {split.speedup():.1f} times as fast as without, where all of it "
        f"there would be {GPU_SPEEDUP:g} times as fast (Amdahl's law, for a GPU of that speed); a "
        "smaller model that fits whole is nearly always faster"
    )
