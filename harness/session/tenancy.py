"""The memory that models share: what each model needs, the devices, and the budget of both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from harness.errors import ConfigurationInvalid, HarnessError, InferenceError, errors_of
from harness.hardware import (
    Footprint,
    capacity,
    first_gpu_layer,
    gguf_footprint,
    prompt_kv_bytes,
    read_gguf_header,
    split_footprint,
)
from harness.hardware.machine import MACHINE_SHARE, read_gpus
from harness.inference import MACHINE, Endpoint, Host, provider_of, server_address
from harness.inference.endpoint import AUTO, GPU_NAME
from harness.inference.providers.registry import loading_of
from harness.log import log_warning
from harness.residency import Device, KeepAliveBudget, Need, Tenant, check_fits
from harness.residency.ledger import place
from harness.session.roles import EVALUATOR
from harness.session.settings import BudgetSettings, DeviceSettings, Settings
from harness.trace import SharedTracer, Tracer, describe, events

# The speed of a common disk: a guess, until a load was measured.
_DISK_BYTES_PER_S = 1_000_000_000
_SHORTEST_LOAD_S = 0.1
# Longest that a server may take to report the size of a model, or which models are loaded.
_ASKING_S = 10.0


def is_managed(endpoint: Endpoint) -> bool:
    """Whether the budget decides when its model is in memory."""
    return endpoint.path is not None or endpoint.manage


def check_managed(endpoints: Iterable[Endpoint]) -> None:
    """Refuses two managed models at a server that holds one: each would replace the other."""
    tag_by_server: dict[str, str] = {}
    for endpoint in endpoints:
        if not endpoint.manage or endpoint.url is None:
            continue
        if not provider_of(endpoint).holds_one_model:
            continue
        first_tag = tag_by_server.setdefault(server_address(endpoint.url), endpoint.tag)
        if first_tag != endpoint.tag:
            raise ConfigurationInvalid(
                f"endpoints '{first_tag}' and '{endpoint.tag}' are both managed at {endpoint.url}, "
                f"and a server of backend '{endpoint.backend}' holds one model; set manage to "
                "false for one of them, or give it a server of its own",
                code="budget.managed-twice",
            )


def file_footprint(endpoint: Endpoint) -> Footprint | None:
    """The memory of a model that is loaded from a file; None if the endpoint has no file."""
    if endpoint.path is None:
        return None
    header = read_gguf_header(endpoint.path)
    return gguf_footprint(header, loading_of(endpoint))


def kv_bytes_of(endpoint: Endpoint) -> Callable[[int], int] | None:
    """A function from a prompt's tokens to its bytes in the model's KV cache; None if not exact."""
    header = None if endpoint.path is None else read_gguf_header(endpoint.path)
    if header is None or not header.exact_caches:
        return None
    return partial(prompt_kv_bytes, header, loading_of(endpoint))


def slots_of(endpoint: Endpoint) -> int | None:
    """How many calls its model answers at once; None if its server decides that."""
    return provider_of(endpoint).slots(endpoint)


def is_split(endpoint: Endpoint) -> bool:
    """Whether several devices compute its layers."""
    if endpoint.path is None or endpoint.device == MACHINE or endpoint.gpu_layers is None:
        return len(endpoint.shares) > 1
    # The machine computes the layers before the first one on a GPU.
    return first_gpu_layer(read_gguf_header(endpoint.path), endpoint.gpu_layers) > 0


async def tenant_of(endpoint: Endpoint, host: Host) -> Tenant:
    """The model of an endpoint, as the budget counts it.

    Raises:
        ConfigurationInvalid: The size of the model is unknown.
        ModelFileInvalid: Its file is missing or not a GGUF.
        InferenceError: Its server cannot be asked, or does not report the size in time.
    """
    async with time_to_report(endpoint, "the size of its model"):
        need = await _need_of(endpoint, host)
    return Tenant(
        model=endpoint.tag,
        need=need,
        load_s=max(sum(need.values()) / _DISK_BYTES_PER_S, _SHORTEST_LOAD_S),
        is_split=is_split(endpoint),
        slots=slots_of(endpoint),
        load_timeout_s=endpoint.load_timeout_s,
        pin=endpoint.pin,
        priority=endpoint.priority,
    )


@asynccontextmanager
async def time_to_report(endpoint: Endpoint, what: str) -> AsyncIterator[None]:
    """A time limit for a question to a server; `what` it must report goes into the error."""
    try:
        async with asyncio.timeout(_ASKING_S):
            yield
    except TimeoutError as error:
        raise InferenceError(
            f"its server did not report {what} within {_ASKING_S:g} s", endpoint=endpoint.tag
        ) from error


async def _need_of(endpoint: Endpoint, host: Host) -> Need:
    need = _known_need(endpoint)
    if need is not None:
        return need
    footprint = None
    ask_server = provider_of(endpoint).footprint
    if ask_server is not None:
        with errors_of(endpoint.tag):
            footprint = await ask_server(endpoint, host)
    if footprint is None:
        raise ConfigurationInvalid(
            f"endpoint '{endpoint.tag}' is managed, and its server does not say how much memory "
            'its model takes; give it need = "6 GiB"',
            code="budget.need-unknown",
        )
    return dict.fromkeys(endpoint.shares, footprint.total_bytes)


def _known_need(endpoint: Endpoint) -> Need | None:
    """Device → bytes, by the endpoint's settings or file; None if only its server knows."""
    shares = endpoint.shares
    if endpoint.need_bytes is not None:
        total = sum(shares.values())
        return {name: int(endpoint.need_bytes * share / total) for name, share in shares.items()}
    if endpoint.path is None:
        return None
    header = read_gguf_header(endpoint.path)
    loading = loading_of(endpoint)
    if endpoint.device == MACHINE:
        return {MACHINE: gguf_footprint(header, loading).total_bytes}
    split = split_footprint(header, loading, gpu_layers=endpoint.gpu_layers, shares=shares.values())
    need = {gpu: part.total_bytes for gpu, part in zip(shares, split.gpus, strict=True)}
    return {**need, MACHINE: split.machine.total_bytes}


