"""Ollama over its own protocol.

Its OpenAI-compatible one takes no notice of how long a model is to stay loaded, nor of how long a
context it is to have, and reports no times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pydantic import ValidationError

from harness.errors import NotOffered, ServerError
from harness.inference.completion import Completion, Embeddings, as_vectors
from harness.inference.endpoint import Endpoint
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress
from harness.inference.request import ChatRequest, CountRequest, EmbedRequest
from harness.inference.time_limits import TimeLimits
from harness.inference.wire.connection import Connection, root_of
from harness.inference.wire.exchange import Exchange
from harness.inference.wire.lines import json_lines
from harness.inference.wire.ollama_reply import OllamaEmbeddings, OllamaLine
from harness.inference.wire.ollama_request import (
    chat_fields,
    context_option,
    keep_alive_field,
    sampling_fields,
)
from harness.inference.wire.openai_reply import finish_reason
from harness.trace import Clock, monotonic


class OllamaWire:
    """A server that speaks `POST <url>/api/chat`.

    Args:
        endpoint: Where it is and what its model is called there; `url` must be set, and may end in
            the `/v1` that other protocols need.
        api_key: Sent as a bearer token, for a proxy that wants one.
        clock: The caller's clock.
        keep_alive: Tells, for each call, how many seconds the model is to stay loaded after it,
            where the endpoint's entry does not say.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        api_key: str | None = None,
        clock: Clock = monotonic,
        keep_alive: Callable[[], float | None] | None = None,
    ) -> None:
        assert endpoint.url is not None
        self._endpoint = endpoint
        self._clock = clock
        self._keep_alive = keep_alive or (lambda: None)
        self._root = root_of(endpoint.url)
        self._connection = Connection(endpoint, api_key=api_key)
        self._refused = RefusedFields(endpoint.drop)

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        wanted = sampling_fields(request)
        async with (
            Exchange(self._connection) as exchange,
            TimeLimits(self._endpoint, timeout_s=request.timeout_s) as limits,
        ):
            while True:
                sampling, dropped = self._refused.without(wanted)
                fields = chat_fields(
                    request, self._endpoint, sampling, keep_alive_s=self._keep_alive()
                )
                try:
                    completion = await self._chat(request, fields, limits, exchange)
                except ServerError as error:
                    if not self._refused.learn(error, sampling):
                        raise
                else:
                    return replace(completion, dropped=dropped, attempts=exchange.requests)

    async def embed(self, request: EmbedRequest) -> Embeddings:
        """One vector per text; see `Backend.embed`."""
        fields: dict[str, object] = {
            "model": self._endpoint.model_id,
            "input": list(request.texts),
            "truncate": False,
        }
        if options := context_option(self._endpoint):
            fields["options"] = options
        fields |= keep_alive_field(self._endpoint, self._keep_alive())
        async with TimeLimits(self._endpoint, timeout_s=request.timeout_s):
            body = await self._ask_to_embed(fields)
        try:
            reply = OllamaEmbeddings.model_validate_json(body)
        except ValidationError as error:
            raise ServerError(
                f"the server was asked for embeddings and sent something else: {body[:200]!r}",
                endpoint=self._endpoint.tag,
            ) from error
        rows = reply.embeddings
        return Embeddings(
            vectors=as_vectors(rows, endpoint=self._endpoint.tag, count=len(request.texts)),
            input_tokens=reply.prompt_eval_count,
            model_id=reply.model or self._endpoint.model_id,
        )

    async def count_tokens(self, request: CountRequest) -> int:
        """Raises NotOffered; see `Backend.count_tokens`."""
        raise NotOffered(
            "Ollama does not count tokens; it tells how many a prompt was once it has answered it",
            endpoint=request.model,
        )

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
        response = await exchange.post(f"{self._root}/api/chat", fields)
        lines = json_lines(response.chunks())
        began = False
        async for data in lines:
            line = self._parse(data)
            _take_in(line, progress, whole=line.done and not began)
            began = True
            if line.done:
                break
        else:
            raise self._connection.cut(
                "it ended without `done: true`, as Ollama's replies do when a model says the same "
                "token over and over; a frequency_penalty may keep it from that"
            )
        exchange.came_to_its_end(lines)
        return self._completion(line, progress)

    def _parse(self, data: bytes) -> OllamaLine:
        try:
            line = OllamaLine.model_validate_json(data)
        except ValidationError as error:
            raise self._connection.misread(data, error) from error
        if line.error is not None:
            raise self._connection.refusal(data)
        return line

    def _completion(self, last: OllamaLine, progress: ReplyInProgress) -> Completion:
        if last.done_reason in {"load", "unload"}:
            raise ServerError(
                f"the server did nothing but {last.done_reason} the model; are there messages?",
                endpoint=self._endpoint.tag,
            )
        ended = finish_reason(last.done_reason or "")
        if ended is None:
            raise self._connection.cut(f"its done_reason is {last.done_reason!r}")
        return progress.completion(
            finish_reason=ended,
            usage=last.usage,
            model_id=last.model or self._endpoint.model_id,
            reported=last.timings,
        )

    async def _ask_to_embed(self, fields: Mapping[str, object]) -> bytes:
        try:
            async with Exchange(self._connection) as exchange:
                return await exchange.ask(f"{self._root}/api/embed", fields)
        except ServerError as error:
            if error.status not in {404, 405, 501}:
                raise
            raise NotOffered(
                f"Ollama does not embed with '{self._endpoint.model_id}' ({error}); pull a model "
                "that is made for it",
                endpoint=self._endpoint.tag,
            ) from error


def _take_in(line: OllamaLine, progress: ReplyInProgress, *, whole: bool) -> None:
    text, thought = line.message.content or "", line.message.thinking or ""
    if whole:
        # There was no first token to be seen.
        progress.add(logprobs=line.tokens)
        progress.add_whole(text, reasoning=thought)
    else:
        progress.add(text, reasoning=thought, logprobs=line.tokens)
