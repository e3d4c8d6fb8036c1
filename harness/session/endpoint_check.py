"""Tries endpoints out: what each can do, and which flag would turn on what it does not tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from harness.errors import HarnessError, InferenceError, InvalidInput, NotOffered, did_you_mean
from harness.inference import (
    PROFILES,
    ChatRequest,
    Completion,
    CountRequest,
    EmbedRequest,
    Endpoint,
    InferenceShim,
    Message,
    Profile,
    ServerFacts,
    StructuredMode,
    server_facts,
)
from harness.session.models import api_key_of, open_models
from harness.session.settings import Settings
from harness.trace import Tracer

_PROMPT = (Message("user", "Count from one to twenty, in words."),)
_TOKENS = 24
_AT_ONCE = 4
_SCHEMA = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCheck:
    """What was seen of an endpoint; None for what could not be seen."""

    tag: str
    """The endpoint's."""
    backend: str
    """How it is spoken to."""
    model_id: str
    """What the model is called there."""
    error: str | None = None
    """Why it cannot be used, and what would mend it."""
    models: tuple[str, ...] | None = None
    """What its server serves."""
    context_tokens: int | None = None
    """Prompt and reply of one call, together."""
    structured: StructuredMode | None = None
    """What became of a reply's schema."""
    timings: bool | None = None
    """Whether it tells where a call's time went."""
    cached_tokens: bool | None = None
    """Whether it tells how much of a prompt came out of its prefix cache."""
    logprobs: bool | None = None
    """Whether it gives log probabilities."""
    counts_tokens: bool | None = None
    """Whether it counts the tokens of a prompt."""
    embeds: bool | None = None
    """Whether it embeds."""
    metrics: bool | None = None
    """Whether its counters can be read."""
    dropped: tuple[str, ...] = ()
    """Fields that it refuses."""
    side_by_side: int | None = None
    """Of four calls at once, how many it was seen to answer at one time."""
    ttft_ms: float | None = None
    """From sending a short prompt to the first token, the model being loaded."""
    tokens_per_s: float | None = None
    """Of one call's decoding."""
    advice: tuple[str, ...] = ()
    """What to change for it to tell more."""


async def check_endpoints(
    settings: Settings,
    endpoints: Mapping[str, Endpoint],
    *,
    environment: Mapping[str, str],
    tags: Collection[str] = (),
) -> AsyncIterator[EndpointCheck]:
    """Tries one endpoint after the other, by a handful of short calls each.

    Args:
        settings: Holds the budget.
        endpoints: All there are.
        environment: Holds the API keys that endpoints name.
        tags: Which to try; all when empty.

    Raises:
        InvalidInput: There is no such endpoint.
    """
    for tag in tags:
        if tag not in endpoints:
            raise InvalidInput(f"no endpoint is called '{tag}'; " + did_you_mean(tag, endpoints))
    for tag in tags or endpoints:
        yield await _check(endpoints[tag], settings, environment)


async def _check(
    endpoint: Endpoint, settings: Settings, environment: Mapping[str, str]
) -> EndpointCheck:
    blank = EndpointCheck(tag=endpoint.tag, backend=endpoint.backend, model_id=endpoint.model_id)
    alone = endpoint.model_copy(update={"fallback": ()})
    try:
        facts = ServerFacts()
        if endpoint.url is not None and endpoint.backend != "litellm":
            key = api_key_of(endpoint, environment)
            facts = await server_facts(endpoint, api_key=key)
        async with open_models(
            {endpoint.tag: alone},
            settings=settings,
            environment=environment,
            required={endpoint.tag},
            tracer=Tracer(),
        ) as shim:
            return await _tried(replace(blank, models=facts.models), alone, facts, shim)
    except HarnessError as error:
        return replace(blank, error=str(error))


async def _tried(
    blank: EndpointCheck, endpoint: Endpoint, facts: ServerFacts, shim: InferenceShim
) -> EndpointCheck:
    if endpoint.embeddings:
        await shim.embed(EmbedRequest(model=endpoint.tag, texts=("hello",)))
        return replace(blank, embeds=True)
    ask = ChatRequest(model=endpoint.tag, messages=_PROMPT, max_output_tokens=_TOKENS)
    # 1. The first one loads the model, where that is left to the first call.
    with_logprobs = await shim.chat(replace(ask, top_logprobs=1))
    # 2. Twice the same prompt: of the second, some should come out of the cache.
    call = await shim.chat(ask)
    structured = await shim.chat(replace(ask, reply_schema=_SCHEMA))
    # 3. Side by side.
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shim.chat(ask)) for _ in range(_AT_ONCE)]
    cached = call.usage.cached_tokens if call.usage else None
    check = replace(
        blank,
        context_tokens=facts.context_tokens or _file_context(endpoint),
        structured=structured.structured,
        timings=any(phase.source == "reported" for phase in call.phases),
        cached_tokens=cached is not None,
        logprobs=bool(with_logprobs.logprobs),
        counts_tokens=await _can(
            shim.count_tokens(CountRequest(model=endpoint.tag, messages=_PROMPT))
        ),
        embeds=await _can(shim.embed(EmbedRequest(model=endpoint.tag, texts=("hello",)))),
        metrics=True if endpoint.backend == "embedded" else facts.metrics,
        dropped=tuple(dict.fromkeys((*with_logprobs.dropped, *call.dropped))),
        side_by_side=most_at_once([task.result() for task in tasks]),
        ttft_ms=_ttft_ms(call),
        tokens_per_s=_tokens_per_s(call),
    )
    return replace(check, advice=tuple(_advice(check, PROFILES.get(endpoint.backend))))


def most_at_once(completions: Collection[Completion]) -> int | None:
    """How many replies were being written at one moment; None where no first token was seen."""
    changes = []
    for completion in completions:
        if completion.first_token_ns is None or not completion.phases:
            return None
        changes += [(completion.first_token_ns, 1), (completion.phases[-1].end_ns, -1)]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


async def _can(asked: Awaitable[object]) -> bool | None:
    """Whether what was asked is offered; None where something else went wrong."""
    try:
        await asked
    except NotOffered:
        return False
    except InferenceError:
        return None
    return True


def _file_context(endpoint: Endpoint) -> int | None:
    return endpoint.context_tokens if endpoint.path is not None else None


def _ttft_ms(call: Completion) -> float | None:
    if call.first_token_ns is None:
        return None
    return (call.first_token_ns - call.sent_ns) / 1e6


def _tokens_per_s(call: Completion) -> float | None:
    decode = [phase for phase in call.phases if phase.name == "decode"]
    if call.usage is None or not decode or call.usage.output_tokens < 2:
        return None
    # The first token is there when decoding begins.
    return (call.usage.output_tokens - 1) / ((decode[0].end_ns - decode[0].start_ns) / 1e9)


def _advice(check: EndpointCheck, profile: Profile | None) -> Iterator[str]:
    if check.structured == "ignored":
        yield "it takes no notice of schemas: typed replies rest on the model's good will"
    if check.side_by_side == 1:
        yield "it answers one call at a time: the others wait there, and set max_concurrency = 1"
    if profile is None:
        return
    for told, offer, what in (
        (check.timings, profile.timings, "where a call's time went"),
        (check.cached_tokens, profile.cached_tokens, "how much of a prompt was cached"),
        (check.logprobs, profile.logprobs, "log probabilities"),
    ):
        if not told and offer.switch:
            yield f"{offer.switch}: {what}"
    if check.metrics is False and profile.metrics_switch:
        yield f"{profile.metrics_switch}: counters in the timeline"
