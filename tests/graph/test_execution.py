import asyncio
import itertools
import threading

import orjson
import pytest
from graph_runs import arrows, execute_graph

from harness.errors import PipelineInvalid
from harness.graph import Graph, execute
from harness.trace import Flows, NodeOutput, SpanStarted, Tracer


@pytest.fixture
def graph():
    return Graph("essay")


@pytest.fixture
def records():
    return []


@pytest.fixture
def tracer(records):
    return Tracer(records.append)


def outputs_of(graph, *, tracer=None, **inputs):
    ended = asyncio.run(execute_graph(graph, inputs, tracer=tracer))
    assert ended.status == "finished", ended.failures
    return ended.outputs


def failure_of(graph, *, tracer=None, **inputs):
    ended = asyncio.run(execute_graph(graph, inputs, tracer=tracer))
    assert ended.status == "failed"
    (failure,) = ended.failures
    return failure


# --- what nodes receive --------------------------------------------------------------------------


def test_each_node_receives_what_the_nodes_it_names_returned(graph):
    @graph.node
    async def text(plan, words):
        return f"{plan} in {words} words"

    @graph.node
    async def plan(task):
        return f"plan of {task}"

    @graph.node
    def words(plan, per_letter=2):
        return per_letter * len(plan)

    outputs = outputs_of(graph, task="a")

    assert outputs == {"text": "plan of a in 18 words", "plan": "plan of a", "words": 18}
    assert list(outputs) == ["text", "plan", "words"]


def test_a_graph_without_nodes_gives_nothing(graph):
    assert outputs_of(graph) == {}


def test_a_node_that_two_others_need_runs_once(graph):
    calls = itertools.count(1)

    @graph.node
    def number():
        return next(calls)

    @graph.node
    def left(number):
        return number

    @graph.node
    def right(number):
        return number

    assert outputs_of(graph) == {"number": 1, "left": 1, "right": 1}


def test_a_node_that_asks_for_the_run_receives_it(graph):
    @graph.node
    def name(run, suffix="!"):
        return run + suffix

    ended = asyncio.run(
        execute_graph(graph, {"suffix": "?"}, run_of=lambda call: f"the run of {call.label}")
    )

    assert ended.outputs == {"name": "the run of name?"}


def test_nodes_that_need_nothing_of_each_other_run_at_once(graph):
    barrier = asyncio.Barrier(2)  # lets nobody pass alone

    @graph.node
    async def left():
        await barrier.wait()

    @graph.node
    async def right():
        await barrier.wait()

    assert outputs_of(graph) == {"left": None, "right": None}


def test_plain_functions_run_in_threads_beside_the_loop(graph):
    barrier = threading.Barrier(2)

    @graph.node
    def left():
        barrier.wait()
        return threading.get_ident()

    @graph.node
    def right():
        barrier.wait()
        return threading.get_ident()

    outputs = outputs_of(graph)

    assert len({outputs["left"], outputs["right"], threading.get_ident()}) == 3


# --- each= ---------------------------------------------------------------------------------------


def test_items_are_mapped_at_once_and_keep_their_order(graph):
    later = [asyncio.Event() for _ in range(4)]
    later[3].set()

    @graph.node
    def topics():
        return ["a", "b", "c", "d"]

    @graph.node(each={"topic": "topics"})
    async def sections(topic, tone="plain"):
        index = "abcd".index(topic)
        await later[index].wait()  # the last item is done first
        later[index - 1].set()
        return f"{topic}, {tone}"

    @graph.node
    def text(sections):
        return sections

    assert outputs_of(graph)["text"] == ["a, plain", "b, plain", "c, plain", "d, plain"]


def test_two_lists_are_walked_side_by_side(graph):
    @graph.node
    def topics():
        return ["a", "b"]

    @graph.node(each={"topic": "topics"})
    def sources(topic):
        return f"source of {topic}"

    @graph.node(each={"topic": "topics", "source": "sources"})
    def sections(topic, source, sources):
        return [topic, source, len(sources)]

    assert outputs_of(graph)["sections"] == [["a", "source of a", 2], ["b", "source of b", 2]]


def test_an_input_may_be_the_list(graph):
    @graph.node(each={"number": "numbers"})
    def doubled(number: int):
        return 2 * number

    assert outputs_of(graph, numbers="[1, 2, 3]") == {"doubled": [2, 4, 6]}


def test_an_empty_list_gives_an_empty_list(graph):
    @graph.node(each={"number": "numbers"})
    def doubled(number: int):
        return 2 * number

    @graph.node
    def total(doubled):
        return sum(doubled)

    assert outputs_of(graph, numbers=[]) == {"doubled": [], "total": 0}


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        pytest.param(
            "text",
            ["b"],
            "each= maps over 'left', which gave str and not a list",
            id="a text",
        ),
        pytest.param(
            ["a"],
            {"b": 1},
            "each= maps over 'right', which gave dict and not a list",
            id="a dictionary",
        ),
        pytest.param(
            ["a", "b"],
            ["c"],
            "each= walks lists side by side, and they differ in length: 'left' has 2, "
            "'right' has 1",
            id="lists of different lengths",
        ),
    ],
)
def test_what_cannot_be_mapped_fails_the_node_where_it_is_written(graph, left, right, message):
    @graph.node(each={"one": "left", "other": "right"})
    def pair(one, other): ...

    values = {"left": left, "right": right}
    ended = asyncio.run(execute(graph, values, run_of=lambda call: call, tracer=Tracer()))

    (failure,) = ended.failures
    assert failure.node == "pair"
    cause = failure.error
    assert isinstance(cause, PipelineInvalid)
    assert message in str(cause)
    assert cause.line == graph.nodes["pair"].line


