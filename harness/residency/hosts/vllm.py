"""vLLM's sleep mode: one model per server, whose GPU memory is given back and taken again.

From vLLM 0.32 (entrypoints/serve/dev/sleep). Asleep, the weights are in the machine's memory and
the KV cache is nowhere (level 1); a call to a server that sleeps waits, it does not fail. What is
given back is the share of the GPU that the server was started with (`--gpu-memory-utilization`),
less some hundred MiB that the process keeps; vLLM does not say how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from harness.inference import Endpoint
from harness.residency.host import HostReport
from harness.residency.hosts.control import Control
from harness.residency.hosts.failures import failure, misread, switched_off
from harness.residency.hosts.patience import until

_NEEDS: Final = "--enable-sleep-mode, and VLLM_SERVER_DEV_MODE=1 in its environment"
_NO_SUCH_PAGE: Final = 404


class VllmHost:
    """A vLLM server, and the model that it was started with.

    Args:
        endpoint: Where it is; `url` must be set.
        api_key: Sent as a bearer token.
    """

    def __init__(self, endpoint: Endpoint, *, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._control = Control(endpoint, api_key=api_key)

    async def load(self) -> None:
        """Wakes the server; see `Host.load`.

        Raises:
            LoadFailed: It cannot be woken, not in time, or was started without sleep mode.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("wake"):
            if not await self._is_asleep():
                return
            async with self._control.or_else(self._sleep):
                await self._wake()
                await until(self._is_awake)

    async def unload(self) -> None:
        """Has the server end its calls and sleep; see `Host.unload`.

        Raises:
            LoadFailed: It does not sleep, or was started without sleep mode.
            InferenceError: The server cannot be asked.
        """
        async with self._control.in_time("let go of"):
            if await self._is_asleep():
                return
            await self._check_sleep_mode()
            # One that is on its way to sleep takes no calls: else it is known to be awake.
            async with self._control.or_else(self._wake):
                await self._sleep()

    async def report(self) -> HostReport:
        """Whether it is awake; see `Host.report`.

        Raises:
            LoadFailed: It was started without the pages that tell.
            InferenceError: The server cannot be asked.
        """
        return HostReport(resident=not await self._is_asleep())

    async def aclose(self) -> None:
        """Closes the connections; the server stays as it is."""
        await self._control.aclose()

    async def _is_asleep(self) -> bool:
        page = await self._control.get("/is_sleeping")
        if page.status == _NO_SUCH_PAGE:
            raise switched_off(self._control, "vLLM", needs=_NEEDS)
        if page.status != 200:
            raise self._control.refusal(page)
        match page.json:
            case {"is_sleeping": bool(asleep)}:
                return asleep
        raise misread(self._control, page)

    async def _is_awake(self) -> bool:
        return not await self._is_asleep()

    async def _check_sleep_mode(self) -> None:
        """Makes sure that sleep gives memory back.

        Without `--enable-sleep-mode` vLLM goes to sleep all the same, and keeps its memory.
        """
        page = await self._control.get("/server_info", params={"config_format": "json"})
        if _at(page.json, "vllm_config", "model_config", "enable_sleep_mode") is False:
            raise switched_off(self._control, "vLLM", needs=_NEEDS)

    async def _sleep(self) -> None:
        # `wait`, since calls of others may be under way; ours are not, when a model is let go.
        page = await self._control.post("/sleep", params={"level": "1", "mode": "wait"})
        if page.status != 200:
            raise failure(self._control, page, doing="let go of")

    async def _wake(self) -> None:
        page = await self._control.post("/wake_up")
        if page.status != 200:
            raise failure(self._control, page, doing="wake")


def _at(value: object, *keys: str) -> object:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
