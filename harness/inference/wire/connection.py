"""The pool of connections to a server that all calls share, and what its errors mean."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import httpx
from pydantic import ValidationError

from harness.errors import (
    ConfigurationInvalid,
    InferenceError,
    ReplyTooLarge,
    ServerError,
    StreamCut,
)
from harness.inference.endpoint import Endpoint
from harness.inference.wire.body import PACKED_AS, BodyTooLong, bound
from harness.inference.wire.errors import error_from_reply

KEEPALIVE_S = 3.0
"""llama-server and vLLM drop a connection after 5 s idle: let it go before they do."""
_END_TIMEOUT_S = 0.05
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def base_of(url: str) -> str:
    """An endpoint's address to which the path of a page can be added.

    Its query is in every request of an `http_client`.
    """
    return str(httpx.URL(url).copy_with(query=None, fragment=None)).rstrip("/")


def root_of(url: str) -> str:
    """The same of its server: without `/v1`."""
    return base_of(url).removesuffix("/v1")


def http_client(
    url: str | None, *, api_key: str | None, timeout: httpx.Timeout, max_reply_bytes: int
) -> httpx.AsyncClient:
    """A pool of connections to a model server.

    Args:
        url: Its address; None for one of this machine that is not known yet. What it has as its
            query, a key for a proxy or a version, is sent with every request.
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


def bearer(api_key: str | None, *, endpoint: str) -> str | None:
    """A key as it can be sent; None for an empty one.

    Raises:
        ConfigurationInvalid: It cannot stand in an HTTP header.
    """
    # A key that was read from a file often still has its newline.
    key = (api_key or "").strip()
    if not (key.isascii() and key.isprintable()):
        # Without the key: messages end up in logs and traces.
        raise ConfigurationInvalid(
            f"the API key of endpoint '{endpoint}' holds characters that an HTTP header cannot; "
            "only printable ASCII can",
            code="endpoint.key-not-sendable",
        )
    return key or None


class Connection:
    """Leads to one endpoint, and says in this package's errors why there is no reply.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token.

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
        """What an error means; without a status, one inside a reply that had begun."""
        return error_from_reply(
            status,
            body,
            headers=headers or {},
            endpoint=self.endpoint.tag,
            model_id=self.endpoint.model_id,
        )

    def misread(self, data: bytes, error: ValidationError) -> InferenceError:
        """What a part of a reply means that is not of the protocol.

        No JSON at all may be what was left of a reply, and another attempt whole; JSON of another
        shape will come again.
        """
        said = f"the reply holds what is not a part of one: {data[:200]!r}"
        if error.errors()[0]["type"] == "json_invalid":
            return StreamCut(said, endpoint=self.endpoint.tag)
        return ServerError(said, endpoint=self.endpoint.tag)

    def broken(self, error: httpx.RequestError) -> InferenceError:
        """What it means that the rest of a reply could not be read."""
        if isinstance(error, BodyTooLong):
            return too_large(error, endpoint=self.endpoint)
        return self.cut(f"the connection broke: {str(error) or type(error).__name__}")

    def cut(self, how: str) -> StreamCut:
        """A reply that did not come to its end."""
        return StreamCut(f"the reply was cut off: {how}", endpoint=self.endpoint.tag)

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self.client.aclose()


def too_large(error: BodyTooLong, *, endpoint: Endpoint) -> ReplyTooLarge:
    """The same as this package's error."""
    return ReplyTooLarge(
        f"the reply is longer than max_reply_bytes = {error.most_bytes}; raise it if such long "
        "ones are meant",
        endpoint=endpoint.tag,
        max_reply_bytes=error.most_bytes,
    )


async def read_to_end(rest: AsyncIterator[bytes]) -> None:
    """Reads what follows a reply: nothing, but only then can the connection be used again.

    For a moment alone: a new connection costs less than to wait for a slow server.
    """
    with suppress(TimeoutError, httpx.RequestError, InferenceError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            async for _ in rest:
                pass
