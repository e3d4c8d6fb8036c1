"""Layouts of models on devices: which fit, how quick each can be, which targets it meets.

A layout is a precision, the GPUs that divide each layer (tensor parallel), the stages that have
some layers each (pipeline), and copies of all that. It reads nothing and runs nothing.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

from harness.advise import rates as formulas
from harness.advise.data_tables import DeviceSpec, known_devices, quantization_of, quantizations
from harness.advise.model_shape import PROMPT_TOKENS_AT_ONCE, ModelShape, Packing
from harness.advise.rates import CEILING, Factors, Rates, has_small_experts, usual_factors
from harness.errors import InvalidInput
from harness.hardware.footprint import GPU_CONTEXT_BYTES, padded_tokens
from harness.hardware.quantization import KvBits, role_floor
from harness.trace.calls import Call, answered_by_model
from harness.trace.intervals import most_at_once

Target = Literal["places", "TTFT", "ITL", "rate"]

# A model with fewer bits for each weight is served in the precision that it comes in.
WHOLE_BITS: Final = 15
# If a layer takes less time, most of it is for starting kernels and sending between GPUs.
_SHORT_S: Final = 1e-4
# With many small experts it is longer: DeepSeek-V3 wrote 30 to 60 tokens a second for one user on
# eight H200s (sgl-project/sglang issue 3956), 0.27 ms a layer and more.
_SHORT_OF_EXPERTS_S: Final = 3e-4
_MOST_RANKS: Final = 8  # the most GPUs that divide a layer; they are usually of one machine
_FIRST_PORT: Final = 8080
_PORTS_APART: Final = 100  # since each copy of a model has a port of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The workload that a model has to serve."""

    users: int = 1
    prompt_tokens: int = 2000
    output_tokens: int = 500
    rate_per_s: float | None = None  # requests that come at random; None: all users ask at once
    cached_tokens: int = 0  # the tokens of a prompt that a prefix cache has
    calls: int | None = None  # how many calls of a run it was read from
    ttft_s: float = 2.0
    itl_s: float = 0.05

    @property
    def context_tokens(self) -> int:
        """The tokens of one sequence, in whole blocks."""
        return padded_tokens(self.prompt_tokens + self.output_tokens)

    @property
    def middle_tokens(self) -> int:
        """The tokens of one sequence when half of its reply is written."""
        return self.prompt_tokens + self.output_tokens // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingGoal:
    """A model to be served."""

    role: str
    shape: ModelShape
    model: str  # the model's file, folder or name, as a server takes it
    workload: Workload
    quantization: str | None = None  # the only precision to consider; None for all of `precisions`
    kv_bits: KvBits = 16
    measured: Factors | None = None  # the factors of its device; None for the usual ones

    @property
    def factors(self) -> Factors:
        """The factors that were measured, or else the usual ones for the model's shape."""
        return self.measured or usual_factors(self.shape)


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that a layout misses, in users with a slot, seconds, or requests a second."""

    target: Target
    value: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One way to serve a model. A speed is None if the device's is unknown."""

    precision: str
    packing: Packing
    kv_bits: KvBits
    bits: float
    tensor_parallel: int
    stages: int
    copies: int
    weight_bytes: int  # the bytes of one copy's weights
    sequence_bytes: int  # the bytes of one sequence's KV cache, on all devices of its copy
    device_bytes: int  # the bytes on each device, with the sequences that have a slot
    sequences: int
    decode_limit: float | None
    prefill_limit: float | None  # tokens of a prompt that a copy reads in a second, at best
    ttft_s: float | None  # the last user's if all ask at once; the mean if requests come at a rate
    itl_s: float | None
    tokens_per_s: float | None  # of all replies, less the time of prompts if their speed is known
    is_bound: bool  # times are lower bounds: a step is mostly overhead, which is in no figure
    usd_per_hour: float | None
    misses: tuple[Miss, ...]

    @property
    def devices(self) -> int:
        """How many devices the layout takes."""
        return self.tensor_parallel * self.stages * self.copies


def layouts(goal: ServingGoal, device: DeviceSpec, *, taken_bytes: int = 0) -> list[Layout]:
    """The layouts that fit beside `taken_bytes` of other models on each device, the best first."""
    fitting: list[Layout] = []
    for shape in precisions(goal, device):
        for ranks, stages in divisions(shape, device.count):
            rates = Rates(shape, device, goal.kv_bits, ranks, stages, goal.factors)
            with suppress(InvalidInput):  # heads too narrow for a packed cache
                if layout := _least_copies(goal.workload, rates, taken_bytes):
                    fitting.append(layout)
    return sorted(fitting, key=_preference)


