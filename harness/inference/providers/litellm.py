"""Managed APIs through litellm, which is imported only if an endpoint uses it."""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import httpx

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    InferenceError,
    NotOffered,
    ReplyInvalid,
    ServerError,
)
from harness.inference.completion import Completion, Embeddings
from harness.inference.endpoint import Endpoint
from harness.inference.providers.error_replies import context_overflow
from harness.inference.providers.http import (
    Access,
    HttpConnection,
    base_of,
    bearer,
    causes,
    not_connected,
    redirected,
)
from harness.inference.providers.litellm_http import HttpCall, http_call, make_careful
from harness.inference.providers.openai_wire import (
    openai_schema,
    wire_embeddings,
    wire_fields,
    wire_message,
)
from harness.inference.providers.provider import Provider
from harness.inference.providers.wire_reply import WireReply, first_choices
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress, StopTexts, as_count
from harness.inference.request import ChatRequest, EmbedRequest, Message
from harness.inference.time_limits import Arrived, time_limits, timed_out

# Claude's API caches the marked parts of a prompt; other providers that cache need no marks.
_CACHES_WHAT_IS_MARKED = "anthropic/"
_NO_KEY = re.compile(r"missing (?:credentials|.{0,30}api key)", re.IGNORECASE)

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
"""litellm's name of a managed API → its hosts, and the variables that usually hold its key. `*`
stands for a part of a host without dots."""

APIS_WITH_ONE_KEY = frozenset(
    {name for name, (_, variables) in MANAGED_APIS.items() if variables}
    | {"custom_openai", "hosted_vllm", "litellm_proxy", "lm_studio", "ollama", "openai_like"}
)
"""The APIs that get the key given to litellm, and no credentials that litellm finds itself."""


