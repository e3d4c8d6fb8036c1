"""Pages for a browser or paper: one HTML file with text, tables and plots.

A page loads nothing and runs no script. It is light or dark by the reader's setting, and light on
paper. All texts are escaped when the page is written. Plots are SVG with a title and a description,
and tell lines apart by dashes and width, not only by color.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from harness.files import write_whole

Point = tuple[float, float]
Look = Literal["first", "second", "target", "mark", "claim", "equal"]
"""How a line is drawn: each with dashes of its own, `equal` thin and in one piece."""

_WIDTH = 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 28, 42
_TICKS = 5
_EMPTY = {"meta"}
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Element:
    """An element of HTML or SVG."""

    tag: str
    children: tuple[Element | str, ...]
    attributes: Mapping[str, str | float]


def element(tag: str, *children: Element | str, **attributes: str | float) -> Element:
    """An element. `class_` is the attribute `class`, and `stroke_width` is `stroke-width`."""
    named = {name.strip("_").replace("_", "-"): value for name, value in attributes.items()}
    return Element(tag, children, named)


def write_page(path: Path, title: str, *body: Element, clean: Callable[[str], str] = str) -> None:
    """Writes a page, whole or not at all; `clean` takes secrets out of each text.

    Raises:
        InvalidInput: It cannot be written.
    """
    # Even if something got in, a browser would load nothing.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style"),
    )
    main = element("main", element("h1", title), *body)
    html = element("html", head, element("body", main), lang="en")
    write_whole(path, f"<!doctype html>\n{''.join(_written(html, clean))}\n".encode())


def _written(node: Element | str, clean: Callable[[str], str]) -> Iterator[str]:
    if isinstance(node, str):
        # Cleaned before it is escaped: a secret with `&` in it would look different after.
        yield escape(_CONTROLS.sub("\ufffd", clean(node)))
        return
    yield f"<{node.tag}"
    for name, value in node.attributes.items():
        text = "".join(_written(value, clean)) if isinstance(value, str) else f"{value:.6g}"
        yield f' {name}="{text}"'
    yield ">"
    if node.tag == "style":
        yield Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    elif node.tag not in _EMPTY:
        for child in node.children:
            yield from _written(child, clean)
    if node.tag not in _EMPTY:
        yield f"</{node.tag}>"


def table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    """A table, whose rows begin with what they are about. It scrolls where it is too wide."""
    cells = (
        [element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])]
        for row in rows
    )
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *(element("th", name, scope="col") for name in head))),
        element("tbody", *(element("tr", *row) for row in cells)),
    )
    return element("div", whole, class_="wide", tabindex=0, role="group", aria_label=caption)


# --- plots -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One side of a plot."""

    label: str
    low: float
    high: float
    shown: Callable[[float], str] = "{:g}".format
    """What stands at a tick."""

    @property
    def ticks(self) -> list[float]:
        """Round numbers from `low` to `high`, some five of them."""
        step = round_step((self.high - self.low) / _TICKS)
        # An end of the axis that lies on a tick has it, whatever floats make of the division.
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 10) for number in range(first, last + 1)]


