"""What `harness advise` prints: the table of layouts, and the command lines of the marked one."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import PurePath
from typing import Final, get_args

from rich.console import Console

from harness.advise.data_tables import DeviceSpec, rows
from harness.advise.layouts import (
    Layout,
    Miss,
    Place,
    ServingGoal,
    enough_devices,
    precisions,
    short_s,
)
from harness.advise.rates import USUAL_OF_EXPERTS, usd_per_million_tokens
from harness.cli.tables import digits, dollars, print_line
from harness.hardware import format_bytes
from harness.hardware.quantization import CACHE_TYPES, KvBits, role_floor
from harness.inference.endpoint import BackendName
from harness.inference.providers import PROVIDERS

ONLY: Final = "model"
"""The role of a model that is named without one."""
# Columns of words, which are aligned to the left.
_LEFT: Final = {"", "model", "roles", "precision", "devices", "takes", "targets"}
_ROWS: Final = 12  # the most rows of a table without --explain
_FIRST_PORT: Final = 8080
_USUAL_FLOOR: Final = 4  # the fewest bits of a precision for most roles
_BARE: Final = re.compile("[A-Za-z0-9_-]+")  # a key of TOML that needs no quotes


def print_places(
    places: Sequence[Place], device: DeviceSpec, console: Console, *, explain: bool
) -> None:
    """Prints each model's table, how to serve its marked layout, remedies, notes and settings."""
    print_line(device_line(device, explain=explain), console)
    roles: list[str] = []
    endpoints: list[str] = []
    for place, port in zip(places, ports_of(places), strict=True):
        row, role = place.marked, place.goal.role
        print_line("\n" + load_line(place), console, "bold")
        if len(places) > 1:
            beside = ", beside the other models there" if place.models > 1 else ""
            numbers = ", ".join(str(place.first + n) for n in range(place.count))
            print_line(f"on device {numbers}{beside}", console)
        visible = place.layouts if explain else place.layouts[:_ROWS]
        lines = [("->" if layout is row else "", *cells(layout)) for layout in visible]
        print_rows([("", *columns()), *lines] if lines else [], console)
        if len(visible) < len(place.layouts):
            print_line(f"and {len(place.layouts) - len(visible)} more: --explain", console)
        if row is None:
            print_line(missed_line(place, device), console, "bold")
            continue
        by_backend = servings(place, row, device, port=port)
        _print_serving(place, row, by_backend, console, explain=explain)
        # `harness.toml` gets one endpoint for each model, that of the first server.
        for backend, serving in [*by_backend.items()][:1]:
            key = role if _BARE.fullmatch(role) else toml(role)
            roles += [f"{key} = {toml(role)}"] * (role != ONLY)
            table = f"[endpoints.{key}]  # {PROVIDERS[backend].title}"
            endpoints += ["", table, *endpoint_of(backend, serving)]
    if not all(place.marked for place in places):
        print_line("\n" + remedy_line(places, device), console, "bold")
    print_line("", console)
    # Each note once, although several models may have it.
    for note in dict.fromkeys(note for place in places for note in notes(place, device)):
        print_line(f"- {note}", console)
    if endpoints:
        head = ["", "[roles]", *roles] if roles else []
        print_line("\nharness.toml:" + "\n".join([*head, *endpoints]), console, "cyan")


def _print_serving(
    place: Place, row: Layout, by_backend: Servings, console: Console, *, explain: bool
) -> None:
    """Prints what the marked layout costs, and the commands that start its servers."""
    unknown = "" if row.ttft_s is not None else "; TTFT unknown"
    if row.itl_s is None:
        unknown = " as far as known: --bandwidth and --tflops would tell its speed"
    print_line(f"-> meets all targets{unknown}.", console)
    for line in cost_lines(place, row):
        print_line(line, console)
    reasons = {title: formula for title, formula in columns().items() if formula}
    for backend, serving in by_backend.items():
        settings = command_of(backend, serving)
        reasons |= dict(settings)
        command = " ".join(text for text, _ in settings)
        print_line(f"{PROVIDERS[backend].title}: {command}", console, "bold green")
    for name, reason in reasons.items() if explain else ():
        print_line(f"  {name}: {reason}", console, "dim")


