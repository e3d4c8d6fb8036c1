"""The OpenAI chat wire over HTTP, which most model servers speak.

Calls are streamed unless the endpoint says `stream = false`, also when the caller wants the whole
reply at once: otherwise the time to the first token is unknown. A reply counts only when its finish
reason has come. A reply is read key by key: no field of an unexpected shape costs a reply that was
paid for. A `Provider` says what sets its server apart.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from harness.errors import InferenceError, NotOffered, ServerError, StreamCut
from harness.inference.call_pieces import CallPiece
from harness.inference.completion import (
    Completion,
    Embeddings,
    FinishReason,
    Ranking,
    Usage,
    as_vectors,
)
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, rows, text_at, whole
from harness.inference.providers.http import Access, HttpBackend
from harness.inference.providers.json_stream import is_end_mark
from harness.inference.providers.provider import Extras, Fields, Provider, check_offers
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress, ServerTimings, as_count
from harness.inference.request import ChatRequest, EmbedRequest, JsonSchema, Message, RerankRequest
from harness.inference.strict_schema import strict_schema
from harness.inference.time_limits import time_limits

ONLY_TOP_P = frozenset({"top_k", "min_p"})
"""Fields that a server refuses, or accepts and ignores, if it has no more than OpenAI's own."""
_END_TIMEOUT_S = 1.0  # how long a reply that is whole is waited on for its end mark
_ANOTHER_WAY = {400, 404, 405, 422, 501}
"""Statuses after which texts to rank are sent in another way."""
_WAY_OF_COUNTING = "stream_options"  # the field that asks for the usage of a streamed reply