def round_step(at_least: float) -> float:
    """The smallest of 1, 2 and 5, by powers of ten, that is not below a number above 0."""
    power = 10.0 ** math.floor(math.log10(at_least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= at_least * (1 - 1e-9))


def percent(share: float) -> str:
    """A share from 0 to 1, in percent with three digits."""
    return f"{100 * share:.3g}%"


class Plot:
    """A plot, on which what is added later lies above; all lengths are as on one 420 wide.

    The description says what is seen, to a reader who does not see it. `height` is of the area
    between the axes.
    """

    def __init__(
        self, title: str, description: str, *, x: Axis, y: Axis, height: float = 200
    ) -> None:
        self._title, self._description = title, description
        self._x, self._y = x, y
        self._height = height
        self._drawn: list[Element] = []
        self._legend: dict[str, Element] = {}

    def line(self, points: Sequence[Point], look: Look, *, name: str = "") -> None:
        """Draws a line through points. A name goes into the legend, once."""
        self._draw("path", name, d=self._path(points), class_=f"line {look}")

    def rule(
        self, look: Look, *, x: float | None = None, y: float | None = None, name: str
    ) -> None:
        """Draws a line across the plot, at an x or a y."""
        xs = [self._x.low, self._x.high] if x is None else [x, x]
        ys = [self._y.low, self._y.high] if y is None else [y, y]
        self.line([*zip(xs, ys, strict=True)], look, name=name)

    def band(self, lower: Sequence[Point], upper: Sequence[Point], *, name: str) -> None:
        """Fills what lies between two lines."""
        self._draw("path", name, d=f"{self._path([*lower, *reversed(upper)])}Z", class_="band")

    def bar(self, low: Point, high: Point, look: Look) -> None:
        """Draws a bar between two corners."""
        (x_low, bottom), (right, top) = self._at(low), self._at(high)
        # SVG counts downwards, and draws no rectangle of negative height.
        top, bottom = sorted((top, bottom))
        size = {"width": max(1, right - x_low - 1), "height": bottom - top}
        self._draw("rect", "", x=x_low + 0.5, y=top, **size, class_=f"bar {look}")

    def text(self, label: str, at: Point, *, rise: float = 0) -> None:
        """Writes a text that begins at a point, or so much above it."""
        x, y = self._at(at)
        self._draw("text", "", label, x=x, y=y - rise)

    def figure(self, caption: str) -> Element:
        """The plot, with its title above and a caption below."""
        height = _TOP + self._height + _BOTTOM
        drawn = element(
            "svg",
            element("title", self._title),
            element("desc", self._description),
            *self._axes(),
            *self._drawn,
            viewBox=f"0 0 {_WIDTH} {height:g}",
            role="img",
        )
        legend = element("ul", *self._legend.values(), class_="legend")
        title, below = element("figcaption", self._title), element("p", caption)
        return element("figure", title, legend, drawn, below)

    def _at(self, point: Point) -> Point:
        """Where a point lies; what is off an axis, at its end."""
        shares = (
            (value - axis.low) / (axis.high - axis.low)
            for value, axis in zip(point, (self._x, self._y), strict=True)
        )
        across, up = (min(1, max(0, share)) for share in shares)
        width = _WIDTH - _LEFT - _RIGHT
        return _LEFT + across * width, _TOP + (1 - up) * self._height

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in map(self._at, points))

    def _draw(self, tag: str, name: str, *children: str, **attributes: str | float) -> None:
        self._drawn.append(element(tag, *children, **attributes))
        if name and name not in self._legend:
            kind = str(attributes["class_"])
            sample = element("path", d="M0 6H28", class_=kind)
            if kind == "band":
                sample = element("rect", width=28, height=12, class_=kind)
            # What it looks like is nothing to hear.
            shape = element("svg", sample, viewBox="0 0 28 12", aria_hidden="true")
            self._legend[name] = element("li", shape, name)

    def _axes(self) -> Iterator[Element]:
        bottom, right = _TOP + self._height, _WIDTH - _RIGHT
        for tick in self._x.ticks:
            x, _ = self._at((tick, 0))
            yield element("path", d=f"M{x:.1f} {_TOP}V{bottom}", class_="grid")
            yield element("text", self._x.shown(tick), x=x, y=bottom + 17, class_="middle")
        yield element("path", d=f"M{_LEFT} {bottom}H{right}", class_="axis")
        middle = (_LEFT + right) / 2
        yield element("text", self._x.label, x=middle, y=bottom + 36, class_="middle")
        yield element("text", self._y.label, x=2, y=14)
        for tick in self._y.ticks:
            _, y = self._at((0, tick))
            yield element("path", d=f"M{_LEFT} {y:.1f}H{right}", class_="grid")
            yield element("text", self._y.shown(tick), x=_LEFT - 5, y=y + 4, class_="end")
