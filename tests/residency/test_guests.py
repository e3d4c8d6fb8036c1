import asyncio

import pytest
from machine import Machine, loop_ns, until_idle, use
from virtual_loop import virtually

from harness.errors import InvalidInput
from harness.trace import CounterSet, Instant, SpanEnded, SpanStarted, Tracer

OUTGROWN = "models have left it no room"


class Visitor:
    """A guest: counts what it takes of a machine's memory.

    Args:
        name: As the trace has it.
        needed_bytes: What it takes, from the beginning.
        machine: Where it takes them.

    Attributes:
        log: What it was told, in order.
        broken: Whether it fails to come back.
    """

    def __init__(self, name, needed_bytes, machine):
        self.name = name
        self.needed_bytes = needed_bytes
        self.log = []
        self.broken = False
        self._is_out = False
        self._taken = machine.taken
        self._taken[name] = needed_bytes

    @property
    def resident_bytes(self):
        return self._taken[self.name]

    def become(self, needed_bytes):
        self.needed_bytes = needed_bytes
        if not self._is_out:
            self._taken[self.name] = needed_bytes

    def evict(self, reason):
        self.log.append(reason)
        self._is_out = True
        self._taken[self.name] = 0

    def restore(self):
        assert self._is_out, f"{self.name} is there already"
        if self.broken:
            raise OSError("its file is gone")
        self.log.append("back")
        self._is_out = False
        self._taken[self.name] = self.needed_bytes


def names_out(budget):
    return {one.name for one in budget.ledger.guests if one.is_out}


def admitted(budget, machine, needed_bytes, name="vectors"):
    """A guest of the budget."""
    guest = Visitor(name, needed_bytes, machine)
    budget.admit_guest(guest)
    return guest


def takes_time_to_return():
    """Has guests need 5 s to come back."""
    asyncio.get_running_loop().thread_s = lambda: 5.0


@virtually
async def test_a_guest_goes_before_an_idle_model_and_says_for_whom():
    machine = Machine(10, a=4, b=4)
    async with machine.lending() as budget:
        guest = admitted(budget, machine, 4)
        for model in "abab":
            await use(budget, model)
        assert machine.log == ["load a", "load b"]
        assert guest.log == ["room for b"]


@virtually
async def test_a_guest_comes_back_when_a_model_has_made_room():
    machine = Machine(10, large=9, small=4)
    async with machine.lending() as budget:
        guest = admitted(budget, machine, 5)
        for _ in range(3):
            await use(budget, "large")
            assert guest.resident_bytes == 0
            await use(budget, "small")
            await until_idle()
            assert guest.resident_bytes == 5

    assert guest.log == ["room for large", "back"] * 3


@virtually
async def test_a_guest_that_grows_and_shrinks_goes_and_comes_back_when_recounted():
    machine = Machine(10)
    async with machine.lending() as budget:
        guest = admitted(budget, machine, 3)
        guest.become(11)
        budget.recount_guests()
        assert guest.log == [OUTGROWN]

        guest.become(10)
        budget.recount_guests()
        await until_idle()
        assert guest.resident_bytes == 10


@virtually
async def test_a_call_to_a_resident_model_never_waits_for_a_guest_and_another_does():
    records = []
    takes_time_to_return()
    machine = Machine(10, large=9, small=4, other=2)
    tracer = Tracer(records.append, clock=loop_ns)
    async with machine.lending(tracer) as budget, asyncio.TaskGroup() as group:
        guest = admitted(budget, machine, 4)
        await use(budget, "large")
        await use(budget, "small")
        await until_idle()  # on its way back

        await use(budget, "small")
        waiting = group.create_task(use(budget, "other"))
        await until_idle()
        assert not waiting.done()
        await waiting
        assert guest.resident_bytes == 4

    *_, queue = [r for r in records if isinstance(r, SpanStarted) and r.name == "queue"]
    assert queue.attributes["reason"] == "'vectors' is on the move"


@virtually
async def test_a_guest_that_cannot_come_back_stays_out_and_ends_no_run():
    records = []
    machine = Machine(10, large=9, small=4)
    async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
        guest = admitted(budget, machine, 5)
        for guest.broken in (True, False):
            await use(budget, "large")
            await use(budget, "small")
            await until_idle()
            assert names_out(budget) == ({"vectors"} if guest.broken else set())

    errors = [r.error for r in records if isinstance(r, SpanEnded) and r.status == "error"]
    assert errors == ["OSError: its file is gone"]


@virtually
async def test_a_guest_that_was_dismissed_is_neither_counted_nor_brought_back():
    machine = Machine(10, large=9, small=4)
    async with machine.lending() as budget:
        leaving, staying = (admitted(budget, machine, n, name) for n, name in [(4, "l"), (5, "s")])
        await use(budget, "large")
        await budget.dismiss_guest(leaving)
        await use(budget, "small")
        await until_idle()
        assert (leaving.log, staying.log) == (["room for large"], ["room for large", "back"])
        assert budget.ledger.taken_bytes("machine") == 4 + 5

        admitted(budget, machine, 1, "l")  # another one, which is there
        assert names_out(budget) == set()


@virtually
async def test_a_guest_that_just_comes_back_is_dismissed_when_it_is_there():
    takes_time_to_return()
    machine = Machine(10, large=9, small=4)
    async with machine.lending() as budget:
        guest = admitted(budget, machine, 5)
        await use(budget, "large")
        await use(budget, "small")
        await until_idle()
        assert guest.resident_bytes == 0
        await budget.dismiss_guest(guest)
        assert guest.resident_bytes == 5  # whoever closes it now disturbs nobody


@virtually
async def test_two_guests_of_one_name_are_refused():
    machine = Machine(10)
    async with machine.lending() as budget:
        admitted(budget, machine, 1)
        with pytest.raises(InvalidInput) as caught:
            admitted(budget, machine, 1)
    assert caught.value.code == "budget.guest-name-taken"


@virtually
async def test_guests_that_go_and_come_back_are_in_the_trace():
    records = []
    machine = Machine(10, large=9, small=4)
    async with machine.lending(Tracer(records.append, clock=loop_ns)) as budget:
        admitted(budget, machine, 5)
        await use(budget, "large")
        await use(budget, "small")
        await until_idle()

    [evicted] = [r for r in records if isinstance(r, Instant) and "guest" in r.attributes]
    assert (evicted.attributes["guest"], evicted.attributes["bytes"]) == ("vectors", 5)
    [back] = [r for r in records if isinstance(r, SpanStarted) and r.name == "restore"]
    assert (back.attributes["guest"], back.attributes["need_bytes"]) == ("vectors", 5)
    counted = [(r.name, r.unit, r.value) for r in records if isinstance(r, CounterSet)]
    assert counted == [("resident", "bytes", value) for value in (0, 5, 9, 0, 4, 9, 5)]
