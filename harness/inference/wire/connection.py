"""A server's address, and the pool of connections to it that all calls share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import httpx
import orjson

from harness.errors import (
    ConfigurationInvalid,
    EndpointUnreachable,
    InferenceError,
    StreamCut,
)
from harness.inference.endpoint import Endpoint
from harness.inference.wire.deadlines import timed_out
from harness.inference.wire.errors import error_from_reply

_KEEPALIVE_S = 3.0
_END_TIMEOUT_S = 1.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_BROKEN = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
_GONE = "disconnected without sending a response"
_JSON = {"content-type": "application/json"}


class Connection:
    """Sends requests to one endpoint, and says in this package's errors why there is no reply.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token.

    Raises:
        ConfigurationInvalid: The key cannot stand in an HTTP header.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        assert endpoint.url is not None
        base = httpx.URL(endpoint.url)
        self._endpoint = endpoint
        self.client = httpx.AsyncClient(
            headers=_authorization(api_key, endpoint=endpoint.tag),
            timeout=httpx.Timeout(None, connect=endpoint.connect_timeout_s),
            # llama-server and vLLM drop a connection after 5 s idle: let it go before they do.
            limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_S),
            # Loading certificates takes 20 ms that plain HTTP does not need; a proxy from the
            # environment must not stand between us and this machine.
            verify=base.scheme == "https",
            trust_env=base.host not in _LOOPBACK,
        )

    @asynccontextmanager
    async def post(self, url: str, fields: Mapping[str, object]) -> AsyncIterator[httpx.Response]:
        """Sends fields as JSON; the block is given the reply's headers, and may read on.

        Raises:
            EndpointUnreachable: Nothing answers at the address.
            CallTimeout: Connecting took too long.
            StreamCut: The connection broke.
        """
        request = self.client.build_request(
            "POST", url, content=orjson.dumps(fields), headers=_JSON
        )
        try:
            try:
                response = await self.client.send(request, stream=True)
            except _BROKEN as error:
                if self.client.is_closed:
                    raise self.cut("the connections were closed on this side") from error
                if isinstance(error, httpx.RemoteProtocolError) and _GONE not in str(error):
                    raise  # Something did come, and was no HTTP.
                # The server had closed the pooled connection that we chose. Not a byte of a reply
                # has come, so sending again cannot repeat anything.
                response = await self.client.send(request, stream=True)
        except _BROKEN as error:
            raise self.cut(f"the connection broke before it began: {_said(error)}") from error
        except httpx.ConnectTimeout as error:
            raise timed_out("connect_timeout_s", self._endpoint) from error
        except httpx.RequestError as error:
            raise EndpointUnreachable(
                f"nothing answers at {url} ({_said(error)}); is the server running, and is the "
                "endpoint's url right?",
                endpoint=self._endpoint.tag,
            ) from error
        try:
            yield response
        except httpx.RequestError as error:
            raise self.cut(f"the connection broke: {_said(error)}") from error
        finally:
            await response.aclose()

    async def ask(self, url: str, fields: Mapping[str, object]) -> bytes:
        """Sends fields as JSON and reads the whole reply.

        Raises:
            InferenceError: The reply is a refusal, or there is none.
        """
        async with self.post(url, fields) as response:
            body = await response.aread()
            if response.status_code != 200:
                raise self.refusal(response.status_code, body, response.headers)
            return body

    def refusal(self, status: int, body: bytes, headers: Mapping[str, str]) -> InferenceError:
        """What a reply that is an error means."""
        return error_from_reply(
            status,
            body,
            headers=headers,
            endpoint=self._endpoint.tag,
            model_id=self._endpoint.model_id,
        )

    def cut(self, how: str) -> StreamCut:
        """A reply that did not come to its end."""
        return StreamCut(f"the reply was cut off: {how}", endpoint=self._endpoint.tag)

    async def aclose(self) -> None:
        """Closes the connections; a call that is under way is cut off."""
        await self.client.aclose()


async def read_to_end(rest: AsyncIterator[bytes]) -> None:
    """Reads what follows a reply: nothing, but only then can the connection be used again."""
    with suppress(TimeoutError, httpx.RequestError):
        async with asyncio.timeout(_END_TIMEOUT_S):
            async for _ in rest:
                pass


def _said(error: httpx.RequestError) -> str:
    return str(error) or type(error).__name__


def _authorization(api_key: str | None, *, endpoint: str) -> dict[str, str]:
    # A key that was read from a file often still has its newline.
    key = (api_key or "").strip()
    if not key:
        return {}
    if not (key.isascii() and key.isprintable()):
        # Without the key: messages end up in logs and traces.
        raise ConfigurationInvalid(
            f"the API key of endpoint '{endpoint}' holds characters that an HTTP header cannot; "
            "only printable ASCII can"
        )
    return {"authorization": f"Bearer {key}"}
