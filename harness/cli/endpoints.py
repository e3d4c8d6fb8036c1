"""`harness endpoints` and `harness models`: what configured models can do, and which are loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from harness.cli.arguments import config_option, json_option
from harness.cli.consoles import Group, Shown, exit_code_of, results, say, show
from harness.cli.process import FAILED
from harness.cli.project_files import endpoints_of, settings_for_calls
from harness.cli.tables import listed, print_line
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
    """Prints what is known of each endpoint, and advice."""
    for check in checks:
        values = {title: getattr(check, name) for name, title in _TITLES.items()}
        _print_block(check.tag, values, console)
        for advice in check.advice:
            print_line(f"  {'advice':<17}{advice}", console)


def _print_block(tag: str, values: Mapping[str, object], console: Console) -> None:
    """Prints a line for each value that is known, by its title, below the tag."""
    print_line(tag, console, "bold")
    for title, value in values.items():
        match value:
            case None | "" | ():
                continue
            case bool():
                text = "yes" if value else "no"
            case int() | float():
                text = f"{round(value, 1):,}"
            case tuple():
                text = listed(map(str, value))
            case _:
                text = str(value)
        print_line(f"  {title:<17}{text}", console)


# Attribute of `EndpointCheck` → the title of its line.
_TITLES = {
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
    "error": "problem",
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
    """Prints what is known of each model."""
    for model in models:
        in_memory: object = model.resident
        if model.resident is None and model.control == "run":
            in_memory = "in runs alone"
        values = {
            "backend": model.backend,
            "model": model.model,
            "loaded by": _CONTROL[model.control],
            "device": model.device,
            "pinned": model.pin or None,
            "priority": model.priority or None,
            "reachable": model.reachable,
            "in memory": in_memory,
            "takes": model.total_bytes and format_bytes(model.total_bytes),
            "of it on GPUs": model.gpu_bytes and format_bytes(model.gpu_bytes),
            "problem": model.problem,
        }
        _print_block(model.tag, values, console)


_CONTROL: Mapping[Control, str] = {
    "run": "each run",
    "managed": "the budget",
    "fixed": "its server alone",
}
