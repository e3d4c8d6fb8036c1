"""How many calls may be under way at once, and that no call waits for ever for its place.

A call that nests others lends them its place, and takes it again when they have ended, without
waiting: so as many as are back from what they nested may be under way in excess, and no more.
"""

import asyncio
import math

import pytest
from watched import watch

from harness.errors import NodeFailed
from harness.graph import Concurrency, Graph, Retry, Timeout
from harness.graph.places import Places
from harness.trace import Tracer


@pytest.fixture
def graph():
    return Graph("essay")


class UnderWay:
    """Counts who is inside."""

    def __init__(self):
        self.now = self.most = 0

    async def spend(self, seconds=1.0):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.now -= 1


# --- by themselves -------------------------------------------------------------------------------


def test_places_are_had_in_the_order_they_were_asked_for():
    places, begun = Places(2), []
    for name in "abcde":
        places.take(lambda name=name: begun.append(name))

    assert begun == ["a", "b"]
    places.give_back()
    assert begun == ["a", "b", "c"]
    places.give_back()
    places.give_back()
    places.give_back()
    assert begun == ["a", "b", "c", "d", "e"]
    places.take(lambda: begun.append("f"))
    assert begun[-1] == "f"


def test_what_is_nested_deeper_goes_first():
    places, begun = Places(1), []
    for depth in (0, 0, 2, 1, 2):
        places.take(lambda depth=depth: begun.append(depth), depth=depth)
    for _ in range(4):
        places.give_back()

    assert begun == [0, 2, 2, 1, 0]


def test_a_place_that_was_lent_is_paid_back_before_another_begins():
    places, begun = Places(1), []
    places.take(lambda: begun.append("outer"))
    places.give_back()  # lent to
    places.take(lambda: begun.append("inner"))
    places.take(lambda: begun.append("other"))
    places.take_again()  # both are under way
    places.give_back()

    assert begun == ["outer", "inner"]
    places.give_back()
    assert begun == ["outer", "inner", "other"]


@pytest.mark.parametrize("limit", [None, 10**6])
def test_without_a_limit_everything_begins_at_once(limit):
    places, begun = Places(limit), []
    for number in range(1000):
        places.take(lambda number=number: begun.append(number))

    assert begun == [*range(1000)]


# --- in runs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("parallel_calls", [1, 2, 3, None])
@pytest.mark.parametrize("way", ["call", "map"])
def test_nesting_three_deep_comes_to_its_end_with_any_number_of_places(graph, parallel_calls, way):
    under_way = UnderWay()
    levels = [Graph(f"level{number}") for number in range(3)]

    async def nest(run, deeper):
        if way == "call":
            return await run.call(deeper, {"numbers": [1, 2]})

        async def step(run, number):
            return await run.call(deeper, {"numbers": [number]})

        return await run.map(step, [1, 2])

    @levels[2].node(each={"number": "numbers"})
    async def bottom(number):
        await under_way.spend()
        return number

    @levels[1].node(each={"number": "numbers"})
    async def middle(run, number):
        return await nest(run, levels[2])

    @levels[0].node(each={"number": "numbers"})
    async def upper(run, number):
        return await nest(run, levels[1])

    @graph.node(each={"number": "numbers"})
    async def top(run, number):
        return await nest(run, levels[0])

    watched = watch(graph, {"numbers": [1, 2, 3]}, parallel_calls=parallel_calls)

    leaves = 3 * 2 * 2 * 2
    assert watched.ended.status == "finished"
    assert under_way.most == min(parallel_calls or leaves, leaves)
    assert watched.seconds == math.ceil(leaves / under_way.most)


@pytest.mark.parametrize("parallel_calls", [1, 2, 5])
def test_a_node_that_nests_two_at_once_lends_one_place_and_takes_one_again(graph, parallel_calls):
    left, right, under_way = Graph("left"), Graph("right"), UnderWay()

    @left.node(each={"number": "numbers"}, name="left")
    async def _(number):
        await under_way.spend()

    @right.node(each={"number": "numbers"}, name="right")
    async def _(number):
        await under_way.spend(2)

    @graph.node
    async def outer(run):
        await asyncio.gather(
            run.call(left, {"numbers": [1, 2]}), run.call(right, {"numbers": [1, 2]})
        )
        await under_way.spend()

    @graph.node(each={"number": "numbers"})
    async def others(number, outer):
        await under_way.spend()

    watched = watch(graph, {"numbers": [1, 2, 3, 4, 5]}, parallel_calls=parallel_calls)

    assert watched.ended.status == "finished"
    # No place is lost, and none is won.
    assert under_way.most == parallel_calls
    assert watched.skips == {}


