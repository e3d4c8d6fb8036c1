"""What one call sends over a connection, and what comes back."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import httpx
import orjson

from harness.errors import EndpointUnreachable, InferenceError, ServerError
from harness.inference.time_limits import timed_out
from harness.inference.wire.connection import Connection, read_to_end

_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_GONE = "disconnected without sending a response"
_JSON = {"content-type": "application/json"}
_READABLE = re.compile(r"^$|json|text/event-stream|text/plain|octet-stream", re.IGNORECASE)
"""Content types of replies: what servers send, and what stands before some of them makes of it."""


class Exchange:
    """The requests of one call; an `async with` block.

    Leaving it may take a moment more. That is no part of the call: it belongs around the call's
    limits, not inside them.

    Args:
        connection: Leads to the server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._open = AsyncExitStack()
        self.requests = 0
        """How many were sent so far."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._open.__aexit__(kind, error, traceback)

    async def post(self, url: str, fields: Mapping[str, object]) -> ServerReply:
        """Sends fields as JSON; the reply is then read as long as the block lasts.

        Raises:
            EndpointUnreachable: Nothing answers at the address.
            CallTimeout: Connecting took too long.
            StreamCut: The connection broke.
            ReplyTooLarge: The reply is longer than the endpoint allows.
            InferenceError: The reply is a refusal, or nothing that a model server sends.
        """
        response = await self._send(url, fields)
        self._open.push_async_callback(response.aclose)
        reply = ServerReply(response, connection=self._connection)
        if response.status_code != 200:
            raise self._no_reply(response, await reply.read())
        content_type = response.headers.get("content-type", "")
        if not _READABLE.search(content_type):
            raise ServerError(
                f"{url} answers with {content_type}, as no model server does; is the endpoint's "
                "url right?",
                endpoint=self._connection.endpoint.tag,
            )
        return reply

    async def ask(self, url: str, fields: Mapping[str, object]) -> bytes:
        """Sends fields as JSON and reads the whole reply; raises what `post` does."""
        return await (await self.post(url, fields)).read()

    def came_to_its_end(self, rest: AsyncIterator[bytes]) -> None:
        """A reply is whole; of what follows, nothing is wanted, and it is read on leaving."""
        self._open.push_async_callback(read_to_end, rest)

    async def _send(self, url: str, fields: Mapping[str, object]) -> httpx.Response:
        client, endpoint = self._connection.client, self._connection.endpoint
        connecting = _Connecting()
        request = client.build_request(
            "POST",
            url,
            content=orjson.dumps(fields),
            headers=_JSON,
            extensions={"trace": connecting},
        )
        try:
            self.requests += 1
            try:
                return await client.send(request, stream=True)
            except _BROKEN as error:
                if client.is_closed:
                    how = "the connections were closed on this side"
                    raise self._connection.cut(how) from error
                if connecting.seen:
                    raise  # Of a new connection, it is the server's answer to this request.
                if isinstance(error, httpx.RemoteProtocolError) and _GONE not in str(error):
                    raise  # Something did come, and was no HTTP.
                # The server had closed the pooled connection that we chose. No reply has begun, so
                # sending again cannot repeat any of it.
                self.requests += 1
                return await client.send(request, stream=True)
        except _BROKEN as error:
            how = f"the connection broke before it began: {_said(error)}"
            raise self._connection.cut(how) from error
        except httpx.ConnectTimeout as error:
            raise timed_out("connect_timeout_s", endpoint) from error
        except httpx.RequestError as error:
            raise EndpointUnreachable(
                f"nothing answers at {url} ({_said(error)}); is the server running, and is the "
                "endpoint's url right?",
                endpoint=endpoint.tag,
            ) from error

    def _no_reply(self, response: httpx.Response, body: bytes) -> InferenceError:
        status = response.status_code
        if response.has_redirect_location:
            return ServerError(
                f"HTTP {status}: it sends callers on to {response.headers['location']}; is the "
                "endpoint's url right?",
                endpoint=self._connection.endpoint.tag,
                status=status,
            )
        # Triton refuses a streamed call in the form of an event.
        data = body.removeprefix(b"data:")
        return self._connection.refusal(data, status=status, headers=response.headers)


class ServerReply:
    """A reply whose headers are here.

    What breaks while it is read is raised as `StreamCut`, and one that is too long as
    `ReplyTooLarge`; what its reader does is none of it.
    """

    def __init__(self, response: httpx.Response, *, connection: Connection) -> None:
        self._response = response
        self._connection = connection
        self.headers: Mapping[str, str] = response.headers

    @property
    def is_json(self) -> bool:
        """Whether it comes whole, and not as a stream of events."""
        return self.headers.get("content-type", "").startswith("application/json")

    async def read(self) -> bytes:
        """All of it."""
        try:
            return (await self._response.aread()).removeprefix(codecs.BOM_UTF8)
        except httpx.RequestError as error:
            raise self._connection.broken(error) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes as they come."""
        try:
            async for chunk in self._response.aiter_bytes():
                yield chunk
        except httpx.RequestError as error:
            raise self._connection.broken(error) from error


class _Connecting:
    """Notices, as httpcore's `trace`, that a request has had a connection made for it."""

    def __init__(self) -> None:
        self.seen = False

    async def __call__(self, event: str, _details: Mapping[str, object]) -> None:
        self.seen = self.seen or event.endswith("connect_tcp.started")


def _said(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__
