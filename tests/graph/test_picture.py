"""What a picture shows of a graph, and what is known of its nodes in a run."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

import html
import re

import networkx as nx
import pytest
from graphs_to_draw import BRIEF, UGLY, brief, random_graph, with_names
from hypothesis import given
from hypothesis import strategies as st
from sample_runs import sealed

from harness.graph import Graph
from harness.graph.picture import Arrow, as_mermaid, drawing_of, nodes_seen
from harness.trace import Journal, NodeOutput, RunEnded, RunStarted, SpanRecord

SEED = st.integers(0, 2**32 - 1)


# --- the graph -----------------------------------------------------------------------------------


@given(seed=SEED)
def test_boxes_stand_below_what_they_take_and_arrows_that_others_imply_are_marked(seed):
    graph = random_graph(20, seed=seed)
    every, shown = nx.DiGraph(), nx.DiGraph()

    boxes = drawing_of(graph).boxes

    layers = {box.name: box.layer for box in boxes}
    for box in boxes:
        for kept in (every, shown):
            kept.add_node(box.name)
        every.add_edges_from((arrow.source, box.name) for arrow in box.arrows)
        shown.add_edges_from((one.source, box.name) for one in box.arrows if not one.is_implied)
        above = [layers[arrow.source] for arrow in box.arrows]
        assert box.layer == max(above, default=-1) + 1
    assert set(every.edges) == {
        (source, node.name) for node in graph.nodes.values() for source in graph.dependencies(node)
    }
    assert set(nx.transitive_closure(every).edges) == set(nx.transitive_closure(shown).edges)
    for edge in shown.edges:
        others = nx.restricted_view(shown, [], [edge])
        assert not nx.has_path(others, *edge)


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
        Arrow(source="pages", is_input=False, way="list", is_implied=True),
        Arrow(source="task", is_input=True, way="value"),
        Arrow(source="again", is_input=True, way="value"),
        Arrow(source="is_wanted", is_input=True, way="when"),
    )
    assert drawing.inputs == ("words", "task", "again", "is_wanted")
    assert [box.kind for box in found.values()] == ["stream", "plain", "async"]
    assert [box.when for box in found.values()] == [None, None, "wanted(notes, is_wanted)"]
    assert found["text"].roles == ("producer", "evaluator")


# --- the run -------------------------------------------------------------------------------------


def test_a_condition_on_the_list_that_items_are_of_is_no_second_arrow():
    graph = Graph("ways")

    @graph.node
    def pages(): ...

    @graph.node(each={"page": "pages"}, when=lambda pages: len(pages) > 1)
    def notes(page): ...

    _, box = drawing_of(graph).boxes
    assert box.arrows == (Arrow(source="pages", is_input=False, way="item"),)


def test_a_recorded_run_shows_what_each_node_took_and_what_decided_its_time():
    nodes = nodes_seen(Journal(BRIEF))

    assert {name for name, seen in nodes.items() if seen.is_critical} == brief().nodes.keys()
    seen = nodes["sections"]
    assert (seen.status, seen.items, seen.calls, seen.output_tokens) == ("done", 3, 3, 177)
    # Three calls that ran at once take as long as they took together, not three times that.
    assert 4.9e9 < seen.busy_ns < 5.0e9


def seen_in(tmp_path, *records):
    path = tmp_path / "run.jsonl"
    started = RunStarted(1, "20260102T030405Z-00", "g", 0, 0, 1)
    path.write_bytes(sealed(started, *records, RunEnded(100, "ok")))
    return nodes_seen(Journal(path))


def node_span(number, start_ns, end_ns, node, *, item=None, status="ok", parent=None):
    label = node if item is None else f"{node}[{item}]"
    said = {"node": node, "item": item, "label": label}
    return SpanRecord(number, parent, "node", start_ns, end_ns, status, None, said)


def test_nested_calls_count_for_the_node_that_made_them(tmp_path):
    nodes = seen_in(
        tmp_path,
        node_span(1, 0, 90, "answer", item=0),
        node_span(2, 5, 80, "answer[0]/brief/text", parent=1),
        SpanRecord(3, 2, "chat", 6, 70, "ok", None, {"model": "m", "output_tokens": 4}),
    )
    assert list(nodes) == ["answer"]
    seen = nodes["answer"]
    assert (seen.items, seen.busy_ns, seen.calls, seen.output_tokens) == (1, 90, 1, 4)
    assert seen.is_critical


@pytest.mark.parametrize(
    ("statuses", "status"), [(["ok", "ok"], "done"), (["cancelled", "error", "ok"], "failed")]
)
def test_a_node_ended_as_the_worst_of_its_items(tmp_path, statuses, status):
    spans = [node_span(n + 1, 0, 9, "n", item=n, status=one) for n, one in enumerate(statuses)]

    assert seen_in(tmp_path, *spans)["n"].status == status


def test_a_node_of_which_only_the_output_is_there_was_reused(tmp_path):
    seen = seen_in(tmp_path, NodeOutput("n", None, "x"))["n"]

    assert (seen.status, seen.busy_ns) == ("reused", 0)


SHOWN = "".join(sign if sign.isprintable() else " " for sign in UGLY)


def ugly():
    graph = Graph(UGLY)

    @graph.node(models=[UGLY])
    async def one(): ...

    return drawing_of(graph)


# --- Mermaid: what its own parser makes of these was tried by hand with version 12.3 -------------

NODE = re.compile(r'    (n\d+)(\(|\[\[|\{\{)"([^"]*)"(\)|\]\]|\}\})')
EDGE = re.compile(r"    (n\d+) (-->|-- each -->|-\. when \.->) (n\d+)")


def read(text: str) -> tuple[list[str], set[tuple[str, str]]]:
    """The labels, and the joints between nodes by the first lines of their labels."""
    lines = text.splitlines()
    labels = {
        node[1]: re.sub(r"#(\d+);", lambda code: chr(int(code[1])), node[3])
        for node in map(NODE.fullmatch, lines)
        if node
    }
    named = {number: label.split("<br/>")[0] for number, label in labels.items()}
    edges = [edge for edge in map(EDGE.fullmatch, lines) if edge]
    return [*labels.values()], {(named[edge[1]], named[edge[3]]) for edge in edges}


def test_a_pipeline_as_a_flowchart():
    graph = brief()

    @graph.node(when=lambda task: task)
    async def later(text): ...

    assert (
        as_mermaid(drawing_of(graph))
        == """\
