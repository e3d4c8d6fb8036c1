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

# A model with fewer for each weight comes in a precision of its own, in which it is served.
_WHOLE_BITS: Final = 15
# If a layer takes less time, most of that is starting kernels and sending between GPUs.
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
    cached_tokens: int = 0
    """The tokens of a prompt that a prefix cache has."""
    calls: int | None = None
    """The calls of the run that the load is from."""
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
    model: str
    """The model's file, folder or name, as a server takes it."""
    load: Load
    quantization: str | None = None
    """The only precision to consider; None for the model's own, or all from 16 bits down."""
    kv_bits: KvBits = 16
    measured: Factors | None = None
    """The factors of its device; None for the usual ones."""

    @property
    def factors(self) -> Factors:
        """The factors that were measured, or else the usual ones for the model's shape."""
        return self.measured or usual_factors(self.shape)


@dataclass(frozen=True, slots=True)
class Miss:
    """A target that a layout misses: users with a place, seconds, or requests a second."""

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
    weight_bytes: int
    """The weights of one copy, as `sequence_bytes` are of one copy."""
    sequence_bytes: int
    device_bytes: int
    """The bytes on each device, with the sequences of the load that have a place."""
    sequences: int
    decode_limit: float | None
    prefill_limit: float | None
    """Tokens of a prompt that a copy reads in a second, at best."""
    ttft_s: float | None
    """That of the last user if all ask at once; the mean if requests come at a rate."""
    itl_s: float | None
    tokens_per_s: float | None
    """Of all replies together, while prompts are read, or while none is if that is unknown."""
    is_bound: bool
    """Whether most of a step is in no figure: times are at least so long."""
    usd_per_hour: float | None
    misses: tuple[Miss, ...]

    @property
    def devices(self) -> int:
        """How many devices the layout takes."""
        return self.tensor_parallel * self.stages * self.copies


