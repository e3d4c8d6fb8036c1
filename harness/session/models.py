"""The models of a session: from endpoints as written to the shim that every call goes through."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from harness.errors import ConfigurationInvalid, HarnessError, ModelFileInvalid
from harness.hardware import gguf_footprint, read_gguf_header
from harness.inference import (
    Backend,
    CallCache,
    EmbeddedLlamaCpp,
    Endpoint,
    InferenceShim,
    LlamaCppPython,
    R,
    ScriptedBackend,
    T,
    Wrapper,
    connect,
    machine_memory_bytes,
    metrics_source,
    reply_identity,
)
from harness.residency import KeepAliveBudget, Tenant
from harness.session.call_stack import Shared, call_stack, with_fallbacks
from harness.session.demo_model import demo_endpoint
from harness.session.fallbacks import check_fallbacks
from harness.session.sampler import Noticing, Sampled, sampling
from harness.session.settings import Settings
from harness.trace import Tracer

CALL_CACHE = "calls.sqlite"
"""Where calls are kept, among the runs, with `cache = "disk"`."""

_SHARE_OF_MACHINE = 0.8
"""Of the machine's memory, what embedded models may take unless told otherwise."""


def known_endpoints(
    settings: Settings, backends: Mapping[str, Backend] | None = None
) -> dict[str, Endpoint]:
    """Every model that can be reached, by tag: the demo's, when nothing else was named.

    Args:
        settings: Names endpoints.
        backends: Ready-made backends, by tag.
    """
    endpoints = dict(settings.endpoints)
    for tag in backends or {}:
        endpoints[tag] = Endpoint(tag=tag, backend="scripted")
    if not endpoints and (demo := demo_endpoint()) is not None:
        endpoints[demo.tag] = demo
    return endpoints


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
) -> AsyncIterator[InferenceShim]:
    """The shim in front of these endpoints, each behind its `call_stack`.

    Nothing is loaded or connected to until the first call.

    Args:
        endpoints: By tag.
        settings: Holds the budget, and whether calls are cached.
        environment: Holds the API keys that endpoints name.
        backends: Ready-made backends, by tag.
        required: Tags of the endpoints that must be usable; what is wrong with another is only
            said when it is called.
        tracer: Sees every call.
        sample_every_s: How often the servers that are called are asked for their counters; never
            when 0.

    Raises:
        ConfigurationInvalid: A required endpoint's API key is missing, a fallback does not exist,
            or the call cache cannot be opened.
        ModelFileInvalid: A required embedded model's file is missing or not a GGUF.
    """
    check_fallbacks(endpoints)
    ready_made = backends or {}
    bare: dict[str, Backend] = {}
    tenants: dict[str, Tenant] = {}
    identities: dict[str, str] = {}
    sampled: dict[str, Sampled] = {}
    for tag, endpoint in endpoints.items():
        try:
            if tag in ready_made:
                bare[tag] = ready_made[tag]
                continue
            api_key = api_key_of(endpoint, environment)
            bare[tag] = backend = connect(endpoint, api_key=api_key, clock=tracer.now_ns)
            if settings.cache is not None:
                identities[tag] = reply_identity(endpoint)
            if isinstance(backend, EmbeddedLlamaCpp | LlamaCppPython):
                tenants[tag] = Tenant(host=backend, need_bytes=_need_bytes(endpoint))
            server = _server_of(endpoint)
            if server in sampled:
                bare[tag] = Noticing(backend, called=sampled[server].called)
            elif sample_every_s and (source := metrics_source(endpoint, backend, api_key=api_key)):
                sampled[server] = Sampled(source=source, track=f"server {tag}")
                bare[tag] = Noticing(backend, called=sampled[server].called)
        except (ConfigurationInvalid, ModelFileInvalid) as error:
            if tag in required:
                raise
            bare[tag] = _Unusable(error)
    budget = None
    if tenants:
        machine_bytes = machine_memory_bytes()
        capacity_bytes = settings.budget.capacity_bytes or int(machine_bytes * _SHARE_OF_MACHINE)
        budget = KeepAliveBudget(capacity_bytes=capacity_bytes, tenants=tenants, tracer=tracer)
        tracer.instant("budget", capacity_bytes=capacity_bytes, machine_bytes=machine_bytes)
    cache = _open_cache(settings)
    shared = Shared(tracer=tracer, budget=budget, cache=cache)
    stacks = {
        tag: call_stack(
            backend,
            endpoints[tag],
            shared,
            leased=tag in tenants,
            identity=identities.get(tag),
        )
        for tag, backend in bare.items()
    }
    shim = InferenceShim(with_fallbacks(stacks, endpoints, tracer=tracer))
    async with AsyncExitStack() as stack:
        # In reverse: the budget unloads what it loaded, then the backends close, then the cache.
        if cache:
            stack.push_async_callback(cache.aclose)
        stack.push_async_callback(shim.aclose)
        if budget:
            stack.push_async_callback(budget.aclose)
        if sampled:
            await stack.enter_async_context(
                sampling(sampled.values(), tracer=tracer, every_s=sample_every_s)
            )
        yield shim


def api_key_of(endpoint: Endpoint, environment: Mapping[str, str]) -> str | None:
    """The key that an endpoint names; None for one that names none.

    Raises:
        ConfigurationInvalid: The variable is not set.
    """
    if endpoint.api_key_env is None:
        return None
    key = environment.get(endpoint.api_key_env)
    if not key:
        raise ConfigurationInvalid(
            f"endpoint '{endpoint.tag}' takes its key from {endpoint.api_key_env}, "
            "which is not set; export it"
        )
    return key


def _open_cache(settings: Settings) -> CallCache | None:
    match settings.cache:
        case None:
            return None
        case "run":
            return CallCache(None)
        case "disk":
            return CallCache(settings.traces / CALL_CACHE)


def _server_of(endpoint: Endpoint) -> str:
    """What tells servers apart: two tags may stand for models of one."""
    return f"{endpoint.backend} {endpoint.url.rstrip('/')}" if endpoint.url else endpoint.tag


def _need_bytes(endpoint: Endpoint) -> int:
    assert endpoint.path is not None
    footprint = gguf_footprint(
        read_gguf_header(endpoint.path),
        context_tokens=endpoint.context_tokens,
        # llama-cpp-python computes one sequence at a time.
        slots=endpoint.slots if endpoint.backend == "embedded" else 1,
    )
    return footprint.total_bytes


class _Unusable(Wrapper):
    """Stands for an endpoint that is written down wrong, until somebody calls it."""

    def __init__(self, error: HarnessError) -> None:
        super().__init__(ScriptedBackend(()))
        self._error = error

    async def around(self, request: R, ask: Callable[[R], Awaitable[T]]) -> T:  # noqa: ARG002
        """Says what is wrong with it."""
        raise self._error
