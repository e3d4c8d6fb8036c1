"""Runs that are ended before they are over: by a failure, their time, from outside, by Ctrl-C."""

import asyncio
import subprocess
import sys
import threading

import pytest
import virtual_time
from graph_runs import (
    SlowTracer,
    execute,
    forever,
    gives_when_cancelled,
    ignores_its_cancellation,
    nests,
    raises_when_cancelled,
    step,
)
from watched import all_spans_ended, unended_tasks, watch

from harness.graph import Cache, Default, Graph, Retry, Timeout
from harness.trace import NodeOutput, Tracer

GRACE_S = 1.0


@pytest.fixture
def graph():
    return Graph("essay")


async def ignores_whatever_comes():
    # As long as there is a run: the loop, as it is closed, would wait for ever.
    while len(asyncio.all_tasks()) > 1:
        try:
            await forever()
        except BaseException:  # noqa: BLE001 - nobody is more stubborn
            continue


STUBBORN = pytest.mark.parametrize("stubborn", [ignores_its_cancellation, ignores_whatever_comes])


# --- the first failure ends the run --------------------------------------------------------------


@pytest.fixture
def hasty():
    """A graph that ends by its first failure, after a second."""
    graph = Graph("hasty", fail_fast=True)
    step(graph, "fails", seconds=1, raises=ValueError)
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
    step(hasty, "after", "other", raises=AssertionError)

    watched = watch(hasty)

    assert watched.ended.outputs == {"other": "done all the same"}
    assert watched.skips == {"after": "fails"}


def test_what_has_not_begun_is_neither_called_nor_looked_for(graph):
    graph.fail_fast = True
    asked = []

    @graph.node(each={"number": "numbers"})
    async def items(number):
        raise AssertionError if number else ValueError

    step(graph, "late", when=lambda: asked.append("late"))

    watched = watch(graph, {"numbers": [0, 1, 2]})

    # All three have places, and the first fails before the others are called.
    assert watched.failures == [("items[0]", ValueError, 1)]
    assert watched.skips == dict.fromkeys(["items[1]", "items[2]", "late"], "items[0]")
    assert watched.statuses == {"items[0]": ["error"]}
    assert asked == []


def test_what_was_looked_for_meanwhile_is_not_called(hasty):
    class SlowCache:
        async def find(self, *_, **__):
            await asyncio.sleep(2)

    step(hasty, "late", raises=AssertionError, cache=Cache())

    ended = virtual_time.run(execute(hasty, {}, run_of=str, tracer=Tracer(), cache=SlowCache()))

    assert [(one.node, one.because_of) for one in ended.skips] == [("late", "fails")]


def test_a_failure_of_a_nested_pipeline_ends_the_run_around_it(graph):
    graph.fail_fast = True
    sub = Graph("sub")
    step(sub, "fails", seconds=1, raises=ValueError)
    nests(graph, "outer", sub)
    step(graph, "beside", gives=forever)

    watched = watch(graph)

    assert watched.failures == [("outer/sub/fails", ValueError, 1)]
    assert watched.skips == dict.fromkeys(["outer", "beside"], "outer/sub/fails")
    assert watched.statuses["beside"] == ["cancelled"]


@STUBBORN
def test_who_ignores_it_is_left_behind(hasty, stubborn):
    step(hasty, "stubborn", gives=stubborn)
    step(hasty, "after", "stubborn", raises=AssertionError)
    step(hasty, "items", each={"number": "numbers"}, gives=lambda _: forever())

    watched = watch(hasty, {"numbers": [1, 2, 3]}, max_parallel=2)

    assert watched.failures == [("fails", ValueError, 1)]
    left_out = ["stubborn", "after", "items[0]", "items[1]", "items[2]"]
    assert watched.skips == dict.fromkeys(left_out, "fails")
    assert watched.seconds == 1 + GRACE_S
    if stubborn is ignores_its_cancellation:
        assert watched.statuses["stubborn"] == ["error"]
        assert watched.tasks_left == set()
        assert all_spans_ended(watched.records)


def test_a_thread_is_not_waited_for_and_what_it_returns_is_dropped(graph):
    graph.fail_fast = True
    begun, over, threads = threading.Event(), threading.Event(), []

    @graph.node
    def slow():
        threads.append(threading.current_thread())
        begun.set()
        over.wait(60)
        return "too late"

    @graph.node
    def fails():
        begun.wait()
        raise ValueError("first")

    watched = watch(graph, runs=asyncio.run)  # virtual time stands still while a thread lives
    over.set()
    threads[0].join()

    assert watched.statuses == {"slow": ["cancelled"], "fails": ["error"]}
    assert watched.skips == {"slow": "fails"}
    assert watched.recorded == set()


# --- its time is over ----------------------------------------------------------------------------


def test_a_run_whose_time_is_over_keeps_what_is_done(graph):
    step(graph, "quick", seconds=1, gives="done")
    step(graph, "slow", seconds=3)
    step(graph, "after", "slow")

    watched = watch(graph, deadline_s=2)

    assert watched.ended.status == "stopped"
    assert watched.ended.stopped_by.limit == "time"
    assert watched.ended.outputs == {"quick": "done"}
    assert watched.skips == {"slow": None, "after": None}
    assert watched.seconds == 2


@STUBBORN
def test_a_run_whose_time_is_over_waits_a_grace_for_who_ignores_it(graph, stubborn):
    step(graph, "stubborn", gives=stubborn)
    # What waits for its place is not waited for.
    step(graph, "items", each={"number": "numbers"}, seconds=9, raises=AssertionError)

    watched = watch(graph, {"numbers": [1, 2]}, deadline_s=2, max_parallel=1)

    assert watched.ended.status == "stopped"
    assert watched.skips == {"stubborn": None, "items[0]": None, "items[1]": None}
    assert watched.seconds == 2 + GRACE_S


