"""The models of a run or a session: opens the endpoints, and the client for all calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path

from harness.errors import (
    ConfigurationInvalid,
    HarnessError,
    ModelFileInvalid,
    Notice,
    did_you_mean,
    errors_of,
)
from harness.inference import (
    Backend,
    Client,
    Endpoint,
    Host,
    ScriptedBackend,
    provider_of,
    server_address,
)
from harness.inference.client import Route
from harness.inference.gate import Gate, Lease, Replica
from harness.inference.providers.http import Access
from harness.inference.providers.registry import (
    connect,
    host_of,
    knowledge_of,
    metrics_source,
    served_metadata,
    slots_source,
)
from harness.inference.reply_store import ReplyCache, reply_identity
from harness.inference.request import Request
from harness.inference.structured import SchemaKnowledge
from harness.inference.tool_offers import ToolKnowledge
from harness.log import log_warning
from harness.residency import KeepAliveBudget
from harness.session.monitoring import (
    Sampled,
    device_sources,
    heartbeat,
    record_machine_speed,
    sampling,
)
from harness.session.roles import roles_with_backends
from harness.session.separation import check_fallbacks
from harness.session.settings import Settings, demo_endpoint
from harness.session.tenancy import (
    check_managed,
    describe_budget,
    file_footprint,
    is_managed,
    kv_bytes_of,
    open_budget,
    placed,
)
from harness.session.trust import api_key_of, known_secrets, not_allowed
from harness.text_store import TextStore
from harness.trace import Clock, RunTrace, SharedTracer, Tracer, events, monotonic
from harness.trace.secrets import Redactor

_Knowledge = tuple[SchemaKnowledge | None, ToolKnowledge | None]
"""How a server treats schemas and tools, as far as its replies have shown."""

CALL_CACHE = "calls.sqlite"
"""The file of cached calls, among the runs, with `cache = "disk"`."""


def known_endpoints(
    settings: Settings, backends: Mapping[str, Backend] | None = None
) -> dict[str, Endpoint]:
    """Tag → endpoint: those of the settings and of backends in code; without any, the demo's."""
    endpoints = dict(settings.endpoints)
    for tag in backends or {}:
        endpoints[tag] = Endpoint(tag=tag, backend="scripted")
    if not endpoints and (demo := demo_endpoint()) is not None:
        endpoints[demo.tag] = demo
    if settings.seed is not None:
        endpoints = {tag: endpoint.made_repeatable() for tag, endpoint in endpoints.items()}
    return placed(endpoints, settings)


def with_backends(settings: Settings, backends: Mapping[str, Backend] | None) -> Settings:
    """The settings with all endpoints that a run may call, and the roles that backends play."""
    roles = roles_with_backends(settings.roles, backends or {})
    endpoints = known_endpoints(settings, backends)
    return settings.model_copy(update={"endpoints": endpoints, "roles": roles})


