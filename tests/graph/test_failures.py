"""What counts as a failure, and what is said of it. Of all combinations: `test_failure_table`."""

import asyncio
import re
from functools import partial

import orjson
import pytest
import virtual_time
from graph_runs import SlowTracer, execute, forever, ignores_its_cancellation, nests, step
from watched import watch

from harness.errors import NodeFailed, RunLimitReached
from harness.graph import Default, Graph, NodeCall, Retry
from harness.trace import NodeOutput, Tracer


@pytest.fixture
def graph():
    return Graph("essay")


# --- what failed ---------------------------------------------------------------------------------


def test_all_that_failed_is_listed_in_the_order_it_did(graph):
    step(graph, "late", seconds=2, raises=ValueError)
    step(graph, "early", seconds=1, raises=KeyError)
    step(graph, "fine", seconds=3, gives="fine")

    watched = watch(graph)

    assert watched.failures == [("early", KeyError, 1), ("late", ValueError, 1)]
    assert watched.ended.outputs == {"fine": "fine"}


def group_of(*errors):
    return BaseExceptionGroup("several", errors)


CANCELLED = asyncio.CancelledError()


@pytest.mark.parametrize(
    ("group", "error"),
    [
        pytest.param(group_of(KeyError(), ValueError()), KeyError, id="the first"),
        pytest.param(group_of(group_of(group_of(KeyError()))), KeyError, id="nested"),
        pytest.param(group_of(CANCELLED, ValueError()), ValueError, id="none cancelled"),
    ],
)
def test_of_a_group_of_errors_one_is_the_failure(graph, group, error):
    step(graph, "gathers", raises=group)

    assert watch(graph).failures == [("gathers", error, 1)]


def test_the_others_of_a_group_stand_beside_the_failure_a_line_each(graph):
    rest = ValueError("two\nlines"), CANCELLED, KeyError("k"), KeyError("k")
    step(graph, "gathers", raises=group_of(OSError("one"), group_of(*rest)))

    ended = watch(graph).ended

    assert ended.failures[0].beside == ("ValueError: two", "KeyError: 'k'")
    message = "node 'gathers' failed: OSError: one"
    assert re.match(rf"{message}.*; ValueError: two; KeyError: 'k'$", str(ended.error))