def device_line(device: DeviceSpec, *, explain: bool) -> str:
    """The device, with its memory and speed as far as known."""
    count = f"{device.count} x " if device.count > 1 else ""
    bandwidth = "bandwidth unknown (--bandwidth)"
    if device.memory_bytes_per_s:
        bandwidth = f"{device.memory_bytes_per_s / 1e9:,.0f} GB/s"
    operations = "operations unknown (--tflops)"
    if device.flops_per_s:
        operations = f"{device.flops_per_s / 1e12:,.4g} TFLOP/s"
        if device.fp8_flops_per_s:
            operations += f", {device.fp8_flops_per_s / 1e12:,.0f} with FP8"
    source = f" ({device.source})" if explain else ""
    size = format_bytes(device.memory_bytes)
    return f"{count}{device.name}: {size}, {bandwidth}, {operations}{source}"


def load_line(place: Place) -> str:
    """A model with its load and its targets."""
    load = place.goal.load
    users = "1 user" if load.users == 1 else f"{load.users} users at once"
    rate = f", {load.rate_per_s:.3g} requests/s" if load.rate_per_s else ""
    return (
        f"{_prefix(place.goal.role, ': ')}{place.goal.shape.title}, {users}{rate}, "
        f"{load.prompt_tokens:,} + {load.output_tokens:,} tokens each; targets: TTFT "
        f"{load.ttft_s:g} s, ITL {1000 * load.itl_s:g} ms"
    )


def columns() -> dict[str, str]:
    """Title of each figure of a layout → its formula."""
    return {row["name"]: row["formula"] for row in rows("columns")}


def print_rows(table: Sequence[Sequence[str]], console: Console) -> None:
    """Prints a table with its head, without columns whose cells are all unknown."""
    padded: list[list[str]] = []
    for head, *texts in zip(*table, strict=True):
        if any(text != "?" for text in texts):
            justify = str.ljust if head in _LEFT else str.rjust
            width = max(map(len, (head, *texts)))
            padded.append([justify(text, width) for text in (head, *texts)])
    for row in zip(*padded, strict=True):
        print_line("  ".join(row).rstrip(), console)


def cells(row: Layout) -> tuple[str, ...]:
    """A layout's figures as texts, in the order of `columns`."""
    low, high = (">= ", "<= ") if row.is_bound else ("", "")
    return (
        row.precision + ("" if row.kv_bits == 16 else f" KV{row.kv_bits}"),
        f"{row.devices}{_divided(row).replace(',', ':')}",
        format_bytes(row.weight_bytes),
        format_bytes(row.sequence_bytes),
        f"{row.sequences:,}",
        "?" if row.decode_limit is None else digits(row.decode_limit),
        "?" if row.prefill_limit is None else digits(row.prefill_limit),
        "?" if row.ttft_s is None else low + _seconds(row.ttft_s),
        "?" if row.itl_s is None else low + _seconds(row.itl_s),
        "?" if row.tokens_per_s is None else high + digits(row.tokens_per_s),
        "?" if row.usd_per_hour is None else f"{row.usd_per_hour:.2f}",
        "; ".join(map(missed, row.misses)) or ("met" if row.ttft_s is not None else "none missed"),
    )


def _divided(row: Layout) -> str:
    parts = [f"TP {row.tensor_parallel}"] if row.tensor_parallel > 1 else []
    parts += [f"PP {row.stages}"] if row.stages > 1 else []
    parts += [f"{row.copies} copies"] if row.copies > 1 else []
    return f", {' x '.join(parts)}" if parts else ""


def missed(miss: Miss) -> str:
    """A missed target, and by how much."""
    if miss.target == "places":
        return f"{miss.limit - miss.value:,.0f} of {miss.limit:,.0f} wait for a place"
    if miss.target == "rate":
        return f"{digits(miss.value)} of {digits(miss.limit)} requests/s"
    value, limit = _seconds(miss.value), _seconds(miss.limit)
    return f"{miss.target} {value} of {limit}" if value != limit else f"{miss.target} above {limit}"


