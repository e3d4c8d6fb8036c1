"""TabbyAPI: a server with a folder of models, of which it holds one at a time.

From its endpoints/core/router.py and common/model.py, of August 2026. To load another model is to
let go of the one that is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from harness.errors import LoadFailed, ModelNotFound
from harness.inference import Endpoint
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control, Page
from harness.residency.hosts.failures import failure, misread

_NOTHING_LOADED = 503


class TabbyApiHost:
    """One model of a TabbyAPI server.

    Args:
        endpoint: Where it is, and the model's folder there (`model_id`); `url` must be set.
        api_key: Sent as a bearer token.
        control_key: The server's admin key; None where it asks for none (`disable_auth`).
    """

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, control_key: str | None = None
    ) -> None:
        self._endpoint = endpoint
        # An admin key opens all pages.
        self._control = Control(endpoint, api_key=api_key or control_key)
        self._headers = {"x-admin-key": control_key} if control_key else {}

    async def load(self) -> None:
        """Has it loaded, in place of whatever is there; see `Host.load`.

        Raises:
            ModelNotFound: The server has no such folder.
            LoadFailed: It cannot be loaded, or not in time.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("load"):
            if await self._loaded() == self._endpoint.model_id:
                return
            # A load that its client has left stays in memory until it is unloaded.
            async with self._control.or_else(self._unload):
                page = await self._ask_to_load()
                if page.status == 200:
                    self._check_loaded(page)
            if page.status != 200:
                # It has not begun, and what was there still is: maybe another model.
                raise self._refused(page)

    async def unload(self) -> None:
        """Has it let go, unless another is there; see `Host.unload`.

        Calls under way are cut off.

        Raises:
            LoadFailed: The server keeps it.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("let go of"):
            if await self._loaded() == self._endpoint.model_id:
                await self._unload()

    async def report(self) -> HostReport:
        """Whether the model that is there is this one; see `Host.report`.

        Raises:
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident=await self._loaded() == self._endpoint.model_id)

    async def aclose(self) -> None:
        """Closes the connections; the server stays as it is."""
        await self._control.aclose()

    async def _loaded(self) -> str | None:
        """The name of the model that is there, if one is."""
        page = await self._control.get("/v1/model")
        if page.status == _NOTHING_LOADED:
            return None
        if page.status != 200:
            raise self._control.refusal(page)
        match page.json:
            case {"id": str(name)}:
                return name
        raise misread(self._control, page)

    async def _ask_to_load(self) -> Page:
        # The field was called `name` until 2024.
        name = self._endpoint.model_id
        return await self._control.post(
            "/v1/model/load", {"model_name": name, "name": name}, headers=self._headers
        )

    def _check_loaded(self, page: Page) -> None:
        # It tells of every module, of a draft model's too, which comes first.
        status: object = None
        for event in _events(page.body):
            if "error" in event:
                raise failure(self._control, _as_page(event), doing="load")
            status = event.get("status")
        if status != "finished":
            raise LoadFailed(
                f"TabbyAPI stopped in the middle of loading '{self._endpoint.model_id}'; its log "
                "says why",
                endpoint=self._endpoint.tag,
            )

    def _refused(self, page: Page) -> Exception:
        if b"Could not find the model path" in page.body:
            return ModelNotFound(
                f"TabbyAPI has no folder '{self._endpoint.model_id}' in its model_dir; set the "
                "endpoint's model_id to the name of one",
                endpoint=self._endpoint.tag,
            )
        return failure(self._control, page, doing="load")

    async def _unload(self) -> None:
        page = await self._control.post("/v1/model/unload", headers=self._headers)
        if page.status not in {200, _NOTHING_LOADED}:
            raise failure(self._control, page, doing="let go of")


def _events(body: bytes) -> Iterator[Mapping[str, object]]:
    """What a stream of events said, whole; lines of other kinds keep the connection alive."""
    for line in body.splitlines():
        if line.startswith(b"data:"):
            try:
                event = orjson.loads(line[5:])
            except orjson.JSONDecodeError:
                continue
            if isinstance(event, Mapping):
                yield event


def _as_page(event: Mapping[str, object]) -> Page:
    return Page(status=500, body=orjson.dumps(event))
