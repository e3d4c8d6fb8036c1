import asyncio
import random

import pytest
from machine import Machine

from harness.errors import DoesNotFit
from harness.trace import CounterSet, Instant, SpanEnded, SpanStarted, Tracer


def residents(budget):
    return {one.model: one.leases for one in budget.ledger.residents}


async def use(budget, model):
    """One call, over at once."""
    async with budget.lease(model):
        pass


class Call:
    """A call that holds its lease until it is told to end."""

    def __init__(self, budget, model):
        self.began = asyncio.Event()
        self._may_end = asyncio.Event()
        self.task = asyncio.create_task(self._hold(budget, model))

    async def _hold(self, budget, model):
        async with budget.lease(model):
            self.began.set()
            await self._may_end.wait()

    async def end(self):
        self._may_end.set()
        await self.task

    async def cancel(self):
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


async def until_idle():
    """Lets every task run until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_model_is_loaded_once_for_calls_in_parallel():
    async def main():
        machine = Machine(10, a=6)
        budget = machine.budget()
        calls = [Call(budget, "a") for _ in range(5)]
        for call in calls:
            await call.began.wait()

        assert machine.log == ["load a"]
        assert residents(budget) == {"a": 5}
        for call in calls:
            await call.end()
        assert residents(budget) == {"a": 0}  # and stays, for the next

    asyncio.run(main())


def test_room_is_made_by_the_longest_unused():
    async def main():
        machine = Machine(10, a=4, b=4, c=4)
        budget = machine.budget()
        for model in "abac":
            await use(budget, model)

        assert machine.log == ["load a", "load b", "unload b", "load c"]
        assert residents(budget) == {"a": 0, "c": 0}

    asyncio.run(main())


def test_a_model_in_use_stays_and_who_needs_its_room_waits():
    async def main():
        machine = Machine(10, a=6, b=6)
        budget = machine.budget()
        first, second = Call(budget, "a"), Call(budget, "a")
        await second.began.wait()
        waiting = Call(budget, "b")

        await until_idle()
        await first.end()
        await until_idle()
        assert machine.log == ["load a"]

        await second.end()
        await waiting.began.wait()
        assert machine.log == ["load a", "unload a", "load b"]
        await waiting.end()

    asyncio.run(main())


def test_a_call_to_a_resident_model_never_waits_for_another_that_loads():
    async def main():
        machine = Machine(10, a=4, b=4)
        budget = machine.budget()
        await use(budget, "a")
        machine.held["load b"] = asyncio.Event()
        loading = Call(budget, "b")
        await until_idle()

        await use(budget, "a")
        assert not loading.began.is_set()

        machine.held["load b"].set()
        await loading.began.wait()
        await loading.end()

    asyncio.run(main())


def test_a_model_that_is_taken_up_while_another_is_evicted_stays():
    async def main():
        machine = Machine(10, a=4, b=4, c=10)
        budget = machine.budget()
        await use(budget, "a")
        await use(budget, "b")
        machine.held["unload a"] = asyncio.Event()
        waiting = Call(budget, "c")  # both have to go
        await until_idle()
        using = Call(budget, "b")
        await using.began.wait()
        machine.calls["b"] += 1

        machine.held["unload a"].set()
        await until_idle()
        assert residents(budget) == {"b": 1}

        machine.calls["b"] -= 1
        await using.end()
        await waiting.began.wait()
        assert machine.log[2:] == ["unload a", "unload b", "load c"]
        await waiting.end()

    asyncio.run(main())


def test_a_model_that_goes_is_loaded_again_for_who_comes_meanwhile():
    async def main():
        machine = Machine(10, a=6, b=6)
        budget = machine.budget()
        await use(budget, "a")
        machine.held["unload a"] = asyncio.Event()
        b = Call(budget, "b")
        await until_idle()
        a = Call(budget, "a")
        await until_idle()
        assert not a.began.is_set()

        machine.held["unload a"].set()
        await b.began.wait()
        await b.end()
        await a.began.wait()
        await a.end()
        assert machine.log == ["load a", "unload a", "load b", "unload b", "load a"]

    asyncio.run(main())


def test_a_model_larger_than_the_budget_is_refused_and_nothing_is_evicted():
    async def main():
        machine = Machine(10, a=6, huge=11)
        budget = machine.budget()
        await use(budget, "a")

        with pytest.raises(DoesNotFit, match="needs 11 B and the whole budget is 10 B"):
            await use(budget, "huge")

        assert residents(budget) == {"a": 0}
        await use(budget, "a")

    asyncio.run(main())


def test_a_load_that_fails_is_raised_and_leaves_the_ledger_right():
    async def main():
        machine = Machine(10, a=6, b=6)
        budget = machine.budget()
        await use(budget, "a")
        machine.broken.add("load b")

        with pytest.raises(OSError, match="cannot load b"):
            await use(budget, "b")

        assert budget.ledger.residents == ()
        assert machine.taken == {}
        machine.broken.clear()
        await use(budget, "b")
        assert residents(budget) == {"b": 0}

    asyncio.run(main())


def test_a_call_that_fails_gives_its_lease_back():
    async def main():
        budget = Machine(10, a=6).budget()

        with pytest.raises(ValueError, match="boom"):
            async with budget.lease("a"):
                raise ValueError("boom")

        assert residents(budget) == {"a": 0}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("held", "left"),
    [
        pytest.param("load b", {}, id="loading"),
        pytest.param("unload a", {}, id="making room"),
    ],
)
def test_cancelling_a_call_that_moves_models_leaks_nothing(held, left):
    async def main():
        machine = Machine(10, a=6, b=6)
        budget = machine.budget()
        await use(budget, "a")
        machine.held[held] = asyncio.Event()
        call = Call(budget, "b")
        await until_idle()
        assert machine.log[-1] == held

        await call.cancel()

        assert residents(budget) == machine.taken == left
        machine.held.clear()
        for model in "ba":
            await use(budget, model)
        assert residents(budget) == {"a": 0}

    asyncio.run(main())


def test_cancelling_a_call_that_waits_for_room_leaks_nothing():
    async def main():
        machine = Machine(10, a=6, b=6, c=4)
        budget = machine.budget()
        using = Call(budget, "a")
        await using.began.wait()
        waiting = Call(budget, "b")
        await until_idle()
        next_in_line = Call(budget, "c")
        await until_idle()

        await waiting.cancel()

        await next_in_line.began.wait()  # there was room for it all along
        assert residents(budget) == {"a": 1, "c": 1}
        await next_in_line.end()
        await using.end()
        assert machine.log == ["load a", "load c"]

    asyncio.run(main())


def test_cancelling_a_call_that_waits_for_its_turn_leaks_nothing():
    async def main():
        machine = Machine(10, a=6)
        budget = machine.budget()
        machine.held["load a"] = asyncio.Event()
        first, second = Call(budget, "a"), Call(budget, "a")
        await until_idle()

        await second.cancel()
        machine.held["load a"].set()
        await first.began.wait()

        assert residents(budget) == {"a": 1}
        await first.end()

    asyncio.run(main())


def test_cancelling_a_call_under_way_gives_its_lease_back():
    async def main():
        budget = Machine(10, a=6).budget()
        call = Call(budget, "a")
        await call.began.wait()

        await call.cancel()

        assert residents(budget) == {"a": 0}

    asyncio.run(main())


def test_closing_unloads_everything_even_if_one_fails():
    async def main():
        machine = Machine(10, a=3, b=3, c=3)
        budget = machine.budget()
        for model in "abc":
            await use(budget, model)
        machine.broken.add("unload b")

        with pytest.raises(OSError, match="cannot unload b"):
            await budget.aclose()

        assert machine.taken == {}
        assert budget.ledger.residents == ()
        assert sorted(machine.log[3:]) == ["unload a", "unload b", "unload c"]

    asyncio.run(main())


def test_loads_evictions_and_waits_are_in_the_trace():
    records = []

    async def main():
        budget = Machine(10, a=6, b=4, c=10).budget(Tracer(records.append))
        await use(budget, "b")
        using = Call(budget, "a")
        await using.began.wait()
        waiting = Call(budget, "c")
        await until_idle()
        await using.end()
        await waiting.end()
        await budget.aclose()

    asyncio.run(main())

    spans = [(r.name, dict(r.attributes)) for r in records if isinstance(r, SpanStarted)]
    load = {"source": "measured"}
    assert spans == [
        ("load", {"model": "b", "need_bytes": 4, **load}),
        ("load", {"model": "a", "need_bytes": 6, **load}),
        ("queue", {"source": "measured", "reason": "no room until a call ends"}),
        ("unload", {"track": "model b", "model": "b", "reason": "room for c"}),
        ("unload", {"track": "model a", "model": "a", "reason": "room for c"}),
        ("load", {"model": "c", "need_bytes": 10, **load}),
        ("unload", {"track": "model c", "model": "c", "reason": "end of run"}),
    ]
    evicted = [dict(r.attributes) for r in records if isinstance(r, Instant) and r.name == "evict"]
    assert evicted == [
        {"model": "b", "reason": "room for c"},
        {"model": "a", "reason": "room for c"},
        {"model": "c", "reason": "end of run"},
    ]
    assert {r.status for r in records if isinstance(r, SpanEnded)} == {"ok"}
    counters = [(r.name, r.unit, r.value) for r in records if isinstance(r, CounterSet)]
    values = [4, 10, 6, 0, 10, 0]
    assert counters == [("resident", "bytes", value) for value in values]


def test_who_waits_while_a_model_moves_is_in_the_trace():
    records = []

    async def main():
        budget = Machine(10, a=6).budget(Tracer(records.append))
        calls = [Call(budget, "a") for _ in range(3)]
        for call in calls:
            await call.end()

    asyncio.run(main())

    spans = [(r.name, r.attributes.get("reason")) for r in records if isinstance(r, SpanStarted)]
    waits = ("queue", "another model is on the move")
    assert spans == [("load", None), waits, waits]


class BusyMachine(Machine):
    """Takes its time, as long as chance has it."""

    def __init__(self, randomness, capacity_bytes, **needs):
        super().__init__(capacity_bytes, **needs)
        self.randomness = randomness

    async def pause(self):
        for _ in range(self.randomness.randint(0, 8)):
            await asyncio.sleep(0)


async def call(machine, budget, model):
    try:
        async with budget.lease(model):
            machine.calls[model] += 1
            try:
                assert model in machine.taken, f"{model} is lent and not in memory"
                assert residents(budget)[model] == machine.calls[model]
                await machine.pause()
            finally:
                machine.calls[model] -= 1
    except OSError:
        assert f"load {model}" in machine.broken
    except DoesNotFit:
        assert machine.needs[model] > machine.capacity_bytes


async def call_one_after_the_other(machine, budget, models):
    for model in models:
        await machine.pause()
        await call(machine, budget, model)


async def random_calls(machine, budget):
    randomness, models = machine.randomness, list(machine.needs)
    if randomness.random() < 0.2:
        machine.broken.add(f"load {randomness.choice(models)}")
    # However the calls end, none may be left waiting: that would be for ever.
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        callers = [
            group.create_task(
                call_one_after_the_other(machine, budget, randomness.choices(models, k=10))
            )
            for _ in range(randomness.randint(1, 8))
        ]
        if randomness.random() < 0.5:
            for caller in randomness.sample(callers, len(callers) // 3):
                await machine.pause()
                caller.cancel()


@pytest.mark.parametrize("seed", range(100))
def test_whatever_calls_come_memory_is_never_exceeded_and_nobody_waits_for_ever(seed):
    randomness = random.Random(seed)
    capacity_bytes = randomness.randint(4, 12)
    needs = {model: randomness.randint(1, capacity_bytes) for model in "abcde"}
    needs["huge"] = capacity_bytes + 1
    machine = BusyMachine(randomness, capacity_bytes, **needs)

    async def main():
        budget = machine.budget()
        await random_calls(machine, budget)
        assert residents(budget) == dict.fromkeys(machine.taken, 0)
        assert budget.ledger.resident_bytes == sum(machine.taken.values())
        await budget.aclose()
        assert machine.taken == {}

    asyncio.run(main())


def test_calls_that_overlap_cannot_keep_another_model_out_for_ever():
    async def main():
        machine = Machine(10, a=6, b=6)
        budget = machine.budget()
        first = Call(budget, "a")
        await first.began.wait()
        waiting = Call(budget, "b")
        await until_idle()
        second = Call(budget, "a")  # behind b, though its model is resident
        await until_idle()
        assert not second.began.is_set()

        await first.end()
        await waiting.began.wait()
        await waiting.end()
        await second.began.wait()
        await second.end()

        assert machine.log == ["load a", "unload a", "load b", "unload b", "load a"]

    asyncio.run(main())
