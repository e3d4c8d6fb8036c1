"""Whatever goes wrong with servers and sizes: calls end, the ledger heals, nothing is left over.

A schedule is a machine, its servers, and what happens in a quarter of an hour, all by chance; then
nothing goes wrong any more, and what must be so is checked.
"""

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import loop_ns
from virtual_loop import run_virtually

from harness.errors import (
    DoesNotFit,
    EndpointUnreachable,
    HarnessError,
    LoadFailed,
    ServerError,
    StreamCut,
)
from harness.residency import Device, Forecast, HostReport, KeepAliveBudget, Strand, Tenant
from harness.trace import SpanEnded, SpanStarted, Tracer

TROUBLE_S = 900.0
"""How long things go wrong."""
LONGEST_CALL_S = 30.0
ANSWERED_WITHIN_S = 6_000.0
"""Every call: when each of five models hangs until its limit of 600 s, coming and going."""
HEALED_WITHIN_S = 630.0
"""A move that hangs goes on for 600 s; what hosts say is looked up every 10 s."""
MOST_MOVES = 25
"""That one thing may lead to: five models that make way, are tried in vain, and come back."""
FOR_EVER_S = 1e9


@dataclass(kw_only=True)
class Server:
    """One model, and the server that has it."""

    model: str
    real: dict[str, int]
    """What it takes, by device, whatever anybody thinks."""
    loads_itself: bool
    """Whether a call loads the model, as with Ollama; else it must have been loaded before."""
    says_sizes: bool
    never: frozenset[str]
    """What fails every time: `load`, `unload`, `report`."""
    lies: float
    """What it says its model takes, by what it does take."""
    is_dead: bool = False
    """It cannot be reached."""
    is_resident: bool = False
    is_coming: bool = False
    """Its model has its memory, and no calls can begin."""
    is_busy: bool = False
    """A load or an unload that the budget asked for is under way."""
    calls: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the model goes that is there now."""

    def stay(self):
        self.is_coming, self.is_resident = False, True
        self.gone = asyncio.Event()

    def leave(self):
        self.is_coming = self.is_resident = False
        self.gone.set()

    def reach(self):
        if self.is_dead:
            raise EndpointUnreachable("connection refused", endpoint=self.model)


class Machine:
    """Servers, the memory that they share, and its keep-alive budget, not yet opened.

    Attributes:
        is_faulty: Whether anything may go wrong still.
        broken_promises: What should not have happened.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.is_faulty = True
        self.log: list[str] = []
        self.broken_promises: list[str] = []
        self.open_spans: Counter[int] = Counter()
        self._moves = 0
        self._fault_rate = chance.choice([0.0, 0.05, 0.3])
        self._sizes_are_right = chance.random() < 0.4
        self.devices = [Device(name="machine", capacity_bytes=chance.randint(8, 20))]
        if chance.random() < 0.4:
            size, reserve = chance.randint(6, 16), chance.choice([0, 2])
            self.devices.append(Device(name="gpu0", capacity_bytes=size, reserve_bytes=reserve))
        wrong = [1] if self._sizes_are_right else [1, 1, 1, 0.6, 1.5]
        self.real_bytes = {
            one.name: round(one.capacity_bytes * chance.choice(wrong)) for one in self.devices
        }
        models = "abcde"[: chance.randint(2, 5)]
        self.servers = {model: self._some_server(model) for model in models}
        tenants = [self._some_tenant(server) for server in self.servers.values()]
        small = all(tenants[0].need.get(d.name, 0) <= d.room_bytes // 2 for d in self.devices)
        if small and chance.random() < 0.4:
            tenants[0] = Tenant(
                model=tenants[0].model, need=tenants[0].need, pin=True, load_timeout_s=60.0
            )
        self.budget = KeepAliveBudget(
            devices=self.devices,
            tenants=tenants,
            hosts={model: Host(self, server) for model, server in self.servers.items()},
            tracer=Tracer(self._count_spans, clock=loop_ns),
            max_wait_s=chance.choice([0.0, 10.0, 60.0]),
        )
        # What does not fit beside what is pinned would be taken for smaller than it is.
        if not any(one.pin for one in tenants):
            for server in self.servers.values():
                if chance.random() < 0.2 and self._has_room(server):
                    server.is_resident = True

    def _some_server(self, model: str) -> Server:
        chance, where = self.chance, [device.name for device in self.devices]
        on = where if chance.random() < 0.2 else [chance.choice(where)]
        actions = ("load", "unload", "report") if self._fault_rate else ()
        return Server(
            model=model,
            real={device: chance.randint(1, 9) for device in on},
            loads_itself=not self._sizes_are_right and chance.random() < 0.3,
            says_sizes=chance.random() < 0.6,
            never=frozenset(action for action in actions if chance.random() < 0.05),
            lies=1.0 if self._sizes_are_right else chance.choice([1.0, 1.0, 0.1, 10.0]),
        )

    def _some_tenant(self, server: Server) -> Tenant:
        choice = self.chance.choice
        wrong = 1.0 if self._sizes_are_right else choice([1.0, 1.0, 0.5, 2.0])
        return Tenant(
            model=server.model,
            need={name: max(round(size * wrong), 1) for name, size in server.real.items()},
            load_s=choice([0.5, 5.0, 30.0]),
            slots=choice([None, None, 1, 2]),
            load_timeout_s=choice([20.0, 60.0, 600.0]),
            priority=choice([0, 0, 1]),
        )

    def _count_spans(self, record) -> None:
        if isinstance(record, SpanStarted):
            self.open_spans[record.id] += 1
        elif isinstance(record, SpanEnded):
            del self.open_spans[record.id]

    # --- memory -----------------------------------------------------------------------------------

    def _has_room(self, server: Server) -> bool:
        def taken_bytes(device: str) -> int:
            there = [one for one in self.servers.values() if one.is_resident or one.is_coming]
            return sum(one.real.get(device, 0) for one in there)

        return all(taken_bytes(d) + size <= self.real_bytes[d] for d, size in server.real.items())

    def bring(self, server: Server) -> bool:
        """The model takes its memory; whether there is room for it."""
        server.is_coming = self._has_room(server)
        return server.is_coming

    # --- what happens -----------------------------------------------------------------------------

    def something_happened(self) -> None:
        """Which may well have models moved."""
        self._moves = 0

    def begin_move(self, server: Server, what: str) -> None:
        """The budget has asked for one; not again and again, when nothing has changed."""
        self.note(f"{what} {server.model}")
        self.must(not server.is_busy, f"{server.model} is moved by two")
        server.is_busy = True
        self._moves += 1
        self.must(self._moves <= MOST_MOVES, f"{server.model} is moved again and again")

    def note(self, text: str) -> None:
        self.log.append(f"{loop_ns() / 1e9:10.3f}  {text}")

    def goes_wrong(self, server: Server | None = None, action: str = "") -> bool:
        is_cursed = server is not None and action in server.never
        return self.is_faulty and (is_cursed or self.chance.random() < self._fault_rate)

    def must(self, holds: bool, text: str) -> None:  # noqa: FBT001 - as assert
        """What must hold: not an assertion, for whoever asked a host expects it to fail."""
        if not holds:
            self.note(f"WRONG: {text}")
            self.broken_promises.append(text)

    def check_room(self, server: Server) -> None:
        """What the budget loads has room in its ledger, where all is as it was told."""
        if self._sizes_are_right:
            rooms = [self.budget.ledger.free_bytes(device) for device in server.real]
            self.must(min(rooms) >= 0, f"{server.model} had no room")

    def check_fault(self, server: Server) -> None:
        """Where nothing at all goes wrong, what is asked for has room."""
        is_flawless = self._sizes_are_right and not self._fault_rate
        self.must(not is_flawless, f"{server.model} has no room")

    async def pause(self, most_s: float = 5.0) -> None:
        await asyncio.sleep(self.chance.choice([0.0, 0.001, self.chance.uniform(0.0, most_s)]))

    async def call(self, server: Server, length_s: float) -> None:
        """One call, which the server answers if it can."""
        self.something_happened()
        server.calls += 1
        try:
            server.reach()
            if not server.is_resident:
                if server.is_coming or not (server.loads_itself and self.bring(server)):
                    raise ServerError("the model is not loaded", endpoint=server.model)
                server.stay()
            try:
                async with asyncio.timeout(length_s):
                    await server.gone.wait()
            except TimeoutError:
                return
            raise StreamCut("the stream ended", endpoint=server.model)
        finally:
            server.calls -= 1
            self.something_happened()

    async def make_trouble(self) -> None:
        """Has things happen that nobody asked for, for ever."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.5, 60.0))
            server = self.chance.choice(list(self.servers.values()))
            if not self.goes_wrong():
                continue
            self.something_happened()
            trouble = self.chance.choice(["dies", "hides", "loses"])
            self.note(f"{server.model}'s server: {trouble}")
            if trouble in {"dies", "hides"}:
                server.is_dead = True
                if trouble == "dies":
                    server.leave()
                await asyncio.sleep(self.chance.uniform(0.0, 40.0))
                server.is_dead = False
            elif server.is_resident and not server.is_busy:
                server.leave()

    def calm_down(self) -> None:
        """From now on all goes well, and all is told as it is."""
        self.is_faulty = False
        for server in self.servers.values():
            server.is_dead, server.lies = False, 1.0


class Host:
    """What the budget moves one model by."""

    def __init__(self, machine: Machine, server: Server) -> None:
        self._machine, self._server = machine, server

    async def load(self) -> None:
        machine, server = self._machine, self._server
        is_known = server.model in machine.budget.ledger.residents
        machine.must(not is_known, f"{server.model} is loaded, and known to be there")
        machine.begin_move(server, "load")
        try:
            await self._load()
        finally:
            server.is_busy = False

    async def _load(self) -> None:
        machine, server = self._machine, self._server
        server.reach()
        if server.is_resident:
            return
        if not machine.bring(server):
            machine.check_fault(server)
            await machine.pause()
            is_told = not machine.goes_wrong()
            raise LoadFailed("out of memory", endpoint=server.model, out_of_memory=is_told)
        machine.check_room(server)
        faults = ["fails", "hangs", "comes too late", "is not there"]
        fault = machine.chance.choice(faults) if machine.goes_wrong(server, "load") else ""
        try:
            if fault == "fails":
                await machine.pause()
                raise LoadFailed("a bad day", endpoint=server.model)
            if fault in {"hangs", "comes too late"}:
                await asyncio.sleep(FOR_EVER_S)
            if fault == "is not there":
                server.leave()
                return
            await machine.pause(15.0)
            server.reach()
            if not server.is_coming:
                raise EndpointUnreachable("connection lost", endpoint=server.model)
        except BaseException:
            comes_all_the_same = fault == "comes too late" and server.is_coming
            (server.stay if comes_all_the_same else server.leave)()
            raise
        server.stay()

    async def unload(self) -> None:
        machine, server = self._machine, self._server
        machine.must(server.calls == 0, f"{server.model} is unloaded, and in use")
        machine.begin_move(server, "unload")
        try:
            await self._unload()
        finally:
            server.is_busy = False

    async def _unload(self) -> None:
        machine, server = self._machine, self._server
        server.reach()
        faults = ["stays", "hangs", "goes and fails", "goes and hangs"]
        fault = machine.chance.choice(faults) if machine.goes_wrong(server, "unload") else ""
        if fault == "stays":
            await machine.pause()
            raise LoadFailed("it is kept", endpoint=server.model)
        if fault == "hangs":
            await asyncio.sleep(FOR_EVER_S)
        if fault:
            server.leave()
            if fault == "goes and fails":
                raise LoadFailed("a bad day", endpoint=server.model)
            await asyncio.sleep(FOR_EVER_S)
        await machine.pause(2.0)
        server.leave()

    async def report(self) -> HostReport | None:
        machine, server = self._machine, self._server
        await machine.pause(1.0)
        server.reach()
        if machine.goes_wrong(server, "report"):
            fault = machine.chance.choice(["hangs", "breaks", "says nothing"])
            if fault == "breaks":
                raise RuntimeError("not what anybody expects")
            await asyncio.sleep(FOR_EVER_S if fault == "hangs" else 0.0)
            return None
        said = HostReport(resident=server.is_resident)
        if server.is_resident and server.says_sizes:
            sizes = {name: round(size * server.lies) for name, size in server.real.items()}
            total, on_gpu = sum(sizes.values()), sizes.get("gpu0", 0)
            said = HostReport(resident=True, total_bytes=total, gpu_bytes=on_gpu)
        await machine.pause(1.0)
        return said

    async def aclose(self) -> None:
        pass


# --- a schedule -----------------------------------------------------------------------------------


class Schedule:
    """Calls, forecasts and cancellations, by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = Machine(self.chance)
        self.budget = self.machine.budget

    async def run(self) -> None:
        """All of it, with what must be so at the end."""
        chance, machine = self.chance, self.machine
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.budget.opened())
            serving = self.budget.serving("", lend=lambda _count: None, max_parallel=None)
            stack.enter_context(serving)
            works = (machine.make_trouble(), self._forecast())
            others = [asyncio.create_task(work) for work in works]
            await self._call()
            await asyncio.sleep(max(TROUBLE_S - asyncio.get_running_loop().time(), 0.0))
            for task in others:
                task.cancel()
            for result in await asyncio.gather(*others, return_exceptions=True):
                assert result is None or isinstance(result, asyncio.CancelledError), result
            machine.calm_down()
            await asyncio.sleep(HEALED_WITHIN_S)
            self._check_ledger()
            for model in chance.sample(list(machine.servers), len(machine.servers)):
                await self._check_answer(model)
        self._check_end()

    async def _call(self) -> None:
        """Callers, each of which makes one call after the other; some are cancelled."""
        chance = self.chance
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(self._caller()) for _ in range(chance.randint(1, 6))]
            for caller in callers:
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.uniform(0.0, 100.0))
                    caller.cancel()

    async def _caller(self) -> None:
        chance = self.chance
        for _ in range(chance.randint(1, 12)):
            await asyncio.sleep(chance.choice([0.0, 0.0, chance.uniform(0.0, 100.0)]))
            model = chance.choice(list(self.machine.servers))
            patience_s = chance.choice([None, None, None, chance.uniform(0.0, 60.0)])
            began_s = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(patience_s):
                    await self._one_call(model)
            except TimeoutError:
                assert patience_s is not None
            except HarnessError as error:
                self.machine.note(f"call of {model}: {error}")
            took_s = asyncio.get_running_loop().time() - began_s
            assert took_s <= ANSWERED_WITHIN_S, f"{model} was waited for {took_s} s"

    async def _one_call(self, model: str) -> None:
        chance, server = self.chance, self.machine.servers[model]
        length_s = chance.choice([0.0, 1.0, chance.uniform(0.0, LONGEST_CALL_S)])
        self.machine.something_happened()
        async with self.budget.lease(model):
            entry = self.budget.ledger.residents.get(model)
            assert entry is None or entry.leases > server.calls
            await self.machine.call(server, length_s)

    async def _forecast(self) -> None:
        """Says what comes: something right by chance, something wrong, or nothing."""
        chance, models = self.chance, [*self.machine.servers, "unknown"]
        while chance.random() < 0.9:
            strands = []
            for number in range(chance.choice([0, 1, 3])):
                uses = tuple(chance.choices(models, k=chance.randint(1, 4)))
                after = chance.sample([f"{n}" for n in range(number)], min(number, 1))
                strands.append(Strand(name=f"{number}", uses=uses, after=frozenset(after)))
            is_complete = chance.random() < 0.5
            self.machine.something_happened()
            forecast = Forecast(strands=tuple(strands), is_complete=is_complete)
            self.budget.expect(forecast, run="")
            await asyncio.sleep(chance.uniform(0.0, 100.0))

    # --- what must be so --------------------------------------------------------------------------

    def _check_ledger(self) -> None:
        """It says what the hosts say, and nobody has a lease."""
        ledger, servers = self.budget.ledger, self.machine.servers
        assert not any(one.leases for one in ledger.residents.values()), ledger
        moving = {ledger.moving.model} if ledger.moving else set()
        said = {model for model, server in servers.items() if server.is_resident}
        assert set(ledger.residents) - moving == said - moving

    async def _check_answer(self, model: str) -> None:
        """When all goes well again, a model that can be there at all answers."""
        self.machine.something_happened()
        try:
            async with self.budget.lease(model):
                server = self.machine.servers[model]
                assert server.is_resident, f"{model} is lent, and not there"
                await self.machine.call(server, 1.0)
        except DoesNotFit:
            pass  # it needs more than was thought, or what is pinned does
        except LoadFailed as error:
            if not error.out_of_memory or self._fits_beside_pinned(model):
                raise

    def _fits_beside_pinned(self, model: str) -> bool:
        machine = self.machine
        pinned = {one.model for one in self.budget.tenants.values() if one.pin}
        if any(not machine.servers[one].is_resident for one in pinned - {model}):
            return False  # room is kept for it that there may not be
        needs = [machine.servers[one].real for one in pinned | {model}]
        return all(
            sum(need.get(device, 0) for need in needs) <= real_bytes
            for device, real_bytes in machine.real_bytes.items()
        )

    def _check_end(self) -> None:
        machine = self.machine
        assert self.budget.ledger.residents == {}
        left = [model for model, server in machine.servers.items() if server.is_resident]
        assert left == [], f"{left} are left in memory"
        assert not machine.open_spans
        assert machine.broken_promises == []
        assert asyncio.all_tasks() == {asyncio.current_task()}


def run_schedule(seed: int) -> None:
    """Says what happened, if something did that must not."""
    schedules = []

    async def main():
        schedules.append(Schedule(seed))
        await schedules[0].run()

    try:
        run_virtually(main)
    except BaseException:
        print("\n".join(schedules[0].machine.log))
        raise


@given(seed=st.integers(0, 2**64))
def test_whatever_goes_wrong_calls_end_and_the_ledger_heals(seed):
    run_schedule(seed)


@pytest.mark.slow
@settings(max_examples=max(100, settings().max_examples))
@given(seed=st.integers(0, 2**64))
def test_nor_do_many_more_schedules_find_one_that_hangs_or_leaks(seed):
    run_schedule(seed)