@pytest.mark.parametrize("on_error", ["skip", Default(None)], ids=str)
def test_what_time_cut_off_does_not_count_as_failed(graph, on_error):
    step(graph, "slow", gives=forever, on_error=on_error)

    watched = watch(graph, deadline_s=2)

    assert watched.ended.outputs == {}
    assert watched.recorded == set()


# --- it is cancelled -----------------------------------------------------------------------------


def cancelled_after(graph, seconds, *, turns=None, tracer_class=Tracer):
    """Cancels a run, and again after some turns; its records, what it left, how long it took."""
    records = []

    async def main():
        loop = asyncio.get_running_loop()
        tracer = tracer_class(records.append, clock=lambda: round(loop.time() * 1e9))
        run = execute(graph, {}, tracer=tracer, run_of=lambda call: call)
        running = asyncio.create_task(run)
        await asyncio.sleep(seconds)
        running.cancel()
        if turns is not None:
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert all_spans_ended(records)
        took_s = loop.time() - seconds
        left = asyncio.all_tasks() - {asyncio.current_task()}
        return left if turns is None else await unended_tasks(), took_s

    left, took_s = virtual_time.run(main())
    assert left == set()
    return records, took_s


def test_what_is_given_when_a_run_is_cancelled_is_written_down(graph):
    step(graph, "other", seconds=0.5, gives="paid for")

    records, took_s = cancelled_after(graph, 1, tracer_class=SlowTracer)

    assert [one.node for one in records if isinstance(one, NodeOutput)] == ["other"]
    assert took_s == 0.25


@pytest.mark.parametrize("function", [ignores_its_cancellation, forever])
def test_a_run_that_is_cancelled_twice_ends_at_once(function):
    for turns in range(1, 13):
        graph, outer, inner = Graph("top"), Graph("outer"), Graph("inner")
        inner.node(name="last", timeout=Timeout(total_s=100))(function)
        nests(outer, "middle", inner)
        nests(graph, "first", outer, timeout=Timeout(total_s=100))

        assert cancelled_after(graph, 1, turns=turns)[1] == 0


# --- what is no failure ends it as in plain Python -----------------------------------------------


class Unusual(BaseException):
    """As other libraries have them."""


async def raises_later(error):
    await asyncio.sleep(1)
    raise error


def raises_plainly(error):
    raise error


async def raises_in_a_group(error):
    async with asyncio.TaskGroup() as group:
        group.create_task(forever())
        group.create_task(raises_later(error))


async def raises_in_a_stream(error):
    yield 1
    await raises_later(error)


@pytest.mark.parametrize(
    ("raises", "error", "place", "timeout"),
    [
        (raises_later, KeyboardInterrupt, "a node", None),
        (raises_later, SystemExit, "nested", Timeout(total_s=5)),
        (raises_plainly, KeyboardInterrupt, "nested", Timeout(total_s=5)),
        (raises_plainly, Unusual, "a node", None),
        (raises_in_a_stream, SystemExit, "nested", Timeout(total_s=5)),
        # Of the others the loop would end again as it is closed: so asyncio has it.
        (raises_in_a_group, Unusual, "a node", None),
    ],
)
def test_what_is_no_failure_ends_the_run(graph, raises, error, place, timeout):
    ended, records = [], []

    @graph.node
    async def other():
        try:
            await forever()
        finally:
            ended.append("other")

    options = {"name": "fails", "timeout": timeout, "on_error": "skip", "retry": Retry(3)}
    takes = {"takes": {"error": "errors"}}
    if place == "nested":
        sub = Graph("sub")
        sub.node(**options, **takes)(raises)
        nests(graph, "outer", sub, inputs={"errors": error("so it is")}, on_error="skip")
    else:
        graph.node(**options, **takes)(raises)
    how = {"run_of": lambda call: call, "tracer": Tracer(records.append)}

    with pytest.raises(error, match="so it is"):
        virtual_time.run(execute(graph, {"errors": error("so it is")}, **how))

    assert ended == ["other"]
    assert all_spans_ended(records)
    assert not any(isinstance(one, NodeOutput) and one.item is None for one in records)


def test_a_when_that_raises_what_is_no_failure_ends_the_run(graph):
    step(graph, "text", when=lambda: sys.exit(7), on_error="skip")

    with pytest.raises(SystemExit):
        watch(graph)


# --- in a process of its own ---------------------------------------------------------------------

HANGING = """
import asyncio, threading
from harness.graph import Graph, Timeout, execute
from harness.graph.reuse import Shared
from harness.trace import Tracer

graph = Graph("essay", timeout=Timeout(total_s=0.05))

@graph.node
def thread():
    threading.Event().wait()

@graph.node
async def stubborn():
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

@graph.node(timeout=Timeout(total_s=60))
async def threads_of_asyncio():
    await asyncio.to_thread(lambda: None)

async def main():
    ended = await execute(graph, {}, Shared(run_of=str, tracer=Tracer()))
    print(sorted(one.node for one in ended.failures), ended.status, flush=True)

asyncio.run(main())
print("over", flush=True)
"""


def test_the_interpreter_ends_although_something_hangs():
    command = [sys.executable, "-c", HANGING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.stdout.splitlines()[-2:] == ["['stubborn', 'thread'] failed", "over"]
    assert (done.stderr, done.returncode) == ("", 0)
