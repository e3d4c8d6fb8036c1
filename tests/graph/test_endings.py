"""Runs that are ended before they are over: by a failure, their time, from outside, by Ctrl-C."""

import asyncio
import itertools
import subprocess
import sys
import threading

import pytest
import virtual_time
from watched import StuckThreads, all_spans_ended, unended_tasks, watch

from harness.graph import Cache, Default, Graph, Retry, Timeout, execute
from harness.trace import NodeOutput, SpanEnded, Tracer

GRACE_S = 1.0


@pytest.fixture
def graph():
    return Graph("essay")


async def forever():
    await asyncio.Event().wait()


async def ignores_its_cancellation():
    while True:
        try:
            await forever()
        except asyncio.CancelledError:
            continue


async def ignores_whatever_comes():
    # As long as there is a run: the loop, as it is closed, would wait for ever.
    while len(asyncio.all_tasks()) > 1:
        try:
            await forever()
        except BaseException:  # noqa: BLE001 - nobody is more stubborn
            continue


async def raises_when_cancelled():
    try:
        await forever()
    finally:
        raise RuntimeError("while tidying up")


async def gives_when_cancelled():
    try:
        await forever()
    except asyncio.CancelledError:
        return "done all the same"


STUBBORN = [
    pytest.param(ignores_its_cancellation, id="ignores its cancellation"),
    pytest.param(ignores_whatever_comes, id="ignores whatever comes"),
]


# --- the first failure ends the run --------------------------------------------------------------


@pytest.fixture
def hasty():
    """A graph that ends by its first failure, after a second."""
    graph = Graph("hasty", fail_fast=True)

    @graph.node
    async def fails():
        await asyncio.sleep(1)
        raise ValueError("first")

    return graph


def test_what_a_node_raises_as_it_is_cancelled_is_no_failure_and_not_tried_again(hasty):
    hasty.node(name="other", retry=Retry(3))(raises_when_cancelled)

    watched = watch(hasty)

    assert watched.failures == [("fails", ValueError, 1)]
    assert watched.skips == {"other": "fails"}
    assert watched.statuses == {"fails": ["error"], "other": ["error"]}
    assert watched.seconds == 1


def test_what_a_node_gives_as_it_is_cancelled_is_kept(hasty):
    hasty.node(name="other")(gives_when_cancelled)

    @hasty.node
    async def after(other):
        raise AssertionError("called")

    watched = watch(hasty)

    assert watched.ended.outputs == {"other": "done all the same"}
    assert watched.skips == {"after": "fails"}


def test_what_waits_to_be_tried_again_is_not(hasty):
    @hasty.node(retry=Retry(5, first_delay_s=10))
    async def other():
        raise KeyError("again")

    watched = watch(hasty)

    assert watched.failures == [("fails", ValueError, 1)]
    assert watched.skips == {"other": "fails"}
    assert watched.seconds == 1


def test_what_has_not_begun_is_not_called(graph):
    graph.fail_fast = True

    @graph.node(each={"number": "numbers"})
    async def items(number):
        if number == 0:
            raise ValueError("first")
        raise AssertionError("called")

    watched = watch(graph, {"numbers": [0, 1, 2]})

    # All three have places, and the first fails before the others are called.
    assert watched.failures == [("items[0]", ValueError, 1)]
    assert watched.skips == {"items[1]": "items[0]", "items[2]": "items[0]"}
    assert watched.statuses == {"items[0]": ["error"]}


def test_what_waits_for_a_place_is_not_called(hasty):
    @hasty.node(each={"number": "numbers"})
    async def items(number): ...

    watched = watch(hasty, {"numbers": list(range(2000))}, parallel_calls=1)

    assert watched.failures == [("fails", ValueError, 1)]
    assert set(watched.skips.values()) == {"fails"}
    assert len(watched.skips) == 2000
    assert watched.seconds == 1


def test_what_has_not_begun_is_not_looked_for_either(graph):
    graph.fail_fast = True
    asked = []

    @graph.node
    async def fails():
        raise ValueError("first")

    @graph.node(when=lambda: asked.append("late"))
    async def late(): ...

    watched = watch(graph)

    assert asked == []
    assert watched.skips == {"late": "fails"}


def test_what_was_looked_for_meanwhile_is_not_called(hasty):
    class SlowCache:
        async def find(self, *_, **__):
            await asyncio.sleep(2)

    called = []

    @hasty.node(cache=Cache())
    async def late():
        called.append("late")

    ended = virtual_time.run(execute(hasty, {}, run_of=str, tracer=Tracer(), cache=SlowCache()))

    assert called == []
    assert [(one.node, one.because_of) for one in ended.skips] == [("late", "fails")]


