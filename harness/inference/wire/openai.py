"""The OpenAI chat wire over HTTP, which most model servers speak.

Every call is streamed, even when the caller wants the whole reply at once: that is what lets the
time to the first token be measured on any server. A reply counts only when its stream has reached
its proper end. What sets the servers apart is in their profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

import orjson
from pydantic import BaseModel, ValidationError

from harness.errors import NotOffered, ServerError, StreamCut
from harness.inference.completion import Completion, Embeddings, as_vectors
from harness.inference.endpoint import Endpoint, SamplingField
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import Listener, ReplyInProgress
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest
from harness.inference.time_limits import TimeLimits
from harness.inference.wire.connection import Connection, base_of, root_of
from harness.inference.wire.exchange import Exchange, ServerReply
from harness.inference.wire.lines import event_data
from harness.inference.wire.openai_reply import (
    Chunk,
    LlamaTimings,
    VllmMetrics,
    WireUsage,
    finish_reason,
    token_logprobs,
    usage_of,
)
from harness.inference.wire.openai_request import wire_fields, wire_messages
from harness.inference.wire.profile import Profile
from harness.inference.wire.profiles import PROFILES
from harness.inference.wire.reported_times import TimesTold
from harness.trace import Clock, monotonic

_DONE = b"[DONE]"
_WAY_OF_COUNTING = "stream_options"
"""The field that asks for the usage of a streamed reply."""


class OpenAIWire:
    """A server that speaks `POST <url>/chat/completions`.

    Args:
        endpoint: Where it is and what its model is called there; `url` must be set. Its backend
            names the server's profile.
        api_key: Sent as a bearer token.
        clock: The caller's clock.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None = None,
        clock: Clock = monotonic,
    ) -> None:
        assert endpoint.url is not None
        self._endpoint = endpoint
        self._profile = profile = PROFILES[endpoint.backend]
        self._clock = clock
        self._url, self._root = base_of(endpoint.url), root_of(endpoint.url)
        self._connection = Connection(endpoint, api_key=api_key)
        dispensable: tuple[str, ...] = get_args(SamplingField)
        if not profile.counts_usage:
            dispensable += (_WAY_OF_COUNTING,)
        self._refused = RefusedFields({*profile.refuses, *endpoint.drop}, droppable=dispensable)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        wanted = wire_fields(request, self._endpoint.model_id, stream=self._endpoint.stream)
        if request.goes_on and self._profile.continues is not None:
            wanted |= {"messages": wire_messages(request.messages), **self._profile.continues}
        if request.max_output_tokens is None and self._profile.room_tokens:
            wanted["max_tokens"] = self._profile.room_tokens
        if request.reply_schema is not None and self._profile.schema:
            wanted |= self._profile.schema(request.reply_schema)
        if self._endpoint.stream:
            wanted |= self._profile.progress
        listener = Listener(request)
        async with (
            Exchange(self._connection) as exchange,
            TimeLimits(self._endpoint, timeout_s=request.timeout_s) as limits,
        ):
            while True:
                fields, dropped = self._refused.without(wanted)
                try:
                    completion = await self._chat(listener.request, fields, limits, exchange)
                except ServerError as error:
                    if listener.told or not self._refused.learn(error, fields):
                        raise
                else:
                    return replace(completion, dropped=dropped, attempts=exchange.requests)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        async with TimeLimits(self._endpoint, timeout_s=request.timeout_s):
            if self._profile.embeds_one_by_one:
                replies = [await self._embed((text,)) for text in request.texts]
            else:
                replies = [await self._embed(request.texts)]
        counts = [reply.usage.prompt_tokens for reply in replies if reply.usage]
        rows = [row.embedding for reply in replies for row in reply.data]
        return Embeddings(
            vectors=as_vectors(rows, endpoint=self._endpoint.tag, count=len(request.texts)),
            input_tokens=sum(counts) if len(counts) == len(replies) else None,
            model_id=replies[0].model or self._endpoint.model_id,
        )

    async def count_tokens(self, request: CountRequest) -> int:
        """How many tokens a prompt is; see `Backend.count_tokens`."""
        counting = self._profile.counting
        if counting is None:
            raise NotOffered(
                f"{self._profile.title} does not count tokens", endpoint=self._endpoint.tag
            )
        fields = counting.body(self._endpoint.model_id, request.messages)
        async with TimeLimits(self._endpoint, timeout_s=request.timeout_s):
            body = await self._ask(self._root + counting.path, fields, what="count tokens")
        try:
            return counting.count(orjson.loads(body))
        except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
            raise self._odd(body, "a count of tokens") from error

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self._connection.aclose()

    async def _chat(
        self,
        request: ChatRequest,
        fields: Mapping[str, object],
        limits: TimeLimits,
        exchange: Exchange,
    ) -> Completion:
        progress = ReplyInProgress(request, clock=self._clock, arrived=limits.token_arrived)
        response = await exchange.post(f"{self._url}/chat/completions", fields)
        reply = _Reply(progress, response, endpoint=self._endpoint, connection=self._connection)
        if response.is_json:
            # Asked for, or the fault of a streamed call was found too late for a status.
            reply.add_whole(await response.read())
            return reply.completion(self._profile)
        events = event_data(response.chunks())
        async for data in events:
            if data == _DONE:
                break
            reply.add(data)
        else:
            raise self._connection.cut("the stream ended without [DONE]")
        exchange.came_to_its_end(events)
        return reply.completion(self._profile)

    async def _embed(self, texts: tuple[str, ...]) -> _EmbeddingsReply:
        # A single text goes alone: Triton's front end takes no list, and no one refuses a text.
        sent = texts[0] if len(texts) == 1 else list(texts)
        fields = {"model": self._endpoint.model_id, "input": sent}
        body = await self._ask(f"{self._url}/embeddings", fields, what="embed")
        try:
            reply = _EmbeddingsReply.model_validate_json(body)
        except ValidationError as error:
            raise self._odd(body, "embeddings") from error
        if len(reply.data) != len(texts):
            raise self._odd(body, f"{len(texts)} embeddings")
        reply.data.sort(key=lambda row: row.index)
        return reply

    async def _ask(self, url: str, fields: Mapping[str, object], *, what: str) -> bytes:
        try:
            async with Exchange(self._connection) as exchange:
                return await exchange.ask(url, fields)
        except ServerError as error:
            if error.status not in {404, 405, 501}:
                raise
            switch = self._profile.embeds if what == "embed" else None
            remedy = f"; {switch} makes it" if switch else ""
            raise NotOffered(
                f"{self._profile.title} does not {what} as it was started ({error}){remedy}",
                endpoint=self._endpoint.tag,
            ) from error

    def _odd(self, body: bytes, wanted: str) -> ServerError:
        return ServerError(
            f"the server was asked for {wanted} and sent something else: {body[:200]!r}",
            endpoint=self._endpoint.tag,
        )


