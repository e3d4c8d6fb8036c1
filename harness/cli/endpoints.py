"""`harness endpoints` and `harness models`: what configured models can do, and which are loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from harness.cli.arguments import config_option, json_option
from harness.cli.consoles import Group, Shown, exit_code_of, results, say, show
from harness.cli.process import FAILED
from harness.cli.project_files import endpoints_of, settings_for_calls
from harness.cli.tables import cell, print_columns, print_line
from harness.errors import HarnessError
from harness.hardware import format_bytes
from harness.session import run_to_its_end
from harness.session.endpoint_check import (
    Control,
    EndpointCheck,
    ModelSeen,
    check_endpoints,
    controlled,
    list_models,
    unload_model,
)

_PLAN = "harness.advise.plan_command:plan", "Show what a run would do with its models."


@click.group(cls=Group)
def endpoints() -> None:
    """Check the configured endpoints."""


@endpoints.command()
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@config_option
@json_option
def check(tags: tuple[str, ...], config: Path | None, *, as_json: bool) -> None:
    """Check all endpoints, or the named ones, with a few short calls each.

    Shows what each can do, and how it could report more. Exit codes: 0 all work, 1 one does not, 2
    invalid input, 130 interrupted.
    """
    settings = settings_for_calls(config)
    with Shown(stderr=True).status("") as status:
        checking = check_endpoints(
            settings,
            endpoints_of(settings),
            environment=os.environ,
            tags=tags,
            progress=lambda doing: status.update(Text(doing)),
        )
        checks = run_to_its_end(checking)
    show(checks, print_checks, as_json=as_json)
    if any(result.error for result in checks):
        sys.exit(FAILED)


def print_checks(checks: Sequence[EndpointCheck], console: Console) -> None:
    """Prints a column for each endpoint, and its errors and advice below."""
    rows = {title: partial(_cell_of, name) for name, title in _ROWS.items()}
    print_columns({check.tag: check for check in checks}, rows, console)
    for check in checks:
        if check.error:
            _print_remark(check.tag, check.error, console, style="bold red")
        for advice in check.advice:
            _print_remark(check.tag, advice, console, style="bold")


def _print_remark(tag: str, remark: object, console: Console, *, style: str) -> None:
    console.print(Text.assemble((tag, style), f": {remark}"), soft_wrap=True)


def _cell_of(name: str, check: EndpointCheck) -> Text:
    value = getattr(check, name)
    return cell(value, "yellow" if value in {"advisory", "ignored"} else "")


# Attribute of `EndpointCheck` → the title of its row.
_ROWS = {
    "reachable": "reachable",
    "backend": "backend",
    "model_id": "model",
    "models": "models there",
    "context_tokens": "context, tokens",
    "slots": "slots",
    "structured": "schemas",
    "timings": "timings",
    "cached_tokens": "cached tokens",
    "metrics": "counters",
    "dropped": "refused fields",
}


@click.group(cls=Group, lazy={"plan": _PLAN})
def models() -> None:
    """Models in memory: plan a run's, list and unload them.

    Each run loads a model from a file itself. Runs load and unload a server's model if its endpoint
    has manage = true.
    """


@models.command("list", short_help="List the models in memory now.")
@config_option
@json_option
def list_(config: Path | None, *, as_json: bool) -> None:
    """List every endpoint, and whether its model is in memory, if its server reports that.

    Exit codes: 0 shown, 1 one could not be asked, 2 invalid input.
    """
    configured = endpoints_of(settings_for_calls(config))
    with Shown(stderr=True).status("asking servers"):
        states = run_to_its_end(list_models(configured, environment=os.environ))
    show(states, print_models, as_json=as_json)
    if any(model.problem is not None or model.reachable is False for model in states):
        sys.exit(FAILED)


@models.command(short_help="Have servers unload models.")
@click.argument("tags", nargs=-1, required=True, metavar="TAG...")
@config_option
def unload(tags: tuple[str, ...], config: Path | None) -> None:
    """Have servers unload the models of endpoints that have manage = true.

    Other clients of the server lose the model too. A model that is not in memory is left alone.

    Exit codes: 0 all are unloaded, 1 one could not be unloaded, 2 invalid input, 130 interrupted.
    """
    console = results()
    codes = [0]
    for endpoint in controlled(tags, endpoints_of(settings_for_calls(config))):
        try:
            with Shown(stderr=True).status(f"unloading {endpoint.tag}"):
                run_to_its_end(unload_model(endpoint, environment=os.environ))
        except HarnessError as error:
            say(f"harness: {error}", err=True)
            codes.append(exit_code_of(error))
        else:
            print_line(f"{endpoint.tag}: not in memory", console)
    sys.exit(max(codes))


def print_models(models: Sequence[ModelSeen], console: Console) -> None:
    """Prints a column for each model, and its problem below."""
    rows: dict[str, Callable[[ModelSeen], Text]] = {
        "backend": lambda model: cell(model.backend),
        "model": lambda model: cell(model.model),
        "loaded by": lambda model: cell(_CONTROL[model.control]),
        "device": lambda model: cell(model.device),
        "pinned": lambda model: cell("yes" if model.pin else None),
        "priority": lambda model: cell(f"{model.priority:+d}" if model.priority else None),
        "reachable": lambda model: cell(model.reachable),
        "in memory": _in_memory,
        "takes": lambda model: _size(model.total_bytes),
        "of it on GPUs": lambda model: _size(model.gpu_bytes),
    }
    print_columns({model.tag: model for model in models}, rows, console)
    for model in models:
        if model.problem:
            _print_remark(model.tag, model.problem, console, style="bold red")


_CONTROL: Mapping[Control, str] = {
    "run": "each run",
    "managed": "the budget",
    "fixed": "its server alone",
}


def _size(value: int | None) -> Text:
    return cell(None if value is None else format_bytes(value))


def _in_memory(model: ModelSeen) -> Text:
    if model.resident is None:
        return cell("in runs alone" if model.control == "run" else None, "dim")
    return Text("yes" if model.resident else "no")