def notes(place: Place, device: DeviceSpec) -> Iterator[str]:
    """The notes on a model's table, in one line each."""
    goal, layouts, model = place.goal, place.layouts, place.goal.shape.title
    load, factors = goal.load, goal.factors
    if any(row.ttft_s is not None for row in layouts):
        if load.users > 1 and load.rate_per_s is None:
            yield "TTFT is the last user's if all ask at once; with --rate, requests come at random"
        if goal.measured is None:
            shares = f"{factors.bandwidth:.0%} of the bandwidth and {factors.compute:.0%} of the "
            experts = " (many small experts)" if factors == USUAL_OF_EXPERTS else ""
            yield f"times are at {shares}operations{experts}, until --measure has found better"
    elif any(row.itl_s for row in layouts):
        yield "tokens/s and ITL are without the reading of prompts, whose speed is unknown"
    if any(row.tensor_parallel > 1 for row in layouts):
        link = f"counts at {device.link_bytes_per_s / 1e9:,.0f} GB/s, its delay does not"
        sent = link if device.link_bytes_per_s else "is in no figure: TP wants NVLink"
        yield f"what GPUs of TP send each other {sent}"
        if any(cache.heads == 1 for cache in goal.shape.caches):
            yield f"the KV cache of {model} is one head (MLA, MQA): each GPU of TP has all of it"
    if place.models > 1:
        yield "models on one device: times are while the others are idle"
    if any(row.is_bound for row in layouts):
        short = f"{1000 * short_s(goal.shape):g} ms a layer"
        yield f">= and <=: steps under {short} take longer, for starting kernels and sending"
    if not device.fp8_flops_per_s and any(row.precision == "FP8" for row in layouts):
        yield "FP8 is of the weights alone: this device multiplies in 16 bits"
    yield from _model_notes(goal, layouts)


def _model_notes(goal: ServingGoal, layouts: Sequence[Layout]) -> Iterator[str]:
    shape, model, floor = goal.shape, goal.shape.title, role_floor(goal.role)
    if any(row.precision == "MXFP4" for row in layouts):
        yield "servers may pad the experts of MXFP4: up to 9 % more weights, and fewer sequences"
    if shape.expert_share < 1:
        share = f"{shape.expert_share:.1%}"
        yield f"all experts are in memory; a token reads {share} of them, several sequences more"
    if any(row.precision not in {shape.quantization, "F16"} for row in layouts):
        yield f"sizes in another precision than {shape.quantization} are estimates"
    if floor > _USUAL_FLOOR and goal.quantization is None:
        yield f"for {goal.role} no precision under {floor:g} bits is considered"
    if any(row.bits < floor - 0.1 for row in layouts):
        yield f"fewer than {floor:g} bits are too coarse for {goal.role}"
    if not shape.is_local and "/" not in goal.model:
        yield f"{model} in a command stands for your own file or folder, or a hub's name"
    if shape.family and not shape.exact_caches:
        yield f"the KV cache of {model} is at most so large: not all of its layers are known here"
    if 0 < (shape.context_limit or 0) < goal.load.context_tokens:
        context = f"{shape.context_limit} tokens, fewer than {goal.load.context_tokens}"
        yield f"{model} was trained for {context}"


def _seconds(value: float) -> str:
    if value == float("inf"):
        return "endless"
    ms = 1000 * value
    return f"{digits(value)} s" if value >= 1 else f"{digits(ms) if ms < 10 else round(ms)} ms"


def missed_line(place: Place, device: DeviceSpec) -> str:
    """Says that no layout of a model meets the targets, or why none fits."""
    goal = place.goal
    name = goal.shape.title if goal.role == ONLY else goal.role
    if place.layouts:
        return f"No layout of {name} meets the targets."
    if place.models > 1:
        turns = "They can take turns, each loaded when it is called: see harness models plan."
        return f"{name} does not fit beside the other models. {turns}"
    smallest = min(precisions(goal, device), key=lambda shape: shape.weight_bytes)
    size = f"{smallest.quantization} its weights take {format_bytes(smallest.weight_bytes)}"
    room = format_bytes(device.room * device.count)
    return f"{name} does not fit with one sequence: in {size}, and there is room for {room}."