class _Reply:
    """What the chunks of one reply say beside its text."""

    def __init__(
        self,
        progress: ReplyInProgress,
        response: ServerReply,
        *,
        endpoint: Endpoint,
        connection: Connection,
    ) -> None:
        self._progress = progress
        self._response = response
        self._endpoint = endpoint
        self._connection = connection
        self._came_whole = False
        self._finish_reason: str | None = None
        self._model_id: str | None = None
        self._usage: WireUsage | None = None
        self._timings: LlamaTimings | None = None
        self._metrics: VllmMetrics | None = None

    def add(self, data: bytes) -> None:
        """Takes in one chunk."""
        chunk = self._parse(data)
        for choice in chunk.choices:
            if choice.finish_reason:
                self._finish_reason = choice.finish_reason
                self._progress.end()
            self._progress.add(
                choice.delta.content or "",
                reasoning=choice.delta.thought,
                logprobs=token_logprobs(choice.logprobs),
            )

    def add_whole(self, body: bytes) -> None:
        """Takes in a reply that was not streamed."""
        chunk = self._parse(body)
        if not chunk.choices:
            raise self._connection.refusal(body)
        self._came_whole = True
        for choice in chunk.choices:
            said = choice.message or choice.delta
            self._finish_reason = choice.finish_reason
            self._progress.add(logprobs=token_logprobs(choice.logprobs))
            self._progress.add_whole(said.content or "", reasoning=said.thought)

    def completion(self, profile: Profile) -> Completion:
        """The completion, now that the stream has ended as it should."""
        usage = usage_of(self._usage, self._timings)
        # JSON that came whole is whole; and TabbyAPI counts for streams alone.
        counts_usage = profile.counts_usage and not self._came_whole
        if self._finish_reason is None or (usage is None and counts_usage):
            missing = "finish reason" if self._finish_reason is None else "usage"
            raise StreamCut(f"the reply came without its {missing}", endpoint=self._endpoint.tag)
        ended = finish_reason(self._finish_reason)
        if ended is None:
            raise StreamCut(
                f"the server broke the generation off (finish reason '{self._finish_reason}')",
                endpoint=self._endpoint.tag,
            )
        told = TimesTold(
            timings=self._timings,
            metrics=self._metrics,
            usage=self._usage,
            headers=self._response.headers,
        )
        return self._progress.completion(
            finish_reason=ended,
            usage=usage,
            model_id=self._model_id or self._endpoint.model_id,
            reported=profile.times(told) if profile.times else None,
        )

    def _parse(self, data: bytes) -> Chunk:
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError as error:
            raise self._connection.misread(data, error) from error
        if chunk.is_error:
            raise self._connection.refusal(data)
        self._model_id = chunk.model or self._model_id
        self._usage = chunk.usage or self._usage
        self._timings = chunk.timings or self._timings
        self._metrics = chunk.metrics or self._metrics
        return chunk


class _Embedding(BaseModel):
    index: int
    embedding: list[float]


class _EmbeddingsReply(BaseModel):
    data: list[_Embedding]
    model: str | None = None
    usage: WireUsage | None = None
