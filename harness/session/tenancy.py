"""From an endpoint to what the budget must know of its model."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from harness.errors import ConfigurationInvalid
from harness.hardware import Footprint, gguf_footprint, read_gguf_header
from harness.inference import FILE_BACKENDS, Endpoint
from harness.residency import Host, Need, Tenant

_BYTES_PER_S = 1_000_000_000
"""Of a file, as a common disk gives them: a guess, until a load was measured."""
_GRACE_S = 5.0
"""Of the budget's own limit beyond the host's, whose error says more."""


def is_managed(endpoint: Endpoint) -> bool:
    """Whether its model is the budget's."""
    return endpoint.backend in FILE_BACKENDS or endpoint.manage


def file_footprint(endpoint: Endpoint) -> Footprint | None:
    """What a model from a file takes; None for one that has none here.

    Raises:
        ModelFileInvalid: The file is missing or not a GGUF.
    """
    if endpoint.path is None:
        return None
    return gguf_footprint(
        read_gguf_header(endpoint.path),
        context_tokens=endpoint.context_tokens,
        # llama-cpp-python computes one sequence at a time.
        slots=slots_of(endpoint) or 1,
        cache_type_k=endpoint.cache_type_k,
        cache_type_v=endpoint.cache_type_v,
    )


def slots_of(endpoint: Endpoint) -> int | None:
    """Calls that its model answers side by side; None where its server decides that."""
    match endpoint.backend:
        case "embedded":
            return endpoint.slots
        case "llama-cpp-python":
            return 1
        case _:
            return endpoint.max_concurrency


async def tenant_of(endpoint: Endpoint, host: Host) -> Tenant:
    """What the budget must know.

    Args:
        endpoint: One that `is_managed`.
        host: Loads its model, and can tell how large it is.

    Raises:
        ConfigurationInvalid: Nobody says how large it is.
        ModelFileInvalid: Its file is missing or not a GGUF.
        InferenceError: Its server cannot be asked.
    """
    need = await _need_of(endpoint, host)
    slots = slots_of(endpoint)
    return Tenant(
        model=endpoint.tag,
        need=need,
        load_s=max(sum(need.values()) / _BYTES_PER_S, 0.1),
        slots=slots,
        kv_tokens=slots * endpoint.context_tokens if slots and endpoint.path else None,
        load_timeout_s=endpoint.load_timeout_s + _GRACE_S,
        pin=endpoint.pin,
        priority=endpoint.priority,
    )


async def _need_of(endpoint: Endpoint, host: Host) -> Need:
    if endpoint.need_bytes is not None:
        return {endpoint.device: endpoint.need_bytes}
    footprint = file_footprint(endpoint)
    if footprint is not None:
        return {endpoint.device: footprint.total_bytes}
    if isinstance(host, _TellsNeed):
        return {endpoint.device: await host.need_bytes()}
    raise ConfigurationInvalid(
        f"endpoint '{endpoint.tag}' is managed, and its server does not say how much memory its "
        'model takes; give it need = "6 GiB"'
    )


@runtime_checkable
class _TellsNeed(Protocol):
    async def need_bytes(self) -> int: ...
