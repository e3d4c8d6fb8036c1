"""`harness advise`: what fits on a device, how quick it can be, what to start, its cost."""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from harness.analysis import measured_speed as speed
from harness.analysis.serving_advice import Advice, ModelAdvice, Wanted
from harness.analysis.serving_advice import advise as advise_on
from harness.analysis.serving_load import Load, loads_of, shape_of_run
from harness.cli.arguments import config_option, find_journal, json_option, read_pairs
from harness.cli.consoles import (
    Shown,
    failures_told,
    json_object,
    log_to_stderr,
    results,
    say,
    write_json,
)
from harness.cli.project_files import endpoints_of, settings_for_calls
from harness.cli.tables import digits, dollars, print_line
from harness.errors import CallTimeout, InvalidInput, did_you_mean, fault_of
from harness.hardware import format_bytes, parse_bytes
from harness.hardware.data_tables import Figure, Tables, read_tables
from harness.hardware.device import DeviceSpec, device_by_hand, this_gpu, this_machine
from harness.hardware.gpus import read_gpus
from harness.hardware.model_shape import ModelShape, read_model_shape
from harness.hardware.quantization import ROLE_FLOORS
from harness.hardware.rates import Rates
from harness.inference import Endpoint
from harness.inference.endpoint import AUTO, GPU_NAME, MACHINE
from harness.inference.model_identity import is_here
from harness.inference.providers import PROVIDERS
from harness.inference.providers.serving import Launch, name_of, toml
from harness.session import Settings, load_settings, run_to_its_end
from harness.session.roles import KNOWN_ROLES, meant_role
from harness.trace.calls import calls_of
from harness.trace.journal_reader import Journal
from harness.trace.records import Instant, SpanRecord

_ONLY = "model"
"""The role of a model that has none."""
_POSITIVE = click.FloatRange(0, min_open=True)
_MANY = 8
"""Users from which a model that is given by its size is taken to be served in 16 bits."""
_NOTES = 3
_FIRST = {"decode alone", "decode together", "first token in the queue", "goodput"}
"""How many notes, and which figures, the first screen has; and whatever is in dollars."""
_MEASURING_S = 60.0
_LEAST_BYTES = 2**20
"""Less memory, or a second's bytes, is a number whose unit was forgotten."""
_BARE = re.compile("[A-Za-z0-9_-]+")
"""A key of TOML that needs no quotes."""


