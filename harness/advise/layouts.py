"""Layouts of models on devices: which fit, how quick each can be, which targets it meets.

A layout is a precision, the GPUs that divide each layer (tensor parallel), the stages that have
some layers each (pipeline), and copies of all that. It reads nothing and runs nothing.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from harness.advise import rates as formulas
from harness.advise.data_tables import DeviceSpec, known_devices, quantization_of, quantizations
from harness.advise.model_shape import PROMPT_TOKENS_AT_ONCE, ModelShape, Packing
from harness.advise.rates import CEILING, Factors, Rates, has_small_experts, usual_factors
from harness.errors import InvalidInput
from harness.hardware.footprint import GPU_CONTEXT_BYTES, padded_tokens
from harness.hardware.quantization import KvBits, role_floor
from harness.trace.calls import Call, answered_by_model
from harness.trace.intervals import depths

Target = Literal["places", "TTFT", "ITL", "rate"]

# A model with fewer bits for each weight is served in the precision that it comes in.
_WHOLE_BITS: Final = 15
# If a layer takes less time, most of it is for starting kernels and sending between GPUs.
_SHORT_S: Final = 1e-4
# The same with many small experts: DeepSeek-V3 wrote 30 to 60 tokens a second for one user on eight
# H200s (sgl-project/sglang issue 3956), 0.27 ms a layer and more.
_SHORT_OF_EXPERTS_S: Final = 3e-4
_MOST_DEVICES: Final = 16
_MOST_RANKS: Final = 8  # GPUs that divide a layer: those of one machine, as a rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load that a model has to serve."""

    users: int = 1
    prompt_tokens: int = 2000
    output_tokens: int = 500
    rate_per_s: float | None = None
    """Requests that come in a second, at random; None if all users ask at the same moment."""
    cached_tokens: int = 0  # the tokens of a prompt that a prefix cache has
    calls: int | None = None  # the calls of the run that the load is from
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
    load: Load
    quantization: str | None = None
    """The only precision to consider; None for the model's own, or all from 16 bits down."""
    kv_bits: KvBits = 16
    measured: Factors | None = None  # the factors of its device; None for the usual ones

    @property
    def factors(self) -> Factors:
        """The factors that were measured, or else the usual ones for the model's shape."""
        return self.measured or usual_factors(self.shape)


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that a layout misses, in users with a place, seconds, or requests a second."""

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
    device_bytes: int  # the bytes on each device, with the sequences of the load that have a place
    sequences: int
    decode_limit: float | None
    prefill_limit: float | None  # tokens of a prompt that a copy reads in a second, at best
    ttft_s: float | None  # the last user's if all ask at once; the mean if requests come at a rate
    itl_s: float | None
    tokens_per_s: float | None
    """Tokens of all replies together, with the reading of prompts if its speed is known."""
    is_bound: bool
    """Whether a step's overhead, which is in no figure, is most of it: times are lower bounds."""
    usd_per_hour: float | None
    misses: tuple[Miss, ...]

    @property
    def devices(self) -> int:
        """How many devices the layout takes."""
        return self.tensor_parallel * self.stages * self.copies


