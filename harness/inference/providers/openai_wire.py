"""The OpenAI chat wire over HTTP, which most model servers speak.

Every call is streamed, even when the caller wants the whole reply at once: that is what lets the
time to the first token be measured on any server. A reply counts only when its stream has reached
its proper end. Its `Provider` says
what sets a server apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, get_args

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness.errors import NotOffered, ServerError, StreamCut
from harness.inference.completion import (
    Completion,
    Embeddings,
    FinishReason,
    TokenLogprob,
    Usage,
    as_vectors,
)
from harness.inference.endpoint import Endpoint, SamplingField
from harness.inference.providers.http import (
    Connection,
    Exchange,
    ServerReply,
    base_of,
    event_data,
    root_of,
)
from harness.inference.providers.pages import whole
from harness.inference.providers.provider import Extras, Fields, Provider
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import Listener, ReplyInProgress
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest, JsonSchema, Message
from harness.inference.time_limits import TimeLimits
from harness.trace import Clock, monotonic

ONLY_TOP_P = frozenset({"top_k", "min_p"})
"""Fields that a server refuses, or accepts and ignores, if it has no more than OpenAI's own."""
_DONE = b"[DONE]"
_WAY_OF_COUNTING = "stream_options"
"""The field that asks for the usage of a streamed reply."""


class OpenAIWire:
    """A server that speaks `POST <url>/chat/completions`.

    Args:
        endpoint: Where it is and what its model is called there; `url` must be set.
        provider: What sets the server apart.
        api_key: Sent as a bearer token.
        clock: The caller's clock.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        provider: Provider,
        *,
        api_key: str | None = None,
        clock: Clock = monotonic,
    ) -> None:
        assert endpoint.url is not None
        self._endpoint = endpoint
        self._provider = provider
        self._clock = clock
        self._url, self._root = base_of(endpoint.url), root_of(endpoint.url)
        self._connection = Connection(endpoint, api_key=api_key)
        dispensable: tuple[str, ...] = get_args(SamplingField)
        if not provider.counts_usage:
            dispensable += (_WAY_OF_COUNTING,)
        self._refused = RefusedFields({*provider.refuses, *endpoint.drop}, droppable=dispensable)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        wanted = wire_fields(request, self._endpoint.model_id, stream=self._endpoint.stream)
        if request.goes_on and self._provider.continues is not None:
            wanted |= {"messages": wire_messages(request.messages), **self._provider.continues}
        if request.max_output_tokens is None and self._provider.room_tokens:
            wanted["max_tokens"] = self._provider.room_tokens
        if request.reply_schema is not None and self._provider.schema:
            wanted |= self._provider.schema(request.reply_schema)
        if self._endpoint.stream:
            wanted |= self._provider.progress
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
            if self._provider.embeds_one_by_one:
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
        counting = self._provider.counting
        if counting is None:
            raise NotOffered(
                f"{self._provider.title} does not count tokens", endpoint=self._endpoint.tag
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
            return reply.completion(self._provider)
        events = event_data(response.chunks())
        async for data in events:
            if data == _DONE:
                break
            reply.add(data)
        else:
            raise self._connection.cut("the stream ended without [DONE]")
        exchange.came_to_its_end(events)
        return reply.completion(self._provider)

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
            switch = self._provider.embeds if what == "embed" else None
            remedy = f"; {switch} makes it" if switch else ""
            raise NotOffered(
                f"{self._provider.title} does not {what} as it was started ({error}){remedy}",
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
        self._timings: object = None
        self._metrics: object = None

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

    def completion(self, provider: Provider) -> Completion:
        """The completion, now that the stream has ended as it should."""
        extras = self._extras()
        usage = usage_of(self._usage, extras.timings)
        # JSON that came whole is whole, and some servers count for streams only.
        counts_usage = provider.counts_usage and not self._came_whole
        if self._finish_reason is None or (usage is None and counts_usage):
            missing = "finish reason" if self._finish_reason is None else "usage"
            raise StreamCut(f"the reply came without its {missing}", endpoint=self._endpoint.tag)
        ended = finish_reason(self._finish_reason)
        if ended is None:
            raise StreamCut(
                f"the server broke the generation off (finish reason '{self._finish_reason}')",
                endpoint=self._endpoint.tag,
            )
        return self._progress.completion(
            finish_reason=ended,
            usage=usage,
            model_id=self._model_id or self._endpoint.model_id,
            reported=provider.times(extras) if provider.times else None,
        )

    def _extras(self) -> Extras:
        return Extras(
            timings=_mapping(self._timings),
            metrics=_mapping(self._metrics),
            usage=_mapping(self._usage and self._usage.model_extra),
            headers=self._response.headers,
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


def wire_messages(messages: Iterable[Message]) -> list[dict[str, str]]:
    """A conversation as JSON, in the shape that all chat protocols have for it."""
    return [{"role": m.role, "content": m.content} for m in messages]


def wire_conversation(model_id: str, messages: tuple[Message, ...]) -> Fields:
    """The fields of a request about a conversation and nothing else."""
    return {"model": model_id, "messages": wire_messages(messages)}


def wire_fields(request: ChatRequest, model_id: str, *, stream: bool = True) -> dict[str, object]:
    """The fields of a chat call without its schema, for which each server has its own place.

    Fields that were not asked for are left out: some servers refuse fields they do not know.
    """
    fields: dict[str, object] = {
        "model": model_id,
        "messages": wire_messages(request.conversation),
        "temperature": request.temperature,
        **request.cutoffs,
    }
    if request.max_output_tokens is not None:
        fields["max_tokens"] = request.max_output_tokens
    if stream:
        fields["stream"] = True
        fields["stream_options"] = {"include_usage": True}
    if request.frequency_penalty:
        fields["frequency_penalty"] = request.frequency_penalty
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.top_logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = request.top_logprobs
    return fields


_FINISH_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",  # Together
    "eos_token": "stop",  # TGI
    "stop_sequence": "stop",  # TGI, Anthropic
    "end_turn": "stop",  # Anthropic
    "complete": "stop",  # Cohere
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",  # Anthropic
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",  # Anthropic, Cohere, Gemini
    "model_length": "length",  # Mistral
    "model_context_window_exceeded": "length",  # Anthropic
    "content_filter": "content_filter",
    "refusal": "content_filter",  # Anthropic
    "safety": "content_filter",  # Gemini
    "sensitive": "content_filter",  # GLM
}
"""In lower case. Left out on purpose: `abort` and `error` (vLLM, SGLang, MLC), `timeout`
and `cancelled` (TensorRT-LLM), `insufficient_system_resource` (DeepSeek), `network_error` (GLM)."""


class PromptTokensDetails(BaseModel):
    """Of `usage`, as the next."""

    cached_tokens: int | None = None


class CompletionTokensDetails(BaseModel):
    """Of `usage`."""

    reasoning_tokens: int | None = None


class WireUsage(BaseModel):
    """Comes with the last chunk if `stream_options.include_usage` was sent."""

    model_config = ConfigDict(extra="allow")

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None
    reasoning_tokens: int | None = None
    """Where there are no `completion_tokens_details`."""


class WireTopLogprob(BaseModel):
    """A token that might have stood in another's place."""

    token: str
    logprob: float


