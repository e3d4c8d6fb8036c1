"""Advice on serving models: what fits on a device, how quick it can be, what to start, its cost.

It reads nothing and runs nothing. Each speed is what to expect, beside its upper bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from harness.analysis.serving_costs import costs, usd_per_hour_of
from harness.analysis.serving_load import Load
from harness.errors import InvalidInput, did_you_mean
from harness.hardware import Footprint, format_bytes
from harness.hardware.data_tables import Figure, RuntimeRow, Tables
from harness.hardware.device import MACHINE_SHARE, DeviceSpec
from harness.hardware.footprint import format_count
from harness.hardware.model_shape import ModelShape
from harness.hardware.offload import GPU_CONTEXT_BYTES, offload_speedup
from harness.hardware.quantization import KvBits, role_floor
from harness.hardware.rates import (
    CEILING,
    LEAST_ACCEPTANCE,
    USUAL,
    Factors,
    Rates,
    batching_gain,
    load_limit_s,
    mean_queue,
    mixed_itl_s,
    requests_per_s,
    sequences_that_fit,
    ttft_s,
)
from harness.inference.providers.serving import Launch, Serving, Setting

Launcher = Callable[[Serving], Launch]
Placement = Literal["whole", "in turns", "split"]

_SHARES: Final = {True: 0.92, False: MACHINE_SHARE}
"""What models may take; of a GPU a server's default."""
_FIRST_PORT: Final = 8080


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A model to be served."""

    role: str
    shape: ModelShape
    model: str
    """Its file, folder or name, as a server takes it."""
    load: Load
    note: str = ""
    """What there is to know of where it is from."""
    runtime: str | None = None
    """The only one to consider."""
    factors: Factors = USUAL
    """What device and server reach of the limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A model with one packing of its weights and its cache."""

    quantization: str | None
    kv_bits: KvBits
    weight_bytes: int
    sequence_bytes: int
    sequences: int
    """That fit, beside the other models as they are advised."""
    alone_tokens_per_s: float
    together_tokens_per_s: float
    """Of the users that fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAdvice:
    """What to do with one model."""

    role: str
    title: str
    load: Load
    options: tuple[Option, ...]
    """The best first."""
    chosen: Option
    sequences: int
    """To be served at once by each replica; 0 if it does not fit whole."""
    runtime: RuntimeRow
    launch: Launch | None
    """None if it is not known how the runtime is started."""
    figures: tuple[Figure, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """For models that share a device."""

    device: DeviceSpec
    placement: Placement
    said: str
    models: tuple[ModelAdvice, ...]


def advise(
    wanted: Sequence[Wanted],
    device: DeviceSpec,
    *,
    tables: Tables,
    launches: Mapping[str, Launcher],
    usd_per_hour: float | None = None,
) -> Advice:
    """The advice for models that share a device.

    Args:
        wanted: The models; their roles differ.
        device: One of `device.count` alike ones.
        tables: The quantizations, runtimes and prices that there are.
        launches: By backend, how its server is started.
        usd_per_hour: Of one device; by the table if None.

    Raises:
        InvalidInput: There is no such runtime, or none for a model.
    """
    # 1. Where they go. Over several devices most servers divide heads evenly: by powers of two.
    counts = [1 << power for power in range(device.count.bit_length())]
    layouts = [_layout(wanted, device, tables, parallel=count) for count in counts]
    whole = [one for one in layouts if one.placement == "whole"]
    if not whole and device.count not in counts and all(_is_uneven(one, tables) for one in wanted):
        layouts.append(_layout(wanted, device, tables, parallel=device.count))
        whole = [one for one in layouts[-1:] if one.placement == "whole"]
    layout = min(whole, key=lambda one: one.misses) if whole else layouts[-1]
    in_turns, is_beside = layout.placement == "in turns", bool(whole) and len(wanted) > 1
    placed = layout.placed
    # 2. What each is started with.
    rows = [
        _runtime(one, way.rates.model, device, tables, in_turns=in_turns)
        for one, (way, _) in zip(layout.wanted, placed, strict=True)
    ]
    servings = [
        Serving(
            model=way.file(one.model) if row.packing == way.rates.model.packing else one.model,
            context_tokens=one.load.context_tokens,
            sequences=max(n, 1),
            kv_bits=way.rates.kv_bits,
            on_gpu=device.is_gpu,
            gpu_layers=None if n or not device.is_gpu else way.layers_in(layout.room),
            tensor_parallel=layout.parallel,
            replicas=layout.replicas,
            gpu_share=round(way.total_bytes(n) / way.rates.device.memory_bytes + 0.005, 2)
            if is_beside and row.packing == "safetensors"
            else None,
            port=_FIRST_PORT + number if len(wanted) > 1 else None,
        )
        for number, (one, row, (way, n)) in enumerate(zip(wanted, rows, placed, strict=True))
    ]
    made = _launches(rows, servings, launches, layout)
    # 3. What that gives; the hours are divided among the models.
    prices = usd_per_hour_of(device, tables) if usd_per_hour is None else {"given": usd_per_hour}
    hours = {kind: price * device.count / len(wanted) for kind, price in prices.items()}
    models = []
    for one, part, some, (way, n), row, launch in zip(
        wanted, layout.wanted, layout.ways, placed, rows, made, strict=True
    ):
        others = sum(way.total_bytes(n) for way, n in placed) - way.total_bytes(n)
        room = layout.room - others * is_beside
        figures = dict(_figures(part.load, way, n, room, tables))
        if n:
            size, replicas = one.shape.parameters, layout.replicas
            figures |= costs(one.load, figures, hours, tables, parameters=size, replicas=replicas)
        models.append(
            ModelAdvice(
                role=one.role,
                title=one.shape.title,
                load=one.load,
                options=tuple(each.option(part.load, room) for each in some),
                chosen=way.option(part.load, room),
                sequences=n,
                runtime=row,
                launch=launch,
                figures=tuple(figures.values()),
                notes=tuple(_notes(one, way, n, layout, row=row, tables=tables)),
            )
        )
    said = _said(layout, tables)
    return Advice(device=device, placement=layout.placement, said=said, models=tuple(models))


# --- what fits ------------------------------------------------------------------------------------


def _together(device: DeviceSpec, count: int) -> DeviceSpec:
    """So many, each with a part of every layer: what they say to each other is left out."""
    return replace(
        device,
        memory_bytes=count * device.memory_bytes,
        memory_bytes_per_s=count * device.memory_bytes_per_s,
        flops_per_s=device.flops_per_s and count * device.flops_per_s,
    )


def _is_uneven(wanted: Wanted, tables: Tables) -> bool:
    """Whether its server divides a model over any number of devices, as llama.cpp does."""
    return (tables.runtime(wanted.runtime or "") or wanted.shape).packing == "gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """A model with one packing of its weights and its cache, for one sequence of the load."""

    rates: Rates
    footprint: Footprint
    is_given: bool
    """Whether the model comes so; else its weights are estimated."""

    @property
    def overhead_bytes(self) -> int:
        return self.footprint.compute_bytes + GPU_CONTEXT_BYTES * self.rates.device.is_gpu

    def total_bytes(self, sequences: int) -> int:
        """With so many at once, one at least."""
        kv_bytes = max(sequences, 1) * self.footprint.kv_bytes
        return self.footprint.weights_bytes + self.overhead_bytes + kv_bytes

    def file(self, model: str) -> str:
        """The model as it was given, or the file that it has to come in."""
        is_there = self.is_given and self.rates.model.family
        if is_there or self.rates.model.packing != "gguf":
            return model
        return f"{model.removesuffix('.gguf')}-{self.rates.model.quantization}.gguf"

    def layers_in(self, room: int) -> int:
        share = (room - self.overhead_bytes) / (self.total_bytes(1) - self.overhead_bytes)
        return int(self.rates.model.layers * min(max(share, 0), 1))

    def option(self, load: Load, room: int) -> Option:
        taken, tokens = self.footprint, load.middle_tokens
        sequences = sequences_that_fit(
            room,
            weight_bytes=taken.weights_bytes,
            overhead_bytes=self.overhead_bytes,
            sequence_bytes=max(taken.kv_bytes, 1),
        )
        n = max(min(load.users, sequences), 1)
        return Option(
            quantization=self.rates.model.quantization,
            kv_bits=self.rates.kv_bits,
            weight_bytes=taken.weights_bytes,
            sequence_bytes=taken.kv_bytes,
            sequences=sequences,
            alone_tokens_per_s=self.rates.decode_tokens_per_s(tokens=tokens),
            together_tokens_per_s=self.rates.decode_tokens_per_s(tokens=tokens, sequences=n),
        )


def _ways(wanted: Wanted, device: DeviceSpec, tables: Tables) -> list[_Way]:
    """Best first: the cache is packed before the weights are, those down to the role's floor."""
    shape, floor = wanted.shape, role_floor(wanted.role)
    coarser = [
        shape.quantized(row.name, packing=row.packing, bits=row.bits)
        for row in tables.quantizations.values()
        if row.packing == shape.packing
        and row.bits * shape.parameters < 0.97 * 8 * shape.weight_bytes
        and row.nominal_bits >= floor
    ]
    bits: tuple[KvBits, ...] = (16, 8)
    found = []
    for model, kv_bits in itertools.product((shape, *coarser), bits):
        try:
            taken = model.footprint(context_tokens=wanted.load.context_tokens, kv_bits=kv_bits)
        except InvalidInput:  # heads too narrow for a packed cache
            continue
        rates = Rates(model=model, device=device, kv_bits=kv_bits, factors=wanted.factors)
        found.append(_Way(rates=rates, footprint=taken, is_given=model is shape))
    if not shape.family:  # no file that is there already: those that meet the target, then by speed
        found.sort(key=lambda way: max(way.rates.step_s(tokens=0), wanted.load.itl_s))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Where models go if each is divided over so many devices, and a single one has replicas."""

    parallel: int
    replicas: int
    wanted: Sequence[Wanted]
    """With the load of a replica."""
    room: int
    ways: Sequence[Sequence[_Way]]
    placed: Sequence[tuple[_Way, int]]
    """Of each model a replica's way, and its sequences at once; 0 if it does not fit."""
    placement: Placement

    @property
    def misses(self) -> tuple[int, float]:
        """Users without a place, and by how much tokens come too late even for one alone."""
        waiting, late_s = 0, 0.0
        for one, (way, n) in zip(self.wanted, self.placed, strict=True):
            waiting += self.replicas * (one.load.users - n)
            step_s = way.rates.step_s(tokens=one.load.middle_tokens)
            late_s = max(late_s, step_s - one.load.itl_s)
        return waiting, late_s


def _layout(
    wanted: Sequence[Wanted], device: DeviceSpec, tables: Tables, *, parallel: int
) -> _Layout:
    """All whole; else by turns; else in parts."""
    together = _together(device, parallel)
    replicas = device.count // parallel if len(wanted) == 1 else 1
    parts = [replace(one, load=one.load.part(replicas)) for one in wanted]
    room = round(together.memory_bytes * _SHARES[device.is_gpu])
    ways = [_ways(one, together, tables) for one in parts]
    placed = _placed(parts, ways, room)
    placement: Placement = "whole"
    if placed is None:
        alone = [_placed([one], [some], room) for one, some in zip(parts, ways, strict=True)]
        placement = "in turns" if all(alone) else "split"
        least = [min(some, key=lambda way: way.total_bytes(1)) for some in ways]
        placed = [one[0] if one else (way, 0) for one, way in zip(alone, least, strict=True)]
    return _Layout(
        parallel=parallel,
        replicas=replicas,
        wanted=parts,
        room=room,
        ways=ways,
        placed=placed,
        placement=placement,
    )


def _placed(
    wanted: Sequence[Wanted], ways: Sequence[Sequence[_Way]], room: int
) -> list[tuple[_Way, int]] | None:
    """The best ways with which all fit, and how many sequences of each are served at once.

    Packing goes before serving fewer: one model after the other, a judge last. None if even one
    sequence of each is too much.
    """
    users = [one.load.users for one in wanted]
    n, some = max(zip(users, ways, strict=True), key=lambda pair: pair[0])
    least_bytes = max(min(one.footprint.kv_bytes for one in some), 1)
    order = sorted(range(len(ways)), key=lambda number: role_floor(wanted[number].role))
    for most in range(min(n, room // least_bytes), 0, -1):
        picked = [some[0] for some in ways]
        for level, number in itertools.product(range(max(map(len, ways))), order):
            picked[number] = ways[number][min(level, len(ways[number]) - 1)]
            placed = [(one, min(n, most)) for one, n in zip(picked, users, strict=True)]
            if sum(one.total_bytes(n) for one, n in placed) <= room:
                return placed
    return None


def _said(layout: _Layout, tables: Tables) -> str:
    """The placement in words."""
    wanted, placed, room = layout.wanted, layout.placed, layout.room
    taken = format_bytes(sum(way.total_bytes(n) for way, n in placed))
    taken = f"{taken} of {format_bytes(room)}"
    if layout.placement == "whole":
        count, is_one = placed[0][0].rates.device.count, len(wanted) == 1
        idle = count - layout.parallel * layout.replicas
        more = "" if is_one else ": ask for a model alone to give it one"
        spare = f" {idle} of {count} devices idle{more}." if idle else ""
        return f"{'It fits' if is_one else 'All fit together'}, whole: {taken}.{spare}"
    pairs = [(way, n, one) for (way, n), one in zip(placed, wanted, strict=True)]
    slow, bus = tables.device("ddr"), tables.devices["pcie-4-x16-sustained"].device
    is_gpu = pairs[0][0].rates.device.is_gpu
    if layout.placement == "in turns":
        small, _, least = min(pairs, key=lambda pair: pair[0].footprint.weights_bytes)
        size = max(way.footprint.weights_bytes for way, _, _ in pairs)
        change_s = load_limit_s(size, bytes_per_s=(bus.memory_bytes_per_s,))
        rate = replace(small.rates, device=slow).decode_tokens_per_s(tokens=0)
        other = f" Or put {least.role} on the processor, at about {rate:.1f} tokens/s."
        return (
            f"Together they want {taken}; each fits alone. Let them take turns, which the budget "
            f"plans: a change takes {change_s:.1f} s or more.{other if is_gpu else ''}"
        )
    way, _, one = next(pair for pair in pairs if not pair[1])
    need, share = way.total_bytes(1), min(room / way.total_bytes(1), 1)
    gain = offload_speedup(share)
    rate = gain * replace(way.rates, device=slow).decode_tokens_per_s(tokens=0)
    split = (
        f" With {share:.0%} of it on the GPU it is {gain:.1f} times as quick as on the processor, "
        f"about {rate:.1f} tokens/s; whole, 10 times: all or nothing."
    )
    devices = -(-need * layout.parallel // room)
    if not _is_uneven(one, tables):
        devices = 1 << (devices - 1).bit_length()
    return (
        f"{one.role} does not fit: {format_bytes(need)} at {way.rates.model.quantization} with one "
        f"sequence, of {format_bytes(room)}.{split if is_gpu else ''} Take a smaller model, or "
        f"{devices} such devices."
    )


# --- how quick ------------------------------------------------------------------------------------


def _figures(
    load: Load, way: _Way, n: int, room: int, tables: Tables
) -> Iterator[tuple[str, Figure]]:
    """Sizes, and speeds with n sequences at once; those of a split model have no formula here."""
    rates, taken = way.rates, way.footprint
    model, device, option = rates.model, rates.device, way.option(load, room)
    said = {
        "load": load,
        "model": model,
        "rates": rates,
        "parameters": format_count(model.parameters),
        "active": format_count(model.active_parameters),
        "bits": 8 * taken.weights_bytes / max(model.parameters, 1),
        "n": n,
        "others": n - 1,
        "gain": "{:.1f} to {:.1f}".format(*batching_gain(n)),
        "bandwidth": f"{format_count(device.memory_bytes_per_s)}B/s",
        "flops": f"{format_count(device.flops_per_s)}FLOP/s" if device.flops_per_s else "unknown",
        "room": format_bytes(room),
        "weights": format_bytes(taken.weights_bytes),
        "buffers": format_bytes(way.overhead_bytes),
        "kv": format_bytes(taken.kv_bytes),
        "read_alone": format_bytes(model.active_bytes),
        "read_together": format_bytes(rates.weight_bytes(n)),
        "both": "max" if device.is_gpu else "sum",
    }
    sizes = {
        "weights": taken.weights_bytes,
        "KV cache of a token": model.token_kv_bytes(rates.kv_bits),
        "KV cache of a sequence": taken.kv_bytes,
        "buffers": way.overhead_bytes,
        "sequences that fit": option.sequences,
        "a batch saturates at": rates.saturation(tokens=load.context_tokens),
    }
    limits = _speeds(load, replace(rates, factors=CEILING), n) if n else {}
    for name, value in (sizes | (_speeds(load, rates, n) if n else {})).items():
        yield name, tables.figures[name].filled(value, limits.get(name), said)


def _speeds(load: Load, rates: Rates, n: int) -> dict[str, float]:
    """Only of decoding if the processor's speed is unknown."""
    tokens, at = load.middle_tokens, {"output_tokens": load.output_tokens}
    reading = rates.prefill_s(load.prompt_tokens, cached=load.cached_tokens)
    alone, step = (rates.step_s(tokens=tokens, sequences=count) for count in (1, n))
    found = {"decode alone": 1 / alone, "decode together": n / step}
    if reading is None:
        return found
    queue = load.users - 1 if load.rate_per_s is None else mean_queue(load.rate_per_s, reading)
    within, requests = 0, 0.0
    for count in range(1, n + 1) if ttft_s(reading, alone) <= load.ttft_s else ():
        one = rates.step_s(tokens=tokens, sequences=count)
        if mixed_itl_s(one, reading, sequences=count, **at) <= load.itl_s:
            within, requests = count, requests_per_s(one, reading, sequences=count, **at)
    return found | {
        "prefill": rates.prefill_tokens_per_s(load.prompt_tokens) or 0.0,
        "first token alone": ttft_s(reading, alone),
        "first token in the queue": ttft_s(reading, step, queue=queue),
        "between tokens": mixed_itl_s(step, reading, sequences=n, **at),
        "at once within targets": within,
        "requests within targets": requests,
        "goodput": requests * load.output_tokens,
    }


# --- what to start --------------------------------------------------------------------------------


def _runtime(
    wanted: Wanted, model: ModelShape, device: DeviceSpec, tables: Tables, *, in_turns: bool
) -> RuntimeRow:
    rows, only = tables.runtimes, wanted.runtime
    if only is not None:
        if named := tables.runtime(only):
            return named
        raise InvalidInput(
            f"'{only}' is not a runtime; {did_you_mean(only, rows)}", code="advise.runtime-unknown"
        )
    usable = [
        row
        for row in rows.values()
        if row.packing == model.packing and row.device in {"any", "gpu" if device.is_gpu else "cpu"}
    ]
    if not usable:
        raise InvalidInput(
            f"no runtime serves {model.title} ({model.packing}) without a GPU; give a GGUF file",
            code="advise.no-runtime",
        )
    # On a processor nothing has to be installed for few users.
    users = wanted.load.users
    is_simple = any(row.unloads and users <= (row.most_users or users) for row in usable)
    return min(
        usable,
        key=lambda row: not row.unloads and (in_turns or (is_simple and not device.is_gpu)),
    )


def _launches(
    rows: Sequence[RuntimeRow],
    servings: Sequence[Serving],
    launches: Mapping[str, Launcher],
    layout: _Layout,
) -> list[Launch | None]:
    """A server that loads and unloads has all its models, if they fit with the largest load."""
    in_turns = layout.placement == "in turns"
    made = [
        _launch(row, serving, launches, in_turns=in_turns)
        for row, serving in zip(rows, servings, strict=True)
    ]
    several = [n for n, one in enumerate(made) if rows[n].unloads and one and one.command]
    if len(several) < 2:
        return made
    shared = list(servings)
    for n in several:
        shared[n] = replace(
            servings[n],
            context_tokens=max(servings[one].context_tokens for one in several),
            sequences=max(servings[one].sequences for one in several),
            kv_bits=min(servings[one].kv_bits for one in several),
            port=None,
        )
    for n in several if _fit(shared, layout) else ():
        made[n] = _launch(rows[n], shared[n], launches, in_turns=in_turns)
    return made


def _fit(servings: Sequence[Serving], layout: _Layout) -> bool:
    """Whether models that have a place keep it if they are served so."""
    sizes = []
    for one, (way, n) in zip(servings, layout.placed, strict=True):
        model = way.rates.model
        try:
            taken = model.footprint(context_tokens=one.context_tokens, kv_bits=one.kv_bits)
        except InvalidInput:  # heads too narrow for a packed cache
            return False
        if n:
            sizes.append(replace(way, footprint=taken).total_bytes(one.sequences))
    most = sum(sizes) if layout.placement == "whole" else max(sizes, default=0)
    return most <= layout.room


def _launch(
    row: RuntimeRow, serving: Serving, launches: Mapping[str, Launcher], *, in_turns: bool
) -> Launch | None:
    if row.backend not in launches:
        return None
    made = launches[row.backend](serving)
    managed = Setting("manage = true", "the budget loads it and lets it go")
    by_budget = in_turns and row.unloads and made.command
    return replace(made, endpoint=(*made.endpoint, managed)) if by_budget else made


def _notes(
    wanted: Wanted, way: _Way, n: int, layout: _Layout, *, row: RuntimeRow, tables: Tables
) -> Iterator[str]:
    """What else there is to know, most important first."""
    load, shape, floor = wanted.load, wanted.shape, role_floor(wanted.role)
    packing = way.rates.model.packing
    other = "" if row.packing == packing else f"convert it: {row.name} takes {row.packing}"
    yield from filter(None, (wanted.note, other))
    if 8 * shape.weight_bytes < (floor - 0.1) * shape.parameters:
        why = ": noise in scores poisons the loop, and no rubric mends it" if floor == 8 else ""
        yield f"{shape.quantization} is too coarse for {wanted.role}: {floor:g} bits or more{why}"
    yield from _load_notes(load, way, n, replicas=layout.replicas)
    if not way.is_given:
        yield f"get it as {way.rates.model.quantization}; its size is an estimate"
    if not n:
        yield "tensor parallel over devices with NVLink, pipeline parallel over others and machines"
    elif layout.parallel > 1:
        link = way.rates.device.link or "their link"
        yield (
            f"tensor parallel over {layout.parallel} devices: on fewer it does not fit, or not for "
            f"all users, or is slower than {load.itl_s:g} s a token; what crosses {link} is in no "
            "figure"
        )
    if n and layout.replicas > 1:
        each = "one device" if layout.parallel == 1 else f"{layout.parallel} devices"
        yield f"{layout.replicas} replicas on {each} each, {n} at once in each; speeds are of one"
    if way.rates.kv_bits < 16:
        yield f"{way.rates.kv_bits} bits in the KV cache in place of 16 cost less than 1 %"
    if shape.context_limit and load.context_tokens > shape.context_limit:
        yield f"trained for {shape.context_limit:,} tokens, fewer than {load.context_tokens:,}"
    users = load.part(layout.replicas).users
    if row.most_users and users > row.most_users and way.rates.device.is_gpu:
        many = [one for one in tables.runtimes.values() if one.most_users is None]
        best = next(one for one in many if one.least_users <= users)
        yield f"for {users} at once {best.name} is better: {best.why}; it takes {best.packing}"
    if shape.expert_share < 1:
        sizes = map(format_bytes, (shape.weight_bytes, shape.active_bytes))
        yield "experts: {} in memory, of which a token reads {}".format(*sizes)
    if n == 1:
        yield (
            f"speculative decoding pays from {LEAST_ACCEPTANCE:.0%} accepted, with a draft of a "
            "tenth of its size, the same tokenizer and a low temperature"
        )
    if load.users >= 32 and load.prompt_tokens >= 4000:
        yield (
            "long prompts beside many replies: LMCache keeps caches outside the GPU; llm-d and "
            "KServe route by prefix, and separate prefill from decoding"
        )


def _load_notes(load: Load, way: _Way, n: int, *, replicas: int) -> Iterator[str]:
    """Where the load is more than the devices can do."""
    rates = way.rates
    if 0 < n * replicas < load.users:
        yield f"{load.users - n * replicas} of {load.users} wait for a place"
    reading_s = rates.prefill_s(load.prompt_tokens, cached=load.cached_tokens)
    # A run asks no faster than it is answered.
    if n and load.rate_per_s and load.calls is None and reading_s is not None:
        step_s = rates.step_s(tokens=load.middle_tokens, sequences=n)
        at = {"sequences": n, "output_tokens": load.output_tokens}
        most = replicas * requests_per_s(step_s, reading_s, **at)
        if load.rate_per_s > most:
            yield (
                f"{load.rate_per_s:.3g} requests come in a second, and {most:.3g} at most are "
                "answered: the queue grows without end"
            )
    if rates.step_s(tokens=load.prompt_tokens) > load.itl_s:
        yield f"slower than {load.itl_s:g} s a token even alone: smaller weights or a faster device"