class LiteLLMBackend:
    """Any API that litellm knows; `model_id` carries its prefix, as in `anthropic/claude-…`.

    A server that speaks OpenAI's protocol is better reached with `backend = "openai"`: what it
    reports of its timings and its tokens is not translated on the way.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        self._endpoint = endpoint
        self._api_key = bearer(access.api_key, endpoint=endpoint.tag)
        self._connection = HttpConnection(endpoint, api_key=access.api_key)
        self._clock = access.clock
        self._check_address = access.check_address
        self._litellm: Any = None
        # For a provider without a place for a schema, the prompt carries the schema, and the caller
        # checks the reply. A provider without `stream_options` counts tokens anyway, or never.
        self._refused = RefusedFields(
            endpoint.drop, droppable=("response_format", "stream_options")
        )

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        endpoint = self._endpoint
        source = endpoint.source
        requested = wire_fields(request, endpoint.model_id, stream=endpoint.stream, source=source)
        if endpoint.model_id.startswith(_CACHES_WHAT_IS_MARKED):
            requested["messages"] = [_with_cache_marks(m, source) for m in request.conversation]
        if request.reply_schema is not None:
            requested |= openai_schema(request.reply_schema)
        if request.tool_choice == "auto":
            requested.pop("tool_choice", None)  # some providers have no such field
        async with self._in_time(request) as arrived:
            attempt = 1
            while True:
                fields, dropped = self._refused.without(requested)
                progress = ReplyInProgress(request, clock=self._clock, arrived=arrived)
                progress.stops = StopTexts(request.stop if "stop" in dropped else ())
                try:
                    completion = await self._chat(progress, fields)
                    attempts = completion.attempts + attempt - 1
                    return replace(completion, dropped=dropped, attempts=attempts, source=source)
                except ReplyInvalid as error:
                    return progress.refused_calls(error, model_id=endpoint.model_id)
                except ServerError as error:
                    if progress.was_heard or not self._refused.learn(error, fields):
                        raise
                    attempt += 1

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        fields = {"model": self._endpoint.model_id, "input": list(request.texts)}
        async with self._in_time(request), self._calling():
            response = await self._litellm.aembedding(**fields, **self._connection_arguments())
        reply = response.model_dump()
        return wire_embeddings([reply], endpoint=self._endpoint, count=len(request.texts))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.client.aclose()

    async def _chat(self, progress: ReplyInProgress, fields: Mapping[str, object]) -> Completion:
        """One attempt, with the fields that the provider has not refused."""
        reply = WireReply(progress, model_id=self._endpoint.model_id)
        async with self._calling() as call:
            arguments = {**fields, **self._connection_arguments()}
            if extra_body := progress.request.extra_body:
                arguments["extra_body"] = extra_body
            response = await self._litellm.acompletion(**arguments)
            with_usage = await self._read(response, reply)
        if call.tells_end:
            # The provider's own word. For other formats, litellm's translation stands.
            reply.finish_word = call.finish_word
        cost_usd, saved_usd = self._costs(with_usage) if reply.usage else (None, None)
        return replace(
            reply.completion(),
            attempts=1 + call.exchange.requests - call.sent,
            cost_usd=cost_usd,
            cache_saved_usd=saved_usd,
        )

    async def _read(self, response: Any, reply: WireReply) -> Any:  # noqa: ANN401 - litellm's own types
        """Reads what litellm returned; returns the part of it that has the usage."""
        if not self._endpoint.stream:
            document = _without_estimates(response.model_dump())
            reply.add(document, first_choices(document))
            return response
        piece_with_usage = None
        async for piece in response:
            chunk = _without_estimates(piece.model_dump())
            reply.add(chunk, first_choices(chunk))
            if chunk["usage"]:
                piece_with_usage = piece
        # The last piece is litellm's own: it always says "stop", and estimates missing counts.
        reply.finish_word = response.received_finish_reason
        if not any(getattr(piece, "usage", None) for piece in response.chunks):
            reply.usage = None
        return piece_with_usage

    def _costs(self, reply: Any) -> tuple[float | None, float | None]:  # noqa: ANN401 - as above
        """What a call cost, and what a cache of prompts saved, by litellm's price list, in USD.

        What was saved is negative if the call paid more to write the cache than it saved.
        """
        model = self._endpoint.model_id
        price = self._litellm.cost_per_token
        cost_usd = saved_usd = None
        # litellm raises a bare Exception for a model that is not on its list. `completion_cost` may
        # know the cost all the same, if the provider reports it, and then only `price` raises.
        with suppress(Exception):
            cost_usd = self._litellm.completion_cost(reply, model=model)
            details = reply.usage.prompt_tokens_details
            if details and (
                details.cached_tokens or getattr(details, "cache_creation_tokens", None)
            ):
                uncached_usd, _ = price(model=model, prompt_tokens=reply.usage.prompt_tokens)
                prompt_usd, _ = price(model=model, usage_object=reply.usage)
                saved_usd = float(uncached_usd - prompt_usd)
        return cost_usd, saved_usd

    def _translated(self, error: Exception) -> InferenceError:  # noqa: PLR0911 - one for each kind
        """An error of litellm as one of this package."""
        kinds = self._litellm.exceptions
        if isinstance(error, kinds.MidStreamFallbackError):
            return self._connection.cut(str(error))
        # litellm guesses a class by the message; the provider's reply, among the causes, is surer.
        for cause in causes(error):
            match cause:
                case httpx.HTTPStatusError():
                    return self._refusal(error, cause.response)
                # The others are of providers that have a client of their own.
                case httpx.ConnectTimeout():
                    return timed_out("connect_timeout_s", self._endpoint)
                case httpx.ConnectError() | httpx.ProxyError():
                    return not_connected(cause, self._endpoint.url or "the provider")
                case httpx.RemoteProtocolError() | httpx.ReadError() | httpx.WriteError():
                    reason = f"the connection broke before it began: {cause}"
                    return self._connection.cut(reason, has_begun=False)
        # Without such a cause, litellm raised the error by itself.
        if "Unmapped LLM provider for this endpoint" in str(error):
            return NotOffered(
                f"litellm knows no embeddings of this provider ('{self._endpoint.model_id}')"
            )
        if isinstance(error, kinds.Timeout):
            return CallTimeout(str(error))
        # litellm reports a missing key, which it notices before it sends anything, as a failure of
        # the server or of the connection. Any reply that it could not read is the latter too.
        lacks_key = _NO_KEY.search(str(error)) is not None
        if isinstance(error, kinds.APIConnectionError) and not lacks_key:
            return ServerError(f"litellm could not read the reply: {error}")
        status = 401 if lacks_key else getattr(error, "status_code", 500)
        return self._refusal(error, httpx.Response(status, text=str(error)))

    def _refusal(self, error: Exception, response: httpx.Response) -> InferenceError:
        """The error that a provider's refusal means; `error` is what litellm made of it."""
        if response.has_redirect_location:
            return redirected(response.status_code, response.headers["location"])
        refusal = self._connection.refusal(
            response.content, status=response.status_code, headers=response.headers
        )
        # litellm recognizes more wordings of an overflow than `error_replies` does.
        is_overflow = isinstance(error, self._litellm.exceptions.ContextWindowExceededError)
        if is_overflow and not isinstance(refusal, ContextOverflow):
            return context_overflow(str(error), endpoint=self._endpoint.tag)
        return refusal

    @asynccontextmanager
    async def _in_time(self, request: ChatRequest | EmbedRequest) -> AsyncIterator[Arrived]:
        """Limits the time of a call, which includes importing litellm (seconds, the first time)."""
        remaining_s = request.timeout_s or self._endpoint.timeout_s
        if self._litellm is None:
            clock = asyncio.get_running_loop().time
            import_start_s = clock()
            # Without the limit of the first token, since nothing is sent yet.
            importing = self._endpoint.model_copy(update={"first_token_timeout_s": None})
            async with time_limits(importing, timeout_s=remaining_s):
                self._litellm = await asyncio.to_thread(import_litellm)
            remaining_s = max(0.001, remaining_s - (clock() - import_start_s))
        async with time_limits(self._endpoint, timeout_s=remaining_s) as arrived:
            yield arrived

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[HttpCall]:
        """Around a call of litellm's: its requests take our way, and its errors become ours."""
        try:
            async with http_call(self._connection, check_address=self._check_address) as call:
                yield call
        except self._litellm.openai.OpenAIError as error:
            raise self._translated(error) from error

    def _connection_arguments(self) -> dict[str, object]:
        endpoint = self._endpoint
        return {
            "api_base": endpoint.url and base_of(endpoint.url),
            "api_key": self._api_key,
            # The client of this package retries: a hidden attempt would be timed with the first.
            "max_retries": 0,
            **({"extra_headers": endpoint.headers} if endpoint.headers else {}),
            # Longer than the limit in `_in_time`. Without any, litellm sets a limit of its own.
            "timeout": httpx.Timeout(2 * endpoint.timeout_s, connect=endpoint.connect_timeout_s),
        }


