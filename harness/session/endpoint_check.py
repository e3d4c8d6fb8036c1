"""Endpoints outside of a run: a check of each by short calls, and which models are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Literal

from harness.errors import (
    EndpointUnreachable,
    HarnessError,
    InferenceError,
    InvalidInput,
    ModelNotFound,
    Notice,
    NotOffered,
    ServerError,
    did_you_mean,
)
from harness.inference import ChatRequest, Client, EmbedRequest, Endpoint, Message, provider_of
from harness.inference.completion import StructuredMode
from harness.inference.health import was_connected, was_refused
from harness.inference.providers.provider import NEVER
from harness.inference.providers.server_host import ServerFacts, in_time
from harness.session.models import check_tags, open_models, opened_host
from harness.session.settings import Settings
from harness.session.tenancy import time_to_report
from harness.session.trust import facts_of
from harness.trace import Tracer

_PROMPT = (Message("user", "Tell me a very long story about an owl."),)
_MAX_OUTPUT_TOKENS = 24
_SCHEMA = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}
Progress = Callable[[str], None]
"""Called with each step, in words, when it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCheck:
    """What a check found out about an endpoint; fields are None if it could not be found out."""

    tag: str
    backend: str
    model_id: str
    reachable: bool | None = None
    """Whether a server answers; None if it was not tried."""
    error: Notice | None = None
    """Why it cannot be used, and the remedy."""
    models: tuple[str, ...] | None = None
    context_tokens: int | None = None
    """Prompt and reply of one call, together."""
    slots: int | None = None
    """How many calls the server says it answers at once."""
    structured: StructuredMode | None = None
    """What the server does with a reply's schema."""
    timings: bool | None = None
    """Whether it reports where a call's time went."""
    cached_tokens: bool | None = None
    """Whether it reports how much of a prompt came out of its prefix cache."""
    metrics: bool | None = None
    """Whether it has counters."""
    dropped: tuple[str, ...] = ()
    """Fields of a request that the server refused, and that were left out."""
    advice: tuple[Notice, ...] = ()


async def check_endpoints(
    settings: Settings,
    endpoints: Mapping[str, Endpoint],
    *,
    environment: Mapping[str, str],
    tags: Collection[str] = (),
    progress: Progress = lambda _doing: None,
) -> list[EndpointCheck]:
    """Checks the endpoints with these tags by calling them; without `tags`, all."""
    check_tags(tags, endpoints)
    chosen = [endpoints[tag] for tag in dict.fromkeys(tags or endpoints)]
    checks = []
    # One after the other, so that no endpoint slows another down.
    for endpoint in chosen:
        for name, replica in endpoint.replicas.items():
            check = await _check(replica, settings, environment, progress)
            checks.append(replace(check, tag=f"{check.tag} {name}".rstrip()))
    return checks


async def _check(
    endpoint: Endpoint, settings: Settings, environment: Mapping[str, str], progress: Progress
) -> EndpointCheck:
    blank = EndpointCheck(tag=endpoint.tag, backend=endpoint.backend, model_id=endpoint.model_id)
    # Without fallbacks, cached replies and the setting `structured`, the server itself answers, and
    # the client finds out what the server does with schemas.
    alone = endpoint.model_copy(update={"fallback": (), "structured": None})
    try:
        async with open_models(
            {endpoint.tag: alone},
            settings=settings.model_copy(update={"cache": None}),
            environment=environment,
            required={endpoint.tag},
            tracer=Tracer(),
        ) as opened:
            progress(
                f"{endpoint.tag}: first call; the model may have to load, for up to "
                f"{endpoint.timeout_s:g} s"
            )
            # This call decides whether the endpoint can be used.
            await _first_call(opened.client, endpoint)
            facts = await facts_of(alone, environment)
            # It answered the call, even if its pages of facts do not answer.
            check = replace(_with_facts(blank, facts), reachable=True)
            if not endpoint.embeddings:
                progress(f"{endpoint.tag}: what it tells, and what it does with a schema")
                check = await _try_calls(opened.client, check)
            return replace(check, advice=tuple(_advice_on(check, endpoint)))
    except HarnessError as error:
        return await _unusable(blank, error, endpoint, environment)


async def _unusable(
    blank: EndpointCheck, error: HarnessError, endpoint: Endpoint, environment: Mapping[str, str]
) -> EndpointCheck:
    """The check of an endpoint whose first call failed."""
    check = replace(blank, error=Notice(code=error.code, message=error.statement))
    if not was_connected(error):
        return replace(check, reachable=False)
    if not isinstance(error, InferenceError):
        return check  # the settings are wrong, and no server was called
    facts = await facts_of(endpoint, environment)
    if isinstance(error, ModelNotFound) and facts.models:
        message = f"{error.statement}; {did_you_mean(endpoint.model_id, facts.models)}"
        check = replace(check, error=Notice(code=error.code, message=message))
    return _with_facts(check, facts)


def _with_facts(check: EndpointCheck, facts: ServerFacts) -> EndpointCheck:
    # None means that the server has no pages to ask for. It has answered a call by now, if only
    # with a refusal.
    return replace(check, **asdict(facts) | {"reachable": facts.reachable is not False})


# --- the calls ------------------------------------------------------------------------------


async def _first_call(client: Client, endpoint: Endpoint) -> None:
    """Raises the error of an endpoint that cannot be used, with the setting that it may lack."""
    texts = EmbedRequest(model=endpoint.tag, texts=("hello",))
    if endpoint.embeddings:
        await client.embed(texts)
        return
    try:
        await client.chat(_chat(endpoint.tag))
    except (ServerError, ModelNotFound, NotOffered) as error:
        # Servers that only embed refuse to chat, each in its own words; llama-server by a 501.
        if was_refused(error) or getattr(error, "status", None) == 501:
            with suppress(InferenceError):
                await client.embed(texts)
                remedy = f"write embeddings = true under [endpoints.{endpoint.tag}]"
                error.statement += f"; it embeds: if it is for that alone, {remedy}"
        raise