@click.command()
@click.argument("models", nargs=-1, metavar="[ROLE=]MODEL...")
@click.option("--device", help="One of --tables devices, or of this machine: `machine`, `gpu0`.")
@click.option("--memory", help='A device by hand: "24 GiB".')
@click.option("--bandwidth", help='Of that memory, per second: "1008 GB".')
@click.option("--gpus", type=click.IntRange(1), help="How many such devices.")
@click.option("--users", type=click.IntRange(1), help="How many ask at once; default 1.")
@click.option("--prompt", "prompt_tokens", type=click.IntRange(1), help="Tokens of a prompt; 2000.")
@click.option("--output", "output_tokens", type=click.IntRange(1), help="Tokens of a reply; 500.")
@click.option("--rate", "rate_per_s", type=_POSITIVE, help="Requests per second.")
@click.option("--ttft", "ttft_s", type=_POSITIVE, help="Most seconds to the first token; 2.")
@click.option("--itl", "itl_s", type=_POSITIVE, help="Most seconds between tokens; 0.05.")
@click.option("--run", metavar="RUN", help="Take load and models from a run or a batch.")
@click.option("--quantization", help="For models given by their size.")
@click.option("--runtime", help="Consider only this one of --tables runtimes.")
@click.option("--price", type=_POSITIVE, help="Dollars per hour and device.")
@click.option("--table", "own", multiple=True, metavar="NAME=FILE", help="Add or replace rows.")
@click.option(
    "--tables", "shown", is_flag=False, flag_value="", help="Show a table, or the names of all."
)
@click.option(
    "--measure", "measured", metavar="ENDPOINT", help="Compare this endpoint (tag or URL)."
)
@click.option("--explain", is_flag=True, help="All figures with their formulas, all reasons.")
@config_option
@json_option
def advise(
    *,
    models: Sequence[str],
    own: Sequence[str],
    shown: str | None,
    as_json: bool,
    explain: bool,
    price: float | None,
    gpus: int | None,
    device: str | None,
    memory: str | None,
    bandwidth: str | None,
    measured: str | None,
    **given: Any,  # noqa: ANN401 - options of `_wanted`
) -> None:
    """Say how to serve models on a device: what fits, how quick it can be, what to start.

    A MODEL is a GGUF file, a folder of safetensors, a config.json, a size such as 8B, or one of
    --tables models. Models that share a device have roles: producer=a.gguf evaluator=b.gguf.
    Nothing is loaded and nothing started.

    With --measure, an endpoint answers calls for a minute, and later advice uses the rates that it
    reached. To measure a server without an endpoint, give its URL and --runtime.

    Exit codes: 0 shown, 1 the endpoint could not be measured, 2 invalid input.
    """
    told: dict[str, object] = {}
    log_to_stderr()
    with failures_told(as_json=as_json, of_journals=True, more=told):
        pairs = read_pairs(own, option="--table", form="name=file")
        tables = read_tables({name: Path(path) for name, path in pairs.items()})
        if shown is not None:
            _print_table(tables, shown)
            return
        endpoint = None
        if measured is not None:
            settings = settings_for_calls(given["config"])
            endpoint = _measured(measured, settings, tables, models, given["runtime"])
            given["runtime"] = endpoint.backend
            models = models or ([str(endpoint.path)] if endpoint.path else [])
            device = device or (_device_of(endpoint) if memory is None else None)
        where = _device(tables, device, memory, bandwidth)
        wanted, known = _wanted(models, tables, is_gpu=where.is_gpu, **given), {}
        row = tables.runtime(given["runtime"] or "")
        only = row.backend if row else given["runtime"]
        for number, one in enumerate(wanted):
            learned = speed.learned_for(os.environ, where, one.shape, runtime=only)
            if learned is not None:
                known[one.role] = learned
                wanted[number] = replace(one, factors=learned.factors_on(where))
        if endpoint is not None:
            rates = Rates(model=wanted[0].shape, device=where, factors=wanted[0].factors)
            _measure(endpoint, wanted[0].load, rates, settings, told, as_json=as_json)
            return
        found = advise_on(
            wanted,
            replace(where, count=gpus or where.count),
            tables=tables,
            launches={name: one.launch for name, one in PROVIDERS.items() if one.launch},
            usd_per_hour=price,
        )
    if as_json:
        each = {one.name: getattr(found, one.name) for one in fields(found)}
        write_json(json_object(each | {"learned": {role: dict(by) for role, by in known.items()}}))
        return
    for role, by in known.items():
        print_line(
            f"{role}: as quick as {by.model} with {by.runtime} in run {by.run_id}", results()
        )
    _print_advice(found, results(), explain=explain)


# --- what is measured -----------------------------------------------------------------------------


def _measure(
    endpoint: Endpoint,
    load: Load,
    rates: Rates,
    settings: Settings,
    told: dict[str, object],
    *,
    as_json: bool,
) -> None:
    """Alone and with all users; prints the comparison, and keeps what was reached.

    `told` gets the comparison: an error has it too.
    """
    together = speed.Burst(load.users, min(load.prompt_tokens, 512), 48)
    bursts = [speed.Burst(1, 64, 48), together, speed.Burst(1, 512, 48)]
    measuring = speed.measure_speed(
        settings, endpoint, bursts, environment=os.environ, limit_s=_MEASURING_S
    )
    with Shown(stderr=True).status(f"measuring {endpoint.tag}: a minute, after it is loaded"):
        run_id, found = run_to_its_end(measuring)
    if not found:
        said = f"no call ended within {_MEASURING_S:g} s; see harness trace open {run_id}"
        raise CallTimeout(said, endpoint=endpoint.tag, limit="timeout_s")
    runtime, model = endpoint.backend, rates.model
    learned = speed.learn(model, rates.device, found, runtime=runtime, run_id=run_id)
    each = [{"measured": one, "predicted": speed.predicted_of(one, rates)} for one in found]
    told |= {"run_id": run_id, "bursts": each, "learned": dict(learned)}
    if as_json:
        speed.keep_factors(learned, os.environ)
        write_json(json_object(told))
        return
    table = Table("", "predicted", "measured", "ratio", title=endpoint.tag)
    for one in found:
        said = f"{one.burst.sequences} at once, {one.prompt_tokens:.0f} tokens: "
        for figure, values in speed.predicted_of(one, rates).items():
            source = f" ({one.prefill_source})" if figure.startswith("prefill") else ""
            table.add_row(said + figure + source, *map(digits, (*values, values[1] / values[0])))
        if one.at_once < one.burst.sequences / 2:
            table.add_row(f"{said}only {one.at_once:.1f} were written together")
    results().print(table)
    speed.keep_factors(learned, os.environ)
    said = f"{len(found)} of {len(bursts)} bursts ended in {_MEASURING_S:g} s; advice goes by them."
    print_line(f"{said} harness trace open {run_id} shows the calls", results())


