"""Endpoints that are connected: for a run, and outside of one to list and unload models."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from harness.errors import (
    ConfigurationInvalid,
    EndpointUnreachable,
    HarnessError,
    InvalidInput,
    did_you_mean,
    errors_of,
)
from harness.inference import Backend, Endpoint, Host, server_address
from harness.inference.endpoint import FILE_BACKENDS, MANAGED_BACKENDS
from harness.inference.providers.http import Access
from harness.inference.providers.registry import connect, host_of
from harness.inference.reply_store import reply_identity
from harness.session.tenancy import file_footprint, is_managed, time_to_report
from harness.session.trust import api_key_of, facts_of, not_allowed
from harness.trace import Clock, monotonic

Control = Literal["run", "managed", "fixed"]
"""Who loads and unloads a model: each run for itself; the budget, by its server; or not from
here."""


def check_tags(tags: Collection[str], endpoints: Mapping[str, Endpoint]) -> None:
    """Raises `ConfigurationInvalid` for a tag that no endpoint has."""
    for tag in tags:
        if tag not in endpoints:
            raise ConfigurationInvalid(
                f"no endpoint is called '{tag}'; " + did_you_mean(tag, endpoints),
                code="endpoint.unknown",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedEndpoint:
    """An endpoint and its backend; of one that was not connected here, no more is known."""

    endpoint: Endpoint
    backend: Backend
    api_key: str | None = field(default=None, repr=False)
    server: str | None = None
    """The identity of its server: two tags may have models on one."""
    host: Host | None = None
    """Loads its model, if the budget counts it."""
    identity: str | None = None
    """The key of its cached replies; None for no cache."""
    error: HarnessError | None = None
    """Why it cannot be used; None if it can."""
    name: str = ""
    """Of a replica, as traces show it."""
    replicas: tuple[OpenedEndpoint, ...] = ()
    """Of an endpoint with `urls`, each; it is itself the first of them."""

    @property
    def servers(self) -> tuple[OpenedEndpoint, ...]:
        """Its replicas; without `urls`, the endpoint itself."""
        return self.replicas or (self,)


def open_endpoint(
    endpoint: Endpoint,
    *,
    environment: Mapping[str, str],
    cached: bool,
    clock: Clock,
) -> OpenedEndpoint:
    """Connects to nothing yet.

    Raises:
        ConfigurationInvalid: Its settings are not usable, or a key may not be sent.
        ModelFileInvalid: Its file is missing or not a GGUF.
    """
    if endpoint.urls:
        # Refused before any of them holds anything that would have to be closed.
        for replica in endpoint.replicas.values():
            api_key_of(replica, environment)
        how = partial(open_endpoint, environment=environment, cached=cached, clock=clock)
        replicas = tuple(
            replace(how(replica), name=name) for name, replica in endpoint.replicas.items()
        )
        return replace(replicas[0], endpoint=endpoint, name="", replicas=replicas)
    api_key = api_key_of(endpoint, environment)
    # Files are read first: as long as they can be wrong, there is nothing to close.
    identity = reply_identity(endpoint) if cached else None
    file_footprint(endpoint)

    def check(url: str) -> None:
        for refusal in not_allowed(endpoint, environment, url=url):
            raise refusal

    access = Access(api_key=api_key, clock=clock, check_address=check)
    reached = endpoint.filled_in(environment)
    backend = connect(reached, access)
    host = host_of(reached, backend, access) if is_managed(endpoint) else None
    return OpenedEndpoint(
        endpoint=endpoint,
        backend=backend,
        api_key=api_key,
        server=endpoint.tag if endpoint.url is None else server_address(endpoint.url),
        host=host,
        identity=identity,
    )


@asynccontextmanager
async def opened_host(endpoint: Endpoint, environment: Mapping[str, str]) -> AsyncIterator[Host]:
    """The host that loads the model of an endpoint that `is_managed`, outside of a run."""
    opened = open_endpoint(endpoint, environment=environment, cached=False, clock=monotonic)
    assert opened.host is not None
    try:
        with errors_of(endpoint.tag):
            yield opened.host
    finally:
        await opened.host.aclose()
        await opened.backend.aclose()


# --- outside of a run -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSeen:
    """The state of an endpoint's model."""

    tag: str
    backend: str
    model: str
    """The name of its file, or its name on the server."""
    device: str
    control: Control
    pin: bool
    """Whether it stays in memory for a whole run."""
    priority: int
    """Among models that need the same room, the highest is loaded first."""
    reachable: bool | None = None
    """Whether its server answers; None without a server."""
    resident: bool | None = None
    """Whether it is in memory; None if unknown."""
    total_bytes: int | None = None
    """Its memory, on all devices together; None if unknown."""
    gpu_bytes: int | None = None
    """How much of that is on GPUs; None if unknown."""
    problem: str | None = None
    """Why no more is known; None without an error."""


