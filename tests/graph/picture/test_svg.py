# ruff: noqa: RUF001 - the sign of multiplication is meant

import re
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest
from graphs_to_draw import UGLY, brief, brief_in_its_run, fan, random_graph, recorded, with_names

from harness.graph import Graph
from harness.graph.picture import as_svg, drawing_of
from tests.chromium import Chromium

SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = {
    "brief": drawing_of(brief()),
    "brief in its run": brief_in_its_run(),
    "random": drawing_of(random_graph(60, seed=3)),
    "dense": drawing_of(random_graph(30, seed=9, degree=6)),
    "fan": drawing_of(fan(20)),
    "names": drawing_of(with_names("a" * 200, "概要" * 30, "end")),
    "one": drawing_of(with_names("one")),
    "empty": drawing_of(Graph("empty")),
}
DRAWINGS = [pytest.param(drawing, id=name) for name, drawing in GRAPHS.items()]


def texts(svg: str) -> list[str]:
    return [one.text for one in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def boxes(svg: str) -> dict[str, tuple[float, float, float, float]]:
    """The edges of every node's box, by its whole name: left, top, right, bottom."""
    found = {}
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        x, y, width, height = (
            float(group.findall(f"{SVG}rect")[-1].attrib[name])
            for name in ("x", "y", "width", "height")
        )
        title = group.find(f"{SVG}title").text.splitlines()[0]
        found[title.split(" ×")[0]] = (x, y, x + width, y + height)
    return found


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_it_is_xml_that_needs_nothing_else(drawing):
    svg = as_svg(drawing)
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    assert {one.tag.removeprefix(SVG) for one in root.iter()} <= {
        "svg", "title", "style", "rect", "text", "g", "path",
    }  # fmt: skip
    assert svg.count("http") == 1  # the name of the format
    assert "url(" not in svg
    assert "@import" not in svg


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_boxes_do_not_touch_each_other_nor_the_edges_of_the_page(drawing):
    svg = as_svg(drawing)
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = boxes(svg)
    assert set(found) == {box.name for box in drawing.boxes}
    for left, top, right, bottom in found.values():
        assert 0 < left < right < width
        assert 0 < top < bottom < height
    for one, other in combinations(found.values(), 2):
        assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


@pytest.mark.parametrize("drawing", DRAWINGS)
def test_no_arrow_runs_through_a_box(drawing):
    svg = as_svg(drawing)
    found = boxes(svg).values()
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "arrow" not in path.attrib["class"].split():
            continue
        for x, y in points_along(path.attrib["d"])[1:-1]:
            inside = [
                box
                for box in found
                if box[0] + 0.5 < x < box[2] - 0.5 and box[1] + 0.5 < y < box[3] - 0.5
            ]
            assert not inside


def points_along(path: str) -> list[tuple[float, float]]:
    """A path's points, its bends included, twenty for each."""
    points: list[tuple[float, float]] = []
    for command, said in re.findall(r"([MLC])([^MLC]+)", path):
        numbers = [float(one) for one in re.split(r"[ ,]+", said.strip())]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        if command == "M":
            points += pairs
        else:
            start, bends = points[-1], pairs if command == "C" else [pairs[0]]
            points += [bezier([start, *bends], step / 20) for step in range(1, 21)]
    return points


def bezier(points, share):
    while len(points) > 1:
        points = [
            (a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share)
            for a, b in pairwise(points)
        ]
    return points[0]


def test_an_arrow_leaves_from_one_box_and_arrives_at_the_other():
    drawing = GRAPHS["random"]
    svg = as_svg(drawing)
    found = boxes(svg)
    ends = []
    heads = []
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        points = points_along(path.attrib["d"].removesuffix(" Z"))
        if "head" in path.attrib["class"].split():
            heads.append(points[0])
        else:
            ends.append(points[0])
    joined = [
        (next(n for n, b in found.items() if touches(b, start)),
         next(n for n, b in found.items() if touches(b, end)))
        for start, end in zip(ends, heads, strict=True)
    ]  # fmt: skip
    expected = [(a.source, b.name) for b in drawing.boxes for a in b.arrows if not a.is_input]
    assert sorted(joined) == sorted(expected)


def touches(box, point):
    left, top, right, bottom = box
    return left <= point[0] <= right and min(abs(point[1] - top), abs(point[1] - bottom)) < 0.2


def test_a_run_is_in_bold_and_in_words():
    svg = as_svg(GRAPHS["brief in its run"])
    assert svg.count('<g class="node done critical">') == 5
    assert svg.count('class="arrow critical"') == 4
    said = texts(svg)
    assert "run 20261120T094006Z-370323a26851: 10.4 s, ended well" in said
    assert "● sections ×3" in said
    assert {"4.91 s · 3 calls", "751 → 177 tokens"} <= set(said)
    # Not by its colour alone: its lines are thicker.
    style = ElementTree.fromstring(svg).find(f"{SVG}style").text
    assert re.search(r"\.critical\.arrow \{[^}]*stroke-width: 3", style)


def test_a_node_that_was_not_run_says_so():
    graph = brief()

    @graph.node
    async def later(text): ...

    svg = as_svg(drawing_of(graph, recorded()))
    assert '<g class="node absent">' in svg
    assert "not run" in texts(svg)


def test_whatever_a_text_holds_it_stays_a_text():
    graph = Graph(UGLY)

    @graph.node(models=[UGLY])
    async def one(): ...

    root = ElementTree.fromstring(as_svg(drawing_of(graph)))
    shown = "".join(sign if sign.isprintable() else " " for sign in UGLY)
    title = root.find(f"{SVG}title").text
    assert title == shown
    assert root.find(f".//{SVG}g/{SVG}title").text == f"one\n{shown}"


def test_a_browser_shows_it_by_day_and_by_night_and_its_texts_fit_their_boxes(tmp_path):
    for number, name in enumerate(("brief in its run", "random", "names")):
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