def test_what_is_given_is_written_down_to_the_end(hasty):
    class Slow(Tracer):
        async def persisted(self):
            await asyncio.sleep(0.75)

    @hasty.node
    async def other():
        await asyncio.sleep(0.5)
        return "paid for"

    watched = watch(hasty, tracer_class=Slow)

    assert watched.ended.outputs == {"other": "paid for"}
    assert watched.seconds == 1.25


def test_lists_that_cannot_be_mapped_end_such_a_run_as_well(graph):
    graph.fail_fast = True

    @graph.node(each={"one": "left", "other": "right"})
    async def pairs(one, other): ...

    @graph.node
    async def waits():
        await forever()

    watched = watch(graph, {"left": [1, 2], "right": [1]})

    assert [one.node for one in watched.ended.failures] == ["pairs"]
    assert watched.skips == {"waits": "pairs"}


@pytest.mark.parametrize("function", STUBBORN)
@pytest.mark.parametrize("parallel_calls", [2, None])
def test_who_ignores_it_is_left_behind(hasty, function, parallel_calls):
    hasty.node(name="stubborn")(function)

    @hasty.node
    async def after(stubborn):
        raise AssertionError("called")

    @hasty.node(each={"number": "numbers"})
    async def items(number):
        await forever()

    watched = watch(hasty, {"numbers": [1, 2, 3]}, parallel_calls=parallel_calls)

    assert watched.failures == [("fails", ValueError, 1)]
    assert set(watched.skips) >= {"stubborn", "after", "items[0]", "items[1]", "items[2]"}
    assert set(watched.skips.values()) == {"fails"}
    assert watched.seconds == 1 + GRACE_S
    if function is ignores_its_cancellation:
        assert watched.statuses["stubborn"] == ["error"]
        assert watched.tasks_left == set()
        assert all_spans_ended(watched.records)


def test_a_thread_is_not_waited_for_and_what_it_returns_is_dropped(graph):
    graph.fail_fast = True
    begun, returned = threading.Event(), threading.Event()

    with StuckThreads() as stuck:

        @graph.node
        def slow():
            begun.set()
            stuck.wait()
            returned.set()
            return "too late"

        @graph.node
        def fails():
            begun.wait()
            raise ValueError("first")

        watched = watch(graph, runs=stuck.run)

    assert returned.is_set()
    assert watched.statuses == {"slow": ["cancelled"], "fails": ["error"]}
    assert watched.skips == {"slow": "fails"}
    assert not any(isinstance(one, NodeOutput) for one in watched.records)


def test_what_is_nested_ends_with_what_it_is_nested_in(hasty):
    inner, outer = Graph("inner"), Graph("outer")
    inner.node(name="stubborn")(ignores_its_cancellation)
    inner.node(name="waits")(forever)

    @outer.node
    async def middle(run):
        await run.call(inner, {})

    @hasty.node
    async def top(run):
        await run.call(outer, {})

    watched = watch(hasty)

    assert watched.failures == [("fails", ValueError, 1)]
    assert watched.skips == {
        "top": "fails",
        "top/outer/middle": "top",
        "top/outer/middle/inner/stubborn": "top/outer/middle",
        "top/outer/middle/inner/waits": "top/outer/middle",
    }
    assert watched.seconds == 1 + GRACE_S
    assert watched.tasks_left == set()
    assert all_spans_ended(watched.records)


# --- its time is over ----------------------------------------------------------------------------


def test_a_run_whose_time_is_over_keeps_what_is_done(graph):
    @graph.node
    async def quick():
        await asyncio.sleep(1)
        return "done"

    @graph.node
    async def slow():
        await asyncio.sleep(3)

    @graph.node
    async def after(slow): ...

    watched = watch(graph, deadline_s=2)

    assert watched.ended.status == "stopped"
    assert watched.ended.stopped_by.limit == "time"
    assert watched.ended.outputs == {"quick": "done"}
    assert watched.skips == {"slow": None, "after": None}
    assert {one.reason for one in watched.ended.skips} == {"the run's time was over"}
    assert watched.seconds == 2


@pytest.mark.parametrize("function", STUBBORN)
def test_a_run_whose_time_is_over_waits_a_grace_for_who_ignores_it(graph, function):
    graph.node(name="stubborn")(function)

    watched = watch(graph, deadline_s=2)

    assert watched.ended.status == "stopped"
    assert watched.skips == {"stubborn": None}
    assert watched.seconds == 2 + GRACE_S


