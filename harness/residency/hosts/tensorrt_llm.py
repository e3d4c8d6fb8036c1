"""TensorRT-LLM's memory checkpoint: one model per server, whose GPU memory is given back and taken.

From its docs/source/features/sleep-wakeup.md, a prototype of 2026. Parked, the weights are in the
machine's memory and the KV cache is nowhere. It ends the calls under way before it parks, and
refuses calls until it runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness.errors import ConfigurationInvalid, LoadFailed
from harness.inference import Endpoint
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control, Page
from harness.residency.hosts.failures import failure, misread, switched_off
from harness.residency.hosts.patience import until
from harness.residency.hosts.runtime_control_auth import early_signed_headers, signed_headers

_NEEDS: Final = (
    "--enable_sleep_mode (PyTorch backend), and TRTLLM_RUNTIME_CONTROL_API_KEY in its environment"
)
_RUNNING, _PARKED, _FAILED = "running", "parked", "failed"
_NO_SUCH_PAGE: Final = 404
_ON_THE_MOVE: Final = 409
_BAD_SIGNATURE: Final = 401


class TensorRtLlmHost:
    """A server of trtllm-serve, and the model that it was started with.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token, for whatever stands before the server.
        control_key: The server's `TRTLLM_RUNTIME_CONTROL_API_KEY`.

    Raises:
        ConfigurationInvalid: There is no control key.
    """

    def __init__(
        self, endpoint: Endpoint, *, api_key: str | None = None, control_key: str | None = None
    ) -> None:
        if not control_key:
            raise ConfigurationInvalid(
                f"endpoint '{endpoint.tag}' is to be loaded and let go, for which TensorRT-LLM "
                "wants a key: set control_key_env to the name of the variable that holds the "
                "server's TRTLLM_RUNTIME_CONTROL_API_KEY, or set manage to false",
                code="endpoint.control-key-missing",
            )
        self._endpoint = endpoint
        self._control = Control(endpoint, api_key=api_key)
        self._key = control_key

    async def load(self) -> None:
        """Has the server take its memory again; see `Host.load`.

        Raises:
            LoadFailed: It cannot, not in time, or was started without sleep mode.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("load"):
            if await self._state() == _RUNNING:
                return
            async with self._control.or_else(self._park):
                await until(self._has_resumed)

    async def unload(self) -> None:
        """Has the server end its calls and give its memory back; see `Host.unload`.

        Raises:
            LoadFailed: It does not, or was started without sleep mode.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("let go of"):
            await self._park()

    async def report(self) -> HostReport:
        """Whether it takes calls; see `Host.report`.

        Raises:
            LoadFailed: It was started without the pages that tell.
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident=await self._state() == _RUNNING)

    async def aclose(self) -> None:
        """Closes the connections; the server stays as it is."""
        await self._control.aclose()

    async def _park(self) -> None:
        await until(self._has_parked)

    async def _has_parked(self) -> bool:
        return await self._moved(_PARKED, path="/release_memory", doing="let go of")

    async def _has_resumed(self) -> bool:
        return await self._moved(_RUNNING, path="/resume_memory", doing="load")

    async def _moved(self, wanted: str, *, path: str, doing: str) -> bool:
        """Whether it is where it should be; if it stands still elsewhere, it is told to move."""
        state = await self._state()
        if state == wanted:
            return True
        if state == _FAILED:
            raise LoadFailed(
                f"TensorRT-LLM at {self._control.root} failed to move its memory, and has to be "
                "started anew",
                code="server.broken",
                endpoint=self._endpoint.tag,
            )
        if state in {_RUNNING, _PARKED}:
            page = await self._ask("POST", path)
            if page.status not in {200, _ON_THE_MOVE}:
                raise failure(self._control, page, doing=doing)
        return False

    async def _state(self) -> str:
        """`running`, `parking`, `parked`, `waking` or `failed`."""
        page = await self._ask("GET", "/memory_status")
        if page.status == _NO_SUCH_PAGE:
            raise switched_off(self._control, "TensorRT-LLM", needs=_NEEDS)
        if page.status != 200:
            raise failure(self._control, page, doing="tell of")
        match page.json:
            case {"state": str(state)}:
                return state
        raise misread(self._control, page)

    async def _ask(self, method: str, path: str) -> Page:
        page = await self._send(method, path, signed_headers(self._key, method=method, path=path))
        if page.status == _BAD_SIGNATURE:
            page = await self._send(method, path, early_signed_headers(self._key))
        return page

    async def _send(self, method: str, path: str, headers: Mapping[str, str]) -> Page:
        if method == "GET":
            return await self._control.get(path, headers=headers)
        return await self._control.post(path, headers=headers)
