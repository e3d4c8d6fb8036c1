"""The OpenAI chat wire over HTTP, which most model servers speak.

Every call is streamed, even when the caller wants the whole reply at once: that is what lets the
time to the first token be measured on any server. A reply counts only when its stream has reached
its proper end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import orjson
from pydantic import ValidationError

from harness.errors import (
    CallTimeout,
    ConfigurationInvalid,
    EndpointUnreachable,
    InferenceError,
    StreamCut,
)
from harness.inference.completion import Completion, Usage, inter_token_latency
from harness.inference.endpoint import Endpoint
from harness.inference.phases import call_phases
from harness.inference.request import ChatRequest
from harness.inference.wire.errors import error_from_reply
from harness.inference.wire.openai_reply import (
    Chunk,
    LlamaTimings,
    VllmMetrics,
    WireUsage,
    finish_reason,
)
from harness.inference.wire.openai_request import wire_fields
from harness.inference.wire.sse import event_data
from harness.trace import Clock, monotonic

_CONNECT_TIMEOUT_S = 5.0
_KEEPALIVE_S = 3.0
_END_TIMEOUT_S = 1.0
_DONE = b"[DONE]"
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


class OpenAIWire:
    """A server that speaks `POST <url>/chat/completions` with server-sent events.

    Args:
        endpoint: Where it is and what its model is called there; `url` must be set.
        api_key: Sent as a bearer token.
        clock: The caller's clock.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, clock: Clock = monotonic
    ) -> None:
        assert endpoint.url is not None
        base = httpx.URL(endpoint.url)
        self._endpoint = endpoint
        self._clock = clock
        self._url = f"{endpoint.url.rstrip('/')}/chat/completions"
        self._client = httpx.AsyncClient(
            headers=_authorization(api_key, endpoint=endpoint.tag),
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
            # llama-server and vLLM drop a connection after 5 s idle: let it go before they do.
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_S),
            # Loading certificates takes 20 ms that plain HTTP does not need; a proxy from the
            # environment must not stand between us and this machine.
            verify=base.scheme == "https",
            trust_env=base.host not in _LOOPBACK,
        )

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        try:
            async with asyncio.timeout(self._endpoint.timeout_s):
                return await self._chat(request)
        except TimeoutError as error:
            raise CallTimeout(
                f"no whole reply within timeout_s = {self._endpoint.timeout_s:g} s",
                endpoint=self._endpoint.tag,
            ) from error

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self._client.aclose()

    async def _chat(self, request: ChatRequest) -> Completion:
        body = orjson.dumps(wire_fields(request, self._endpoint.model_id))
        reply = _StreamedReply(endpoint=self._endpoint, clock=self._clock)
        sent_ns = self._clock()
        async with self._open(body) as response:
            try:
                if response.status_code != 200 or _is_json(response):
                    refusal = await response.aread()
                    raise self._refusal(response.status_code, refusal, response.headers)
                events = event_data(response.aiter_bytes())
                async for data in events:
                    if data == _DONE:
                        break
                    reply.add(data)
                else:
                    raise self._cut("the stream ended without [DONE]")
            except httpx.RequestError as error:
                raise self._cut(f"the connection broke: {error or type(error).__name__}") from error
            completion = reply.whole(sent_ns)
            await _read_to_end(events)
        return completion

    @asynccontextmanager
    async def _open(self, body: bytes) -> AsyncIterator[httpx.Response]:
        """Sends the request and waits for the reply's headers."""
        request = self._client.build_request(
            "POST", self._url, content=body, headers={"content-type": "application/json"}
        )
        try:
            try:
                response = await self._client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
                if self._client.is_closed:
                    raise self._cut("the connections were closed on this side") from error
                # The server had closed the pooled connection that we chose. Not a byte of a reply
                # has come, so sending again cannot repeat anything.
                response = await self._client.send(request, stream=True)
        except httpx.RequestError as error:
            raise EndpointUnreachable(
                f"nothing answers at {self._url} ({error or type(error).__name__}); is the server "
                "running, and is the endpoint's url right?",
                endpoint=self._endpoint.tag,
            ) from error
        try:
            yield response
        finally:
            await response.aclose()

    def _refusal(self, status: int, body: bytes, headers: httpx.Headers) -> InferenceError:
        return error_from_reply(
            status,
            body,
            headers=headers,
            endpoint=self._endpoint.tag,
            model_id=self._endpoint.model_id,
        )

    def _cut(self, how: str) -> StreamCut:
        return StreamCut(f"the reply was cut off: {how}", endpoint=self._endpoint.tag)


