"""Managed APIs by way of litellm, imported only when an endpoint names it."""

from __future__ import annotations

import asyncio
import inspect
import os
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    NotOffered,
    StreamCut,
)
from harness.inference.completion import Completion, Embeddings, Usage, inter_token_latency
from harness.inference.endpoint import Endpoint
from harness.inference.phases import call_phases
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest
from harness.inference.wire.errors import SHORTEN, error_from_reply
from harness.inference.wire.openai_reply import finish_reason
from harness.inference.wire.openai_request import wire_fields
from harness.inference.wire.profile import nested_schema
from harness.trace import Clock, monotonic


class LiteLLMBackend:
    """Any provider litellm knows; `model_id` carries its prefix, as in `anthropic/claude-…`.

    Args:
        endpoint: The model, and a base address if it is not the provider's own.
        api_key: The provider's key; litellm reads its usual variables when there is none.
        clock: The caller's clock.
    """

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, clock: Clock = monotonic
    ) -> None:
        self._endpoint = endpoint
        self._api_key = api_key
        self._clock = clock
        self._litellm: Any = None

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        if self._litellm is None:
            self._litellm = await asyncio.to_thread(_import_litellm)
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                return await self._chat(request)
        except TimeoutError as error:
            raise CallTimeout(
                f"no whole reply within timeout_s = {self._endpoint.timeout_s:g} s",
                endpoint=self._endpoint.tag,
            ) from error
        except self._litellm.openai.OpenAIError as error:
            raise self._translated(error) from error

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        raise NotOffered("is still to come", endpoint=request.model)

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; see `Backend.count_tokens`."""
        raise NotOffered("is still to come", endpoint=request.model)

    async def aclose(self) -> None:
        """Closes the connections that litellm keeps for this event loop."""
        if self._litellm is None:
            return
        # litellm itself closes them at the exit of the process, when their loop is long gone. It
        # ends the keys of a loop's clients with the loop's id.
        clients = self._litellm.in_memory_llm_clients_cache.cache_dict
        ours = f"-{id(asyncio.get_running_loop())}"
        for key in [key for key in clients if key.endswith(ours)]:
            closing = clients.pop(key).close()
            if inspect.isawaitable(closing):
                await closing

    async def _chat(self, request: ChatRequest) -> Completion:
        sent_ns = self._clock()
        stream = await self._litellm.acompletion(**self._arguments(request))
        chunks = []
        token_ns = []
        async for chunk in stream:
            if any(_has_token(choice.delta) for choice in chunk.choices):
                token_ns.append(self._clock())
            chunks.append(chunk)
        # Not the last chunk's: litellm writes "stop" there whether or not the provider said so.
        why_ended = stream.received_finish_reason
        whole = self._litellm.stream_chunk_builder(chunks)
        if whole is None or why_ended is None:
            raise StreamCut("the reply ended without a finish reason", endpoint=self._endpoint.tag)
        message = whole.choices[0].message
        details = whole.usage.prompt_tokens_details
        first_token_ns = token_ns[0] if token_ns else None
        return Completion(
            text=message.content or "",
            reasoning=getattr(message, "reasoning_content", None) or "",
            finish_reason=finish_reason(why_ended),
            usage=Usage(
                input_tokens=whole.usage.prompt_tokens,
                output_tokens=whole.usage.completion_tokens,
                cached_tokens=details.cached_tokens if details else None,
            ),
            sent_ns=sent_ns,
            first_token_ns=first_token_ns,
            phases=call_phases(
                sent_ns=sent_ns,
                first_token_ns=first_token_ns,
                done_ns=token_ns[-1] if token_ns else self._clock(),
            ),
            model_id=whole.model or self._endpoint.model_id,
            itl=inter_token_latency(token_ns),
            cost_usd=self._cost_usd(whole),
        )

    def _cost_usd(self, whole: Any) -> float | None:  # noqa: ANN401 - litellm's own type
        """By litellm's price list, the one it was published with; None for what is not on it."""
        try:
            cost: float = self._litellm.completion_cost(whole, model=self._endpoint.model_id)
        except Exception:  # noqa: BLE001 - it raises a bare Exception for an unknown model
            return None
        return cost

    def _arguments(self, request: ChatRequest) -> dict[str, object]:
        return {
            **wire_fields(request, self._endpoint.model_id),
            **(nested_schema(request.reply_schema) if request.reply_schema is not None else {}),
            "api_base": self._endpoint.url,
            "api_key": self._api_key,
            # Retrying is ours: a hidden second attempt would be timed as part of the first.
            "max_retries": 0,
            # Some providers refuse sampling fields; litellm knows which and leaves them out.
            "drop_params": True,
        }

    def _translated(self, error: Exception) -> InferenceError:
        known, tag = self._litellm.exceptions, self._endpoint.tag
        if isinstance(error, known.MidStreamFallbackError):
            return StreamCut(f"the reply was cut off: {error}", endpoint=tag)
        if isinstance(error, known.Timeout):
            return CallTimeout(str(error), endpoint=tag)
        # litellm guesses a class from words in the message; what the server sent is surer.
        # Before it has sent anything, it reports that it has no key as a failure of the server.
        status = 401 if "Missing credentials" in str(error) else getattr(error, "status_code", 500)
        refusal = self._refusal(status, str(error).encode(), {})
        for cause in _causes(error):
            if isinstance(cause, httpx.HTTPStatusError):
                refusal = self._refusal(
                    cause.response.status_code, _body(cause), cause.response.headers
                )
                break
            if isinstance(cause, httpx.TransportError | known.APIConnectionError):
                return EndpointUnreachable(
                    f"nothing answers at {self._endpoint.url or 'the provider'} "
                    f"({cause or type(cause).__name__}); is it running, and is the endpoint's url "
                    "right?",
                    endpoint=tag,
                )
        # It knows more ways to say this than we do.
        if isinstance(error, known.ContextWindowExceededError) and not isinstance(
            refusal, ContextOverflow
        ):
            return ContextOverflow(f"{error}. {SHORTEN}", endpoint=tag)
        return refusal

    def _refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> InferenceError:
        return error_from_reply(
            status,
            body,
            headers=headers,
            endpoint=self._endpoint.tag,
            model_id=self._endpoint.model_id,
        )


def _body(error: httpx.HTTPStatusError) -> bytes:
    try:
        return error.response.content
    except httpx.ResponseNotRead:
        return str(error).encode()


def _has_token(delta: Any) -> bool:  # noqa: ANN401 - litellm's own types are incomplete
    return bool(delta.content or getattr(delta, "reasoning_content", None))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _import_litellm() -> Any:  # noqa: ANN401 - litellm's own types are incomplete
    # Importing takes 1.4 s. Unless told otherwise it fetches a price list from the network, and
    # puts what a .env file in any directory above it says into this process's environment.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_MODE", "PRODUCTION")
    import litellm  # noqa: PLC0415

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    # Once its clients have been closed it opens aiohttp's sessions again and keeps no hold of them,
    # so that they complain when the process ends. httpx's do not.
    litellm.disable_aiohttp_transport = True
    # What it does on every call, and nobody here can change.
    warnings.filterwarnings(
        "ignore",
        message=r"Accessing the 'model_(computed_)?fields' attribute on the instance",
        category=DeprecationWarning,
        module=r"litellm\.",
    )
    warnings.filterwarnings(
        "ignore", message=r"Item '\w+' on TypedDict class 'ChatCompletion", category=UserWarning
    )
    return litellm
