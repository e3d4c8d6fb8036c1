"""Managed APIs through litellm, which is imported only if an endpoint uses it."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, get_args

import httpx
from pydantic import ValidationError

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    NotOffered,
    ServerError,
    StreamCut,
)
from harness.inference.completion import Completion, Embeddings
from harness.inference.endpoint import Endpoint, SamplingField
from harness.inference.providers.error_replies import context_overflow, error_from_reply
from harness.inference.providers.http import BodyTooLong, base_of, bearer, too_large
from harness.inference.providers.litellm_http import HttpCall, http_call, make_careful
from harness.inference.providers.openai_wire import (
    Chunk,
    WireEmbeddings,
    WireReply,
    WireUsage,
    nested_schema,
    wire_embeddings,
    wire_fields,
    wire_message,
)
from harness.inference.providers.provider import Access, Provider
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress
from harness.inference.request import ChatRequest, EmbedRequest, Message
from harness.inference.time_limits import TimeLimits, timed_out
from harness.trace import Clock, monotonic

MANAGED_APIS = {
    "anthropic": ("api.anthropic.com", "ANTHROPIC_API_KEY"),
    "azure": ("", ""),  # where AZURE_API_BASE says
    "bedrock": ("bedrock-runtime.*.amazonaws.com", ""),
    "cerebras": ("api.cerebras.ai", "CEREBRAS_API_KEY"),
    "cohere": ("api.cohere.com api.cohere.ai", "COHERE_API_KEY CO_API_KEY"),
    "deepseek": ("api.deepseek.com", "DEEPSEEK_API_KEY"),
    "fireworks_ai": ("api.fireworks.ai", "FIREWORKS_API_KEY FIREWORKS_AI_API_KEY"),
    "gemini": ("generativelanguage.googleapis.com", "GEMINI_API_KEY GOOGLE_API_KEY"),
    "groq": ("api.groq.com", "GROQ_API_KEY"),
    "huggingface": ("router.huggingface.co", "HF_TOKEN HUGGINGFACE_API_KEY"),
    "mistral": ("api.mistral.ai", "MISTRAL_API_KEY"),
    "nvidia_nim": ("integrate.api.nvidia.com", "NVIDIA_API_KEY NVIDIA_NIM_API_KEY"),
    "openai": ("api.openai.com", "OPENAI_API_KEY"),
    "openrouter": ("openrouter.ai", "OPENROUTER_API_KEY"),
    "perplexity": ("api.perplexity.ai", "PERPLEXITY_API_KEY PERPLEXITYAI_API_KEY"),
    "runpod": ("api.runpod.ai", "RUNPOD_API_KEY"),
    "together_ai": ("api.together.xyz api.together.ai", "TOGETHER_API_KEY TOGETHERAI_API_KEY"),
    "vertex_ai": ("aiplatform.googleapis.com *-aiplatform.googleapis.com", ""),
    "xai": ("api.x.ai", "XAI_API_KEY"),
}
"""By litellm's names: the hosts of managed APIs, and the variables that usually hold their keys.
`*` stands for a part of a host without dots."""

APIS_WITH_ONE_KEY = frozenset(
    {name for name, (_, variables) in MANAGED_APIS.items() if variables}
    | {"custom_openai", "hosted_vllm", "litellm_proxy", "lm_studio", "ollama", "openai_like"}
)
"""The APIs that get the key given to litellm, and no credentials that litellm finds itself."""


class LiteLLMBackend:
    """Any API that litellm knows; `model_id` carries its prefix, as in `anthropic/claude-…`.

    A server that speaks OpenAI's protocol is better reached with `backend = "openai"`: what it
    reports of its timings and its tokens is not translated on the way.

    Args:
        endpoint: The model, and a base address if it is not the provider's own.
        api_key: The provider's key; litellm reads its usual variables when there is none.
        clock: The caller's clock.
        check_address: Told where a request is about to go; raises `NotTrusted` to prevent it.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None = None,
        clock: Clock = monotonic,
        check_address: Callable[[str], None] = lambda _url: None,
    ) -> None:
        self._endpoint = endpoint
        self._api_key = bearer(api_key, endpoint=endpoint.tag)
        self._clock = clock
        self._check_address = check_address
        self._litellm: Any = None
        # Some providers have no place for a schema: the prompt then carries it, and the caller
        # checks the reply. Some count tokens unasked, or not at all.
        self._refused = RefusedFields(
            endpoint.drop,
            droppable=(*get_args(SamplingField), "response_format", "stream_options"),
        )

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        wanted = wire_fields(request, self._endpoint.model_id, stream=self._endpoint.stream)
        if self._endpoint.model_id.startswith(_TOLD_TO_CACHE):
            wanted["messages"] = [_with_cache_marks(message) for message in request.conversation]
        if request.reply_schema is not None:
            wanted |= nested_schema(request.reply_schema)
        if request.tool_choice == "auto":
            wanted.pop("tool_choice", None)  # some providers have no such field
        async with self._in_time(request) as limits:
            attempt = 1
            while True:
                fields, dropped = self._refused.without(wanted)
                try:
                    completion = await self._chat(request, fields, dropped, limits)
                    return replace(completion, attempts=attempt)
                except ServerError as error:
                    if not self._refused.learn(error, fields):
                        raise
                    attempt += 1

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        fields = {"model": self._endpoint.model_id, "input": list(request.texts)}
        async with self._in_time(request), self._http_call():
            try:
                said = await self._litellm.aembedding(**fields, **self._means())
            except self._litellm.openai.OpenAIError as error:
                raise not_embedded(error, self._litellm, endpoint=self._endpoint) from error
        try:
            reply = WireEmbeddings.model_validate(said.model_dump())
        except ValidationError as error:
            raise ServerError(
                f"the provider was asked for embeddings and sent something else: {error}",
                endpoint=self._endpoint.tag,
            ) from error
        return wire_embeddings([reply], endpoint=self._endpoint, count=len(request.texts))

    async def aclose(self) -> None:
        """Closes the connections, once no other backend of this kind uses them."""
        if self._litellm is not None:
            await self._litellm.aclient_session.leave(self)

    async def _chat(
        self,
        request: ChatRequest,
        fields: Mapping[str, object],
        dropped: tuple[str, ...],
        limits: TimeLimits,
    ) -> Completion:
        progress = ReplyInProgress(request, clock=self._clock, arrived=limits.token_arrived)
        reply = WireReply(progress, endpoint=self._endpoint)
        try:
            async with self._http_call() as call:
                said = await self._litellm.acompletion(**fields, **self._means())
                counted = await self._read(said, reply)
        except self._litellm.openai.OpenAIError as error:
            raise error_from_litellm(error, self._litellm, endpoint=self._endpoint) from error
        reply.finish_word = call.finish_word.or_else(reply.finish_word)
        cost_usd = self._cost_usd(counted) if reply.usage else None
        completion = reply.completion(dropped=dropped, cost_usd=cost_usd)
        if cost_usd is None:
            return completion
        return replace(completion, cache_saved_usd=self._cache_saved_usd(counted.usage))

    async def _read(self, said: Any, reply: WireReply) -> Any:  # noqa: ANN401 - litellm's own types
        """Reads what litellm returned; returns the part of it that has the usage."""
        if not self._endpoint.stream:
            reply.add_whole(self._chunk(said))
            return said
        counted = None
        async for piece in said:
            chunk = self._chunk(piece)
            reply.add(chunk)
            counted = piece if chunk.usage else counted
        # The last piece says "stop", whether or not the provider did; and where the provider did
        # not count tokens, it has litellm's estimate.
        reply.finish_word = said.received_finish_reason
        if not any(getattr(piece, "usage", None) for piece in said.chunks):
            reply.usage = None
        return counted

    def _chunk(self, piece: Any) -> Chunk:  # noqa: ANN401 - litellm's own type
        said = piece.model_dump()
        try:
            chunk = Chunk.model_validate(said)
        except ValidationError as error:
            raise ServerError(
                f"litellm returned something that is not part of a reply: {error}",
                endpoint=self._endpoint.tag,
            ) from error
        usage = chunk.usage
        if usage is None:
            return chunk
        is_counted = usage.prompt_tokens + usage.completion_tokens > 0
        told = _as_told(usage, said["usage"]) if is_counted else None
        return chunk.model_copy(update={"usage": told})

    def _cost_usd(self, counted: Any) -> float | None:  # noqa: ANN401 - litellm's own type
        """By the price list that litellm was published with; None for a model that is not on it."""
        try:
            cost: float = self._litellm.completion_cost(counted, model=self._endpoint.model_id)
        except Exception:  # noqa: BLE001 - it raises a bare Exception for an unknown model
            return None
        return cost

    def _cache_saved_usd(self, usage: Any) -> float | None:  # noqa: ANN401 - litellm's own type
        """By the same list: the prompt's price without a cache, less its price with it."""
        told = usage.prompt_tokens_details
        if not (told and (told.cached_tokens or getattr(told, "cache_creation_tokens", None))):
            return None
        model, price = self._endpoint.model_id, self._litellm.cost_per_token
        try:
            full, _ = price(model=model, prompt_tokens=usage.prompt_tokens)
            paid, _ = price(model=model, usage_object=usage)
        except Exception:  # noqa: BLE001 - as above; the cost may be the provider's own word
            return None
        return float(full - paid)

    @asynccontextmanager
    async def _in_time(self, request: ChatRequest | EmbedRequest) -> AsyncIterator[TimeLimits]:
        """Limits the time of a call, which includes importing litellm (seconds, the first time)."""
        left_s = request.timeout_s or self._endpoint.timeout_s
        if self._litellm is None:
            clock = asyncio.get_running_loop().time
            began_s = clock()
            # Only the limit of the whole call applies: nothing is sent yet.
            importing = self._endpoint.model_copy(update={"first_token_timeout_s": None})
            async with TimeLimits(importing, timeout_s=left_s):
                self._litellm = await asyncio.to_thread(import_litellm)
            left_s = max(0.001, left_s - (clock() - began_s))
        async with TimeLimits(self._endpoint, timeout_s=left_s) as limits:
            yield limits

    def _http_call(self) -> AbstractAsyncContextManager[HttpCall]:
        self._litellm.aclient_session.join(self)
        return http_call(self._endpoint, check_address=self._check_address)

    def _means(self) -> dict[str, object]:
        """How litellm should send the request."""
        endpoint = self._endpoint
        return {
            "api_base": endpoint.url and base_of(endpoint.url),
            "api_key": self._api_key,
            # Retrying is ours: a hidden second attempt would be timed as part of the first.
            "max_retries": 0,
            # Never over before ours. Without a limit litellm has one of its own.
            "timeout": httpx.Timeout(2 * endpoint.timeout_s, connect=endpoint.connect_timeout_s),
        }


