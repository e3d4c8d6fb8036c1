"""Graphs and maps called within a node: one run, one record."""

import asyncio
import gc
import weakref

import pytest
from graph_runs import Calls, UnderWay, nests, outputs_of, run, run_recorded, step

from harness.graph import Graph, Retry
from harness.trace import NodeOutput, SpanStarted


@pytest.fixture
def graph():
    return Graph("outer")


@pytest.fixture
def brief():
    """A graph of three nodes, one of them mapped."""
    brief = Graph("brief")

    @brief.node
    async def topics(text: str, most: int = 2) -> list[str]:
        return text.split()[:most]

    step(brief, "findings", each={"topic": "topics"}, seconds=1, gives=str.upper)
    step(brief, "answer", "findings", gives=" ".join)
    return brief


def spans_of(records):
    return {one.attributes["label"]: one for one in records if isinstance(one, SpanStarted)}


def recorded(records):
    outputs = [one for one in records if isinstance(one, NodeOutput)]
    return {one.node if one.item is None else f"{one.node}[{one.item}]" for one in outputs}


# --- call ----------------------------------------------------------------------------------------


def test_what_is_nested_is_recorded_under_the_call_and_its_spans_are_inside(graph, brief):
    @graph.node(each={"text": "texts"})
    async def page(run, text: str) -> str:
        outputs = await run.call(brief, {"text": text})
        assert list(outputs) == ["topics", "findings", "answer"]
        return outputs["answer"]

    step(graph, "other", each={"text": "texts"}, seconds=0.3)

    ended, records = run_recorded(graph, {"texts": ["a b c", "d"]}, max_parallel=2)

    assert ended.outputs["page"] == ["A B", "D"]
    nested = {"topics", "findings[0]", "answer"}
    assert recorded(records) == {
        *("page[0]", "page[1]", "other[0]", "other[1]", "page[0]/brief/findings[1]"),
        *(f"page[{n}]/brief/{name}" for n in (0, 1) for name in nested),
    }
    spans = spans_of(records)
    for label, span in spans.items():
        caller = label.partition("/")[0] if "/" in label else None
        assert span.parent == (caller and spans[caller].id), label


def test_further_calls_of_one_graph_are_numbered_in_each_node_call(graph, brief):
    @graph.node(each={"text": "texts"})
    async def page(run, text: str) -> list[str]:
        calls = (run.call(brief, {"text": f"{text}{n}"}) for n in range(3))
        return [one["answer"] for one in await asyncio.gather(*calls)]

    ended, records = run_recorded(graph, {"texts": ["a", "b"]})

    assert ended.outputs["page"] == [["A0", "A1", "A2"], ["B0", "B1", "B2"]]
    prefixes = {label.rpartition("/")[0] for label in recorded(records)} - {""}
    assert prefixes == {f"page[{n}]/brief{number}" for n in (0, 1) for number in ("", "#2", "#3")}


def test_a_graph_may_call_itself_for_something_smaller(graph):
    @graph.node
    async def total(run, numbers: list[int]) -> int:
        if len(numbers) < 2:
            return sum(numbers)
        half = len(numbers) // 2
        parts = (numbers[:half], numbers[half:])
        calls = (run.call(graph, {"numbers": part}) for part in parts)
        return sum(one["total"] for one in await asyncio.gather(*calls))

    ended = run(graph, {"numbers": [*range(20)]}, max_parallel=1)

    assert ended.outputs == {"total": sum(range(20))}


def test_inputs_of_a_nested_graph_are_checked_before_it_begins(graph, brief):
    nests(graph, "page", brief, inputs={"text": 3})

    ended, records = run_recorded(graph)

    (failure,) = ended.failures
    assert failure.error.code == "pipeline.input-invalid"
    assert list(spans_of(records)) == ["page"]


# --- map -----------------------------------------------------------------------------------------


def test_a_node_maps_a_function_over_what_it_finds(graph):
    calls = Calls()

    async def wait(one: int) -> str:
        await calls.take(f"wait {one}", one)
        return f"{one} s"

    def items(text: str) -> str:
        return text.upper()

    @graph.node
    async def page(run, seconds: list[int]) -> list[str]:
        return await run.map(items, await run.map(wait, seconds))

    ended, records = run_recorded(graph, {"seconds": [3, 1, 2]})

    assert ended.outputs["page"] == ["3 S", "1 S", "2 S"]
    assert set(calls.begun_s.values()) == {0}
    assert recorded(records) == {
        "page", *(f"page/{name}[{n}]" for name in ("wait", "items") for n in range(3)),
    }  # fmt: skip
    spans = spans_of(records)
    assert {spans[f"page/wait[{n}]"].parent for n in range(3)} == {spans["page"].id}


