"""The OpenAI chat wire over HTTP, which most model servers speak.

Calls are streamed unless the endpoint says `stream = false`, also when the caller wants the whole
reply at once: otherwise the time to the first token is unknown. `wire_reply` reads the replies. A
`Provider` says what sets its server apart.
"""

from __future__ import annotations

import asyncio
import math
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import numpy as np
import orjson

from harness.errors import NotOffered, ServerError, StreamCut
from harness.inference.completion import Completion, Embeddings, Ranking, as_vectors
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, json_of, rows, text_at
from harness.inference.providers.http import Access, HttpBackend
from harness.inference.providers.json_stream import is_end_mark
from harness.inference.providers.provider import Fields, Provider, check_offers
from harness.inference.providers.wire_reply import WireReply, first_choices
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress, as_count
from harness.inference.request import ChatRequest, EmbedRequest, JsonSchema, Message, RerankRequest
from harness.inference.strict_schema import strict_schema
from harness.inference.time_limits import time_limits

ONLY_TOP_P = frozenset({"top_k", "min_p"})
"""Fields that a server refuses, or accepts and ignores, if it has no more than OpenAI's own."""
_END_TIMEOUT_S = 1.0  # how long the end mark may take after a reply is whole
# Statuses after which a call to rank is sent to another page, or in another form.
_WRONG_FORM = {400, 404, 405, 422, 501}
_USAGE_FIELD = "stream_options"  # asks for the usage of a streamed reply
_REASONING = "reasoning_content"


