"""How models are shown: a column for each, which leaves room on a narrow terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.hardware import format_bytes
from harness.session.model_control import Control, ModelSeen
from harness.session.model_plan import ModelPlan, PlannedDevice
from harness.session.planned_models import PlannedModel

T = TypeVar("T", PlannedModel, ModelSeen)

_COLUMN_WIDTH = 22
"""Characters, with which a file's name can still be read."""
_TITLES_WIDTH = 16


def print_plan(plan: ModelPlan, console: Console) -> None:
    """Prints a column for each model; below, the memory, what is predicted, and what is wrong."""

    def room(model: PlannedModel) -> Text:
        return _room(model, [one for one in plan.models if one.need and one is not model])

    rows: dict[str, Callable[[PlannedModel], Text]] = {
        "roles": lambda model: _text(", ".join(model.roles)),
        "also": lambda model: _text(", ".join(model.others)),
        "backend": lambda model: _text(model.backend),
        "model": lambda model: _text(model.model),
        "quantization": lambda model: _text(model.quantization),
        "context, tokens": lambda model: _count(model.context_tokens),
        "slots": lambda model: _count(model.slots),
        "weights": lambda model: _part(model, "weights_bytes"),
        "KV cache": _kv_cache,
        "compute": lambda model: _part(model, "compute_bytes"),
        "takes in all": _need,
        "fits": room,
        "pinned by": lambda model: _text(f"[endpoints.{model.tag}]" if model.pin else None),
        "priority": lambda model: _text(f"{model.priority:+d}" if model.priority else None),
        "loads": lambda model: _count(model.loads),
        "one load, s": _load_s,
        "loading, s": _loading_s,
    }
    _print_columns(plan.models, rows, console)
    for device in plan.devices:
        _line(_of_device(device), console)
    _line(_predicted(plan), console)
    for note in plan.notes:
        _line(note, console, style="dim")
    if plan.unused:
        _line(f"not used by it: {', '.join(plan.unused)}", console, style="dim")
    for warning in plan.warnings:
        console.print(Text.assemble(("warning", "bold yellow"), f": {warning}"), soft_wrap=True)
    for refusal in plan.refusals:
        console.print(Text.assemble(("refused", "bold red"), f": {refusal}"), soft_wrap=True)


def print_models(models: Sequence[ModelSeen], console: Console) -> None:
    """Prints a column for each model, and below why of some no more is known."""
    rows: dict[str, Callable[[ModelSeen], Text]] = {
        "backend": lambda model: _text(model.backend),
        "model": lambda model: _text(model.model),
        "loaded by": lambda model: _text(_CONTROL[model.control]),
        "device": lambda model: _text(model.device),
        "pinned": lambda model: _text("yes" if model.pin else None),
        "priority": lambda model: _text(f"{model.priority:+d}" if model.priority else None),
        "reachable": lambda model: _yes_or_no(model.reachable),
        "in memory": _in_memory,
        "takes": lambda model: _size(model.total_bytes),
        "of it on GPUs": lambda model: _size(model.gpu_bytes),
    }
    _print_columns(models, rows, console)
    for model in models:
        if model.problem is not None:
            said = Text.assemble((model.tag, "bold red"), f": {model.problem}")
            console.print(said, soft_wrap=True)


_CONTROL: Mapping[Control, str] = {
    "run": "each run",
    "managed": "the budget",
    "fixed": "its server alone",
}