def remedy_line(places: Sequence[Place], device: DeviceSpec) -> str:
    """Says with which devices all targets would be met."""
    remedies: list[str] = []
    for kind, spots in enough_devices([place.goal for place in places], device)[:4]:
        layouts = "; ".join(
            f"{_prefix(place.goal.role, ' ')}{row.precision}{_divided(row)}"
            for place in spots
            if (row := place.marked)
        )
        cost = f", ${kind.usd_per_hour * kind.count:.2f}/h" if kind.usd_per_hour else ""
        remedies.append(f"{kind.count} x {kind.name} ({layouts}{cost})")
    counts = "1, 2, 4 or 8" if len(places) > 1 else "1, 2, 4, 8 or 16"
    if not remedies:
        return f"None of these meets the targets: {counts} of each GPU of the table."
    return f"What would meet the targets, of {counts} GPUs: {', or '.join(remedies)}."


def _prefix(role: str, after: str) -> str:
    return "" if role == ONLY else f"{role}{after}"


def cost_lines(place: Place, row: Layout) -> Iterator[str]:
    """Says what a million tokens cost at the load, if the rent and the speed are known."""
    load, speed = place.goal.load, row.tokens_per_s
    if row.usd_per_hour is None or not speed:
        return
    hour = row.usd_per_hour / place.models  # models that share devices share their rent
    busy = 1.0
    if load.rate_per_s:
        busy = min(load.rate_per_s * load.output_tokens / speed, 1.0)
    cost = dollars(usd_per_million_tokens(hour, tokens_per_s=speed, busy=busy))
    bound = "at least " if row.is_bound and busy == 1 else ""
    when = f"{busy:.0%} busy, idle time included" if load.rate_per_s else "always as busy as this"
    share = "" if place.models == 1 else f", its part of {place.models},"
    yield f"${hour:.2f} an hour{share} is {bound}${cost} a million output tokens ({when})."


def ports_of(places: Sequence[Place]) -> list[int | None]:
    """The first port of each model's servers; for a single model None, the servers' usual port."""
    # A hundred apart, since each copy of a model has a port of its own.
    return [_FIRST_PORT + 100 * n for n in range(len(places))] if len(places) > 1 else [None]


