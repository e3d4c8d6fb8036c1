"""A machine with so much memory, and hosts that load models into it when a test lets them."""

import asyncio

from harness.residency import KeepAliveBudget, Tenant
from harness.trace import Tracer


class Machine:
    """Counts memory as hosts take it and give it back, and refuses what no machine can do.

    Args:
        capacity_bytes: All that it has.
        needs: What each model takes, in bytes.

    Attributes:
        log: What happened, in order: `load a`, `unload a`.
        held: While an event stands here under `load a`, that waits for it.
        broken: What fails, such as `load a`.
        taken: What is taken by each model that is in memory, or on its way in or out.
        calls: How many calls use each model.
    """

    def __init__(self, capacity_bytes: int, **needs: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.needs = needs
        self.log: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.broken: set[str] = set()
        self.taken: dict[str, int] = {}
        self.calls = dict.fromkeys(needs, 0)

    def budget(self, tracer: Tracer | None = None) -> KeepAliveBudget:
        return KeepAliveBudget(
            capacity_bytes=self.capacity_bytes,
            tenants={
                model: Tenant(host=Host(self, model), need_bytes=need_bytes)
                for model, need_bytes in self.needs.items()
            },
            tracer=tracer or Tracer(),
        )

    async def pause(self) -> None:
        """Others run meanwhile, as with any real host."""
        await asyncio.sleep(0)

    async def perform(self, action: str) -> None:
        self.log.append(action)
        await self.pause()
        if action in self.held:
            await self.held[action].wait()
        if action in self.broken:
            raise OSError(f"cannot {action}")


class Host:
    """One model of the machine."""

    def __init__(self, machine: Machine, model: str) -> None:
        self._machine = machine
        self._model = model

    async def load(self) -> None:
        machine, model = self._machine, self._model
        assert model not in machine.taken, f"{model} is loaded twice"
        machine.taken[model] = machine.needs[model]
        assert sum(machine.taken.values()) <= machine.capacity_bytes, machine.taken
        try:
            await machine.perform(f"load {model}")
        except BaseException:
            del machine.taken[model]
            raise

    async def unload(self) -> None:
        machine, model = self._machine, self._model
        assert machine.calls[model] == 0, f"{model} is unloaded while it is in use"
        try:
            await machine.perform(f"unload {model}")
        finally:
            del machine.taken[model]
