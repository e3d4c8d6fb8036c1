"""A drawing as text, as Mermaid and as SVG: one whole picture each, and what holds for all."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

import html
import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from graphs_to_draw import UGLY, brief, brief_in_its_run, fan, random_graph, recorded, with_names
from rich.cells import cell_len

from harness.graph import Graph
from harness.graph.picture import as_mermaid, as_svg, as_text, drawing_of
from tests.chromium import Chromium

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


# --- SVG -----------------------------------------------------------------------------------------

SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = {
    "brief in its run": brief_in_its_run(),
    "dense": drawing_of(random_graph(15, seed=9, degree=6)),
    "fan": drawing_of(fan(20)),
    "names": drawing_of(with_names("a" * 200, "概要" * 30, "end")),
    "empty": drawing_of(Graph("empty")),
}


def boxes(root) -> dict[str, tuple[float, float, float, float]]:
    """The edges of every node's box, by its whole name: left, top, right, bottom."""
    found = {}
    for group in root.iter(f"{SVG}g"):
        rect = group.findall(f"{SVG}rect")[-1].attrib
        x, y, width, height = (float(rect[name]) for name in ("x", "y", "width", "height"))
        title = group.find(f"{SVG}title").text.splitlines()[0]
        found[title.split(" ×")[0]] = (x, y, x + width, y + height)
    return found


def ends(root) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Where each arrow begins, and where its head is."""
    first = re.compile(r"M ?([-\d.]+)[ ,]([-\d.]+)")
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for path in root.iter(f"{SVG}path"):
        x, y = first.match(path.attrib["d"]).groups()
        found["head" in path.attrib["class"].split()].append((float(x), float(y)))
    return [*zip(found[False], found[True], strict=True)]


def touches(box, point):
    left, top, right, bottom = box
    return left <= point[0] <= right and min(abs(point[1] - top), abs(point[1] - bottom)) < 0.2


@pytest.mark.parametrize("drawing", GRAPHS.values(), ids=GRAPHS)
def test_it_is_xml_that_needs_nothing_else_and_in_which_nothing_overlaps(drawing):
    svg = as_svg(drawing)
    root = ElementTree.fromstring(svg)
    found = boxes(root)

    assert root.tag == f"{SVG}svg"
    kinds = {one.tag.removeprefix(SVG) for one in root.iter()}
    assert kinds <= {"svg", "title", "style", "rect", "text", "g", "path"}
    assert svg.count("http") == 1  # the name of the format
    assert not re.search(r"url\(|@import", svg)
    assert set(found) == {box.name for box in drawing.boxes}
    for left, top, right, bottom in found.values():
        assert 0 < left < right < float(root.attrib["width"])
        assert 0 < top < bottom < float(root.attrib["height"])
    for one, other in combinations(found.values(), 2):
        assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


def test_an_arrow_leaves_from_one_box_and_arrives_at_the_other():
    drawing = GRAPHS["dense"]
    root = ElementTree.fromstring(as_svg(drawing))
    found = boxes(root).items()

    joined = [
        tuple(next(name for name, box in found if touches(box, end)) for end in both)
        for both in ends(root)
    ]

    expected = [(a.source, b.name) for b in drawing.boxes for a in b.arrows if not a.is_input]
    assert sorted(joined) == sorted(expected)


def test_a_run_is_in_bold_and_in_words():
    graph = brief()

    @graph.node
    async def later(text): ...

    svg = as_svg(drawing_of(graph, recorded()))

    assert svg.count('<g class="node done critical">') == 5
    assert svg.count('class="arrow critical"') == 4
    assert svg.count('<g class="node absent">') == 1
    texts = {one.text for one in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert "run 20261120T094006Z-370323a26851: 10.4 s, ended well" in texts
    assert texts >= {"● sections ×3", "4.91 s · 3 calls", "751 → 177 tokens", "not run"}
    # Not by its colour alone: its lines are thicker.
    assert re.search(r"\.critical\.arrow \{[^}]*stroke-width: 3", svg)


def test_whatever_a_text_holds_it_stays_a_text_in_svg():
    root = ElementTree.fromstring(as_svg(ugly()))

    assert root.find(f"{SVG}title").text == SHOWN
    assert root.find(f".//{SVG}g/{SVG}title").text == f"one\n{SHOWN}"


@pytest.mark.slow
def test_a_browser_shows_it_by_day_and_by_night_and_its_texts_fit_their_boxes(tmp_path):
    for number, name in enumerate(("brief in its run", "dense", "names")):
        (tmp_path / f"{number}.svg").write_text(as_svg(GRAPHS[name]), encoding="utf-8")
    with Chromium(tmp_path / "profile", width=1600, height=1400) as browser:
        for number in range(3):
            papers = set()
            for scheme in ("light", "dark"):
                feature = {"name": "prefers-color-scheme", "value": scheme}
                browser.call("Emulation.setEmulatedMedia", features=[feature])
                browser.open((tmp_path / f"{number}.svg").as_uri())
                browser.wait_for("document.readyState === 'complete' && document.title")
                papers.add(browser.evaluate(
                    "getComputedStyle(document.querySelector('.paper')).fill"
                ))  # fmt: skip
            assert papers == {"rgb(255, 255, 255)", "rgb(13, 17, 23)"}
            too_wide = browser.evaluate("""[...document.querySelectorAll('g.node')].filter(node => {
                const rects = node.querySelectorAll('rect');
                const box = rects[rects.length - 1].getBoundingClientRect();
                return [...node.querySelectorAll('text')].some(text => {
                    const words = text.getBoundingClientRect();
                    return words.left < box.left || words.right > box.right
                        || words.top < box.top || words.bottom > box.bottom;
                });
            }).map(node => node.textContent)""")
            assert too_wide == []
        assert browser.hosts_asked() == set()
