"""`harness models plan`: the memory that each model of a pipeline takes, and how quick it is."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from harness.advise.data_tables import DeviceSpec, this_gpu, this_machine
from harness.advise.layout_table import cells, columns, print_rows
from harness.advise.layouts import Layout, ServingGoal, Workload, layouts
from harness.advise.model_shape import read_model_shape
from harness.cli.arguments import config_option, json_option, read_pairs, role_option
from harness.cli.consoles import Command, Shown, show
from harness.cli.project_files import load_pipeline_to_read, settings_for_calls
from harness.cli.tables import print_line
from harness.errors import DoesNotFit, HarnessError, InvalidInput, ModelFileInvalid
from harness.graph import Graph
from harness.hardware import format_bytes
from harness.hardware.quantization import CacheType, KvBits
from harness.inference.endpoint import MACHINE, Endpoint
from harness.residency import Device, Tenant, check_fits
from harness.session import Settings, run_to_its_end
from harness.session.demand import demand_of, needed_roles
from harness.session.models import known_endpoints, opened_host
from harness.session.roles import Roles, cast_roles
from harness.session.tenancy import check_managed, devices_of, is_managed, slots_of, tenant_of

# The types of cache that a layout has; with others, a row has no figures but what it takes.
_KV_BITS: Mapping[CacheType, KvBits] = {"f16": 16, "bf16": 16, "q8_0": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedModel:
    """An endpoint that the pipeline needs, or whose model is in memory in any case."""

    tag: str
    roles: tuple[str, ...]  # the roles in which nodes call it
    layout: Layout | None  # of a file that fits, with the endpoint's device, context and slots
    need: Mapping[str, int]  # device → bytes; empty if its server decides, or if there is a problem
    problem: str | None  # why its size is unknown, or why a fallback can never fit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPlan:
    """The plan of a pipeline's models, before a run; those that its nodes call come first."""

    pipeline: str
    devices: tuple[Device, ...]
    models: tuple[PlannedModel, ...]


@click.command(cls=Command)
@click.argument("target", metavar="FILE.py")
@config_option
@role_option
@json_option
def plan(*, target: str, config: Path | None, roles: tuple[str, ...], as_json: bool) -> None:
    """Show what each model of the pipeline in FILE.py takes, and whether all fit at once.

    FILE.py:NAME picks one of several in a file; a shipped pattern goes by its name. Columns are
    those of harness advise. Nothing is loaded. A server is asked how large its model is only if
    the endpoint has manage = true and no need.

    Exit codes: 0 shown, with or without warnings; 2 a run would be refused, since a model that it
    needs can never fit or is no model, or the input is invalid.
    """
    settings = settings_for_calls(config, roles=read_pairs(roles, option="--role", form="role=tag"))
    pipeline = load_pipeline_to_read(target)
    with Shown(stderr=True).status("finding out what the models take"):
        model_plan = run_to_its_end(plan_models(pipeline, settings, environment=os.environ))
    show(model_plan, print_plan, as_json=as_json)


def print_plan(plan: ModelPlan, console: Console) -> None:
    """Prints a row for each model, then the memory of each device, then the warnings."""
    rows: list[Sequence[str]] = [("model", "roles", *columns(), "takes")]
    for model in plan.models:
        figures = cells(model.layout) if model.layout else ["?" for _ in columns()]
        parts = [f"{format_bytes(size)} on {name}" for name, size in model.need.items()]
        takes = ", ".join(parts) or ("?" if model.problem else "as its server likes")
        rows.append((model.tag, ", ".join(model.roles) or "-", *figures, takes))
    print_rows(rows, console)
    for device in plan.devices:
        size, reserve = format_bytes(device.capacity_bytes), format_bytes(device.reserve_bytes)
        needed = sum(model.need.get(device.name, 0) for model in plan.models)
        line = f"{device.name}: {size}"
        line += f", less {reserve} in reserve" if device.reserve_bytes else ""
        line += f"; all of these models together take {format_bytes(needed)}"
        line += ", and so they take turns" if needed > device.room_bytes else ""
        print_line(line, console)
    for model in plan.models:
        if model.problem is not None:
            text = Text.assemble((model.tag, "bold red"), f": {model.problem}")
            console.print(text, soft_wrap=True)


