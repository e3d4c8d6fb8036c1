"""Policies: how often a node is called, how long it may take, how many at once, what stands for it.

What comes of them when a call goes wrong is in `test_failure_table`.
"""

import asyncio
import itertools
import math
import threading
from collections.abc import AsyncIterator

import pytest
from watched import StuckThreads, watch

from harness.errors import (
    InvalidInput,
    LimitReached,
    NodeTimedOut,
    PipelineInvalid,
    RubricInvalid,
    RunLimitReached,
)
from harness.graph import (
    Cache,
    Concurrency,
    Default,
    Graph,
    Policies,
    Retry,
    Skipped,
    Timeout,
)
from harness.trace import SpanEnded


@pytest.fixture
def graph():
    return Graph("essay")


# --- as they are written -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: Retry(0), "the first call is one of them", id="no attempts"),
        pytest.param(lambda: Retry(first_delay_s=-1), "first_delay_s=-1", id="delay"),
        pytest.param(lambda: Retry(longest_delay_s=math.nan), "longest_delay_s=nan", id="nan"),
        pytest.param(lambda: Timeout(total_s=0), "total_s=0", id="no time"),
        pytest.param(lambda: Timeout(idle_s=-1), "idle_s=-1", id="less than none"),
        pytest.param(lambda: Concurrency(0), "give 1 or more", id="no call"),
        pytest.param(lambda: Cache(max_age_s=-1), "max_age_s=-1", id="age"),
    ],
)
def test_numbers_out_of_range_are_refused_when_written(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        pytest.param("retry", 3, r"retry=3 .* write one, such as retry=Retry\(3\)", id="number"),
        pytest.param("retry", Retry, r"retry=<class .* write .* retry=Retry\(3\)", id="class"),
        pytest.param("timeout", 30, r"timeout=30 .* timeout=Timeout\(total_s=30\)", id="seconds"),
        pytest.param("cache", True, r"cache=True .* cache=Cache\(\)", id="flag"),
        pytest.param("concurrency", 0, r"concurrency=0 .*=Concurrency\(4\)", id="nothing"),
        pytest.param("on_error", "skipp", "on_error='skipp' .* \"skip\"", id="misspelt"),
        pytest.param("on_error", {"a": 1}, r"on_error={'a': 1} .* Default", id="value"),
    ],
)
def test_what_is_no_policy_is_refused_when_written(graph, option, value, message):
    with pytest.raises(PipelineInvalid, match=f"node 'text': {message}") as refused:

        @graph.node(**{option: value})
        def text(): ...

    assert refused.value.line is not None
    with pytest.raises(PipelineInvalid, match=f"pipeline 'other': {message}"):
        Graph("other", **{option: value})


def test_the_name_of_one_role_is_that_role(graph):
    @graph.node(models="producer")
    def text(): ...

    assert graph.nodes["text"].policies.models == ("producer",)


def test_what_a_node_says_goes_before_what_the_pipeline_says():
    own = Policies(retry=Retry(1), on_error="skip", models=())
    pipeline = Policies(
        retry=Retry(5),
        timeout=Timeout(total_s=1),
        cache=Cache(),
        concurrency=Concurrency(2),
        on_error="fail",
        models=("producer",),
    )

    assert own.over(pipeline) == Policies(
        retry=Retry(1),
        timeout=Timeout(total_s=1),
        cache=Cache(),
        concurrency=Concurrency(2),
        on_error="skip",
        models=(),
    )
    assert Policies().over(pipeline) == pipeline


def test_a_nodes_policies_are_those_of_its_pipeline_where_it_says_nothing():
    graph = Graph(
        "essay",
        retry=Retry(3, first_delay_s=1),
        timeout=Timeout(total_s=2),
        on_error=Default("default"),
    )

    @graph.node
    async def as_the_pipeline() -> str:
        await asyncio.sleep(3)
        return ""

    @graph.node(retry=Retry(1), timeout=Timeout(total_s=4), on_error="fail")
    async def as_it_says() -> str:
        await asyncio.sleep(3)
        raise ValueError

    watched = watch(graph)

    assert watched.ended.outputs == {"as_the_pipeline": "default"}
    assert watched.statuses == {"as_the_pipeline": ["error"] * 3, "as_it_says": ["error"]}
    assert watched.failures == [("as_it_says", ValueError, 1)]


