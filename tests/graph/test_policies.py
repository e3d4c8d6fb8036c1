"""Policies: how often a node is called, how long it may take, how many at once, what stands for it.

What comes of them when a call goes wrong is in `test_failure_table`.
"""

import asyncio
import itertools
import math
import re

import pytest
from graph_runs import UnderWay, ignores_its_cancellation, nests, step
from watched import watch

from harness.errors import (
    InvalidInput,
    LimitReached,
    NodeTimedOut,
    PipelineInvalid,
    RubricInvalid,
    RunLimitReached,
)
from harness.graph import Cache, Concurrency, Default, Graph, Resources, Retry, Timeout
from harness.trace import SpanStarted

EACH = {"number": "numbers"}


@pytest.fixture
def graph():
    return Graph("essay")


# --- as they are written -------------------------------------------------------------------------


REFUSED = {
    "attempts-not-positive": [lambda: Retry(0), lambda: Retry("3"), lambda: Retry(2.5)],
    "option-invalid": [lambda: Retry(on=[OSError]), lambda: Retry(on=(OSError, "x"))],
    "timeout-not-positive": [lambda: Timeout(total_s=0), lambda: Timeout(idle_s="3")],
    "concurrency-not-positive": [
        *(lambda: Concurrency(0), lambda: Concurrency("2"), lambda: Concurrency(1.5)),
    ],
    "gpus-not-whole": [lambda: Resources(gpus=1.5)],
    "memory-not-a-size": [lambda: Resources(memory="8 GB?")],
    "policy-negative": [
        *(lambda: Retry(first_delay_s=-1), lambda: Retry(longest_delay_s=math.nan)),
        *(lambda: Cache(max_age_s=-1), lambda: Resources(gpus=-1)),
        *(lambda: Resources(custom={"a": -1}), lambda: Resources(custom={"a": "1"})),
        lambda: Resources(max_retries=-1),
    ],
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_out_of_range_or_of_another_type_is_refused_when_written(code):
    for make in REFUSED[code]:
        with pytest.raises(InvalidInput) as caught:
            make()
        assert caught.value.code == f"pipeline.{code}"


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"custom": "license"}, '{"license": 1}'),
        ({"custom": {"GPU": 1}}, "write cpus=, gpus= and memory="),
        ({"accelerator_type": 100}, '"A100"'),
        ({"runtime_env": ["polars"]}, 'runtime_env={"pip": ["polars"]}'),
        ({"placement": "SPREAD"}, '"pack" or "spread"'),
        ({"max_retries": 2.5}, "max_retries=2"),
    ],
    ids=str,
)
def test_resources_of_the_wrong_kind_are_refused_with_what_to_write(fields, remedy):
    with pytest.raises(InvalidInput, match=re.escape(remedy)) as caught:
        Resources(**fields)
    assert caught.value.code == "pipeline.resources-invalid"


@pytest.mark.parametrize("option", [{"retry": 3}, {"cache": True}, {"on_error": "skipp"}], ids=str)
def test_what_is_no_policy_is_refused_when_written(graph, option):
    for make in (lambda: step(graph, "text", **option), lambda: Graph("", **option)):
        with pytest.raises(PipelineInvalid) as refused:
            make()
        assert refused.value.code == "pipeline.option-invalid"


def test_a_nodes_policies_are_those_of_its_pipeline_where_it_says_nothing():
    retry, timeout = Retry(3, first_delay_s=1), Timeout(total_s=2)
    graph = Graph("essay", retry=retry, timeout=timeout, on_error=Default("default"))
    step(graph, "as_the_pipeline", seconds=3)
    own = {"retry": Retry(1), "timeout": Timeout(total_s=4), "on_error": "fail"}
    step(graph, "as_it_says", seconds=3, raises=ValueError, **own)

    watched = watch(graph)

    assert watched.ended.outputs == {"as_the_pipeline": "default"}
    assert watched.statuses == {"as_the_pipeline": ["error"] * 3, "as_it_says": ["error"]}
    assert watched.failures == [("as_it_says", ValueError, 1)]


# --- Retry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        pytest.param(Retry(), [0.5, 1], id="as it is"),
        pytest.param(Retry(7, longest_delay_s=4), [0.5, 1, 2, 4, 4, 4], id="no longer than"),
        pytest.param(Retry(3, first_delay_s=9, longest_delay_s=1), [1, 1], id="shorter than first"),
    ],
)
def test_each_wait_is_twice_as_long_as_the_one_before(graph, retry, delays):
    begun = []

    @graph.node(retry=retry)
    async def fails():
        begun.append(asyncio.get_running_loop().time())
        raise ValueError

    watched = watch(graph)

    assert [after - before for before, after in itertools.pairwise(begun)] == delays
    assert watched.failures == [("fails", ValueError, len(delays) + 1)]