class OpenAIWire(HttpBackend):
    """A server that speaks `POST <url>/chat/completions`; see `HttpBackend`."""

    def __init__(self, endpoint: Endpoint, provider: Provider, access: Access) -> None:
        self._provider = provider
        refused = {*provider.refuses, *endpoint.drop}
        if provider.thinking is None:
            refused.add("reasoning_effort")
        droppable = ("ignore_eos",) if provider.counts_usage else ("ignore_eos", _USAGE_FIELD)
        super().__init__(endpoint, access, RefusedFields(refused, droppable=droppable))
        self._url = f"{self._connection.base}/chat/completions"
        # The forms of a call to rank: a URL, and the field for the texts; one that succeeds stays.
        # Text Embeddings Inference ranks outside of /v1, and calls the field `texts`.
        roots = dict.fromkeys((self._connection.base, self._connection.root))
        self._ranking_forms = tuple(
            (f"{root}/rerank", name) for root in roots for name in ("documents", "texts")
        )

    def _fields(self, request: ChatRequest) -> dict[str, object]:
        check_offers(request, self._provider)
        endpoint = self._endpoint
        stream, source = endpoint.stream, self._source
        fields = wire_fields(request, endpoint.model_id, stream=stream, source=source)
        if request.goes_on and self._provider.continues is not None:
            # `request.conversation` ends with a turn that asks to continue. This server continues
            # the last message by itself, so it gets `request.messages`, which lack that turn.
            messages = wire_messages(request.messages, source)
            fields |= {"messages": messages, **self._provider.continues}
        if request.max_output_tokens is None and self._provider.room_tokens:
            fields["max_tokens"] = self._provider.room_tokens
        if request.reply_schema is not None and self._provider.schema:
            fields |= self._provider.schema(request.reply_schema)
        if stream:
            fields |= self._provider.progress
        if request.reasoning_effort is not None and self._provider.thinking is not None:
            # The server's own spelling replaces the field: beside it, this one may be refused.
            del fields["reasoning_effort"]
            fields |= self._provider.thinking(self._endpoint, request.reasoning_effort)
        return fields

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        one_by_one = self._provider.embeds_one_by_one
        batches = [(text,) for text in request.texts] if one_by_one else [request.texts]
        async with time_limits(self._endpoint, timeout_s=request.timeout_s):
            replies = [await self._embed(batch) for batch in batches]
        return wire_embeddings(replies, endpoint=self._endpoint, count=len(request.texts))

    async def rerank(self, request: RerankRequest) -> Ranking:
        """A score per text; see `Reranker`."""
        fields = {"model": self._endpoint.model_id, "query": request.query}
        refusals = []
        async with time_limits(self._endpoint, timeout_s=request.timeout_s):
            for url, name in self._ranking_forms:
                try:
                    reply = await self._connection.ask(url, {**fields, name: list(request.texts)})
                except ServerError as error:
                    if error.status not in _WRONG_FORM:
                        raise
                    refusals.append(error)
                else:
                    self._ranking_forms = ((url, name),)
                    return _ranking(reply, request, self._endpoint)
        # The first form is that of most servers: with these statuses it refuses only this request.
        if refusals[0].status in {400, 422}:
            raise refusals[0]
        advice = "serve a model that does, such as bge-reranker"
        raise NotOffered(f"the server does not rank ({refusals[0]}); {advice}") from refusals[0]

    async def _read(self, values: AsyncIterator[Any], progress: ReplyInProgress) -> Completion:
        reply = WireReply(progress, model_id=self._endpoint.model_id)
        chunk: object = None
        try:
            async with asyncio.timeout(None) as end:
                async for chunk in values:
                    if is_end_mark(chunk) or self._take(chunk, reply):
                        break
                    if reply.is_whole:
                        # Some servers send no end mark, and leave the connection open.
                        end.reschedule(asyncio.get_running_loop().time() + _END_TIMEOUT_S)
        except (StreamCut, TimeoutError):
            # A reply that is whole does not need the end of its stream.
            if not reply.is_whole:
                raise
        if not reply.has_begun and isinstance(chunk, Mapping):
            raise self._connection.refusal(chunk)
        if reply.finish_word is None and not is_end_mark(chunk):
            last = f", after {chunk!r:.80}" if isinstance(chunk, str) else ""
            raise self._connection.cut(f"the stream ended before its finish reason came{last}")
        # The usage comes last: without it, the stream did not come to its end.
        if reply.usage is None and self._provider.counts_usage and not reply.came_whole:
            raise StreamCut("the reply came without its usage")
        times = self._provider.times
        return reply.completion(reported=times(reply) if times else None)

    def _take(self, chunk: object, reply: WireReply) -> bool:
        """Adds a chunk to the reply; returns whether it was a whole reply, not streamed.

        Raises for an error in the chunk, and for a chunk of another form.
        """
        choices = first_choices(chunk)
        if choices and (error := at(choices[0], "error")):
            raise self._connection.refusal(error)
        part = self._part(chunk)
        return part is not None and reply.add(part, choices)

    async def _embed(self, texts: tuple[str, ...]) -> object:
        # Every server takes one text without a list, and Triton's front end takes no list.
        input_ = texts[0] if len(texts) == 1 else list(texts)
        fields = {"model": self._endpoint.model_id, "input": input_}
        provider = self._provider
        return await self._connection.ask_to_embed(
            f"{self._connection.base}/embeddings",
            fields,
            server=f"{provider.title}, as it was started,",
            remedy=f"{provider.embeds} makes it" if provider.embeds else "ask another endpoint",
        )


def wire_embeddings(replies: Sequence[object], *, endpoint: Endpoint, count: int) -> Embeddings:
    """The vectors of one or more replies, one vector for each of `count` texts."""
    vectors: list[object] = []
    token_counts: list[int | None] = []
    for reply in replies:
        entries = rows(at(reply, "data"))
        numbers = [as_count(at(entry, "index")) for entry in entries]
        are_numbered = any(number is not None for number in numbers)
        if are_numbered and len({number or 0 for number in numbers}) < len(numbers):
            raise ServerError(
                f"the server gives several embeddings one index ({numbers!s:.80}), so the text of "
                "each is unknown; ask another endpoint"
            )
        entries.sort(key=lambda entry: as_count(at(entry, "index")) or 0)
        vectors += [_vector(at(entry, "embedding")) for entry in entries]
        token_counts.append(as_count(at(reply, "usage", "prompt_tokens")))
    known_counts = [tokens for tokens in token_counts if tokens is not None]
    return Embeddings(
        vectors=as_vectors(vectors, count=count),
        input_tokens=sum(known_counts) if len(known_counts) == len(replies) else None,
        model_id=text_at(replies[0], "model") or endpoint.model_id,
    )