def describe_endpoints(endpoints: Mapping[str, Endpoint], tracer: Tracer) -> None:
    """Records, at the beginning of a trace, the facts about models that its report needs."""
    for tag, endpoint in endpoints.items():
        # A trace is shown to others, who must not learn where files lie on this machine.
        hidden = {"tag", "api_key_env", "path", "headers", "query"}
        description = endpoint.model_dump(mode="json", exclude=hidden, exclude_defaults=True)
        if endpoint.path is not None:
            description["file"] = endpoint.path.name
        if "device" in endpoint.model_fields_set:
            # `exclude_defaults` leaves out the default device, which "auto" may have become.
            description["device"] = endpoint.device
        tracer.instant(events.EndpointEvent(model=tag, more=description))


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenModels:
    """Models that calls can be made to; `open_models` closes them."""

    client: Client
    budget: KeepAliveBudget | None
    """None if no models share memory."""
    traces: Path
    """The directory of runs."""
    opened: Mapping[str, OpenedEndpoint]
    """Tag → endpoint."""
    sampled: Mapping[str, Sampled]
    """Address → a server whose counters are read."""
    _heartbeat: ExitStack = field(default_factory=ExitStack)

    @asynccontextmanager
    async def serving(
        self, trace: RunTrace, *, required: Collection[str], warn: Callable[[Notice], None]
    ) -> AsyncIterator[OpenModels]:
        """Surrounds a run that shares these models: its trace records what happens to them."""
        tracer = self.client.tracer
        routes = self.client.routes
        assert isinstance(tracer, SharedTracer), "they were opened for one run"
        for tag in required:
            if error := routes[tag].error:
                # All runs raise the same error object, whose traceback must not grow with each.
                raise error.with_traceback(None)
        _warn_of_fallbacks(routes, required, warn)
        for route in routes.values():
            route.gate.try_again()
        if self.budget is not None:
            describe_budget(self.budget, trace)
        # All runs share one heartbeat: the first to open starts it, the last to close ends it.
        if not tracer.has_runs:
            self._heartbeat.enter_context(heartbeat(tracer))
        try:
            with tracer.heard_by(trace):
                yield self
        finally:
            if not tracer.has_runs:
                self._heartbeat.close()
        await self.record_speed(trace)

    async def record_speed(self, tracer: Tracer) -> None:
        """Records, at the end of a run, how fast this machine can run its models at most."""
        usable = [entry.endpoint for entry in self.opened.values() if entry.error is None]
        await record_machine_speed(
            usable, directory=self.traces, tracer=tracer, file_of=self._served_file
        )

    async def _served_file(self, endpoint: Endpoint) -> Path | None:
        """The GGUF file that a server reports for its model; None if the run did not call it."""
        entry = self.opened[endpoint.tag]
        sampled = self.sampled.get(entry.address or "")
        if sampled is None or not sampled.called.is_set():
            return None
        metadata = await served_metadata(entry.reached, api_key=entry.api_key)
        if metadata is None or metadata.path is None or not metadata.path.endswith(".gguf"):
            return None
        return Path(metadata.path)


@asynccontextmanager
async def open_models(
    endpoints: Mapping[str, Endpoint],
    *,
    settings: Settings,
    environment: Mapping[str, str],
    backends: Mapping[str, Backend] | None = None,
    required: Collection[str],
    tracer: Tracer,
    sample_every_s: float = 0.0,
    warn: Callable[[Notice], None] | None = None,
) -> AsyncIterator[OpenModels]:
    """The client in front of these endpoints, and the budget that shares memory among their models.

    Nothing is loaded until the first call; servers of managed models are asked about them. The
    `required` endpoints must be usable; a mistake in another one is raised when it is called. Ready
    `backends` are closed with the others. Without `sample_every_s`, no server's counters are read.

    Raises:
        ConfigurationInvalid: A required endpoint does not exist or its API key is missing, a
            fallback does not exist, two models are managed at a server that holds one, or the call
            cache cannot be opened.
        ModelFileInvalid: A required embedded model's file is missing or not a GGUF.
    """
    check_fallbacks(endpoints)
    check_managed(endpoints.values())
    check_tags(required, endpoints)
    warn = warn or (lambda notice: log_warning(notice.message, code=notice.code))
    async with AsyncExitStack() as stack:
        # Closed in reverse: the sampling ends, the budget unloads what it loaded, then the backends
        # close, then the cache. The heartbeat of a recorded run lasts until all that is over.
        stack.enter_context(heartbeat(tracer) if tracer.run_id else nullcontext())

        # 1. The cache and each endpoint.
        cache = _open_cache(settings, endpoints, environment)
        if cache:
            stack.push_async_callback(cache.aclose)
        opened: dict[str, OpenedEndpoint] = {}
        for tag, endpoint in endpoints.items():
            if backends and tag in backends:
                entry = OpenedEndpoint(endpoint=endpoint, reached=endpoint, backend=backends[tag])
            else:
                try:
                    entry = open_endpoint(
                        endpoint,
                        environment=environment,
                        cached=cache is not None,
                        clock=tracer.now_ns,
                    )
                except (ConfigurationInvalid, ModelFileInvalid) as error:
                    if tag in required:
                        raise
                    unused = ScriptedBackend(())  # calls raise the error
                    entry = OpenedEndpoint(
                        endpoint=endpoint, reached=endpoint, backend=unused, error=error
                    )
            for server in entry.servers:
                stack.push_async_callback(server.backend.aclose)
            if entry.host is not None:
                stack.push_async_callback(entry.host.aclose)
            opened[tag] = entry

        # 2. What the endpoints share: the memory of models, and the sampling of counters.
        hosts = {
            tag: (opening.endpoint, opening.host)
            for tag, opening in opened.items()
            if opening.host is not None
        }
        budget = await open_budget(
            hosts, required=required, settings=settings.budget, tracer=tracer
        )
        if budget:
            await stack.enter_async_context(budget.opened())
        sampled = _sampled_servers(opened.values()) if sample_every_s else {}
        devices = (
            stack.enter_context(device_sources(_processes(opened.values()), clock=tracer.now_ns))
            if sample_every_s and tracer.is_recorded
            else []
        )
        await stack.enter_async_context(
            sampling([*sampled.values(), *devices], tracer=tracer, every_s=sample_every_s)
        )

        # 3. The route of calls to each endpoint.
        knowledge = _knowledge_by_tag(endpoints)
        routes = {}
        for tag, opening in opened.items():
            lease = _lease(opening, budget=budget, sampled=sampled)
            routes[tag] = _route(opening, lease=lease, knowledge=knowledge[tag], tracer=tracer)
        _warn_of_fallbacks(routes, required, warn)
        models = OpenModels(
            client=Client(routes=routes, tracer=tracer, cache=cache, warn=warn),
            budget=budget,
            traces=settings.traces,
            opened=opened,
            sampled=sampled,
        )
        yield models
        # Left out after an error, since the measurement takes a third of a second.
        await models.record_speed(tracer)


