import asyncio
import itertools
import threading

import pytest

from harness.errors import NodeFailed, PipelineInvalid
from harness.graph import Graph, bind_inputs, execute
from harness.trace import Flow, NodeOutput, SpanEnded, SpanStarted, Tracer


@pytest.fixture
def graph():
    return Graph("essay")


@pytest.fixture
def records():
    return []


@pytest.fixture
def tracer(records):
    return Tracer(records.append)


async def execute_with(graph, inputs, *, tracer=None, **options):
    values = bind_inputs(graph, inputs)
    return await execute(graph, values, run=None, tracer=tracer or Tracer(), **options)


def outputs_of(graph, *, tracer=None, **inputs):
    return asyncio.run(execute_with(graph, inputs, tracer=tracer))


def failure_of(graph, *, tracer=None, **inputs):
    with pytest.raises(NodeFailed) as caught:
        outputs_of(graph, tracer=tracer, **inputs)
    return caught.value


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

    outputs = asyncio.run(execute(graph, {"suffix": "?"}, run="the run", tracer=Tracer()))

    assert outputs == {"name": "the run?"}


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
            "each= maps over 'left', which is a str and not a list",
            id="a text",
        ),
        pytest.param(
            ["a"],
            {"b": 1},
            "each= maps over 'right', which is a dict and not a list",
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
    with pytest.raises(NodeFailed) as caught:
        asyncio.run(execute(graph, values, run=None, tracer=Tracer()))

    assert caught.value.node == "pair"
    cause = caught.value.__cause__
    assert isinstance(cause, PipelineInvalid)
    assert str(cause).endswith(message)
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

    asyncio.run(execute_with(graph, {"numbers": list(range(6))}, parallel_calls=parallel_calls))

    assert most == parallel_calls


# --- what is recorded ----------------------------------------------------------------------------


def test_outputs_are_recorded_before_what_depends_on_them_starts(graph, tracer, records):
    @graph.node
    def topics():
        return ("a", "b")

    @graph.node(each={"topic": "topics"})
    def sections(topic):
        return {topic}

    @graph.node
    def text(sections):
        return "".join(topic for section in sections for topic in section)

    outputs_of(graph, tracer=tracer)

    story = [
        (r.node, r.item, r.value) if isinstance(r, NodeOutput) else r.attributes["label"]
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
            await execute_with(graph, {"numbers": [5]}, tracer=tracer)

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

    asyncio.run(execute_with(graph, {"numbers": [5, 6]}, tracer=tracer))

    labels = {r.id: r.attributes["label"] for r in records if isinstance(r, SpanStarted)}
    flows = [(r.name, labels[r.source], labels[r.target]) for r in records if isinstance(r, Flow)]
    assert flows == [("output", "doubled[0]", "total"), ("output", "doubled[1]", "total")]


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

    asyncio.run(execute_with(graph, {"numbers": [5, 6, 7]}, tracer=tracer))

    labels = {r.id: r.attributes["label"] for r in records if isinstance(r, SpanStarted)}
    flows = [(labels[r.source], labels[r.target]) for r in records if isinstance(r, Flow)]
    assert [flow for flow in flows if flow[1].startswith("shown")] == [
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

    asyncio.run(execute_with(graph, {}, tracer=Slow(records.append)))

    assert begun == ["first", "safe", "second", "safe"]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        pytest.param(
            object(), "cannot be written to the journal: Unable to serialize", id="object"
        ),
        pytest.param(b"\xff", "cannot be written to the journal: 'utf-8' codec", id="bytes"),
        pytest.param(
            (letter for letter in "ab"),
            "its output is a generator, which can be read only once; return a list",
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
    assert message in str(failure)
    assert isinstance(failure.__cause__, TypeError)
    assert not any(isinstance(r, NodeOutput) for r in records)


# --- failures ------------------------------------------------------------------------------------


def statuses(records):
    labels = {r.id: r.attributes["label"] for r in records if isinstance(r, SpanStarted)}
    return {labels[r.id]: r.status for r in records if isinstance(r, SpanEnded)}


def test_a_failure_cancels_what_runs_and_names_the_node_and_the_cause(graph, tracer, records):
    started = asyncio.Event()

    @graph.node
    async def waits():
        started.set()
        await asyncio.Event().wait()

    @graph.node
    async def fails():
        await started.wait()
        raise KeyError("no such topic")

    @graph.node
    async def comes_after(fails): ...

    failure = failure_of(graph, tracer=tracer)

    assert failure.node == "fails"
    assert isinstance(failure.__cause__, KeyError)
    assert statuses(records) == {"waits": "cancelled", "fails": "error"}


def test_a_failed_item_is_named_by_its_index(graph):
    @graph.node(each={"number": "numbers"})
    async def inverse(number):
        return 1 / number

    failure = failure_of(graph, numbers=[2, 1, 0])

    assert failure.node == "inverse[2]"
    assert isinstance(failure.__cause__, ZeroDivisionError)


def test_a_failure_inside_a_nodes_own_task_group_is_its_first_cause(graph):
    async def fail(error):
        raise error

    @graph.node
    async def gathers():
        async with asyncio.TaskGroup() as group:
            group.create_task(fail(KeyError("first")))
            group.create_task(fail(ValueError("second")))

    assert failure_of(graph).__cause__.args == ("first",)


def test_the_first_failure_is_reported_whatever_its_cancelling_brings_up(graph):
    waiting = asyncio.Event()

    @graph.node
    async def fails_when_cancelled():
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("while tidying up")

    @graph.node
    async def fails_first():
        await waiting.wait()
        raise ValueError("first")

    assert failure_of(graph).node == "fails_first"


def test_a_failed_item_stops_other_nodes_though_its_siblings_take_their_time(graph):
    tidying, go_on = asyncio.Event(), asyncio.Event()

    @graph.node(each={"number": "numbers"})
    async def items(number):
        if number == 0:
            raise ValueError("first")
        try:
            await asyncio.Event().wait()
        finally:
            tidying.set()
            await go_on.wait()

    @graph.node
    async def other():
        try:
            await tidying.wait()
            raise RuntimeError("second")
        finally:
            go_on.set()

    failure = failure_of(graph, numbers=[1, 0])

    assert failure.node == "items[1]"
    assert failure.__cause__.args == ("first",)


def test_a_node_that_will_not_be_cancelled_does_not_hide_the_failure(graph):
    waiting = asyncio.Event()

    @graph.node
    async def stubborn():
        waiting.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"

    @graph.node
    async def comes_after(stubborn): ...

    @graph.node
    async def fails():
        await waiting.wait()
        raise ValueError("first")

    assert failure_of(graph).node == "fails"


@pytest.mark.parametrize("numbers", [None, [1]], ids=["plain", "mapped"])
def test_a_node_that_waits_for_something_cancelled_has_failed(graph, numbers):
    async def waits(number):
        never = asyncio.get_running_loop().create_future()
        never.cancel()
        await never

    graph.node(each={"number": "numbers"} if numbers else {})(waits)

    @graph.node
    async def comes_after(waits): ...

    inputs = {"numbers": numbers} if numbers else {"number": 1}
    failure = failure_of(graph, **inputs)

    assert str(failure).endswith("failed: CancelledError: what it waited for was cancelled")
    assert isinstance(failure.__cause__, asyncio.CancelledError)


def test_cancelling_a_run_cancels_its_nodes_and_leaves_no_task_behind(graph, tracer, records):
    barrier = asyncio.Barrier(4)

    @graph.node(each={"number": "numbers"})
    async def waits(number):
        await barrier.wait()
        await asyncio.Event().wait()

    @graph.node
    async def waits_too():
        await barrier.wait()
        await asyncio.Event().wait()

    @graph.node
    async def comes_after(waits): ...

    async def main():
        running = asyncio.create_task(execute_with(graph, {"numbers": [1, 2]}, tracer=tracer))
        await barrier.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()
    assert statuses(records) == dict.fromkeys(["waits[0]", "waits[1]", "waits_too"], "cancelled")


def test_a_failure_does_not_wait_for_threads_and_drops_what_they_return(graph, tracer, records):
    started, released = threading.Event(), threading.Event()

    @graph.node
    def slow():
        started.set()
        released.wait()
        return "too late"

    @graph.node
    async def fails():
        await asyncio.to_thread(started.wait)
        raise ValueError("first")

    async def main():
        try:
            with pytest.raises(NodeFailed, match="'fails'"):
                await execute_with(graph, {}, tracer=tracer)
        finally:
            released.set()

    asyncio.run(main())

    assert statuses(records) == {"slow": "cancelled", "fails": "error"}
    assert not any(isinstance(r, NodeOutput) for r in records)
