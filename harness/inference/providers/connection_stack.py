"""An httpx2 client that keeps its connections on a stack: a call costs the same in any crowd.

httpcore's pool looks at all its connections for each request, which at 64 at once is most of what a
call costs. Nothing is sent twice here: a request that broke is its caller's.
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
    if (pool := getattr(transport, "_pool", None)) is not None:
        setattr(transport, "_pool", _Stack(pool))  # noqa: B010 - for the type checker
    return transport


class _Stack:
    """Connections, of which the one used last goes next; `pool` only makes them."""

    def __init__(self, pool: Any) -> None:  # noqa: ANN401 - httpcore's, for a proxy or for none
        self._pool = pool
        # By origin: the idle ones, and since when in the loop's seconds; the longest idle first.
        self._idle = defaultdict[str, deque[tuple[float, Any]]](deque)
        self._busy = set[Any]()
        self._sweeping: asyncio.Task[None] | None = None

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - httpcore's
        origin = request.url.origin
        idle = self._idle[str(origin)]
        while idle:
            # The one used last: it is the least likely to have been closed by its server.
            _, connection = idle.pop()
            if not connection.has_expired():  # or was closed by the server
                break
            await connection.aclose()
        else:
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
        if self._sweeping is not None:
            self._sweeping.cancel()
        every = [pooled for idle in self._idle.values() for _, pooled in idle] + [*self._busy]
        self._idle.clear()
        self._busy.clear()
        for connection in every:
            await connection.aclose()

    async def _release(self, connection: Any, idle: deque[tuple[float, Any]]) -> None:  # noqa: ANN401
        if connection not in self._busy:
            return  # everything was closed meanwhile
        self._busy.remove(connection)
        if connection.is_closed() or not connection.is_idle():
            await connection.aclose()
            return
        loop = asyncio.get_running_loop()
        idle.append((loop.time(), connection))
        if self._sweeping is None or self._sweeping.done():
            # In a context of its own: the caller's would keep its span and its texts alive.
            self._sweeping = loop.create_task(self._sweep(), context=Context())

    async def _sweep(self) -> None:
        """Closes what is idle for too long: a server closes its side, and ours stays half open."""
        while any(self._idle.values()):
            await asyncio.sleep(KEEPALIVE_S)
            before = asyncio.get_running_loop().time() - KEEPALIVE_S
            for idle in [*self._idle.values()]:
                while idle and idle[0][0] <= before:
                    await idle.popleft()[1].aclose()


class _Body:
    """The body of a response, with whose end its connection is released."""

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