def test_a_node_that_nests_and_works_beside_it_is_one_in_excess(graph):
    sub, under_way = Graph("sub"), UnderWay()

    @sub.node(each={"number": "numbers"})
    async def inner(number):
        await under_way.spend()

    @graph.node
    async def outer(run):
        await asyncio.gather(run.call(sub, {"numbers": [1, 2]}), under_way.spend(2))

    watched = watch(graph, parallel_calls=1)

    assert watched.ended.status == "finished"
    assert under_way.most == 2
    assert watched.seconds == 2


def test_those_that_are_back_from_what_they_nested_do_not_wait(graph):
    sub, under_way = Graph("sub"), UnderWay()

    @sub.node
    async def inner(): ...

    @graph.node(each={"number": "numbers"})
    async def outer(run, number):
        await run.call(sub, {})
        await under_way.spend()

    watched = watch(graph, {"numbers": [*range(6)]}, parallel_calls=2)

    assert watched.ended.status == "finished"
    assert under_way.most <= 2 * 2  # each place lent once
    assert watched.seconds <= 6 / 2


def end_by_raising():
    raise ValueError


async def end_by_raising_async():
    raise ValueError


async def end_by_hanging():
    await asyncio.Event().wait()


async def end_by_ignoring():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def end_by_cancelling_itself():
    asyncio.current_task().cancel()
    await asyncio.sleep(1)


@pytest.mark.parametrize(
    "function",
    [
        end_by_raising,
        end_by_raising_async,
        end_by_hanging,
        end_by_ignoring,
        end_by_cancelling_itself,
    ],
)
@pytest.mark.parametrize("parallel_calls", [1, 2])
@pytest.mark.parametrize("concurrency", [None, Concurrency(1)], ids=["", "Concurrency"])
@pytest.mark.parametrize("is_nested", [False, True], ids=["", "nested"])
def test_however_a_call_ends_its_place_is_free_again(
    graph, function, parallel_calls, concurrency, is_nested
):
    under_way = UnderWay()
    options = {
        "name": "bad",
        "timeout": Timeout(total_s=1),
        "retry": Retry(2, first_delay_s=0),
        "concurrency": concurrency,
    }
    if is_nested:
        sub = Graph("sub")
        sub.node(**options)(function)

        async def bad(run, number):
            try:
                await run.call(sub, {})
            except NodeFailed:
                await under_way.spend()
                raise

        graph.node(each={"number": "numbers"}, concurrency=concurrency)(bad)
    else:

        async def mapped(number):
            return await under_way.spend()

        graph.node(**options)(function)
        graph.node(each={"number": "numbers"}, concurrency=concurrency)(mapped)

    @graph.node(each={"number": "numbers"})
    async def others(number):
        await under_way.spend()
        return number

    watched = watch(graph, {"numbers": [*range(4)]}, parallel_calls=parallel_calls)

    assert watched.ended.outputs["others"] == [*range(4)]
    assert watched.ended.status == "failed"
    assert under_way.most <= parallel_calls + (parallel_calls if is_nested else 0)
    assert watched.tasks_left == set()


def test_what_waits_for_a_place_costs_no_task(graph):
    tasks = []

    @graph.node(each={"number": "numbers"})
    async def items(number):
        tasks.append(len(asyncio.all_tasks()))
        await asyncio.sleep(1)

    watch(graph, {"numbers": [*range(300)]}, parallel_calls=3)

    assert max(tasks) <= 1 + 2 * 3


def test_a_call_that_is_over_makes_way_while_its_output_is_written(graph):
    class Slow(Tracer):
        async def persisted(self):
            await asyncio.sleep(1)

    @graph.node(each={"number": "numbers"})
    async def items(number):
        await asyncio.sleep(1)

    watched = watch(graph, {"numbers": [*range(5)]}, parallel_calls=1, tracer_class=Slow)

    assert watched.seconds == 5 + 1
