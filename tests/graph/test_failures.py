"""What counts as a failure, and what is said of it. Of all combinations: `test_failure_table`."""

import asyncio

import orjson
import pytest
import virtual_time
from watched import watch

from harness.errors import InvalidInput, NodeFailed, PipelineInvalid, RunLimitReached
from harness.graph import Default, Graph, NodeCall, Retry, Skipped, Timeout, execute
from harness.trace import NodeOutput, Tracer


@pytest.fixture
def graph():
    return Graph("essay")


async def forever():
    await asyncio.Event().wait()


# --- what failed ---------------------------------------------------------------------------------


def test_all_that_failed_is_listed_in_the_order_it_did(graph):
    @graph.node
    async def late():
        await asyncio.sleep(2)
        raise ValueError("late")

    @graph.node
    async def early():
        await asyncio.sleep(1)
        raise KeyError("early")

    @graph.node
    async def fine():
        await asyncio.sleep(3)
        return "fine"

    watched = watch(graph)

    assert watched.failures == [("early", KeyError, 1), ("late", ValueError, 1)]
    assert watched.ended.outputs == {"fine": "fine"}


def test_what_depends_on_two_that_failed_names_the_first_it_takes(graph):
    @graph.node
    async def left():
        await asyncio.sleep(1)
        raise ValueError("left")

    @graph.node
    async def right():
        raise ValueError("right")

    @graph.node
    async def both(left, right): ...

    @graph.node
    async def other(right): ...

    watched = watch(graph)

    assert watched.skips == {"other": "right", "both": "left"}
    assert [one.reason for one in watched.ended.skips] == ["'right' failed", "'left' failed"]


def test_an_item_that_fails_ends_what_is_made_of_it_and_not_of_the_others(graph):
    @graph.node(each={"number": "numbers"})
    async def inverse(number):
        return 1 / number

    @graph.node(each={"one": "inverse"})
    async def shown(one):
        return str(one)

    @graph.node
    async def text(shown): ...

    watched = watch(graph, {"numbers": [1, 0, 2]})

    assert watched.failures == [("inverse[1]", ZeroDivisionError, 1)]
    assert watched.skips == {"shown[1]": "inverse[1]", "text": "inverse[1]"}
    assert watched.recorded == {"inverse[0]", "inverse[2]", "shown[0]", "shown[2]"}


def test_an_item_that_is_left_out_is_so_for_what_takes_it(graph):
    @graph.node(each={"number": "numbers"}, on_error="skip")
    async def inverse(number: int) -> float:
        return 1 / number

    @graph.node(each={"one": "inverse"})
    async def shown(one: float) -> str:
        return str(one)

    @graph.node(each={"one": "inverse"})
    async def said(one: float | Skipped) -> str:
        return one.reason if isinstance(one, Skipped) else "fine"

    watched = watch(graph, {"numbers": [1, 0]})

    assert watched.ended.outputs["said"] == ["fine", "ZeroDivisionError: division by zero"]
    assert watched.ended.outputs["shown"] == ["1.0", Skipped(reason="'inverse[1]' was skipped")]
    assert watched.skips == {"inverse[1]": None, "shown[1]": "inverse[1]"}


def group_of(*errors):
    return BaseExceptionGroup("several", errors)


@pytest.mark.parametrize(
    ("group", "error"),
    [
        pytest.param(group_of(KeyError("a"), ValueError("b")), KeyError, id="the first"),
        pytest.param(
            group_of(group_of(group_of(KeyError("a")), ValueError("b"))), KeyError, id="nested"
        ),
        pytest.param(
            group_of(asyncio.CancelledError(), ValueError("b")), ValueError, id="none cancelled"
        ),
        pytest.param(
            group_of(asyncio.CancelledError()), asyncio.CancelledError, id="all cancelled"
        ),
    ],
)
def test_of_a_group_of_errors_one_is_the_failure(graph, group, error):
    @graph.node
    async def gathers():
        raise group

    assert watch(graph).failures == [("gathers", error, 1)]


def test_a_question_in_a_group_of_errors_is_asked(graph):
    @graph.node
    async def asks(run):
        async with asyncio.TaskGroup() as group:
            group.create_task(failing(ValueError("beside")))
            group.create_task(run.ask("Ship this?", bool))

    watched = watch(graph)

    assert watched.ended.status == "waiting"
    assert [one.text for one in watched.ended.questions] == ["Ship this?"]


async def failing(error):
    raise error


