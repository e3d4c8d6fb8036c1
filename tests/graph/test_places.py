"""How many calls may be under way at once, and that no call waits for ever for its place.

A call that waits for nested calls lends them its place, whatever `run` they are made with. Nobody
else gets it, so it is there again when they have ended.
"""

import asyncio
import itertools
import math
import threading
from functools import partial
from types import SimpleNamespace

import pytest
from graph_runs import (
    SlowTracer,
    UnderWay,
    cancels_itself,
    execute,
    execute_graph,
    forever,
    ignores_its_cancellation,
    nests,
    step,
)
from watched import watch

from harness.errors import NodeFailed
from harness.graph import Concurrency, Graph, Retry, Timeout
from harness.graph.state import Places
from harness.trace import SpanStarted, Tracer

EACH = {"number": "numbers"}


@pytest.fixture
def graph():
    return Graph("essay")


@pytest.mark.parametrize(
    ("way", "max_parallel"), [("call", 1), ("call", 3), ("map", 2), ("map", None)]
)
def test_nesting_three_deep_comes_to_its_end_with_any_number_of_places(graph, max_parallel, way):
    under_way = UnderWay()
    graphs = [graph, *(Graph(f"level{number}") for number in range(3))]
    step(graphs[3], "bottom", each=EACH, gives=lambda _: under_way.spend())
    for level, deeper in itertools.pairwise(graphs):

        async def nest(run, number, deeper=deeper):
            if way == "call":
                return await run.call(deeper, {"numbers": [1, 2]})

            async def mapped(run, number):
                return await run.call(deeper, {"numbers": [number]})

            return await run.map(mapped, [1, 2])

        step(level, "nest", "run", each=EACH, gives=lambda *given, nest=nest: nest(*given))

    watched = watch(graph, {"numbers": [1, 2, 3]}, max_parallel=max_parallel)

    leaves = 3 * 2 * 2 * 2
    assert watched.ended.status == "finished"
    assert under_way.most == min(max_parallel or leaves, leaves)
    assert watched.seconds == math.ceil(leaves / under_way.most)


@pytest.mark.parametrize("max_parallel", [1, 2, 5])
def test_a_node_that_nests_two_at_once_lends_one_place_and_takes_one_again(graph, max_parallel):
    left, right, under_way = Graph("left"), Graph("right"), UnderWay()
    step(left, "left", each=EACH, gives=lambda _: under_way.spend())
    step(right, "right", each=EACH, gives=lambda _: under_way.spend(2))
    nests(graph, "outer", left, right, inputs={"numbers": [1, 2]})
    step(graph, "others", "outer", each=EACH, gives=lambda *_: under_way.spend())

    watched = watch(graph, {"numbers": [1, 2, 3, 4, 5]}, max_parallel=max_parallel)

    # No place is lost, and none is won.
    assert watched.ended.status == "finished"
    assert under_way.most == max_parallel
    assert watched.skips == {}


def raises_plainly():
    raise ValueError


@pytest.mark.parametrize(
    ("function", "max_parallel", "concurrency", "is_nested"),
    [
        (raises_plainly, 1, None, False),
        (raises_plainly, 2, Concurrency(1), True),
        (forever, 1, None, True),
        (forever, 2, Concurrency(1), False),
        (ignores_its_cancellation, 1, Concurrency(1), True),
        (cancels_itself, 1, Concurrency(1), False),
    ],
)
def test_however_a_call_ends_its_place_is_free_again(
    graph, function, max_parallel, concurrency, is_nested
):
    under_way = UnderWay()
    how = {"timeout": Timeout(total_s=1), "retry": Retry(2, first_delay_s=0)}
    how |= {"name": "bad", "concurrency": concurrency}
    if is_nested:
        sub = Graph("sub")
        sub.node(**how)(function)

        @graph.node(each=EACH, concurrency=concurrency)
        async def nested(run, number):
            try:
                await run.call(sub, {})
            except NodeFailed:
                await under_way.spend()
                raise

    else:
        graph.node(**how)(function)
        works = lambda _: under_way.spend()  # noqa: E731
        step(graph, "mapped", each=EACH, gives=works, concurrency=concurrency)

    @graph.node(each=EACH)
    async def others(number):
        await under_way.spend()
        return number

    watched = watch(graph, {"numbers": [*range(4)]}, max_parallel=max_parallel)

    assert watched.ended.outputs["others"] == [*range(4)]
    assert watched.ended.status == "failed"
    assert under_way.most <= max_parallel
    assert watched.tasks_left == set()


def test_places_are_lent_seven_times_at_most_and_come_back(graph):
    places, begun, may_end = Places(2), [], asyncio.Event()

    @graph.node(each=EACH)
    async def items(number):
        begun.append(number)
        if number < 25:
            await may_end.wait()

    async def main():
        how = {"tracer": Tracer(clock=lambda: 0), "run_of": lambda call: call}
        values = {"numbers": [*range(40)]}
        running = asyncio.create_task(execute(graph, values, max_parallel=places, **how))
        seen = []
        for idle in (0, 3, 100, 1):
            places.lend(idle)
            await asyncio.sleep(0.001)
            seen.append(len(begun))
        may_end.set()
        return seen, (await running).status

    assert asyncio.run(main()) == ([2, 5, 16, 16], "finished")
    assert begun == [*range(40)]


