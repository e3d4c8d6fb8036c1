"""The warnings of a plan of models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, groupby

from harness.errors import Notice
from harness.hardware import first_gpu_layer, format_bytes, read_gguf_header, split_footprint
from harness.hardware.speed import GPU_SPEEDUP
from harness.inference import (
    FILE_BACKENDS,
    MACHINE,
    Endpoint,
    loading_of,
    provider_of,
    server_address,
)
from harness.residency import Device
from harness.residency.ledger import capacity_table
from harness.session.casting import Casting
from harness.session.planned_models import PlannedMemory, PlannedModel
from harness.session.separation import ComparedModels
from harness.session.tenancy import slots_of

_FILE_SETTINGS = ("context_tokens", "cache_type_k", "cache_type_v", "gpu_layers", "embeddings")
"""With another of these, a file is loaded another way."""


def on_evaluators(evaluators: Sequence[str], casting: Casting) -> Iterator[Notice]:
    """What a run warns of its models' kinship and of a judge of few bits."""
    producer = casting.roles.producer
    if producer is None:
        return
    for tag in evaluators:
        yield from casting.models.warnings(casting.models.refuse_kin(producer, tag))


def on_same_weights(
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
            size = format_bytes(one.need_bytes + other.need_bytes)
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


def on_turns(
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


def on_offload(
    models: Sequence[PlannedModel], endpoints: Mapping[str, Endpoint]
) -> Iterator[Notice]:
    """Models with only a part on a GPU, and the speed that Amdahl's law leaves them."""
    for model in models:
        estimate = None if model.problem else _offload_estimate(endpoints[model.tag])
        if estimate is not None:
            yield Notice(code="plan.split", message=f"'{model.tag}' is split: {estimate}")


def on_unsized(models: Sequence[PlannedModel]) -> Iterator[Notice]:
    """Models of the budget whose size is unknown."""
    for model in models:
        if model.is_managed and model.problem is not None:
            needed = (
                "a run that needs it does not begin, and what is predicted leaves it out"
                if model.roles
                else "what is predicted leaves it out"
            )
            yield Notice(
                code="plan.size-unknown",
                message=f"it is not known what '{model.tag}' takes ({model.problem}): {needed}",
            )


def on_spares(models: Sequence[PlannedModel], needed: frozenset[str]) -> Iterator[Notice]:
    """Models that never fit, and that a run does not need to begin."""
    for model in models:
        if model.fit == "never" and model.tag not in needed:
            yield Notice(
                code="plan.never-fits",
                message=f"'{model.tag}' never fits: a call that falls back on it fails",
            )


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
    """A setting's value; of a server's model, what it is told."""
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
    """Pairs of models that alternate, and in how many turns."""
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
    """What would let two models be in memory together."""
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