---
title: "brief"
---
flowchart TD
    n0("parts<br/>← task, document")
    n1("topics<br/>← task<br/>planner")
    n2[["sources ×"]]
    n3[["sections ×<br/>← each topics<br/>producer"]]
    n4("text<br/>← sources, task")
    n5{{"later<br/>← task<br/>when lambda(task)"}}
    n0 --> n1
    n1 -- each --> n2
    n2 -- each --> n3
    n3 --> n4
    n4 --> n5
"""
    )


@pytest.mark.parametrize(
    "graph",
    [random_graph(60, seed=3), with_names("end", "subgraph", "click", "o", "x", "概要")],
    ids=["random", "words of the language"],
)
def test_every_node_and_every_joint_is_there(graph):
    drawing = drawing_of(graph)
    labels, joints = read(as_mermaid(drawing))

    assert {label.split("<br/>")[0] for label in labels} == graph.nodes.keys()
    implied = {
        (one.source, box.name) for box in drawing.boxes for one in box.arrows if one.is_implied
    }
    assert joints | implied == set(graph.graph().edges)
    assert not joints & implied


def test_whatever_a_text_holds_it_stays_a_text_in_mermaid():
    text = as_mermaid(ugly())

    ((label,), _) = read(text)
    assert html.unescape(label.split("<br/>", 1)[1]) == html.unescape(SHOWN)
    assert "<b>" not in text.splitlines()[4]