@pytest.mark.parametrize("numbers", [None, [1]], ids=["plain", "mapped"])
def test_a_node_that_waits_for_something_cancelled_has_failed(graph, numbers):
    async def waits(number=0):
        never = asyncio.get_running_loop().create_future()
        never.cancel()
        await never

    graph.node(each={"number": "numbers"} if numbers else {}, retry=Retry(3))(waits)
    label = "waits[0]" if numbers else "waits"

    watched = watch(graph, {"numbers": numbers} if numbers else {})

    assert watched.failures == [(label, asyncio.CancelledError, 1)]
    assert str(watched.ended.failures[0].error) == "what it waited for was cancelled"


def cancels_its_task():
    asyncio.current_task().cancel()


async def cancels_and_waits():
    cancels_its_task()
    await asyncio.sleep(1)


async def cancels_and_returns():
    cancels_its_task()


async def cancels_and_raises():
    cancels_its_task()
    raise ValueError("beside")


@pytest.mark.parametrize(
    ("function", "error"),
    [
        pytest.param(cancels_and_waits, asyncio.CancelledError, id="and waits"),
        pytest.param(cancels_and_raises, ValueError, id="and raises"),
    ],
)
@pytest.mark.parametrize("on_error", ["fail", "skip", Default(None)], ids=str)
@pytest.mark.parametrize("slow_journal", [False, True], ids=["", "slow journal"])
def test_a_node_that_cancels_its_own_task_has_failed(
    graph, function, error, on_error, slow_journal
):
    graph.node(name="suicidal", on_error=on_error, retry=Retry(3))(function)

    @graph.node
    async def after(suicidal): ...

    watched = watch(graph, tracer_class=SlowTracer if slow_journal else Tracer)

    # Whatever on_error says: it may have been the loop that was closed.
    assert watched.failures == [("suicidal", error, 1)]
    assert watched.skips == {"after": "suicidal"}
    assert watched.recorded == set()


class SlowTracer(Tracer):
    """As a journal that has to be on the disk."""

    async def persisted(self):
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("slow_journal", [False, True], ids=["", "slow journal"])
def test_a_node_that_cancels_its_own_task_and_is_done_keeps_no_run_from_ending(graph, slow_journal):
    graph.node(name="suicidal")(cancels_and_returns)

    watched = watch(graph, tracer_class=SlowTracer if slow_journal else Tracer)

    if slow_journal:  # it is cancelled as it waits for that
        assert watched.failures == [("suicidal", asyncio.CancelledError, 1)]
    else:
        assert watched.ended.outputs == {"suicidal": None}


def test_a_node_may_limit_its_own_time(graph):
    @graph.node
    async def patient():
        try:
            async with asyncio.timeout(1):
                await forever()
        except TimeoutError:
            return "went without"

    @graph.node
    async def impatient():
        async with asyncio.timeout(1):
            await forever()

    watched = watch(graph)

    assert watched.ended.outputs == {"patient": "went without"}
    assert watched.failures == [("impatient", TimeoutError, 1)]


def test_a_node_that_returns_a_coroutine_has_failed(graph):
    waiting = forever()

    @graph.node
    async def forgets_to_await():
        return waiting

    watched = watch(graph)
    waiting.close()

    assert watched.failures == [("forgets_to_await", TypeError, 1)]
    assert "coroutine" in str(watched.ended.failures[0].error)


class Mute(Exception):
    """As some are that expect arguments which they were not given."""

    def __str__(self):
        raise AttributeError("no such attribute")


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_a_failure_whose_message_cannot_be_read_is_one_as_any_other(graph, on_error):
    @graph.node(on_error=on_error)
    async def fails():
        raise Mute

    @graph.node
    async def works():
        return "done"

    watched = watch(graph)

    assert watched.ended.outputs["works"] == "done"
    assert watched.failures == ([("fails", Mute, 1)] if on_error == "fail" else [])
    assert watched.attempts["fails"][0].error.startswith("Mute")
    assert str(NodeFailed("fails", Mute())).startswith("node 'fails' failed: Mute")


def test_what_a_plain_function_returns_is_awaited_if_it_can_be(graph):
    @graph.node
    def hides_that_it_is_async():
        return give("done")

    assert watch(graph).ended.outputs == {"hides_that_it_is_async": "done"}


async def give(value):
    return value


def test_a_plain_function_that_stops_an_iteration_has_failed(graph):
    @graph.node
    def first():
        return next(iter(()))

    assert watch(graph).failures == [("first", RuntimeError, 1)]