@pytest.mark.parametrize("parallel_calls", [1, 2, 6])
def test_no_more_calls_are_under_way_than_allowed(graph, parallel_calls):
    under_way = 0
    most = 0
    # Lets nobody pass before as many calls as are allowed have come.
    barrier = asyncio.Barrier(parallel_calls)

    @graph.node(each={"number": "numbers"})
    async def calls(number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await barrier.wait()
        under_way -= 1

    asyncio.run(execute_graph(graph, {"numbers": list(range(6))}, parallel_calls=parallel_calls))

    assert most == parallel_calls


# --- what is recorded ----------------------------------------------------------------------------


def test_outputs_are_recorded_before_what_depends_on_them_starts(graph, tracer, records):
    @graph.node
    def topics() -> tuple[str, ...]:
        return ("a", "b")

    @graph.node(each={"topic": "topics"})
    def sections(topic) -> set[str]:
        return {topic}

    @graph.node
    def text(sections):
        return "".join(topic for section in sections for topic in section)

    outputs_of(graph, tracer=tracer)

    story = [
        (r.node, r.item, orjson.loads(orjson.dumps(r.value)))
        if isinstance(r, NodeOutput)
        else r.attributes["label"]
        for r in records
        if isinstance(r, NodeOutput | SpanStarted)
    ]
    assert story[:2] == ["topics", ("topics", None, ["a", "b"])]
    assert set(map(str, story[2:-2])) == {
        "sections[0]",
        "sections[1]",
        "('sections', 0, ['a'])",
        "('sections', 1, ['b'])",
    }
    assert story[-2:] == ["text", ("text", None, "ab")]


def test_each_call_is_a_span_on_the_track_of_its_node(graph, tracer, records):
    @graph.node(each={"number": "numbers"})
    def doubled(number):
        return 2 * number

    @graph.node
    def total(doubled):
        return sum(doubled)

    async def main():
        with tracer.span("run"):
            await execute_graph(graph, {"numbers": [5]}, tracer=tracer)

    asyncio.run(main())

    spans = [(r.name, r.parent, dict(r.attributes)) for r in records if isinstance(r, SpanStarted)]
    assert spans == [
        ("run", None, {}),
        (
            "node",
            1,
            {"track": "node doubled", "label": "doubled[0]", "node": "doubled", "item": 0},
        ),
        ("node", 1, {"track": "node total", "label": "total", "node": "total", "item": None}),
    ]


def test_arrows_lead_from_what_a_node_waited_for(tracer, records):
    graph = Graph("g")

    @graph.node(each={"number": "numbers"})
    def doubled(number):
        return 2 * number

    @graph.node
    def total(doubled):
        return sum(doubled)

    asyncio.run(execute_graph(graph, {"numbers": [5, 6]}, tracer=tracer))

    assert {r.name for r in records if isinstance(r, Flows)} == {"output"}
    assert sorted(arrows(records)) == [("doubled[0]", "total"), ("doubled[1]", "total")]


def test_items_have_arrows_from_the_item_they_wait_for(tracer, records):
    graph = Graph("g")

    @graph.node(each={"number": "numbers"})
    def doubled(number):
        return 2 * number

    @graph.node(each={"one": "doubled"})
    def shown(one):
        return str(one)

    @graph.node(each={"text": "shown"})
    def compared(text, doubled):
        return text in map(str, doubled)

    asyncio.run(execute_graph(graph, {"numbers": [5, 6, 7]}, tracer=tracer))

    flows = arrows(records)
    assert sorted(flow for flow in flows if flow[1].startswith("shown")) == [
        (f"doubled[{n}]", f"shown[{n}]") for n in range(3)
    ]
    # Of a whole list only the item that was done last: all would be items times items.
    for n in range(3):
        sources = [source for source, target in flows if target == f"compared[{n}]"]
        assert len(sources) == 2
        assert f"shown[{n}]" in sources


def test_successors_start_when_an_output_is_as_safe_as_the_run_wants_it(records):
    graph = Graph("g")
    begun = []

    @graph.node
    def first():
        begun.append("first")

    @graph.node
    def second(first):
        begun.append("second")

    class Slow(Tracer):
        async def persisted(self):
            assert any(isinstance(r, NodeOutput) for r in records)
            begun.append("safe")

    asyncio.run(execute_graph(graph, {}, tracer=Slow(records.append)))

    assert begun == ["first", "safe", "second", "safe"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        pytest.param(object(), "an object would not come back as one", id="object"),
        pytest.param(b"\xff", "a bytes would not come back as one", id="bytes"),
        pytest.param(
            (letter for letter in "ab"),
            "a generator can be read only once; return a list",
            id="generator",
        ),
    ],
)
def test_an_output_that_cannot_be_recorded_fails_the_node(graph, tracer, records, output, message):
    @graph.node
    def plan():
        return output

    @graph.node
    def text(plan):
        return plan

    failure = failure_of(graph, tracer=tracer)

    assert failure.node == "plan"
    assert isinstance(failure.error, TypeError)
    assert str(failure.error).startswith("its output cannot be written to the journal: ")
    assert message in str(failure.error)
    assert not any(isinstance(r, NodeOutput) for r in records)