def _print_columns(
    models: Sequence[T], rows: Mapping[str, Callable[[T], Text]], console: Console
) -> None:
    """Prints tables below each other, each with as many models as there is room for."""
    columns = max(1, (console.width - _TITLES_WIDTH) // _COLUMN_WIDTH)
    cells = {title: [cell(model) for model in models] for title, cell in rows.items()}
    said = {title: row for title, row in cells.items() if any(cell.plain != "-" for cell in row)}
    for start in range(0, len(models), columns):
        table = Table()
        table.add_column("", no_wrap=True)
        for model in models[start : start + columns]:
            table.add_column(Text(model.tag), overflow="fold")
        for title, row in said.items():
            table.add_row(title, *row[start : start + columns])
        console.print(table)


# --- cells ----------------------------------------------------------------------------------------


def _text(value: str | None, style: str = "") -> Text:
    return Text(value, style=style) if value else Text("-", style="dim")


def _count(value: int | None) -> Text:
    return _text(None if value is None else f"{value:,}")


def _size(value: int | None) -> Text:
    return _text(None if value is None else format_bytes(value))


def _part(model: PlannedModel, part: Literal["weights_bytes", "kv_bytes", "compute_bytes"]) -> Text:
    return _size(None if model.footprint is None else getattr(model.footprint, part))


def _kv_cache(model: PlannedModel) -> Text:
    size = _part(model, "kv_bytes")
    if model.footprint is not None and not model.footprint.kv_is_exact:
        size = Text.assemble("at most ", size)
    return size


def _yes_or_no(value: bool | None) -> Text:  # noqa: FBT001 - a value to show
    return _text(None) if value is None else _text(*(("yes",) if value else ("no", "yellow")))


def _need(model: PlannedModel) -> Text:
    if not model.need:
        return _text("?" if model.is_managed else None, "yellow")
    on = (f"{format_bytes(size)} on {device}" for device, size in model.need.items())
    return _text("\n".join(on))


def _room(model: PlannedModel, others: Sequence[PlannedModel]) -> Text:
    match model.fit:
        case "never":
            return _text("never", "red")
        case "unknown":
            return _text("?", "yellow")
        case "not counted":
            return _text("as its server likes", "dim")
        case "whole" | "split":
            return _whole_or_split(model, others)


def _whole_or_split(model: PlannedModel, others: Sequence[PlannedModel]) -> Text:
    how = "whole" if model.fit == "whole" else "split over devices"
    if len(model.beside) == len(others):
        return _text(f"{how}, beside any other" if others else how)
    beside = f"beside {', '.join(model.beside)}" if model.beside else "alone"
    return _text(f"{how}, {beside}", "yellow")


def _load_s(model: PlannedModel) -> Text:
    if model.load_time is None:
        return _text(None)
    return _text(f"{model.load_time.seconds:.1f} ({model.load_time.source})")


def _loading_s(model: PlannedModel) -> Text:
    if model.load_time is None or model.loads is None:
        return _text(None)
    return _text(f"{model.loads * model.load_time.seconds:.1f}")


def _in_memory(model: ModelSeen) -> Text:
    if model.resident is None:
        return _text("in runs alone" if model.control == "run" else None, "dim")
    return _text("yes" if model.resident else "no")


# --- lines ----------------------------------------------------------------------------------------


def _line(said: str, console: Console, style: str = "") -> None:
    console.print(Text(said, style=style), soft_wrap=True)


def _of_device(device: PlannedDevice) -> str:
    reserve = (
        f", less {format_bytes(device.reserve_bytes)} in reserve" if device.reserve_bytes else ""
    )
    return (
        f"{device.name}: {format_bytes(device.capacity_bytes)}{reserve}; all of these models "
        f"together take {format_bytes(device.wanted_bytes)}"
        + ("" if device.has_room else ", and so they take turns")
    )


def _predicted(plan: ModelPlan) -> str:
    if plan.loads is None or plan.load_s is None:
        return "loads: not predicted"
    times = [model.load_time for model in plan.models if model.load_time and model.loads]
    guessed = any(time.source == "guess" for time in times)
    return (
        f"predicted: {plan.loads} load{'' if plan.loads == 1 else 's'}, "
        f"{plan.load_s:.1f} s of loading"
        + (" (guessed from sizes, at 1 GB/s, until runs have measured it)" if guessed else "")
    )