# --- what fails around a node --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on_error", "output"),
    [
        pytest.param("fail", None, id="fail"),
        pytest.param("skip", Skipped(reason="ZeroDivisionError: division by zero"), id="skip"),
        pytest.param(Default("default"), "default", id="default"),
    ],
)
def test_a_when_that_raises_is_the_nodes_failure_and_it_is_not_called(graph, on_error, output):
    @graph.node(when=lambda number: 1 / number, on_error=on_error, retry=Retry(3))
    async def text() -> str:
        raise AssertionError("called")

    watched = watch(graph, {"number": 0})

    assert watched.ended.outputs.get("text") == output
    assert watched.failures == ([("text", ZeroDivisionError, 0)] if output is None else [])
    assert watched.attempts == {}


def test_a_run_that_cannot_be_made_is_the_nodes_failure(graph):
    @graph.node(retry=Retry(2, first_delay_s=0))
    async def text(run):
        raise AssertionError("called")

    def no_run(call):
        raise OSError("no handle left")

    assert watch(graph, run_of=no_run).failures == [("text", OSError, 2)]


def test_a_default_that_no_journal_takes_is_refused_before_the_run(graph):
    @graph.node(on_error=Default(object()))
    async def text(): ...

    with pytest.raises(PipelineInvalid, match="on_error=Default"):
        graph.check()


def test_a_journal_that_cannot_be_written_ends_the_run_and_what_is_under_way(graph):
    ended = []

    @graph.node
    async def waits():
        try:
            await forever()
        finally:
            ended.append("waits")

    @graph.node
    async def quick(): ...

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

    @findings.node(each={"number": "numbers"})
    async def finding(number: int):
        return 1 / number

    @brief.node
    async def search(run):
        return await run.call(findings, {"numbers": [1, 0]})

    @graph.node(each={"topic": "topics"})
    async def answer(run, topic):
        return await run.call(brief, {})

    watched = watch(graph, {"topics": ["a", "b"]})

    wrong = [f"answer[{n}]/brief/search/findings/finding[1]" for n in (0, 1)]
    assert watched.failures == [(label, ZeroDivisionError, 1) for label in wrong]
    assert watched.skips["answer[0]"] == wrong[0]
    assert watched.skips["answer[1]/brief/search"] == wrong[1]


def test_all_that_failed_inside_a_node_is_listed(graph):
    sub = Graph("sub")

    @sub.node
    async def early():
        raise KeyError("early")

    @sub.node
    async def late():
        await asyncio.sleep(1)
        raise ValueError("late")

    @graph.node
    async def outer(run):
        await run.call(sub, {})

    watched = watch(graph)

    assert watched.failures == [
        ("outer/sub/early", KeyError, 1), ("outer/sub/late", ValueError, 1),
    ]  # fmt: skip


def test_a_node_may_go_on_without_what_failed_inside_it(graph):
    sub = Graph("sub")

    @sub.node
    async def fails():
        raise ValueError("inside")

    @sub.node
    async def works():
        return "done all the same"

    @graph.node
    async def outer(run):
        try:
            await run.call(sub, {})
        except NodeFailed as error:
            return [error.node, dict(error.result.outputs), str(error)]

    watched = watch(graph)

    label, outputs, said = watched.ended.outputs["outer"]
    assert label == "outer/sub/fails"
    assert outputs == {"works": "done all the same"}
    assert said.startswith("node 'outer/sub/fails' failed: ValueError: inside (test_failures.py:")
    assert watched.ended.status == "finished"
    (skip,) = watched.ended.skips
    assert skip.node == "outer/sub/fails"
    assert skip.reason == "failed, and its caller did not: ValueError: inside"


def test_what_a_later_attempt_did_is_not_said_to_be_left_out(graph):
    sub, attempts = Graph("sub"), []

    @sub.node
    async def first():
        attempts.append("first")
        if len(attempts) < 2:
            raise ValueError("not yet")
        return "first"

    @sub.node
    async def second(first):
        return "second"

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def outer(run):
        return dict(await run.call(sub, {}))

    watched = watch(graph)

    assert watched.ended.outputs == {"outer": {"first": "first", "second": "second"}}
    assert watched.skips == {}


def test_a_mistake_inside_a_nested_pipeline_is_not_tried_again(graph):
    sub = Graph("sub")

    @sub.node
    async def mistaken():
        raise InvalidInput("no such rubric")

    @graph.node(retry=Retry(3))
    async def outer(run):
        await run.call(sub, {})

    watched = watch(graph)

    assert watched.statuses["outer/sub/mistaken"] == ["error"]
    assert watched.seconds == 0


