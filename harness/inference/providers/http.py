"""HTTP for model servers: connections, the exchange of one call, bodies, lines and errors."""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx
import orjson
from pydantic import ValidationError

from harness.errors import (
    ConfigurationInvalid,
    EndpointUnreachable,
    InferenceError,
    ReplyTooLarge,
    ServerError,
    StreamCut,
)
from harness.inference.endpoint import Endpoint
from harness.inference.providers.error_replies import error_from_reply
from harness.inference.time_limits import timed_out
from harness.trace.tracer import traceparent

KEEPALIVE_S = 3.0
"""llama-server and vLLM close a connection after 5 s idle: close it before they do."""
PACKED_AS = "gzip"
"""The encoding that servers may use."""
_END_TIMEOUT_S = 0.05
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_STEP_BYTES = 64 << 10
_REFUSAL_BYTES = 64 << 10
"""How much of an error's body is read. litellm searches all of it, 4 seconds a megabyte, and blocks
the event loop meanwhile."""
_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_GONE = "disconnected without sending a response"
_JSON = {"content-type": "application/json"}
_READABLE = re.compile(r"^$|json|text/event-stream|text/plain|octet-stream", re.IGNORECASE)
"""Content types of replies, as servers and the proxies before them send them."""

# --- addresses, keys and clients ------------------------------------------------------------


def base_of(url: str) -> str:
    """An endpoint's address without its query, which an `http_client` adds to every request."""
    return str(httpx.URL(url).copy_with(query=None, fragment=None)).rstrip("/")


def root_of(url: str) -> str:
    """The address of an endpoint's server, without `/v1`."""
    return base_of(url).removesuffix("/v1")


def bearer(api_key: str | None, *, endpoint: str) -> str | None:
    """A key in sendable form; None for an empty one.

    Raises:
        ConfigurationInvalid: It cannot stand in an HTTP header.
    """
    # A key that was read from a file often still has its newline.
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        # Without the key: messages end up in logs and traces.
        raise ConfigurationInvalid(
            f"the API key of endpoint '{endpoint}' has characters that an HTTP header cannot "
            "carry; use printable ASCII only",
            code="endpoint.key-not-sendable",
        )
    return key or None


def http_client(
    url: str | None, *, api_key: str | None, timeout: httpx.Timeout, max_reply_bytes: int
) -> httpx.AsyncClient:
    """A pool of connections to a model server.

    Args:
        url: Its address; None for one of this machine that is not known yet. Its query, such as a
            key for a proxy or a version, is sent with every request.
        api_key: Sent as a bearer token, as `bearer` gave it.
        timeout: For each step of a request.
        max_reply_bytes: A longer body ends in `BodyTooLong`.
    """

    async def bounded(response: httpx.Response) -> None:
        bound(response, most_bytes=max_reply_bytes)

    base = httpx.URL(url or "http://localhost")
    key = {"authorization": f"Bearer {api_key}"} if api_key else {}
    return httpx.AsyncClient(
        headers={"accept-encoding": PACKED_AS, **key},
        params=base.params,
        event_hooks={"response": [bounded]},
        timeout=timeout,
        limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEPALIVE_S),
        # Loading certificates takes 20 ms that plain HTTP does not need; a proxy from the
        # environment must not stand between us and this machine.
        verify=base.scheme == "https",
        trust_env=base.host not in _LOOPBACK,
    )


def trace_headers() -> dict[str, str]:
    """The header that tells a server the request's span in the run."""
    context = traceparent()
    return {} if context is None else {"traceparent": context}


# --- one endpoint ---------------------------------------------------------------------------


