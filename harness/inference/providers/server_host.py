"""Common code of hosts that load and unload models: requests, time limits, undoing, errors."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

import httpx
import orjson

from harness.errors import (
    AuthenticationFailed,
    EndpointUnreachable,
    InferenceError,
    LoadFailed,
    ModelNotFound,
)
from harness.inference.endpoint import Endpoint
from harness.inference.providers.error_replies import words_of
from harness.inference.providers.http import BodyTooLong, Connection, bearer, root_of
from harness.inference.providers.provider import Access

CLEARING_UP_S: Final = 10.0
"""Longest that undoing a load takes."""

NO_ROOM: Final = re.compile(
    r"out[ _]of[ _](?:device[ _])?memory|failed to allocate|unable to allocate|cannot allocate"
    r"|insufficient (?:vram|memory)|not enough (?:free )?memory|(?:cuda|hip)Malloc failed"
    r"|allocation failed|requires more system memory|too large for system",
    re.IGNORECASE,
)
"""What CUDA, PyTorch and servers say when memory is short."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A server's answer, whatever its status."""

    status: int
    body: bytes

    @property
    def json(self) -> object:
        """Its JSON; None if it has none."""
        try:
            value: object = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return None
        return value

    @property
    def said(self) -> str:
        """Its status, and the words of an error in whatever shape it comes."""
        return f"HTTP {self.status}: {words_of(self.body)}"


class ServerHost:
    """One endpoint's model at a server, asked over connections of its own; see `Host`.

    A subclass has `load`, `unload` and `report`. The endpoint's `url` must be set.

    Attributes:
        endpoint: As given.
        root: The server's address, without `/v1`.
        control_key: The key that loading and unloading need, if it is another; None if not.

    Raises:
        ConfigurationInvalid: A key cannot stand in an HTTP header.
    """

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        assert endpoint.url is not None
        self.endpoint = endpoint
        self.root = root_of(endpoint.url)
        self.control_key = bearer(access.control_key, endpoint=endpoint.tag)
        self._connection = Connection(endpoint, api_key=access.api_key)

    async def aclose(self) -> None:
        """Closes the connections; the model stays as it is."""
        await self._connection.aclose()

    # --- requests ----------------------------------------------------------------------------

    async def get(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Fetches a page.

        Raises:
            EndpointUnreachable: The server does not answer.
        """
        return await self._request("GET", path, params=params, headers=headers)

    async def post(
        self,
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Posts JSON and waits for the whole answer; raises as `get` does."""
        content = None if body is None else orjson.dumps(body)
        return await self._request("POST", path, content=content, params=params, headers=headers)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
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
        return Answer(status=response.status_code, body=response.content)

    def fields(self, answer: Answer) -> Mapping[str, object]:
        """The JSON object of an answer.

        Raises:
            InferenceError: The request was refused, or the answer is something else.
        """
        if answer.status != 200:
            raise self.refusal(answer)
        fields = answer.json
        if not isinstance(fields, Mapping):
            raise self.misread(answer)
        return fields

    # --- limits ------------------------------------------------------------------------------

    def in_time(self, doing: str) -> AbstractAsyncContextManager[None]:
        """Ends the block after `load_timeout_s`; see the function."""
        return in_time(self.endpoint, doing)

    @asynccontextmanager
    async def or_else(self, undo: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Undoes the block if it raises or is cancelled.

        `undo` has a few seconds. Its own errors are dropped: the block's says more.
        """
        try:
            yield
        except BaseException:
            with suppress(InferenceError, TimeoutError):
                async with asyncio.timeout(min(self.endpoint.load_timeout_s, CLEARING_UP_S)):
                    await undo()
            raise

    # --- errors ------------------------------------------------------------------------------

    def refusal(self, answer: Answer) -> InferenceError:
        """The error of a refused request, in the server's own words."""
        return self._connection.refusal(answer.body, status=answer.status)

    def failure(self, answer: Answer, *, doing: str) -> InferenceError:
        """The error of a load or unload that was refused.

        Args:
            answer: The refusal.
            doing: The verb for the error: `load`.
        """
        error = self.refusal(answer)
        if isinstance(error, AuthenticationFailed):
            return AuthenticationFailed(
                f"the server refused the key to load models and let them go ({answer.said}); set "
                "the endpoint's control_key_env to the name of the variable that holds it",
                endpoint=self.endpoint.tag,
            )
        if isinstance(error, ModelNotFound):
            return error
        return LoadFailed(
            f"the server could not {doing} '{self.endpoint.model_id}': {answer.said}",
            endpoint=self.endpoint.tag,
            out_of_memory=NO_ROOM.search(answer.body.decode("utf-8", "replace")) is not None,
        )

    def switched_off(self, title: str, *, needs: str) -> LoadFailed:
        """The error of a server that was started without the means to unload its models."""
        return LoadFailed(
            f"{title} at {self.root} was started without the means to unload its model: start it "
            f"with {needs}, or set manage to false",
            code="server.not-manageable",
            endpoint=self.endpoint.tag,
        )

    def misread(self, answer: Answer) -> LoadFailed:
        """The error of an answer that a server of this kind does not give."""
        return LoadFailed(
            f"the server at {self.root} does not answer as its backend should: "
            f"{answer.body[:200]!r}; is the endpoint's backend right?",
            code="server.misread",
            endpoint=self.endpoint.tag,
        )


@asynccontextmanager
async def in_time(endpoint: Endpoint, doing: str) -> AsyncIterator[None]:
    """Ends the block after the endpoint's `load_timeout_s`.

    `doing` is the verb for the error: `load`.

    Raises:
        LoadFailed: The block took longer.
    """
    try:
        async with asyncio.timeout(endpoint.load_timeout_s):
            yield
    except TimeoutError as error:
        raise LoadFailed(
            f"'{endpoint.tag}' could not {doing} its model in {endpoint.load_timeout_s:g} s; "
            "raise load_timeout_s if it needs longer",
            code="model.load-timeout",
            endpoint=endpoint.tag,
        ) from error


async def until(it_is_so: Callable[[], Awaitable[bool]]) -> None:
    """Asks at once, and then after ever longer pauses of up to a second, until it is so."""
    pause_s = _FIRST_PAUSE_S
    while not await it_is_so():
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