# --- what is asked --------------------------------------------------------------------------------


def _measured(
    named: str, settings: Settings, tables: Tables, models: Sequence[str], runtime: str | None
) -> Endpoint:
    """By its tag, or by the address of a server that was started as advised."""
    if "://" in named:
        row = tables.runtime(runtime or "")
        backend = row.backend if row else runtime or "openai"
        if backend not in PROVIDERS:
            known = did_you_mean(backend, tables.runtimes)
            raise InvalidInput(
                f"--runtime: '{runtime}' is not a runtime; {known}", code="advise.runtime-unknown"
            )
        name = name_of(models[0].rpartition("=")[2]) if models else ""
        fields = {"tag": "measured", "backend": backend, "url": named, "model_id": name}
        try:
            return Endpoint.model_validate(fields)
        except ValidationError as error:
            raise InvalidInput(fault_of(error.errors()[0]), code="endpoint.unusable") from error
    endpoints = endpoints_of(settings)
    if named not in endpoints:
        said = f"no endpoint is called '{named}'; {did_you_mean(named, endpoints)}"
        raise InvalidInput(said, code="endpoint.unknown")
    return endpoints[named]


def _device_of(endpoint: Endpoint) -> str | None:
    """That of a model from a file; None for the first GPU, as of a server on this machine."""
    if endpoint.path is not None:
        return None if endpoint.device == AUTO else next(iter(endpoint.shares))
    if not all(one.url and is_here(one.url) for one in endpoint.replicas.values()):
        raise InvalidInput(
            f"endpoint '{endpoint.tag}' is not served by this machine; say by what: give --device, "
            "or --memory and --bandwidth",
            code="advise.device-of-endpoint",
        )
    return None


def _device(
    tables: Tables, name: str | None, memory: str | None, bandwidth: str | None
) -> DeviceSpec:
    if memory is not None:
        try:
            like = tables.device(name) if name else tables.like(parse_bytes(memory))
            found = device_by_hand(memory, bandwidth=bandwidth, like=like)
        except ValueError as error:
            raise InvalidInput(str(error), code="advise.size-unreadable") from error
    elif bandwidth is not None:
        raise InvalidInput(
            "--bandwidth is that of a device by hand; give both: "
            '--memory "24 GiB" --bandwidth "1008 GB"',
            code="advise.bandwidth-alone",
        )
    else:
        name = name or next((gpu.name for gpu in read_gpus()), MACHINE)
        if name == MACHINE:
            return this_machine()
        ours = GPU_NAME.fullmatch(name)
        found = this_gpu(name, known=tables.product) if ours else tables.device(name)
    if found.memory_bytes < _LEAST_BYTES or found.memory_bytes_per_s < _LEAST_BYTES:
        raise InvalidInput(
            f"'{found.name}' has no memory or no speed of its own; give both with their units: "
            '--memory "24 GiB" --bandwidth "1008 GB"',
            code="advise.no-memory",
        )
    return found


