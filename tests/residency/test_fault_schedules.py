"""Whatever goes wrong with servers and sizes: calls end, the ledger heals, nothing is left over."""

import asyncio
import random

import pytest
from faulty_machine import FaultyGuest, FaultyMachine
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_loop import run_virtually

from harness.errors import DoesNotFit, HarnessError, LoadFailed
from harness.residency import Forecast, Strand

TROUBLE_S = 900.0
"""How long things go wrong."""
LONGEST_CALL_S = 30.0
ANSWERED_WITHIN_S = 6_000.0
"""Every call: when each of five models hangs until its limit of 600 s, coming and going."""
HEALED_WITHIN_S = 630.0
"""A move that hangs goes on for 600 s; what hosts say is looked up every 10 s."""


class Schedule:
    """Calls, forecasts, guests and cancellations, by chance.

    Args:
        seed: Of all that is decided.
    """

    def __init__(self, seed: int) -> None:
        self.randomness = random.Random(seed)
        self.machine = FaultyMachine(self.randomness)
        self.budget = self.machine.budget

    async def run(self) -> None:
        """All of it, with what must be so at the end."""
        randomness, machine = self.randomness, self.machine
        async with self.budget.opened():
            self._admit_guests()
            others = [
                asyncio.create_task(work)
                for work in (machine.make_trouble(), self._forecast(), self._grow_guests())
            ]
            await self._call()
            await self._end(others)
            machine.calm_down()
            await asyncio.sleep(HEALED_WITHIN_S)
            self._check_ledger()
            for model in randomness.sample(list(machine.servers), len(machine.servers)):
                await self._check_answer(model)
            for guest in list(machine.guests):
                await self._dismiss(guest)
            machine.is_closing = True
            hurried = await self._hurry() if randomness.random() < 0.3 else []
        for result in await asyncio.gather(*hurried, return_exceptions=True):
            assert result is None or isinstance(result, HarnessError), result
        self._check_end()

    # --- what happens -----------------------------------------------------------------------------

    def _admit_guests(self) -> None:
        for name in "gh"[: self.randomness.choice([0, 0, 1, 2])]:
            self._admit(name)

    def _admit(self, name: str) -> None:
        guest = FaultyGuest(name, self.machine)
        self.machine.guests.append(guest)
        guest.come_along()
        self.budget.admit_guest(guest)

    async def _dismiss(self, guest: FaultyGuest) -> None:
        await self.budget.dismiss_guest(guest)
        self.machine.guests.remove(guest)

    async def _call(self) -> None:
        """Callers, each of which makes one call after the other; some are cancelled."""
        randomness = self.randomness
        async with asyncio.TaskGroup() as group:
            callers = [group.create_task(self._caller()) for _ in range(randomness.randint(1, 6))]
            for caller in callers:
                if randomness.random() < 0.2:
                    await asyncio.sleep(randomness.uniform(0.0, 100.0))
                    caller.cancel()

    async def _caller(self) -> None:
        randomness = self.randomness
        for _ in range(randomness.randint(1, 12)):
            await asyncio.sleep(randomness.choice([0.0, 0.0, randomness.uniform(0.0, 100.0)]))
            model = randomness.choice(list(self.machine.servers))
            patience_s = randomness.choice([None, None, None, randomness.uniform(0.0, 60.0)])
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
        randomness, server = self.randomness, self.machine.servers[model]
        kv_tokens = randomness.choice([0, 40, 80, 200])
        length_s = randomness.choice([0.0, 1.0, randomness.uniform(0.0, LONGEST_CALL_S)])
        self.machine.something_happened()
        async with self.budget.lease(model, kv_tokens=kv_tokens):
            self.machine.note(f"call of {model} begins")
            entry = self.budget.ledger.residents.get(model)
            assert entry is None or entry.leases > server.calls
            await self.machine.call(server, length_s)

    async def _forecast(self) -> None:
        """Says what comes: something right by chance, something wrong, or nothing."""
        randomness, models = self.randomness, [*self.machine.servers, "unknown"]
        while randomness.random() < 0.9:
            strands = []
            for number in range(randomness.choice([0, 1, 3])):
                uses = tuple(randomness.choices(models, k=randomness.randint(1, 4)))
                after = randomness.sample([f"{n}" for n in range(number)], min(number, 1))
                strands.append(Strand(name=f"{number}", uses=uses, after=frozenset(after)))
            is_complete = randomness.random() < 0.5
            self.machine.something_happened()
            self.machine.note(f"forecast {[s.uses for s in strands]}, complete {is_complete}")
            self.budget.expect(Forecast(strands=tuple(strands), is_complete=is_complete))
            await asyncio.sleep(randomness.uniform(0.0, 100.0))

    async def _grow_guests(self) -> None:
        while self.machine.guests:
            await asyncio.sleep(self.randomness.uniform(0.0, 100.0))
            guest = self.randomness.choice(self.machine.guests)
            guest.is_broken = self.machine.goes_wrong()
            self.machine.something_happened()
            match self.randomness.choice(["grows", "grows and says so", "leaves"]):
                case "grows":
                    guest.grow()
                case "grows and says so":
                    guest.grow()
                    self.budget.recount_guests()
                case "leaves":
                    await self._dismiss(guest)
                    self._admit(guest.name)

    async def _end(self, tasks) -> None:
        """Ends what goes on for ever, once there was trouble for long enough."""
        left_s = TROUBLE_S - asyncio.get_running_loop().time()
        await asyncio.sleep(max(left_s, 0.0))
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert result is None or isinstance(result, asyncio.CancelledError), result

    async def _hurry(self) -> list[asyncio.Task[None]]:
        """Calls that wait, and are answered, when the budget closes."""
        calls = [
            asyncio.create_task(self._one_call(model))
            for model in self.randomness.choices(list(self.machine.servers), k=4)
        ]
        await asyncio.sleep(self.randomness.choice([0.0, 1.0, 10.0]))
        return calls

    # --- what must be so --------------------------------------------------------------------------

    def _check_ledger(self) -> None:
        """It says what the hosts say, and nobody has a lease."""
        ledger, servers = self.budget.ledger, self.machine.servers
        assert not any(one.leases or one.kv_tokens for one in ledger.residents.values()), ledger
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


@given(seed=st.integers(0, 2**64))
def test_whatever_goes_wrong_calls_end_and_the_ledger_heals(seed):
    run_schedule(seed)


@pytest.mark.slow
@settings(max_examples=max(300, settings().max_examples))
@given(seed=st.integers(0, 2**64))
def test_nor_do_many_more_schedules_find_one_that_hangs_or_leaks(seed):
    run_schedule(seed)


def run_schedule(seed: int) -> None:
    """Says what happened, if something did that must not."""
    machines = []

    async def main():
        schedule = Schedule(seed)
        machines.append(schedule.machine)
        await schedule.run()

    try:
        run_virtually(main)
    except BaseException:
        print("\n".join(machines[0].log))
        raise