def import_litellm() -> Any:  # noqa: ANN401 - litellm's own types are incomplete
    """Imports litellm so that it stays off the network, prints nothing and reads no `.env` file.

    Takes 1.4 s the first time.
    """
    # Unless told otherwise it fetches price lists and header lists from the network, and puts what
    # a .env file in any directory above it says into this process's environment.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    import litellm  # noqa: PLC0415

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # A hundred equal pieces in a row may be a line of a table, not only a model that is stuck.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = 1_000_000_000  # type: ignore[attr-defined]
    # aiohttp's sessions complain when the process ends, and httpx is what we make careful.
    litellm.disable_aiohttp_transport = True
    make_careful(litellm)
    # It does this on every call, and no setting changes it.
    warnings.filterwarnings(
        "ignore",
        message=r"Accessing the 'model_(computed_)?fields' attribute on the instance",
        category=DeprecationWarning,
        module=r"litellm\.",
    )
    warnings.filterwarnings(
        "ignore",
        message=r"Items? '.+' on TypedDict class '\w+' (is|are) using the `ReadOnly` qualifier",
        category=UserWarning,
    )
    return litellm


_TOLD_TO_CACHE = "anthropic/"
"""Claude's API caches what is marked; other providers that cache need no marks."""


def _with_cache_marks(message: Message) -> dict[str, object]:
    """The message in parts; each but the last ends where others that share it may differ."""
    bounds = pairwise([0, *message.shared_chars, len(message.content)])
    parts = [message.content[start:end] for start, end in bounds if start < end]
    marked = [
        {"type": "text", "text": part, "cache_control": {"type": "ephemeral"}}
        for part in parts[:-1]
    ]
    said = wire_message(message)
    if marked:
        images = said["content"][:-1] if isinstance(said["content"], list) else []
        said["content"] = [*images, *marked, {"type": "text", "text": parts[-1]}]
    return said