def test_maps_are_numbered_named_and_limited(graph):
    calls = Calls()

    async def work(one: int) -> int:
        await calls.take(f"{one}", 1)
        return one

    @graph.node
    async def page(run) -> list[int]:
        first = await run.map(work, range(6), max_parallel=2)
        second = await run.map(work, first, name="again")
        third = await run.map(lambda one: one + 1, second, name="more")
        return await run.map(work, third, max_parallel=1)

    ended, records = run_recorded(graph)

    assert ended.outputs["page"] == [1, 2, 3, 4, 5, 6]
    assert [calls.begun_s[str(n)] for n in range(6)] == [0, 0, 1, 1, 2, 2]
    names = {label.partition("[")[0] for label in recorded(records)}
    assert names == {"page/work", "page/again", "page/more", "page/work#2", "page"}


@pytest.mark.parametrize(
    ("function", "options", "code"),
    [
        (lambda a, b: a + b, {}, "pipeline.map-takes-one-value"),
        (str.upper, {"max_parallel": 0}, "pipeline.concurrency-not-positive"),
        (str.upper, {"max_parallel": 1.5}, "pipeline.concurrency-not-positive"),
    ],
)
def test_a_map_that_cannot_be_made_is_refused(graph, function, options, code):
    step(graph, "page", "run", gives=lambda run: run.map(function, ["a"], name="step", **options))

    (failure,) = run(graph).failures

    assert failure.error.code == code
    assert all(option in str(failure.error) for option in options)


def test_a_second_attempt_names_things_as_the_first_did(graph, brief):
    calls = Calls()

    @graph.node(retry=Retry(2))
    async def page(run, text: str) -> str:
        calls.note(run.key("text"))
        answer = (await run.call(brief, {"text": text}))["answer"]
        calls.note(run.key("text"))
        if sum(calls.counts.values()) < 4:
            raise RuntimeError("once more")
        return answer

    ended, records = run_recorded(graph, {"text": "a"})

    assert ended.outputs["page"] == "A"
    assert list(calls.counts.values()) == [2, 2]
    nested = {f"page/brief/{name}" for name in ("topics", "findings[0]", "answer")}
    assert recorded(records) == {"page", *nested}


def test_keys_are_the_same_for_the_same_inputs_and_code_and_differ_else():
    def keys(text, *, more=""):
        graph = Graph("outer")

        @graph.node
        async def page(run, text: str) -> list[str]:
            return [run.key("text") + more, run.key("text"), run.key("wiggum")]

        return outputs_of(graph, text=text)["page"]

    assert keys("a") == keys("a")
    assert len({*keys("a"), *keys("b")}) == 6
    assert keys("a")[1] != keys("a", more="?")[1]
    assert [key.partition("@")[0] for key in keys("a")] == ["page#1", "page#2", "page#1"]


@pytest.mark.parametrize("max_parallel", [1, 5])
def test_calls_that_have_begun_are_brought_to_their_end_before_others_begin(graph, max_parallel):
    inside, works = UnderWay(), UnderWay()

    async def work(item: int) -> int:
        await works.spend()
        return item

    @graph.node(each={"n": "numbers"})
    async def pages(run, n: int) -> list[int]:
        inside.now += 1
        inside.most = max(inside.most, inside.now)
        found = await run.map(work, await run.map(work, [n, n]))
        inside.now -= 1
        return found

    ended = run(graph, {"numbers": [*range(20)]}, max_parallel=max_parallel)

    assert ended.outputs["pages"] == [[n, n] for n in range(20)]
    assert works.most == max_parallel
    assert inside.most <= 2 * max_parallel


def test_what_a_nested_map_held_is_let_go_when_its_call_has_ended(graph):
    class Large:
        """Something that a node has in its hands."""

    alive: list[weakref.ref[Large]] = []

    @graph.node(each={"n": "numbers"})
    async def pages(run, n: int) -> list[int]:
        large = Large()
        alive.append(weakref.ref(large))

        async def work(one: int) -> int:
            return one + (large is None)

        return await run.map(work, [n])

    run(graph, {"numbers": [*range(5)]})
    gc.collect()

    assert [one for one in alive if one() is not None] == []