def _vector(value: object) -> object:
    """A vector as numbers, which some servers send as base64 of little-endian floats."""
    with suppress(ValueError):
        return np.frombuffer(b64decode(value), "<f4").tolist() if isinstance(value, str) else value
    return None


def _ranking(reply: object, request: RerankRequest, endpoint: Endpoint) -> Ranking:
    """The scores of a reply, which is a list, or has a list as `results` (Cohere) or as `data`."""
    score_by_index: dict[Any, Any] = {}
    for entry in rows(reply) or rows(at(reply, "results")) or rows(at(reply, "data")):
        score = at(entry, "relevance_score")
        number = as_count(at(entry, "index"))
        score_by_index[number] = at(entry, "score") if score is None else score
    scores: list[Any] = [score_by_index.get(index) for index in range(len(request.texts))]
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise ServerError(
            f"the server was asked to rank {len(scores)} texts, and its reply has no score for each"
        )
    usage = at(reply, "usage")
    return Ranking(
        scores=tuple(map(float, scores)),
        input_tokens=as_count(at(usage, "prompt_tokens") or at(usage, "total_tokens")),
        model_id=text_at(reply, "model") or endpoint.model_id,
    )


def wire_messages(messages: Sequence[Message], source: str | None) -> list[dict[str, object]]:
    """A conversation as JSON for the server `source`, with the extra fields that came from it."""
    turns = [wire_message(message, source) for message in messages]
    replies = [turn for turn in turns if turn["role"] == "assistant"]
    if any(_REASONING in reply for reply in replies):
        # DeepSeek then demands the field in each reply, also in one without reasoning.
        for reply in replies:
            reply.setdefault(_REASONING, "")
    return turns


def wire_message(message: Message, source: str | None = None) -> dict[str, object]:
    """One message as JSON: its content is a text, or parts if it has images."""
    if message.source not in {None, source}:
        message = message.without_extras
    turn: dict[str, object] = {**message.extra, "role": message.role, "content": message.content}
    if message.images or message.layout:
        turn["content"] = _parts(message)
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


def _parts(message: Message) -> list[dict[str, object]]:
    """The content's texts and images, in their order.

    `message.placed` has where each image stands, and where each text begins that has fields.
    """
    parts: list[dict[str, object]] = []
    images = iter(message.images)
    text_start = 0
    text_fields: dict[str, object] = {}
    for place, is_image, fields in (*message.placed, (len(message.content), False, {})):
        if text := message.content[text_start:place]:
            parts.append({"type": "text", "text": text, **text_fields})
        text_start = place
        text_fields = {} if is_image else dict(fields)
        # Images of a tool's result are in another turn; then `images` has none left.
        if is_image and (image := next(images, None)):
            url = {"url": image.address, **fields.get("image_url", {})}
            parts.append({"type": "image_url", **fields, "image_url": url})
    return parts


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
    # A field that was not asked for is left out: some servers refuse fields they do not know.
    fields = {name: value for name, value in settings.items() if value is not None}
    if request.tools:
        fields["tools"] = [
            _function(name=tool.name, description=tool.description, parameters=tool.parameters)
            for tool in request.tools
        ]
        # Sent also when it is "auto": TensorRT-LLM takes a missing choice for "none".
        fields["tool_choice"] = request.tool_choice
    return fields


def nested_schema(schema: JsonSchema, *, strict: bool = True) -> Fields:
    """OpenAI's own form of a reply's schema."""
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": strict},
        }
    }


def openai_schema(schema: JsonSchema) -> Fields:
    """As `nested_schema`, but `strict` only if the schema follows the rules of strict mode."""
    # Some servers check that.
    return nested_schema(schema, strict=_is_strict(json_of(schema)))


# Cached by its text, since a judge's schema is made for each draft, and is always the same.
@lru_cache(maxsize=256)
def _is_strict(schema_text: bytes) -> bool:
    schema: JsonSchema = orjson.loads(schema_text)
    return strict_schema(schema) == schema
