import networkx as nx
import pytest
from graphs_to_draw import brief, brief_in_its_run, fan, random_graph, recorded

from harness.graph import Graph
from harness.graph.picture import Arrow, drawing_of
from harness.graph.picture.seen import _covered_ns, run_seen
from harness.trace import Interval, Journal, NodeOutput, RunEnded, RunStarted, SpanRecord
from harness.trace.journal_line import encode


def boxes(graph: Graph):
    return {box.name: box for box in drawing_of(graph).boxes}


@pytest.mark.parametrize("seed", range(20))
def test_a_layer_is_the_longest_way_from_the_top(seed):
    graph = random_graph(40, seed=seed)
    edges = [(one, node.name) for node in graph.nodes.values() for one in graph.dependencies(node)]
    order = nx.DiGraph(edges)
    order.add_nodes_from(graph.nodes)

    def longest(name):
        above = list(order.predecessors(name))
        return 1 + max(map(longest, above)) if above else 0

    drawing = drawing_of(graph)
    assert {box.name: box.layer for box in drawing.boxes} == {n: longest(n) for n in graph.nodes}
    layers = [box.layer for box in drawing.boxes]
    assert layers == sorted(layers)


def test_within_a_layer_nodes_stand_as_they_were_defined():
    assert [box.name for box in drawing_of(fan(12)).boxes] == list(fan(12).nodes)


def test_arrows_say_how_a_node_takes_what_it_takes():
    graph = Graph("ways")

    @graph.node
    async def pages():
        yield "page"

    @graph.node(each={"page": "pages", "word": "words"})
    def notes(page, word, task): ...

    @graph.node(when=lambda notes, is_wanted: notes and is_wanted, takes={"found": "notes"})
    async def text(found, pages, task, again=None): ...

    found = boxes(graph)
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
    assert drawing_of(graph).inputs == ("words", "task", "again", "is_wanted")


def test_boxes_say_what_their_nodes_are():
    graph = Graph("kinds")

    def wanted(task): ...

    @graph.node
    def plain(task): ...

    @graph.node(when=wanted, models=("producer", "evaluator"))
    async def asked(task): ...

    @graph.node(when=lambda task: task)
    async def stream(plain):
        yield plain

    found = boxes(graph)
    assert [box.kind for box in found.values()] == ["plain", "async", "stream"]
    assert [box.when for box in found.values()] == [None, "wanted(task)", "lambda(task)"]
    assert found["asked"].roles == ("producer", "evaluator")


def test_an_included_pipelines_nodes_are_nodes():
    graph = Graph("two")
    graph.include(brief(), prefix="left")
    graph.include(brief(), prefix="right", takes={"document": "left_text"})
    found = boxes(graph)
    assert len(found) == 10
    assert found["right_parts"].layer == 5
    assert [one.source for one in found["right_parts"].arrows] == ["task", "left_text"]


@pytest.mark.parametrize(
    ("graph", "direction"),
    [
        pytest.param(brief(), "TD", id="a chain runs down"),
        pytest.param(fan(3), "TD", id="a narrow fan"),
        pytest.param(fan(14), "LR", id="a wide fan runs across"),
        pytest.param(Graph("empty"), "TD", id="nothing"),
    ],
)
def test_a_picture_has_about_the_shape_of_a_page(graph, direction):
    assert drawing_of(graph).direction == direction


def test_a_recorded_run_shows_what_each_node_took():
    run = recorded()
    assert run.critical_path == ("parts", "topics", "sources", "sections", "text")
    seen = run.nodes["sections"]
    assert (seen.status, seen.items, seen.calls, seen.output_tokens) == ("done", 3, 3, 177)
    assert seen.is_critical
    # Three calls that ran at once take as long as they took together, not three times that.
    assert 4.9e9 < seen.busy_ns < 5.0e9


def test_arrows_along_the_critical_path_are_marked():
    critical = {
        (arrow.source, box.name)
        for box in brief_in_its_run().boxes
        for arrow in box.arrows
        if arrow.is_critical
    }
    assert critical == {
        ("parts", "topics"),
        ("topics", "sources"),
        ("sources", "sections"),
        ("sections", "text"),
    }


def test_what_the_run_had_and_the_graph_has_not_is_told():
    graph = brief()
    other = Graph("brief")
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
    ("statuses", "status"),
    [
        (["ok", "ok"], "done"),
        (["ok", "error"], "failed"),
        (["cancelled", "error"], "failed"),
        (["ok", "cancelled"], "cancelled"),
        (["unfinished", "ok"], "unfinished"),
    ],
)
def test_a_node_ended_as_the_worst_of_its_items(tmp_path, statuses, status):
    spans = [
        node_span(number, 0, 9, "n", item=number, status=one)
        for number, one in enumerate(statuses, start=1)
    ]
    assert seen_in(tmp_path, *spans).nodes["n"].status == status


def test_a_node_of_which_only_the_output_is_there_was_reused(tmp_path):
    run = seen_in(tmp_path, NodeOutput("n", None, "x"))
    assert (run.nodes["n"].status, run.nodes["n"].busy_ns) == ("reused", 0)


@pytest.mark.parametrize(
    ("intervals", "covered_ns"),
    [
        ([], 0),
        ([(3, 7)], 4),
        ([(0, 5), (5, 9)], 9),
        ([(0, 5), (3, 9)], 9),
        ([(0, 9), (2, 4)], 9),
        ([(6, 9), (0, 2), (1, 3)], 6),
        ([(-5, -2), (-3, 0)], 5),
    ],
)
def test_time_is_counted_once_where_calls_overlap(intervals, covered_ns):
    parts = [Interval(start_ns=start, end_ns=end) for start, end in intervals]
    assert _covered_ns(parts) == covered_ns