@pytest.mark.parametrize("function", STUBBORN)
def test_what_waits_for_the_place_of_one_that_ignores_it_is_not_waited_for(graph, function):
    graph.node(name="stubborn")(function)

    @graph.node(each={"number": "numbers"})
    async def items(number):
        raise AssertionError("called")

    watched = watch(graph, {"numbers": [1, 2, 3]}, deadline_s=2, parallel_calls=1)

    assert set(watched.skips) == {"stubborn", "items[0]", "items[1]", "items[2]"}
    assert watched.seconds == 2 + GRACE_S


@pytest.mark.parametrize("on_error", ["skip", Default(None)], ids=str)
def test_what_time_cut_off_does_not_count_as_failed(graph, on_error):
    @graph.node(on_error=on_error)
    async def slow():
        await forever()

    watched = watch(graph, deadline_s=2)

    assert watched.ended.outputs == {}
    assert watched.recorded == set()


def test_time_that_is_over_before_it_begins_stops_everything(graph):
    @graph.node
    async def slow():
        await forever()

    watched = watch(graph, deadline_s=-1)

    assert watched.ended.status == "stopped"
    assert watched.seconds == 0


# --- it is cancelled -----------------------------------------------------------------------------


def cancelled_after(graph, seconds, *, inputs=None, tracer_class=Tracer, parallel_calls=None):
    """Cancels a run; returns its records, what it left, and how long it took to end."""
    records = []

    async def main():
        loop = asyncio.get_running_loop()
        running = asyncio.create_task(
            execute(
                graph,
                inputs or {},
                run_of=lambda call: call,
                tracer=tracer_class(records.append, clock=lambda: round(loop.time() * 1e9)),
                parallel_calls=parallel_calls,
            )
        )
        await asyncio.sleep(seconds)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return asyncio.all_tasks() - {asyncio.current_task()}, loop.time() - seconds

    left, took_s = virtual_time.run(main())
    return records, left, took_s


@pytest.mark.parametrize("parallel_calls", [1, 3, None])
def test_a_run_that_is_cancelled_ends_its_nodes_and_leaves_no_task_behind(graph, parallel_calls):
    sub = Graph("sub")
    sub.node(name="nested")(forever)

    @graph.node(each={"number": "numbers"}, timeout=Timeout(total_s=100))
    async def waits(number):
        await forever()

    @graph.node(each={"number": "numbers"})
    async def nests(run, number):
        await run.call(sub, {})

    @graph.node
    async def streams():
        yield 1
        await forever()

    @graph.node
    async def after(waits, nests, streams):
        raise AssertionError("called")

    records, left, took_s = cancelled_after(
        graph, 3, inputs={"numbers": [*range(5)]}, parallel_calls=parallel_calls
    )

    assert left == set()
    assert took_s == 0
    assert all_spans_ended(records)
    assert {one.status for one in records if isinstance(one, SpanEnded)} == {"cancelled"}


@pytest.mark.parametrize("parallel_calls", [1, None])
def test_a_run_that_is_cancelled_leaves_behind_who_ignores_it(graph, parallel_calls):
    sub = Graph("sub")
    sub.node(name="stubborn")(ignores_its_cancellation)

    @graph.node(each={"number": "numbers"})
    async def nests(run, number):
        await run.call(sub, {})

    @graph.node(timeout=Timeout(total_s=100))
    async def timed():
        await ignores_its_cancellation()

    graph.node(name="stubborn")(ignores_its_cancellation)

    records, left, took_s = cancelled_after(
        graph, 3, inputs={"numbers": [*range(5)]}, parallel_calls=parallel_calls
    )

    assert left == set()
    assert took_s == GRACE_S
    assert all_spans_ended(records)


def test_what_is_given_when_a_run_is_cancelled_is_written_down(graph):
    class Slow(Tracer):
        async def persisted(self):
            await asyncio.sleep(0.75)

    @graph.node
    async def other():
        await asyncio.sleep(0.5)
        return "paid for"

    records, left, took_s = cancelled_after(graph, 1, tracer_class=Slow)

    assert [one.node for one in records if isinstance(one, NodeOutput)] == ["other"]
    assert left == set()
    assert took_s == 0.25


@pytest.mark.parametrize("turns", range(1, 13))
@pytest.mark.parametrize("function", [ignores_its_cancellation, forever])
def test_a_run_that_is_cancelled_twice_ends_at_once(graph, turns, function):
    inner, outer, records = Graph("inner"), Graph("outer"), []
    inner.node(name="last", timeout=Timeout(total_s=100))(function)

    @outer.node
    async def middle(run):
        await run.call(inner, {})

    @graph.node(timeout=Timeout(total_s=100))
    async def first(run):
        await run.call(outer, {})

    async def main():
        running = asyncio.create_task(
            execute(graph, {}, run_of=lambda call: call, tracer=Tracer(records.append))
        )
        await asyncio.sleep(1)
        running.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert all_spans_ended(records)
        return await unended_tasks(), asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == (set(), 1)


