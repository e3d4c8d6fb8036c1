"""The table of providers by an endpoint's `backend`, and the functions that use it.

A new server needs a place in `openai.py`, or a file beside it if it loads models or has a protocol
of its own; a line in the table; its name in `endpoint.py`, a `WireName` or, with a protocol of its
own, a `BackendName`; and a row of the contract (`tests/inference/contract_rows.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import cache

from harness.errors import ConfigurationInvalid
from harness.hardware import Loading
from harness.inference.backend import Backend
from harness.inference.completion import ToolMode
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, names, whole
from harness.inference.model_identity import ModelMetadata
from harness.inference.providers import (
    embedded,
    litellm,
    llama_cpp_python,
    llamacpp,
    ollama,
    openai,
    triton,
    vllm,
)
from harness.inference.providers.counters import MetricsSource
from harness.inference.providers.http import Access
from harness.inference.providers.openai_wire import OpenAIWire
from harness.inference.providers.provider import NEVER, Host, Provider
from harness.inference.providers.server_host import ServerFacts, ServerPages
from harness.inference.structured import SchemaKnowledge
from harness.inference.tool_offers import ToolKnowledge
from harness.plugins import load_plugin

_SERVED_TIMEOUT_S = 5.0


def _scripted(endpoint: Endpoint, _access: Access) -> Backend:
    raise ConfigurationInvalid(
        f"endpoint '{endpoint.tag}' is scripted; pass its backend from Python",
        code="endpoint.scripted",
    )


PROVIDERS: Mapping[str, Provider] = {
    "openai": openai.OTHER,
    "llamacpp": llamacpp.PROVIDER,
    "vllm": vllm.PROVIDER,
    "sglang": openai.SGLANG,
    "tgi": openai.TGI,
    "tensorrt-llm": openai.TENSORRT_LLM,
    "tabbyapi": openai.TABBYAPI,
    "mlc": openai.MLC,
    "triton-openai": triton.OPENAI_FRONT_END,
    "lmstudio": openai.LMSTUDIO,
    "runpod": openai.RUNPOD,
    "modal": openai.MODAL,
    "ollama": ollama.PROVIDER,
    "triton": triton.PROVIDER,
    "embedded": embedded.PROVIDER,
    "llama-cpp-python": llama_cpp_python.PROVIDER,
    "litellm": litellm.PROVIDER,
    "scripted": Provider(title="a scripted backend", connect=_scripted),
}


def provider_of(endpoint: Endpoint) -> Provider:
    """The provider of an endpoint's backend, whether it ships or is installed."""
    return PROVIDERS.get(endpoint.backend) or _installed(endpoint.backend)


@cache
def provider_named(backend: str) -> Provider:
    """The provider of a backend that a journal names; one without particulars if it is unknown."""
    try:
        return PROVIDERS.get(backend) or _installed(backend)
    except ConfigurationInvalid:
        return Provider(title=backend)


@cache
def _installed(name: str) -> Provider:
    provider: Provider = load_plugin("providers", name, lambda it: isinstance(it, Provider))
    return provider


def connect(endpoint: Endpoint, access: Access | None = None) -> Backend:
    """The bare backend of an endpoint, not connected yet; raises `ConfigurationInvalid`."""
    access = access or Access()
    provider = provider_of(endpoint)
    if provider.connect is not None:
        return provider.connect(endpoint, access)
    return OpenAIWire(endpoint, provider, access)


def knowledge_of(endpoint: Endpoint) -> tuple[SchemaKnowledge, ToolKnowledge]:
    """How an endpoint's server treats schemas and tools, as far as known before a test."""
    provider = provider_of(endpoint)
    tool_mode: ToolMode | None = endpoint.tools
    if tool_mode is None and provider.tools is NEVER:
        tool_mode = "typed"
    elif tool_mode is None and provider.refuses_tools:
        # No test is needed, since such a server says if its model does not support tools.
        tool_mode = "native"
    tools = ToolKnowledge(
        tool_mode, requires_calls=provider.requires_calls or endpoint.tools == "native"
    )
    return SchemaKnowledge(endpoint.structured, strict=provider.strict_schemas), tools


