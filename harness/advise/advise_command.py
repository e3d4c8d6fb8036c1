"""`harness advise`: the layouts in which models fit on devices, and how quick each can be."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from harness.advise import data_tables as tables
from harness.advise import layouts
from harness.advise import measured_speed as speed
from harness.advise.data_tables import DeviceSpec
from harness.advise.layout_table import ONLY, print_placements, print_rows
from harness.advise.layouts import Placement, ServingGoal, Workload
from harness.advise.model_shape import ModelShape, read_model_shape
from harness.advise.rates import Rates
from harness.advise.serving import command_of, endpoint_of, servings
from harness.cli.arguments import config_option, find_journal, json_option
from harness.cli.consoles import JournalCommand, Shown, json_object, results, write_json
from harness.cli.process import FAILED
from harness.cli.project_files import endpoints_of, settings_for_calls
from harness.cli.tables import digits, print_line
from harness.errors import CallTimeout, InvalidInput
from harness.hardware.machine import read_gpus
from harness.inference.endpoint import AUTO, GPU_NAME, MACHINE, Endpoint
from harness.inference.model_identity import is_here
from harness.session import Settings, load_settings, run_to_its_end
from harness.session.models import check_tags
from harness.trace.calls import Call, calls_of
from harness.trace.journal_reader import Journal

_POSITIVE = click.FloatRange(0, min_open=True)
_MEASURING_S = 60.0  # the time limit of all bursts together
_SHORT_PROMPT = 64  # tokens
_LONG_PROMPT = 512


@click.command(cls=JournalCommand)
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
@click.option("--measure", "measured", metavar="TAG", help="Compare this endpoint.")
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
    **options: Any,  # noqa: ANN401 - those of `_goals`
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
    endpoint = None
    settings = Settings()
    if measured is not None:
        settings = settings_for_calls(options["config"])
        endpoints = endpoints_of(settings)
        check_tags([measured], endpoints)
        endpoint = endpoints[measured]
        # The endpoint's own model and device, unless the command line names others.
        if not models and endpoint.path:
            models = [str(endpoint.path)]
        if not device and memory is None:
            device = _device_of(endpoint)
    spec = _device(device, memory, bandwidth, tflops)
    spec = replace(spec, count=gpus or spec.count, usd_per_hour=price or spec.usd_per_hour)
    goals = _goals(models, **options)
    learned: dict[str, speed.LearnedRates] = {}  # by role
    for number, goal in enumerate(goals):
        runtime = endpoint.backend if endpoint else None
        reached = speed.learned_for(os.environ, spec, goal.shape, runtime=runtime)
        # `factors_on` divides by the device's own speed.
        if reached is not None and spec.memory_bytes_per_s:
            learned[goal.role] = reached
            goals[number] = replace(goal, measured=reached.factors_on(spec))
    if endpoint is not None:
        _measure(endpoint, goals[0], spec, settings, as_json=as_json)
        return
    placements = layouts.placements_of(goals, spec)
    is_met = all(placement.chosen for placement in placements)
    if as_json:
        document = {
            "device": spec,
            "models": [_json_placement(placement, spec) for placement in placements],
            "enough": [
                {"device": kind, "layouts": {p.goal.role: p.chosen for p in on_kind}}
                for kind, on_kind in ([] if is_met else layouts.enough_devices(goals, spec))
            ],
            "learned": {role: reached.model_dump() for role, reached in learned.items()},
        }
        write_json(json_object(document))
    else:
        for role, reached in learned.items():
            source = f"{reached.model} with {reached.runtime} in run {reached.run_id}"
            print_line(f"{role}: as quick as {source}", results())
        print_placements(placements, spec, results(), explain=explain)
    if not is_met:
        sys.exit(FAILED)


def _json_placement(placement: Placement, device: DeviceSpec) -> dict[str, object]:
    layout, goal = placement.chosen, placement.goal
    by_backend = servings(placement, layout, device) if layout else {}
    return {
        "role": goal.role,
        "title": goal.shape.title,
        "load": goal.workload,
        "first_device": placement.first,
        "devices": placement.count,
        "layouts": placement.layouts,
        "chosen": layout,
        "commands": {
            name: " ".join(text for text, _ in command_of(name, serving))
            for name, serving in by_backend.items()
        },
        "endpoints": {name: endpoint_of(name, serving) for name, serving in by_backend.items()},
    }


def _measure(
    endpoint: Endpoint, goal: ServingGoal, device: DeviceSpec, settings: Settings, *, as_json: bool
) -> None:
    """Measures an endpoint alone and with all users, stores its rates, prints the comparison."""
    if not device.memory_bytes_per_s:
        problem = f"what is measured is compared with the speed of '{device.name}', which is "
        raise InvalidInput(f"{problem}unknown; give --bandwidth too", code="advise.speed-unknown")
    together = speed.Burst(goal.workload.users, min(goal.workload.prompt_tokens, _LONG_PROMPT))
    # Two bursts of a single call: `learn` compares the shortest context with the longest.
    planned = [speed.Burst(1, _SHORT_PROMPT), together, speed.Burst(1, _LONG_PROMPT)]
    measuring = speed.measure_speed(
        settings, endpoint, planned, environment=os.environ, limit_s=_MEASURING_S
    )
    with Shown(stderr=True).status(f"measuring {endpoint.tag}: a minute, after it is loaded"):
        run_id, bursts = run_to_its_end(measuring)
    if not bursts:
        problem = f"no call ended within {_MEASURING_S:g} s; see harness trace open {run_id}"
        raise CallTimeout(problem, endpoint=endpoint.tag, limit="timeout_s")
    learned = speed.learn(goal.shape, device, bursts, runtime=endpoint.backend, run_id=run_id)
    speed.keep_rates(learned, os.environ)
    # Predicted from what was known before, since the rates just learned explain their own bursts.
    rates = Rates(goal.shape, device, factors=goal.factors)
    pairs = [(burst, speed.predicted_of(burst, rates)) for burst in bursts]
    if as_json:
        document = {
            "run_id": run_id,
            "bursts": [{"measured": burst, "predicted": figures} for burst, figures in pairs],
            "learned": learned.model_dump(),
        }
        write_json(json_object(document))
        return
    rows: list[Sequence[str]] = [("", "predicted", "measured", "ratio")]
    for burst, figures in pairs:
        calls = f"{burst.burst.sequences} at once, {burst.prompt_tokens:.0f} tokens: "
        for figure, (predicted, seen) in figures.items():
            ratio = seen / predicted
            rows.append((calls + figure, digits(predicted), digits(seen), digits(ratio)))
        # The server has fewer places than the burst has calls: its figures are of a smaller burst.
        if burst.at_once < burst.burst.sequences / 2:
            rows.append((f"{calls}only {burst.at_once:.1f} were written together", "", "", ""))
    print_rows(rows, results())
    line = f"{endpoint.tag}: {len(bursts)} of {len(planned)} bursts ended in {_MEASURING_S:g} s; "
    print_line(f"{line}advice goes by them. harness trace open {run_id} shows the calls", results())


def _device_of(endpoint: Endpoint) -> str | None:
    """The device of an endpoint's model; None for this machine's first GPU."""
    if endpoint.path is not None:
        return None if endpoint.device == AUTO else next(iter(endpoint.shares))
    if all(replica.url and is_here(replica.url) for replica in endpoint.replicas.values()):
        return None
    problem = f"endpoint '{endpoint.tag}' is not served by this machine; give its --device, "
    raise InvalidInput(f"{problem}or --memory and --bandwidth", code="advise.device-of-endpoint")


def _device(
    name: str | None, memory: str | None, bandwidth: str | None, tflops: float | None
) -> DeviceSpec:
    """The device of these options; without any, this machine's first GPU, or else the machine."""
    if memory is not None and name in {None, MACHINE}:
        is_gpu = name != MACHINE
        return tables.device_by_hand(memory, bandwidth=bandwidth, tflops=tflops, is_gpu=is_gpu)
    if (memory, bandwidth, tflops) != (None, None, None):
        problem = "--bandwidth and --tflops are those of a device by hand; give its memory too, "
        problem += 'and no other --device: --memory "24 GiB" --bandwidth "1008 GB"'
        raise InvalidInput(problem, code="advise.bandwidth-alone")
    name = name or next((gpu.name for gpu in read_gpus()), MACHINE)
    if name == MACHINE:
        return tables.this_machine()
    return tables.this_gpu(name) if GPU_NAME.fullmatch(name) else tables.known_device(name)