async def _try_calls(client: Client, check: EndpointCheck) -> EndpointCheck:
    """Adds what further calls find out; a call that fails leaves its fields at None."""
    chat = _chat(check.tag)
    with suppress(InferenceError):
        # The prompt of the first call again, so that part of it can come out of the prefix cache.
        reply = await client.chat(chat)
        check = replace(
            check,
            timings=any(phase.source == "reported" for phase in reply.phases),
            cached_tokens=bool(reply.usage and reply.usage.cached_tokens is not None),
            dropped=reply.dropped,
        )
    with suppress(InferenceError):
        reply = await client.chat(replace(chat, reply_schema=_SCHEMA))
        check = replace(check, structured=reply.structured)
    return check


def _chat(tag: str) -> ChatRequest:
    return ChatRequest(model=tag, messages=_PROMPT, max_output_tokens=_MAX_OUTPUT_TOKENS)


# --- what follows from them -----------------------------------------------------------------


def _advice_on(check: EndpointCheck, endpoint: Endpoint) -> Iterator[Notice]:
    """What to change, at the server or in the endpoint's settings."""
    provider = provider_of(endpoint)
    # The settings or the server's list may leave out a version or the tag `latest`.
    name = endpoint.model_id.partition("/versions/")[0]
    names = {name, f"{name}:latest", name.removesuffix(":latest")}
    if check.models and names.isdisjoint(check.models):
        yield Notice(
            code="endpoint.model-not-listed",
            message=f"it answered, but does not list model '{endpoint.model_id}': another model "
            "may have answered",
        )
    if check.structured == "ignored":
        remedy = f"; {provider.enforces} changes that" if provider.enforces else ""
        yield Notice(
            code="endpoint.ignores-schemas",
            message=f"it ignores schemas: the model alone decides the form of its replies{remedy}",
        )
    counters = provider.counters.switch if provider.counters else NEVER
    for reports, switch, what in (
        (check.timings, provider.timings, "where a call's time went"),
        (check.cached_tokens, provider.cached_tokens, "how much of a prompt came out of its cache"),
        (check.metrics, counters, "its counters"),
    ):
        if reports is False and switch:
            yield Notice(code="endpoint.switch-off", message=f"{switch} makes it report {what}")


# --- models in memory -----------------------------------------------------------------------------

Control = Literal["run", "managed", "fixed"]
"""How a model is loaded: by each `run` for itself, by the budget through its server (`managed`), or
by the server alone (`fixed`)."""


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
    """The state of every endpoint's model; loads nothing."""
    return await asyncio.gather(*(_state_of(e, environment) for e in endpoints.values()))


def controlled(tags: Sequence[str], endpoints: Mapping[str, Endpoint]) -> list[Endpoint]:
    """The endpoints of these tags, each once; refuses models that cannot be unloaded from here."""
    check_tags(tags, endpoints)
    chosen = [endpoints[tag] for tag in dict.fromkeys(tags)]
    for endpoint in chosen:
        if endpoint.path is not None:
            raise InvalidInput(
                f"'{endpoint.tag}' is loaded from a file by each run, into its own process: "
                "outside of a run there is nothing to unload; pin = true keeps it in memory for a "
                "whole run",
                code="model.in-process",
            )
        if provider_of(endpoint).host is None:
            raise InvalidInput(
                f"'{endpoint.tag}' cannot be unloaded from here: backend '{endpoint.backend}' has "
                "no command for it",
                code="model.no-control",
            )
        if not endpoint.manage:
            raise InvalidInput(
                f"'{endpoint.tag}' is loaded and unloaded by its server alone; write manage = true "
                f"under [endpoints.{endpoint.tag}] to do it from here",
                code="model.not-managed",
            )
    return chosen


async def unload_model(endpoint: Endpoint, *, environment: Mapping[str, str]) -> None:
    """Has a server unload a model, and waits for it; a model that is not loaded is no error."""
    limit_s = endpoint.load_timeout_s
    async with (
        opened_host(endpoint, environment) as host,
        in_time(endpoint.tag, limit_s, "let go of"),
    ):
        await host.unload()


async def _state_of(endpoint: Endpoint, environment: Mapping[str, str]) -> ModelSeen:
    control: Control = "managed" if endpoint.manage else "fixed"
    if endpoint.path is not None:
        control = "run"
    state = ModelSeen(
        tag=endpoint.tag,
        backend=endpoint.backend,
        model=endpoint.model_id if endpoint.path is None else endpoint.path.name,
        device=", ".join(endpoint.shares),
        control=control,
        pin=endpoint.pin,
        priority=endpoint.priority,
    )
    try:
        if control == "managed":
            async with (
                opened_host(endpoint, environment) as host,
                time_to_report(endpoint, "its loaded models"),
            ):
                report = await host.report()
            return replace(state, reachable=True, **asdict(report))
        if control == "fixed" and endpoint.url is not None:
            return replace(state, reachable=(await facts_of(endpoint, environment)).reachable)
        if endpoint.path is not None:
            is_there = False
            with suppress(OSError):  # of a folder that may not be read
                is_there = endpoint.path.is_file()
            if not is_there:
                return replace(state, problem=f"there is no file {endpoint.path}")
        return state
    except HarnessError as error:
        reachable = False if isinstance(error, EndpointUnreachable) else None
        return replace(state, reachable=reachable, problem=error.statement)