def placed(endpoints: Mapping[str, Endpoint], settings: Settings) -> dict[str, Endpoint]:
    """The endpoints by tag, with a device chosen for each whose `device` is "auto".

    The model of a server counts only if the endpoint has a `need`.
    """
    auto = [endpoint for endpoint in endpoints.values() if endpoint.device == AUTO]
    if not auto:
        return dict(endpoints)
    evaluators = settings.roles.get(EVALUATOR, EVALUATOR)
    if isinstance(evaluators, str):
        evaluators = (evaluators,)

    def order(endpoint: Endpoint) -> tuple[bool, int]:
        goes_first = endpoint.pin or endpoint.tag in evaluators
        return not goes_first, -endpoint.priority

    gpus = [gpu.name for gpu in read_gpus() if gpu.capacity_bytes]
    device_by_tag = place(
        {endpoint.tag: partial(_need_on, endpoint) for endpoint in sorted(auto, key=order)},
        {
            device.name: device
            for device in devices_of(settings.budget, named=gpus)
            if device.name == MACHINE or GPU_NAME.fullmatch(device.name)
        },
        needs_taken=[
            _need_on(endpoint, endpoint.device)
            for endpoint in endpoints.values()
            if endpoint.device != AUTO
        ],
    )
    chosen = {
        tag: endpoints[tag].model_copy(update={"device": device})
        for tag, device in device_by_tag.items()
    }
    return {**endpoints, **chosen}


def _need_on(endpoint: Endpoint, device: str | dict[str, float]) -> Need:
    """Device → bytes, if the model were on this device; empty if that is unknown."""
    with suppress(HarnessError):  # opening the endpoint reports what is wrong with its file
        return _known_need(endpoint.model_copy(update={"device": device})) or {}
    return {}


