"""The OpenAI chat wire over HTTP, which most model servers speak.

Calls are streamed unless the endpoint says `stream = false`, also when the caller wants the whole
reply at once: otherwise the time to the first token is unknown. A reply counts only when its stream
has reached its proper end. A `Provider` says what sets its server apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    base_of,
    event_data,
    root_of,
)
from harness.inference.providers.pages import whole
from harness.inference.providers.provider import Extras, Fields, Provider, check_offers
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import (
    CallPiece,
    Listener,
    ReplyInProgress,
    ServerTimings,
)
from harness.inference.request import ChatRequest, EmbedRequest, JsonSchema, Message
from harness.inference.time_limits import TimeLimits
from harness.trace import Clock, monotonic

ONLY_TOP_P = frozenset({"top_k", "min_p"})
"""Fields that a server refuses, or accepts and ignores, if it has no more than OpenAI's own."""
_DONE = b"[DONE]"
_WAY_OF_COUNTING = "stream_options"
"""The field that asks for the usage of a streamed reply."""


class OpenAIWire:
    """A server that speaks `POST <url>/chat/completions`.

    The endpoint's `url` must be set.

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
        dispensable: tuple[str, ...] = (*get_args(SamplingField), "ignore_eos")
        if not provider.counts_usage:
            dispensable += (_WAY_OF_COUNTING,)
        self._refused = RefusedFields({*provider.refuses, *endpoint.drop}, droppable=dispensable)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        check_offers(request, self._provider)
        wanted = wire_fields(request, self._endpoint.model_id, stream=self._endpoint.stream)
        if request.goes_on and self._provider.continues is not None:
            wanted |= {
                "messages": [*map(wire_message, request.messages)],
                **self._provider.continues,
            }
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
        return wire_embeddings(replies, endpoint=self._endpoint, count=len(request.texts))

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
        response = await exchange.post(
            f"{self._url}/chat/completions", fields, on_sent=progress.sent
        )
        reply = WireReply(progress, endpoint=self._endpoint)
        if response.is_json:
            # Asked for, or the server noticed a fault too late to send it as a status.
            body = await response.read()
            chunk = self._parse(body)
            if not chunk.choices:
                raise self._connection.refusal(body)
            reply.add_whole(chunk)
            return self._completion(reply, response.headers, counts_usage=False)
        events = event_data(response.chunks())
        async for data in events:
            if data == _DONE:
                break
            reply.add(self._parse(data))
        else:
            raise self._connection.cut("the stream ended without [DONE]")
        exchange.came_to_its_end(events)
        return self._completion(reply, response.headers, counts_usage=self._provider.counts_usage)

    def _parse(self, data: bytes) -> Chunk:
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError as error:
            raise self._connection.misread(data, error) from error
        if chunk.is_error:
            raise self._connection.refusal(data)
        return chunk

    def _completion(
        self, reply: WireReply, headers: Mapping[str, str], *, counts_usage: bool
    ) -> Completion:
        if reply.usage is None and counts_usage:
            raise StreamCut("the reply came without its usage", endpoint=self._endpoint.tag)
        extras = Extras(
            timings=reply.timings,
            metrics=reply.metrics,
            usage=(reply.usage and reply.usage.model_extra) or {},
            headers=headers,
        )
        times = self._provider.times
        return reply.completion(reported=times(extras) if times else None)

    async def _embed(self, texts: tuple[str, ...]) -> WireEmbeddings:
        # A single text goes alone: Triton's front end takes no list, and every server takes a text.
        sent = texts[0] if len(texts) == 1 else list(texts)
        fields = {"model": self._endpoint.model_id, "input": sent}
        body = await self._ask(f"{self._url}/embeddings", fields, what="embed")
        try:
            reply = WireEmbeddings.model_validate_json(body)
        except ValidationError as error:
            raise self._odd(body, "embeddings") from error
        if len(reply.data) != len(texts):
            raise self._odd(body, f"{len(texts)} embeddings")
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


class WireReply:
    """One reply of this wire: its text goes into `progress`, all else is kept for its end."""

    def __init__(self, progress: ReplyInProgress, *, endpoint: Endpoint) -> None:
        self._progress = progress
        self._endpoint = endpoint
        self._model_id = endpoint.model_id
        self.finish_word: str | None = None
        """The server's own word for how it ended."""
        self.usage: WireUsage | None = None
        self.timings: Mapping[str, Any] = {}
        self.metrics: Mapping[str, Any] = {}

    def add(self, chunk: Chunk) -> None:
        """Takes in a chunk of a streamed reply."""
        self._keep(chunk)
        for choice in chunk.choices:
            if choice.finish_reason:
                self.finish_word = choice.finish_reason
                self._progress.end()
            self._progress.add(
                choice.delta.content or "",
                reasoning=choice.delta.thought,
                logprobs=token_logprobs(choice.logprobs),
                calls=choice.delta.pieces,
            )

    def add_whole(self, chunk: Chunk) -> None:
        """Takes in a reply that was not streamed."""
        self._keep(chunk)
        for choice in chunk.choices:
            message = choice.message or choice.delta
            self.finish_word = choice.finish_reason
            self._progress.add(logprobs=token_logprobs(choice.logprobs))
            self._progress.add_whole(
                message.content or "", reasoning=message.thought, calls=message.pieces
            )

    def completion(
        self,
        *,
        reported: ServerTimings | None = None,
        dropped: tuple[str, ...] = (),
        cost_usd: float | None = None,
    ) -> Completion:
        """The completion of a reply that is whole.

        Raises:
            StreamCut: Its finish reason is missing, or is not one of a reply that came to its end.
        """
        if self.finish_word is None:
            raise StreamCut("the reply came without its finish reason", endpoint=self._endpoint.tag)
        ended = finish_reason(self.finish_word)
        if ended is None:
            raise StreamCut(
                f"the server broke the generation off (finish reason '{self.finish_word}')",
                endpoint=self._endpoint.tag,
            )
        return self._progress.completion(
            finish_reason=ended,
            usage=_usage_of(self.usage, self.timings),
            model_id=self._model_id,
            reported=reported,
            dropped=dropped,
            cost_usd=cost_usd,
        )

    def _keep(self, chunk: Chunk) -> None:
        self._model_id = chunk.model or self._model_id
        self.usage = chunk.usage or self.usage
        self.timings = _mapping(chunk.timings) or self.timings
        self.metrics = _mapping(chunk.metrics) or self.metrics