def import_litellm() -> Any:  # noqa: ANN401 - litellm's own types are incomplete
    """Imports litellm so that it stays off the network, prints nothing and reads no `.env` file."""
    # Without these variables, litellm fetches price lists and header lists from the network, and
    # puts the variables of a .env file in any directory above into this process's environment.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    import litellm  # noqa: PLC0415 - takes 1.4 s the first time

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # A hundred equal pieces in a row may be a line of a table, not only a model that is stuck.
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = 1_000_000_000  # type: ignore[attr-defined]
    # aiohttp's sessions complain when the process ends, and `make_careful` changes only httpx.
    litellm.disable_aiohttp_transport = True
    make_careful(litellm)
    # litellm causes these warnings on every call, and has no setting against them.
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


def _with_cache_marks(message: Message, source: str) -> dict[str, object]:
    """A message in parts that end at its `shared_chars`; all but the last are to be cached."""
    bounds = pairwise([0, *message.shared_chars, len(message.content)])
    texts = [message.content[start:end] for start, end in bounds if start < end]
    cached_parts = [
        {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}
        for text in texts[:-1]
    ]
    turn = wire_message(message, source)
    if cached_parts:
        images = turn["content"][:-1] if isinstance(turn["content"], list) else []
        turn["content"] = [*images, *cached_parts, {"type": "text", "text": texts[-1]}]
    return turn


def _without_estimates(document: dict[str, Any]) -> dict[str, Any]:
    """A part of a reply without the counts that litellm itself made up."""
    usage = document.get("usage") or {}
    # litellm fills in zeros where the provider did not count.
    is_counted = any(as_count(usage.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    details = usage.get("completion_tokens_details") or {}
    # Beside a count of text tokens, litellm counted reasoning by another model's tokenizer.
    if details.get("text_tokens") is not None:
        usage = {**usage, "completion_tokens_details": None}
    return {**document, "usage": usage if is_counted else None}


PROVIDER = Provider(
    title="litellm",
    connect=LiteLLMBackend,
    finds_keys=True,
    strict_schemas=True,
    refuses_tools=True,
)
