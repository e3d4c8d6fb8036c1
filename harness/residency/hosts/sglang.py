"""SGLang's memory saver: one model per server, whose GPU memory is given back and taken again.

From SGLang 0.5.23 (srt/entrypoints/http_server.py, srt/managers). Its two pages do not look before
they act: to give memory back while a call runs, to give it back twice, or to take it again while it
is there, each ends the server. And no page tells whether it was given back. Therefore a server is
paused before and goes on after, which `/ready` tells, and which keeps calls of others waiting
meanwhile: a paused server is one whose model is out. Nothing else may pause it, as trainers do.

The weights are thrown away, unless it keeps a copy (`--enable-weights-cpu-backup`): they are read
from its disk again. Older versions answer before the memory is back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness.errors import LoadFailed
from harness.inference import Endpoint
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control, Page
from harness.residency.hosts.failures import failure, misread, switched_off
from harness.residency.hosts.patience import until

_NEEDS: Final = "--enable-memory-saver"
_TAKE: Final = "/resume_memory_occupation"
_NO_SUCH_PAGE: Final = 404
_NOT_READY: Final = 503


class SglangHost:
    """An SGLang server, and the model that it was started with.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token.
        control_key: Likewise, to the pages that load and unload: the server's `--admin-api-key`,
            where it has one.
    """

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, control_key: str | None = None
    ) -> None:
        self._endpoint = endpoint
        self._control = Control(endpoint, api_key=api_key)
        self._headers = {"authorization": f"Bearer {control_key}"} if control_key else {}

    async def load(self) -> None:
        """Has the server take its memory again, and go on; see `Host.load`.

        Without room for it, the server ends: then it cannot be reached.

        Raises:
            LoadFailed: It cannot, or not in time.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("load"):
            if not await self._is_paused():
                return
            reload = await self._reload_request()
            await self._take()
            # It may go on already, and calls of others run.
            async with self._control.or_else(self._let_go):
                if reload:
                    await self._do("/update_weights_from_disk", reload, doing="load")
                await self._go_on()

    async def unload(self) -> None:
        """Has the server pause, and give its memory back; see `Host.unload`.

        Calls of others are put off until it is loaded again.

        Raises:
            LoadFailed: It does not, or was started without the memory saver.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("let go of"):
            if await self._is_paused():
                return
            await self._check_memory_saver()
            async with self._control.or_else(self._go_on):
                await self._pause()
            # From here on its memory may be gone, whatever it answers: it stays paused.
            await self._release()

    async def report(self) -> HostReport:
        """Whether it takes calls; see `Host.report`.

        Raises:
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident=not await self._is_paused())

    async def aclose(self) -> None:
        """Closes the connections; the server stays as it is."""
        await self._control.aclose()

    async def _is_paused(self) -> bool:
        ready = await self._control.get("/ready")
        if ready.status == 200:
            return False
        if ready.status == _NO_SUCH_PAGE:
            raise LoadFailed(
                f"SGLang at {self._control.root} has no page /ready, from which to know whether "
                "its memory was given back: use 0.5.23 or newer, or set manage to false",
                code="server.too-old",
                endpoint=self._endpoint.tag,
            )
        if ready.status != _NOT_READY:
            raise self._control.refusal(ready)
        # Not ready is also one that starts or has broken; only a paused one says that it is well.
        healthy = await self._control.get("/ping")
        if healthy.status != 200:
            raise self._control.refusal(healthy)
        return True

    async def _is_idle(self) -> bool:
        # It empties its cache only when nothing runs, and else says so, unlike the page that
        # gives the memory back.
        page = await self._control.post("/flush_cache", headers=self._headers)
        if page.status in {200, 400}:
            return page.status == 200
        raise failure(self._control, page, doing="let go of")

    async def _check_memory_saver(self) -> None:
        """Makes sure that memory is given back: without it, the page answers and does nothing."""
        if (await self._server_info()).get("enable_memory_saver") is not True:
            raise switched_off(self._control, "SGLang", needs=_NEEDS)

    async def _reload_request(self) -> Mapping[str, object] | None:
        """What has the weights read anew; None where the server kept them."""
        if (await self._server_info()).get("enable_weights_cpu_backup") is True:
            return None
        page = await self._control.get("/model_info")
        match self._fields(page):
            case {"model_path": str(path)}:
                return {"model_path": path}
        raise misread(self._control, page)

    async def _server_info(self) -> Mapping[str, object]:
        return self._fields(await self._control.get("/server_info"))

    def _fields(self, page: Page) -> Mapping[str, object]:
        if page.status != 200:
            raise self._control.refusal(page)
        fields = page.json
        if not isinstance(fields, Mapping):
            raise misread(self._control, page)
        return fields

    async def _take(self) -> None:
        """Has it take its memory again."""
        # Without an answer it may have it all the same.
        async with self._control.or_else(self._release):
            page = await self._control.post(_TAKE, {}, headers=self._headers)
        if page.status != 200:
            # Not to be given back: it has not got it.
            raise failure(self._control, page, doing="load")

    async def _let_go(self) -> None:
        await self._pause()
        await self._release()

    async def _pause(self) -> None:
        await self._do("/pause_generation", {"mode": "retract"}, doing="let go of")
        await until(self._is_idle)

    async def _release(self) -> None:
        await self._do("/release_memory_occupation", {}, doing="let go of")

    async def _go_on(self) -> None:
        await self._do("/continue_generation", {}, doing="load")

    async def _do(self, path: str, body: Mapping[str, object], *, doing: str) -> None:
        page = await self._control.post(path, body, headers=self._headers)
        if page.status != 200:
            raise failure(self._control, page, doing=doing)
