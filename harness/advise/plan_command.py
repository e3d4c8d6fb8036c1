"""`harness models plan`: what each model of a pipeline takes, how quick it is, and whether all fit.

Planning loads nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import click
from rich.console import Console
from rich.text import Text

from harness.advise.advise_command import loads_of_run
from harness.advise.data_tables import DeviceSpec, this_gpu, this_machine
from harness.advise.layout_table import cells, columns, print_rows
from harness.advise.layouts import Layout, Load, Wanted, layouts
from harness.advise.model_shape import read_model_shape
from harness.cli.arguments import config_option, json_option, read_pairs, role_option
from harness.cli.consoles import Shown, failures_told, json_object, results, write_json
from harness.cli.process import UNUSABLE
from harness.cli.project_files import load_pipeline_to_read, settings_for_calls
from harness.cli.tables import print_line
from harness.errors import DoesNotFit, HarnessError, InvalidInput, ModelFileInvalid, Notice
from harness.graph import Graph
from harness.hardware import format_bytes
from harness.inference import Endpoint
from harness.inference.endpoint import MACHINE
from harness.residency import Device, Tenant, check_fits
from harness.session import Settings, run_to_its_end
from harness.session.casting import Casting
from harness.session.demand import MEMORY, Players, demand_of, judges
from harness.session.models import known_endpoints, opened_host
from harness.session.roles import EVALUATOR
from harness.session.session import models_for
from harness.session.tenancy import check_managed, devices_of, is_managed, slots_of, tenant_of
from harness.trace import Tracer

Fit = Literal["whole", "split", "never", "unknown", "not counted"]
_FITS: Final[Mapping[Fit, str]] = {
    "split": "split over devices",
    "unknown": "?",
    "not counted": "as its server likes",
}
"""How a fit is shown, if in other words."""


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """An endpoint that the pipeline needs, or whose model is in memory in any case."""

    tag: str
    roles: tuple[str, ...]
    """Those in which nodes ask it."""
    layout: Layout | None
    """Of a file that fits, as the endpoint has it: its device, context and slots."""
    need: Mapping[str, int]
    """Bytes by device; empty if unknown or not counted."""
    fit: Fit
    pin: bool
    problem: str | None
    """Why its size is unknown."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """The plan of a pipeline's models, before a run; those that it asks come first."""

    pipeline: str
    devices: tuple[Device, ...]
    models: tuple[PlannedModel, ...]
    refusals: tuple[Notice, ...]
    """Why a run would be refused; usually empty."""


@click.command()
@click.argument("target", metavar="FILE.py")
@click.option("--run", metavar="RUN", help="Take the load from a run or a batch.")
@config_option
@role_option
@json_option
def plan(
    *, target: str, run: str | None, config: Path | None, roles: tuple[str, ...], as_json: bool
) -> None:
    """Show what each model of the pipeline in FILE.py takes, and whether all fit at once.

    FILE.py:NAME picks one of several in a file; a shipped pattern goes by its name. Columns are
    those of harness advise. Nothing is loaded. A server is asked how large its model is only if
    the endpoint has manage = true and no need.

    Exit codes: 0 shown, with or without warnings; 2 a run would be refused, since a model that it
    needs can never fit or is no model, or the input is invalid.
    """
    with failures_told(as_json=as_json):
        given_roles = read_pairs(roles, option="--role", form="role=tag")
        settings = settings_for_calls(config, roles=given_roles)
        pipeline = load_pipeline_to_read(target)
        loads = {tag: load for tag, _, load in loads_of_run(run, settings)} if run else {}
        with Shown(stderr=True).status("finding out what the models take"):
            planning = plan_models(pipeline, settings, environment=os.environ, loads=loads)
            made = run_to_its_end(planning)
    if as_json:
        write_json(json_object(made))
    else:
        print_plan(made, results())
    if made.refusals:
        sys.exit(UNUSABLE)


def print_plan(plan: ModelPlan, console: Console) -> None:
    """Prints a row for each model; below, the memory and the warnings."""
    rows: list[Sequence[str]] = [("model", "roles", *columns(), "takes", "fits")]
    for model in plan.models:
        taken = ", ".join(f"{format_bytes(size)} on {name}" for name, size in model.need.items())
        figures = cells(model.layout) if model.layout else ["?" for _ in columns()]
        fits = _FITS.get(model.fit, model.fit)
        rows.append((model.tag, ", ".join(model.roles) or "-", *figures, taken or "?", fits))
    print_rows(rows, console)
    for device in plan.devices:
        size, reserve = format_bytes(device.capacity_bytes), format_bytes(device.reserve_bytes)
        wanted = sum(model.need.get(device.name, 0) for model in plan.models)
        said = f"{device.name}: {size}"
        said += f", less {reserve} in reserve" if device.reserve_bytes else ""
        said += f"; all of these models together take {format_bytes(wanted)}"
        said += ", and so they take turns" if wanted > device.room_bytes else ""
        print_line(said, console)
    wrong = [(model.tag, model.problem) for model in plan.models if model.problem is not None]
    for name, problem in [*wrong, *(("refused", str(one)) for one in plan.refusals)]:
        console.print(Text.assemble((name, "bold red"), f": {problem}"), soft_wrap=True)