def test_when_one_of_two_nested_pipelines_fails_the_other_ends_before_its_node(graph):
    fails, waits = Graph("fails"), Graph("waits")
    ended = []

    @fails.node
    async def failing_one():
        await asyncio.sleep(1)
        raise ValueError("inside")

    @waits.node
    async def waiting_one():
        try:
            await forever()
        finally:
            await asyncio.sleep(0.5)  # its tidying up is waited for
            ended.append("waiting_one")

    @graph.node
    async def outer(run: NodeCall):
        await asyncio.gather(run.call(fails, {}), run.call(waits, {}))

    watched = watch(graph)

    assert watched.failures == [("outer/fails/failing_one", ValueError, 1)]
    assert watched.skips["outer/waits/waiting_one"] == "outer"
    assert ended == ["waiting_one"]
    assert watched.seconds == 1.5
    assert watched.tasks_left == set()


def test_what_a_node_leaves_nested_that_ignores_its_cancellation_does_not_hold_it_up(graph):
    waits = Graph("waits")
    graph.fail_fast = True

    @waits.node
    async def stubborn():
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                continue

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


def test_a_stream_is_closed_before_its_failure_is_known(graph):
    story = []

    @graph.node
    async def words():
        try:
            yield "one"
            yield object()
            yield "three"
        finally:
            await asyncio.sleep(1)
            story.append("closed")

    @graph.node
    async def text(words): ...

    watched = watch(graph)

    assert watched.failures == [("words", TypeError, 1)]
    assert story == ["closed"]
    assert watched.attempts["words"][0].seconds == 1
    assert watched.tasks_left == set()


@pytest.mark.parametrize("default", [[], ["x"], ["x", "y", "z", "w"]], ids=len)
@pytest.mark.parametrize("given", [0, 1, 3])
def test_a_default_comes_behind_the_items_that_a_stream_has_given(graph, given, default):
    @graph.node(on_error=Default(default))
    async def words():
        for number in range(given):
            yield str(number)
        await asyncio.sleep(1)  # others go on with these meanwhile
        raise ValueError("cut")

    @graph.node(each={"word": "words"})
    async def loud(word):
        return f"{word}!"

    @graph.node
    async def text(loud, words):
        return " ".join(loud)

    watched = watch(graph)

    whole = [*map(str, range(given)), *default]
    assert watched.ended.status == "finished"
    assert watched.ended.outputs["words"] == whole
    assert watched.ended.outputs["text"] == " ".join(f"{word}!" for word in whole)
    (recorded,) = [
        one for one in watched.records
        if isinstance(one, NodeOutput) and one.node == "words" and one.item is None
    ]  # fmt: skip
    assert orjson.loads(orjson.dumps(recorded.value)) == whole


def test_a_stream_that_goes_on_after_it_was_left_behind_is_not_listened_to(graph):
    left = asyncio.Event()

    @graph.node(timeout=Timeout(total_s=1), on_error=Default([]))
    async def words():
        yield "one"
        while True:
            try:
                await left.wait()
            except BaseException:  # noqa: BLE001 - nobody is more stubborn
                continue
            yield "too late"

    @graph.node(each={"word": "words"})
    async def loud(word):
        return f"{word}!"

    @graph.node
    async def text(loud):
        await asyncio.sleep(1)
        left.set()
        await asyncio.sleep(1)
        return " ".join(loud)

    watched = watch(graph)

    assert watched.ended.outputs == {"words": ["one"], "loud": ["one!"], "text": "one!"}


def test_who_maps_over_a_list_that_was_left_out_is_left_out_even_if_it_asks_for_such_items(graph):
    @graph.node(on_error="skip")
    async def words() -> list[str]:
        raise ValueError("none")

    @graph.node(each={"word": "words"})
    async def loud(word: str | Skipped) -> str: ...

    watched = watch(graph)

    assert watched.skips == {"words": None, "loud": "words"}
    assert isinstance(watched.ended.outputs["loud"], Skipped)


# --- limits --------------------------------------------------------------------------------------


def test_what_needs_no_further_calls_is_done_when_a_limit_is_reached(graph):
    @graph.node(each={"number": "numbers"})
    async def calls(number):
        if number > 1:
            raise RunLimitReached(f"call {number}", limit="calls")

    @graph.node
    async def plain(): ...

    @graph.node
    async def text(calls, plain): ...

    watched = watch(graph, {"numbers": [0, 1, 2, 3]})

    assert watched.ended.status == "stopped"
    assert str(watched.ended.stopped_by) == "call 2"
    assert watched.ended.outputs == {"plain": None}
    assert watched.skips == {"calls[2]": None, "calls[3]": None, "text": "calls[2]"}


def test_a_failure_counts_more_than_a_limit(graph):
    @graph.node
    async def limited():
        raise RunLimitReached("over", limit="calls")

    @graph.node
    async def fails():
        raise ValueError("and this")

    watched = watch(graph)

    assert watched.ended.status == "failed"
    assert watched.ended.stopped_by is not None
