"""`harness advise`: the layouts in which models fit on devices, and what each can reach."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from harness.advise import data_tables as tables
from harness.advise import layout_table
from harness.advise import measured_speed as speed
from harness.advise.data_tables import DeviceSpec
from harness.advise.layout_table import ONLY, command_of, endpoint_of, name_of
from harness.advise.layouts import Load, Place, Wanted, enough_devices, loads_of, packed
from harness.advise.model_shape import read_model_shape
from harness.advise.rates import Rates
from harness.cli import consoles
from harness.cli.arguments import config_option, find_journal, json_option
from harness.cli.consoles import Shown, failures_told, log_to_stderr, results
from harness.cli.process import FAILED
from harness.cli.project_files import endpoints_of, settings_for_calls
from harness.cli.tables import digits, print_line
from harness.errors import CallTimeout, InvalidInput, did_you_mean, fault_of
from harness.hardware.gpus import read_gpus
from harness.hardware.quantization import ROLE_FLOORS, KvBits
from harness.inference import Endpoint
from harness.inference.endpoint import AUTO, GPU_NAME, MACHINE
from harness.inference.model_identity import is_here
from harness.session import Settings, load_settings, run_to_its_end
from harness.session.roles import KNOWN_ROLES, meant_role
from harness.trace.calls import calls_of
from harness.trace.journal_reader import Journal
from harness.trace.records import SpanRecord

_POSITIVE = click.FloatRange(0, min_open=True)
_MEASURING_S = 60.0


@click.command()
@click.argument("models", nargs=-1, metavar="[ROLE=]MODEL...")
@click.option("--device", help="One of the table, such as h100, or of this machine: `machine`.")
@click.option("--memory", help='A device by hand: "24 GiB".')
@click.option("--bandwidth", help='Of that memory, per second: "1008 GB".')
@click.option("--tflops", type=_POSITIVE, help="16-bit operations of it, in 10^12 per second.")
@click.option("--gpus", type=click.IntRange(1, 64), help="How many such devices.")
@click.option("--users", type=click.IntRange(1), help="How many ask at once; default 1.")
@click.option("--prompt", "prompt_tokens", type=click.IntRange(1), help="Tokens of a prompt; 2000.")
@click.option("--output", "output_tokens", type=click.IntRange(1), help="Tokens of a reply; 500.")
@click.option("--rate", "rate_per_s", type=_POSITIVE, help="Requests per second, at random.")
@click.option("--ttft", "ttft_s", type=_POSITIVE, help="Most seconds to the first token; 2.")
@click.option("--itl", "itl_s", type=_POSITIVE, help="Most seconds between tokens; 0.05.")
@click.option("--run", metavar="RUN", help="Take the load from a run or a batch.")
@click.option("--quantization", help="Consider only this precision, such as Q8_0 or FP8.")
@click.option("--kv-bits", type=click.Choice(["16", "8"]), default="16", help="Of the KV cache.")
@click.option("--price", type=_POSITIVE, help="Dollars per hour and device.")
@click.option(
    "--measure", "measured", metavar="ENDPOINT", help="Compare this endpoint (tag or URL)."
)
@click.option("--explain", is_flag=True, help="All rows, formulas, and reasons of flags.")
@config_option
@json_option
def advise(
    *,
    models: Sequence[str],
    as_json: bool,
    explain: bool,
    price: float | None,
    gpus: int | None,
    device: str | None,
    memory: str | None,
    bandwidth: str | None,
    tflops: float | None,
    measured: str | None,
    **given: Any,  # noqa: ANN401 - options of `_wanted`
) -> None:
    """Show the layouts in which models fit on devices, how quick each can be, and its cost.

    A MODEL is a GGUF file, a folder of safetensors, a config.json, a size such as 8B, or a name
    such as Llama-3.1-70B. Models that share devices have roles: producer=a.gguf evaluator=b.gguf.
    Nothing is loaded and nothing started. The first layout that meets all targets is marked, and
    shown with its command lines.

    With --measure, an endpoint answers calls for a minute, and later tables use the rates that it
    reached.

    Exit codes: 0 a layout of each model meets all targets, 1 none does, or the endpoint could not
    be measured, 2 invalid input.
    """
    told: dict[str, object] = {}
    log_to_stderr()
    with failures_told(as_json=as_json, of_journals=True, more=told):
        endpoint, settings = None, Settings()
        if measured is not None:
            settings = settings_for_calls(given["config"])
            endpoint = _measured(measured, settings, models)
            models = models or ([str(endpoint.path)] if endpoint.path else [])
            device = device or (_device_of(endpoint) if memory is None else None)
        where = _device(device, memory, bandwidth, tflops)
        price = price or where.usd_per_hour
        where = replace(where, count=gpus or where.count, usd_per_hour=price)
        wanted, known = _wanted(models, **given), {}
        for number, one in enumerate(wanted):
            runtime = endpoint.backend if endpoint else None
            learned = speed.learned_for(os.environ, where, one.shape, runtime=runtime)
            if learned is not None and where.memory_bytes_per_s:
                known[one.role] = learned
                wanted[number] = replace(one, factors=learned.factors_on(where))
        if endpoint is not None:
            _measure(endpoint, wanted[0], where, settings, told, as_json=as_json)
            return
        places = packed(wanted, where)
    is_met = all(one.marked for one in places)
    if as_json:
        ported = zip(places, layout_table.ports_of(places), strict=True)
        shown = {
            "device": where,
            "models": [_json_place(one, where, port) for one, port in ported],
            "enough": [] if is_met else enough_devices(wanted, where),
            "learned": {role: dict(by) for role, by in known.items()},
        }
        consoles.write_json(consoles.json_object(shown))
    else:
        for role, by in known.items():
            said = f"{role}: as quick as {by.model} with {by.runtime} in run {by.run_id}"
            print_line(said, results())
        layout_table.print_places(places, where, results(), explain=explain)
    if not is_met:
        sys.exit(FAILED)


def _json_place(place: Place, device: DeviceSpec, port: int | None) -> dict[str, object]:
    row, wanted = place.marked, place.wanted
    made = layout_table.servings(place, row, device, port=port) if row else {}
    commands = {name: command_of(name, serving) for name, serving in made.items()}
    return {
        "role": wanted.role,
        "title": wanted.shape.title,
        "load": wanted.load,
        "first_device": place.first,
        "devices": place.count,
        "layouts": place.layouts,
        "chosen": row,
        "commands": {name: " ".join(one.text for one in by) for name, by in commands.items()},
        "endpoints": {name: endpoint_of(name, serving) for name, serving in made.items()},
    }


def _measure(
    endpoint: Endpoint,
    wanted: Wanted,
    device: DeviceSpec,
    settings: Settings,
    told: dict[str, object],
    *,
    as_json: bool,
) -> None:
    """Alone and with all users; prints the comparison, and keeps what was reached.

    `told` gets the comparison: an error has it too.
    """
    if not device.memory_bytes_per_s:
        said = f"what is measured is compared with the speed of '{device.name}', which is unknown"
        raise InvalidInput(f"{said}; give --bandwidth too", code="advise.speed-unknown")
    rates, load = Rates(wanted.shape, device, factors=wanted.factors), wanted.load
    together = speed.Burst(load.users, min(load.prompt_tokens, 512))
    bursts = [speed.Burst(1, 64), together, speed.Burst(1, 512)]
    measuring = speed.measure_speed(
        settings, endpoint, bursts, environment=os.environ, limit_s=_MEASURING_S
    )
    with Shown(stderr=True).status(f"measuring {endpoint.tag}: a minute, after it is loaded"):
        run_id, found = run_to_its_end(measuring)
    if not found:
        said = f"no call ended within {_MEASURING_S:g} s; see harness trace open {run_id}"
        raise CallTimeout(said, endpoint=endpoint.tag, limit="timeout_s")
    learned = speed.learn(wanted.shape, device, found, runtime=endpoint.backend, run_id=run_id)
    each = [{"measured": one, "predicted": speed.predicted_of(one, rates)} for one in found]
    told |= {"run_id": run_id, "bursts": each, "learned": dict(learned)}
    rows: list[Sequence[str]] = [("", "predicted", "measured", "ratio")]
    for one in found:
        said = f"{one.burst.sequences} at once, {one.prompt_tokens:.0f} tokens: "
        for figure, values in speed.predicted_of(one, rates).items():
            source = f" ({one.prefill_source})" if figure.startswith("prefill") else ""
            compared = map(digits, (*values, values[1] / values[0]))
            rows.append((said + figure + source, *compared))
        if one.at_once < one.burst.sequences / 2:
            rows.append((f"{said}only {one.at_once:.1f} were written together", "", "", ""))
    if not as_json:
        layout_table.print_rows(rows, results())
    speed.keep_factors(learned, os.environ)
    if as_json:
        consoles.write_json(consoles.json_object(told))
        return
    said = (
        f"{endpoint.tag}: {len(found)} of {len(bursts)} bursts ended in {_MEASURING_S:g} s; advice "
    )
    print_line(f"{said}goes by them. harness trace open {run_id} shows the calls", results())


def _measured(named: str, settings: Settings, models: Sequence[str]) -> Endpoint:
    """By its tag, or by the address of a server that speaks OpenAI's protocol."""
    if "://" in named:
        model = name_of(models[0].rpartition("=")[2]) if models else ""
        fields = {"tag": "measured", "backend": "openai", "url": named, "model_id": model}
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
    if all(one.url and is_here(one.url) for one in endpoint.replicas.values()):
        return None
    said = f"endpoint '{endpoint.tag}' is not served by this machine; say by what: give --device, "
    raise InvalidInput(f"{said}or --memory and --bandwidth", code="advise.device-of-endpoint")