def _goals(
    models: Sequence[str],
    *,
    run: str | None,
    config: Path | None,
    quantization: str | None,
    kv_bits: str,
    **options: Any,  # noqa: ANN401 - fields of `Workload`
) -> list[ServingGoal]:
    """A goal for each model of the command line and of the run; options override its workload."""
    changes = {name: value for name, value in options.items() if value is not None}
    if "rate_per_s" in changes:
        changes["calls"] = None  # a rate that is asked for is a target, unlike the one of a run
    named = _models_by_role(models)
    settings, calls = Settings(), list[Call]()
    if run:
        settings = load_settings(config, environment=os.environ)
        calls = calls_of(Journal(find_journal(run, settings.traces)).spans())
    loaded: dict[str, tuple[str, Workload]] = {}  # role → its model and its workload
    for tag, (roles, workload) in layouts.workloads_of(calls).items():
        # Named by one of its roles, by its endpoint's tag, or alone and without a name (`ONLY`);
        # else it is the endpoint's own file.
        named_as = next((name for name in (*roles, tag) if name in named), ONLY)
        endpoint = settings.endpoints.get(tag)
        model = named.pop(named_as, str(endpoint.path) if endpoint and endpoint.path else "")
        if not model:
            problem = f"the run does not say how large '{tag}' is; name its file or size: {tag}=8B"
            raise InvalidInput(problem, code="advise.size-unknown")
        # The endpoints of a pool have the same role, so their tags distinguish them.
        role = f"{roles[0]}-{tag}" if roles[0] in loaded else roles[0]
        loaded[role] = model, replace(workload, **changes)
    loaded |= {role: (model, Workload(**changes)) for role, model in named.items()}
    if not loaded:
        raise InvalidInput(
            "there is no model; name a GGUF file, a folder, a size such as 8B, or --run latest",
            code="advise.no-model",
        )
    return [
        ServingGoal(
            role=role,
            shape=_shape(model),
            # A server takes the folder of a configuration, not the file.
            model=str(Path(model).parent) if Path(model).name == "config.json" else model,
            workload=workload,
            quantization=tables.quantization_of(quantization).name if quantization else None,
            kv_bits=8 if kv_bits == "8" else 16,
        )
        for role, (model, workload) in loaded.items()
    ]


def _models_by_role(models: Sequence[str]) -> dict[str, str]:
    """Role → model, from arguments such as `producer=8B`; a model alone has the role `ONLY`."""
    named: dict[str, str] = {}
    for argument in models:
        # The name of a file may have an equals sign.
        has_role = "=" in argument and not Path(argument).exists()
        role, model = argument.split("=", 1) if has_role else (ONLY, argument)
        role = role or ONLY
        if role in named:
            problem = f"'{argument}': another model has the same role, or none; give each its own, "
            raise InvalidInput(f"{problem}as in producer=8B evaluator=3B", code="advise.role-twice")
        named[role] = model
    return named


def _shape(model: str) -> ModelShape:
    path = Path(model)
    # In `producer= 8B` the model is empty, which as a path would be the working folder.
    is_path = model != "" and (path.exists() or path.suffix in {".gguf", ".json"})
    return read_model_shape(path) if is_path else tables.known_shape(model)
