"""litellm's way to providers: over the connections that all other calls use.

litellm's own client sends a request again when the server hangs up. It splits event streams at
every character that Unicode calls a line end, even inside a JSON string, and silently drops the
piece of the reply that held one. It shares some clients between event loops, where one loop's
connections fail in another. It follows redirects to any host, with the provider's key and the
prompt; here no redirect is followed.

Only `litellm.import_litellm` imports litellm itself, after its settings are made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import orjson

from harness.errors import HarnessError
from harness.inference.json_text import at, parsed
from harness.inference.providers.http import (
    PACKED_AS,
    Exchange,
    HttpConnection,
    read_to_end,
    trace_headers,
)
from harness.inference.providers.json_stream import is_end_mark, json_values
from harness.inference.providers.wire_reply import divided, first_choices, later_end

_DONE = b"[DONE]"
_BINARY_STREAM = "amazon.eventstream"  # a part of its content type
# Line ends in UTF-8, and as JSON escapes them. JSON has to escape all other line ends anyway.
_LINE_ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}


@dataclass(slots=True, kw_only=True)
class HttpCall:
    """One call: what its requests and litellm's caller exchange past litellm."""

    connection: HttpConnection
    exchange: Exchange
    # Raises `NotTrusted` for an address that nothing may be sent to.
    check_address: Callable[[str], None]
    error: HarnessError | None = None
    sent: int = 0  # requests of litellm's; `exchange` may have sent one of them again
    # The rest of a stream, so that its connection can be used again.
    rest: AsyncIterator[object] | None = None
    # Whether the reply has a place for a finish reason, in OpenAI's format or in Anthropic's.
    tells_end: bool = False
    finish_word: str | None = None  # the provider's own finish reason

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request of litellm's once; the response is one that litellm can read."""
        client = self.connection.client
        url = httpx2.URL(str(request.url))
        address = httpx2.URL(self.connection.base)
        if (url.host, url.port) == (address.host, address.port):
            # The query of the endpoint's address: litellm would add paths behind it.
            url = url.copy_merge_params(client.params)
        self.check_address(str(url))
        # Some providers get litellm's own `authorization` in place of the endpoint's.
        request.headers.update(trace_headers() | self.connection.endpoint.headers)
        request.headers["accept-encoding"] = PACKED_AS
        body = await request.aread()
        self.sent += 1
        reply = await self.exchange.send(
            httpx2.Request(
                request.method,
                url,
                headers=request.headers.raw,
                content=body,
                # For most providers litellm keeps one timeout, and the endpoint has one to connect.
                extensions={"timeout": client.timeout.as_dict()},
            )
        )
        kind = reply.headers.get("content-type", "")
        # Some servers ignore `stream`: litellm reads their one document as a stream.
        is_stream = kind.startswith("text/event-stream") or at(parsed(body), "stream") is True
        content: bytes | AsyncIterator[bytes]
        if is_stream and reply.is_success:
            self.rest = json_values(self.connection.chunks(reply))
            content = self._read(self._events(self.rest))
        elif reply.is_success and _BINARY_STREAM in kind:
            content = self._read(self.connection.chunks(reply))
        else:
            content = await self.connection.read(reply)
            self.read_end(parsed(content))
        headers = reply.headers.copy()
        headers.pop("content-encoding", None)  # the content is unpacked
        headers.pop("set-cookie", None)  # `CLIENT`, which all endpoints share, would send it back
        return httpx.Response(reply.status_code, headers=headers.raw, content=content)

    @contextmanager
    def kept_error(self) -> Iterator[None]:
        """Keeps the block's error, of which litellm makes another that says less."""
        try:
            yield
        except HarnessError as error:
            self.error = error
            raise

    def read_end(self, value: object) -> None:
        """Reads the finish reason in a reply, or in one event of a stream, if it has one."""
        match value:
            case {"choices": [{"index": int(index)}, *_]} if index:
                return  # a second reply, which was not asked for
            case (
                {"choices": [{"finish_reason": str(word)}, *_]}
                | {"type": "message", "stop_reason": str(word)}
                | {"type": "message_delta", "delta": {"stop_reason": str(word)}}
            ):
                self.tells_end = True
                self.finish_word = later_end(self.finish_word, word)
            case {"choices": [{}, *_]}:
                self.tells_end = True

    async def _read(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        with self.kept_error():
            async for chunk in chunks:
                yield chunk

    async def _events(self, values: AsyncIterator[Any]) -> AsyncIterator[bytes]:
        """A stream of JSON events as litellm can read it: a line each, no pings, no comments."""
        async for value in values:
            has_ended = is_end_mark(value)
            is_ping = isinstance(value, str) and not value.startswith("{")
            if is_ping and not has_ended:
                continue
            data = _DONE if has_ended else orjson.dumps(_with_text_content(value))
            # litellm would end a line there, and lose the piece.
            for end, escaped in _LINE_ENDS.items():
                data = data.replace(end, escaped)
            self.read_end(value)
            yield b"data: " + data + b"\n\n"


HTTP_CALL: ContextVar[HttpCall | None] = ContextVar("HTTP_CALL", default=None)


@asynccontextmanager
async def http_call(
    connection: HttpConnection, *, check_address: Callable[[str], None]
) -> AsyncIterator[HttpCall]:
    """The block in which litellm makes a call; raises our own error of a request that failed."""
    async with Exchange(connection) as exchange:
        call = HttpCall(connection=connection, exchange=exchange, check_address=check_address)
        token = HTTP_CALL.set(call)
        try:
            yield call
        except Exception:
            if call.error is None:
                raise
            raise call.error from None
        finally:
            HTTP_CALL.reset(token)
        if call.rest is not None:
            # OpenAI's library stops at the end mark; a connection is free at the body's end.
            await read_to_end(call.rest)


class _Transport(httpx.AsyncBaseTransport):
    """Sends each request over the connections of the endpoint that is called, and nothing else."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if (call := HTTP_CALL.get()) is None:
            raise httpx.NetworkError("litellm sends something by itself", request=request)
        with call.kept_error():
            return await call.send(request)


class _LastingClient(httpx.AsyncClient):
    """A client that stays open: litellm closes handlers, and with them what it takes for theirs."""

    async def aclose(self) -> None:
        """There is nothing to close: each endpoint closes its own connections."""


CLIENT = _LastingClient(transport=_Transport())
"""The client of all calls that litellm makes in an event loop."""


def make_careful(litellm: Any) -> None:  # noqa: ANN401 - litellm's own types are incomplete
    """Makes litellm send all through `CLIENT`, or through clients that follow no redirect."""
    if litellm.aclient_session is CLIENT:
        return
    from litellm.caching.llm_caching_handler import LLMClientCache  # noqa: PLC0415
    from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler, HTTPHandler  # noqa: PLC0415

    create_client = HTTPHandler.create_client

    def create_careful_client(handler: Any) -> httpx.Client:  # noqa: ANN401 - litellm's own
        client = create_client(handler)
        client.follow_redirects = False
        client.event_hooks = {"request": [_check_address]}
        return client

    # A few providers are called without an event loop.
    HTTPHandler.create_client = create_careful_client  # type: ignore[assignment, method-assign]
    AsyncHTTPHandler.create_client = lambda *_, **__: CLIENT  # type: ignore[method-assign]
    # In place of what the program's own calls of litellm have left, which is not careful.
    litellm.in_memory_llm_clients_cache = LLMClientCache()
    litellm.module_level_client = HTTPHandler()
    litellm.module_level_aclient = AsyncHTTPHandler()
    litellm.aclient_session = CLIENT


def _check_address(request: httpx.Request) -> None:
    if (call := HTTP_CALL.get()) is not None:
        with call.kept_error():
            call.check_address(str(request.url))


def _with_text_content(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A chunk of OpenAI's format as a delta whose content is a text."""
    # litellm loses contents in parts, and whole replies in a stream.
    choice = next(iter(first_choices(value)), {})
    part = choice.get("delta") or choice.get("message")
    if not isinstance(part, dict) or ("delta" in choice and isinstance(part.get("content"), str)):
        return value
    text, reasoning = divided(part.get("content"))
    delta = {**part, "content": text}
    if reasoning:
        delta["reasoning_content"] = reasoning
    return {**value, "choices": [{**choice, "delta": delta}]}
