"""What Mermaid's own parser makes of these was tried by hand with version 12.3."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

import html
import re

import pytest
from graphs_to_draw import UGLY, brief, brief_in_its_run, fan, random_graph, with_names

from harness.graph import Graph
from harness.graph.picture import as_mermaid, drawing_of

NODE = re.compile(r'    (n\d+)(\(|\[\[|\{\{)"([^"]*)"(\)|\]\]|\}\})')
EDGE = re.compile(r"    (n\d+) (-->|==>|-- each -->|== each ==>|-\. when \.->) (n\d+)")


def read(text: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """The labels, and the joints between nodes by the first lines of their labels."""
    labels = {}
    joints = set()
    front, title, end, flowchart, *lines = text.splitlines()
    assert (front, end) == ("---", "---")
    assert title.startswith("title: ")
    assert flowchart in {"flowchart TD", "flowchart LR"}
    for line in lines:
        if node := NODE.fullmatch(line):
            label = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), node[3])
            labels[node[1]] = label
        elif edge := EDGE.fullmatch(line):
            joints.add((edge[1], edge[3]))
        else:
            assert line.startswith(("    classDef ", "    class ")), line
    named = {number: label.split("<br/>")[0] for number, label in labels.items()}
    return labels, {(named[a], named[b]) for a, b in joints}


def test_a_pipeline_as_a_flowchart():
    assert (
        as_mermaid(drawing_of(brief()))
        == """\
---
title: "brief"
---
flowchart TD
    n0("parts<br/>← task, document")
    n1("topics<br/>← task<br/>planner")
    n2[["sources ×"]]
    n3[["sections ×<br/>producer"]]
    n4("text<br/>← task")
    n0 --> n1
    n1 -- each --> n2
    n1 -- each --> n3
    n2 -- each --> n3
    n3 --> n4
    n2 --> n4
"""
    )


def test_the_critical_path_is_thick_and_marked():
    lines = as_mermaid(brief_in_its_run()).splitlines()
    assert '    n3[["● sections ×3<br/>producer<br/>4.91 s · 3 calls · 751 → 177 tokens"]]' in lines
    assert [line.split() for line in lines if "==" in line] == [
        ["n0", "==>", "n1"],
        ["n1", "==", "each", "==>", "n2"],
        ["n2", "==", "each", "==>", "n3"],
        ["n3", "==>", "n4"],
    ]
    assert lines[-2:] == [
        "    classDef critical stroke-width:4px",
        "    class n0,n1,n2,n3,n4 critical",
    ]


@pytest.mark.parametrize("graph", [random_graph(60, seed=3), fan(20)], ids=["random", "fan"])
def test_every_node_and_every_joint_is_there(graph):
    _, joints = read(as_mermaid(drawing_of(graph)))
    assert joints == {
        (source, node.name) for node in graph.nodes.values() for source in graph.dependencies(node)
    }


def test_words_of_the_language_are_names_like_others():
    names = (
        "end",
        "subgraph",
        "click",
        "style",
        "o",
        "x",
        "flowchart",
        "direction",
        "概要",
        "ñandú",
    )
    labels, _ = read(as_mermaid(drawing_of(with_names(*names))))
    assert tuple(labels.values()) == names
    assert list(labels) == [f"n{number}" for number in range(10)]


def test_whatever_a_text_holds_it_stays_a_text():
    graph = Graph(UGLY)

    @graph.node(models=[UGLY])
    async def one(): ...

    text = as_mermaid(drawing_of(graph))
    labels, _ = read(text)
    (label,) = labels.values()
    shown = "".join(sign if sign.isprintable() else " " for sign in UGLY)
    assert html.unescape(label.split("<br/>", 1)[1]) == html.unescape(shown)
    assert "<b>" not in text.splitlines()[4]


def test_what_may_be_left_out_has_six_sides_and_dots():
    graph = Graph("g")

    @graph.node
    async def plan(): ...

    @graph.node(when=lambda plan: plan)
    async def text(): ...

    lines = as_mermaid(drawing_of(graph)).splitlines()
    assert lines[-2:] == ['    n1{{"text<br/>when lambda(plan)"}}', "    n0 -. when .-> n1"]
