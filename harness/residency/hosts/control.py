"""The way to what a server offers beside calls: to load models, let them go, and list them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx
import orjson

from harness.errors import EndpointUnreachable, InferenceError, LoadFailed
from harness.inference import Endpoint
from harness.inference.wire.body import BodyTooLong
from harness.inference.wire.connection import Connection, root_of
from harness.inference.wire.errors import words_of

CLEARING_UP_S: Final = 10.0
"""Longest that whoever has given up a load waits until nothing is left of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a server answered."""

    status: int
    """The HTTP status."""
    body: bytes
    """Whatever came."""

    @property
    def json(self) -> object:
        """Its JSON; None for what is none."""
        try:
            value: object = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None
        return value

    @property
    def said(self) -> str:
        """Its status, and the words of an error in whatever shape it comes."""
        return f"HTTP {self.status}: {words_of(self.body)}"


class Control:
    """Asks one endpoint's server, over connections of its own.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token.

    Attributes:
        root: The server's address, without `/v1`.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        assert endpoint.url is not None
        self.endpoint = endpoint
        self.root = root_of(endpoint.url)
        self._connection = Connection(endpoint, api_key=api_key)

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Fetches a page, whatever its status.

        Raises:
            EndpointUnreachable: The server does not answer.
        """
        return await self._ask("GET", path, params=params, headers=headers)

    async def post(
        self,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Posts JSON, and waits for the end of the answer, whatever its status.

        Raises:
            EndpointUnreachable: The server does not answer.
        """
        content = None if body is None else orjson.dumps(body)
        return await self._ask("POST", path, content=content, params=params, headers=headers)

    def refusal(self, page: Page) -> InferenceError:
        """What an answer means that is an error, in the server's own words."""
        return self._connection.refusal(page.body, status=page.status)

    @asynccontextmanager
    async def in_time(self, doing: str) -> AsyncIterator[None]:
        """Ends the block after `load_timeout_s`.

        Args:
            doing: What takes so long, as the error says it: `load`.

        Raises:
            LoadFailed: It was not done in time.
        """
        try:
            async with asyncio.timeout(self.endpoint.load_timeout_s):
                yield
        except TimeoutError as error:
            raise LoadFailed(
                f"'{self.endpoint.tag}' could not {doing} its model in "
                f"{self.endpoint.load_timeout_s:g} s; raise load_timeout_s if it needs longer",
                code="model.load-timeout",
                endpoint=self.endpoint.tag,
            ) from error

    @asynccontextmanager
    async def or_else(self, undo: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Undoes what the block has done if it does not come to its end, a cancellation included.

        Args:
            undo: Has a few seconds. What goes wrong with it is not told: the error that ended the
                block says more.
        """
        try:
            yield
        except BaseException:
            with suppress(InferenceError, TimeoutError):
                async with asyncio.timeout(min(self.endpoint.load_timeout_s, CLEARING_UP_S)):
                    await undo()
            raise

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._connection.aclose()

    async def _ask(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        sent = {**(headers or {}), **({"content-type": "application/json"} if content else {})}
        try:
            response = await self._connection.client.request(
                method, self.root + path, content=content, params=params, headers=sent
            )
        except BodyTooLong as error:
            raise self._connection.broken(error) from error
        except httpx.RequestError as error:
            raise EndpointUnreachable(
                f"the server at {self.root} does not answer {method} {path}: "
                f"{type(error).__name__} {error}".rstrip(),
                endpoint=self.endpoint.tag,
            ) from error
        return Page(status=response.status_code, body=response.content)