def _wanted(
    models: Sequence[str],
    tables: Tables,
    *,
    is_gpu: bool,
    run: str | None,
    config: Path | None,
    quantization: str | None,
    runtime: str | None,
    **options: Any,  # noqa: ANN401 - fields of `Load`
) -> list[Wanted]:
    """The models that are named, and those of the run, each with its load."""
    given = {name: value for name, value in options.items() if value is not None}
    named: dict[str, str] = {}
    for one in models:
        role, _, model = ("", "", one) if Path(one).exists() else one.rpartition("=")
        if (role or _ONLY) in named:
            raise InvalidInput(
                f"'{one}': another model has the same role, or none; give each its own, as in "
                "producer=8B evaluator=3B",
                code="advise.role-twice",
            )
        named[role or _ONLY] = model
    if quantization is None:
        only = tables.runtime(runtime or "")
        many = is_gpu and given.get("users", 1) > _MANY
        quantization = "BF16" if (only.packing == "safetensors" if only else many) else "F16"
    if quantization not in tables.quantizations:
        known = did_you_mean(quantization, tables.quantizations)
        raise InvalidInput(
            f"'{quantization}' is not a quantization; {known}", code="advise.quantization-unknown"
        )
    packing = tables.quantizations[quantization]

    def shape_of(model: str) -> ModelShape:
        path = Path(model)
        is_path = path.exists() or path.suffix in {".gguf", ".json"}
        return read_model_shape(path) if is_path else tables.shape(model, packing)

    found: list[Wanted] = []
    settings = load_settings(config, environment=os.environ) if run else Settings()
    endpoints = settings.endpoints
    asked = _asked(run, settings.traces) if run else []
    roles_known = {_ONLY, *KNOWN_ROLES, *ROLE_FLOORS}
    roles_known |= {name for tag, roles, *_ in asked for name in (*roles, tag)}
    for role in named:
        near = role.partition("-")[0].rstrip("0123456789")
        meant = None if role in roles_known else meant_role(near, roles_known)
        if meant is not None and meant not in named:
            raise InvalidInput(
                f"'{role}' is not a role that is known here; did you mean '{meant}'? If not, "
                "choose a name less like it",
                code="roles.misspelt",
            )
    for tag, roles, load, instants in asked:
        role = next((one for one in (*roles, tag) if one in named), _ONLY)
        file = endpoints[tag].path if tag in endpoints else None
        model = named.pop(role, str(file or ""))
        shape, name = (shape_of(model), "") if model else shape_of_run(tag, instants)
        said = f"the run does not say where {name} is: put its folder for /path/to, or {tag}=FILE"
        found.append(
            Wanted(
                # Endpoints of a pool have one role.
                role=f"{roles[0]}-{tag}" if roles[0] in {one.role for one in found} else roles[0],
                shape=shape,
                model=model or f"/path/to/{name}",
                note=said if name else "",
                load=replace(load, **given),
                runtime=runtime,
            )
        )
    found += [
        Wanted(role=role, shape=shape_of(model), model=model, load=Load(**given), runtime=runtime)
        for role, model in named.items()
    ]
    if not found:
        raise InvalidInput(
            "there is no model; name a GGUF file, a folder, a size such as 8B, or --run latest",
            code="advise.no-model",
        )
    return found


def _asked(run: str, traces: Path) -> list[tuple[str, tuple[str, ...], Load, Sequence[Instant]]]:
    journal = Journal(find_journal(run, traces))
    calls = calls_of(one for one in journal.items(SpanRecord) if isinstance(one, SpanRecord))
    instants = [one for one in journal.items(Instant) if isinstance(one, Instant)]
    loads = loads_of(calls)
    return [(tag, roles, load, instants) for tag, (roles, load) in loads.items()]


# --- what is shown --------------------------------------------------------------------------------


