"""Managed APIs by way of litellm, imported only when an endpoint names it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

import httpx
from pydantic import BaseModel, ValidationError

from harness.errors import NotOffered, ServerError
from harness.inference.completion import Completion, Embeddings, as_vectors
from harness.inference.endpoint import Endpoint, SamplingField
from harness.inference.managed.litellm_errors import error_from_litellm, not_embedded
from harness.inference.managed.litellm_library import HttpCall, http_call, import_litellm
from harness.inference.managed.litellm_reply import LiteLLMReply
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest
from harness.inference.time_limits import TimeLimits
from harness.inference.wire.connection import base_of, bearer
from harness.inference.wire.openai_reply import WireUsage
from harness.inference.wire.openai_request import wire_fields
from harness.inference.wire.profile import nested_schema
from harness.trace import Clock, monotonic


class LiteLLMBackend:
    """Any provider litellm knows; `model_id` carries its prefix, as in `anthropic/claude-…`.

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
        # Some providers have no place for a schema. The model is told of it all the same, and
        # whoever asked looks at what came. Some count tokens unasked, or not at all.
        self._refused = RefusedFields(
            endpoint.drop,
            droppable=(*get_args(SamplingField), "response_format", "stream_options"),
        )

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        wanted = wire_fields(request, self._endpoint.model_id, stream=self._endpoint.stream)
        if request.reply_schema is not None:
            wanted |= nested_schema(request.reply_schema)
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
            reply = _EmbeddingsReply.model_validate(said.model_dump())
        except ValidationError as error:
            raise ServerError(
                f"the provider was asked for embeddings and sent something else: {error}",
                endpoint=self._endpoint.tag,
            ) from error
        rows = [row.embedding for row in sorted(reply.data, key=lambda row: row.index)]
        return Embeddings(
            vectors=as_vectors(rows, endpoint=self._endpoint.tag, count=len(request.texts)),
            input_tokens=reply.usage.prompt_tokens if reply.usage else None,
            model_id=reply.model or self._endpoint.model_id,
        )

    async def count_tokens(self, request: CountRequest) -> int:  # noqa: ARG002 - the protocol's
        """Always `NotOffered`: what litellm counts with is not the models' own tokenizers."""
        raise NotOffered(
            "litellm estimates tokens with other models' tokenizers, and an estimate is not a "
            "count; of a call that was made, the completion's usage tells",
            endpoint=self._endpoint.tag,
        )

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
        reply = LiteLLMReply(progress, endpoint=self._endpoint)
        try:
            async with self._http_call() as call:
                said = await self._litellm.acompletion(**fields, **self._means())
                if self._endpoint.stream:
                    await reply.read(said)
                else:
                    reply.add_whole(said)
        except self._litellm.openai.OpenAIError as error:
            raise error_from_litellm(error, self._litellm, endpoint=self._endpoint) from error
        return reply.completion(self._litellm, dropped, call.finish_word)

    @asynccontextmanager
    async def _in_time(self, request: ChatRequest | EmbedRequest) -> AsyncIterator[TimeLimits]:
        """The block in which a call ends, the import of litellm, which takes seconds, included."""
        left_s = request.timeout_s or self._endpoint.timeout_s
        if self._litellm is None:
            clock = asyncio.get_running_loop().time
            began_s = clock()
            # Of its limits, only that of the whole call: nothing is sent yet.
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
        """By what way litellm is to ask."""
        endpoint = self._endpoint
        return {
            "api_base": endpoint.url and base_of(endpoint.url),
            "api_key": self._api_key,
            # Retrying is ours: a hidden second attempt would be timed as part of the first.
            "max_retries": 0,
            # Never over before ours. Without a limit litellm has one of its own.
            "timeout": httpx.Timeout(2 * endpoint.timeout_s, connect=endpoint.connect_timeout_s),
        }


class _Row(BaseModel):
    index: int
    embedding: list[float]


class _EmbeddingsReply(BaseModel):
    data: list[_Row]
    model: str | None = None
    usage: WireUsage | None = None
