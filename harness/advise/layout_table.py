"""What `harness advise` prints: the table of layouts, and how to serve the marked one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console

from harness.advise.data_tables import DeviceSpec, rows
from harness.advise.layouts import (
    Layout,
    Miss,
    Placement,
    ServingGoal,
    counts_tried,
    enough_devices,
    precisions,
    short_s,
)
from harness.advise.rates import USUAL_OF_EXPERTS, usd_per_million_tokens
from harness.advise.serving import Servings, command_of, endpoint_of, servings, toml
from harness.cli.tables import digits, dollars, print_line
from harness.hardware import format_bytes
from harness.hardware.quantization import role_floor
from harness.inference.providers import PROVIDERS

ONLY: Final = "model"  # the role of a model that is named without one
_WORD_COLUMNS: Final = {"", "model", "roles", "precision", "devices", "takes", "targets"}
_SHOWN_ROWS: Final = 12  # the most rows of a table without --explain
_SHOWN_REMEDIES: Final = 4  # this device first, then the cheapest
_USUAL_FLOOR: Final = 4  # the fewest bits of a precision for most roles
_BARE_KEY: Final = re.compile("[A-Za-z0-9_-]+")  # a key of TOML that needs no quotes


def print_placements(
    placements: Sequence[Placement], device: DeviceSpec, console: Console, *, explain: bool
) -> None:
    """Prints each model's table, how to serve its marked layout, remedies, notes and settings."""
    print_line(device_line(device, explain=explain), console)
    roles: list[str] = []
    endpoints: list[str] = []
    for placement in placements:
        layout, role = placement.chosen, placement.goal.role
        print_line("\n" + workload_line(placement), console, "bold")
        if len(placements) > 1:
            numbers = ", ".join(str(placement.first + n) for n in range(placement.count))
            beside = ", beside the other models there" if placement.models > 1 else ""
            print_line(f"on device {numbers}{beside}", console)
        _print_layouts(placement, console, explain=explain)
        if layout is None:
            print_line(missed_line(placement, device), console, "bold")
            continue
        by_backend = servings(placement, layout, device)
        _print_serving(placement, layout, by_backend, console, explain=explain)
        key = role if _BARE_KEY.fullmatch(role) else toml(role)
        if by_backend and role != ONLY:
            roles.append(f"{key} = {toml(role)}")
        # `harness.toml` gets one endpoint for each model, that of the first server.
        for backend, serving in [*by_backend.items()][:1]:
            table = f"[endpoints.{key}]  # {PROVIDERS[backend].title}"
            endpoints += ["", table, *endpoint_of(backend, serving)]
    if not all(placement.chosen for placement in placements):
        print_line("\n" + remedy_line(placements, device), console, "bold")
    print_line("", console)
    # Several models may have the same note, which is printed once.
    for note in dict.fromkeys(note for p in placements for note in notes(p, device)):
        print_line(f"- {note}", console)
    if endpoints:
        head = ["", "[roles]", *roles] if roles else []
        print_line("\nharness.toml:" + "\n".join([*head, *endpoints]), console, "cyan")


def _print_layouts(placement: Placement, console: Console, *, explain: bool) -> None:
    visible = placement.layouts if explain else placement.layouts[:_SHOWN_ROWS]
    lines = [("->" if layout is placement.chosen else "", *cells(layout)) for layout in visible]
    print_rows([("", *columns()), *lines], console)
    if len(visible) < len(placement.layouts):
        print_line(f"and {len(placement.layouts) - len(visible)} more: --explain", console)


def _print_serving(
    placement: Placement, layout: Layout, by_backend: Servings, console: Console, *, explain: bool
) -> None:
    """Prints what the marked layout costs, and the commands that start its servers."""
    doubt = ""
    if layout.itl_s is None:
        doubt = " as far as known: --bandwidth and --tflops would tell its speed"
    elif layout.ttft_s is None:
        doubt = "; TTFT unknown"
    print_line(f"-> meets all targets{doubt}.", console)
    if cost := cost_line(placement, layout):
        print_line(cost, console)
    reasons = {title: formula for title, formula in columns().items() if formula}
    for backend, serving in by_backend.items():
        parts = command_of(backend, serving)
        reasons |= dict(parts)
        command = " ".join(part for part, _ in parts)
        print_line(f"{PROVIDERS[backend].title}: {command}", console, "bold green")
    if explain:
        for part, reason in reasons.items():
            print_line(f"  {part}: {reason}", console, "dim")


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


def workload_line(placement: Placement) -> str:
    """A model with its workload and its targets."""
    workload = placement.goal.workload
    users = "1 user" if workload.users == 1 else f"{workload.users} users at once"
    rate = f", {workload.rate_per_s:.3g} requests/s" if workload.rate_per_s else ""
    return (
        f"{_prefix(placement.goal.role, ': ')}{placement.goal.shape.title}, {users}{rate}, "
        f"{workload.prompt_tokens:,} + {workload.output_tokens:,} tokens each; targets: TTFT "
        f"{workload.ttft_s:g} s, ITL {1000 * workload.itl_s:g} ms"
    )


