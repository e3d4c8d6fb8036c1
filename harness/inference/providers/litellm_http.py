"""The HTTP client under litellm: it repeats nothing, loses nothing, and belongs to no event loop.

litellm's own sends a request again, unasked, when the server hangs up. It splits event streams at
every character that Unicode calls a line's end, those inside a JSON string included, and passes
over a piece of the reply that holds one without a word. Of some clients it keeps one for all event
loops, and one loop's connections fail in another. It follows redirects to any host, with the
provider's key and the prompt; here none is followed.

litellm itself is imported by `litellm.import_litellm` alone, after its settings are made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import httpx

from harness.errors import NotTrusted
from harness.inference.providers.http import KEEPALIVE_S, PACKED_AS, bound, lines, read_to_end
from harness.inference.providers.litellm_call import HTTP_CALL, HttpCall

_DONE = b"[DONE]"
_LINE_ENDS = {b"\xc2\x85": rb"\u0085", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"}
"""In UTF-8, and as JSON escapes them. All others it has to escape anyway."""


class CarefulClient(httpx.AsyncClient):
    """A client whose connections are pooled by event loop, for all users that the loop has."""

    def __init__(self) -> None:
        super().__init__()
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
                limits=limits, event_hooks={"response": [_bounded]}
            )
        return self._by_loop[loop]


CLIENT = CarefulClient()
"""The one that all of litellm's calls go through."""


def make_careful(litellm: Any) -> None:  # noqa: ANN401 - litellm's own types are incomplete
    """Has all of litellm's calls go through `CLIENT`."""
    if litellm.aclient_session is CLIENT:
        return
    from litellm.caching.llm_caching_handler import LLMClientCache  # noqa: PLC0415
    from litellm.llms.custom_httpx.http_handler import (  # noqa: PLC0415
        AsyncHTTPHandler,
        HTTPHandler,
    )

    class CarefulCache(LLMClientCache):
        """A store of HTTP handlers, all of which get `CLIENT`."""

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
    """A stream of JSON events without line ends in it that are none."""

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