def layouts(goal: ServingGoal, device: DeviceSpec, *, taken_bytes: int = 0) -> list[Layout]:
    """The layouts that fit: most targets met first, then highest precision, then least cost.

    Other models take `taken_bytes` of each device.
    """
    rows: list[Layout] = []
    for shape in precisions(goal, device):
        for ranks, stages in divisions(shape, device.count):
            rates = Rates(shape, device, goal.kv_bits, ranks, stages, goal.factors)
            with suppress(InvalidInput):  # heads too narrow for a packed cache
                for copies in range(device.count // (ranks * stages)):
                    row = _layout(goal.load, rates, taken_bytes, copies + 1)
                    # The fewest copies that meet all targets, else the most. If one does not fit,
                    # further ones do not either.
                    if row is None or not row.misses:
                        break
                rows += [row] if row else []
    return sorted(
        rows,
        key=lambda row: (
            *(len(row.misses), -row.bits, row.devices, row.stages),
            *(row.ttft_s or 0, row.itl_s or 0),
        ),
    )


def precisions(goal: ServingGoal, device: DeviceSpec) -> list[ModelShape]:
    """The model as it comes, and, if that is 16 bits, quantized down to its role's floor."""
    shape = goal.shape
    if goal.quantization:
        row = quantization_of(goal.quantization)
        return [shape if shape.quantization == row.name else shape.quantized(row)]
    if 8 * shape.weight_bytes / shape.parameters < _WHOLE_BITS:
        return [shape]
    packings: set[Packing] = {shape.packing}
    # A model that is known by its name comes in both packings. On one GPU both are considered; on
    # several only safetensors, whose servers divide a layer; on a processor only GGUF.
    if not shape.is_local:
        packings = {"safetensors"} if device.is_gpu else {"gguf"}
        packings |= {"gguf"} if device.count == 1 else set()
    coarser = [
        shape.quantized(row)
        for row in quantizations().values()
        if row.packing in packings and role_floor(goal.role) <= row.nominal_bits < _WHOLE_BITS
        if row.name != "MXFP4"  # models come in it, or do not
    ]
    whole = shape if shape.packing in packings else shape.quantized(quantization_of("F16"))
    return [whole, *coarser]


def divisions(shape: ModelShape, count: int) -> list[tuple[int, int]]:
    """Pairs of GPUs for each layer and stages, for a copy on at most `count` devices."""
    # Heads are divided evenly, by powers of two. llama.cpp only divides models by layers.
    powers = [1 << power for power in range(count.bit_length())]
    limit = _MOST_RANKS if shape.packing == "safetensors" else 1
    ranks = [n for n in powers if shape.heads % n == 0 and n <= limit]
    # Stages need no power of two: with three devices there are three.
    pairs = itertools.product(ranks, sorted({*powers, count}))
    return [(n, stages) for n, stages in pairs if n * stages <= count and stages <= shape.layers]


def loads_of(calls: Sequence[Call]) -> dict[str, tuple[tuple[str, ...], Load]]:
    """Tag of each model → its roles, the evaluator's first, and the load of the run."""
    loads = {}
    for model, group in answered_by_model(calls).items():
        read = [call.input_tokens or 0 for call in group]
        written = [call.output_tokens or 0 for call in group]
        cached_share = sum(call.cached_tokens or 0 for call in group) / max(sum(read), 1)
        prompt, output = (
            # The 95th percentile. Twice, since `quantiles` takes two values at least.
            max(round(statistics.quantiles(counts * 2, n=20, method="inclusive")[-1]), 1)
            for counts in (read, written)
        )
        took_ns = max(call.end_ns for call in group) - min(call.start_ns for call in group)
        load = Load(
            users=max(depth for _, depth in depths(group)),  # those that wait included
            prompt_tokens=prompt,
            output_tokens=output,
            rate_per_s=len(group) * 1e9 / max(took_ns, 1),
            cached_tokens=round(prompt * min(cached_share, 1.0)),
            calls=len(group),
        )
        roles = {call.role or model for call in group}
        loads[model] = tuple(sorted(roles, key=lambda role: (-role_floor(role), role))), load
    return loads


def _needs(rates: Rates, load: Load) -> tuple[int, int, int]:
    """Bytes beside sequences on the device with the most layers; of a sequence there; on all."""
    shape = rates.model
    batch = PROMPT_TOKENS_AT_ONCE[shape.packing]
    # A layer's cache has room for a batch beside its window.
    kv_bytes = rates.on_rank.sequence_kv_bytes(load.context_tokens, rates.kv_bits, beside=batch)
    part = math.ceil(shape.layers / rates.stages) / shape.layers
    fixed = round(shape.weight_bytes * part / rates.tensor_parallel) + batch * shape.compute_bytes
    fixed += GPU_CONTEXT_BYTES * rates.device.is_gpu
    return fixed, max(round(kv_bytes * part), 1), kv_bytes * rates.tensor_parallel


def _layout(load: Load, rates: Rates, taken_bytes: int, copies: int) -> Layout | None:
    """The layout with so many copies; None if not a single sequence fits."""
    shape, device = rates.model, rates.device
    fixed_bytes, sequence_bytes, sequence_bytes_on_all = _needs(rates, load)
    places = (device.room - taken_bytes - fixed_bytes) // sequence_bytes
    if places < 1:
        return None
    # The largest share of the load that a copy can have.
    rate_per_s = load.rate_per_s and load.rate_per_s / copies
    share = replace(load, users=-(-load.users // copies), rate_per_s=rate_per_s)
    at_once = min(share.users, places)
    is_known = device.memory_bytes_per_s > 0
    ttft_s, itl_s, requests = _speeds(rates, share, at_once) if is_known else (None, None, None)
    # `decode_limit` and `prefill_limit` are upper bounds, whatever was measured.
    limits = replace(rates, factors=CEILING)
    devices = rates.tensor_parallel * rates.stages * copies
    served = (requests or 0.0) * copies
    # The rate of a run is no target, since a run asks no faster than it is answered.
    rate = load.rate_per_s if load.calls is None and served else None
    misses: list[Miss] = []
    if places * copies < load.users:
        misses.append(Miss("places", places * copies, load.users))
    if ttft_s and ttft_s > load.ttft_s:
        misses.append(Miss("TTFT", ttft_s, load.ttft_s))
    if itl_s and itl_s > load.itl_s:
        misses.append(Miss("ITL", itl_s, load.itl_s))
    if rate and rate > served:
        misses.append(Miss("rate", served, rate))
    return Layout(
        precision=shape.quantization or "as it is",
        packing=shape.packing,
        kv_bits=rates.kv_bits,
        bits=8 * shape.weight_bytes / shape.parameters,
        tensor_parallel=rates.tensor_parallel,
        stages=rates.stages,
        copies=copies,
        weight_bytes=shape.weight_bytes,
        sequence_bytes=sequence_bytes_on_all,
        device_bytes=fixed_bytes + at_once * sequence_bytes,
        sequences=places * copies,
        decode_limit=1 / limits.step_s(tokens=load.middle_tokens) if is_known else None,
        prefill_limit=limits.prefill_tokens_per_s(load.prompt_tokens),
        ttft_s=ttft_s,
        itl_s=itl_s,
        tokens_per_s=requests and requests * copies * load.output_tokens,
        is_bound=itl_s is not None and itl_s < short_s(shape) * shape.layers,
        usd_per_hour=device.usd_per_hour and device.usd_per_hour * devices,
        misses=tuple(misses),
    )


def short_s(shape: ModelShape) -> float:
    """Seconds: if a layer takes less, most of it is overhead that is in no figure."""
    return _SHORT_OF_EXPERTS_S if has_small_experts(shape) else _SHORT_S


def _speeds(rates: Rates, load: Load, sequences: int) -> tuple[float | None, float, float]:
    """TTFT, ITL and requests a second of one copy that answers so many sequences at once."""
    prefill_s = rates.prefill_s(load.prompt_tokens, cached=load.cached_tokens)
    # The time from one prompt to the next: the stages of a pipeline read several at once.
    between_s = (prefill_s or 0.0) / rates.stages_at_once
    step_s = rates.step_s(tokens=load.middle_tokens, sequences=sequences)
    counts = {"sequences": sequences, "output_tokens": load.output_tokens}
    itl_s = formulas.mixed_itl_s(step_s, between_s, **counts)
    requests = formulas.requests_per_s(step_s, between_s, **counts)
    if prefill_s is None:  # the processor's speed is unknown
        return None, itl_s, requests
    if load.rate_per_s is not None:
        waiting_s = formulas.mean_queue(load.rate_per_s, between_s) * between_s
    else:
        # The last user waits for whole rounds of replies if there are too few places, and then for
        # the prompts before it in its own round.
        rounds, prompts_before = divmod(load.users - 1, sequences)
        round_s = sequences * between_s + load.output_tokens * step_s
        waiting_s = rounds * round_s + prompts_before * between_s
    return waiting_s + prefill_s + step_s, itl_s, requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A model's part of the devices."""

    goal: ServingGoal
    first: int  # the number of its first device, from 0
    count: int
    models: int  # how many models share its devices, itself included
    layouts: tuple[Layout, ...]  # the result of `layouts`; empty if the model does not fit there

    @property
    def marked(self) -> Layout | None:
        """The first layout that meets all targets; None if none does."""
        return next((row for row in self.layouts if not row.misses), None)


def placements(goals: Sequence[ServingGoal], device: DeviceSpec) -> list[Place]:
    """Where several models stay at once; models with the highest floor (judges) choose first.

    With enough devices each model has some of its own, and the last model all that are left. With
    fewer devices than models, the last device is shared. The order is that of `goals`.
    """
    order = sorted(goals, key=lambda goal: -role_floor(goal.role))
    places: list[Place] = []
    groups = min(len(order), device.count)
    first = 0
    for number in range(groups):
        is_last = number == groups - 1
        # Each of the groups after this one needs a device.
        most = device.count - first - (groups - number - 1)
        group = order[number:] if is_last else [order[number]]
        count = most if is_last else _enough(order[number], device, most)
        part = replace(device, count=count)
        sizes = _least_bytes(group, part)
        for index, goal in enumerate(group):
            # The models before it take the bytes of their layouts, those after it their least.
            rows = tuple(layouts(goal, part, taken_bytes=sum(sizes) - sizes[index]))
            if rows:
                sizes[index] = rows[0].device_bytes
            places.append(
                Place(goal=goal, first=first, count=count, models=len(group), layouts=rows)
            )
        first += count
    return sorted(places, key=lambda place: goals.index(place.goal))


def _enough(goal: ServingGoal, device: DeviceSpec, most: int) -> int:
    """The fewest devices on which a model meets its targets, else the fewest on which it fits."""
    fewest = most
    for count in range(1, most + 1):
        rows = layouts(goal, replace(device, count=count))
        if rows and not rows[0].misses:
            return count
        fewest = min(fewest, count) if rows else fewest
    return fewest


def _least_bytes(group: Sequence[ServingGoal], device: DeviceSpec) -> list[int]:
    """The bytes that each model takes of a device in its coarsest precision."""
    sizes: list[int] = []
    # With all users of each model if there is room for them, else with half of them, and so on.
    for halvings in range(max(goal.load.users for goal in group).bit_length()):
        sizes = []
        for goal in group:
            users = max(goal.load.users >> halvings, 1)
            rates = [Rates(shape, device, goal.kv_bits) for shape in precisions(goal, device)]
            needs = [_needs(rate, goal.load) for rate in rates]
            sizes.append(min(fixed + users * sequence for fixed, sequence, _ in needs))
        if sum(sizes) <= device.room:
            break
    return sizes


def enough_devices(
    goals: Sequence[ServingGoal], device: DeviceSpec
) -> list[tuple[DeviceSpec, list[Place]]]:
    """Devices of the table, as many as all models need to meet their targets: this one first."""
    remedies = []
    counts = (1, 2, 4, 8) if len(goals) > 1 else (1, 2, 4, 8, _MOST_DEVICES)
    # The measured factors are only this device's.
    unmeasured = [replace(goal, measured=None) for goal in goals]
    for name, spec in known_devices().items():
        kind, models = (device, goals) if name == device.name else (spec, unmeasured)
        for count in counts:
            places = placements(models, replace(kind, count=count))
            ends = [place.first + place.marked.devices for place in places if place.marked]
            if len(ends) == len(places):
                remedies.append((replace(kind, count=max(ends)), places))
                break

    def rank(remedy: tuple[DeviceSpec, list[Place]]) -> tuple[bool, float, int]:
        kind, _ = remedy
        return kind.name != device.name, (kind.usd_per_hour or math.inf) * kind.count, kind.count

    return sorted(remedies, key=rank)