def columns() -> dict[str, str]:
    """Title of each figure of a layout → its formula."""
    return {row["name"]: row["formula"] for row in rows("columns")}


def print_rows(table: Sequence[Sequence[str]], console: Console) -> None:
    """Prints a table, whose first row is its head, without columns that are unknown in all rows."""
    padded: list[list[str]] = []
    for head, *texts in zip(*table, strict=True):
        if any(text != "?" for text in texts):
            justify = str.ljust if head in _WORD_COLUMNS else str.rjust
            width = max(map(len, (head, *texts)))
            padded.append([justify(text, width) for text in (head, *texts)])
    for row in zip(*padded, strict=True):
        print_line("  ".join(row).rstrip(), console)


def cells(layout: Layout) -> tuple[str, ...]:
    """A layout's figures as texts, in the order of `columns`."""
    at_least = ">= " if layout.is_bound else ""
    at_most = "<= " if layout.is_bound else ""
    division = _division(layout)
    return (
        layout.precision + ("" if layout.kv_bits == 16 else f" KV{layout.kv_bits}"),
        f"{layout.devices}: {division}" if division else f"{layout.devices}",
        format_bytes(layout.weight_bytes),
        format_bytes(layout.sequence_bytes),
        f"{layout.sequences:,}",
        "?" if layout.decode_limit is None else digits(layout.decode_limit),
        "?" if layout.prefill_limit is None else digits(layout.prefill_limit),
        "?" if layout.ttft_s is None else at_least + _seconds(layout.ttft_s),
        "?" if layout.itl_s is None else at_least + _seconds(layout.itl_s),
        "?" if layout.tokens_per_s is None else at_most + digits(layout.tokens_per_s),
        "?" if layout.usd_per_hour is None else f"{layout.usd_per_hour:.2f}",
        "; ".join(map(missed, layout.misses))
        or ("met" if layout.ttft_s is not None else "none missed"),
    )


def _division(layout: Layout) -> str:
    """A layout's division of its devices, such as `TP 2 x 4 copies`; empty for one device."""
    parts = [f"TP {layout.tensor_parallel}"] if layout.tensor_parallel > 1 else []
    parts += [f"PP {layout.stages}"] if layout.stages > 1 else []
    parts += [f"{layout.copies} copies"] if layout.copies > 1 else []
    return " x ".join(parts)


def missed(miss: Miss) -> str:
    """A missed target as text, and by how much the layout misses it."""
    if miss.target == "places":
        return f"{miss.limit - miss.value:,.0f} of {miss.limit:,.0f} wait for a place"
    if miss.target == "rate":
        return f"{digits(miss.value)} of {digits(miss.limit)} requests/s"
    value, limit = _seconds(miss.value), _seconds(miss.limit)
    # Rounded, a value may read like the limit that it exceeds.
    return f"{miss.target} {value} of {limit}" if value != limit else f"{miss.target} above {limit}"


def notes(placement: Placement, device: DeviceSpec) -> Iterator[str]:
    """The notes on a model's table, in one line each."""
    goal, layouts, model = placement.goal, placement.layouts, placement.goal.shape.title
    workload, factors = goal.workload, goal.factors
    if any(layout.ttft_s is not None for layout in layouts):
        if workload.users > 1 and workload.rate_per_s is None:
            yield "TTFT is the last user's if all ask at once; with --rate, requests come at random"
        if goal.measured is None:
            shares = f"{factors.bandwidth:.0%} of the bandwidth and {factors.compute:.0%}"
            experts = " (many small experts)" if factors == USUAL_OF_EXPERTS else ""
            until = "until --measure has found better"
            yield f"times are at {shares} of the operations{experts}, {until}"
    elif any(layout.itl_s for layout in layouts):
        yield "tokens/s and ITL are without the reading of prompts, whose speed is unknown"
    if any(layout.tensor_parallel > 1 for layout in layouts):
        cost = "is in no figure: TP wants NVLink"
        if device.link_bytes_per_s:
            cost = f"counts at {device.link_bytes_per_s / 1e9:,.0f} GB/s, its delay does not"
        yield f"what GPUs of TP send each other {cost}"
        if any(cache.heads == 1 for cache in goal.shape.caches):
            yield f"the KV cache of {model} is one head (MLA, MQA): each GPU of TP has all of it"
    if placement.models > 1:
        yield "models on one device: times are while the others are idle"
    if any(layout.is_bound for layout in layouts):
        short = f"{1000 * short_s(goal.shape):g} ms a layer"
        yield f">= and <=: steps under {short} take longer, for starting kernels and sending"
    if not device.fp8_flops_per_s and any(layout.precision == "FP8" for layout in layouts):
        yield "FP8 is of the weights alone: this device multiplies in 16 bits"
    yield from _model_notes(goal, layouts)