def test_a_node_is_called_until_it_gives_something_and_each_item_by_itself(graph):
    calls = []

    @graph.node(each=EACH, retry=Retry(5, first_delay_s=1))
    def flaky(number):
        calls.append(number)
        if calls.count(number) <= number:
            raise ConnectionError
        return number

    watched = watch(graph, {"numbers": [0, 1, 2]})

    assert watched.ended.outputs == {"flaky": [0, 1, 2]}
    assert [len(one) for one in watched.statuses.values()] == [1, 2, 3]
    assert watched.statuses["flaky[2]"] == ["error", "error", "ok"]
    assert watched.seconds == 1 + 2
    begun = [one for one in watched.records if type(one) is SpanStarted]
    attempts = [span.attributes.get("attempt") for span in begun]
    assert sorted(attempts, key=str) == [2, 2, 3, None, None, None]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        pytest.param(ConnectionResetError("cut"), 3, id="of a class it names"),
        pytest.param(ValueError("wrong"), 1, id="of another"),
        pytest.param(RubricInvalid("no such rubric"), 1, id="a person's mistake"),
        pytest.param(RunLimitReached("over", limit="tokens"), 1, id="the run's limit"),
    ],
)
def test_only_what_may_go_away_is_tried_again(graph, error, calls):
    on = (ConnectionError, InvalidInput, LimitReached)
    step(graph, "fails", raises=error, retry=Retry(3, first_delay_s=0, on=on))

    assert len(watch(graph).attempts["fails"]) == calls


# --- Timeout -------------------------------------------------------------------------------------


def timed_out(graph, **options):
    """Which limit ended the only node that fails, and when."""
    watched = watch(graph, **options)
    (failure,) = watched.ended.failures
    assert isinstance(failure.error, NodeTimedOut)
    return failure.error.limit, watched.seconds


def test_a_call_may_take_so_long_in_all_and_each_attempt_anew(graph):
    @graph.node(timeout=Timeout(total_s=2), retry=Retry(3, first_delay_s=1))
    async def slow(run):
        while True:
            await asyncio.sleep(0.25)
            run.beat()

    assert timed_out(graph) == ("total_s", 2 + 1 + 2 + 2 + 2)


async def gives_too_late():
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        return "done all the same"


async def raises_too_late():
    try:
        await asyncio.sleep(5)
    finally:
        await asyncio.sleep(0.5)
        raise ValueError("tidying up")


@pytest.mark.parametrize(("function", "seconds"), [(gives_too_late, 2), (raises_too_late, 2.5)])
def test_what_is_given_or_raised_as_time_is_up_comes_too_late(graph, function, seconds):
    graph.node(timeout=Timeout(total_s=2))(function)

    assert timed_out(graph) == ("total_s", seconds)


@pytest.mark.parametrize(
    ("timeout", "ended"),
    [(Timeout(idle_s=2), ("idle_s", 8)), (Timeout(idle_s=2, total_s=3), ("total_s", 3))],
)
def test_a_sign_of_life_gives_more_time_until_the_other_limit_is_reached(graph, timeout, ended):
    @graph.node(timeout=timeout)
    async def alive(run):
        for _ in range(4):
            await asyncio.sleep(1.5)
            run.beat()
        await asyncio.sleep(10)

    assert timed_out(graph) == ended


def test_a_node_is_not_idle_because_another_held_up_the_event_loop(graph):
    @graph.node(timeout=Timeout(idle_s=2))
    async def alive(run):
        await asyncio.sleep(1)
        run.beat()
        await asyncio.sleep(1.5)
        run.beat()
        return "done"

    @graph.node
    async def holds_up():
        await asyncio.sleep(1.5)
        asyncio.get_running_loop().jump(5)

    watched = watch(graph)
    assert not watched.ended.failures
    assert watched.ended.outputs["alive"] == "done"


def test_items_that_come_and_what_is_nested_and_ends_are_signs_of_life(graph):
    async def mapped(number):
        await asyncio.sleep(1.5)

    @graph.node(timeout=Timeout(idle_s=2))
    async def words(run):
        for number in range(2):
            await asyncio.sleep(1.5)
            yield number
        await run.map(mapped, [1, 2, 3], max_parallel=1)
        await asyncio.sleep(10)

    assert timed_out(graph) == ("idle_s", 5 * 1.5 + 2)


def asks_a_model(queue_s, reply_s):
    """A call of a model that waits so long on this side before it is sent."""

    async def asks(run):
        with run.pulse.doing("call"):
            await asyncio.sleep(queue_s)
            with run.pulse.doing("sent"):
                await asyncio.sleep(reply_s)
            await asyncio.sleep(queue_s)

    return asks


