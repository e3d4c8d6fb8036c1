"""An httpx2 client that keeps its connections on a stack: a call costs the same in any crowd.

httpcore's pool looks at all its connections for each request, which at 64 at once is most of what a
call costs. Nothing is sent twice here: a request that broke is its caller's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any

import httpx2

KEEPALIVE_S = 3.0
"""llama-server and vLLM close a connection after 5 s idle: close it before they do."""
_ONE = httpx2.Limits(max_connections=1, keepalive_expiry=KEEPALIVE_S)


class StackingClient(httpx2.AsyncClient):
    """httpx2's client with a stack in place of each pool: the direct one, and one for each proxy.

    Its connections live in one event loop, and share `verify`, an SSL context.
    """

    # These two are not public. If they are renamed, httpx2 uses its own pools again, which a test
    # notices; with a `transport` of ours it would not look for proxies in the environment.
    def _init_transport(self, **settings: Any) -> httpx2.AsyncBaseTransport:  # type: ignore[override]  # noqa: ANN401
        return _Stack(partial(super()._init_transport, **settings | {"limits": _ONE}))

    def _init_proxy_transport(self, *proxy: Any, **settings: Any) -> httpx2.AsyncBaseTransport:  # noqa: ANN401
        connect = super()._init_proxy_transport
        return _Stack(partial(connect, *proxy, **settings | {"limits": _ONE}))


class _Stack(httpx2.AsyncBaseTransport):
    """Transports of one connection each, which `connect` makes: the one used last goes next."""

    def __init__(self, connect: Callable[[], httpx2.AsyncBaseTransport]) -> None:
        self._connect = connect
        # By origin: the idle ones, and since when in the loop's seconds; the longest idle first.
        self._idle = defaultdict[object, deque[tuple[float, httpx2.AsyncBaseTransport]]](deque)
        self._busy = set[httpx2.AsyncBaseTransport]()
        self._sweeping: asyncio.Task[None] | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request over the connection that was used last, or a new one."""
        origin = request.url.scheme, request.url.host, request.url.port
        idle = self._idle[origin]
        transport = idle.pop()[1] if idle else self._connect()
        self._busy.add(transport)
        release = partial(self._release, transport, origin)
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            await release(can_go_on=False)
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, release)
        return response

    async def aclose(self) -> None:
        """Closes all connections; calls that are under way are cut off."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        every = [one for idle in self._idle.values() for _, one in idle] + [*self._busy]
        self._idle.clear()
        self._busy.clear()
        await _close(every)

    async def _release(
        self, transport: httpx2.AsyncBaseTransport, origin: object, *, can_go_on: bool
    ) -> None:
        if transport not in self._busy:
            return  # everything was closed meanwhile
        self._busy.remove(transport)
        if not can_go_on:
            await transport.aclose()
            return
        loop = asyncio.get_running_loop()
        self._idle[origin].append((loop.time(), transport))
        if self._sweeping is None or self._sweeping.done():
            # In a context of its own: the caller's would keep its span and its texts alive.
            self._sweeping = loop.create_task(self._sweep(), context=Context())

    async def _sweep(self) -> None:
        """Closes what is idle for too long: a server closes it on its side, and it stays half open.

        Ends when nothing is idle.
        """
        while any(self._idle.values()):
            await asyncio.sleep(KEEPALIVE_S)
            before = asyncio.get_running_loop().time() - KEEPALIVE_S
            unused = []
            for idle in self._idle.values():
                while idle and idle[0][0] <= before:
                    unused.append(idle.popleft()[1])
            await _close(unused)


async def _close(transports: list[httpx2.AsyncBaseTransport]) -> None:
    for transport in transports:
        await transport.aclose()


class _Body(httpx2.AsyncByteStream):
    """The body of a response, at whose end its connection is released."""

    def __init__(
        self, stream: httpx2.AsyncByteStream, release: Callable[..., Awaitable[None]]
    ) -> None:
        self._stream = stream
        self._release = release
        self._is_whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for data in self._stream:
            yield data
        self._is_whole = True

    async def aclose(self) -> None:
        can_go_on = False
        try:
            await self._stream.aclose()
            can_go_on = self._is_whole
        finally:
            await self._release(can_go_on=can_go_on)
