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
# In UTF-8, and as JSON escapes them. All others it has to escape anyway.
_LINE_ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}


class _HttpxBody(BoundedBody, httpx.AsyncByteStream):
    pass


class HttpxConnection(HttpConnection):
    """Connections of httpx: litellm takes no others."""

    new_client = staticmethod(partial(httpx.AsyncClient, limits=_LIMITS))
    new_body = _HttpxBody
    new_tls = staticmethod(httpx.create_ssl_context)
    client: httpx.AsyncClient  # type: ignore[assignment]


@dataclass(slots=True, kw_only=True)
class HttpCall:
    """One call: what the HTTP client and litellm's caller tell each other past litellm."""

    # To the provider. litellm does not get the query of its address: it would add paths to it.
    connection: HttpxConnection
    # Raises `NotTrusted` for an address that nothing may be sent to.
    check_address: Callable[[str], None]
    refusal: NotTrusted | None = None
    # What was answered; closed when the call is over, however it ends.
    responses: list[httpx.Response] = field(default_factory=list)
    # Whether the reply has a place for a finish reason, in OpenAI's format or in Anthropic's.
    tells_end: bool = False
    finish_word: str | None = None  # how the reply ended, by the provider's word there

    def look_in(self, value: object) -> None:
        """Looks in a reply, or in one event of a stream; what is no reply, litellm refuses."""
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

    async def send(self, request: httpx.Request, **how: Any) -> httpx.Response:  # noqa: ANN401
        """Sends a request once; see `httpx.AsyncClient.send`."""
        call = HTTP_CALL.get()
        if call is None:
            raise httpx.NetworkError("litellm sends something by itself", request=request)
        client = call.connection.client
        # For most providers litellm keeps only one timeout; all but connecting is limited above.
        request.extensions = {**request.extensions, "timeout": client.timeout.as_dict()}
        request.headers["accept-encoding"] = PACKED_AS
        # Some providers get litellm's own `authorization` in place of the endpoint's.
        request.headers.update(trace_headers() | call.connection.endpoint.headers)
        address = httpx.URL(call.connection.base)
        if (request.url.host, request.url.port) == (address.host, address.port):
            request.url = request.url.copy_merge_params(client.params)
        _check_address(request)
        try:
            response = await client.send(request, **how)
        except (httpx.ConnectError, httpx.RemoteProtocolError) as error:
            # By any other name, litellm does not send it again.
            raise httpx.NetworkError(str(error), request=request) from error
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        # Some servers take no notice of `stream`, and answer with one document.
        is_asked = response.is_success and at(parsed(request.content), "stream") is True
        if (is_stream or is_asked) and not response.is_closed:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _EventStream(response.stream, call)
        if response.is_closed:
            call.look_in(parsed(response.content))
        call.responses.append(response)
        return response


CLIENT = CarefulClient(verify=False)  # it connects to nothing itself
"""The one that all of litellm's calls go through."""


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
        """litellm's store of HTTP handlers."""

        def set_cache(self, key: str, value: object, *args: Any, **how: Any) -> None:  # noqa: ANN401
            if isinstance(value, AsyncHTTPHandler):
                value.client = CLIENT
            super().set_cache(key, value, *args, **how)

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
            # The error that litellm makes of it says less: `http_call` raises this one.
            call.refusal = error
            raise


def _careful(create_client: Callable[..., Any]) -> Callable[..., Any]:
    def created(*args: Any, **how: Any) -> Any:  # noqa: ANN401
        client = create_client(*args, **how)
        client.follow_redirects = False
        if isinstance(client, httpx.Client):
            client.event_hooks = {"request": [_check_address]}
        return client

    return created


class _EventStream(httpx.AsyncByteStream):
    """A stream of JSON events as litellm can read it: a line each, no pings, no comments."""

    def __init__(self, stream: httpx.AsyncByteStream, call: HttpCall) -> None:
        self._stream = stream
        self._values = json_values(aiter(stream))
        self._call = call
        self._done = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for value in self._values:
            self._done = is_end_mark(value)
            if isinstance(value, str) and not (self._done or value.startswith("{")):
                continue
            data = _DONE if self._done else orjson.dumps(_in_text(value))
            # litellm would end a line there, and lose the piece.
            for end, escaped in _LINE_ENDS.items():
                data = data.replace(end, escaped)
            self._call.look_in(value)
            yield b"data: " + data + b"\n\n"

    async def aclose(self) -> None:
        if self._done:
            # OpenAI's library stops here. Only a reply read to its end frees its connection.
            await read_to_end(self._values)
        await self._stream.aclose()


def _in_text(value: Any) -> Any:  # noqa: ANN401 - JSON
    """A chunk of OpenAI's format, its content a text: litellm loses parts, and whole replies."""
    choice = next(iter(first_choices(value)), {})
    part = choice.get("delta") or choice.get("message")
    if not isinstance(part, dict) or ("delta" in choice and isinstance(part.get("content"), str)):
        return value
    text, thought = divided(part.get("content"))
    message = {"content": text} | ({"reasoning_content": thought} if thought else {})
    return {**value, "choices": [{**choice, "delta": part | message}]}
