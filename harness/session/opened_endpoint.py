"""One endpoint, opened: its backend, and what a session must know to put it among the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from harness.errors import HarnessError
from harness.hardware import gguf_footprint, read_gguf_header
from harness.inference import (
    Backend,
    EmbeddedLlamaCpp,
    Endpoint,
    LlamaCppPython,
    R,
    ScriptedBackend,
    T,
    Wrapper,
    connect,
    reply_identity,
)
from harness.inference.identity.address import server_address
from harness.residency import Tenant
from harness.trace import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEndpoint:
    """An endpoint and its backend; of one that was not connected here, no more is known."""

    endpoint: Endpoint
    """As written down."""
    backend: Backend
    """Answers."""
    api_key: str | None = field(default=None, repr=False)
    """What it shows its server."""
    server: str | None = None
    """What tells servers apart: two tags may stand for models of one."""
    tenant: Tenant | None = None
    """What the budget must know of it, if this process loads its model."""
    identity: str | None = None
    """What its replies are cached by; None for never."""


def open_endpoint(
    endpoint: Endpoint, *, api_key: str | None, cached: bool, clock: Clock
) -> OpenedEndpoint:
    """Connects to nothing yet.

    Raises:
        ConfigurationInvalid: It cannot be used as it is written down.
        ModelFileInvalid: Its file is missing or not a GGUF.
    """
    # Files are read first: as long as they can be wrong, there is nothing to close.
    identity = reply_identity(endpoint) if cached else None
    need_bytes = _need_bytes(endpoint)
    backend = connect(endpoint, api_key=api_key, clock=clock)
    tenant = None
    if isinstance(backend, EmbeddedLlamaCpp | LlamaCppPython):
        tenant = Tenant(host=backend, need_bytes=need_bytes)
    return OpenedEndpoint(
        endpoint=endpoint,
        backend=backend,
        api_key=api_key,
        server=endpoint.tag if endpoint.url is None else server_address(endpoint.url),
        tenant=tenant,
        identity=identity,
    )


class Unusable(Wrapper):
    """Stands for an endpoint that is written down wrong, until somebody calls it."""

    def __init__(self, error: HarnessError) -> None:
        super().__init__(ScriptedBackend(()))
        self._error = error

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:  # noqa: ARG002
        """Says what is wrong with it."""
        # Else each call would leave its frames in the one error, and what they hold with them.
        raise self._error.with_traceback(None)


def _need_bytes(endpoint: Endpoint) -> int:
    if endpoint.path is None:
        return 0
    footprint = gguf_footprint(
        read_gguf_header(endpoint.path),
        context_tokens=endpoint.context_tokens,
        # llama-cpp-python computes one sequence at a time.
        slots=endpoint.slots if endpoint.backend == "embedded" else 1,
    )
    return footprint.total_bytes
