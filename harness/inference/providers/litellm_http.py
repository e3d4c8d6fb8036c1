"""The HTTP client for litellm: it repeats nothing, loses nothing, and works in any event loop.

litellm's own client sends a request again when the server hangs up. It splits event streams at
every character that Unicode calls a line end, even inside a JSON string, and silently drops the
piece of the reply that held one. It shares some clients between event loops, where one loop's
connections fail in another. It follows redirects to any host, with the provider's key and the
prompt; here no redirect is followed.

Only `litellm.import_litellm` imports litellm itself, after its settings are made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import orjson

from harness.errors import NotTrusted
from harness.inference.json_text import at, parsed
from harness.inference.providers.connection_stack import KEEPALIVE_S
from harness.inference.providers.http import (
    PACKED_AS,
    BoundedBody,
    HttpConnection,
    read_to_end,
    trace_headers,
)
from harness.inference.providers.json_stream import is_end_mark, json_values
from harness.inference.providers.wire_reply import divided, first_choices

_LIMITS = httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_S)
_DONE = b"[DONE]"
# Line ends in UTF-8, and as JSON escapes them. JSON has to escape all other line ends anyway.
_LINE_ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}


class _HttpxBody(BoundedBody, httpx.AsyncByteStream):
    pass


class HttpxConnection(HttpConnection):
    """Connections of httpx, since litellm takes no others."""

    new_client = staticmethod(partial(httpx.AsyncClient, limits=_LIMITS))
    new_body = _HttpxBody
    new_tls = staticmethod(httpx.create_ssl_context)
    client: httpx.AsyncClient  # type: ignore[assignment]


@dataclass(slots=True, kw_only=True)
class HttpCall:
    """One call: values that the HTTP client and litellm's caller exchange past litellm."""

    # The client adds the query of the endpoint's address: litellm would add paths behind it.
    connection: HttpxConnection
    # Raises `NotTrusted` for an address that nothing may be sent to.
    check_address: Callable[[str], None]
    refusal: NotTrusted | None = None  # raised by `check_address`
    # Closed when the call is over, however it ends.
    responses: list[httpx.Response] = field(default_factory=list)
    # Whether the reply has a place for a finish reason, in OpenAI's format or in Anthropic's.
    tells_end: bool = False
    finish_word: str | None = None  # the provider's own finish reason

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
                self.finish_word = word or self.finish_word
            case {"choices": [{}, *_]}:
                self.tells_end = True


HTTP_CALL: ContextVar[HttpCall | None] = ContextVar("HTTP_CALL", default=None)


@asynccontextmanager
async def http_call(
    connection: HttpxConnection, *, check_address: Callable[[str], None]
) -> AsyncIterator[HttpCall]:
    """The block in which litellm makes a call; raises `NotTrusted` for a forbidden address."""
    call = HttpCall(connection=connection, check_address=check_address)
    token = HTTP_CALL.set(call)
    try:
        yield call
    except Exception:
        if call.refusal is None:
            raise
        raise call.refusal from None
    finally:
        HTTP_CALL.reset(token)
        for response in call.responses:
            await response.aclose()


class CarefulClient(httpx.AsyncClient):
    """A client that sends each call over the connections of its endpoint, and nothing else."""

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:  # noqa: ANN401
        """Sends a request once; see `httpx.AsyncClient.send`."""
        call = HTTP_CALL.get()
        if call is None:
            raise httpx.NetworkError("litellm sends something by itself", request=request)
        client = call.connection.client
        # For most providers litellm keeps only one timeout, where the endpoint has one to connect.
        request.extensions = {**request.extensions, "timeout": client.timeout.as_dict()}
        request.headers["accept-encoding"] = PACKED_AS
        # Some providers get litellm's own `authorization` in place of the endpoint's.
        request.headers.update(trace_headers() | call.connection.endpoint.headers)
        address = httpx.URL(call.connection.base)
        if (request.url.host, request.url.port) == (address.host, address.port):
            request.url = request.url.copy_merge_params(client.params)
        _check_address(request)
        try:
            response = await client.send(request, **options)
        except (httpx.ConnectError, httpx.RemoteProtocolError) as error:
            # After these two errors litellm would send the request again, but not after this one.
            raise httpx.NetworkError(str(error), request=request) from error
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        # Some servers ignore `stream`, and answer with one document, which litellm reads as a
        # stream.
        wants_stream = response.is_success and at(parsed(request.content), "stream") is True
        if (is_stream or wants_stream) and not response.is_closed:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _EventStream(response.stream, call)
        if response.is_closed:
            call.read_end(parsed(response.content))
        call.responses.append(response)
        return response


CLIENT = CarefulClient(verify=False)  # it connects to nothing itself
"""The client of all calls that litellm makes."""


def make_careful(litellm: Any) -> None:  # noqa: ANN401 - litellm's own types are incomplete
    """Makes litellm send all through `CLIENT`, or through clients that follow no redirect."""
    if litellm.aclient_session is CLIENT:
        return
    from litellm.caching.llm_caching_handler import LLMClientCache  # noqa: PLC0415
    from litellm.llms.custom_httpx.http_handler import (  # noqa: PLC0415
        AsyncHTTPHandler,
        HTTPHandler,
    )

    class CarefulCache(LLMClientCache):
        """litellm's store of HTTP handlers, whose client it replaces."""

        def set_cache(self, key: str, value: object, *args: Any, **options: Any) -> None:  # noqa: ANN401
            if isinstance(value, AsyncHTTPHandler):
                value.client = CLIENT
            super().set_cache(key, value, *args, **options)

    litellm.in_memory_llm_clients_cache = CarefulCache()
    # A few providers are called by handlers that no cache sees, some of them without an event loop.
    for handler in (HTTPHandler, AsyncHTTPHandler):
        handler.create_client = _careful(handler.create_client)  # type: ignore[method-assign]
    litellm.aclient_session = CLIENT


def _check_address(request: httpx.Request) -> None:
    call = HTTP_CALL.get()
    if call is not None:
        try:
            call.check_address(str(request.url))
        except NotTrusted as error:
            # `http_call` raises this error again in place of the one that litellm makes of it,
            # which says less.
            call.refusal = error
            raise


def _careful(create_client: Callable[..., Any]) -> Callable[..., Any]:
    """A function of litellm that creates clients, with clients that follow no redirect."""

    def create_careful_client(*args: Any, **options: Any) -> Any:  # noqa: ANN401
        client = create_client(*args, **options)
        client.follow_redirects = False
        if isinstance(client, httpx.Client):
            client.event_hooks = {"request": [_check_address]}
        return client

    return create_careful_client


class _EventStream(httpx.AsyncByteStream):
    """A stream of JSON events as litellm can read it: a line each, no pings, no comments."""

    def __init__(self, stream: httpx.AsyncByteStream, call: HttpCall) -> None:
        self._stream = stream
        self._values = json_values(aiter(stream))
        self._call = call
        self._has_ended = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for value in self._values:
            self._has_ended = is_end_mark(value)
            is_ping = isinstance(value, str) and not value.startswith("{")
            if is_ping and not self._has_ended:
                continue
            data = _DONE if self._has_ended else orjson.dumps(_with_text_content(value))
            # litellm would end a line there, and lose the piece.
            for end, escaped in _LINE_ENDS.items():
                data = data.replace(end, escaped)
            self._call.read_end(value)
            yield b"data: " + data + b"\n\n"

    async def aclose(self) -> None:
        if self._has_ended:
            # OpenAI's library stops at the end mark, but only a body that was read to its end frees
            # its connection.
            await read_to_end(self._values)
        await self._stream.aclose()


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
