"""An httpx2 client that keeps its connections on a stack, so that a call costs the same in a crowd.

httpcore's pool looks at all its connections for each request, which at 64 at once is most of what a
call costs. Nothing is sent twice here: the caller decides about a request that broke.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextvars import Context
from functools import partial
from typing import Any

import httpx2

# llama-server and vLLM close a connection after 5 s idle: close it before they do.
KEEPALIVE_S = 3.0
_LIMITS = {"limits": httpx2.Limits(keepalive_expiry=KEEPALIVE_S)}


class StackingClient(httpx2.AsyncClient):
    """httpx2's client with a stack in place of each pool: the direct one, and one for each proxy.

    Its connections live in one event loop, and share `verify`, an SSL context.
    """

    # With a `transport` of ours, httpx2 would not look for proxies in the environment. If one of
    # these private names changes, httpx2's own pool is used; a test notices that.
    def _init_transport(self, **settings: Any) -> httpx2.AsyncBaseTransport:  # type: ignore[override]  # noqa: ANN401
        return _stacked(super()._init_transport(**settings | _LIMITS))

    def _init_proxy_transport(self, *proxy: Any, **settings: Any) -> httpx2.AsyncBaseTransport:  # noqa: ANN401
        return _stacked(super()._init_proxy_transport(*proxy, **settings | _LIMITS))


def _stacked(transport: httpx2.AsyncBaseTransport) -> httpx2.AsyncBaseTransport:
    pool = getattr(transport, "_pool", None)
    if pool is not None:
        setattr(transport, "_pool", _Stack(pool))  # noqa: B010 - for the type checker
    return transport


class _Stack:
    """Connections, of which the one used last is used next; `pool` only makes them."""

    def __init__(self, pool: Any) -> None:  # noqa: ANN401 - httpcore's, for a proxy or for none
        self._pool = pool
        # Origin → its idle connections, the longest idle first, with the loop's time since when.
        self._idle = defaultdict[str, deque[tuple[float, Any]]](deque)
        self._busy = set[Any]()
        self._sweeper: asyncio.Task[None] | None = None

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - httpcore's
        origin = request.url.origin
        idle = self._idle[str(origin)]
        connection = None
        while connection is None and idle:
            # The server is least likely to have closed the connection that was used last.
            _, latest = idle.pop()
            if latest.has_expired():  # also if the server has closed it
                await latest.aclose()
            else:
                connection = latest
        if connection is None:
            connection = self._pool.create_connection(origin)
        self._busy.add(connection)
        release = partial(self._release, connection, idle)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await release()
            raise
        response.stream = _Body(response.stream, release)
        return response

    async def aclose(self) -> None:
        """Closes all connections; calls that are under way are cut off."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        connections = [connection for idle in self._idle.values() for _, connection in idle]
        connections += self._busy
        self._idle.clear()
        self._busy.clear()
        for connection in connections:
            await connection.aclose()

    async def _release(self, connection: Any, idle: deque[tuple[float, Any]]) -> None:  # noqa: ANN401
        if connection not in self._busy:
            return  # `aclose` has closed it meanwhile
        self._busy.remove(connection)
        if connection.is_closed() or not connection.is_idle():
            await connection.aclose()
            return
        loop = asyncio.get_running_loop()
        idle.append((loop.time(), connection))
        if self._sweeper is None or self._sweeper.done():
            # In a context of its own: the caller's would keep its span and its texts alive.
            self._sweeper = loop.create_task(self._sweep(), context=Context())

    async def _sweep(self) -> None:
        """Closes connections that are idle for too long; ends when none is idle."""
        # A server closes its side after a while, and this side would stay half open.
        while any(self._idle.values()):
            await asyncio.sleep(KEEPALIVE_S)
            oldest_s = asyncio.get_running_loop().time() - KEEPALIVE_S
            for idle in [*self._idle.values()]:
                while idle and idle[0][0] <= oldest_s:
                    _, connection = idle.popleft()
                    await connection.aclose()


class _Body:
    """The body of a response; releases its connection when it is closed."""

    def __init__(
        self, stream: AsyncIterable[bytes], release: Callable[[], Awaitable[None]]
    ) -> None:
        self._stream: Any = stream
        self._release = release

    def __aiter__(self) -> AsyncIterator[bytes]:
        return aiter(self._stream)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._release()
