"""`harness models plan`: what each model of a pipeline takes, and whether all fit at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from harness.advise.model_plan import Fit, ModelPlan, PlannedDevice, PlannedModel, plan_models
from harness.cli.arguments import config_option, json_option, read_pairs, role_option
from harness.cli.consoles import Shown, failures_told, json_object, results, write_json
from harness.cli.process import UNUSABLE
from harness.cli.project_files import load_pipeline_to_read, settings_for_calls
from harness.cli.tables import cell, print_columns, print_line
from harness.hardware import format_bytes
from harness.session import run_to_its_end

_FITS: Final[Mapping[Fit, tuple[str, str]]] = {
    "whole": ("whole", ""),
    "split": ("split over devices", ""),
    "never": ("never", "red"),
    "unknown": ("?", "yellow"),
    "not counted": ("as its server likes", "dim"),
}
"""How a fit is shown: its words and its style."""


@click.command()
@click.argument("target", metavar="FILE.py")
@config_option
@role_option
@json_option
def plan(*, target: str, config: Path | None, roles: tuple[str, ...], as_json: bool) -> None:
    """Show what each model of the pipeline in FILE.py takes, and whether all fit at once.

    FILE.py:NAME picks one of several in a file; a shipped pattern goes by its name. Nothing is
    loaded. A server is asked how large its model is only if the endpoint has manage = true and no
    need.

    Exit codes: 0 shown, with or without warnings; 2 a run would be refused, since a model that it
    needs can never fit or is no model, or the input is invalid.
    """
    with failures_told(as_json=as_json):
        given_roles = read_pairs(roles, option="--role", form="role=tag")
        settings = settings_for_calls(config, roles=given_roles)
        pipeline = load_pipeline_to_read(target)
        with Shown(stderr=True).status("finding out what the models take"):
            made = run_to_its_end(plan_models(pipeline, settings, environment=os.environ))
    if as_json:
        write_json(json_object(made))
    else:
        print_plan(made, results())
    if made.refusals:
        sys.exit(UNUSABLE)


def print_plan(plan: ModelPlan, console: Console) -> None:
    """Prints a column for each model; below, the memory and the warnings."""
    rows: dict[str, Callable[[PlannedModel], Text]] = {
        "roles": lambda model: cell(", ".join(model.roles)),
        "backend": lambda model: cell(model.backend),
        "model": lambda model: cell(model.model),
        "context, tokens": lambda model: _count(model.context_tokens),
        "slots": lambda model: _count(model.slots),
        "weights": lambda model: _part(model, "weights_bytes"),
        "KV cache": _kv_cache,
        "compute": lambda model: _part(model, "compute_bytes"),
        "takes in all": _need,
        "fits": lambda model: cell(*_FITS[model.fit]),
        "pinned": lambda model: cell("yes" if model.pin else None),
    }
    print_columns({model.tag: model for model in plan.models}, rows, console)
    for device in plan.devices:
        print_line(_device_line(device), console)
    for model in plan.models:
        if model.problem is not None:
            said = Text.assemble((model.tag, "bold red"), f": {model.problem}")
            console.print(said, soft_wrap=True)
    for refusal in plan.refusals:
        console.print(Text.assemble(("refused", "bold red"), f": {refusal}"), soft_wrap=True)


def _count(value: int | None) -> Text:
    return cell(None if value is None else f"{value:,}")


def _part(model: PlannedModel, part: str) -> Text:
    taken = model.footprint
    return cell(None if taken is None else format_bytes(getattr(taken, part)))


def _kv_cache(model: PlannedModel) -> Text:
    size = _part(model, "kv_bytes")
    is_bound = model.footprint is not None and not model.footprint.kv_is_exact
    return Text.assemble("at most ", size) if is_bound else size


def _need(model: PlannedModel) -> Text:
    if not model.need:
        return cell("?" if model.is_managed else None, "yellow")
    return cell("\n".join(f"{format_bytes(size)} on {name}" for name, size in model.need.items()))


def _device_line(device: PlannedDevice) -> str:
    reserve = (
        f", less {format_bytes(device.reserve_bytes)} in reserve" if device.reserve_bytes else ""
    )
    return (
        f"{device.name}: {format_bytes(device.capacity_bytes)}{reserve}; all of these models "
        f"together take {format_bytes(device.wanted_bytes)}"
        + (", and so they take turns" if device.wanted_bytes > device.room_bytes else "")
    )