class _Embedding(BaseModel):
    index: int
    embedding: list[float]


class WireEmbeddings(BaseModel):
    """The reply to a request for embeddings."""

    data: list[_Embedding]
    model: str | None = None
    usage: WireUsage | None = None


def wire_embeddings(
    replies: Sequence[WireEmbeddings], *, endpoint: Endpoint, count: int
) -> Embeddings:
    """The vectors of one or more replies, one vector for each of `count` texts."""
    rows = [
        row.embedding for reply in replies for row in sorted(reply.data, key=lambda row: row.index)
    ]
    counts = [reply.usage.prompt_tokens for reply in replies if reply.usage]
    return Embeddings(
        vectors=as_vectors(rows, endpoint=endpoint.tag, count=count),
        input_tokens=sum(counts) if len(counts) == len(replies) else None,
        model_id=replies[0].model or endpoint.model_id,
    )


def wire_message(message: Message) -> dict[str, object]:
    """One message as JSON: its content is a text, or parts if it has images."""
    said: dict[str, object] = {"role": message.role, "content": message.content}
    if message.images:
        shown = [{"type": "image_url", "image_url": {"url": one.address}} for one in message.images]
        text = [{"type": "text", "text": message.content}] if message.content else []
        said["content"] = [*shown, *text]
    if message.answers is not None:
        said["tool_call_id"] = message.answers
    if message.tool_calls:
        said["tool_calls"] = [
            {"id": call.id} | _function(name=call.name, arguments=call.arguments)
            for call in message.tool_calls
        ]
        if not message.content:
            del said["content"]  # TGI takes the calls only if there is none
    return said


def _function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": fields}


def wire_fields(request: ChatRequest, model_id: str, *, stream: bool = True) -> dict[str, object]:
    """The fields of a chat call without its schema, for which each server has its own place.

    Fields that were not asked for are left out: some servers refuse fields they do not know.
    """
    fields: dict[str, object] = {
        "model": model_id,
        "messages": [*map(wire_message, request.conversation)],
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
    if request.ignore_eos:
        fields["ignore_eos"] = True
    if request.seed is not None:
        fields["seed"] = request.seed
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.top_logprobs is not None:
        fields["logprobs"] = True
        fields["top_logprobs"] = request.top_logprobs
    if request.tools:
        fields["tools"] = [
            _function(name=one.name, description=one.description, parameters=one.parameters)
            for one in request.tools
        ]
        # Not left out when it is "auto": TensorRT-LLM takes that for "none".
        fields["tool_choice"] = request.tool_choice
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
    """A part of `usage`."""

    cached_tokens: int | None = None


class CompletionTokensDetails(BaseModel):
    """A part of `usage`."""

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
    """A token and its log probability; a likely alternative, or the token of the reply itself."""

    token: str
    logprob: float


class WireLogprob(WireTopLogprob):
    """A token of the reply."""

    top_logprobs: list[WireTopLogprob] | None = None


class WireLogprobs(BaseModel):
    """The log probabilities of a chunk, or of a whole reply."""

    content: list[WireLogprob] | None = None


class TextPart(BaseModel):
    """One part of a content that comes in parts. Only parts with text are understood."""

    text: str


class WireFunction(BaseModel):
    """What is called, or a part of it."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class WireToolCall(BaseModel):
    """A call of a tool, or what a chunk has of it."""

    index: int | None = None
    id: str | None = None
    function: WireFunction = WireFunction()

    @property
    def piece(self) -> CallPiece:
        """The same for the reply it belongs to; some servers send the arguments as an object."""
        said = self.function.arguments
        text = orjson.dumps(said).decode() if isinstance(said, dict) else said or ""
        return CallPiece(self.index, self.id or "", self.function.name or "", text)


class Delta(BaseModel):
    """What a chunk adds. vLLM says `reasoning`, llama-server `reasoning_content`."""

    said: str | list[TextPart] | None = Field(default=None, alias="content")
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[WireToolCall] | None = None

    @property
    def pieces(self) -> tuple[CallPiece, ...]:
        """Of calls of tools."""
        return tuple(call.piece for call in self.tool_calls or ())

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
        """The first reply only; a second one was not asked for."""
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
    """What a server's word means; None if it is not known to stand for a proper end."""
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


def _usage_of(said: WireUsage | None, timings: Mapping[str, Any]) -> Usage | None:
    """Tokens in and out, from all the places where servers put them."""
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