class OpenAIWire(HttpBackend):
    """A server that speaks `POST <url>/chat/completions`; see `HttpBackend`."""

    def __init__(self, endpoint: Endpoint, provider: Provider, access: Access) -> None:
        self._provider = provider
        counts = () if provider.counts_usage else (_WAY_OF_COUNTING,)
        lacks = set() if provider.thinking else {"reasoning_effort"}
        fields = {*provider.refuses, *endpoint.drop, *lacks}
        super().__init__(endpoint, access, RefusedFields(fields, droppable=("ignore_eos", *counts)))
        self._url = f"{self._connection.base}/chat/completions"
        # Text Embeddings Inference has it beside its /v1, and another name for the texts.
        at = self._connection
        urls = dict.fromkeys((f"{at.base}/rerank", f"{at.root}/rerank"))
        self._rankings = tuple((url, name) for url in urls for name in ("documents", "texts"))

    def _fields(self, request: ChatRequest) -> dict[str, object]:
        check_offers(request, self._provider)
        endpoint = self._endpoint
        stream, source = endpoint.stream, self._source
        fields = wire_fields(request, endpoint.model_id, stream=stream, source=source)
        if request.goes_on and self._provider.continues is not None:
            # Without the words that ask for the rest: the server goes on by itself.
            messages = wire_messages(request.messages, source)
            fields |= {"messages": messages, **self._provider.continues}
        if request.max_output_tokens is None and self._provider.room_tokens:
            fields["max_tokens"] = self._provider.room_tokens
        if request.reply_schema is not None and self._provider.schema:
            fields |= self._provider.schema(request.reply_schema)
        if stream:
            fields |= self._provider.progress
        if request.reasoning_effort is not None and self._provider.thinking is not None:
            del fields["reasoning_effort"]
            # In this server's own spelling.
            fields |= self._provider.thinking(self._endpoint, request.reasoning_effort)
        return fields

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        async with time_limits(self._endpoint, timeout_s=request.timeout_s):
            if self._provider.embeds_one_by_one:
                replies = [await self._embed((text,)) for text in request.texts]
            else:
                replies = [await self._embed(request.texts)]
        return wire_embeddings(replies, endpoint=self._endpoint, count=len(request.texts))

    async def rerank(self, request: RerankRequest) -> Ranking:
        """A score per text; see `Reranker`. The first call finds out how the server takes it."""
        fields = {"model": self._endpoint.model_id, "query": request.query}
        refusals = []
        async with time_limits(self._endpoint, timeout_s=request.timeout_s):
            for url, name in self._rankings:
                try:
                    reply = await self._connection.ask(url, {**fields, name: list(request.texts)})
                except ServerError as error:
                    if error.status not in _ANOTHER_WAY:
                        raise
                    refusals.append(error)
                else:
                    self._rankings = ((url, name),)
                    return _ranking(reply, request, self._endpoint)
        # The page is there; what it refuses is this request.
        if refusals[0].status in {400, 422}:
            raise refusals[0]
        advice = "serve a model that does, such as bge-reranker"
        raise NotOffered(f"the server does not rank ({refusals[0]}); {advice}") from refusals[0]

    async def _read(
        self, values: AsyncIterator[Any], progress: ReplyInProgress, headers: Mapping[str, str]
    ) -> Completion:
        reply = WireReply(progress, model_id=self._endpoint.model_id)
        chunk: object = None
        try:
            async with asyncio.timeout(None) as end:
                async for chunk in values:
                    if is_end_mark(chunk) or self._take(chunk, reply):
                        break
                    if reply.is_whole:  # some servers then say no more, and hold the line
                        end.reschedule(asyncio.get_running_loop().time() + _END_TIMEOUT_S)
        # A reply that is whole does not need the end of its stream.
        except (StreamCut, TimeoutError):
            if not reply.is_whole:
                raise
        if not reply.has_begun and isinstance(chunk, Mapping):
            raise self._connection.refusal(chunk)
        if reply.finish_word is None and not is_end_mark(chunk):
            last = f", after {chunk!r:.80}" if isinstance(chunk, str) else ""
            raise self._connection.cut(f"the stream ended before its finish reason came{last}")
        # It comes last: without it, the stream did not come to its end.
        if reply.usage is None and self._provider.counts_usage and not reply.came_whole:
            raise StreamCut("the reply came without its usage")
        usage, metrics = reply.usage or {}, reply.metrics
        extras = Extras(timings=reply.timings, metrics=metrics, usage=usage, headers=headers)
        times = self._provider.times
        return reply.completion(reported=times(extras) if times else None)

    def _take(self, chunk: object, reply: WireReply) -> bool:
        """Adds a part of a reply; whether that was all of it. Pings and the like are nothing."""
        # Broken JSON; any other text is a ping or a comment.
        if isinstance(chunk, str) and chunk.startswith("{"):
            raise self._connection.odd(chunk)
        choices = first_choices(chunk)
        inner = at(choices[0], "error") if choices else None
        if inner or at(chunk, "error") is not None or at(chunk, "object") == "error":
            raise self._connection.refusal(inner or chunk)
        if isinstance(chunk, list):
            raise self._connection.odd(chunk)
        return isinstance(chunk, dict) and reply.add(chunk, choices)

    async def _embed(self, texts: tuple[str, ...]) -> object:
        # A single text goes alone: Triton's front end takes no list, and every server takes a text.
        sent = texts[0] if len(texts) == 1 else list(texts)
        fields = {"model": self._endpoint.model_id, "input": sent}
        provider = self._provider
        return await self._connection.ask_to_embed(
            f"{self._connection.base}/embeddings",
            fields,
            server=f"{provider.title}, as it was started,",
            remedy=f"{provider.embeds} makes it" if provider.embeds else "ask another endpoint",
        )