class Connection:
    """The connections to one endpoint, and the errors that its refusals and failures mean.

    The endpoint's `url` must be set.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        self.endpoint = endpoint
        self.client = http_client(
            endpoint.url,
            api_key=bearer(api_key, endpoint=endpoint.tag),
            timeout=httpx.Timeout(None, connect=endpoint.connect_timeout_s),
            max_reply_bytes=endpoint.max_reply_bytes,
        )

    def refusal(
        self, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> InferenceError:
        """The error of a refusal; without a status, it came inside a reply that had begun."""
        return error_from_reply(
            status,
            body,
            headers=headers or {},
            endpoint=self.endpoint.tag,
            model_id=self.endpoint.model_id,
        )

    def misread(self, data: bytes, error: ValidationError) -> InferenceError:
        """The error of a part of a reply that is not of the protocol.

        Broken JSON may be the rest of a broken reply, and another attempt may succeed. JSON of
        another shape will come again.
        """
        said = f"the reply has an unexpected part: {data[:200]!r}"
        if error.errors()[0]["type"] == "json_invalid":
            return StreamCut(said, endpoint=self.endpoint.tag)
        return ServerError(said, endpoint=self.endpoint.tag)

    def broken(self, error: httpx.RequestError) -> InferenceError:
        """The error of a reply whose rest could not be read."""
        if isinstance(error, BodyTooLong):
            return too_large(error, endpoint=self.endpoint)
        return self.cut(f"the connection broke: {str(error) or type(error).__name__}")

    def cut(self, how: str) -> StreamCut:
        """The error of a reply that did not come to its end."""
        return StreamCut(f"the reply was cut off: {how}", endpoint=self.endpoint.tag)

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self.client.aclose()


def too_large(error: BodyTooLong, *, endpoint: Endpoint) -> ReplyTooLarge:
    """The error of a body that is too long."""
    return ReplyTooLarge(
        f"the reply is longer than max_reply_bytes = {error.most_bytes}; raise it if you expect "
        "replies this long",
        endpoint=endpoint.tag,
        max_reply_bytes=error.most_bytes,
    )


# --- one call -------------------------------------------------------------------------------


class Exchange:
    """The requests of one call; an `async with` block.

    Leaving the block may take a moment, which is not part of the call: put it around the call's
    time limits, not inside them.
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

    async def post(
        self, url: str, fields: Mapping[str, object], *, on_sent: Callable[[], None] | None = None
    ) -> ServerReply:
        """Sends fields as JSON; the reply is then read as long as the block lasts.

        `on_sent` is called when all of it has been handed to the system; again if it is sent again.

        Raises:
            EndpointUnreachable: Nothing answers at the address.
            CallTimeout: Connecting took too long.
            StreamCut: The connection broke.
            ReplyTooLarge: The reply is longer than the endpoint allows.
            InferenceError: The server refused, or is no model server.
        """
        response = await self._send(url, fields, on_sent)
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
        """The reply is whole; the rest of the body is read on leaving, and dropped."""
        self._open.push_async_callback(read_to_end, rest)

    async def _send(
        self, url: str, fields: Mapping[str, object], on_sent: Callable[[], None] | None
    ) -> httpx.Response:
        client, endpoint = self._connection.client, self._connection.endpoint
        sending = _Sending(on_sent)
        request = client.build_request(
            "POST",
            url,
            content=orjson.dumps(fields),
            headers=_JSON | trace_headers(),
            extensions={"trace": sending},
        )
        try:
            self.requests += 1
            try:
                return await client.send(request, stream=True)
            except _BROKEN as error:
                if client.is_closed:
                    how = "the connections were closed on this side"
                    raise self._connection.cut(how) from error
                if sending.connected:
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
                f"HTTP {status}: it redirects to {response.headers['location']}; is the "
                "endpoint's url right?",
                endpoint=self._connection.endpoint.tag,
                status=status,
            )
        # Triton refuses a streamed call in the form of an event.
        data = body.removeprefix(b"data:")
        return self._connection.refusal(data, status=status, headers=response.headers)


class ServerReply:
    """A reply whose headers have arrived.

    Raises `StreamCut` if it breaks while it is read, and `ReplyTooLarge` if it is too long.
    """

    def __init__(self, response: httpx.Response, *, connection: Connection) -> None:
        self._response = response
        self._connection = connection
        self.headers: Mapping[str, str] = response.headers

    @property
    def is_json(self) -> bool:
        """Whether it comes whole, not as a stream of events."""
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


async def read_to_end(rest: AsyncIterator[bytes]) -> None:
    """Reads the end of a body, so that its connection can be used again; gives up in a moment.

    A new connection costs less than waiting for a slow server.
    """
    with suppress(TimeoutError, httpx.RequestError, InferenceError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            async for _ in rest:
                pass


class _Sending:
    """As httpcore's `trace`, notices that a connection was opened for a request, and its end."""

    def __init__(self, on_sent: Callable[[], None] | None) -> None:
        self._on_sent = on_sent
        self.connected = False

    async def __call__(self, event: str, _details: Mapping[str, object]) -> None:
        self.connected = self.connected or event.endswith("connect_tcp.started")
        if self._on_sent and event.endswith("send_request_body.complete"):
            self._on_sent()


def _said(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


# --- bodies -------------------


class BodyTooLong(httpx.DecodingError):
    """A body is longer than `most_bytes`; one of httpx's errors, which litellm passes on."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__(f"the body is longer than {most_bytes} bytes")
        self.most_bytes = most_bytes


def bound(response: httpx.Response, *, most_bytes: int) -> None:
    """Limits a body that was not read yet: it raises `BodyTooLong` beyond `most_bytes`.

    httpx unpacks whatever a server sends at once, and a few kilobytes can become all of the memory;
    this unpacks step by step. Reads only the beginning of an error's body.
    """
    assert isinstance(response.stream, httpx.AsyncByteStream)
    response.stream = _Body(
        stream=response.stream,
        packed_as=response.headers.pop("content-encoding", "").strip().lower(),
        most_bytes=most_bytes,
        is_refusal=response.is_error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body(httpx.AsyncByteStream):
    stream: httpx.AsyncByteStream
    packed_as: str
    most_bytes: int
    is_refusal: bool

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for data in self._unpacked():
            length += len(data)
            if length > self.most_bytes:
                raise BodyTooLong(self.most_bytes)
            yield data
            if self.is_refusal and length >= _REFUSAL_BYTES:
                return

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _unpacked(self) -> AsyncIterator[bytes]:
        if self.packed_as in {"", "identity"}:
            async for data in self.stream:
                yield data
            return
        if self.packed_as not in {PACKED_AS, "deflate"}:
            raise httpx.DecodingError(f"its encoding is {self.packed_as}, which was not asked for")
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)  # which tells the two apart
        try:
            async for packed in self.stream:
                while data := unpacker.decompress(packed, _STEP_BYTES):
                    yield data
                    packed = unpacker.unconsumed_tail  # noqa: PLW2901 - what is left of it
                    await asyncio.sleep(0)
        except zlib.error as error:
            raise httpx.DecodingError(str(error)) from error


# --- lines ----------------------------------------------------------------------------------


async def lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every line without its LF, and the last one even if its LF is missing.

    Lines end with LF or CRLF only. Splitting decoded text instead would also cut at U+2028, which
    servers send unescaped inside JSON strings, and within characters that span two chunks.
    """
    begun: list[bytes] = []
    mark = codecs.BOM_UTF8  # some proxies begin a stream with one
    async for chunk in chunks:
        rest, *more = chunk.split(b"\n")
        for following in more:
            # Joined once: to add each chunk to what came before takes minutes for a long line.
            begun.append(rest)
            yield b"".join(begun).removeprefix(mark)
            begun, rest, mark = [], following, b""
        begun.append(rest)
    if last := b"".join(begun).removeprefix(mark):
        yield last


async def event_data(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The payload of every `data:` line; comments (keep-alive pings) and other fields are skipped.

    A field `error:` (llama-server of 2025) is returned as the `data:` that all others send.
    """
    async for line in lines(chunks):
        if line.startswith(b"data:"):
            yield line[5:].strip()
        elif line.startswith(b"error:"):
            yield b'{"error":' + line[6:].strip() + b"}"


async def json_lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Every line of newline-delimited JSON."""
    async for line in lines(chunks):
        if line.strip():
            yield line