def _as_told(usage: WireUsage, said: Mapping[str, Any]) -> WireUsage:
    """Drops the count of reasoning tokens where litellm counted them, not the provider.

    For Anthropic and some others it counts with another model's tokenizer, and then adds a count of
    text tokens.
    """
    details = said.get("completion_tokens_details") or {}
    if details.get("text_tokens") is None:
        return usage
    return usage.model_copy(update={"completion_tokens_details": None})


_NO_KEY = re.compile(r"missing (?:credentials|.{0,30}api key)", re.IGNORECASE)


def error_from_litellm(
    error: Exception,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    """The error that one of litellm's means.

    litellm guesses a class from words in the message. The provider's own reply, among the error's
    causes, is surer.
    """
    too_long = next((one for one in _causes(error) if isinstance(one, BodyTooLong)), None)
    if too_long or isinstance(error, litellm.exceptions.MidStreamFallbackError):
        cut = StreamCut(f"the reply was cut off: {error}", endpoint=endpoint.tag)
        return too_large(too_long, endpoint=endpoint) if too_long else cut
    for cause in _causes(error):
        match cause:
            case httpx.HTTPStatusError():
                return _refusal(error, cause.response, litellm, endpoint=endpoint)
            case httpx.ConnectTimeout():
                return timed_out("connect_timeout_s", endpoint)
            case httpx.RemoteProtocolError() | httpx.ReadError() | httpx.WriteError():
                return StreamCut(
                    "the reply was cut off: the connection broke before it began: "
                    f"{str(cause) or type(cause).__name__}",
                    endpoint=endpoint.tag,
                )
            case httpx.ConnectError() | httpx.ProxyError():
                return EndpointUnreachable(
                    f"nothing answers at {endpoint.url or 'the provider'} ({cause}); is it "
                    "running, and is the endpoint's url right?",
                    endpoint=endpoint.tag,
                )
    return _of_its_own(error, litellm, endpoint=endpoint)


def not_embedded(
    error: Exception,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    """The error that one of litellm's means when a provider was asked to embed."""
    if "Unmapped LLM provider for this endpoint" in str(error):
        return NotOffered(
            f"litellm knows no embeddings of this provider ('{endpoint.model_id}')",
            endpoint=endpoint.tag,
        )
    return error_from_litellm(error, litellm, endpoint=endpoint)


def _of_its_own(
    error: Exception,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    """The meaning of an error that litellm raised by itself."""
    if isinstance(error, litellm.exceptions.Timeout):
        return CallTimeout(str(error), endpoint=endpoint.tag)
    # Before it has sent anything, it reports that it has no key as a failure of the server or of
    # the connection; and as the latter whatever it could not read.
    no_key = _NO_KEY.search(str(error))
    if isinstance(error, litellm.exceptions.APIConnectionError) and not no_key:
        return ServerError(f"litellm could not read the reply: {error}", endpoint=endpoint.tag)
    status = 401 if no_key else getattr(error, "status_code", 500)
    return _refusal(error, httpx.Response(status, text=str(error)), litellm, endpoint=endpoint)


def _refusal(
    error: Exception,
    response: httpx.Response,
    litellm: Any,  # noqa: ANN401 - the module
    *,
    endpoint: Endpoint,
) -> InferenceError:
    if response.has_redirect_location:
        return ServerError(
            f"HTTP {response.status_code}: it redirects to {response.headers['location']}; is the "
            "endpoint's url right?",
            endpoint=endpoint.tag,
            status=response.status_code,
        )
    try:
        body = response.content
    except httpx.ResponseNotRead:
        body = str(error).encode()
    refusal = error_from_reply(
        response.status_code,
        body,
        headers=response.headers,
        endpoint=endpoint.tag,
        model_id=endpoint.model_id,
    )
    # litellm knows more ways to say this than we do.
    if isinstance(error, litellm.exceptions.ContextWindowExceededError) and not isinstance(
        refusal, ContextOverflow
    ):
        return context_overflow(str(error), endpoint=endpoint.tag)
    return refusal


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _connect(endpoint: Endpoint, access: Access) -> LiteLLMBackend:
    return LiteLLMBackend(
        endpoint,
        api_key=access.api_key,
        clock=access.clock,
        check_address=access.check_address,
    )


PROVIDER = Provider(
    title="litellm", connect=_connect, is_asked=False, finds_keys=True, refuses_tools=True
)