def _print_advice(advice: Advice, console: Console, *, explain: bool) -> None:
    device = advice.device
    source = f" ({device.source})" if explain or device.source.startswith("speed") else ""
    size, speed = format_bytes(device.memory_bytes), device.memory_bytes_per_s / 1e9
    print_line(f"{device.name}: {size} at {speed:,.0f} GB/s{source}. {advice.said}", console)
    started: set[str] = set()
    for model in advice.models:
        _print_model(model, console, started, explain=explain)
    keys = {
        one.role: one.role if _BARE.fullmatch(one.role) else toml(one.role) for one in advice.models
    }
    roles = [f"{key} = {toml(role)}" for role, key in keys.items() if role != _ONLY]
    lines = ["", "[roles]", *roles] if roles else []
    for model in advice.models:
        if model.launch is not None:
            lines += [
                "",
                f"[endpoints.{keys[model.role]}]",
                *(one.text for one in model.launch.endpoint),
            ]
    print_line("\nharness.toml:" + "\n".join(lines), console, "cyan")


def _print_model(model: ModelAdvice, console: Console, started: set[str], *, explain: bool) -> None:
    row, launch = model.runtime, model.launch or Launch(command=(), endpoint=())
    name = "" if model.role == _ONLY else f"{model.role}: "
    load = model.load
    asked = f"{load.users} at once, {load.prompt_tokens:,} + {load.output_tokens:,} tokens each"
    title = f"\n{name}{model.title}, {asked}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in ("", "weights", "KV cache", "of a sequence", "at once", "alone", "together"):
        table.add_column(column)
    for one in model.options:
        if explain or one.kv_bits == 16 or one == model.chosen:
            table.add_row(
                "->" if one == model.chosen else "",
                f"{one.quantization or 'as it is'}, {format_bytes(one.weight_bytes)}",
                f"{one.kv_bits} bits",
                format_bytes(one.sequence_bytes),
                f"{one.sequences:,}",
                *(
                    f"{digits(speed)} tokens/s" if one.sequences else "-"
                    for speed in (one.alone_tokens_per_s, one.together_tokens_per_s)
                ),
            )
    console.print(table)
    against = f" Against it: {row.against}." if explain else ""
    print_line(f"{row.name}: {row.why}.{against}", console)
    for note in model.notes[: None if explain else _NOTES]:
        print_line(f"- {note}", console)
    for missing in launch.missing:
        print_line(f"- it has no setting for {missing}", console)
    if command := " ".join(one.text for one in launch.command):
        said = "the same server serves it" if command in started else command
        print_line(said, console, "bold green")
        started.add(command)
    if not explain:
        shown = (one for one in model.figures if one.name in _FIRST or one.unit == "$")
        targets = f"first token within {load.ttft_s:g} s, then one every {load.itl_s:g} s"
        said = ", ".join(f"{one.name} {_figure(one)}" for one in shown)
        print_line(f"{said}; goodput counts requests on target: {targets}", console)
        return
    for setting in (*launch.command, *launch.endpoint):
        print_line(f"  {setting.text}: {setting.reason}", console, "dim")
    for figure in model.figures:
        print_line(f"{figure.name}: {_figure(figure)} = {figure.formula}", console)


def _figure(figure: Figure) -> str:
    limit = figure.ceiling
    bound = "" if limit in (None, figure.value) else f" (at best {_shown(limit, figure.unit)})"
    return _shown(figure.value, figure.unit) + bound


def _shown(value: float, unit: str) -> str:
    if math.isinf(value):
        return "without end"
    if unit == "B":
        return format_bytes(round(value))
    if unit == "$":
        return f"${dollars(value)}"
    if unit == "s" and value >= 3600:
        return f"{value / 3600:,.1f} hours"
    if unit == "s" and value < 1:
        return f"{1000 * value:,.3g} ms"
    return f"{value:,.0f} {unit}".rstrip() if value == int(value) else f"{digits(value)} {unit}"


def _print_table(tables: Tables, name: str) -> None:
    found = {one.name: getattr(tables, one.name) for one in fields(tables)}
    if name not in found:
        if name:
            raise InvalidInput(
                f"'{name}' is not a table; {did_you_mean(name, found)}", code="advise.table-unknown"
            )
        for title, rows in found.items():
            print_line(f"{title}: {', '.join(rows)}", results())
        return
    rows = [row.model_dump() for row in found[name].values()]
    writer = csv.DictWriter(lines := io.StringIO(), rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    say(lines.getvalue(), nl=False)