def devices_of(settings: BudgetSettings, *, named: Collection[str] = ()) -> tuple[Device, ...]:
    """`machine`, then the devices of the settings and the `named` ones, which endpoints use."""
    machine_bytes = settings.capacity_bytes or int(capacity.memory_bytes() * MACHINE_SHARE)
    devices = [
        Device(name=MACHINE, capacity_bytes=machine_bytes, reserve_bytes=settings.reserve_bytes)
    ]
    names = [name for name in dict.fromkeys([*settings.devices, *named]) if name != MACHINE]
    detected = {gpu.name: gpu.capacity_bytes for gpu in read_gpus()} if names else {}
    for name in names:
        device = settings.devices.get(name, DeviceSettings())
        capacity_bytes = device.capacity_bytes or detected.get(name)
        if capacity_bytes is None:
            raise ConfigurationInvalid(
                f"the capacity of '{name}' is unknown; set [budget.devices.{name}] "
                'capacity = "24 GiB", or install wiggum-harness[nvidia], which reads it from gpu0, '
                "gpu1, …",
                code="budget.capacity-unknown",
            )
        devices.append(
            Device(name=name, capacity_bytes=capacity_bytes, reserve_bytes=device.reserve_bytes)
        )
    return tuple(devices)


# --- the budget -----------------------------------------------------------------------------------


async def open_budget(
    hosts: Mapping[str, tuple[Endpoint, Host]],
    *,
    required: Collection[str],
    settings: BudgetSettings,
    tracer: Tracer,
) -> KeepAliveBudget | None:
    """The budget that managed models share; None if there are none, nor a capacity in the settings.

    `hosts` map the tag of an endpoint that `is_managed` to it and to the host that loads its model.
    A run certainly needs the `required` models.

    Raises:
        ConfigurationInvalid: The size of a required model, or a device's capacity, is unknown.
        InferenceError: The server of a required model does not report its size.
        DoesNotFit: A required or pinned model is larger than its device.
    """
    tenants = await _tenants(hosts, required=required)
    if not tenants and settings.capacity_bytes is None:
        return None
    named = [device for tenant in tenants.values() for device in tenant.need]
    devices = devices_of(settings, named=named)
    for model in tenants:
        if model in required or tenants[model].pin:
            check_fits(model, tenants, {device.name: device for device in devices})
    budget = KeepAliveBudget(
        devices=devices,
        tenants=tenants.values(),
        hosts={tag: hosts[tag][1] for tag in tenants},
        tracer=tracer,
        max_wait_s=settings.max_wait_s,
        # Servers keep their models when the budget closes.
        stay_loaded=[tag for tag in tenants if hosts[tag][0].url is not None],
        outlives_runs=isinstance(tracer, SharedTracer),
    )
    describe_budget(budget, tracer)
    return budget


def describe_budget(budget: KeepAliveBudget, tracer: Tracer) -> None:
    """Records, at the beginning of a trace, the memory that models share."""
    for device in budget.ledger.devices.values():
        event = events.Budget(
            device=device.name, capacity_bytes=device.room_bytes, reserve_bytes=device.reserve_bytes
        )
        tracer.instant(event)


async def _tenants(
    hosts: Mapping[str, tuple[Endpoint, Host]], *, required: Collection[str]
) -> dict[str, Tenant]:
    # All at once, so that a server that does not answer costs its time limit only once.
    results = await asyncio.gather(
        *(tenant_of(*entry) for entry in hosts.values()), return_exceptions=True
    )
    tenants = {}
    for tag, result in zip(hosts, results, strict=True):
        if isinstance(result, Tenant):
            tenants[tag] = result
        elif tag in required or not isinstance(result, HarnessError):
            raise result
        else:
            log_warning(
                "a model is not counted in the memory budget",
                code="budget.model-not-counted",
                endpoint=tag,
                error=describe(result),
            )
    return tenants