class WireReply:
    """One reply of this wire: its text goes into `progress`, all else is kept for its end."""

    def __init__(self, progress: ReplyInProgress, *, model_id: str) -> None:
        self._progress = progress
        self._model_id = model_id
        self._is_refusal = False
        self.finish_word: str | None = None
        """The server's own word for how it ended."""
        self.usage: Mapping[str, Any] | None = None
        self.timings: Mapping[str, Any] = {}
        self.metrics: Mapping[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self._goes_on = self._is_over = self._has_others = False
        self.has_begun = False
        """Whether any part of it has come."""
        self.came_whole = False
        """Whether it was not streamed, asked for or not."""

    @property
    def is_whole(self) -> bool:
        """Whether all that counts of it is here."""
        is_counted = self.usage is not None and self.usage.get("prompt_tokens") is not None
        return is_counted and finish_reason(self.finish_word or "") is not None

    def add(self, chunk: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> bool:
        """Takes in a chunk with its `first_choices`; whether it was a whole reply, not streamed."""
        model, usage = chunk.get("model"), chunk.get("usage")
        self._model_id = model if isinstance(model, str) and model else self._model_id
        self.usage = _mapping(usage) or self.usage
        self.timings = _mapping(chunk.get("timings")) or self.timings
        self.metrics = _mapping(chunk.get("metrics")) or self.metrics
        if not choices:
            return False
        choice = choices[0]
        message, delta = choice.get("message"), _mapping(choice.get("delta"))
        # Some servers answer a call that asks for a stream with one document.
        self.came_whole = isinstance(message, dict) and not delta and not self.has_begun
        self.has_begun = True
        part = _mapping(message) if self.came_whole else delta
        text, thought = divided(part.get("content"))
        thought += next(filter(None, (text_in(part.get(name)) for name in _THOUGHTS)), "")
        refusal = text_in(part.get("refusal"))
        calls = call_pieces(part)
        word = text_at(choice, "finish_reason")
        if (text or thought or calls) and not self.came_whole:
            self._check_alone(len(choices))
            self._goes_on |= not word
        if word:
            # Some servers end a reply with every piece, or every thought: that says nothing.
            self._is_over |= self._goes_on
            self._progress.end()
        self._is_refusal = self._is_refusal or bool(refusal)
        text += refusal
        self._progress.add(text, reasoning=thought, calls=calls, is_whole=self.came_whole)
        if extra := extra_of(part):
            self._extra = joined(self._extra, extra)
        self.finish_word = word or self.finish_word
        return self.came_whole

    def _check_alone(self, replies: int) -> None:
        """That this content cannot be another reply's, whose index is the same."""
        # With `n` in extra_body: sgl-project/sglang#2912, BerriAI/litellm#5236.
        if self._is_over or (self._has_others and replies == 1):
            raise InferenceError(
                "it sends several replies at once, and gives all the index 0; have it make one",
                code="call.several-replies",
            )
        self._has_others |= replies > 1

    def completion(
        self, *, reported: ServerTimings | None = None, cost_usd: float | None = None
    ) -> Completion:
        """The completion; raises `StreamCut` unless the reply came to a known end."""
        if self.finish_word is None:
            raise StreamCut("the reply came without its finish reason")
        ended = proper_end(self.finish_word)
        return self._progress.completion(
            finish_reason="content_filter" if self._is_refusal else ended,
            # Speculative decoding is counted among llama-server's timings.
            usage=_usage_of(self.usage, self.timings),
            model_id=self._model_id,
            reported=reported,
            cost_usd=cost_usd,
            extra=self._extra,
        )


def wire_embeddings(replies: Sequence[object], *, endpoint: Endpoint, count: int) -> Embeddings:
    """The vectors of one or more replies, one vector for each of `count` texts."""
    listed = [
        sorted(rows(at(reply, "data")), key=lambda row: as_count(at(row, "index")) or 0)
        for reply in replies
    ]
    vectors = [at(row, "embedding") for reply_rows in listed for row in reply_rows]
    counts = [as_count(at(reply, "usage", "prompt_tokens")) for reply in replies]
    read = [count for count in counts if count is not None]
    return Embeddings(
        vectors=as_vectors(vectors, count=count),
        input_tokens=sum(read) if len(read) == len(replies) else None,
        model_id=text_at(replies[0], "model") or endpoint.model_id,
    )


def _ranking(reply: object, request: RerankRequest, endpoint: Endpoint) -> Ranking:
    """Scores by the index of their text: a list, or one under `results` (Cohere), or `data`."""
    entries = rows(reply) or rows(at(reply, "results")) or rows(at(reply, "data"))
    listed = [row for row in entries if isinstance(row, Mapping)]
    scores = {at(row, "index"): row.get("relevance_score", row.get("score")) for row in listed}
    values: list[Any] = [scores.get(number) for number in range(len(request.texts))]
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in values):
        raise ServerError(
            f"the server was asked to rank {len(values)} texts, and its reply has no score for each"
        )
    usage = at(reply, "usage")
    return Ranking(
        scores=tuple(map(float, values)),
        input_tokens=as_count(at(usage, "prompt_tokens") or at(usage, "total_tokens")),
        model_id=text_at(reply, "model") or endpoint.model_id,
    )


def joined(field: Any, piece: Any, name: str = "") -> Any:  # noqa: ANN401 - JSON
    """A field of a streamed reply with what another chunk adds: texts grow, and so do lists."""
    if isinstance(field, dict) and isinstance(piece, dict):
        both = {key: joined(field[key], piece[key], key) for key in field.keys() & piece.keys()}
        return {**field, **piece, **both}
    if isinstance(field, list) and isinstance(piece, list):
        items = [*field]
        for item in piece:
            begun = next((n for n, old in enumerate(items) if _goes_on(old, item)), None)
            if begun is None:
                items.append(item)
            else:
                items[begun] = joined(items[begun], item)
        return items
    grows = isinstance(field, str) and isinstance(piece, str) and name not in _NAMING
    return field + piece if grows else field if piece is None else piece


_NAMING = {"type", "format", "id", "index", "role", "name"}
"""Fields that name what they stand in, and come again with each of its pieces."""


def _goes_on(begun: Any, item: Any) -> bool:  # noqa: ANN401 - JSON
    """Whether an item of a list is a further piece of another: of reasoning, mostly."""
    if not (isinstance(begun, dict) and isinstance(item, dict)):
        return False
    # OpenRouter numbers them.
    if "index" in item or "index" in begun:
        return begun.get("index") == item.get("index") and begun.get("type") == item.get("type")
    # litellm does not, and ends each with its signature.
    is_over = begun.get("signature") or "data" in begun or "thinking" not in begun
    return begun.get("type") == item.get("type") and not is_over


def wire_messages(messages: Sequence[Message], source: str | None) -> list[dict[str, object]]:
    """A conversation as JSON for this server, with the fields that came from it."""
    conversation = [wire_message(message, source) for message in messages]
    turns = [turn for turn in conversation if turn["role"] == "assistant"]
    if any(_DEMANDED in turn for turn in turns):
        # DeepSeek then demands it of each turn, also of one without reasoning.
        for turn in turns:
            turn.setdefault(_DEMANDED, "")
    return conversation


_DEMANDED = "reasoning_content"


def wire_message(message: Message, source: str | None = None) -> dict[str, object]:
    """One message as JSON: its content is a text, or parts if it has images."""
    if message.source not in {None, source}:
        message = message.without_extras
    turn: dict[str, object] = {**message.extra, "role": message.role, "content": message.content}
    if message.images:
        images = [{"type": "image_url", "image_url": {"url": i.address}} for i in message.images]
        text = [{"type": "text", "text": message.content}] if message.content else []
        turn["content"] = [*images, *text]
    if message.answers is not None:
        turn["tool_call_id"] = message.answers
    if message.tool_calls:
        turn["tool_calls"] = [
            {**call.extra, "id": call.id} | _function(name=call.name, arguments=call.arguments)
            for call in (call.sendable for call in message.tool_calls)
        ]
        if not message.content:
            del turn["content"]  # TGI takes the calls only if there is none
    return turn


def _function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": fields}


def wire_fields(
    request: ChatRequest, model_id: str, *, stream: bool = True, source: str | None = None
) -> dict[str, object]:
    """The fields of a chat call without its schema, for which each server has its own place."""
    settings: dict[str, object] = {
        "model": model_id,
        "messages": wire_messages(request.conversation, source),
        "temperature": request.temperature,
        **request.sampling,
        "max_tokens": request.max_output_tokens,
        "stream": stream or None,
        "stream_options": {"include_usage": True} if stream else None,
        "frequency_penalty": request.frequency_penalty or None,
        "ignore_eos": request.ignore_eos or None,
        "seed": request.seed,
        "stop": list(request.stop) or None,
        "reasoning_effort": request.reasoning_effort,
    }
    # What was not asked for is left out: some servers refuse fields they do not know.
    fields = {name: value for name, value in settings.items() if value is not None}
    if request.tools:
        fields["tools"] = [
            _function(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in request.tools
        ]
        # Not left out when it is "auto": TensorRT-LLM takes that for "none".
        fields["tool_choice"] = request.tool_choice
    return fields


# In lower case. Left out on purpose: `abort` and `error` (vLLM, SGLang, MLC), `timeout` and
# `cancelled` (TensorRT-LLM), `insufficient_system_resource` (DeepSeek), `network_error` (GLM).
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


# --- parts of replies --------------------------------------------------------------------------

# Where reasoning stands: at vLLM; at llama-server and most; at OpenRouter, in parts.
_THOUGHTS = ("reasoning", "reasoning_content", "reasoning_details")
_THOUGHT = re.compile("think|thought|reason")  # in the type of a part
_TEXTS = ("text", "thinking", "content", "summary", "refusal", "reasoning")
"""Where a part has its text, which may again be parts."""


def text_in(content: object) -> str:
    """The text of a content: a text, a part, or parts; "" for parts of any other kind."""
    match content:
        case str():
            return content
        case list():
            return "".join(map(text_in, content))
        case dict():
            return next(filter(None, (text_in(content.get(name)) for name in _TEXTS)), "")
    return ""


def divided(content: object) -> tuple[str, str]:
    """The answer and the reasoning of a content. Mistral and Databricks put both into parts."""
    if isinstance(content, str):
        return content, ""
    parts = content if isinstance(content, list) else [content]
    thoughts = [part for part in parts if _THOUGHT.search(str(at(part, "type")))]
    return text_in([part for part in parts if part not in thoughts]), text_in(thoughts)


def call_pieces(part: object) -> list[CallPiece]:
    """What a part of a reply adds to its calls; some servers send the arguments as an object."""
    pieces = []
    # The older form, of which there is one in a reply.
    older = at(part, "function_call")
    calls = rows(at(part, "tool_calls")) or ([{"index": 0, "function": older}] if older else [])
    for call in calls:
        index, args = at(call, "index"), at(call, "function", "arguments")
        text = args if isinstance(args, str) else orjson.dumps(args).decode() if args else ""
        id_, name = text_in(at(call, "id")), text_in(at(call, "function", "name"))
        pieces.append(CallPiece(whole(index), id_, name, text, extra_of(call)))
    return pieces


def extra_of(part: object) -> dict[str, Any]:
    """What a server wants back with a turn or a call: reasoning by its own name, all unknown."""
    fields = _mapping(part).items()
    return {name: value for name, value in fields if name not in _READ and value not in (None, "")}


_READ = {"role", "content", "refusal", "tool_calls", "function_call", "index", "id", "type"}
_READ |= {"function"}
"""The fields of turns and calls that have a place of their own."""


def first_choices(chunk: object) -> list[Mapping[str, Any]]:
    """The replies of a chunk with the first one's index: a second one was not asked for."""
    choices = (choice for choice in rows(at(chunk, "choices")) if isinstance(choice, dict))
    return [choice for choice in choices if str(choice.get("index") or 0) == "0"]


def nested_schema(schema: JsonSchema, *, strict: bool = True) -> Fields:
    """OpenAI's own form of a reply's schema."""
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": strict},
        }
    }


