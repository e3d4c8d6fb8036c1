"""Managed APIs by way of litellm, imported only when an endpoint names it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from harness.errors import (
    AuthenticationFailed,
    CallTimeout,
    ContextOverflow,
    EndpointUnreachable,
    InferenceError,
    ModelNotFound,
    Overloaded,
    RateLimited,
    ServerError,
    StreamCut,
)
from harness.inference.completion import Completion, Usage
from harness.inference.endpoint import Endpoint
from harness.inference.phases import call_phases
from harness.inference.request import ChatRequest
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
        except self._litellm.exceptions.APIError as error:
            raise self._translated(error) from error
        except self._litellm.openai.OpenAIError as error:
            raise self._translated(error) from error

    async def aclose(self) -> None:
        """Nothing to release: litellm keeps its own connections."""

    async def _chat(self, request: ChatRequest) -> Completion:
        sent_ns = self._clock()
        stream = await self._litellm.acompletion(**self._arguments(request))
        chunks = []
        first_token_ns = None
        async for chunk in stream:
            if first_token_ns is None and any(choice.delta.content for choice in chunk.choices):
                first_token_ns = self._clock()
            chunks.append(chunk)
        done_ns = self._clock()
        whole = self._litellm.stream_chunk_builder(chunks)
        if whole is None or whole.choices[0].finish_reason is None:
            raise StreamCut("the reply ended without a finish reason", endpoint=self._endpoint.tag)
        choice = whole.choices[0]
        details = whole.usage.prompt_tokens_details
        return Completion(
            text=choice.message.content or "",
            reasoning=getattr(choice.message, "reasoning_content", None) or "",
            finish_reason="length" if choice.finish_reason == "length" else "stop",
            usage=Usage(
                input_tokens=whole.usage.prompt_tokens,
                output_tokens=whole.usage.completion_tokens,
                cached_tokens=details.cached_tokens if details else None,
            ),
            sent_ns=sent_ns,
            first_token_ns=first_token_ns,
            phases=call_phases(sent_ns=sent_ns, first_token_ns=first_token_ns, done_ns=done_ns),
            model_id=whole.model or self._endpoint.model_id,
        )

    def _arguments(self, request: ChatRequest) -> dict[str, object]:
        arguments: dict[str, object] = {
            "model": self._endpoint.model_id,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "max_tokens": request.max_output_tokens,
            "temperature": request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            "api_base": self._endpoint.url,
            "api_key": self._api_key,
            # Retrying is ours: a hidden second attempt would be timed as part of the first.
            "max_retries": 0,
            # Some providers refuse sampling fields; litellm knows which and leaves them out.
            "drop_params": True,
        }
        if request.frequency_penalty:
            arguments["frequency_penalty"] = request.frequency_penalty
        if request.seed is not None:
            arguments["seed"] = request.seed
        if request.stop:
            arguments["stop"] = list(request.stop)
        if request.reply_schema is not None:
            arguments["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": request.reply_schema, "strict": True},
            }
        return arguments

    def _translated(self, error: Exception) -> InferenceError:
        known = self._litellm.exceptions
        # The most specific class first: most of these derive from one another.
        for theirs, ours in (
            (known.ContextWindowExceededError, ContextOverflow),
            (known.AuthenticationError, AuthenticationFailed),
            (known.PermissionDeniedError, AuthenticationFailed),
            (known.NotFoundError, ModelNotFound),
            (known.RateLimitError, RateLimited),
            (known.ServiceUnavailableError, Overloaded),
            (known.Timeout, CallTimeout),
            (known.APIConnectionError, EndpointUnreachable),
        ):
            if isinstance(error, theirs):
                return ours(str(error), endpoint=self._endpoint.tag)
        return ServerError(
            str(error),
            endpoint=self._endpoint.tag,
            status=getattr(error, "status_code", None),
        )


def _import_litellm() -> Any:  # noqa: ANN401 - litellm's own types are incomplete
    # Importing takes 1.4 s, and without this variable fetches a price list from the network.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm  # noqa: PLC0415

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm
