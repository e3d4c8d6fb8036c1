"""HTTP for model servers: the connections to one endpoint, the exchange of one call, and errors."""

from __future__ import annotations

import asyncio
import codecs
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import httpx2
import orjson

from harness.errors import (
    ConfigurationInvalid,
    EndpointUnreachable,
    InferenceError,
    NotOffered,
    ReplyInvalid,
    ReplyTooLarge,
    ServerError,
    StreamCut,
)
from harness.inference.completion import Completion
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import at, json_of, parsed
from harness.inference.model_identity import is_here
from harness.inference.providers.connection_stack import StackingClient
from harness.inference.providers.error_replies import error_from_reply, message_in
from harness.inference.providers.json_stream import json_values
from harness.inference.refused_fields import RefusedFields
from harness.inference.reply_in_progress import ReplyInProgress, StopTexts
from harness.inference.request import ChatRequest, merged
from harness.inference.time_limits import time_limits, timed_out
from harness.trace import Clock, monotonic
from harness.trace.secrets import Redactor
from harness.trace.tracer import traceparent

PACKED_AS = "gzip"  # the one encoding that servers may use
# httpx2 unpacks these in steps; what it does with others depends on what is installed.
_READ_PACKINGS = {"", "identity", "gzip", "x-gzip", "deflate"}
_END_TIMEOUT_S = 0.05
# The most of an error's body that is read: litellm's search blocks the event loop 4 s a megabyte.
_REFUSAL_BYTES = 64 << 10
_BROKEN = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)
# httpcore's words for a server that had closed a pooled connection.
_GONE = "disconnected without sending a response"
# For addresses without TLS, where no certificates count: loading them takes 40 ms.
_TRUSTS_NOBODY = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_JSON = {"content-type": "application/json"}
# Content types of replies, as servers and the proxies before them send them.
_READABLE = re.compile(r"^$|json|text/event-stream|text/plain|octet-stream", re.IGNORECASE)


@lru_cache(maxsize=64)
def base_of(url: str) -> str:
    """An endpoint's address without its query, which `HttpConnection` adds to every request."""
    return str(httpx2.URL(url).copy_with(query=None, fragment=None)).rstrip("/")


def bearer(api_key: str | None, *, endpoint: str) -> str | None:
    """A key as a header can carry it; None for an empty key.

    Raises `ConfigurationInvalid` for a key that no header can carry.
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


def trace_headers() -> dict[str, str]:
    """The header with the span of the request in the run, by W3C Trace Context."""
    context = traceparent()
    return {} if context is None else {"traceparent": context}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a session reaches a server."""

    # Sent with every request, as a bearer token where the server has no other way.
    api_key: str | None = field(default=None, repr=False)
    clock: Clock = monotonic
    # Called with each address by clients that pick it; raises `NotTrusted` to prevent the request.
    check_address: Callable[[str], None] = lambda _url: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A server's answer, whatever its status."""

    status: int
    body: bytes

    @property
    def json(self) -> object:
        """Its JSON; None if it has none."""
        return parsed(self.body)

    @property
    def text(self) -> str:
        """Its status, and the message of an error in any shape."""
        return f"HTTP {self.status}: {message_in(self.body)}"


class HttpConnection:
    """The connections to one endpoint, and the errors that its refusals and failures mean.

    The query of its `url`, such as a key for a proxy or a version, is sent with every request.
    `base` is the endpoint's address, with its `/v1` if it has one, `root` the server's. Raises
    `ConfigurationInvalid` for a key that cannot stand in an HTTP header.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        self.endpoint = endpoint
        url = httpx2.URL(endpoint.url or "https://")  # without a url, litellm picks the address
        self.base = base_of(str(url))
        self.root = self.base.removesuffix("/v1")
        key = bearer(api_key, endpoint=endpoint.tag)
        # A variable is still there only for a connection that has no credentials, such as that for
        # a server's counters. It sends none of these values.
        query = {name: value for name, value in endpoint.query.items() if "${" not in value}
        headers = {
            name.lower(): bearer(value, endpoint=endpoint.tag) or ""
            for name, value in endpoint.headers.items()
            if "${" not in value
        }
        self._redactor = Redactor([key or "", *headers.values(), *query.values()])
        authorization = {"authorization": f"Bearer {key}"} if key else {}
        self.client = StackingClient(
            # Otherwise httpx2 offers every encoding that is installed.
            headers={"accept-encoding": PACKED_AS} | authorization | headers,
            params=url.params.merge(query),
            # Only connecting is limited here; `time_limits` limits the rest.
            timeout=(endpoint.connect_timeout_s, None, None, None),
            verify=httpx2.create_ssl_context() if url.scheme == "https" else _TRUSTS_NOBODY,
            # A proxy from the environment must not stand between us and this machine.
            trust_env=not is_here(self.base),
        )

    def refusal(
        self, complaint: object, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> InferenceError:
        """The error that a refusal means, which is a body, or JSON from inside a reply.

        The status of JSON from inside a reply is 200.
        """
        body = complaint if isinstance(complaint, bytes) else orjson.dumps(complaint)
        return error_from_reply(
            status,
            self._redactor.clean(body.decode("utf-8", "replace")).encode(),
            headers=headers or {},
            endpoint=self.endpoint.tag,
            model_id=self.endpoint.model_id,
        )

    def unexpected(self, value: object) -> InferenceError:
        """The error of a part of a reply that is not of the protocol: a text is broken JSON."""
        # Secrets are masked before the text is cut, since half of a secret would not be recognized.
        part = self._redactor.clean(value if isinstance(value, str) else repr(value))[:200]
        message = f"the reply has an unexpected part: {part!r}"
        # Broken JSON may be of a broken reply, so another attempt may help. Other JSON comes again.
        return StreamCut(message) if isinstance(value, str) else ServerError(message)

    async def read(self, reply: httpx2.Response) -> bytes:
        """Reads a whole reply; raises `StreamCut` if it breaks, `ReplyTooLarge` if too long."""
        return b"".join([chunk async for chunk in self.chunks(reply)]).removeprefix(codecs.BOM_UTF8)

    async def chunks(self, reply: httpx2.Response) -> AsyncIterator[bytes]:
        """A reply's bytes as they come; raises as `read`."""
        # httpx2 unpacks a few kilobytes that become gigabytes in steps of a megabyte.
        packing = reply.headers.get("content-encoding", "")
        unread = {name.strip().lower() for name in packing.split(",")} - _READ_PACKINGS
        if unread:
            raise self.cut(f"it is packed as {', '.join(sorted(unread))}, not asked for")
        most_bytes, length = self.endpoint.max_reply_bytes, 0
        try:
            async for chunk in reply.aiter_bytes() if packing else reply.aiter_raw():
                length += len(chunk)
                if length > most_bytes:
                    raise ReplyTooLarge(
                        f"the reply is longer than max_reply_bytes = {most_bytes}; raise it if you "
                        "expect replies this long",
                        max_reply_bytes=most_bytes,
                    )
                if reply.is_error and length >= _REFUSAL_BYTES:
                    yield chunk[:_REFUSAL_BYTES]  # its beginning says what is wrong
                    return
                yield chunk
        except httpx2.RequestError as error:
            reason = f"the connection broke: {str(error) or type(error).__name__}"
            raise self.cut(reason) from error

    def cut(self, reason: str, *, has_begun: bool = True) -> StreamCut:
        """The error of a reply that did not come to its end."""
        return StreamCut(f"the reply was cut off: {reason}", has_begun=has_begun)

    async def fetch(self, method: str, url: str, **request: Any) -> Page:  # noqa: ANN401 - as httpx2's
        """Any page of the server; raises as httpx2 and `read`."""
        async with self.client.stream(method, url, **request) as reply:
            return Page(status=reply.status_code, body=await self.read(reply))

    async def ask(self, url: str, fields: Mapping[str, object]) -> object:
        """Posts fields; returns the reply's JSON, or None if it is no JSON.

        Raises as `Exchange.post` and `read`.
        """
        async with Exchange(self) as exchange:
            return parsed(await self.read(await exchange.post(url, fields)))

    async def ask_to_embed(
        self, url: str, fields: Mapping[str, object], *, server: str, remedy: str
    ) -> object:
        """As `ask`, for embeddings; raises `NotOffered` if the server has no such page."""
        try:
            return await self.ask(url, fields)
        except ServerError as error:
            if error.status not in {404, 405, 501}:
                raise
            raise NotOffered(f"{server} does not embed ({error}); {remedy}") from error


def redirected(status: int, location: str) -> ServerError:
    """The error of a server that names another address."""
    return ServerError(
        f"HTTP {status}: it redirects to {location}; is the endpoint's url right?", status=status
    )


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, the error that it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def not_connected(error: Exception, url: str) -> EndpointUnreachable:
    """The error of a connection that was not made: nothing answers, or TLS failed."""
    tls_error = next((link for link in causes(error) if isinstance(link, ssl.SSLError)), None)
    if isinstance(tls_error, ssl.SSLCertVerificationError):
        return EndpointUnreachable(
            f"the certificate of {url} is refused ({tls_error.verify_message}); name a file with "
            "its issuer's certificate in SSL_CERT_FILE",
            code="call.certificate-refused",
        )
    # `SSLEOFError` says nothing about TLS: a server that ends may close a connection in its midst.
    if tls_error is not None and not isinstance(tls_error, ssl.SSLEOFError):
        return EndpointUnreachable(
            f"the server at {url} speaks no TLS that is understood here ({error}); does it want "
            "http:// in place of https://?",
            code="call.no-tls",
        )
    return EndpointUnreachable(
        f"nothing answers at {url} ({str(error) or type(error).__name__}); is the server running, "
        "and is the endpoint's url right?"
    )


class Exchange(AsyncExitStack):
    """The requests of one call; an `async with` block."""

    def __init__(self, connection: HttpConnection) -> None:
        super().__init__()
        self._connection = connection
        self.requests = 0
        # How long it took to connect; None if the connection had been kept open.
        self.connecting_ns: int | None = None

    async def post(
        self, url: str, fields: Mapping[str, object], *, on_sent: Callable[[], None] | None = None
    ) -> httpx2.Response:
        """Sends fields as JSON; the body of the response can be read until the block ends.

        `on_sent` is called when the whole request has been handed to the system, and again if it is
        sent again. Raises `EndpointUnreachable`, `CallTimeout` for the connection, `StreamCut`,
        `ReplyTooLarge`, or the error that a refusal means.
        """
        request = self._connection.client.build_request(
            "POST", _address(url), content=json_of(fields), headers=_JSON | trace_headers()
        )
        response = await self.send(request, on_sent=on_sent)
        status = response.status_code
        if status != 200:
            body = await self._connection.read(response)
            # Not followed, since that would take the key and the prompt to another address.
            if response.has_redirect_location:
                raise redirected(status, response.headers["location"])
            # Triton refuses a streamed call in the form of an event.
            complaint = body.removeprefix(b"data:")
            raise self._connection.refusal(complaint, status=status, headers=response.headers)
        content_type = response.headers.get("content-type", "")
        if not _READABLE.search(content_type):
            raise ServerError(
                f"{url} answers with {content_type}, as no model server does; is the endpoint's "
                "url right?"
            )
        return response

    async def send(
        self, request: httpx2.Request, *, on_sent: Callable[[], None] | None = None
    ) -> httpx2.Response:
        """Sends any request; the response, whatever its status, is closed when the block ends."""
        client = self._connection.client
        connect_start_ns: int | None = None  # None as long as a pooled connection is used

        async def watch(event: str, _details: Mapping[str, object]) -> None:
            nonlocal connect_start_ns
            # httpcore's names, such as `connection.connect_tcp.started`.
            if event.endswith("connect_tcp.started"):
                connect_start_ns = time.perf_counter_ns()
            elif event.endswith(("connect_tcp.complete", "start_tls.complete")):
                assert connect_start_ns is not None
                self.connecting_ns = time.perf_counter_ns() - connect_start_ns
            if on_sent and event.endswith("send_request_body.complete"):
                on_sent()

        request.extensions["trace"] = watch
        try:
            self.requests += 1
            try:
                response = await client.send(request, stream=True)
            except _BROKEN as error:
                if client.is_closed:
                    reason = "the connections were closed on this side"
                    raise self._connection.cut(reason) from error
                # On a new connection, or if the reply is no HTTP, the error is about this request.
                is_no_http = isinstance(error, httpx2.RemoteProtocolError)
                if connect_start_ns is not None or (is_no_http and _GONE not in str(error)):
                    raise
                # Else the server had closed the pooled connection before: sending again is safe.
                self.requests += 1
                response = await client.send(request, stream=True)
        except _BROKEN as error:
            reason = f"the connection broke before it began: {str(error) or type(error).__name__}"
            raise self._connection.cut(reason, has_begun=False) from error
        except httpx2.ConnectTimeout as error:
            raise timed_out("connect_timeout_s", self._connection.endpoint) from error
        except httpx2.RequestError as error:
            # Without the query, which may hold a key.
            url = str(request.url.copy_with(query=None))
            raise not_connected(error, url) from error
        self.push_async_callback(response.aclose)
        return response


