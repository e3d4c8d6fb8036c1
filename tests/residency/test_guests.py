import asyncio
import random

import pytest
from machine import Machine
from visitor import Visitor

from harness.errors import InvalidInput
from harness.trace import CounterSet, Instant, SpanEnded, SpanStarted, Tracer


async def use(budget, model):
    """One call, over at once."""
    async with budget.lease(model):
        pass


async def until(happened):
    """Lets others run, threads among them, until it is so."""
    async with asyncio.timeout(30):
        while not happened():  # noqa: ASYNC110 - nobody says when a guest is back
            await asyncio.sleep(0)


async def until_idle():
    """Lets every task run until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


def names_out(budget):
    return {one.name for one in budget.ledger.guests if one.is_out}


def test_a_guest_takes_of_the_budget_what_it_takes_of_memory():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 3, machine)
            budget.admit_guest(guest)
            await use(budget, "a")

            assert guest.log == []
            assert budget.ledger.taken_bytes("machine") == 9
            guest.become(4)
            assert budget.ledger.taken_bytes("machine") == 10

    asyncio.run(main())


def test_a_guest_goes_before_an_idle_model_and_says_for_whom():
    async def main():
        machine = Machine(10, a=4, b=4)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 4, machine)
            budget.admit_guest(guest)
            for model in "abab":
                await use(budget, model)

            assert machine.log == ["load a", "load b"]
            assert guest.log == ["room for b"]

    asyncio.run(main())


def test_a_guest_comes_back_when_a_model_has_made_room():
    async def main():
        machine = Machine(10, large=9, small=4)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 5, machine)
            budget.admit_guest(guest)
            for _ in range(3):
                await use(budget, "large")
                assert guest.resident_bytes == 0
                await use(budget, "small")
                await until(lambda: not names_out(budget))
                assert guest.resident_bytes == 5

        assert guest.log == ["room for large", "back"] * 3

    asyncio.run(main())


def test_a_guest_that_comes_too_large_goes_at_once_and_waits_for_room():
    async def main():
        machine = Machine(10, large=8, small=2)
        async with machine.lending() as budget:
            await use(budget, "large")
            guest = Visitor("vectors", 5, machine)
            budget.admit_guest(guest)
            assert guest.log == ["models have left it no room"]

            await use(budget, "small")
            await until_idle()
            assert names_out(budget) == {"vectors"}  # both models fit, and leave it nothing

    asyncio.run(main())


def test_a_guest_that_grows_out_of_the_budget_goes_when_the_next_call_begins():
    async def main():
        machine = Machine(10, a=6)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 3, machine)
            budget.admit_guest(guest)
            await use(budget, "a")
            guest.become(5)
            assert guest.resident_bytes == 5

            await use(budget, "a")

            assert guest.log == ["models have left it no room"]
            assert machine.log == ["load a"]

    asyncio.run(main())


def test_a_guest_that_grows_and_shrinks_while_no_call_begins_goes_and_comes_back_when_recounted():
    async def main():
        machine = Machine(10)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 3, machine)
            budget.admit_guest(guest)
            guest.become(11)
            budget.recount_guests()
            assert guest.log == ["models have left it no room"]

            guest.become(10)
            budget.recount_guests()
            await until(lambda: not names_out(budget))
            assert guest.resident_bytes == 10

    asyncio.run(main())


def test_a_call_that_waits_for_room_has_the_guest_only_when_that_helps():
    async def main():
        machine = Machine(10, a=6, b=6)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 4, machine)
            budget.admit_guest(guest)
            async with asyncio.TaskGroup() as group:
                async with budget.lease("a"):
                    waiting = group.create_task(use(budget, "b"))
                    await until_idle()
                    assert guest.log == []
                await waiting

            assert machine.log == ["load a", "unload a", "load b"]
            assert guest.log == []  # beside b there is room for it, as there was beside a

    asyncio.run(main())


def test_a_load_that_fails_gives_the_guest_its_room_back():
    async def main():
        machine = Machine(10, a=8)
        async with machine.lending() as budget:
            guest = Visitor("vectors", 5, machine)
            budget.admit_guest(guest)
            machine.broken.add("load a")

            with pytest.raises(OSError, match="cannot load a"):
                await use(budget, "a")

            await until(lambda: not names_out(budget))
            assert guest.log == ["room for a", "back"]

    asyncio.run(main())


def test_a_call_to_a_resident_model_never_waits_for_a_guest_and_another_does():
    async def main():
        records = []
        machine = Machine(10, large=9, small=4, other=2)
        async with machine.lending(Tracer(records.append)) as budget, asyncio.TaskGroup() as group:
            guest = Visitor("vectors", 4, machine)
            budget.admit_guest(guest)
            await use(budget, "large")
            guest.may_return.clear()
            await use(budget, "small")
            await until_idle()  # on its way back

            await use(budget, "small")
            waiting = group.create_task(use(budget, "other"))
            await until_idle()
            assert not waiting.done()

            guest.may_return.set()
            await waiting
            assert guest.resident_bytes == 4

        *_, queue = [r for r in records if isinstance(r, SpanStarted) and r.name == "queue"]
        assert queue.attributes["reason"] == "'vectors' is on the move"

    asyncio.run(main())


def test_a_guest_that_cannot_come_back_stays_out_and_ends_no_run():
    async def main():
        records = []
        machine = Machine(10, large=9, small=4)
        async with machine.lending(Tracer(records.append)) as budget:
            guest = Visitor("vectors", 5, machine)
            budget.admit_guest(guest)
            guest.broken = True
            await use(budget, "large")
            await use(budget, "small")
            await until(lambda: [r for r in records if isinstance(r, SpanEnded) and r.error])
            await until_idle()
            assert names_out(budget) == {"vectors"}

            guest.broken = False
            await use(budget, "large")
            await use(budget, "small")
            await until(lambda: not names_out(budget))

        errors = [r.error for r in records if isinstance(r, SpanEnded) and r.status == "error"]
        assert errors == ["OSError: its file is gone"]

    asyncio.run(main())


def test_a_guest_that_was_dismissed_is_neither_counted_nor_brought_back():
    async def main():
        machine = Machine(10, large=9, small=4)
        async with machine.lending() as budget:
            leaving, staying = Visitor("leaving", 4, machine), Visitor("staying", 5, machine)
            budget.admit_guest(leaving)
            budget.admit_guest(staying)
            await use(budget, "large")
            await budget.dismiss_guest(leaving)
            await use(budget, "small")
            await until(lambda: not names_out(budget))

            assert (leaving.log, staying.log) == (["room for large"], ["room for large", "back"])
            assert budget.ledger.taken_bytes("machine") == 4 + 5

            budget.admit_guest(Visitor("leaving", 1, machine))  # another one, which is there
            assert names_out(budget) == set()

    asyncio.run(main())


def test_a_guest_that_just_comes_back_is_dismissed_when_it_is_there():
    async def main():
        machine = Machine(10, large=9, small=4)
        async with machine.lending() as budget, asyncio.TaskGroup() as group:
            guest = Visitor("vectors", 5, machine)
            budget.admit_guest(guest)
            await use(budget, "large")
            guest.may_return.clear()
            await use(budget, "small")
            await until_idle()
            dismissing = group.create_task(budget.dismiss_guest(guest))
            await until_idle()
            assert not dismissing.done()

            guest.may_return.set()
            await dismissing
            assert guest.resident_bytes == 5  # whoever closes it now disturbs nobody

    asyncio.run(main())


def test_a_guest_is_dismissed_at_once_although_models_load():
    async def main():
        machine = Machine(10, a=4)
        machine.held["load a"] = asyncio.Event()
        async with machine.lending() as budget, asyncio.TaskGroup() as group:
            guest = Visitor("vectors", 5, machine)
            budget.admit_guest(guest)
            calling = group.create_task(use(budget, "a"))
            await until(lambda: machine.log == ["load a"])
            async with asyncio.timeout(1):
                await budget.dismiss_guest(guest)
            assert not calling.done()
            machine.held["load a"].set()

    asyncio.run(main())


def test_room_that_a_dismissed_guest_leaves_is_given_to_another():
    async def main():
        machine = Machine(10)
        async with machine.lending() as budget:
            first, second = Visitor("first", 6, machine), Visitor("second", 5, machine)
            budget.admit_guest(second)
            budget.admit_guest(first)
            assert names_out(budget) == {"first"}  # the larger

            await budget.dismiss_guest(second)
            await until(lambda: not names_out(budget))

    asyncio.run(main())


def test_two_guests_of_one_name_are_refused():
    async def main():
        machine = Machine(10)
        async with machine.lending() as budget:
            budget.admit_guest(Visitor("vectors", 1, machine))

            with pytest.raises(
                InvalidInput, match="has a guest 'vectors' already; dismiss that one"
            ):
                budget.admit_guest(Visitor("vectors", 1, machine))

    asyncio.run(main())


def test_a_budget_closes_although_a_guest_is_on_its_way_and_fails():
    async def main():
        machine = Machine(10, large=9, small=4)
        budget = machine.budget()
        guest = Visitor("vectors", 5, machine)
        async with budget.opened():
            budget.admit_guest(guest)
            await use(budget, "large")
            guest.broken = True
            guest.may_return.clear()
            await use(budget, "small")
            await until_idle()
            asyncio.get_running_loop().call_soon(guest.may_return.set)
        assert budget.ledger.taken_bytes("machine") == 0

    asyncio.run(asyncio.wait_for(main(), 30))


def test_guests_that_go_and_come_back_are_in_the_trace():
    records = []

    async def main():
        machine = Machine(10, large=9, small=4)
        async with machine.lending(Tracer(records.append)) as budget:
            budget.admit_guest(Visitor("vectors", 5, machine))
            await use(budget, "large")
            await use(budget, "small")
            await until(lambda: not names_out(budget))

    asyncio.run(main())

    evicted = [dict(r.attributes) for r in records if isinstance(r, Instant)]
    assert evicted == [
        {"guest": "vectors", "reason": "room for large", "bytes": 5},
        {
            "model": "large",
            "reason": "room for small: a call waits for it, nothing is left for 'large'",
        },
        {"model": "small", "reason": "end of run"},
    ]
    (back,) = [r for r in records if isinstance(r, SpanStarted) and r.name == "restore"]
    assert dict(back.attributes) == {
        "track": "guest vectors",
        "guest": "vectors",
        "need_bytes": 5,
        "reason": "there is room again",
    }
    (end,) = [r for r in records if isinstance(r, SpanEnded) and r.id == back.id]
    assert (end.status, dict(end.attributes)) == ("ok", {"bytes": 5})
    counted = [(r.name, r.unit, r.value) for r in records if isinstance(r, CounterSet)]
    assert counted == [("resident", "bytes", value) for value in (0, 5, 9, 0, 4, 9, 5)]


class BusyMachine(Machine):
    """Takes its time, as long as chance has it, and its guests become larger and smaller."""

    def __init__(self, randomness, capacity_bytes, **needs):
        super().__init__(capacity_bytes, **needs)
        self.randomness = randomness
        self.guests = []

    async def pause(self):
        for _ in range(self.randomness.randint(0, 8)):
            await asyncio.sleep(0)
        for guest in self.guests:
            if self.randomness.random() < 0.3:
                guest.become(self.randomness.randint(0, self.capacity_bytes + 2))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_whatever_calls_come_guests_leave_them_room_and_come_back(seed):
    randomness = random.Random(seed)
    capacity_bytes = randomness.randint(4, 12)
    needs = {model: randomness.randint(1, capacity_bytes) for model in "abcd"}
    machine = BusyMachine(randomness, capacity_bytes, all=capacity_bytes, tiny=1, **needs)

    async def calls(budget):
        for model in randomness.choices("abcd", k=15):
            await machine.pause()
            async with budget.lease(model):  # the machine sees to it that there is room
                assert model in machine.taken
                await machine.pause()

    async def main():
        budget = machine.budget()
        guests = [Visitor(name, randomness.randint(1, 8), machine) for name in "fgh"]
        async with budget.opened(), asyncio.timeout(60):
            for guest in guests:
                budget.admit_guest(guest)
            machine.guests = guests
            async with asyncio.TaskGroup() as group:
                for _ in range(randomness.randint(1, 6)):
                    group.create_task(calls(budget))
            machine.guests = []
            for guest in guests:
                guest.become(1)

            await use(budget, "all")
            assert not any(guest.resident_bytes for guest in guests)
            await use(budget, "tiny")
            await until(lambda: not names_out(budget))
            assert machine.taken == {"tiny": 1, "f": 1, "g": 1, "h": 1}

    asyncio.run(main())