def host_of(endpoint: Endpoint, backend: Backend, access: Access | None = None) -> Host:
    """The host of an endpoint's model, not connected yet; raises `ConfigurationInvalid`."""
    if (host := provider_of(endpoint).host) is None:
        raise ConfigurationInvalid(
            f"endpoint '{endpoint.tag}': backend '{endpoint.backend}' cannot load or unload "
            "models on request; set manage to false",
            code="endpoint.not-manageable",
        )
    return host(endpoint, access or Access(), backend)


def loading_of(endpoint: Endpoint) -> Loading:
    """How an endpoint's file is loaded; raises `ConfigurationInvalid` if its backend loads none."""
    if (loading := provider_of(endpoint).loading) is None:
        raise ConfigurationInvalid(
            f"backend '{endpoint.backend}' loads no file; leave path out of '{endpoint.tag}'",
            code="endpoint.stray-setting",
        )
    return loading(endpoint)


async def served_metadata(
    endpoint: Endpoint, *, api_key: str | None = None, timeout_s: float = _SERVED_TIMEOUT_S
) -> ModelMetadata | None:
    """The model behind `model_id`, as the endpoint's server describes it; None if it does not.

    The name alone is no proof: llama-server ignores the name in a call, vLLM serves under any name,
    and a bare tag of Ollama's hides how the weights are packed.
    """
    if (served := provider_of(endpoint).served) is None:
        return None
    try:
        pages = ServerPages(endpoint, Access(api_key=api_key))
    except ConfigurationInvalid:
        return None  # a key that cannot be sent, which the first call reports
    metadata = None
    async with aclosing(pages):
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                metadata = await served(pages)
    return None if metadata == ModelMetadata() else metadata


async def server_facts(endpoint: Endpoint, *, api_key: str | None = None) -> ServerFacts:
    """The facts about an endpoint's server; a fact is None if not reported within seconds.

    To be called after a call to the model, since some servers know its context only then.
    """
    provider = provider_of(endpoint)
    if endpoint.path is not None:
        # An engine that harness starts, with the settings of the endpoint.
        return ServerFacts(
            context_tokens=endpoint.context_tokens,
            slots=provider.slots(endpoint),
            metrics=True if provider.source else None,
        )
    if endpoint.url is None or provider.finds_keys:
        return ServerFacts()
    async with aclosing(ServerPages(endpoint, Access(api_key=api_key))) as pages:
        if provider.facts is None:
            facts = await _openai_facts(pages, provider)
        else:
            facts = await provider.facts(pages)
        return replace(facts, reachable=pages.answered)


async def _openai_facts(pages: ServerPages, provider: Provider) -> ServerFacts:
    """The facts about a server with the pages of OpenAI's protocol and of its provider."""
    listed = await pages.json(f"{pages.v1}/models")
    metrics = context_tokens = slots = None
    if provider.counters:
        metrics = await pages.page(provider.counters.path, params=pages.of_model) is not None
    if context := provider.context:
        document = await pages.json(context.path, params=pages.of_model)
        context_tokens = whole(at(document, *context.keys, model_id=pages.model_id))
        slots = whole(at(document, context.slots)) if context.slots else None
    return ServerFacts(
        models=names(at(listed, "data"), "id"),
        context_tokens=context_tokens,
        slots=slots,
        metrics=metrics,
    )


def slots_source(
    endpoint: Endpoint, *, api_key: str | None = None
) -> Callable[[], Awaitable[int | None]] | None:
    """A function that asks a server how many calls it answers at once; None if none can be asked.

    Its own result is None if the server does not say.
    """
    page = provider_of(endpoint).context
    # Not for a model that the budget loads, since a router would load it for this question.
    if page is None or page.slots is None or endpoint.manage:
        return None
    slots_key = page.slots

    async def ask_slots() -> int | None:
        async with aclosing(ServerPages(endpoint, Access(api_key=api_key))) as pages:
            document = await pages.json(page.path, params=pages.of_model)
        return whole(at(document, slots_key)) or None

    return ask_slots


def metrics_source(
    endpoint: Endpoint, backend: Backend, *, api_key: str | None = None
) -> MetricsSource | None:
    """The counters of an endpoint's server; None for a kind that has none."""
    provider = provider_of(endpoint)
    if provider.source is not None:
        return provider.source(endpoint, backend)
    counters = provider.counters
    if endpoint.url is None or counters is None:
        return None
    return MetricsSource(endpoint, counters, api_key=api_key)
