"""Tries endpoints out: what each can do, as far as a dozen short calls show it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace

from harness.errors import (
    CallTimeout,
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
from harness.inference import (
    ChatRequest,
    Client,
    Completion,
    CountRequest,
    EmbedRequest,
    Endpoint,
    Message,
    ServerFacts,
    server_facts,
)
from harness.session.endpoint_check import (
    EndpointCheck,
    advice_on,
    most_at_once,
    way_to_unload,
)
from harness.session.models import open_models
from harness.session.settings import Settings
from harness.session.trust import api_key_of
from harness.trace import Tracer

_PROMPT = (Message("user", "Tell me a very long story about an owl."),)
_TOKENS, _MANY_TOKENS = 24, 256
_SCHEMA = {
    "type": "object",
    "properties": {"ready": {"type": "boolean"}},
    "required": ["ready"],
    "additionalProperties": False,
}
_AT_ONCE = 4
_REFUSED = {400, 404, 405, 422, 501}

Progress = Callable[[str], None]
"""Is told what is being done, in words."""


async def check_endpoints(
    settings: Settings,
    endpoints: Mapping[str, Endpoint],
    *,
    environment: Mapping[str, str],
    tags: Collection[str] = (),
    progress: Progress = lambda _doing: None,
) -> list[EndpointCheck]:
    """Tries one endpoint after the other, so that none is slowed by another.

    Args:
        settings: Holds the budget.
        endpoints: All there are.
        environment: Holds the API keys that endpoints name.
        tags: Which to try; all when empty.
        progress: Told whenever something is begun.

    Raises:
        InvalidInput: There is no such endpoint.
    """
    for tag in tags:
        if tag not in endpoints:
            raise InvalidInput(
                f"no endpoint is called '{tag}'; " + did_you_mean(tag, endpoints),
                code="endpoint.unknown",
            )
    chosen = [endpoints[tag] for tag in dict.fromkeys(tags or endpoints)]
    return [await _check(endpoint, settings, environment, progress) for endpoint in chosen]


async def _check(
    endpoint: Endpoint, settings: Settings, environment: Mapping[str, str], progress: Progress
) -> EndpointCheck:
    blank = EndpointCheck(
        tag=endpoint.tag,
        backend=endpoint.backend,
        model_id=endpoint.model_id,
        unload=way_to_unload(endpoint),
    )
    # What it does itself: not what another does for it, what it did before, or is said to do.
    alone = endpoint.model_copy(update={"fallback": (), "structured": None})
    try:
        async with open_models(
            {endpoint.tag: alone},
            settings=settings.model_copy(update={"cache": None}),
            environment=environment,
            required={endpoint.tag},
            tracer=Tracer(),
        ) as models:
            trial = _Trial(models.client, alone, lambda doing: progress(f"{endpoint.tag}: {doing}"))
            await trial.begin()
            known = _with_facts(blank, await _facts(alone, environment))
            # It was called, and answered, whatever its pages do.
            known = replace(known, reachable=True)
            check = await trial.chat(known) if trial.chats else replace(known, embeds=True)
            return replace(check, advice=(*trial.noticed, *advice_on(check, endpoint)))
    except HarnessError as error:
        return await _unusable(blank, error, endpoint, environment)


async def _unusable(
    blank: EndpointCheck, error: HarnessError, endpoint: Endpoint, environment: Mapping[str, str]
) -> EndpointCheck:
    """What can be said of an endpoint that does not answer."""
    said = str(error).removeprefix(f"{endpoint.tag}: ")
    match error:
        case EndpointUnreachable() | CallTimeout(limit="connect_timeout_s"):
            return replace(blank, error=Notice(code=error.code, message=said), reachable=False)
        case InferenceError():
            facts = await _facts(endpoint, environment)
            if facts.ready is False and facts.reachable:
                said += "; the server says that it is not ready"
            if isinstance(error, ModelNotFound) and facts.models:
                said += "; " + did_you_mean(endpoint.model_id, facts.models)
            why = Notice(code=error.code, message=said)
            return replace(_with_facts(blank, facts), error=why)
        case _:
            # What is written down is wrong: it was not even tried.
            return replace(blank, error=Notice(code=error.code, message=said))


async def _facts(endpoint: Endpoint, environment: Mapping[str, str]) -> ServerFacts:
    return await server_facts(endpoint, api_key=api_key_of(endpoint, environment))


def _with_facts(check: EndpointCheck, facts: ServerFacts) -> EndpointCheck:
    return replace(
        check,
        # Where there are no pages to ask for, a call was answered, if only with a refusal.
        reachable=facts.reachable is not False,
        models=facts.models,
        context_tokens=facts.context_tokens,
        slots=facts.slots,
        metrics=facts.metrics,
    )


# --- the calls -------------------------------------------------------------------------------


class _Trial:
    """The calls to one endpoint."""

    def __init__(self, shim: Client, endpoint: Endpoint, progress: Progress) -> None:
        self._shim = shim
        self._endpoint = endpoint
        self._progress = progress
        self._chat = ChatRequest(model=endpoint.tag, messages=_PROMPT, max_output_tokens=_TOKENS)
        self._embed = EmbedRequest(model=endpoint.tag, texts=("hello",))
        self.chats = not endpoint.embeddings
        """Whether it does, or is to; else all there is to see is that it embeds."""
        self.noticed: tuple[Notice, ...] = ()
        """What is to be said beside what is seen."""

    async def begin(self) -> None:
        """The call that decides whether the endpoint can be used. It may have to load the model."""
        self._progress(
            f"first call; the model may have to load, for up to {self._endpoint.timeout_s:g} s"
        )
        if not self.chats:
            await self._shim.embed(self._embed)
            return
        try:
            await self._shim.chat(self._chat)
        except ServerError as error:
            # So a server refuses whose model only embeds.
            if error.status not in _REFUSED or not await _can(self._shim.embed(self._embed)):
                raise
            self.chats = False
            said = str(error).removeprefix(f"{self._endpoint.tag}: ")
            self.noticed = (
                Notice(
                    code="endpoint.embeds-only", message=f"it embeds, and does not chat: {said}"
                ),
            )

    async def chat(self, check: EndpointCheck) -> EndpointCheck:
        """What else it does; a call that fails leaves its part out."""
        self._progress("what it tells, and what it does with a schema")
        # The same prompt again: of this one, some should come out of the prefix cache.
        if reply := await self._reply(self._chat):
            check = replace(
                check,
                timings=any(phase.source == "reported" for phase in reply.phases),
                cached_tokens=bool(reply.usage and reply.usage.cached_tokens is not None),
                ttft_ms=_ttft_ms(reply),
                tokens_per_s=_tokens_per_s(reply),
            )
        # What fails with them alone, fails for them: not every server says so.
        reply = await self._reply(replace(self._chat, top_logprobs=1))
        check = replace(
            check,
            logprobs=bool(reply and reply.logprobs),
            dropped=reply.dropped if reply else (),
        )
        if reply := await self._reply(replace(self._chat, reply_schema=_SCHEMA)):
            check = replace(check, structured=reply.structured)
        at_once = min(_AT_ONCE, self._endpoint.max_parallel or _AT_ONCE)
        if at_once > 1:
            self._progress(f"{at_once} calls at once")
            check = replace(check, at_once=at_once, side_by_side=await self._side_by_side(at_once))
        self._progress("token counts and embeddings")
        count = CountRequest(model=self._endpoint.tag, messages=_PROMPT)
        return replace(
            check,
            counts_tokens=await _can(self._shim.count_tokens(count)),
            embeds=await _can(self._shim.embed(self._embed)),
        )

    async def _side_by_side(self, calls: int) -> int | None:
        # What is long for most servers is over in a moment for a fast one.
        for tokens in (_TOKENS, _MANY_TOKENS):
            ask = replace(self._chat, max_output_tokens=tokens)
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._reply(ask)) for _ in range(calls)]
            most = most_at_once([reply for task in tasks if (reply := task.result())])
            if most is not None:
                return most
        return None

    async def _reply(self, ask: ChatRequest) -> Completion | None:
        try:
            return await self._shim.chat(ask)
        except InferenceError:
            return None


async def _can(asked: Awaitable[object]) -> bool | None:
    """Whether what was asked is offered; None where something else went wrong."""
    try:
        await asked
    except NotOffered:
        return False
    except ServerError as error:
        return False if error.status in {400, 422} else None
    except InferenceError:
        return None
    return True


# --- what they tell --------------------------------------------------------------------------


def _ttft_ms(call: Completion) -> float | None:
    if call.first_token_ns is None:
        return None
    return (call.first_token_ns - call.sent_ns) / 1e6


def _tokens_per_s(call: Completion) -> float | None:
    decode = [phase for phase in call.phases if phase.name == "decode"]
    # A derived one may hold the prefill, too.
    if call.usage is None or call.usage.output_tokens < 2 or not decode:
        return None
    if decode[0].source == "derived":
        return None
    # The first token is there when decoding begins.
    return (call.usage.output_tokens - 1) / ((decode[0].end_ns - decode[0].start_ns) / 1e9)
