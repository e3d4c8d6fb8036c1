"""A machine with so much memory, and hosts that load models into it when a test lets them."""

import asyncio
from contextlib import asynccontextmanager

from harness.errors import EndpointUnreachable
from harness.residency import Device, HostReport, KeepAliveBudget, Tenant
from harness.trace import Tracer


async def use(budget, model, *, for_s=0.0):
    """One call."""
    async with budget.lease(model):
        await asyncio.sleep(for_s)


async def until_idle():
    """Lets every task run until it waits for something, and the moment pass before a model goes."""
    await asyncio.sleep(0.1)


def residents(budget):
    """How many calls use each model that is there."""
    return {one.model: one.leases for one in budget.ledger.residents.values()}


def loop_ns() -> int:
    """The time of the running loop, for tracers."""
    return round(asyncio.get_running_loop().time() * 1e9)


class Machine:
    """Counts memory as hosts take it and give it back, and refuses what no machine can do.

    Args:
        capacity_bytes: All that it has.
        needs: What each model takes, in bytes.

    Attributes:
        log: What happened, in order: `load a`, `unload a`.
        held: While an event stands here under `load a`, that waits for it.
        takes_s: How long a load takes, and an unload.
        says_sizes: Whether hosts say what models take.
        broken: What fails, such as `load a`, and an unload then takes nothing out.
        dead: Models whose servers have died: they cannot be reached.
        taken: What is taken by each model that is in memory, or on its way in or out.
        calls: How many calls use each model.
    """

    def __init__(self, capacity_bytes: int, **needs: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.needs = needs
        self.log: list[str] = []
        self.held: dict[str, asyncio.Event] = {}
        self.takes_s = 0.0
        self.says_sizes = True
        self.broken: set[str] = set()
        self.dead: set[str] = set()
        self.taken: dict[str, int] = {}
        self.calls = dict.fromkeys(needs, 0)

    def budget(self, tracer: Tracer | None = None, **how) -> KeepAliveBudget:
        """Its keep-alive budget, not yet opened.

        Args:
            tracer: Sees what it does.
            how: More of the budget's, and under the name of a model more of the tenant's.
        """
        return KeepAliveBudget(
            devices=[Device(name="machine", capacity_bytes=self.capacity_bytes)],
            tenants=[
                Tenant(model=model, need={"machine": need_bytes}, **how.pop(model, {}))
                for model, need_bytes in self.needs.items()
            ],
            hosts={model: Host(self, model) for model in self.needs},
            tracer=tracer or Tracer(clock=loop_ns),
            **how,
        )

    @asynccontextmanager
    async def lending(
        self, tracer: Tracer | None = None, *, lend=lambda _count: None, max_parallel=None, **how
    ):
        """The same, opened, for the nodes of a run."""
        budget = self.budget(tracer, **how)
        async with budget.opened():
            with budget.serving("", lend=lend, max_parallel=max_parallel):
                yield budget

    async def pause(self) -> None:
        """Others run meanwhile, as with any real host."""
        await asyncio.sleep(self.takes_s)

    def reach(self, model: str) -> None:
        """Asks its server, if it is there."""
        if model in self.dead:
            raise EndpointUnreachable("connection refused", endpoint=model)

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
        machine.reach(model)
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
        machine.reach(model)
        assert machine.calls[model] == 0, f"{model} is unloaded while it is in use"
        await machine.perform(f"unload {model}")
        machine.taken.pop(model, None)

    async def report(self) -> HostReport | None:
        self._machine.reach(self._model)
        await asyncio.sleep(0.0)
        taken = self._machine.taken.get(self._model)
        total_bytes = taken if self._machine.says_sizes else None
        return HostReport(resident=taken is not None, total_bytes=total_bytes)

    async def aclose(self) -> None:
        pass