def openai_schema(schema: JsonSchema) -> Fields:
    """The same for servers that refuse what is not strict by OpenAI's rules, and says it is."""
    return nested_schema(schema, strict=_is_strict(orjson.dumps(schema)))


@lru_cache(maxsize=256)
def _is_strict(schema: bytes) -> bool:
    """Kept by the schema's text: a judge's is made for each draft, and is the same."""
    parsed: JsonSchema = orjson.loads(schema)
    return strict_schema(parsed) == parsed


def finish_reason(word: str) -> FinishReason | None:
    """What a server's word means; None if it is not known to stand for a proper end."""
    return _FINISH_REASONS.get(word.lower())


def proper_end(word: str) -> FinishReason:
    """The same; raises `StreamCut` for a word that is not known to stand for a proper end."""
    ended = finish_reason(word)
    if ended is None:
        raise StreamCut(f"the server broke the generation off (finish reason '{word}')")
    return ended


def _usage_of(usage: Mapping[str, Any] | None, timings: Mapping[str, Any]) -> Usage | None:
    """Tokens in and out, from all the places where servers put them."""
    if usage is None or (input_tokens := as_count(usage.get("prompt_tokens"))) is None:
        return None
    details = usage.get("completion_tokens_details")
    return Usage(
        input_tokens=input_tokens,
        output_tokens=as_count(usage.get("completion_tokens")) or 0,
        cached_tokens=as_count(at(usage, "prompt_tokens_details", "cached_tokens")),
        reasoning_tokens=as_count(at(_mapping(details) or usage, "reasoning_tokens")),
        draft_tokens=whole(timings.get("draft_n")),
        accepted_tokens=whole(timings.get("draft_n_accepted")),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