def _warn_of_fallbacks(
    routes: Mapping[str, Route], required: Collection[str], warn: Callable[[Notice], None]
) -> None:
    """Warns of fallbacks of required endpoints that cannot be used."""
    for needed in required:
        for tag in routes[needed].endpoint.fallback:
            if error := routes[tag].error:
                notice = Notice(
                    code="endpoint.fallback-unusable",
                    message=f"'{tag}' cannot stand in for '{needed}': {error}",
                )
                warn(notice)


def _route(
    opened: OpenedEndpoint, *, lease: Lease | None, knowledge: _Knowledge, tracer: Tracer
) -> Route:
    endpoint = opened.endpoint
    servers = opened.servers
    schemas, tools = knowledge
    gate = Gate(
        endpoint=endpoint,
        replicas=[
            Replica()
            if server.address is None
            else Replica(
                name=server.name, slots=slots_source(server.reached, api_key=server.api_key)
            )
            for server in servers
        ],
        lease=lease,
        tracer=tracer,
    )
    return Route(
        endpoint=endpoint,
        backends=tuple(server.backend for server in servers),
        gate=gate,
        schemas=schemas,
        tools=tools,
        identity=opened.identity,
        kv_bytes=None if opened.error else kv_bytes_of(endpoint),
        error=opened.error,
    )


def _lease(
    opened: OpenedEndpoint, *, budget: KeepAliveBudget | None, sampled: Mapping[str, Sampled]
) -> Lease | None:
    """The lease that a call to an endpoint holds; None if it needs none."""
    servers = [sampled.get(server.address or "") for server in opened.servers]
    first_calls = [server.called for server in servers if server is not None]
    # A model that is not managed, or whose server did not report its size, is no tenant.
    is_tenant = budget is not None and opened.endpoint.tag in budget.tenants
    if not is_tenant and not first_calls:
        return None

    @asynccontextmanager
    async def lease(request: Request) -> AsyncIterator[None]:
        async with budget.lease(request.model) if budget and is_tenant else nullcontext():
            # The sampling of a server waits for the first call to it.
            for first_call in first_calls:
                first_call.set()
            yield

    return lease


def _open_cache(
    settings: Settings, endpoints: Mapping[str, Endpoint], environment: Mapping[str, str]
) -> ReplyCache | None:
    if settings.cache == "disk":
        named = settings.trace.secrets
        secrets = known_secrets(endpoints.values(), environment=environment, named=named)
        store = TextStore(settings.traces / CALL_CACHE, clean=Redactor(secrets).clean)
        return ReplyCache(store)
    return None if settings.cache is None else ReplyCache(TextStore(None))