def _model_notes(goal: ServingGoal, layouts: Sequence[Layout]) -> Iterator[str]:
    shape, model = goal.shape, goal.shape.title
    floor = role_floor(goal.role)
    if any(layout.precision == "MXFP4" for layout in layouts):
        yield "servers may pad the experts of MXFP4: up to 9 % more weights, and fewer sequences"
    if shape.expert_share < 1:
        share = f"{shape.expert_share:.1%}"
        yield f"all experts are in memory; a token reads {share} of them, several sequences more"
    if any(layout.precision not in {shape.quantization, "F16"} for layout in layouts):
        yield f"sizes in another precision than {shape.quantization} are estimates"
    if floor > _USUAL_FLOOR and goal.quantization is None:
        yield f"for {goal.role} no precision under {floor:g} bits is considered"
    # `bits` are computed from rounded bytes, and may be a little under those of the precision.
    if any(layout.bits < floor - 0.1 for layout in layouts):
        yield f"fewer than {floor:g} bits are too coarse for {goal.role}"
    if not shape.is_local and "/" not in goal.model:
        yield f"{model} in a command stands for your own file or folder, or a hub's name"
    if shape.family and not shape.exact_caches:
        yield f"the KV cache of {model} is at most so large: not all of its layers are known here"
    if shape.context_limit and shape.context_limit < goal.workload.context_tokens:
        context = f"{shape.context_limit} tokens, fewer than {goal.workload.context_tokens}"
        yield f"{model} was trained for {context}"


def _seconds(value: float) -> str:
    if value == float("inf"):
        return "endless"
    if value >= 1:
        return f"{digits(value)} s"
    ms = 1000 * value
    return f"{digits(ms)} ms" if ms < 10 else f"{round(ms)} ms"


def missed_line(placement: Placement, device: DeviceSpec) -> str:
    """Says that no layout of a model meets the targets, or why none fits."""
    goal = placement.goal
    name = goal.shape.title if goal.role == ONLY else goal.role
    if placement.layouts:
        return f"No layout of {name} meets the targets."
    if placement.models > 1:
        turns = "They can take turns, each loaded when it is called: see harness models plan."
        return f"{name} does not fit beside the other models. {turns}"
    smallest = min(precisions(goal, device), key=lambda shape: shape.weight_bytes)
    size = f"{smallest.quantization} its weights take {format_bytes(smallest.weight_bytes)}"
    room = format_bytes(device.room * device.count)
    return f"{name} does not fit with one sequence: in {size}, and there is room for {room}."


def remedy_line(placements: Sequence[Placement], device: DeviceSpec) -> str:
    """Says which devices of the table would meet all targets."""
    goals = [placement.goal for placement in placements]
    remedies: list[str] = []
    for kind, on_kind in enough_devices(goals, device)[:_SHOWN_REMEDIES]:
        parts: list[str] = []
        for placement in on_kind:
            if layout := placement.chosen:
                division = f", {_division(layout)}" if layout.devices > 1 else ""
                parts.append(f"{_prefix(placement.goal.role, ' ')}{layout.precision}{division}")
        cost = f", ${kind.usd_per_hour * kind.count:.2f}/h" if kind.usd_per_hour else ""
        remedies.append(f"{kind.count} x {kind.name} ({'; '.join(parts)}{cost})")
    *smaller, largest = counts_tried(goals)
    counts = f"{', '.join(map(str, smaller))} or {largest}"
    if not remedies:
        return f"None of these meets the targets: {counts} of each GPU of the table."
    return f"What would meet the targets, of {counts} GPUs: {', or '.join(remedies)}."


def _prefix(role: str, after: str) -> str:
    """The role and what stands after it; empty for a model that was named without a role."""
    return "" if role == ONLY else f"{role}{after}"


def cost_line(placement: Placement, layout: Layout) -> str | None:
    """Says what a million tokens cost at the workload; None if the rent or the speed is unknown."""
    workload, speed = placement.goal.workload, layout.tokens_per_s
    if layout.usd_per_hour is None or not speed:
        return None
    hour = layout.usd_per_hour / placement.models  # models that share devices share their rent
    busy, when = 1.0, "always as busy as this"
    if workload.rate_per_s:
        busy = min(workload.rate_per_s * workload.output_tokens / speed, 1.0)
        when = f"{busy:.0%} busy, idle time included"
    cost = dollars(usd_per_million_tokens(hour, tokens_per_s=speed, busy=busy))
    bound = "at least " if layout.is_bound and busy == 1 else ""
    share = "" if placement.models == 1 else f", its part of {placement.models},"
    return f"${hour:.2f} an hour{share} is {bound}${cost} a million output tokens ({when})."
