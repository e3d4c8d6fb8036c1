"""The HTTP client for litellm: it repeats nothing, loses nothing, and works in any event loop.

litellm's own client sends a request again when the server hangs up. It splits event streams at
every character that Unicode calls a line end, even inside a JSON string, and silently drops the
piece of the reply that held one. It shares some clients between event loops, where one loop's
connections fail in another. It follows redirects to any host, with the provider's key and the
prompt; here no redirect is followed.

Only `litellm.import_litellm` imports litellm itself, after its settings are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import httpx
import orjson

from harness.errors import NotTrusted
from harness.inference.endpoint import Endpoint
from harness.inference.providers.http import (
    KEEPALIVE_S,
    PACKED_AS,
    bound,
    lines,
    read_to_end,
    trace_headers,
)

_DONE = b"[DONE]"
_LINE_ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}
"""In UTF-8, and as JSON escapes them. All others it has to escape anyway."""


class FinishWord:
    """The finish reason as it came over the wire, in OpenAI's format or in Anthropic's."""

    def __init__(self) -> None:
        self._has_place = False
        self._word: str | None = None

    def look_in(self, body: bytes) -> None:
        """Looks in a reply, or in one event of a stream."""
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return  # an event of another kind, such as [DONE]; what is no reply, litellm refuses
        match value:
            case {"choices": [{"index": int(index)}, *_]} if index:
                pass  # a second reply, which was not asked for
            case (
                {"choices": [{"finish_reason": str(word)}, *_]}
                | {"type": "message", "stop_reason": str(word)}
                | {"type": "message_delta", "delta": {"stop_reason": str(word)}}
            ):
                self._has_place = True
                self._word = word or self._word
            case {"choices": [{}, *_]}:
                self._has_place = True

    def or_else(self, translated: str | None) -> str | None:
        """The provider's word; for other formats, the one that litellm translated."""
        return self._word if self._has_place else translated


@dataclass(slots=True, kw_only=True)
class HttpCall:
    """One call: what the HTTP client and litellm's caller tell each other past litellm."""

    endpoint: Endpoint
    """Whose model is called. litellm does not get the query of its address, to which it would add
    paths."""
    check_address: Callable[[str], None]
    """Raises `NotTrusted` for an address that nothing may be sent to."""
    refusal: NotTrusted | None = None
    """The error that it raised."""
    responses: list[httpx.Response] = field(default_factory=list)
    """What was answered; closed when the call is over, however it ends."""
    finish_word: FinishWord = field(default_factory=FinishWord)
    """How the reply ended, by the provider's word."""


HTTP_CALL: ContextVar[HttpCall | None] = ContextVar("HTTP_CALL", default=None)
"""The call under way."""


@asynccontextmanager
async def http_call(
    endpoint: Endpoint, *, check_address: Callable[[str], None]
) -> AsyncIterator[HttpCall]:
    """The block in which litellm makes a call.

    Raises:
        NotTrusted: It was about to send something where nothing may be sent.
    """
    call = HttpCall(endpoint=endpoint, check_address=check_address)
    token = HTTP_CALL.set(call)
    try:
        yield call
    except Exception:
        # litellm makes an error of its own of it, and says less.
        if call.refusal is None:
            raise
        raise call.refusal from None
    finally:
        HTTP_CALL.reset(token)
        for response in call.responses:
            await response.aclose()


class CarefulClient(httpx.AsyncClient):
    """A client whose connections are pooled by event loop, for all users that the loop has."""

    def __init__(self) -> None:
        # Loading certificates takes 20 ms.
        self._certificates = httpx.create_ssl_context()
        super().__init__(verify=self._certificates)
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            WeakKeyDictionary()
        )
        self._users: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakSet[object]] = (
            WeakKeyDictionary()
        )

    async def send(self, request: httpx.Request, **how: Any) -> httpx.Response:  # noqa: ANN401
        """Sends a request once; see `httpx.AsyncClient.send`."""
        call = HTTP_CALL.get()
        if call is not None:
            # Of most providers litellm keeps one number only; all but connecting is limited above.
            limits = httpx.Timeout(None, connect=call.endpoint.connect_timeout_s)
            request.headers["accept-encoding"] = PACKED_AS
            request.headers.update(trace_headers())
            request.extensions = {**request.extensions, "timeout": limits.as_dict()}
            own = httpx.URL(call.endpoint.url or "")
            if own.query and (request.url.host, request.url.port) == (own.host, own.port):
                request.url = request.url.copy_merge_params(own.params)
            _check_address(request)
        try:
            response = await self._of_this_loop().send(request, **how)
        except (httpx.ConnectError, httpx.RemoteProtocolError) as error:
            # By any other name, litellm does not send it again.
            raise httpx.NetworkError(str(error), request=request) from error
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        if is_stream and not response.is_closed:
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _EventStream(response.stream, call)
        if call is not None:
            if response.is_closed:
                call.finish_word.look_in(response.content)
            call.responses.append(response)
        return response

    def join(self, user: object) -> None:
        """Keeps the running event loop's connections open for this user too, until it leaves."""
        self._users.setdefault(asyncio.get_running_loop(), WeakSet()).add(user)

    async def leave(self, user: object) -> None:
        """Closes the running event loop's connections, unless others still use them."""
        loop = asyncio.get_running_loop()
        users = self._users.get(loop, WeakSet())
        users.discard(user)
        if not users and (client := self._by_loop.pop(loop, None)) is not None:
            await client.aclose()

    def _of_this_loop(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            limits = httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_S)
            self._by_loop[loop] = httpx.AsyncClient(
                verify=self._certificates, limits=limits, event_hooks={"response": [_bounded]}
            )
        return self._by_loop[loop]


CLIENT = CarefulClient()
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


async def _bounded(response: httpx.Response) -> None:
    call = HTTP_CALL.get()
    if call is not None:
        bound(response, most_bytes=call.endpoint.max_reply_bytes)


def _check_address(request: httpx.Request) -> None:
    call = HTTP_CALL.get()
    if call is not None:
        try:
            call.check_address(str(request.url))
        except NotTrusted as error:
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
    """A stream of JSON events in which every line end really ends a line."""

    def __init__(self, stream: httpx.AsyncByteStream, call: HttpCall | None) -> None:
        self._stream = stream
        self._lines = lines(aiter(stream))
        self._call = call
        self._done = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for line in self._lines:
            for end, escaped in _LINE_ENDS.items():
                line = line.replace(end, escaped)  # noqa: PLW2901 - the same line
            if line.startswith(b"data:"):
                data = line[5:].strip()
                self._done = data == _DONE
                if self._call is not None:
                    self._call.finish_word.look_in(data)
            yield line + b"\n"

    async def aclose(self) -> None:
        if self._done:
            # OpenAI's library stops reading here, and only a reply that was read to its end leaves
            # its connection to the next.
            await read_to_end(self._lines)
        await self._stream.aclose()
