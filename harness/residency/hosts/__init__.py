"""What loads models and lets them go, a host for each kind of server and engine."""

from __future__ import annotations

from typing import Any

from harness.inference import Backend, Endpoint
from harness.residency.host import Host, HostReport


class _Engine:
    def __init__(self, backend: Any) -> None:
        self._backend = backend

    async def load(self) -> None:
        await self._backend.load()

    async def unload(self) -> None:
        await self._backend.unload()

    async def report(self) -> HostReport | None:
        return None

    async def aclose(self) -> None:
        pass


def host_of(
    endpoint: Endpoint, backend: Backend, *, api_key: str | None, control_key: str | None
) -> Host:
    return _Engine(backend)
