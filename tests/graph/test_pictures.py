"""A drawing as text and as Mermaid: one whole picture each, and what holds for all."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

import html
import re

import pytest
from graphs_to_draw import UGLY, brief, brief_in_its_run, fan, random_graph, recorded, with_names
from rich.cells import cell_len

from harness.graph import Graph
from harness.graph.picture import as_mermaid, as_text, drawing_of

SHOWN = "".join(sign if sign.isprintable() else " " for sign in UGLY)


def ugly():
    graph = Graph(UGLY)

    @graph.node(models=[UGLY])
    async def one(): ...

    return drawing_of(graph)


# --- text ----------------------------------------------------------------------------------------


def test_a_run_is_shown_in_columns_with_its_critical_path_marked():
    assert (
        as_text(brief_in_its_run(), width=120)
        == """\
brief: 5 nodes in 5 layers; inputs: task, document
run 20261120T094006Z-370323a26851: 10.4 s, ended well

1  ●  parts        0.16 s                             ← task, document
2  ●  topics       1.49 s   1 call   119 → 59 tokens  ← parts, task (planner)
3  ●  sources ×3   3.3 ms                             ← each topics
4  ●  sections ×3  4.91 s  3 calls  751 → 177 tokens  ← each topics, each sources (producer)
5  ●  text         3.68 s   1 call   599 → 80 tokens  ← sections[], sources[], task

× is called once per item; [] takes the list of all items; ● is on the critical path, which \
decided how long the run took
"""
    )


def test_lines_of_text_keep_to_the_width_and_to_their_columns():
    lines = as_text(drawing_of(random_graph(60, seed=1)), width=80).splitlines()
    assert len(lines) == 62
    assert max(map(cell_len, lines)) <= 80
    assert as_text(drawing_of(fan(3)), width=40).splitlines()[-2:] == [
        "3  join      ← worker_0, worker_1,",
        "               worker_2",
    ]
    wide = as_text(drawing_of(with_names("概要", "text"))).splitlines()
    assert wide[-2:] == ["1  概要", "2  text  ← 概要"]


# --- Mermaid: what its own parser makes of these was tried by hand with version 12.3 -------------

NODE = re.compile(r'    (n\d+)(\(|\[\[|\{\{)"([^"]*)"(\)|\]\]|\}\})')
EDGE = re.compile(r"    (n\d+) (-->|==>|-- each -->|== each ==>|-\. when \.->) (n\d+)")


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


def test_a_pipeline_in_its_run_as_a_flowchart():
    graph = brief()

    @graph.node(when=lambda task: task)
    async def later(text): ...

    assert (
        as_mermaid(drawing_of(graph, recorded()))
        == """\
---
title: "brief · run 20261120T094006Z-370323a26851: 10.4 s, ended well"
---
flowchart TD
    n0("● parts<br/>← task, document<br/>0.16 s")
    n1("● topics<br/>← task<br/>planner<br/>1.49 s · 1 call · 119 → 59 tokens")
    n2[["● sources ×3<br/>3.3 ms"]]
    n3[["● sections ×3<br/>producer<br/>4.91 s · 3 calls · 751 → 177 tokens"]]
    n4("● text<br/>← task<br/>3.68 s · 1 call · 599 → 80 tokens")
    n5{{"later<br/>← task<br/>when lambda(task)<br/>not run"}}
    n0 ==> n1
    n1 == each ==> n2
    n1 -- each --> n3
    n2 == each ==> n3
    n3 ==> n4
    n2 --> n4
    n4 --> n5
    classDef critical stroke-width:4px
    class n0,n1,n2,n3,n4 critical
    classDef absent stroke-dasharray:5 4
    class n5 absent
"""
    )


@pytest.mark.parametrize(
    "graph",
    [random_graph(60, seed=3), with_names("end", "subgraph", "click", "o", "x", "概要")],
    ids=["random", "words of the language"],
)
def test_every_node_and_every_joint_is_there(graph):
    labels, joints = read(as_mermaid(drawing_of(graph)))

    assert {label.split("<br/>")[0] for label in labels} == graph.nodes.keys()
    assert joints == {
        (source, node.name) for node in graph.nodes.values() for source in graph.dependencies(node)
    }


def test_whatever_a_text_holds_it_stays_a_text_in_mermaid():
    text = as_mermaid(ugly())

    ((label,), _) = read(text)
    assert html.unescape(label.split("<br/>", 1)[1]) == html.unescape(SHOWN)
    assert "<b>" not in text.splitlines()[4]
