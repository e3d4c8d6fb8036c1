"""Models that llama-server's router loads and lets go.

A llama-server that is started without a model is a router: it starts a llama-server for each model
that it is asked for, and ends the least recently used one when there are more than `--models-max`.
It counts models, not memory (tools/server/server-models.cpp, b11434).
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import Final, Literal

from pydantic import BaseModel, ValidationError

from harness.errors import LoadFailed, ModelNotFound, ServerError
from harness.inference import Endpoint
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control, Page
from harness.residency.hosts.patience import until

_FULL: Final = re.compile(r"model limit reached", re.IGNORECASE)
_ALREADY: Final = "already running"
_NOT_THERE: Final = "not running"
_GONE: Final = frozenset({"unloaded", "downloading", "downloaded"})
"""Without a process that has the model in memory."""


class RouterHost:
    """One model of a router.

    Args:
        endpoint: Where it is and what the model is called there; `url` must be set.
        api_key: Sent as a bearer token.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._control = Control(endpoint, api_key=api_key)

    async def load(self) -> None:
        """Has it loaded; see `Host.load`.

        Raises:
            ModelNotFound: The router does not know it.
            LoadFailed: It cannot be loaded, or not in time, or the server is no router.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("load"):
            before = await self._status()
            if before.value == "loaded":
                return
            if before.value == "sleeping":
                # Its process is there without its weights, and only a call would wake it.
                await self._let_go()
            asking = asyncio.ensure_future(self._ask_to_load())
            try:
                async with self._control.or_else(partial(self._take_back, asking)):
                    # Not to be broken off: the router would load the model all the same, a moment
                    # after it was seen not to.
                    self._check_taken(await asyncio.shield(asking))
                    await until(self._is_loaded)
            finally:
                asking.cancel()

    async def unload(self) -> None:
        """Has it let go, and waits until its process has ended; see `Host.unload`.

        Calls under way are cut off, some only after the router has waited 10 s (`stop-timeout`).

        Raises:
            LoadFailed: It does not end, or the server is no router.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("unload"):
            await self._let_go()

    async def report(self) -> HostReport:
        """What `/models` says; see `Host.report`. The router does not tell sizes.

        One that sleeps has given its memory back, and is loaded again by its next call.

        Raises:
            LoadFailed: The server is no router.
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident=(await self._status()).value == "loaded")

    async def aclose(self) -> None:
        """Closes the connections; the model stays as it is."""
        await self._control.aclose()

    async def _ask_to_load(self) -> Page:
        return await self._control.post("/models/load", {"model": self._endpoint.model_id})

    def _check_taken(self, page: Page) -> None:
        """Raises what keeps the router from loading it."""
        if page.status == 200 or _says(page, _ALREADY):
            return
        tag, model_id = self._endpoint.tag, self._endpoint.model_id
        if page.status == 404:
            raise ModelNotFound(
                f"the router does not know '{model_id}'; set the endpoint's model_id to a name "
                f"that GET {self._control.root}/models lists",
                endpoint=tag,
            )
        if _FULL.search(page.said):
            raise LoadFailed(
                f"the router has as many models loaded as it may, and all are in use "
                f"({page.said}); start it with a higher --models-max, since the budget decides "
                "what fits",
                code="server.model-limit",
                endpoint=tag,
                out_of_memory=True,
            )
        error = self._control.refusal(page)
        if isinstance(error, ServerError):
            raise LoadFailed(
                f"the router could not load '{model_id}': {page.said}", endpoint=tag
            ) from error
        raise error

    async def _is_loaded(self) -> bool:
        """Whether it is, of a model that was just asked for.

        Raises:
            LoadFailed: It will not be.
        """
        status = await self._status()
        if status.value in {"loaded", "sleeping"}:
            return True
        if status.value == "loading":
            return False
        if status.failed:
            raise LoadFailed(
                f"the llama-server of '{self._endpoint.model_id}' ended while it loaded, with exit "
                f"code {status.exit_code}; the router's log says why. The commonest reason is that "
                "there is not enough memory for the model and its context",
                endpoint=self._endpoint.tag,
            )
        raise LoadFailed(
            f"the router was asked to load '{self._endpoint.model_id}', and has it "
            f"{status.value}: another client had it unloaded, or GET /models lists another name",
            code="model.unloaded-meanwhile",
            endpoint=self._endpoint.tag,
        )

    async def _take_back(self, asking: asyncio.Future[Page]) -> None:
        """Clears up after a load that nobody waits for any more, unless another client began it."""
        if (await asking).status == 200:
            await self._let_go()

    async def _let_go(self) -> None:
        if (await self._status()).value in _GONE:
            return
        page = await self._control.post("/models/unload", {"model": self._endpoint.model_id})
        if page.status != 200 and not _says(page, _NOT_THERE):
            raise LoadFailed(
                f"the router keeps '{self._endpoint.model_id}': {page.said}",
                code="model.not-unloaded",
                endpoint=self._endpoint.tag,
            )
        await until(self._is_gone)

    async def _is_gone(self) -> bool:
        return (await self._status()).value in _GONE

    async def _status(self) -> _Status:
        """The model's; `unloaded` for one that the router does not list."""
        page = await self._control.get("/models")
        if page.status != 200:
            raise self._control.refusal(page)
        try:
            listed = _Listed.model_validate_json(page.body)
        except ValidationError as error:
            raise LoadFailed(
                f"the llama-server at {self._control.root} is no router, so it cannot be told to "
                "load and unload: start it without a model (--models-dir DIR, not -m), or leave "
                f"`manage` out of endpoint '{self._endpoint.tag}'",
                code="server.not-manageable",
                endpoint=self._endpoint.tag,
            ) from error
        model_id = self._endpoint.model_id
        named = [one for one in listed.data if model_id == one.id or model_id in one.aliases]
        return named[0].status if named else _Status(value="unloaded")


class _Status(BaseModel):
    """How a model is."""

    value: Literal["unloaded", "loading", "loaded", "sleeping", "downloading", "downloaded"]
    failed: bool = False
    """Whether its process ended with an error; it is unloaded then."""
    exit_code: int | None = None


class _Model(BaseModel):
    """A model of the router's. The list of a server that is none has no `status`."""

    id: str
    aliases: list[str] = []
    status: _Status


class _Listed(BaseModel):
    """The reply of `GET /models`."""

    data: list[_Model]


def _says(page: Page, words: str) -> bool:
    return page.status == 400 and words in page.said