def test_nodes_that_are_included_keep_the_policies_of_their_pipeline():
    left = Graph("left", on_error="skip", retry=Retry(2, first_delay_s=0))
    graph = Graph("essay", retry=Retry(5))

    @left.node
    async def text():
        raise ValueError

    graph.include(left, prefix="left")

    watched = watch(graph)

    assert watched.statuses == {"left_text": ["error"] * 2}
    assert isinstance(watched.ended.outputs["left_text"], Skipped)


# --- Retry ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retry", "delays"),
    [
        pytest.param(Retry(1), [], id="one attempt"),
        pytest.param(Retry(), [0.5, 1], id="as it is"),
        pytest.param(Retry(7, longest_delay_s=4), [0.5, 1, 2, 4, 4, 4], id="no longer than"),
        pytest.param(Retry(3, first_delay_s=0), [0, 0], id="at once"),
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


def test_delays_stay_finite_however_many_attempts_there_are():
    retry = Retry(5000, longest_delay_s=7)

    assert retry.delay_s(ValueError(), attempt=4999) == 7
    assert retry.delay_s(ValueError(), attempt=5000) is None


def test_a_node_is_called_until_it_gives_something(graph):
    attempts = itertools.count(1)

    @graph.node(retry=Retry(5))
    def flaky():
        attempt = next(attempts)
        if attempt < 3:
            raise ConnectionError
        return attempt

    watched = watch(graph)

    assert watched.ended.outputs == {"flaky": 3}
    assert watched.statuses == {"flaky": ["error", "error", "ok"]}
    numbers = [one.attributes.get("attempt") for one in watched.records if type(one) is SpanEnded]
    assert numbers == [None, 2, 3]


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        pytest.param(ConnectionResetError("cut"), 3, id="of a class it names"),
        pytest.param(ExceptionGroup("", [ConnectionError()]), 3, id="in a group"),
        pytest.param(ValueError("wrong"), 1, id="of another"),
        pytest.param(RubricInvalid("no such rubric"), 1, id="a person's mistake"),
        pytest.param(LimitReached("over", limit="tokens"), 1, id="a loop's limit"),
        pytest.param(RunLimitReached("over", limit="tokens"), 1, id="the run's limit"),
    ],
)
def test_only_what_may_go_away_is_tried_again(graph, error, calls):
    on = (ConnectionError, InvalidInput, LimitReached)

    @graph.node(retry=Retry(3, first_delay_s=0, on=on))
    async def fails():
        raise error

    assert len(watch(graph).attempts["fails"]) == calls


def test_each_item_is_tried_again_by_itself(graph):
    calls = []

    @graph.node(each={"number": "numbers"}, retry=Retry(2, first_delay_s=1))
    async def items(number):
        calls.append(number)
        if number and calls.count(number) < 2:
            raise ValueError
        return number

    watched = watch(graph, {"numbers": [0, 1, 2]})

    assert watched.ended.outputs == {"items": [0, 1, 2]}
    assert sorted(calls) == [0, 1, 1, 2, 2]
    assert watched.seconds == 1


# --- Timeout -------------------------------------------------------------------------------------


def ended_in(graph, **options):
    watched = watch(graph, **options)
    (failure,) = watched.ended.failures
    return type(failure.error), str(failure.error), watched.seconds


def test_a_call_may_take_so_long_in_all_and_each_attempt_anew(graph):
    @graph.node(timeout=Timeout(total_s=2), retry=Retry(3, first_delay_s=1))
    async def slow(run):
        while True:
            await asyncio.sleep(0.25)
            run.beat()

    kind, said, seconds = ended_in(graph)

    assert (kind, said) == (NodeTimedOut, "took longer than total_s = 2 s")
    assert seconds == 2 + 1 + 2 + 2 + 2