async def plan_models(
    graph: Graph,
    settings: Settings,
    *,
    environment: Mapping[str, str],
    loads: Mapping[str, Load] | None = None,
) -> ModelPlan:
    """Plans a run's use of its models, by tag with the load of an earlier run.

    Servers are asked for the size of a managed model if its endpoint does not give it, and for the
    models they serve, as at the beginning of a run. The row of a silent server says so.

    Raises:
        HarnessError: The pipeline or the settings have a mistake, a role has no model, producer and
            evaluator are too much alike, or the capacity of a device is unknown.
    """
    # 1. Who is asked.
    graph.check()
    endpoints = known_endpoints(settings)
    check_managed(endpoints.values())
    casting = Casting(endpoints, settings)
    if judges(graph):
        casting.check()
        await casting.ask_servers(Tracer(), environment=environment)
        casting.choose_evaluators(Tracer(), task="", run_id="")
    players = Players(roles=casting.roles, memory=settings.memory.models)
    asked = _asked(graph, players, casting, endpoints)

    # 2. How large they are, and what there is room for.
    sizes = await asyncio.gather(*(_sized(endpoints[tag], environment) for tag in asked))
    found = dict(zip(asked, sizes, strict=True))
    tenants = {tag: one for tag, one in found.items() if isinstance(one, Tenant)}
    named = [device for tenant in tenants.values() for device in tenant.need]
    devices = {device.name: device for device in devices_of(settings.budget, named=named)}
    needed = casting.required | {tag for tag, played in asked.items() if played}
    models, refusals = [], list[HarnessError]()
    for tag, size in found.items():
        endpoint, need, layout = endpoints[tag], dict[str, int](), None
        fit: Fit = "not counted" if size is None else "unknown"
        if isinstance(size, Tenant):
            fit, need = "split" if size.is_split else "whole", dict(size.need)
            layout = _layout(endpoint, devices, (loads or {}).get(tag))
            try:
                check_fits(tag, tenants, devices)
            except DoesNotFit as never:
                fit = "never"
                refusals += [never] if tag in needed or size.pin else []
        elif isinstance(size, ModelFileInvalid) and tag in needed:
            refusals.append(size)
        problem = size.statement if isinstance(size, HarnessError) else None
        models.append(
            PlannedModel(tag, tuple(asked[tag]), layout, need, fit, endpoint.pin, problem)
        )
    notices = tuple(Notice(code=one.code, message=str(one)) for one in refusals)
    return ModelPlan(graph.name, tuple(devices.values()), tuple(models), notices)


def _asked(
    graph: Graph, players: Players, casting: Casting, endpoints: Mapping[str, Endpoint]
) -> dict[str, list[str]]:
    """The roles of each endpoint that a run needs or has in memory; those asked come first.

    The evaluator may have no model: then code alone checks. So may the memory: wordllama embeds.

    Raises:
        ConfigurationInvalid: Another role has no model.
    """
    demand = demand_of(graph)
    asking = {role: f"node '{node}'" for node, roles in demand.items() for role in roles or ()}
    lacking = {role for role in asking if not players.of(role)} - {EVALUATOR, MEMORY}
    models_for({role: asking[role] for role in lacking}, players.roles)
    found: dict[str, list[str]] = {}
    for role in asking:
        for tag in players.of(role):
            found.setdefault(tag, []).append(role)
    wanted = casting.required.union(casting.roles.pool or ())
    is_unknown = None in demand.values()  # what some node asks: any may be asked
    for tag, endpoint in endpoints.items():
        if is_unknown or tag in wanted or (endpoint.pin and is_managed(endpoint)):
            found.setdefault(tag, [])
    for tag in tuple(found):
        for fallback in endpoints[tag].fallback:
            found.setdefault(fallback, [])
    return found


async def _sized(
    endpoint: Endpoint, environment: Mapping[str, str]
) -> Tenant | HarnessError | None:
    """What the budget would know of a model, or why not; None if it does not count it."""
    if not is_managed(endpoint):
        return None
    try:
        async with opened_host(endpoint, environment) as host:
            return await tenant_of(endpoint, host)
    except HarnessError as failed:
        return failed


def _layout(endpoint: Endpoint, devices: Mapping[str, Device], load: Load | None) -> Layout | None:
    """Of a model from a file, as the endpoint loads it; None if it does not fit so."""
    names = [*endpoint.shares]
    if endpoint.path is None:
        return None
    try:
        spec = this_machine() if names[0] == MACHINE else this_gpu(names[0])
    except InvalidInput:  # in the settings, and unknown to the driver
        spec = DeviceSpec(name=names[0], memory_bytes=0, source="settings")
    room = min(devices[name].room_bytes for name in names)
    spec = replace(spec, count=len(names), room_bytes=room, usd_per_hour=None)
    output = -(-endpoint.context_tokens // 5)  # unless a run says how long replies are
    prompt = max(endpoint.context_tokens - output, 1)
    users = slots_of(endpoint) or 1
    load = load or Load(users=users, prompt_tokens=prompt, output_tokens=output)
    shape = read_model_shape(endpoint.path)
    wanted = Wanted(role=endpoint.tag, shape=shape, model=str(endpoint.path), load=load)
    for row in layouts(wanted, spec):
        if row.stages == len(names) and row.weight_bytes == shape.weight_bytes:
            return row
    return None
