"""One endpoint, opened: its backend, and what a session must know to put it among the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.errors import HarnessError
from harness.inference import (
    Access,
    Backend,
    Endpoint,
    Host,
    connect,
    host_of,
    reply_identity,
    server_address,
)
from harness.session.tenancy import file_footprint, is_managed
from harness.session.trust import api_key_of, control_key_of, not_allowed
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
    host: Host | None = None
    """What loads its model, if it is the budget's."""
    identity: str | None = None
    """What its replies are cached by; None for never."""
    error: HarnessError | None = None
    """What is wrong with it; None where it can be used."""


def open_endpoint(
    endpoint: Endpoint,
    *,
    environment: Mapping[str, str],
    cached: bool,
    clock: Clock,
) -> OpenedEndpoint:
    """Connects to nothing yet.

    Args:
        endpoint: As written down.
        environment: Holds the keys that it names.
        cached: Whether its replies are.
        clock: The caller's.

    Raises:
        ConfigurationInvalid: It cannot be used as it is written down, or a key may not be sent.
        ModelFileInvalid: Its file is missing or not a GGUF.
    """
    api_key = api_key_of(endpoint, environment)
    control_key = control_key_of(endpoint, environment)
    # Files are read first: as long as they can be wrong, there is nothing to close.
    identity = reply_identity(endpoint) if cached else None
    file_footprint(endpoint)

    def check(url: str) -> None:
        for refusal in not_allowed(endpoint, environment, url=url):
            raise refusal

    access = Access(
        api_key=api_key,
        control_key=control_key,
        clock=clock,
        check_address=check,
    )
    backend = connect(endpoint, access)
    host = host_of(endpoint, backend, access) if is_managed(endpoint) else None
    return OpenedEndpoint(
        endpoint=endpoint,
        backend=backend,
        api_key=api_key,
        server=endpoint.tag if endpoint.url is None else server_address(endpoint.url),
        host=host,
        identity=identity,
    )