async def list_models(
    endpoints: Mapping[str, Endpoint], *, environment: Mapping[str, str]
) -> list[ModelSeen]:
    """Checks every endpoint, without loading anything."""
    looks = (_look(endpoint, environment) for endpoint in endpoints.values())
    return list(await asyncio.gather(*looks))


def controlled(tags: Sequence[str], endpoints: Mapping[str, Endpoint]) -> list[Endpoint]:
    """The endpoints of these tags, each once, if their models can be unloaded from here."""
    check_tags(tags, endpoints)
    chosen = []
    for tag in dict.fromkeys(tags):
        _refuse_uncontrolled(endpoints[tag])
        chosen.append(endpoints[tag])
    return chosen


async def unload_model(endpoint: Endpoint, *, environment: Mapping[str, str]) -> None:
    """Has a server unload a model, and waits for it; a model that is not loaded is no error."""
    async with opened_host(endpoint, environment) as host:
        await host.unload()


def _refuse_uncontrolled(endpoint: Endpoint) -> None:
    if endpoint.backend in FILE_BACKENDS:
        raise InvalidInput(
            f"'{endpoint.tag}' is loaded from a file by each run, into its own process: outside "
            "of a run there is nothing to unload; pin = true keeps it in memory for a whole run",
            code="model.in-process",
        )
    if endpoint.backend not in MANAGED_BACKENDS:
        raise InvalidInput(
            f"'{endpoint.tag}' cannot be unloaded from here: backend "
            f"'{endpoint.backend}' has no command for it",
            code="model.no-control",
        )
    if not endpoint.manage:
        raise InvalidInput(
            f"'{endpoint.tag}' is loaded and unloaded by its server alone; write manage = true "
            f"under [endpoints.{endpoint.tag}] to do it from here",
            code="model.not-managed",
        )


async def _look(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelSeen:
    state = ModelSeen(
        tag=endpoint.tag,
        backend=endpoint.backend,
        model=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        device=", ".join(endpoint.shares),
        control=_control(endpoint),
        pin=endpoint.pin,
        priority=endpoint.priority,
    )
    try:
        match state.control:
            case "managed":
                async with (
                    opened_host(endpoint, environment) as host,
                    time_to_report(endpoint, "its loaded models"),
                ):
                    report = await host.report()
                facts = {} if report is None else asdict(report)
                return replace(state, reachable=True, **facts)
            case "fixed" if endpoint.url is not None:
                server = await facts_of(endpoint, environment)
                return replace(state, reachable=server.reachable)
            case "run" if endpoint.path is not None:
                return replace(state, problem=_problem_of(endpoint.path))
            case _:
                return state
    except EndpointUnreachable as error:
        return replace(state, reachable=False, problem=error.statement)
    except HarnessError as error:
        return replace(state, problem=error.statement)


def _problem_of(file: Path) -> str | None:
    try:
        return None if file.is_file() else f"there is no file {file}"
    except OSError as error:
        return f"{file} cannot be looked at ({error.strerror})"


def _control(endpoint: Endpoint) -> Control:
    if endpoint.backend in FILE_BACKENDS:
        return "run"
    return "managed" if endpoint.manage else "fixed"