def test_a_call_in_time_is_not_held_up(graph):
    @graph.node(timeout=Timeout(total_s=2, idle_s=2))
    async def quick():
        await asyncio.sleep(1.875)
        return "in time"

    watched = watch(graph)

    assert watched.ended.outputs == {"quick": "in time"}
    assert watched.seconds == 1.875


def test_what_is_given_as_time_is_up_comes_too_late(graph):
    @graph.node(timeout=Timeout(total_s=2))
    async def late():
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            return "done all the same"

    kind, _, seconds = ended_in(graph)

    assert (kind, seconds) == (NodeTimedOut, 2)


def test_what_is_raised_as_time_is_up_is_not_the_failure(graph):
    @graph.node(timeout=Timeout(total_s=2))
    async def late():
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0.5)
            raise ValueError("tidying up")

    kind, _, seconds = ended_in(graph)

    assert (kind, seconds) == (NodeTimedOut, 2.5)


@pytest.mark.parametrize("function", ["async", "plain"])
def test_a_sign_of_life_gives_more_time(graph, function):
    beats = threading.Event()

    with StuckThreads() as stuck:

        @graph.node(timeout=Timeout(idle_s=2))
        async def alive(run):
            for _ in range(4):
                await asyncio.sleep(1.5)
                run.beat()
            await asyncio.sleep(10)

        @graph.node(timeout=Timeout(idle_s=2))
        def plain(run):
            run.beat()
            beats.set()
            stuck.wait()

        graph.nodes.pop("plain" if function == "async" else "alive")
        kind, said, seconds = ended_in(graph, runs=stuck.run)

    assert (kind, said) == (NodeTimedOut, "showed no sign of life for idle_s = 2 s")
    assert seconds == (4 * 1.5 + 2 if function == "async" else 2)
    assert beats.is_set() == (function == "plain")


def test_the_sooner_of_two_limits_counts(graph):
    @graph.node(timeout=Timeout(total_s=3, idle_s=2), name="alive")
    async def _(run):
        while True:
            await asyncio.sleep(1)
            run.beat()

    assert ended_in(graph)[1:] == ("took longer than total_s = 3 s", 3)


def test_items_that_come_are_signs_of_life(graph):
    @graph.node(timeout=Timeout(idle_s=2))
    async def words():
        for number in range(5):
            await asyncio.sleep(1.5)
            yield number
        await asyncio.sleep(10)

    assert ended_in(graph)[1:] == ("showed no sign of life for idle_s = 2 s", 5 * 1.5 + 2)


def test_what_is_nested_gives_signs_of_life_when_it_ends(graph):
    sub = Graph("sub")

    @sub.node
    async def first():
        await asyncio.sleep(1.5)

    @sub.node
    async def second(first):
        await asyncio.sleep(1.5)

    async def step(number):
        await asyncio.sleep(1.5)

    @graph.node(timeout=Timeout(idle_s=2))
    async def outer(run):
        await run.call(sub, {})
        await run.map(step, [1, 2, 3], parallel=1)
        await asyncio.sleep(10)

    assert ended_in(graph)[1:] == ("showed no sign of life for idle_s = 2 s", 5 * 1.5 + 2)


def test_a_timeout_of_nothing_limits_nothing(graph):
    @graph.node(timeout=Timeout())
    async def slow():
        await asyncio.sleep(1e6)

    assert watch(graph).ended.status == "finished"


def test_a_timeout_of_a_node_that_nests_ends_what_is_nested(graph):
    sub = Graph("sub")

    @sub.node
    async def slow():
        await asyncio.sleep(10)

    @graph.node(timeout=Timeout(total_s=2), retry=Retry(2, first_delay_s=0))
    async def outer(run):
        await run.call(sub, {})

    watched = watch(graph)

    assert watched.failures == [("outer", NodeTimedOut, 2)]
    assert watched.statuses == {"outer": ["error"] * 2, "outer/sub/slow": ["cancelled"] * 2}
    assert watched.skips == {"outer/sub/slow": "outer"}
    assert watched.seconds == 4
    assert watched.tasks_left == set()


