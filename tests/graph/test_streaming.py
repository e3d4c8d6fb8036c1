"""Async generators as nodes: what takes their items as they come, and what waits for all."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from graph_runs import Calls, arrows, outputs_of, run, run_recorded, step

from harness.graph import Graph, Retry
from harness.trace import NodeOutput, SpanStarted

EACH = {"tick": "ticks"}


@pytest.fixture
def graph():
    return Graph("streaming")


@pytest.fixture
def calls():
    return Calls()


def ticking(graph, *, name="ticks", count=3, fails_at=None, **options):
    """Adds a node that yields a number every second."""

    @graph.node(name=name, **options)
    async def ticks() -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(1)
            if number == fails_at:
                raise RuntimeError("out of ticks")
            yield number


def test_items_of_a_generator_go_on_as_they_come_and_the_list_when_it_is_over(graph, calls):
    ticking(graph)
    step(graph, "slow", each=EACH, seconds=100, calls=calls)
    letters = {"letter": "letters"}
    step(graph, "quick", each=EACH | letters, calls=calls, gives=lambda n, letter: f"{letter}{n}")
    step(graph, "total", "ticks", calls=calls, gives=sum)

    outputs = outputs_of(graph, letters=["a", "b", "c"])

    assert outputs["ticks"] == [0, 1, 2]
    assert outputs["quick"] == ["a0", "b1", "c2"]
    assert calls.begun_s == {
        **{f"slow {n}": n + 1 for n in range(3)},
        **{f"quick {n} {'abc'[n]}": n + 1 for n in range(3)},
        "total [0, 1, 2]": 3,
    }


def test_a_generator_that_yields_nothing_gives_an_empty_list(graph):
    ticking(graph, count=0)
    step(graph, "shown", each=EACH)
    step(graph, "total", "shown", "ticks", gives=lambda *lists: [*lists])

    assert outputs_of(graph) == {"ticks": [], "shown": [], "total": [[], []]}


def test_items_are_recorded_one_by_one_before_they_go_on_and_then_as_a_whole(graph):
    ticking(graph, count=2)
    step(graph, "shown", each=EACH)
    step(graph, "total", "ticks")

    _, records = run_recorded(graph)

    story = [
        (one.node, one.item, orjson.loads(orjson.dumps(one.value)))
        if isinstance(one, NodeOutput)
        else one.attributes["label"]
        for one in records
        if isinstance(one, NodeOutput | SpanStarted)
    ]
    assert story[:2] == ["ticks", ("ticks", 0, 0)]
    assert story.index(("ticks", 1, 1)) < story.index("shown[1]")
    of_ticks = [one for one in story if one[0] == "ticks"]
    assert of_ticks == [("ticks", 0, 0), ("ticks", 1, 1), ("ticks", None, [0, 1])]
    # Followers stand beside it, the first without an arrow: that is from a span's end, yet to come.
    spans = [one for one in records if isinstance(one, SpanStarted)]
    assert {one.parent for one in spans} == {None}
    sources = {target: source for source, target in arrows(records)}
    assert sources["total"] == "ticks"
    assert "shown[0]" not in sources


def test_what_a_generator_gave_goes_on_although_it_fails_later(graph):
    ticking(graph, fails_at=2)
    step(graph, "shown", each=EACH, seconds=10)
    step(graph, "again", each={"one": "shown"})
    step(graph, "total", "again")

    ended, records = run_recorded(graph)

    assert ended.outputs == {}
    assert [(one.node, type(one.error)) for one in ended.failures] == [("ticks", RuntimeError)]
    skips = {(one.node, one.because_of) for one in ended.skips}
    assert skips == {(name, "ticks") for name in ("shown", "again", "total")}
    # What was begun is brought to its end, since a further part of the run can use it.
    recorded = {(one.node, one.item) for one in records if isinstance(one, NodeOutput)}
    assert recorded == {(name, item) for name in ("ticks", "shown", "again") for item in (0, 1)}


@pytest.mark.parametrize(("fails_at", "attempts", "outputs"), [(0, 2, [0, 1]), (1, 1, None)])
def test_a_generator_is_tried_again_until_it_has_given_an_item(graph, fails_at, attempts, outputs):
    begun = []

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def ticks() -> AsyncIterator[int]:
        begun.append("once")
        for number in range(2):
            if len(begun) == 1 and number == fails_at:
                raise RuntimeError("out of ticks")
            yield number

    assert (run(graph).outputs.get("ticks"), len(begun)) == (outputs, attempts)


@pytest.mark.parametrize(
    ("letters", "pairs"),
    [
        pytest.param(["a"], 1, id="shorter"),
        pytest.param(list("abcde"), 3, id="longer"),
        pytest.param([], 0, id="empty"),
        pytest.param(None, 1, id="a stream"),
    ],
)
def test_a_stream_that_differs_from_another_list_fails_when_that_is_known(
    graph, calls, letters, pairs
):
    ticking(graph)
    if letters is None:
        ticking(graph, name="letters", count=1)
    each = EACH | {"letter": "letters"}
    step(graph, "pairs", each=each, seconds=100, calls=calls)
    step(graph, "total", "ticks", gives=sum)

    ended = run(graph, {} if letters is None else {"letters": letters})

    (failure,) = ended.failures
    assert (failure.node, failure.error.code) == ("pairs", "pipeline.lengths-differ")
    assert "pairs" not in ended.outputs
    assert ended.outputs["total"] == 3
    assert sum(calls.counts.values()) == pairs