def _device(
    name: str | None, memory: str | None, bandwidth: str | None, tflops: float | None
) -> DeviceSpec:
    if memory is not None:
        return tables.device_by_hand(memory, bandwidth=bandwidth, tflops=tflops, like=name)
    if bandwidth is not None or tflops is not None:
        said = "--bandwidth and --tflops are those of a device by hand; give its memory too: "
        said += '--memory "24 GiB" --bandwidth "1008 GB"'
        raise InvalidInput(said, code="advise.bandwidth-alone")
    name = name or next((gpu.name for gpu in read_gpus()), MACHINE)
    if name == MACHINE:
        return tables.this_machine()
    return tables.this_gpu(name) if GPU_NAME.fullmatch(name) else tables.known_device(name)


def _wanted(
    models: Sequence[str],
    *,
    run: str | None,
    config: Path | None,
    quantization: str | None,
    kv_bits: str,
    **options: Any,  # noqa: ANN401 - fields of `Load`
) -> list[Wanted]:
    """The models that are named, and those of the run, each with its load."""
    given = {name: value for name, value in options.items() if value is not None}
    named: dict[str, str] = {}
    for one in models:
        role, _, model = ("", "", one) if Path(one).exists() else one.rpartition("=")
        if (role or ONLY) in named:
            said = f"'{one}': another model has the same role, or none; give each its own, as in "
            raise InvalidInput(f"{said}producer=8B evaluator=3B", code="advise.role-twice")
        named[role or ONLY] = model
    settings = load_settings(config, environment=os.environ) if run else Settings()
    asked = loads_of_run(run, settings) if run else []
    _check_roles(named, {name for tag, roles, _ in asked for name in (*roles, tag)})
    pairs: dict[str, tuple[str, Load]] = {}
    for tag, roles, load in asked:
        role = next((one for one in (*roles, tag) if one in named), ONLY)
        file = settings.endpoints[tag].path if tag in settings.endpoints else None
        model = named.pop(role, str(file or ""))
        if not model:
            said = f"the run does not say how large '{tag}' is; name its file or size: {tag}=8B"
            raise InvalidInput(said, code="advise.size-unknown")
        # Endpoints of a pool have one role.
        role = f"{roles[0]}-{tag}" if roles[0] in pairs else roles[0]
        pairs[role] = model, replace(load, **given)
    pairs |= {role: (model, Load(**given)) for role, model in named.items()}
    if not pairs:
        said = "there is no model; name a GGUF file, a folder, a size such as 8B, or --run latest"
        raise InvalidInput(said, code="advise.no-model")
    packing = tables.quantization_of(quantization).name if quantization else None
    bits: KvBits = 8 if kv_bits == "8" else 16
    found = []
    for role, (model, load) in pairs.items():
        path = Path(model)
        is_path = path.exists() or path.suffix in {".gguf", ".json"}
        shape = read_model_shape(path) if is_path else tables.known_shape(model)
        # Servers take the folder of a configuration.
        server_model = str(path.parent) if path.name == "config.json" else model
        found.append(
            Wanted(
                role=role,
                shape=shape,
                model=server_model,
                load=load,
                quantization=packing,
                kv_bits=bits,
            )
        )
    return found


def _check_roles(named: Collection[str], of_run: Collection[str]) -> None:
    known = {ONLY, *KNOWN_ROLES, *ROLE_FLOORS, *of_run}
    for role in named:
        near = role.partition("-")[0].rstrip("0123456789")
        meant = None if role in known else meant_role(near, known)
        if meant is not None and meant not in named:
            said = f"'{role}' is not a role that is known here; did you mean '{meant}'? If not, "
            raise InvalidInput(f"{said}choose a name less like it", code="roles.misspelt")


def loads_of_run(run: str, settings: Settings) -> list[tuple[str, tuple[str, ...], Load]]:
    """Each model's tag and roles, and what a run asked of it."""
    journal = Journal(find_journal(run, settings.traces))
    calls = calls_of(one for one in journal.items(SpanRecord) if isinstance(one, SpanRecord))
    return [(tag, roles, load) for tag, (roles, load) in loads_of(calls).items()]