def _sampled_servers(opened: Iterable[OpenedEndpoint]) -> dict[str, Sampled]:
    """Address → a server that has counters; its track has the name of the first tag there."""
    sampled: dict[str, Sampled] = {}
    for server in chain.from_iterable(entry.servers for entry in opened):
        if server.address is None or server.address in sampled:
            continue
        source = metrics_source(server.reached, server.backend, api_key=server.api_key)
        if source is not None:
            track = f"server {server.endpoint.tag} {server.name}".rstrip()
            sampled[server.address] = Sampled(source=source, track=track)
    return sampled


def _processes(opened: Iterable[OpenedEndpoint]) -> dict[str, Callable[[], int | None]]:
    """Track of a server → a function that gives its process id, for engines started here."""
    processes: dict[str, Callable[[], int | None]] = {}
    for entry in opened:
        process = provider_of(entry.endpoint).process
        if entry.error is None and process is not None:
            processes[f"server {entry.endpoint.tag}"] = partial(process, entry.backend)
    return processes


def _knowledge_by_tag(endpoints: Mapping[str, Endpoint]) -> dict[str, _Knowledge]:
    """Tag → what is learned of its server; endpoints of one model at one server share it."""
    knowledge_by_model: dict[tuple[object, ...], _Knowledge] = {}
    knowledge: dict[str, _Knowledge] = {}
    for tag, endpoint in endpoints.items():
        if endpoint.backend == "scripted":
            knowledge[tag] = (None, None)  # there is no server to learn about
            continue
        model = (
            endpoint.backend,
            endpoint.url and server_address(endpoint.url),
            endpoint.model_id,
            endpoint.path,
            endpoint.structured,
            endpoint.tools,
        )
        knowledge[tag] = knowledge_by_model.setdefault(model, knowledge_of(endpoint))
    return knowledge


# --- one endpoint ---------------------------------------------------------------------------------


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
    """An endpoint and its backend; if that is ready-made, or failed, most fields are None."""

    endpoint: Endpoint
    reached: Endpoint = field(repr=False)
    """The endpoint with the values of the variables in its headers and query, for its server."""
    backend: Backend
    api_key: str | None = field(default=None, repr=False)
    address: str | None = None
    """The address of its server, or its tag if it has none; two endpoints may have one server."""
    host: Host | None = None
    """Loads its model, if the budget counts it."""
    identity: str | None = None
    """The key of its cached replies; None for no cache."""
    error: HarnessError | None = None
    """Why it cannot be used; None if it can."""
    name: str = ""
    """The name of a replica in traces; else empty."""
    replicas: tuple[OpenedEndpoint, ...] = ()
    """The replicas of an endpoint with `urls`; the endpoint itself is the first."""

    @property
    def servers(self) -> tuple[OpenedEndpoint, ...]:
        """Its replicas; without `urls`, the endpoint itself."""
        return self.replicas or (self,)


def open_endpoint(
    endpoint: Endpoint, *, environment: Mapping[str, str], cached: bool, clock: Clock
) -> OpenedEndpoint:
    """An endpoint's backend, which connects at the first call.

    Raises:
        ConfigurationInvalid: Its settings are not usable, or a key may not be sent.
        ModelFileInvalid: Its file is missing or not a GGUF.
    """
    if endpoint.urls:
        # Refused before a replica holds anything that would have to be closed.
        for replica in endpoint.replicas.values():
            api_key_of(replica, environment)
        open_replica = partial(open_endpoint, environment=environment, cached=cached, clock=clock)
        replicas = tuple(
            replace(open_replica(replica), name=name) for name, replica in endpoint.replicas.items()
        )
        return replace(replicas[0], endpoint=endpoint, name="", replicas=replicas)
    api_key = api_key_of(endpoint, environment)
    # Files are read before anything is opened: a mistake in one leaves nothing to close.
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
        reached=reached,
        backend=backend,
        api_key=api_key,
        address=endpoint.tag if endpoint.url is None else server_address(endpoint.url),
        host=host,
        identity=identity,
    )


@asynccontextmanager
async def opened_host(endpoint: Endpoint, environment: Mapping[str, str]) -> AsyncIterator[Host]:
    """The host that loads a model outside of a run, for an endpoint that `is_managed`."""
    opened = open_endpoint(endpoint, environment=environment, cached=False, clock=monotonic)
    assert opened.host is not None
    try:
        with errors_of(endpoint.tag):
            yield opened.host
    finally:
        await opened.host.aclose()
        await opened.backend.aclose()