def test_a_free_place_goes_to_deeper_calls_then_to_followers_then_to_the_first():
    def call(*, around=None, follows=False):
        state = SimpleNamespace(step=SimpleNamespace(follows=follows))
        return SimpleNamespace(around=around, loan=None, state=state)

    outer = call()
    queued = {
        "first": call(),
        "follower": call(follows=True),
        "second": call(),
        "nested": call(around=outer),
        "follower in a nested graph": call(around=outer, follows=True),
    }
    places, begun = Places(1), []
    places.take(lambda: begun.append("outer"), outer)
    for name, waiting in queued.items():
        places.take(partial(begun.append, name), waiting)
    for _ in queued:
        places.give_back()

    assert begun == [
        *("outer", "follower in a nested graph", "nested"),
        *("follower", "first", "second"),
    ]


def test_what_waits_for_a_place_costs_no_task(graph):
    tasks = []

    @graph.node(each=EACH)
    async def items(number):
        tasks.append(len(asyncio.all_tasks()))
        await asyncio.sleep(1)

    watch(graph, {"numbers": [*range(300)]}, max_parallel=3)

    assert max(tasks) <= 1 + 2 * 3


def test_a_call_that_is_over_makes_way_while_its_output_is_written(graph):
    step(graph, "items", each=EACH, seconds=1)

    watched = watch(graph, {"numbers": [*range(5)]}, max_parallel=1, tracer_class=SlowTracer)

    assert watched.seconds == 5 + 0.75


def test_a_call_says_how_long_it_waited_for_a_place_of_all_and_of_its_node(graph):
    step(graph, "wide", each=EACH, seconds=1.0)
    step(graph, "narrow", each=EACH, seconds=1.0, concurrency=Concurrency(1))

    watched = watch(graph, {"numbers": [1, 2, 3]}, max_parallel=4)

    waits = [
        {name: ns / 1e9 for name, ns in record.attributes.items() if name.endswith("_wait_ns")}
        for record in watched.records
        if type(record) is SpanStarted and record.name == "node"
    ]
    # The fourth place is the first narrow one's; the others wait for it, one after the other.
    assert waits == [
        {}, {}, {}, {}, {"concurrency_wait_ns": 1.0}, {"concurrency_wait_ns": 2.0}
    ]  # fmt: skip


def test_a_call_may_wait_first_for_its_nodes_place_and_then_for_one_of_all(graph):
    step(graph, "narrow", each=EACH, seconds=1.0, concurrency=Concurrency(1))
    step(graph, "wide", each=EACH, seconds=1.5)

    watched = watch(graph, {"numbers": [1, 2]}, max_parallel=2)

    waits = {
        record.attributes["label"]: {
            name: ns / 1e9 for name, ns in record.attributes.items() if name.endswith("_wait_ns")
        }
        for record in watched.records
        if type(record) is SpanStarted and record.name == "node"
    }
    assert waits == {
        "narrow[0]": {},
        "wide[0]": {},
        "wide[1]": {"place_wait_ns": 1.0},
        "narrow[1]": {"concurrency_wait_ns": 1.0, "place_wait_ns": 0.5},
    }


# --- nested by the `run` of a call around -----------------------------------------------------


async def quickly(run, number):
    async def tenfold(one):
        return one * 10

    return sum(await run.map(tenfold, [number]))


async def by_a_thread(run, number):
    loop = asyncio.get_running_loop()

    def call_back():
        return asyncio.run_coroutine_threadsafe(quickly(run, number), loop).result()

    return await asyncio.to_thread(call_back)


async def by_a_thread_of_its_own(run, number):
    """Which knows nothing of the call that began it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def call_back():
        value = asyncio.run_coroutine_threadsafe(quickly(run, number), loop).result()
        loop.call_soon_threadsafe(done.set_result, value)

    threading.Thread(target=call_back, daemon=True).start()
    return await done


@pytest.mark.parametrize("max_parallel", [1, 2, 16, None])
@pytest.mark.parametrize("way", [by_a_thread, by_a_thread_of_its_own], ids=lambda way: way.__name__)
def test_calls_that_nest_by_the_run_around_them_from_a_thread_come_to_their_end(
    graph, way, max_parallel
):
    @graph.node
    async def node(run) -> list[int]:
        async def item(number: int) -> int:
            return await way(run, number)

        return await run.map(item, [*range(20)])

    async def main():
        async with asyncio.timeout(8):
            return await execute_graph(graph, max_parallel=max_parallel)

    assert asyncio.run(main()).outputs == {"node": [number * 10 for number in range(20)]}
