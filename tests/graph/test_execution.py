"""What nodes receive, and what is recorded and told of a run."""

import threading
from collections.abc import AsyncIterator

import orjson
import pytest
from graph_runs import arrows, outputs_of, run, run_recorded, step

from harness.graph import Graph, NodeCall, Retry
from harness.trace import Flows, NodeOutput, SpanStarted, Tracer

EACH = {"number": "numbers"}


@pytest.fixture
def graph():
    return Graph("essay")


# --- what nodes receive --------------------------------------------------------------------------


def test_a_node_that_asks_for_the_run_receives_it(graph):
    step(graph, "name", "run", "suffix", gives=lambda run, suffix: run + suffix)

    ended = run(graph, {"suffix": "?"}, run_of=lambda call: f"the run of {call.label}")

    assert ended.outputs == {"name": "the run of name?"}


def test_plain_functions_run_in_threads_beside_the_loop(graph):
    barrier = threading.Barrier(2)  # lets nobody pass alone

    def waits():
        barrier.wait()
        return threading.get_ident()

    graph.node(name="left")(waits)
    graph.node(name="right")(waits)

    assert len({*outputs_of(graph).values(), threading.get_ident()}) == 3


# --- what is recorded ----------------------------------------------------------------------------


def test_outputs_are_recorded_before_what_depends_on_them_starts(graph):
    @graph.node
    async def topics() -> tuple[str, ...]:
        return ("a", "b")

    @graph.node(each={"topic": "topics"})
    async def sections(topic) -> set[str]:
        return {topic}

    step(graph, "text", "sections", gives=lambda sections: "".join(map(str, sections)))

    _, records = run_recorded(graph)

    story = [
        (one.node, one.item, orjson.loads(orjson.dumps(one.value)))
        if isinstance(one, NodeOutput)
        else one.attributes["label"]
        for one in records
        if isinstance(one, NodeOutput | SpanStarted)
    ]
    assert story[:2] == ["topics", ("topics", None, ["a", "b"])]
    items = [("sections", 0, ["a"]), ("sections", 1, ["b"])]
    assert sorted(map(str, story[2:-2])) == [*map(str, items), "sections[0]", "sections[1]"]
    assert story[-2:] == ["text", ("text", None, "{'a'}{'b'}")]


def test_successors_start_when_an_output_is_as_safe_as_the_run_wants_it(graph):
    story = []
    step(graph, "first", gives=lambda: story.append("first"))
    step(graph, "second", "first", gives=lambda _: story.append("second"))

    class Safe(Tracer):
        async def persisted(self):
            assert any(isinstance(one, NodeOutput) for one in story)
            story.append("safe")

    run(graph, tracer=Safe(story.append))

    kept = [one for one in story if isinstance(one, str)]
    assert kept == ["first", "safe", "second", "safe"]


def test_arrows_lead_from_what_a_call_waited_for(graph):
    step(graph, "doubled", each=EACH)
    step(graph, "shown", each={"one": "doubled"})
    step(graph, "compared", "doubled", each={"text": "shown"})
    step(graph, "total", "doubled")

    _, records = run_recorded(graph, {"numbers": [5, 6, 7]})

    assert {one.name for one in records if isinstance(one, Flows)} == {"output"}
    found = arrows(records)
    each = [(f"doubled[{n}]", f"shown[{n}]") for n in range(3)]
    assert [one for one in sorted(found) if one[1].startswith("shown")] == each
    assert sorted(one for one, to in found if to == "total") == [f"doubled[{n}]" for n in range(3)]
    # Of a whole list only the item that was done last: all would be items times items.
    for n in range(3):
        sources = [source for source, target in found if target == f"compared[{n}]"]
        assert len(sources) == 2
        assert f"shown[{n}]" in sources


# --- what a watcher is told ----------------------------------------------------------------------


class Watcher:
    """Writes down what it is told: `+` for what begins, `-` for what ends."""

    def __init__(self):
        self.told = []

    def begins(self, node: str, item: int | None) -> None:
        self.told.append(f"+{node}{'' if item is None else item}")

    def ends(self, node: str, item: int | None) -> None:
        self.told.append(f"-{node}{'' if item is None else item}")

    def counts(self, node: str, total: int) -> None:
        self.told.append(f"{node}={total}")


def told(graph: Graph, **inputs: object) -> str:
    watcher = Watcher()
    run(graph, inputs, watcher=watcher)
    return " ".join(watcher.told)


def test_what_is_not_run_ends_all_the_same(graph):
    step(graph, "large", each=EACH, when=lambda number: number > 1)
    step(graph, "broken", raises=ValueError)
    step(graph, "behind", "broken")

    assert sorted(told(graph, numbers=[1, 2]).split()) == [
        "+broken", "+large1", "-behind", "-broken", "-large", "-large0", "-large1", "large=2",
    ]  # fmt: skip


def test_what_is_made_again_yielded_or_nested_is_no_call_of_its_own(graph):
    errors = [ValueError("not yet")]

    @graph.node
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def mapped(run: NodeCall, numbers: list[int]) -> list[int]:
        if errors:
            raise errors.pop()
        return await run.map(lambda number: number, numbers, name="inner")

    assert told(graph) == "+numbers -numbers +mapped -mapped"
