"""`harness models`: what a run would do with its models, and which of them are in memory now."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import click
import orjson
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.cli.arguments import read_pairs
from harness.cli.consoles import (
    Shown,
    exit_code_of,
    failures_told,
    log_to_stderr,
    results,
    say,
    write_json,
)
from harness.cli.model_tables import print_models, print_plan
from harness.cli.process import FAILED, UNUSABLE
from harness.cli.project_files import load_pipeline, settings_for_calls
from harness.errors import HarnessError, InvalidInput
from harness.hardware import format_bytes
from harness.inference import Endpoint
from harness.residency import HostReport
from harness.session import run_to_its_end
from harness.session.model_control import controlled, list_models, load_model, unload_model
from harness.session.model_plan import ITEMS, plan_models
from harness.session.models import known_endpoints
from harness.session.settings import Settings

T = TypeVar("T")

_config = click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings; harness.toml in this directory when left out.",
)


@click.group()
def models() -> None:
    """Models in memory: what a run would do with them, and how it is now.

    A model from a file is loaded by each run into its own process. One of a server is loaded and
    let go by runs, and by the commands below, where its endpoint has manage = true.
    """
    log_to_stderr()


@models.command(short_help="What a run would do with its models.")
@click.argument("target", metavar="FILE.py")
@_config
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE=TAG",
    help="Which endpoint's model plays a role, in place of [roles]. May be repeated.",
)
@click.option(
    "--items",
    type=click.IntRange(1, 100),
    default=ITEMS,
    show_default=True,
    help="How many items every mapped node is taken to have.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def plan(
    *, target: str, config: Path | None, roles: tuple[str, ...], items: int, as_json: bool
) -> None:
    """Show what each model of the pipeline in FILE.py takes, and how often it will be loaded.

    FILE.py:NAME says which, where a file has several; a shipped pattern goes by its name. Nothing
    is loaded. A server is asked how large its model is only where the endpoint has manage = true
    and no need.

    Exit codes: 0 it is shown, warnings or not; 2 a run would be refused, since a model it needs can
    never fit or is no model, or something given is not usable.
    """
    with failures_told(as_json=as_json):
        given_roles = read_pairs(roles, option="--role", form="role=tag")
        settings = settings_for_calls(config, roles=given_roles)
        pipeline = load_pipeline(target)
        with _doing("finding out what the models take"):
            made = run_to_its_end(
                plan_models(pipeline, settings, environment=os.environ, items=items)
            )
    if as_json:
        _write(asdict(made))
    else:
        print_plan(made, results())
    if made.refusals:
        sys.exit(UNUSABLE)


@models.command("list", short_help="Which models are in memory now.")
@_config
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def list_(config: Path | None, *, as_json: bool) -> None:
    """Say of every endpoint whether its model is in memory, as far as its server tells.

    Exit codes: 0 shown, 1 one could not be asked, 2 something given is not usable.
    """
    with failures_told(as_json=as_json):
        endpoints = _endpoints(settings_for_calls(config))
        with _doing("asking servers"):
            seen = run_to_its_end(list_models(endpoints, environment=os.environ))
    if as_json:
        _write([asdict(model) for model in seen])
    else:
        print_models(seen, results())
    if any(model.problem is not None or model.reachable is False for model in seen):
        sys.exit(FAILED)


@models.command(short_help="Have servers load models.")
@click.argument("tags", nargs=-1, required=True, metavar="TAG...")
@_config
def load(tags: tuple[str, ...], config: Path | None) -> None:
    """Have servers load the models of endpoints that have manage = true.

    Nothing makes room for them: harness models unload does. A run takes what is in memory as it is.

    Exit codes: 0 all are in memory, 1 one could not be loaded, 2 something given is not usable,
    such as a model that the budget can never hold, 130 interrupted.
    """

    def loading(endpoint: Endpoint, settings: Settings) -> Coroutine[Any, Any, str]:
        async def load() -> str:
            began_s = time.monotonic()
            report = await load_model(endpoint, settings, environment=os.environ)
            return f"in memory{_size(report)}, after {time.monotonic() - began_s:.1f} s"

        return load()

    _each(tags, config, loading, doing="loading")


@models.command(short_help="Have servers let models go.")
@click.argument("tags", nargs=-1, required=True, metavar="TAG...")
@_config
def unload(tags: tuple[str, ...], config: Path | None) -> None:
    """Have servers let go of the models of endpoints that have manage = true.

    Other clients of the server find it gone. One that is not in memory is left as it is.

    Exit codes: 0 none of them is in memory, 1 one could not be unloaded, 2 something given is not
    usable, 130 interrupted.
    """

    def unloading(endpoint: Endpoint, _settings: Settings) -> Coroutine[Any, Any, str]:
        async def unload() -> str:
            await unload_model(endpoint, environment=os.environ)
            return "not in memory"

        return unload()

    _each(tags, config, unloading, doing="unloading")


def _each(
    tags: Sequence[str],
    config: Path | None,
    act: Callable[[Endpoint, Settings], Coroutine[Any, Any, str]],
    *,
    doing: str,
) -> None:
    """Does something with one model after the other, and ends with the gravest exit code."""
    console, codes = results(), [0]
    with failures_told():
        settings = settings_for_calls(config)
        chosen = controlled(tags, _endpoints(settings))
        for endpoint in chosen:
            try:
                with _doing(f"{doing} {endpoint.tag}"):
                    said = run_to_its_end(act(endpoint, settings))
            except HarnessError as error:
                say(f"harness: {error}", err=True)
                codes.append(exit_code_of(error))
            else:
                console.print(Text(f"{endpoint.tag}: {said}"), soft_wrap=True)
    if any(codes):
        sys.exit(max(codes))


def _size(report: HostReport | None) -> str:
    if report is None or report.total_bytes is None:
        return ""
    on_gpu = f", {format_bytes(report.gpu_bytes)} of it on GPUs" if report.gpu_bytes else ""
    return f" ({format_bytes(report.total_bytes)}{on_gpu})"


def _endpoints(settings: Settings) -> dict[str, Endpoint]:
    endpoints = known_endpoints(settings)
    if not endpoints:
        raise InvalidInput(
            "there are no endpoints; write [endpoints.<tag>] into harness.toml, "
            "or set HARNESS_ENDPOINTS",
            code="config.no-endpoints",
        )
    return endpoints


@contextmanager
def _doing(what: str) -> Iterator[None]:
    """Says on a terminal what is being done, and for how long; nothing anywhere else."""
    console = Shown(stderr=True)
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        progress.add_task(what, total=None)
        yield


def _write(value: object) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    write_json(orjson.dumps(value, option=options))