class WireLogprob(WireTopLogprob):
    """A token of the reply."""

    top_logprobs: list[WireTopLogprob] | None = None


class WireLogprobs(BaseModel):
    """Those of a chunk, or of a whole reply."""

    content: list[WireLogprob] | None = None


class TextPart(BaseModel):
    """A part of content that comes in parts; of any other kind, we have no use for the reply."""

    text: str


class Delta(BaseModel):
    """What a chunk adds. vLLM says `reasoning`, llama-server `reasoning_content`."""

    said: str | list[TextPart] | None = Field(default=None, alias="content")
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def content(self) -> str | None:
        """A piece of the answer."""
        if isinstance(self.said, list):
            return "".join(part.text for part in self.said)
        return self.said

    @property
    def thought(self) -> str:
        """The reasoning, by whichever name."""
        return self.reasoning or self.reasoning_content or ""


_NOTHING = Delta()


class Choice(BaseModel):
    """A reply, or what a chunk has of it."""

    index: int | None = None
    added: Delta | None = Field(default=None, alias="delta")
    message: Delta | None = None
    """In place of the delta, where the reply is whole."""
    finish_reason: str | None = None
    logprobs: WireLogprobs | None = None

    @property
    def delta(self) -> Delta:
        """What it adds, which may be nothing."""
        return self.added or _NOTHING


class Chunk(BaseModel):
    """One `data:` line, or a whole reply.

    The usage chunk has no choices; an error chunk has nothing else.
    """

    model: str | None = None
    kind: str | None = Field(default=None, alias="object")
    given: list[Choice] | None = Field(default=None, alias="choices")
    usage: WireUsage | None = None
    timings: object = None
    metrics: object = None
    error: object = None

    @property
    def choices(self) -> list[Choice]:
        """The first reply only: a second one, which was not asked for, is no part of it."""
        return [choice for choice in self.given or () if not choice.index]

    @property
    def is_error(self) -> bool:
        """Whether it tells of a failure, nested or flat."""
        return self.error is not None or self.kind == "error"


def nested_schema(schema: JsonSchema) -> Fields:
    """OpenAI's own form of a reply's schema."""
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": True},
        }
    }


def finish_reason(said: str) -> FinishReason | None:
    """What a server's word for it means; None for one that is not known to be of a proper end."""
    return _FINISH_REASONS.get(said.lower())


def token_logprobs(said: WireLogprobs | None) -> tuple[TokenLogprob, ...]:
    """The log probabilities of a chunk."""
    if said is None:
        return ()  # as in most replies, once for every token
    return tuple(
        TokenLogprob(
            token=one.token,
            logprob=one.logprob,
            top=tuple((other.token, other.logprob) for other in one.top_logprobs or ()),
        )
        for one in said.content or ()
    )


def usage_of(said: WireUsage | None, timings: Mapping[str, Any]) -> Usage | None:
    """Tokens in and out, from all the places that servers have for them."""
    if said is None:
        return None
    cached, thought = said.prompt_tokens_details, said.completion_tokens_details
    return Usage(
        input_tokens=said.prompt_tokens,
        output_tokens=said.completion_tokens,
        cached_tokens=cached.cached_tokens if cached else None,
        reasoning_tokens=thought.reasoning_tokens if thought else said.reasoning_tokens,
        draft_tokens=whole(timings.get("draft_n")),
        accepted_tokens=whole(timings.get("draft_n_accepted")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
