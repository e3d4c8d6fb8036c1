"""Triton: a repository of models, each of which is loaded and unloaded by name.

Through either of its front ends: KServe's (docs/protocol/extension_model_repository.md), or the
one that speaks OpenAI's protocol (python/openai, 2.73). Both need `--model-control-mode=explicit`.
How large a model is, neither tells. What a model of this process's own memory gave back may stay
with the allocator.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from harness.inference import Endpoint
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control, Page
from harness.residency.hosts.failures import failure, misread, switched_off
from harness.residency.hosts.patience import until

_NEEDS: Final = "--model-control-mode=explicit"
_NOT_EXPLICIT: Final = re.compile(
    rb"explicit model load / unload is not allowed|requires --model-control-mode=explicit",
    re.IGNORECASE,
)
_LEAVING: Final = frozenset({"READY", "UNLOADING"})


class TritonHost:
    """One model of a Triton server, by KServe's protocol.

    Of an ensemble, the models that it is made of come and go with it.

    Args:
        endpoint: Where it is and what the model is called there; `url` must be set.
        api_key: Sent as a bearer token, for whatever stands before the server.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._control = Control(endpoint, api_key=api_key)
        # Versions of a model are loaded together, as its configuration says.
        self._model = endpoint.model_id.partition("/versions/")[0]
        self._path = f"/v2/repository/models/{quote(self._model, safe='')}"

    async def load(self) -> None:
        """Has it loaded; see `Host.load`.

        Raises:
            LoadFailed: It cannot be loaded, not in time, or the server lets nobody.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("load"):
            if "READY" in await self._states():
                return
            async with self._control.or_else(self._let_go):
                page = await self._control.post(f"{self._path}/load", {})
                _check(self._control, page, doing="load")

    async def unload(self) -> None:
        """Has it unloaded, and waits until the calls under way have ended; see `Host.unload`.

        Raises:
            LoadFailed: The server keeps it, or lets nobody unload.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("unload"):
            if not await self._is_gone():
                await self._let_go()

    async def report(self) -> HostReport:
        """Whether a version of it is ready; see `Host.report`.

        Raises:
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident="READY" in await self._states())

    async def aclose(self) -> None:
        """Closes the connections; the model stays as it is."""
        await self._control.aclose()

    async def _let_go(self) -> None:
        page = await self._control.post(
            f"{self._path}/unload", {"parameters": {"unload_dependents": True}}
        )
        _check(self._control, page, doing="unload")
        await until(self._is_gone)

    async def _is_gone(self) -> bool:
        return _LEAVING.isdisjoint(await self._states())

    async def _states(self) -> frozenset[str]:
        """Those of its versions: `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING`."""
        page = await self._control.post("/v2/repository/index", {})
        if page.status != 200:
            raise self._control.refusal(page)
        rows = page.json
        if not isinstance(rows, list):
            raise misread(self._control, page)
        return frozenset(
            str(row.get("state"))
            for row in rows
            if isinstance(row, Mapping) and row.get("name") == self._model
        )


class TritonOpenAIHost:
    """One model of a Triton server, by its OpenAI front end.

    Args:
        endpoint: Where it is and what the model is called there; `url` must be set.
        api_key: Sent as a bearer token, for whatever stands before the server.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._control = Control(endpoint, api_key=api_key)
        self._path = f"/v1/models/{quote(endpoint.model_id, safe='')}"

    async def load(self) -> None:
        """Has it loaded; see `Host.load`.

        Raises:
            LoadFailed: It cannot be loaded, not in time, or the server lets nobody.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("load"):
            if await self._is_there():
                return
            async with self._control.or_else(self._let_go):
                page = await self._control.post(f"{self._path}/load")
                _check(self._control, page, doing="load")

    async def unload(self) -> None:
        """Has it unloaded; the server answers when the calls under way have ended.

        Raises:
            LoadFailed: The server keeps it, or lets nobody unload.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("unload"):
            if await self._is_there():
                await self._let_go()

    async def report(self) -> HostReport:
        """Whether it is listed; see `Host.report`.

        Raises:
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident=await self._is_there())

    async def aclose(self) -> None:
        """Closes the connections; the model stays as it is."""
        await self._control.aclose()

    async def _let_go(self) -> None:
        page = await self._control.post(f"{self._path}/unload")
        _check(self._control, page, doing="unload")

    async def _is_there(self) -> bool:
        page = await self._control.get("/v1/models")
        if page.status != 200:
            raise self._control.refusal(page)
        match page.json:
            case {"data": list(rows)}:
                return any(
                    isinstance(row, Mapping) and row.get("id") == self._endpoint.model_id
                    for row in rows
                )
        raise misread(self._control, page)


def _check(control: Control, page: Page, *, doing: str) -> None:
    """Raises what an answer means that is none."""
    if _NOT_EXPLICIT.search(page.body):
        raise switched_off(control, "Triton", needs=_NEEDS)
    if page.status != 200:
        raise failure(control, page, doing=doing)