def servings(place: Place, row: Layout, device: DeviceSpec, *, port: int | None) -> Servings:
    """Backend → the settings of its server, for servers that can serve the layout."""
    load, shape = place.goal.load, place.goal.shape
    # Models come in 16 bits, some in MXFP4, and this one in its own precision. Weights in any other
    # precision must be quantized first.
    is_published = row.bits > 15 or row.precision == "MXFP4"
    is_own = row.precision == shape.quantization
    must_quantize = not (is_own or is_published)
    # A model that is known by its name comes in either packing.
    has_both = is_published and not shape.is_local and row.tensor_parallel == 1
    by_backend: Servings = {}
    for backend, server in servers().items():
        takes_gguf = server["packing"] == "gguf"
        takes_packing = server["packing"] == row.packing or has_both
        if not takes_packing or not (takes_gguf or device.is_gpu):
            continue
        if must_quantize and server["packs_loaded"] and not _can_be_packed(place, row, device):
            continue
        model = place.goal.model
        online = None  # the format in which the server quantizes the weights that it loads
        if takes_gguf and not (shape.is_local and is_own):
            name = model if shape.is_local else model.rpartition("/")[2]
            model = f"{name.removesuffix('.gguf')}-{row.precision}.gguf"
        elif not takes_gguf and must_quantize:
            if row.precision == "FP8":
                online = "fp8"
            else:
                model = f"{model}-{row.precision}"
        # Rounded up, since with less memory than it needs a server would not start.
        share = round(row.device_bytes / device.memory_bytes + 0.01, 2)
        by_backend[backend] = Serving(
            model=model,
            context_tokens=load.context_tokens,
            sequences=max(min(-(-load.users // row.copies), row.sequences // row.copies), 1),
            kv_bits=row.kv_bits,
            quantization=online,
            on_gpu=device.is_gpu,
            tensor_parallel=row.tensor_parallel,
            stages=row.stages,
            copies=row.copies,
            gpu_share=share if place.models > 1 else None,
            port=port,
            first_gpu=place.first if device.count > row.devices or row.copies > 1 else None,
        )
    return by_backend


def _can_be_packed(place: Place, row: Layout, device: DeviceSpec) -> bool:
    """Whether a server can quantize 16-bit weights, all of which it loads before."""
    shape = place.goal.shape
    has_room = shape.weight_bytes / (row.tensor_parallel * row.stages) < device.room
    # Servers do not quantize experts on devices without units for FP8.
    return has_room and (shape.expert_share == 1 or device.fp8_flops_per_s is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """The settings to start a server with."""

    model: str  # the model's file, folder or name, as the server takes it
    context_tokens: int  # the tokens of one sequence: its prompt and its reply
    sequences: int = 1  # the sequences that one copy answers at once
    kv_bits: KvBits = 16
    quantization: str | None = None
    """The format in which 16-bit weights are quantized when they are loaded; None for no other."""
    on_gpu: bool = True
    tensor_parallel: int = 1
    stages: int = 1
    copies: int = 1
    gpu_share: float | None = None
    """Each server's share of the GPU's memory, from 0 to 1; None for its default."""
    port: int | None = None  # the first copy's port; None for the server's usual port
    first_gpu: int | None = None  # the number of the first GPU that it uses; None to use all GPUs


Servings = dict[BackendName, Serving]


@cache
def servers() -> dict[BackendName, dict[str, str]]:
    """Backend → its column of the table `flags`: its command, flags, usual port and packing."""
    table = rows("flags")
    # Servers whose commands were never run here have no column.
    return {
        backend: {row["name"]: row[backend] for row in table}
        for backend in get_args(BackendName)
        if backend in table[0]
    }


def command_of(backend: BackendName, serving: Serving) -> list[tuple[str, str]]:
    """The parts of the command line that starts the server, each with its reason.

    Joined by spaces they are a line for a shell: variables, the program with its model, its flags.
    """
    server = servers()[backend]
    parts: list[tuple[str, str]] = []
    gpus = serving.tensor_parallel * serving.stages
    first = serving.first_gpu
    for copy in range(serving.copies):
        numbers = range((first or 0) + copy * gpus, (first or 0) + (copy + 1) * gpus)
        values: dict[str, object] = asdict(serving) | {
            "command": True,
            "model": quoted(serving.model),
            "all_tokens": serving.context_tokens * serving.sequences,
            "cache_type": CACHE_TYPES[serving.kv_bits],
            "gpus": serving.on_gpu and first is not None and ",".join(map(str, numbers)),
            # 0 for 16 bits, which are every server's default.
            "kv_bits": serving.kv_bits % 16,
            "gpu_layers": "all" if serving.on_gpu else "0",
            "tensor_parallel": serving.tensor_parallel > 1 and serving.tensor_parallel,
            "stages": serving.stages > 1 and serving.stages,
            "port": (serving.port or copy) and int(serving.port or server["usual_port"]) + copy,
        }
        # Flags whose values are false are left out.
        settings = [
            (row[backend].format(**values), row["meaning"].format(**values))
            for row in rows("flags")
            if row[backend] and values.get(row["name"])
        ]
        parts += [("&", "and beside it")] if copy else []
        # In a shell's order: variables (`CUDA_…=`), the program, its flags.
        parts += sorted(settings, key=lambda part: (part[0][:2] == "--", not part[0][0].isupper()))
    return parts


def endpoint_of(backend: BackendName, serving: Serving) -> list[str]:
    """The lines of `harness.toml` under the head of the endpoint that calls the server."""
    server, model = servers()[backend], serving.model
    first = int(serving.port or server["usual_port"])
    urls = [f"http://127.0.0.1:{first + copy}{server['path']}" for copy in range(serving.copies)]
    lines = [
        f"backend = {toml(backend)}",
        f"urls = {toml(urls)}" if len(urls) > 1 else f"url = {toml(urls[0])}",
        f"model_id = {toml(PurePath(model).stem if model.endswith('.gguf') else model)}",
        f"max_parallel = {serving.sequences * serving.copies}",
    ]
    line = server["line"].format(context_tokens=serving.context_tokens)
    return [*lines, line] if line else lines


def toml(value: object) -> str:
    """A text or a list of texts in TOML."""
    return json.dumps(value, ensure_ascii=False)


def quoted(path: str) -> str:
    """The text quoted for a shell, in which a `~` at the beginning stays the home folder."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)
