"""What a picture shows of a graph and of a run."""

from itertools import pairwise

import networkx as nx
import pytest
from graphs_to_draw import brief, brief_in_its_run, random_graph, recorded
from hypothesis import given
from hypothesis import strategies as st

from harness.graph import Graph
from harness.graph.picture import Arrow, _covered_ns, drawing_of, run_seen
from harness.trace import Interval, Journal, NodeOutput, RunEnded, RunStarted, SpanRecord
from harness.trace.journal_line import encode

SEED = st.integers(0, 2**32 - 1)


# --- the graph -----------------------------------------------------------------------------------


@given(seed=SEED)
def test_a_layer_is_the_longest_way_from_the_top(seed):
    graph = random_graph(20, seed=seed)
    order = nx.DiGraph(
        (one, node.name) for node in graph.nodes.values() for one in graph.dependencies(node)
    )
    order.add_nodes_from(graph.nodes)
    layers = {
        name: number
        for number, names in enumerate(nx.topological_generations(order))
        for name in names
    }

    boxes = drawing_of(graph).boxes

    assert {box.name: box.layer for box in boxes} == layers
    assert [box.layer for box in boxes] == sorted(layers.values())


def test_boxes_and_arrows_say_what_nodes_are_and_how_they_take_what_they_take():
    graph = Graph("ways")

    @graph.node
    async def pages():
        yield "page"

    @graph.node(each={"page": "pages", "word": "words"})
    def notes(page, word, task): ...

    def wanted(notes, is_wanted): ...

    @graph.node(when=wanted, takes={"found": "notes"}, models=("producer", "evaluator"))
    async def text(found, pages, task, again=None): ...

    drawing = drawing_of(graph)
    found = {box.name: box for box in drawing.boxes}
    assert found["notes"].arrows == (
        Arrow(source="pages", is_input=False, way="item"),
        Arrow(source="words", is_input=True, way="item"),
        Arrow(source="task", is_input=True, way="value"),
    )
    assert found["text"].arrows == (
        Arrow(source="notes", is_input=False, way="list"),
        Arrow(source="pages", is_input=False, way="list"),
        Arrow(source="task", is_input=True, way="value"),
        Arrow(source="again", is_input=True, way="value"),
        Arrow(source="is_wanted", is_input=True, way="when"),
    )
    assert drawing.inputs == ("words", "task", "again", "is_wanted")
    assert [box.kind for box in found.values()] == ["stream", "plain", "async"]
    assert [box.when for box in found.values()] == [None, None, "wanted(notes, is_wanted)"]
    assert found["text"].roles == ("producer", "evaluator")


# --- the run -------------------------------------------------------------------------------------


def test_a_recorded_run_shows_what_each_node_took_and_what_decided_its_time():
    run = recorded()
    way = ("parts", "topics", "sources", "sections", "text")
    assert run.critical_path == way
    seen = run.nodes["sections"]
    assert (seen.status, seen.items, seen.calls, seen.output_tokens) == ("done", 3, 3, 177)
    # Three calls that ran at once take as long as they took together, not three times that.
    assert 4.9e9 < seen.busy_ns < 5.0e9
    arrows = [(arrow, box.name) for box in brief_in_its_run().boxes for arrow in box.arrows]
    critical = {(arrow.source, target) for arrow, target in arrows if arrow.is_critical}
    assert critical == {*pairwise(way)}


def test_what_the_run_had_and_the_graph_has_not_is_told():
    graph, other = brief(), Graph("brief")
    for name in ("parts", "topics"):
        other.node(graph.nodes[name].function)

    @other.node
    async def summary(topics): ...

    drawing = drawing_of(other, recorded())

    assert drawing.unknown == ("sources", "sections", "text")
    assert [box.seen.status for box in drawing.boxes] == ["done", "done", "not run"]


def seen_in(tmp_path, *records):
    path = tmp_path / "run.jsonl"
    started = RunStarted(1, "20260102T030405Z-00", "g", 0, 0, 1)
    path.write_bytes(b"".join(map(encode, [started, *records, RunEnded(100, "ok")])))
    return run_seen(Journal(path))


def node_span(number, start_ns, end_ns, node, *, item=None, status="ok", parent=None):
    label = node if item is None else f"{node}[{item}]"
    said = {"node": node, "item": item, "label": label}
    return SpanRecord(number, parent, "node", start_ns, end_ns, status, None, said)


def test_nested_calls_count_for_the_node_that_made_them(tmp_path):
    run = seen_in(
        tmp_path,
        node_span(1, 0, 90, "answer", item=0),
        node_span(2, 5, 80, "answer[0]/brief/text", parent=1),
        SpanRecord(3, 2, "chat", 6, 70, "ok", None, {"model": "m", "output_tokens": 4}),
    )
    assert list(run.nodes) == ["answer"]
    seen = run.nodes["answer"]
    assert (seen.items, seen.busy_ns, seen.calls, seen.output_tokens) == (1, 90, 1, 4)
    assert run.critical_path == ("answer",)


@pytest.mark.parametrize(
    ("statuses", "status"), [(["ok", "ok"], "done"), (["cancelled", "error", "ok"], "failed")]
)
def test_a_node_ended_as_the_worst_of_its_items(tmp_path, statuses, status):
    spans = [node_span(n + 1, 0, 9, "n", item=n, status=one) for n, one in enumerate(statuses)]

    assert seen_in(tmp_path, *spans).nodes["n"].status == status


def test_a_node_of_which_only_the_output_is_there_was_reused(tmp_path):
    seen = seen_in(tmp_path, NodeOutput("n", None, "x")).nodes["n"]

    assert (seen.status, seen.busy_ns) == ("reused", 0)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 9)), max_size=6))
def test_time_is_counted_once_where_calls_overlap(spans):
    parts = [Interval(start_ns=start, end_ns=start + took) for start, took in spans]

    assert _covered_ns(parts) == len({n for one in parts for n in range(one.start_ns, one.end_ns)})