# --- Concurrency ---------------------------------------------------------------------------------


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


@pytest.mark.parametrize("limit", [1, 2, 5, 20])
@pytest.mark.parametrize("parallel_calls", [None, 3])
def test_so_many_items_are_under_way_and_no_more(graph, limit, parallel_calls):
    under_way = UnderWay()

    @graph.node(each={"number": "numbers"}, concurrency=Concurrency(limit))
    async def items(number):
        await under_way.spend()
        return number

    watched = watch(graph, {"numbers": [*range(10)]}, parallel_calls=parallel_calls)

    allowed = min(limit, parallel_calls or 10, 10)
    assert under_way.most == allowed
    assert watched.ended.outputs["items"] == [*range(10)]
    assert watched.seconds == math.ceil(10 / allowed)


def test_a_pipelines_concurrency_is_each_nodes_own():
    graph = Graph("essay", concurrency=Concurrency(2))
    left, right = UnderWay(), UnderWay()

    @graph.node(each={"number": "numbers"}, name="left")
    async def _(number):
        await left.spend()

    @graph.node(each={"number": "numbers"}, name="right")
    async def _(number):
        await right.spend()

    watched = watch(graph, {"numbers": [*range(6)]})

    assert (left.most, right.most) == (2, 2)
    assert watched.seconds == 3


def test_a_call_that_fails_or_is_left_behind_makes_way_for_the_next(graph):
    @graph.node(
        each={"number": "numbers"},
        concurrency=Concurrency(1),
        timeout=Timeout(total_s=1),
        on_error="skip",
    )
    async def items(number):
        while number % 2:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                continue
        raise ValueError

    watched = watch(graph, {"numbers": [*range(6)]})

    assert len(watched.skips) == 6
    assert watched.seconds == 3 * (1 + 1)  # a timeout and a grace


# --- what stands for it --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "default", "is_mapped"),
    [
        pytest.param(str, 5, False, id="another type"),
        pytest.param(list[str], ["a", 5], False, id="another type inside"),
        pytest.param(str, ["a"], True, id="a list for an item"),
        pytest.param(object, object(), False, id="what no journal takes"),
    ],
)
@pytest.mark.parametrize("whose", ["the node's", "the pipeline's"])
def test_a_default_that_the_node_could_not_give_is_refused_before_the_run(
    annotation, default, is_mapped, whose
):
    options = {"on_error": Default(default)}
    graph = Graph("essay", **(options if whose == "the pipeline's" else {}))

    async def text(number): ...

    text.__annotations__["return"] = annotation
    graph.node(
        each={"number": "numbers"} if is_mapped else {},
        **(options if whose == "the node's" else {}),
    )(text)

    with pytest.raises(PipelineInvalid, match=r"node 'text' has on_error=Default\(") as caught:
        graph.check()

    assert caught.value.line == graph.nodes["text"].line


def test_a_default_of_a_generating_node_is_a_list_of_its_items(graph):
    @graph.node(on_error=Default("one"))
    async def words() -> AsyncIterator[str]:
        yield "one"

    with pytest.raises(PipelineInvalid, match=r"on_error=Default\('one'\).*list\[str\]"):
        graph.check()


@pytest.mark.parametrize("default", [None, False, 0, "", []], ids=repr)
def test_a_default_may_be_nothing(graph, default):
    @graph.node(on_error=Default(default))
    async def fails():
        raise ValueError

    watched = watch(graph)

    assert watched.ended.outputs == {"fails": default}
    assert watched.recorded == {"fails"}


def test_on_error_fail_overrides_a_pipeline_that_leaves_out():
    graph = Graph("essay", on_error="skip")

    @graph.node(on_error="fail")
    async def fails():
        raise ValueError

    assert watch(graph).ended.status == "failed"
