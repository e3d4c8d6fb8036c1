"""Pages on which servers describe themselves, and hosts that load and unload their models."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

import httpx2

from harness.errors import (
    AuthenticationFailed,
    EndpointUnreachable,
    InferenceError,
    LoadFailed,
    ModelNotFound,
    StreamCut,
)
from harness.inference.endpoint import Endpoint
from harness.inference.json_text import parsed
from harness.inference.providers.http import Access, HttpConnection, Page

_CLEARING_UP_S: Final = 10.0  # longest that undoing a load takes

NO_ROOM: Final = re.compile(
    r"(?i)out[ _]of[ _](?:device[ _])?memory|failed to allocate|unable to allocate|cannot allocate"
    r"|insufficient (?:vram|memory)|not enough (?:free )?memory|(?:cuda|hip)Malloc failed"
    r"|allocation failed|requires more system memory|too large for system",
)
"""The words of CUDA, PyTorch and servers when memory is short."""
_PAGE_S: Final = 5.0
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """The facts about a server, found without calling a model; None if not reported."""

    # Whether anything answers at its address; None if it was not asked.
    reachable: bool | None = None
    models: tuple[str, ...] | None = None  # the names it serves, or could load
    context_tokens: int | None = None  # prompt and reply of one call, together
    slots: int | None = None  # calls that it answers at once
    metrics: bool | None = None  # whether its counters can be read; None for a kind that has none


class ServerPages:
    """The pages of one server, asked over connections of its own."""

    def __init__(self, endpoint: Endpoint, access: Access) -> None:
        assert endpoint.url is not None
        self.endpoint = endpoint
        self._connection = HttpConnection(endpoint, api_key=access.api_key)
        self.root = self._connection.root
        self.v1 = self._connection.base.removeprefix(self.root)  # "" or "/v1"
        self.model_id = endpoint.model_id
        # A router has a page for each of its models.
        self.of_model = {"model": endpoint.model_id}
        self.answered = False  # whether the server has answered at all

    async def aclose(self) -> None:
        """Closes the connections; the model stays as it is."""
        await self._connection.client.aclose()

    async def ask(
        self,
        method: Literal["GET", "POST"],
        path: str,
        body: object = None,
        *,
        params: Mapping[str, str] | None = None,
    ) -> Page:
        """Fetches a page, or posts JSON; raises `EndpointUnreachable` without an answer."""
        try:
            page = await self._connection.fetch(method, self.root + path, json=body, params=params)
        except (httpx2.RequestError, StreamCut) as error:
            raise EndpointUnreachable(
                f"the server at {self.root} does not answer {method} {path}: "
                f"{type(error).__name__} {error}".rstrip()
            ) from error
        self.answered = True
        return page

    async def page(
        self, path: str, *, params: Mapping[str, str] | None = None, post: object = None
    ) -> bytes | None:
        """The body of a page; None unless it comes with success within five seconds."""
        method: Literal["GET", "POST"] = "GET" if post is None else "POST"
        try:
            async with asyncio.timeout(_PAGE_S):
                answer = await self.ask(method, path, post, params=params)
        except (InferenceError, TimeoutError):
            return None
        return answer.body if answer.status == 200 else None

    async def json(
        self, path: str, *, params: Mapping[str, str] | None = None, post: object = None
    ) -> Any:  # noqa: ANN401 - read by `at`
        """The JSON of a page; None if the page does not come, or has no JSON."""
        return parsed(await self.page(path, params=params, post=post))


class ServerHost(ServerPages):
    """One endpoint's model at a server; a subclass has the methods of `Host`."""

    def fields(self, answer: Page) -> Mapping[str, object]:
        """The JSON object of an answer; raises `InferenceError` for any other answer."""
        if answer.status != 200:
            raise self.refusal(answer)
        fields = answer.json
        if not isinstance(fields, Mapping):
            raise self.misread(answer)
        return fields

    @asynccontextmanager
    async def or_else(self, undo: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
        """Calls `undo` if the block raises or is cancelled."""
        try:
            yield
        except BaseException:
            # An error of `undo` is dropped, since the block's error says more.
            with suppress(InferenceError, TimeoutError):
                async with asyncio.timeout(min(self.endpoint.load_timeout_s, _CLEARING_UP_S)):
                    await undo()
            raise

    # --- errors ------------------------------------------------------------------------------

    def refusal(self, answer: Page) -> InferenceError:
        """The error of a refused request, in the server's own words."""
        return self._connection.refusal(answer.body, status=answer.status)

    def failure(self, answer: Page, *, doing: Literal["load", "unload"]) -> InferenceError:
        """The error of a load or unload that was refused."""
        error = self.refusal(answer)
        if isinstance(error, AuthenticationFailed | ModelNotFound):
            return error
        return LoadFailed(
            f"the server could not {doing} '{self.endpoint.model_id}': {answer.text}",
            code="model.load-failed" if doing == "load" else "model.not-unloaded",
            out_of_memory=NO_ROOM.search(answer.body.decode("utf-8", "replace")) is not None,
        )

    def switched_off(self, title: str, *, needs: str) -> LoadFailed:
        """The error of a server that was started without the means to unload its models."""
        return LoadFailed(
            f"{title} at {self.root} was started without the means to unload its model: start it "
            f"with {needs}, or set manage to false",
            code="server.not-manageable",
        )

    def misread(self, answer: Page) -> LoadFailed:
        """The error of an answer that a server of this kind does not give."""
        return LoadFailed(
            f"the server at {self.root} does not answer as its backend should: "
            f"{answer.body[:200]!r}; is the endpoint's backend right?",
            code="server.misread",
        )


@asynccontextmanager
async def in_time(tag: str, limit_s: float, doing: str) -> AsyncIterator[None]:
    """Raises `LoadFailed` after an endpoint's `load_timeout_s`; `doing` is its verb: `load`."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError as error:
        raise LoadFailed(
            f"'{tag}' could not {doing} its model in {limit_s:g} s; raise load_timeout_s if it "
            "needs longer",
            code="model.load-timeout",
        ) from error


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Checks a condition at once, and after growing pauses of up to a second, until it is true."""
    pause_s = _FIRST_PAUSE_S
    while not await condition():
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