def test_a_run_may_be_cancelled_as_it_is_ended_by_a_failure(hasty):
    hasty.node(name="stubborn")(ignores_its_cancellation)

    records, left, took_s = cancelled_after(hasty, 1.5)

    assert left == set()
    assert took_s <= GRACE_S
    assert all_spans_ended(records)


# --- what is no failure ends it as in plain Python -----------------------------------------------


class Unusual(BaseException):
    """As other libraries have them."""


def raising(error):
    async def function():
        await asyncio.sleep(1)
        raise error

    return function


def raising_plain(error):
    def function():
        raise error

    return function


def raising_in_a_stream(error):
    async def function():
        yield 1
        await asyncio.sleep(1)
        raise error

    return function


def raising_in_a_group(error):
    async def function():
        async with asyncio.TaskGroup() as group:
            group.create_task(forever())
            group.create_task(raising(error)())

    return function


@pytest.mark.parametrize(
    ("function_of", "error"),
    [
        *itertools.product(
            (raising, raising_plain, raising_in_a_stream), (KeyboardInterrupt, SystemExit, Unusual)
        ),
        # The others would end the loop again, as it is closed: so asyncio has it.
        (raising_in_a_group, Unusual),
    ],
)
@pytest.mark.parametrize("timeout", [None, Timeout(total_s=5)], ids=["", "Timeout"])
@pytest.mark.parametrize("place", ["a node", "an item", "nested"])
def test_what_is_no_failure_ends_the_run(graph, error, function_of, timeout, place):
    ended = []
    raised = error("so it is")

    @graph.node
    async def other():
        try:
            await forever()
        finally:
            ended.append("other")

    function = function_of(raised)
    if place == "nested":
        sub = Graph("sub")
        sub.node(name="fails", timeout=timeout, on_error="skip", retry=Retry(3))(function)

        @graph.node(on_error="skip")
        async def outer(run):
            await run.call(sub, {})

    elif place == "an item":
        sub = Graph("sub")

        async def mapped(number):
            if function_of is raising_in_a_stream:
                async for _ in function():
                    pass
            elif function_of is raising_plain:
                function()
            else:
                await function()

        graph.node(name="fails", each={"number": "numbers"}, timeout=timeout)(mapped)
    else:
        graph.node(name="fails", timeout=timeout, on_error="skip", retry=Retry(3))(function)
    records = []

    with pytest.raises(error, match="so it is") as caught:
        virtual_time.run(
            execute(
                graph, {"numbers": [1]}, run_of=lambda call: call, tracer=Tracer(records.append)
            )
        )

    assert caught.value.__cause__ is not caught.value
    assert ended == ["other"]
    assert all_spans_ended(records)
    assert not any(isinstance(one, NodeOutput) and one.item is None for one in records)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Unusual])
def test_a_when_that_raises_what_is_no_failure_ends_the_run(graph, error):
    def when():
        raise error("so it is")

    @graph.node(when=when, on_error="skip")
    async def text(): ...

    with pytest.raises(error, match="so it is"):
        watch(graph)


# --- in a process of its own ---------------------------------------------------------------------

HANGING = """
import asyncio, threading, time
from harness.errors import NodeTimedOut
from harness.graph import Graph, Timeout, execute
from harness.trace import Tracer

graph = Graph("essay")

@graph.node(timeout=Timeout(total_s=0.05))
def thread():
    threading.Event().wait()

@graph.node(timeout=Timeout(total_s=0.05))
async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@graph.node(timeout=Timeout(total_s=0.05))
async def threads_of_asyncio():
    await asyncio.to_thread(lambda: None)

async def main():
    ended = await execute(graph, {}, run_of=str, tracer=Tracer())
    print(sorted(one.node for one in ended.failures), ended.status, flush=True)

asyncio.run(main())
print("over", flush=True)
"""


def test_what_hangs_keeps_neither_the_run_nor_the_interpreter_from_ending():
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.splitlines()[-2:] == ["['stubborn', 'thread'] failed", "over"]
    assert done.returncode == 0
    assert done.stderr == ""


EXITING = """
import asyncio, sys
from harness.graph import Graph, execute
from harness.trace import Tracer

graph = Graph("essay")

@graph.node
async def exits():
    sys.exit(7)

@graph.node
async def waits():
    await asyncio.Event().wait()

asyncio.run(execute(graph, {}, run_of=str, tracer=Tracer()))
"""


def test_a_node_that_exits_ends_the_process_with_its_code():
    done = subprocess.run(
        [sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 7
    assert done.stderr == ""