async def plan_models(
    graph: Graph, settings: Settings, *, environment: Mapping[str, str]
) -> ModelPlan:
    """Plans a run's use of its models; raises `HarnessError` if a run would be refused."""
    # 1. Find the endpoints and their roles.
    graph.check()
    endpoints = known_endpoints(settings)
    check_managed(endpoints.values())
    roles = cast_roles(endpoints, settings)
    required = roles.in_use | roles.required(needed_roles(graph))
    roles_of = _roles_by_tag(graph, roles, endpoints, required=required)

    # 2. Find the sizes of their models, by asking a server if the endpoint does not give its own.
    sizes = await asyncio.gather(*(_sized(endpoints[tag], environment) for tag in roles_of))
    tenants = {size.model: size for size in sizes if isinstance(size, Tenant)}
    named = [device for tenant in tenants.values() for device in tenant.need]
    devices = {device.name: device for device in devices_of(settings.budget, named=named)}

    # 3. Say of each model whether it fits. A server that did not answer is its row's problem.
    models = []
    for (tag, called_as), size in zip(roles_of.items(), sizes, strict=True):
        tenant = tenants.get(tag)
        problem = size if isinstance(size, HarnessError) else None
        if tenant is not None:
            try:
                check_fits(tag, tenants, devices)
            except DoesNotFit as error:
                problem = error
        # A fallback that cannot fit is only a warning, since a run would continue without it.
        is_needed = called_as or tag in required or (tenant is not None and tenant.pin)
        if is_needed and isinstance(problem, DoesNotFit | ModelFileInvalid):
            raise problem
        models.append(
            PlannedModel(
                tag=tag,
                roles=tuple(called_as),
                layout=_layout(endpoints[tag], devices) if tenant else None,
                need=tenant.need if tenant else {},
                problem=problem.statement if problem else None,
            )
        )
    return ModelPlan(pipeline=graph.name, devices=tuple(devices.values()), models=tuple(models))


def _roles_by_tag(
    graph: Graph, roles: Roles, endpoints: Mapping[str, Endpoint], *, required: Collection[str]
) -> dict[str, list[str]]:
    """Tag of each endpoint that a run calls or loads → its roles, those with roles coming first.

    `required` are the tags of endpoints that the run cannot do without, whoever calls them.
    """
    demand = demand_of(graph)  # node → its roles; None for a node that does not declare them
    roles_of: dict[str, list[str]] = {}
    for role in dict.fromkeys(role for names in demand.values() for role in names or ()):
        for tag in roles.tags(role):
            roles_of.setdefault(tag, []).append(role)
    may_call_any = None in demand.values()
    for tag, endpoint in endpoints.items():
        if may_call_any or tag in required or (endpoint.pin and is_managed(endpoint)):
            roles_of.setdefault(tag, [])
    for tag in tuple(roles_of):
        for fallback in endpoints[tag].fallback:
            roles_of.setdefault(fallback, [])
    return roles_of


async def _sized(
    endpoint: Endpoint, environment: Mapping[str, str]
) -> Tenant | HarnessError | None:
    """The endpoint's model as a tenant, or why it has no size; None if the budget ignores it."""
    if not is_managed(endpoint):
        return None
    try:
        async with opened_host(endpoint, environment) as host:
            return await tenant_of(endpoint, host)
    except HarnessError as error:
        return error


def _layout(endpoint: Endpoint, devices: Mapping[str, Device]) -> Layout | None:
    """The layout of an endpoint's file; None without a file, room, or bits for its cache."""
    kv_bits = _KV_BITS.get(endpoint.cache_type_k)
    if endpoint.path is None or kv_bits is None or kv_bits != _KV_BITS.get(endpoint.cache_type_v):
        return None
    names = [*endpoint.shares]
    try:
        spec = this_machine() if names[0] == MACHINE else this_gpu(names[0])
    except InvalidInput:  # a device of the settings that the driver does not know
        spec = DeviceSpec(name=names[0], memory_bytes=0, source="settings")
    room = min(devices[name].room_bytes for name in names)
    spec = replace(spec, count=len(names), room_bytes=room, usd_per_hour=None)
    output = -(-endpoint.context_tokens // 5)  # a fifth, as of the usual `Workload`
    prompt = max(endpoint.context_tokens - output, 1)
    workload = Workload(users=slots_of(endpoint) or 1, prompt_tokens=prompt, output_tokens=output)
    shape = read_model_shape(endpoint.path)
    goal = ServingGoal(
        role=endpoint.tag, shape=shape, model=str(endpoint.path), workload=workload, kv_bits=kv_bits
    )
    # The endpoint loads the file in its own precision, a part of the layers on each device.
    fitting = (found for found in layouts(goal, spec) if found.weight_bytes == shape.weight_bytes)
    return next((layout for layout in fitting if layout.stages == len(names)), None)
