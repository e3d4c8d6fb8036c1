"""Async generators as nodes: what takes their items as they come, and what waits for all."""

import asyncio
from collections.abc import AsyncIterator

import orjson
import pytest
from graph_runs import Calls, arrows, outputs_of, run, run_recorded

from harness.errors import PipelineInvalid
from harness.graph import Default, Graph, Skipped
from harness.trace import NodeOutput, SpanStarted


@pytest.fixture
def graph():
    return Graph("streaming")


@pytest.fixture
def calls():
    return Calls()


def ticking(graph, calls, *, count=3, fails_at=None, options=None):
    """Adds a node `ticks` that yields a number every second."""

    @graph.node(**(options or {}))
    async def ticks() -> AsyncIterator[int]:
        for number in range(count):
            await calls.take(f"tick {number}", 1)
            if number == fails_at:
                raise RuntimeError("out of ticks")
            yield number


def test_items_of_a_generator_go_on_as_they_come_and_the_list_when_it_is_over(graph, calls):
    ticking(graph, calls)

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> str:
        await calls.take(f"shown {tick}", 10)
        return str(tick)

    @graph.node
    async def total(ticks: list[int]) -> int:
        calls.note("total")
        return sum(ticks)

    outputs = outputs_of(graph)

    assert outputs == {"ticks": [0, 1, 2], "shown": ["0", "1", "2"], "total": 3}
    assert calls.begun_s == {
        **{f"tick {n}": n for n in range(3)},
        **{f"shown {n}": n + 1 for n in range(3)},
        "total": 3,
    }


def test_a_generator_is_mapped_over_by_two_and_waits_for_neither(graph, calls):
    ticking(graph, calls)

    @graph.node(each={"tick": "ticks"})
    async def slow(tick: int) -> int:
        await calls.take(f"slow {tick}", 100)
        return tick

    @graph.node(each={"tick": "ticks", "letter": "letters"})
    async def quick(tick: int, letter: str) -> str:
        calls.note(f"quick {tick}")
        return f"{letter}{tick}"

    outputs = outputs_of(graph, letters=["a", "b", "c"])

    assert outputs["slow"] == [0, 1, 2]
    assert outputs["quick"] == ["a0", "b1", "c2"]
    assert [calls.begun_s[f"{name} {n}"] for name in ("slow", "quick") for n in range(3)] == [
        *(1, 2, 3),
        *(1, 2, 3),
    ]


def test_a_generator_that_yields_nothing_gives_an_empty_list(graph, calls):
    ticking(graph, calls, count=0)

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> int:
        return tick

    @graph.node
    async def total(shown: list[int], ticks: list[int]) -> list[int]:
        return [len(shown), len(ticks)]

    assert outputs_of(graph) == {"ticks": [], "shown": [], "total": [0, 0]}


def test_a_mapped_generator_gives_a_list_per_item(graph, calls):
    @graph.node(each={"count": "counts"})
    async def spelled(count: int) -> AsyncIterator[int]:
        for number in range(count):
            await asyncio.sleep(1)
            yield number

    @graph.node(each={"one": "spelled"})
    async def totals(one: list[int]) -> int:
        calls.note(f"total of {len(one)}")
        return sum(one)

    assert outputs_of(graph, counts=[3, 0, 2]) == {
        "spelled": [[0, 1, 2], [], [0, 1]],
        "totals": [3, 0, 1],
    }
    assert calls.begun_s == {"total of 0": 0, "total of 2": 2, "total of 3": 3}


def test_items_are_recorded_one_by_one_before_they_go_on_and_then_as_a_whole(graph, calls):
    ticking(graph, calls, count=2)

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> int:
        return tick

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
    assert [one for one in story if one[0] == "ticks"] == [
        ("ticks", 0, 0),
        ("ticks", 1, 1),
        ("ticks", None, [0, 1]),
    ]


def test_what_a_generator_gave_goes_on_although_it_fails_later(graph, calls):
    ticking(graph, calls, fails_at=2)

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> int:
        await calls.take(f"shown {tick}", 10)
        return tick

    @graph.node(each={"one": "shown"})
    async def again(one: int) -> int:
        calls.note(f"again {one}")
        return one

    @graph.node
    async def total(again: list[int]) -> int:
        return sum(again)

    ended, records = run_recorded(graph)

    assert ended.outputs == {}
    assert [(one.node, str(one.error)) for one in ended.failures] == [("ticks", "out of ticks")]
    assert {(one.node, one.because_of) for one in ended.skips} == {
        (name, "ticks") for name in ("shown", "again", "total")
    }
    # What was begun is brought to its end, since a further part of the run can use it.
    recorded = [(one.node, one.item) for one in records if isinstance(one, NodeOutput)]
    assert set(recorded) == {
        (name, item) for name in ("ticks", "shown", "again") for item in (0, 1)
    }


