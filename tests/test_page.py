"""Pages and plots: nothing is loaded, every text is only a text, and no one needs the colors."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.errors import InvalidInput
from harness.page import Axis, Plot, element, round_step, table, write_page

NASTY = """<script>alert("1")</script> & 'more' \x1b[2J\x00"""
READ = NASTY.replace("\x1b", "\ufffd").replace("\x00", "\ufffd")


class Read(HTMLParser):
    """What a browser makes of a page: its tags, attributes and texts."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def plot() -> Plot:
    y = Axis(label="how much", low=0, high=1)
    return Plot("A title", "What is seen.", x=Axis(label="what", low=0, high=10), y=y)


def test_every_text_is_a_text_wherever_it_stands(tmp_path: Path) -> None:
    axis = Axis(label=NASTY, low=0, high=1, shown=lambda _: NASTY)
    drawn = Plot(NASTY, NASTY, x=axis, y=axis)
    drawn.line([(0, 0), (1, 1)], "first", name=NASTY)
    drawn.text(NASTY, (0, 0))
    body = (
        element("p", NASTY, title=NASTY),
        table(NASTY, [NASTY], [[NASTY, NASTY]]),
        drawn.figure(NASTY),
    )
    write_page(tmp_path / "page.html", NASTY, *body)
    page = Read(tmp_path / "page.html")

    assert page.open == []
    assert "script" not in dict(page.tags)
    assert "\x1b" not in page.source
    # Of the page, the paragraph, the table, the plot, and its ticks.
    assert page.texts.count(READ) == 2 + 1 + 4 + 8 + 2 * len(axis.ticks)
    assert ("p", {"title": READ}) in page.tags


def test_a_page_loads_nothing_and_says_so_to_the_browser(tmp_path: Path) -> None:
    drawn = plot()
    drawn.band([(0, 0), (1, 0)], [(0, 1), (1, 1)], name="between")
    write_page(tmp_path / "page.html", "Title", drawn.figure("Below."))
    page = Read(tmp_path / "page.html")
    attributes = {name for _, given in page.tags for name in given}

    assert attributes.isdisjoint({"src", "href", "style", "onload", "srcset", "data"})
    assert not re.search(r"url\(|@import|https?:", page.source)
    policies = [a["content"] for tag, a in page.tags if a.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_secrets_are_taken_out_before_a_text_is_escaped(tmp_path: Path) -> None:
    secret = "a&b<c"
    body = element("p", f"It is {secret}.", title=secret)
    write_page(tmp_path / "page.html", secret, body, clean=lambda t: t.replace(secret, "***"))

    assert Read(tmp_path / "page.html").source.count("***") == 4


def test_a_page_that_cannot_be_written_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput) as caught:
        write_page(tmp_path / "file" / "page.html", "Title")
    assert caught.value.code == "file.unwritable"


def svg_of(drawn: Plot, tmp_path: Path) -> ElementTree.Element:
    write_page(tmp_path / "page.html", "Title", drawn.figure(""))
    source = (tmp_path / "page.html").read_text(encoding="utf-8")
    return ElementTree.fromstring(re.findall(r"<svg.*?</svg>", source, re.DOTALL)[-1])


def test_a_plot_says_what_it_shows_to_one_who_does_not_see_it(tmp_path: Path) -> None:
    svg = svg_of(plot(), tmp_path)
    said = [child.text for child in svg][:2]

    assert (svg.get("role"), said) == ("img", ["A title", "What is seen."])
    across, up = ["0", "2", "4", "6", "8", "10"], ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert [one.text for one in svg.iter("text")] == [*across, "what", "how much", *up]


def test_points_lie_where_their_ticks_do_and_none_off_the_axes(tmp_path: Path) -> None:
    drawn = plot()
    drawn.text("inside", (4, 0.6))
    drawn.text("off", (99, -99))
    places = {text.text: text.attrib for text in svg_of(drawn, tmp_path).iter("text")}
    inside, off = places["inside"], places["off"]

    assert inside["x"] == places["4"]["x"]
    assert float(inside["y"]) == pytest.approx(float(places["0.6"]["y"]) - 4)
    assert off["x"] == places["10"]["x"]
    assert float(off["y"]) == pytest.approx(float(places["0.2"]["y"]) - 4 + 40)


def test_what_has_a_name_is_in_the_legend_with_its_look(tmp_path: Path) -> None:
    drawn = plot()
    looks = ["first", "second", "target", "mark", "claim", "equal"]
    for look in looks:
        drawn.rule(look, y=0.5, name=f"the {look}")
    drawn.rule("first", x=1, name="")
    write_page(tmp_path / "page.html", "Title", drawn.figure(""))
    page = Read(tmp_path / "page.html")

    assert [text for text in page.texts if text.startswith("the ")] == [f"the {o}" for o in looks]
    drawn_so = {
        look: re.findall(rf"\.line\.{look} \{{(.*?)\}}", page.source)[0].split("stroke-")
        for look in looks
    }
    # Without colors: no two have the same dashes and width.
    shapes = {tuple(sorted(s for s in said if s[0] in "dw")) for said in drawn_so.values()}
    assert len(shapes) == len(looks)


@pytest.mark.parametrize(
    ("least", "step"),
    [(0.03, 0.05), (0.05, 0.05), (0.11, 0.2), (0.6, 1), (1, 1), (2.1, 5), (51, 100), (0.3, 0.5)],
)
def test_steps_are_round(least: float, step: float) -> None:
    assert round_step(least) == pytest.approx(step)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        pytest.param(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1], id="shares"),
        pytest.param(5.6, 10.4, [6, 7, 8, 9, 10], id="scores"),
        pytest.param(-30, 60, [-20, 0, 20, 40, 60], id="across zero"),
    ],
)
def test_ticks_are_round_and_within_the_axis(low: float, high: float, ticks: list[float]) -> None:
    assert Axis(label="", low=low, high=high).ticks == pytest.approx(ticks)