@pytest.mark.parametrize("nested", [False, True])
def test_a_call_that_waits_for_its_turn_is_not_idle_and_one_that_was_sent_is(graph, nested):
    @graph.node(timeout=Timeout(idle_s=2))
    async def asks(run):
        async def ask(queue_s, inner):
            await asks_a_model(queue_s, reply_s=1)(inner)

        async def mapped(run, queue_s):
            await ask(queue_s, run)

        if nested:
            await run.map(mapped, [5, 9])
        else:
            await ask(5, run)
            await ask(9, run)
        # One that hangs is found while others still wait.
        await asyncio.gather(asks_a_model(0, 100)(run), asks_a_model(100, 1)(run))

    waits_s = 19 if nested else 11 + 19
    assert timed_out(graph) == ("idle_s", waits_s + 2)


def test_a_timeout_of_a_node_that_nests_ends_what_is_nested(graph):
    sub = Graph("sub")
    step(sub, "slow", seconds=10)
    nests(graph, "outer", sub, timeout=Timeout(total_s=2), retry=Retry(2, first_delay_s=0))

    watched = watch(graph)

    assert watched.failures == [("outer", NodeTimedOut, 2)]
    assert watched.statuses == {"outer": ["error"] * 2, "outer/sub/slow": ["cancelled"] * 2}
    assert watched.skips == {"outer/sub/slow": "outer"}
    assert watched.seconds == 4
    assert watched.tasks_left == set()


# --- Concurrency ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "max_parallel", "allowed"),
    [(1, None, 1), (2, 3, 2), (5, 3, 3), (20, None, 10)],
)
def test_so_many_items_are_under_way_and_no_more(graph, limit, max_parallel, allowed):
    under_way = UnderWay()
    works = lambda _: under_way.spend()  # noqa: E731
    step(graph, "items", each=EACH, gives=works, concurrency=Concurrency(limit))

    watched = watch(graph, {"numbers": [*range(10)]}, max_parallel=max_parallel)

    assert under_way.most == allowed
    assert watched.seconds == math.ceil(10 / allowed)


def test_a_pipelines_concurrency_is_each_nodes_own():
    graph = Graph("essay", concurrency=Concurrency(2))
    left, right = UnderWay(), UnderWay()
    step(graph, "left", each=EACH, gives=lambda _: left.spend())
    step(graph, "right", each=EACH, gives=lambda _: right.spend())

    watched = watch(graph, {"numbers": [*range(6)]})

    assert (left.most, right.most) == (2, 2)
    assert watched.seconds == 3


def test_a_call_that_fails_or_is_left_behind_makes_way_for_the_next(graph):
    @graph.node(each=EACH, concurrency=Concurrency(1), timeout=Timeout(total_s=1), on_error="skip")
    async def items(number):
        if number % 2:
            await ignores_its_cancellation()
        raise ValueError

    watched = watch(graph, {"numbers": [*range(6)]})

    assert len(watched.skips) == 6
    assert watched.seconds == 3 * (1 + 1)  # a timeout and a grace


# --- what stands for it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "default", "each", "whose"),
    [
        pytest.param(str, 5, {}, "the node's", id="another type"),
        pytest.param(str, ["a"], EACH, "the node's", id="a list for an item"),
        pytest.param(object, object(), {}, "the pipeline's", id="what no journal takes"),
    ],
)
def test_a_default_that_the_node_could_not_give_is_refused_before_the_run(
    annotation, default, each, whose
):
    own = {"on_error": Default(default)}
    graph = Graph("essay", **(own if whose == "the pipeline's" else {}))

    async def text(number): ...

    text.__annotations__["return"] = annotation
    graph.node(each=each, **(own if whose == "the node's" else {}))(text)

    with pytest.raises(PipelineInvalid) as caught:
        graph.check()

    assert caught.value.code == "pipeline.default-does-not-fit"
    assert caught.value.line == graph.nodes["text"].line


def test_a_default_may_be_nothing(graph):
    step(graph, "fails", raises=ValueError, on_error=Default(None))

    watched = watch(graph)

    assert watched.ended.outputs == {"fails": None}
    assert watched.recorded == {"fails"}


def test_a_misspelt_option_is_named_with_the_nearest():
    with pytest.raises(TypeError, match="no option 'retrys'; did you mean 'retry'"):
        Graph("g").node(retrys=3)(lambda: 1)
    with pytest.raises(TypeError, match="no option 'concurency'; did you mean 'concurrency'"):
        Graph("g", concurency=3)