@pytest.mark.parametrize(
    ("on_error", "shown"),
    [
        pytest.param(Default([7]), ["0", "1", "7"], id="an item"),
        pytest.param(Default([]), ["0", "1"], id="nothing"),
        pytest.param(Default([5, 6, 7]), ["0", "1", "5", "6", "7"], id="more items"),
    ],
)
def test_the_default_of_a_generator_follows_what_it_gave(graph, calls, on_error, shown):
    # Others have gone on with that.
    ticking(graph, calls, fails_at=2, options={"on_error": on_error})

    @graph.node(each={"tick": "ticks"}, name="shown")
    async def show(tick: int) -> str:
        return str(tick)

    @graph.node
    async def count(ticks: list[int], shown: list[str]) -> list[int]:
        return [len(ticks), len(shown)]

    outputs = outputs_of(graph)

    assert outputs["ticks"] == [*map(int, shown)]
    assert outputs["shown"] == shown
    assert outputs["count"] == [len(shown), len(shown)]


def test_a_generator_that_failed_and_may_be_left_out_takes_its_followers_with_it(graph, calls):
    ticking(graph, calls, fails_at=1, options={"on_error": "skip"})

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> int:
        return tick

    @graph.node
    async def told(shown: list[int] | Skipped) -> str:
        return shown.reason if isinstance(shown, Skipped) else "all of it"

    ended = run(graph)

    assert ended.status == "finished"
    assert isinstance(ended.outputs["ticks"], Skipped)
    assert ended.outputs["told"] == "'ticks' was skipped"


def test_followers_of_a_generator_stand_beside_it_in_the_trace(graph, calls):
    ticking(graph, calls, count=2)

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> int:
        return tick

    @graph.node
    async def total(ticks: list[int]) -> int:
        return sum(ticks)

    _, records = run_recorded(graph)

    spans = {one.attributes["label"]: one for one in records if isinstance(one, SpanStarted)}
    assert {name: span.parent for name, span in spans.items()} == dict.fromkeys(spans)
    # An arrow is from the end of a span, and that is still to come.
    sources = {target: source for source, target in arrows(records)}
    assert sources["total"] == "ticks"
    assert "shown[0]" not in sources


# --- a stream beside another list ------------------------------------------------------------


def assert_differing(ended, message):
    """Checks that a run failed for two lists, at the node that walks them."""
    (failure,) = ended.failures
    assert isinstance(failure.error, PipelineInvalid)
    assert message in str(failure.error)
    assert failure.node == "pairs"
    assert "pairs" not in ended.outputs


@pytest.mark.parametrize(
    ("letters", "message", "pairs"),
    [
        pytest.param(["a"], "'ticks' has 3, 'letters' has 1", 1, id="the list is shorter"),
        pytest.param(list("abcde"), "'ticks' has 3, 'letters' has 5", 3, id="the list is longer"),
        pytest.param([], "'ticks' has 3, 'letters' has 0", 0, id="the list is empty"),
    ],
)
def test_a_stream_that_differs_from_a_list_fails_when_that_is_known(
    graph, calls, letters, message, pairs
):
    ticking(graph, calls)

    @graph.node(name="pairs", each={"tick": "ticks", "letter": "letters"})
    async def pair(tick: int, letter: str) -> str:
        calls.note("pair")
        return f"{letter}{tick}"

    @graph.node
    async def total(ticks: list[int]) -> int:
        return sum(ticks)

    ended = run(graph, {"letters": letters})

    assert_differing(ended, message)
    assert ended.outputs["total"] == 3
    assert calls.counts["pair"] == pairs


def test_two_streams_that_differ_fail(graph, calls):
    ticking(graph, calls)

    @graph.node
    async def others() -> AsyncIterator[int]:
        yield 1

    @graph.node(name="pairs", each={"a": "ticks", "b": "others"})
    async def pair(a: int, b: int) -> int:
        await asyncio.sleep(100)
        return a + b

    assert_differing(run(graph), "'ticks' has 3, 'others' has 1")