def layouts(goal: ServingGoal, device: DeviceSpec, *, taken_bytes: int = 0) -> list[Layout]:
    """The layouts that fit: most targets met first, then highest precision, then least cost.

    `taken_bytes` is what other models take of each device.
    """
    rows: list[Layout] = []
    for shape in precisions(goal, device):
        for ranks, stages in divisions(shape, device.count):
            rates = Rates(shape, device, goal.kv_bits, ranks, stages, goal.factors)
            with suppress(InvalidInput):  # heads too narrow for a packed cache
                for copies in range(device.count // (ranks * stages)):
                    row = _layout(goal.load, rates, taken_bytes, copies + 1)
                    # The fewest that meet all targets, else the most: further copies would fit no
                    # better, or cost more than is needed.
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
    # One that is known by its name comes in both packings on one GPU; on several in safetensors,
    # whose servers divide a layer; on a processor in GGUF.
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
    """GPUs for each layer, and stages, of a copy on so many devices at most."""
    # Heads are divided evenly, by powers of two. llama.cpp divides models by layers alone.
    powers = [1 << power for power in range(count.bit_length())]
    limit = _MOST_RANKS if shape.packing == "safetensors" else 1
    ranks = [n for n in powers if shape.heads % n == 0 and n <= limit]
    # Stages need no power of two: with three devices there are three.
    pairs = itertools.product(ranks, sorted({*powers, count}))
    return [(n, stages) for n, stages in pairs if n * stages <= count and stages <= shape.layers]


def loads_of(calls: Sequence[Call]) -> dict[str, tuple[tuple[str, ...], Load]]:
    """Tag of each model → its roles, the evaluator's first, and what the run asked of it."""
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
    """Bytes on the device with the most layers, without sequences; of one there, and on all."""
    shape, batch = rates.model, PROMPT_TOKENS_AT_ONCE[rates.model.packing]
    # A batch is kept beside a window.
    kv_bytes = rates.on_rank.sequence_kv_bytes(load.context_tokens, rates.kv_bits, beside=batch)
    part = math.ceil(shape.layers / rates.stages) / shape.layers
    fixed = round(shape.weight_bytes * part / rates.tensor_parallel) + batch * shape.compute_bytes
    fixed += GPU_CONTEXT_BYTES * rates.device.is_gpu
    return fixed, max(round(kv_bytes * part), 1), kv_bytes * rates.tensor_parallel


def _layout(load: Load, rates: Rates, taken_bytes: int, copies: int) -> Layout | None:
    """The layout with so many copies; None if not a single sequence fits."""
    shape, device = rates.model, rates.device
    fixed, sequence, whole = _needs(rates, load)
    places = (device.room - taken_bytes - fixed) // sequence
    if places < 1:
        return None
    rate_per_s = load.rate_per_s and load.rate_per_s / copies
    # A copy's share of the load: the largest of them is what is judged.
    part = replace(load, users=-(-load.users // copies), rate_per_s=rate_per_s)
    n = min(part.users, places)
    is_known = device.memory_bytes_per_s > 0
    first_s, itl_s, requests = _speeds(rates, part, n) if is_known else (None, None, None)
    # `decode_limit` and `prefill_limit` are at best, whatever was measured.
    limits = replace(rates, factors=CEILING)
    devices = rates.tensor_parallel * rates.stages * copies
    # A run asks no faster than it is answered.
    served = (requests or 0.0) * copies
    rate = load.rate_per_s if load.calls is None and served else None
    checks = (
        Miss("places", places * copies, load.users) if places * copies < load.users else None,
        Miss("TTFT", first_s, load.ttft_s) if first_s and first_s > load.ttft_s else None,
        Miss("ITL", itl_s, load.itl_s) if itl_s and itl_s > load.itl_s else None,
        Miss("rate", served, rate) if rate and rate > served else None,
    )
    return Layout(
        precision=shape.quantization or "as it is",
        packing=shape.packing,
        kv_bits=rates.kv_bits,
        bits=8 * shape.weight_bytes / shape.parameters,
        tensor_parallel=rates.tensor_parallel,
        stages=rates.stages,
        copies=copies,
        weight_bytes=shape.weight_bytes,
        sequence_bytes=whole,
        device_bytes=fixed + n * sequence,
        sequences=places * copies,
        decode_limit=1 / limits.step_s(tokens=load.middle_tokens) if is_known else None,
        prefill_limit=limits.prefill_tokens_per_s(load.prompt_tokens),
        ttft_s=first_s,
        itl_s=itl_s,
        tokens_per_s=requests and requests * copies * load.output_tokens,
        is_bound=itl_s is not None and itl_s < short_s(shape) * shape.layers,
        usd_per_hour=device.usd_per_hour and device.usd_per_hour * devices,
        misses=tuple(miss for miss in checks if miss),
    )


def short_s(shape: ModelShape) -> float:
    """Seconds a layer under which most of a step is in no figure."""
    return _SHORT_OF_EXPERTS_S if has_small_experts(shape) else _SHORT_S


def _speeds(rates: Rates, load: Load, n: int) -> tuple[float | None, float, float]:
    """TTFT, ITL and requests a second of one copy with n sequences at once."""
    first_s = rates.prefill_s(load.prompt_tokens, cached=load.cached_tokens)
    # The time from one prompt to the next: the stages of a pipeline read several at once.
    between_s = (first_s or 0.0) / rates.stages_at_once
    step_s = rates.step_s(tokens=load.middle_tokens, sequences=n)
    at = {"sequences": n, "output_tokens": load.output_tokens}
    itl_s = formulas.mixed_itl_s(step_s, between_s, **at)
    requests = formulas.requests_per_s(
        step_s, between_s, sequences=n, output_tokens=load.output_tokens
    )
    if first_s is None:  # the processor's speed is unknown
        return None, itl_s, requests
    # A user without a place waits until the replies of others are written.
    rounds, before = divmod(load.users - 1, n)
    waiting_s = rounds * (n * between_s + load.output_tokens * step_s) + before * between_s
    if load.rate_per_s is not None:
        waiting_s = formulas.mean_queue(load.rate_per_s, between_s) * between_s
    return waiting_s + first_s + step_s, itl_s, requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A model's part of the devices."""

    goal: ServingGoal
    first: int
    """The number of its first device, from 0."""
    count: int
    models: int
    """How many models share its devices, itself included."""
    layouts: tuple[Layout, ...]
    """As `layouts` has them; empty if it does not fit there."""

    @property
    def marked(self) -> Layout | None:
        """The first layout, if it meets all targets; else none does."""
        return next((row for row in self.layouts if not row.misses), None)


def placements(goals: Sequence[ServingGoal], device: DeviceSpec) -> list[Place]:
    """Where several models stay at once, the one with the highest floor (a judge) first.

    With enough devices each model has some of its own, and the last all others; the last device is
    shared if there are fewer than models. The order is that of `goals`.
    """
    order = sorted(goals, key=lambda goal: -role_floor(goal.role))
    places: list[Place] = []
    alone = min(len(order), device.count)
    first = 0
    for number in range(alone):
        is_last = number == alone - 1
        cap = device.count - first - (alone - number - 1)
        tries = [(n, layouts(order[number], replace(device, count=n))) for n in range(1, cap + 1)]
        met = [n for n, rows in tries if rows and not rows[0].misses]
        # The fewest that meet its targets, else the fewest on which it fits.
        count = cap if is_last else next(iter([*met, *(n for n, rows in tries if rows), cap]))
        group, part = order[number:] if is_last else [order[number]], replace(device, count=count)
        sizes = _least_bytes(group, part)
        for at, goal in enumerate(group):
            # `sizes` has what the models before it take, and the least that those after it need.
            rows = tuple(layouts(goal, part, taken_bytes=sum(sizes) - sizes[at]))
            # From now on `sizes` has what its layout takes.
            sizes[at] = rows[0].device_bytes if rows else sizes[at]
            places.append(
                Place(goal=goal, first=first, count=count, models=len(group), layouts=rows)
            )
        first += count
    return sorted(places, key=lambda place: goals.index(place.goal))


def _least_bytes(group: Sequence[ServingGoal], device: DeviceSpec) -> list[int]:
    """What each takes of a device in its coarsest precision."""
    sizes: list[int] = []
    # With all users of each model if there is room for them, else with half of them, and so on.
    for halved in range(max(model.load.users for model in group).bit_length()):
        sizes = [
            min(
                fixed + max(model.load.users >> halved, 1) * kv_bytes
                for shape in precisions(model, device)
                for fixed, kv_bytes, _ in [_needs(Rates(shape, device, model.kv_bits), model.load)]
            )
            for model in group
        ]
        if sum(sizes) <= device.room:
            break
    return sizes


def enough_devices(
    goals: Sequence[ServingGoal], device: DeviceSpec
) -> list[tuple[DeviceSpec, list[Place]]]:
    """Which devices of the table meet all targets of all models: this one first, then by cost."""
    remedies = []
    counts = (1, 2, 4, 8) if len(goals) > 1 else (1, 2, 4, 8, _MOST_DEVICES)
    # The measured factors are of this device alone.
    usual = [replace(model, measured=None) for model in goals]
    for name, spec in known_devices().items():
        kind, models = (device, goals) if name == device.name else (spec, usual)
        # A kind of which the highest of these counts is too few is left out.
        for places in (placements(models, replace(kind, count=count)) for count in counts):
            if all(place.marked for place in places):
                used = max(place.first + row.devices for place in places if (row := place.marked))
                remedies.append((replace(kind, count=used), places))
                break

    def rank(remedy: tuple[DeviceSpec, list[Place]]) -> tuple[bool, float, int]:
        kind, _ = remedy
        return kind.name != device.name, (kind.usd_per_hour or math.inf) * kind.count, kind.count

    return sorted(remedies, key=rank)