def test_errors_beside_a_failed_step_stand_beside_its_failure(graph):
    async def fails(number):
        raise KeyError(number)

    async def breaks_off():
        try:
            await asyncio.sleep(9)
        finally:
            raise ValueError("broken off")

    @graph.node
    async def gathers(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(run.map(fails, [1]))
            group.create_task(breaks_off())

    failure = watch(graph).ended.failures[0]

    assert (failure.node, failure.beside) == ("gathers/fails[0]", ("ValueError: broken off",))


def test_a_node_that_waits_for_something_cancelled_has_failed(graph):
    @graph.node(retry=Retry(3))
    async def waits():
        never = asyncio.get_running_loop().create_future()
        never.cancel()
        await never

    assert watch(graph).failures == [("waits", asyncio.CancelledError, 1)]


async def cancels_its_task(*, waits=0, raises=None):
    asyncio.current_task().cancel()
    if waits:
        await asyncio.sleep(waits)
    if raises:
        raise raises


@pytest.mark.parametrize(
    ("how", "on_error", "error"),
    [
        pytest.param({"waits": 1}, "skip", asyncio.CancelledError, id="and waits"),
        pytest.param({"raises": ValueError()}, Default(None), ValueError, id="and raises"),
        pytest.param({}, "fail", asyncio.CancelledError, id="and waits for the journal"),
    ],
)
def test_a_node_that_cancels_its_own_task_has_failed(graph, how, on_error, error):
    step(graph, "cancels", gives=partial(cancels_its_task, **how), on_error=on_error)
    step(graph, "after", "cancels")

    watched = watch(graph, tracer_class=SlowTracer)

    # Whatever on_error says: it may have been the loop that was closed.
    assert watched.failures == [("cancels", error, 1)]
    assert watched.skips == {"after": "cancels"}


def test_a_node_that_returns_a_coroutine_has_failed_and_what_a_plain_one_does_is_awaited(graph):
    waiting = forever()
    graph.node(name="plain")(lambda: asyncio.sleep(0, "done"))

    @graph.node
    async def forgets_to_await():
        return waiting

    watched = watch(graph)
    waiting.close()

    assert watched.failures == [("forgets_to_await", TypeError, 1)]
    assert watched.ended.outputs == {"plain": "done"}


class Mute(Exception):
    """As some are that expect arguments which they were not given."""

    def __str__(self):
        raise AttributeError("no such attribute")


def test_a_failure_whose_message_cannot_be_read_is_one_as_any_other(graph):
    step(graph, "fails", raises=Mute)

    watched = watch(graph)

    assert watched.failures == [("fails", Mute, 1)]
    assert watched.attempts["fails"][0].error.startswith("Mute")
    assert "Mute" in str(NodeFailed("fails", Mute()))


@pytest.mark.parametrize("error", [StopIteration, StopAsyncIteration, GeneratorExit])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
def test_errors_that_end_iterators_and_generators_fail_the_node_by_name(graph, error, is_async):
    if is_async:

        async def node():
            raise error("over")
    else:

        def node():
            raise error("over")

    graph.node(node)

    (failure,) = watch(graph).ended.failures
    message = str(NodeFailed("node", failure.error))
    assert isinstance(failure.error, Exception)
    assert error.__name__ in message
    assert error in (type(failure.error), type(failure.error.__cause__))
    if not (is_async and error is StopIteration):  # Python itself replaces this one
        assert "test_failures.py:" in message


def test_the_exit_of_a_group_is_the_failure_and_a_closed_call_is_just_closed(graph):
    step(graph, "gathers", raises=group_of(GeneratorExit("over")))
    assert watch(graph).failures == [("gathers", RuntimeError, 1)]

    closed = []
    calls = []

    async def waits():
        calls.append(asyncio.current_task())
        try:
            await asyncio.sleep(9)
        finally:
            closed.append("waits")

    async def closes():
        await asyncio.sleep(1)
        # RuntimeError if it went on.
        calls[0].get_coro().close()
        calls[0].cancel()

    graph = Graph("closed")
    graph.node(waits)
    graph.node(closes)
    with pytest.raises(GeneratorExit):
        watch(graph)
    assert closed == ["waits"]


def test_a_long_message_of_a_failure_is_cut_between_words(graph):
    error = ValueError("word " * 400_000)

    message = str(NodeFailed("reads", error))

    assert len(message) < 5_000
    assert "word … (1,996,000 more characters)" in message
    assert str(NodeFailed("reads", ValueError("a " + "k" * 9_000))).count("k") == 0


# --- what fails around a node --------------------------------------------------------------------


def test_a_when_that_raises_is_the_nodes_failure_and_it_is_not_called(graph):
    how = {"when": lambda number: 1 / number, "raises": AssertionError, "retry": Retry(3)}
    step(graph, "fails", **how)
    step(graph, "replaced", **how, on_error=Default("default"))

    watched = watch(graph, {"number": 0})

    assert watched.failures == [("fails", ZeroDivisionError, 0)]
    assert watched.ended.outputs == {"replaced": "default"}
    assert watched.attempts == {}


def test_a_journal_that_cannot_be_written_ends_the_run_and_what_is_under_way(graph):
    ended = []

    @graph.node
    async def waits():
        try:
            await forever()
        finally:
            ended.append("waits")

    step(graph, "quick")

    class Full(Tracer):
        async def persisted(self):
            await asyncio.sleep(0)
            raise OSError("no space left")

    async def main():
        with pytest.raises(OSError, match="no space left"):
            await execute(graph, {}, run_of=lambda call: call, tracer=Full())
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert virtual_time.run(main()) == set()
    assert ended == ["waits"]


# --- nested --------------------------------------------------------------------------------------


def test_a_nested_failure_bears_the_names_of_those_it_is_nested_in(graph):
    findings, brief = Graph("findings"), Graph("brief")
    step(findings, "finding", each={"number": "numbers"}, gives=lambda number: 1 / number)
    nests(brief, "search", findings, inputs={"numbers": [1, 0]})
    nests(graph, "answer", brief, each={"topic": "topics"})

    watched = watch(graph, {"topics": ["a", "b"]})

    wrong = [f"answer[{n}]/brief/search/findings/finding[1]" for n in (0, 1)]
    assert watched.failures == [(label, ZeroDivisionError, 1) for label in wrong]
    assert watched.skips["answer[0]"] == wrong[0]
    assert watched.skips["answer[1]/brief/search"] == wrong[1]


def test_a_node_may_go_on_without_what_failed_inside_it(graph):
    sub = Graph("sub")
    step(sub, "fails", raises=ValueError("inside"))
    step(sub, "works", gives="done all the same")

    @graph.node
    async def outer(run):
        try:
            await run.call(sub, {})
        except NodeFailed as error:
            return [error.node, dict(error.result.outputs), str(error)]

    ended = watch(graph).ended

    label, outputs, said = ended.outputs["outer"]
    assert (ended.status, label) == ("finished", "outer/sub/fails")
    assert outputs == {"works": "done all the same"}
    assert "ValueError: inside (graph_runs.py:" in said
    (skip,) = ended.skips
    assert (skip.node, skip.because_of) == ("outer/sub/fails", None)
    assert "ValueError: inside" in skip.reason


def test_what_a_later_attempt_did_is_not_said_to_be_left_out(graph):
    sub, errors = Graph("sub"), [ValueError("not yet")]

    @sub.node
    async def first():
        if errors:
            raise errors.pop()
        return "first"

    step(sub, "second", "first", gives="second")
    nests(graph, "outer", sub, retry=Retry(2, first_delay_s=0))

    watched = watch(graph)

    assert watched.ended.outputs == {"outer": [{"first": "first", "second": "second"}]}
    assert watched.skips == {}


def test_when_one_of_two_nested_pipelines_fails_the_other_ends_before_its_node(graph):
    fails, waits, ended = Graph("fails"), Graph("waits"), []
    step(fails, "failing_one", seconds=1, raises=ValueError)

    @waits.node
    async def waiting_one():
        try:
            await forever()
        finally:
            await asyncio.sleep(0.5)  # its tidying up is waited for
            ended.append("waiting_one")

    nests(graph, "outer", fails, waits)

    watched = watch(graph)

    assert watched.failures == [("outer/fails/failing_one", ValueError, 1)]
    assert watched.skips["outer/waits/waiting_one"] == "outer"
    assert ended == ["waiting_one"]
    assert watched.seconds == 1.5
    assert watched.tasks_left == set()


def test_what_a_node_leaves_nested_that_ignores_its_cancellation_does_not_hold_it_up(graph):
    waits = Graph("waits")
    graph.fail_fast = True
    waits.node(name="stubborn")(ignores_its_cancellation)

    @graph.node
    async def outer(run: NodeCall):
        task = asyncio.create_task(run.call(waits, {}))
        await asyncio.sleep(1)
        return "done" if task else ""

    watched = watch(graph)

    assert watched.ended.outputs == {"outer": "done"}
    assert watched.statuses == {"outer": ["ok"], "outer/waits/stubborn": ["error"]}
    assert watched.seconds == 2
    assert watched.tasks_left == set()


# --- nodes that give their items one by one ------------------------------------------------------


@pytest.mark.parametrize(("given", "default"), [(0, "xy"), (3, "x")])
def test_a_default_comes_behind_the_items_that_a_stream_has_given(graph, given, default):
    @graph.node(on_error=Default([*default]))
    async def words():
        for number in range(given):
            yield str(number)
        await asyncio.sleep(1)  # others go on with these meanwhile
        raise ValueError("cut")

    step(graph, "loud", each={"word": "words"}, gives=lambda word: f"{word}!")

    watched = watch(graph)

    whole = [*map(str, range(given)), *default]
    assert watched.ended.outputs == {"words": whole, "loud": [f"{word}!" for word in whole]}
    outputs = [one for one in watched.records if isinstance(one, NodeOutput)]
    (recorded,) = [one.value for one in outputs if (one.node, one.item) == ("words", None)]
    assert orjson.loads(orjson.dumps(recorded)) == whole


# --- limits --------------------------------------------------------------------------------------


def test_what_needs_no_further_calls_is_done_when_a_limit_is_reached(graph):
    @graph.node(each={"number": "numbers"})
    async def calls(number):
        if number > 1:
            raise RunLimitReached(f"call {number}", limit="calls")

    step(graph, "plain")
    step(graph, "text", "calls", "plain")

    watched = watch(graph, {"numbers": [0, 1, 2, 3]})

    assert watched.ended.status == "stopped"
    assert str(watched.ended.stopped_by) == "call 2"
    assert watched.ended.outputs == {"plain": None}
    assert watched.skips == {"calls[2]": None, "calls[3]": None, "text": "calls[2]"}