def _preference(layout: Layout) -> tuple[float, ...]:
    """Sorts by most targets met, then highest precision, then least cost, then speed."""
    cost = (layout.devices, layout.stages)
    return (len(layout.misses), -layout.bits, *cost, layout.ttft_s or 0, layout.itl_s or 0)


def _least_copies(workload: Workload, rates: Rates, taken_bytes: int) -> Layout | None:
    """The layout with the fewest copies that meet all targets, else with the most copies."""
    layout = None
    for copies in range(1, rates.device.count // (rates.tensor_parallel * rates.stages) + 1):
        layout = _layout(workload, rates, taken_bytes, copies)
        if layout is None or not layout.misses:
            break
    return layout


def precisions(goal: ServingGoal, device: DeviceSpec) -> list[ModelShape]:
    """The model as it comes, and if that is 16 bits, also quantized, down to its role's floor."""
    shape = goal.shape
    if goal.quantization:
        only = quantization_of(goal.quantization)
        return [shape if shape.quantization == only.name else shape.quantized(only)]
    if 8 * shape.weight_bytes / shape.parameters < WHOLE_BITS:
        return [shape]
    packings: set[Packing] = {shape.packing}
    # A model that is known by its name comes in both packings. On one GPU both are considered; on
    # several only safetensors, whose servers divide a layer; on a processor only GGUF.
    if not shape.is_local:
        packings = {"safetensors"} if device.is_gpu else {"gguf"}
        packings |= {"gguf"} if device.count == 1 else set()
    coarser = [
        shape.quantized(lower)
        for lower in quantizations().values()
        if lower.packing in packings and role_floor(goal.role) <= lower.nominal_bits < WHOLE_BITS
        if lower.name != "MXFP4"  # which is published for some models, and made for no others
    ]
    whole = shape if shape.packing in packings else shape.quantized(quantization_of("F16"))
    return [whole, *coarser]


def divisions(shape: ModelShape, count: int) -> list[tuple[int, int]]:
    """Pairs of tensor-parallel ranks and pipeline stages, for a copy on at most `count` devices."""
    # Ranks are powers of two that divide the heads evenly. llama.cpp divides no layer.
    powers = [1 << power for power in range(count.bit_length())]
    limit = _MOST_RANKS if shape.packing == "safetensors" else 1
    ranks = [n for n in powers if shape.heads % n == 0 and n <= limit]
    # Stages need no power of two: with three devices there are three.
    pairs = itertools.product(ranks, sorted({*powers, count}))
    return [(n, stages) for n, stages in pairs if n * stages <= count and stages <= shape.layers]


def workloads_of(calls: Sequence[Call]) -> dict[str, tuple[tuple[str, ...], Workload]]:
    """Tag of each model → its roles, the strictest first, and the workload that its calls show."""
    loads = {}
    for model, group in answered_by_model(calls).items():
        read = [call.input_tokens or 0 for call in group]
        written = [call.output_tokens or 0 for call in group]
        cached_share = sum(call.cached_tokens or 0 for call in group) / max(sum(read), 1)
        prompt_tokens = _most_tokens(read)
        took_ns = max(call.end_ns for call in group) - min(call.start_ns for call in group)
        workload = Workload(
            users=max(most_at_once(group), 1),  # those that wait included
            prompt_tokens=prompt_tokens,
            output_tokens=_most_tokens(written),
            rate_per_s=len(group) * 1e9 / max(took_ns, 1),
            cached_tokens=round(prompt_tokens * min(cached_share, 1.0)),
            calls=len(group),
        )
        roles = {call.role or model for call in group}
        loads[model] = tuple(sorted(roles, key=lambda role: (-role_floor(role), role))), workload
    return loads


def _most_tokens(counts: list[int]) -> int:
    """The 95th percentile, so that a few very long calls do not decide; at least 1."""
    # Each count twice, since `quantiles` needs two values.
    return max(round(statistics.quantiles(counts * 2, n=20, method="inclusive")[-1]), 1)


class _Needs(NamedTuple):
    """The memory of one copy of a model."""

    fixed_bytes: int  # on the fullest device, with no sequence
    device_sequence_bytes: int  # of each sequence on that device
    sequence_bytes: int  # of each sequence on all devices


def _needs(rates: Rates, workload: Workload) -> _Needs:
    shape = rates.model
    batch = PROMPT_TOKENS_AT_ONCE[shape.packing]
    # The cache of a layer with a window also has room for a batch.
    rank_kv_bytes = rates.on_rank.sequence_kv_bytes(
        workload.context_tokens, rates.kv_bits, beside=batch
    )
    # The fullest stage has its number of layers rounded up.
    share = math.ceil(shape.layers / rates.stages) / shape.layers
    fixed = round(shape.weight_bytes * share / rates.tensor_parallel) + batch * shape.compute_bytes
    fixed += GPU_CONTEXT_BYTES if rates.device.is_gpu else 0
    return _Needs(
        fixed_bytes=fixed,
        device_sequence_bytes=max(round(rank_kv_bytes * share), 1),
        sequence_bytes=rank_kv_bytes * rates.tensor_parallel,
    )


def _layout(workload: Workload, rates: Rates, taken_bytes: int, copies: int) -> Layout | None:
    """The layout with so many copies; None if not a single sequence fits."""
    shape, device = rates.model, rates.device
    needs = _needs(rates, workload)
    slots = (device.room - taken_bytes - needs.fixed_bytes) // needs.device_sequence_bytes
    if slots < 1:
        return None
    # The busiest copy has its share of the users rounded up.
    rate_per_s = workload.rate_per_s and workload.rate_per_s / copies
    copy_workload = replace(workload, users=-(-workload.users // copies), rate_per_s=rate_per_s)
    at_once = min(copy_workload.users, slots)
    # `decode_limit` and `prefill_limit` are upper bounds, whatever was measured.
    limits = replace(rates, factors=CEILING)
    decode_limit, speeds = None, _Speeds()
    if device.memory_bytes_per_s:
        decode_limit = 1 / limits.step_s(tokens=workload.middle_tokens)
        speeds = _speeds(rates, copy_workload, sequences=at_once, copies=copies)
    devices = rates.tensor_parallel * rates.stages * copies
    return Layout(
        precision=shape.quantization or "as it is",
        packing=shape.packing,
        kv_bits=rates.kv_bits,
        bits=8 * shape.weight_bytes / shape.parameters,
        tensor_parallel=rates.tensor_parallel,
        stages=rates.stages,
        copies=copies,
        weight_bytes=shape.weight_bytes,
        sequence_bytes=needs.sequence_bytes,
        device_bytes=needs.fixed_bytes + at_once * needs.device_sequence_bytes,
        sequences=slots * copies,
        decode_limit=decode_limit,
        prefill_limit=limits.prefill_tokens_per_s(workload.prompt_tokens),
        ttft_s=speeds.ttft_s,
        itl_s=speeds.itl_s,
        tokens_per_s=speeds.requests_per_s and speeds.requests_per_s * workload.output_tokens,
        is_bound=speeds.itl_s is not None and speeds.itl_s < short_s(shape) * shape.layers,
        usd_per_hour=device.usd_per_hour and device.usd_per_hour * devices,
        misses=tuple(_misses(workload, slots * copies, speeds)),
    )


class _Speeds(NamedTuple):
    """The speeds of a layout; None where the device's are unknown."""

    ttft_s: float | None = None
    itl_s: float | None = None
    requests_per_s: float | None = None  # of all copies


def _misses(workload: Workload, slots: int, speeds: _Speeds) -> Iterator[Miss]:
    """The targets that a layout with so many slots misses. An unknown speed misses none."""
    if slots < workload.users:
        yield Miss("places", slots, workload.users)
    if speeds.ttft_s and speeds.ttft_s > workload.ttft_s:
        yield Miss("TTFT", speeds.ttft_s, workload.ttft_s)
    if speeds.itl_s and speeds.itl_s > workload.itl_s:
        yield Miss("ITL", speeds.itl_s, workload.itl_s)
    # The rate of a run is no target, since a run asks no faster than it is answered.
    rate = workload.rate_per_s if workload.calls is None else None
    if rate and speeds.requests_per_s and rate > speeds.requests_per_s:
        yield Miss("rate", speeds.requests_per_s, rate)


def short_s(shape: ModelShape) -> float:
    """The seconds of a layer under which most of its time is overhead, which is in no figure."""
    return _SHORT_OF_EXPERTS_S if has_small_experts(shape) else _SHORT_S


def _speeds(rates: Rates, workload: Workload, *, sequences: int, copies: int) -> _Speeds:
    """The speeds of copies that each have this workload, and so many sequences at once."""
    prefill_s = rates.prefill_s(workload.prompt_tokens, cached=workload.cached_tokens)
    # From one prompt to the next takes less than a prompt, if stages read several prompts at once.
    between_s = (prefill_s or 0.0) / rates.stages_at_once
    step_s = rates.step_s(tokens=workload.middle_tokens, sequences=sequences)
    counts = {"sequences": sequences, "output_tokens": workload.output_tokens}
    itl_s = formulas.mixed_itl_s(step_s, between_s, **counts)
    requests_per_s = formulas.requests_per_s(step_s, between_s, **counts) * copies
    if prefill_s is None:  # the processor's speed is unknown
        return _Speeds(None, itl_s, requests_per_s)
    if workload.rate_per_s is not None:
        waiting_s = formulas.mean_queue(workload.rate_per_s, between_s) * between_s
    else:
        # With too few slots the last user waits for whole rounds of replies, and then in any case
        # for the prompts before its own.
        rounds, prompts_before = divmod(workload.users - 1, sequences)
        round_s = sequences * between_s + workload.output_tokens * step_s
        waiting_s = rounds * round_s + prompts_before * between_s
    return _Speeds(waiting_s + prefill_s + step_s, itl_s, requests_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The devices that a model gets, and its layouts on them."""

    goal: ServingGoal
    first: int  # the number of its first device, from 0
    count: int
    models: int  # how many models share its devices, itself included
    port: int | None  # of its first server; None for a single model: the servers' usual port
    layouts: tuple[Layout, ...]  # the result of `layouts`; empty if the model does not fit there

    @property
    def chosen(self) -> Layout | None:
        """The first layout that meets all targets; None if none does."""
        return next((layout for layout in self.layouts if not layout.misses), None)


def placements_of(goals: Sequence[ServingGoal], device: DeviceSpec) -> list[Placement]:
    """The placement of each model, in the order of `goals`, if all stay in memory at once.

    Models with the highest floor (judges) choose first. With enough devices each model has some of
    its own, and the last model all that are left; with fewer, the last device is shared.
    """
    waiting = sorted(goals, key=lambda goal: -role_floor(goal.role))
    placements: list[Placement] = []
    first = 0
    while waiting:
        free = device.count - first
        groups = min(len(waiting), free)
        if groups == 1:
            group, count = waiting, free
        else:
            # Each of the groups after this one needs a device.
            group, count = waiting[:1], _enough(waiting[0], device, free - groups + 1)
        part = replace(device, count=count)
        sizes = _least_bytes(group, part)
        for index, goal in enumerate(group):
            # Models before this one take the bytes of their layouts; models after it, their least.
            fitting = tuple(layouts(goal, part, taken_bytes=sum(sizes) - sizes[index]))
            if fitting:
                sizes[index] = fitting[0].device_bytes
            port = _FIRST_PORT + _PORTS_APART * goals.index(goal) if len(goals) > 1 else None
            placement = Placement(
                goal=goal, first=first, count=count, models=len(group), port=port, layouts=fitting
            )
            placements.append(placement)
        first += count
        waiting = waiting[len(group) :]
    return sorted(placements, key=lambda placement: goals.index(placement.goal))


def _enough(goal: ServingGoal, device: DeviceSpec, most: int) -> int:
    """The fewest devices on which a model meets its targets, or else fits; `most` if on none."""
    fewest = None
    for count in range(1, most + 1):
        fitting = layouts(goal, replace(device, count=count))
        if fitting and not fitting[0].misses:
            return count
        fewest = fewest or (count if fitting else None)
    return fewest or most


def _least_bytes(group: Sequence[ServingGoal], device: DeviceSpec) -> list[int]:
    """The bytes that each model takes of a device at least, in its smallest precision.

    With all users of each model; while there is no room for them, with half of the users.
    """
    sizes: list[int] = []
    for halvings in range(max(goal.workload.users for goal in group).bit_length()):
        sizes = []
        for goal in group:
            users = max(goal.workload.users >> halvings, 1)
            rates = [Rates(shape, device, goal.kv_bits) for shape in precisions(goal, device)]
            needs = [_needs(rate, goal.workload) for rate in rates]
            sizes.append(min(n.fixed_bytes + users * n.device_sequence_bytes for n in needs))
        if sum(sizes) <= device.room:
            break
    return sizes


class EnoughDevices(NamedTuple):
    """Devices that meet all targets, with the models on them."""

    device: DeviceSpec
    placements: list[Placement]


def enough_devices(goals: Sequence[ServingGoal], device: DeviceSpec) -> list[EnoughDevices]:
    """The least number of each kind of device that meets all targets: this kind, then by cost."""
    kinds = []
    # Factors were measured on this device, and say nothing of another.
    unmeasured = [replace(goal, measured=None) for goal in goals]
    for name, spec in known_devices().items():
        kind, models = (device, goals) if name == device.name else (spec, unmeasured)
        for count in counts_tried(goals):
            placements = placements_of(models, replace(kind, count=count))
            ends = [p.first + p.chosen.devices for p in placements if p.chosen]
            if len(ends) == len(placements):
                kinds.append(EnoughDevices(replace(kind, count=max(ends)), placements))
                break

    def rank(enough: EnoughDevices) -> tuple[bool, float, int]:
        kind = enough.device
        return kind.name != device.name, (kind.usd_per_hour or math.inf) * kind.count, kind.count

    return sorted(kinds, key=rank)


def counts_tried(goals: Sequence[ServingGoal]) -> tuple[int, ...]:
    """The numbers of devices that `enough_devices` tries of each kind."""
    return (1, 2, 4, 8) if len(goals) > 1 else (1, 2, 4, 8, 16)