@dataclass(slots=True, kw_only=True)
class _StreamedReply:
    """What has arrived so far of one reply."""

    endpoint: Endpoint
    clock: Clock
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    token_ns: list[int] = field(default_factory=list)
    ended_ns: int | None = None
    finish_reason: str | None = None
    model_id: str | None = None
    usage: WireUsage | None = None
    timings: LlamaTimings | None = None
    metrics: VllmMetrics | None = None

    def add(self, data: bytes) -> None:
        """Takes in one chunk."""
        try:
            chunk = Chunk.model_validate_json(data)
        except ValidationError as error:
            raise StreamCut(
                f"the stream holds what is not a chunk: {data[:200]!r}", endpoint=self.endpoint.tag
            ) from error
        if chunk.error is not None:
            raise error_from_reply(
                200,
                data,
                headers={},
                endpoint=self.endpoint.tag,
                model_id=self.endpoint.model_id,
            )
        self.model_id = chunk.model or self.model_id
        self.usage = chunk.usage or self.usage
        self.timings = chunk.timings or self.timings
        self.metrics = chunk.metrics or self.metrics
        for choice in chunk.choices:
            if choice.finish_reason:
                # The last tokens may have had no text: the end of a word, or of the reply.
                self.finish_reason, self.ended_ns = choice.finish_reason, self.clock()
            thought = choice.delta.reasoning or choice.delta.reasoning_content or ""
            said = choice.delta.content or ""
            if thought or said:
                self.token_ns.append(self.clock())
            self.reasoning.append(thought)
            self.text.append(said)

    def whole(self, sent_ns: int) -> Completion:
        """The completion, now that the stream has ended as it should."""
        if self.finish_reason is None or self.usage is None:
            missing = "finish reason" if self.finish_reason is None else "usage"
            raise StreamCut(f"the reply came without its {missing}", endpoint=self.endpoint.tag)
        details = self.usage.prompt_tokens_details
        first_token_ns = self.token_ns[0] if self.token_ns else None
        return Completion(
            text="".join(self.text),
            reasoning="".join(self.reasoning),
            finish_reason=finish_reason(self.finish_reason),
            usage=Usage(
                input_tokens=self.usage.prompt_tokens,
                output_tokens=self.usage.completion_tokens,
                cached_tokens=details.cached_tokens if details else None,
            ),
            sent_ns=sent_ns,
            first_token_ns=first_token_ns,
            phases=call_phases(
                sent_ns=sent_ns,
                first_token_ns=first_token_ns,
                done_ns=self.clock() if self.ended_ns is None else self.ended_ns,
                timings=self.timings,
                metrics=self.metrics,
            ),
            model_id=self.model_id or self.endpoint.model_id,
            itl=inter_token_latency(self.token_ns),
        )


def _is_json(response: httpx.Response) -> bool:
    # Some servers find the fault of a streamed call too late for a status: 200, and an error.
    content_type: str = response.headers.get("content-type", "")
    return content_type.startswith("application/json")


async def _read_to_end(events: AsyncIterator[bytes]) -> None:
    """Reads what follows a reply: nothing, but only then can the connection be used again."""
    with suppress(TimeoutError, httpx.RequestError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            async for _ in events:
                pass


def _authorization(api_key: str | None, *, endpoint: str) -> dict[str, str]:
    # A key that was read from a file often still has its newline.
    key = (api_key or "").strip()
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        # Without the key: messages end up in logs and traces.
        raise ConfigurationInvalid(
            f"the API key of endpoint '{endpoint}' holds characters that an HTTP header cannot; "
            "only printable ASCII can"
        )
    return {"authorization": f"Bearer {key}"}