# Cached, since of all the work for a request, parsing its address takes longest.
_address = lru_cache(maxsize=64)(httpx2.URL)


class HttpBackend(ABC):
    """What all backends over HTTP share. The endpoint's `url` must be set."""

    def __init__(
        self, endpoint: Endpoint, access: Access, refused: RefusedFields | None = None
    ) -> None:
        assert endpoint.url is not None
        self._endpoint = endpoint
        self._clock = access.clock
        self._connection = HttpConnection(endpoint, api_key=access.api_key)
        self._refused = refused or RefusedFields(endpoint.drop)
        self._source = endpoint.source
        self._url = self._connection.base  # where calls are sent; subclasses have a page there

    async def chat(self, request: ChatRequest) -> Completion:
        """One reply, whole; see `Backend.chat`."""
        requested = self._fields(request)
        # The exchange is the outer block: leaving it must not count for the call's time limits.
        async with (
            Exchange(self._connection) as exchange,
            time_limits(self._endpoint, timeout_s=request.timeout_s) as arrived,
        ):
            while True:
                fields, dropped = self._refused.without(requested)
                body = merged(self._body(fields, request), request.extra_body or {})
                # A new one for each: the time of a refused request is no part of a reply's phases.
                progress = ReplyInProgress(request, clock=self._clock, arrived=arrived)
                progress.stops = StopTexts(request.stop if "stop" in dropped else ())
                try:
                    reply = await exchange.post(self._url, body, on_sent=progress.sent)
                    values = json_values(self._connection.chunks(reply))
                    completion = await self._read(values, progress)
                except ReplyInvalid as error:
                    return progress.refused_calls(error, model_id=self._endpoint.model_id)
                except ServerError as error:
                    # A caller that has got a part of the reply must not get it again.
                    if progress.was_heard or not self._refused.learn(error, fields):
                        raise
                else:
                    exchange.push_async_callback(read_to_end, values)
                    return replace(
                        completion,
                        source=self._source,
                        dropped=dropped,
                        attempts=exchange.requests,
                        connecting_ns=exchange.connecting_ns,
                    )

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self._connection.client.aclose()

    @abstractmethod
    def _fields(self, request: ChatRequest) -> dict[str, object]:
        """The fields of a call that a server may refuse, by their names in OpenAI's protocol."""

    def _body(self, fields: dict[str, object], _request: ChatRequest) -> dict[str, object]:
        """The body to send, made of the `_fields` that are not refused."""
        return fields

    def _part(self, value: object) -> Mapping[str, Any] | None:
        """A JSON value of a reply, if it is an object; None for a ping or a proxy's end mark.

        Raises for an error, a list, and broken JSON.
        """
        # A text that begins like an object is broken JSON.
        is_broken = isinstance(value, str) and value.startswith("{")
        if not (is_broken or isinstance(value, Mapping | list)):
            return None
        # The status was sent with the first output, before the error.
        is_error = at(value, "base_resp", "status_code") and not at(value, "choices")  # MiniMax's
        if is_error or at(value, "error") is not None or _is_flat_error(value):
            raise self._connection.refusal(value)
        if not isinstance(value, Mapping):
            raise self._connection.unexpected(value)
        return value

    @abstractmethod
    async def _read(self, values: AsyncIterator[Any], progress: ReplyInProgress) -> Completion:
        """Reads the JSON values of a reply up to its end."""


def _is_flat_error(value: object) -> bool:
    """Whether an object is an error without the key `error`, as gateways put it into a stream."""
    if not isinstance(value, Mapping) or "choices" in value:
        return False
    # A message in a reply is an object: Ollama's.
    names = {"error_message", "error_msg", "msg", "errors", "detail"}
    return isinstance(value.get("message"), str) or not value.keys().isdisjoint(names)


async def read_to_end(values: AsyncIterator[object]) -> None:
    """Reads the end of a body, so that its connection can be used again; gives up in a moment."""
    with suppress(TimeoutError, httpx2.RequestError, InferenceError):
        # A new connection costs less than waiting for a slow server.
        async with asyncio.timeout(_END_TIMEOUT_S):
            async for _ in values:
                pass
