"""A graph as SVG: boxes in layers, arrows between them, and a run's critical path in bold.

One file that needs nothing else: no script, no font, nothing from elsewhere. It is dark where the
reader's system is. Letters are of one width, so that boxes fit them whatever the font.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from xml.sax.saxutils import escape

from harness.graph.picture.drawing import Arrow, Box, Drawing
from harness.graph.picture.layout import Layout, Point, Size, lay_out
from harness.graph.picture.words import (
    CRITICAL,
    CRITICAL_MEANS,
    MAPPED_MEANS,
    box_title,
    columns,
    figures,
    printable,
    remarks,
    run_line,
    taken_from_outside,
    unknown_line,
)

_LETTER, _SMALL_LETTER = 8.5, 7.3
"""Pixels that a column takes in fonts of 14 and 12 pixels, the widest of the common ones."""
_LINE = 17.0
_PADDING = 12.0
_GAP, _LAYER_GAP = 22.0, 50.0
_MARGIN = 24.0
_LONGEST = 36
"""Columns of a line in a box; where the pointer rests, all of it is shown."""
_HEAD = 9.0
"""The length of an arrow's head, in pixels."""
_BEHIND = 4.0
"""How far the box behind that of a mapped node stands out."""
_ABSENT = {"skipped", "not run"}

_STYLE = """\
.harness-graph { --paper: #ffffff; --ink: #1f2328; --dim: #59636e; --box: #f6f8fa; --line: #818b98;
  --bold: #0969da; --bad: #d1242f;
  font: 12px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media (prefers-color-scheme: dark) { .harness-graph { --paper: #0d1117; --ink: #e6edf3;
  --dim: #9198a1; --box: #161b22; --line: #6e7681; --bold: #58a6ff; --bad: #ff7b72; } }
.harness-graph .paper { fill: var(--paper); }
.harness-graph text { fill: var(--dim); white-space: pre; }
.harness-graph .name { fill: var(--ink); font-size: 14px; font-weight: 600; }
.harness-graph rect.box { fill: var(--box); stroke: var(--line); stroke-width: 1.2; }
.harness-graph .arrow { fill: none; stroke: var(--line); stroke-width: 1.2; }
.harness-graph .head { fill: var(--line); }
.harness-graph .absent rect.box { stroke-dasharray: 5 4; }
.harness-graph .absent .name { fill: var(--dim); }
.harness-graph .conditional { stroke-dasharray: 2 3; }
.harness-graph .failed rect.box { stroke: var(--bad); }
.harness-graph .failed .figures { fill: var(--bad); }
.harness-graph .critical rect.box { stroke: var(--bold); stroke-width: 3; }
.harness-graph .critical rect.behind { stroke-width: 1.2; }
.harness-graph .critical.arrow { stroke: var(--bold); stroke-width: 3; }
.harness-graph .critical.head { fill: var(--bold); }
"""


def as_svg(drawing: Drawing) -> str:
    """The text of an SVG file; ends with a newline."""
    return "".join(f"{line}\n" for line in _Page(drawing).lines())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Label:
    """What stands in a box, line by line."""

    name: str
    """The first line, in larger letters."""
    said: tuple[str, ...]
    """What the node takes from outside, and what its author said of it."""
    figures: tuple[str, ...]
    """What the run made of it."""

    @property
    def width(self) -> float:
        """Of the box, in pixels."""
        small = max(map(columns, (*self.said, *self.figures)), default=0)
        return max(columns(self.name) * _LETTER, small * _SMALL_LETTER) + 2 * _PADDING

    @property
    def height(self) -> float:
        """Of the box, in pixels."""
        return (1 + len(self.said) + len(self.figures)) * _LINE + _PADDING


class _Page:
    """A page with a drawing on it, and how positions in the layout become pixels."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._is_down = drawing.direction == "TD"
        self._labels = {box.name: _label(box) for box in drawing.boxes}
        self._layout = self._lay_out() if drawing.boxes else None
        self._head = [printable(drawing.name), *filter(None, [run_line(drawing)])]
        self._foot = list(_legend(drawing))
        self._top = _MARGIN + _LINE * (len(self._head) + 1)

    def lines(self) -> Iterator[str]:
        """The file's."""
        width, height = self._size()
        # 1. The page.
        yield (
            '<svg xmlns="http://www.w3.org/2000/svg" class="harness-graph" role="img" '
            f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        )
        yield f"<title>{escape(' · '.join(self._head))}</title>"
        yield f"<style>\n{_STYLE}</style>"
        yield '<rect class="paper" width="100%" height="100%"/>'
        # 2. What it is of.
        for number, line in enumerate(self._head):
            y = _MARGIN + _LINE * (number + 0.75)
            yield _line(line, _MARGIN, y, "said" if number else "name")
        if self._layout is not None:
            yield from self._arrows(self._layout)
            for box in self._drawing.boxes:
                yield from self._box(box, self._pixel(self._layout.boxes[box.name]))
        # 3. What its signs mean.
        for number, line in enumerate(self._foot):
            y = height - _MARGIN - _LINE * (len(self._foot) - 1 - number)
            yield _line(line, _MARGIN, y, "said")
        yield "</svg>"

    def _lay_out(self) -> Layout:
        layers: list[list[str]] = [[] for _ in range(self._drawing.layers)]
        for box in self._drawing.boxes:
            layers[box.layer].append(box.name)
        return lay_out(
            layers,
            list(dict.fromkeys((arrow.source, target) for arrow, target in self._found_arrows())),
            {name: self._size_of(label) for name, label in self._labels.items()},
            gap=_GAP,
            layer_gap=_LAYER_GAP,
        )

    def _found_arrows(self) -> list[tuple[Arrow, str]]:
        """Arrows between boxes, with where they lead; the critical path last, and so on top."""
        found = [
            (arrow, box.name)
            for box in self._drawing.boxes
            for arrow in box.arrows
            if not arrow.is_input
        ]
        return sorted(found, key=lambda one: one[0].is_critical)

    def _size_of(self, label: _Label) -> Size:
        if self._is_down:
            return Size(across=label.width, along=label.height)
        return Size(across=label.height, along=label.width)

    def _size(self) -> tuple[float, float]:
        """The page's width and height, in pixels."""
        words = max(map(columns, [*self._head, *self._foot])) * _SMALL_LETTER
        size = self._layout.size if self._layout else Size(across=0, along=0)
        right, bottom = self._pixel((size.across, size.along))
        width = max(right, words + _MARGIN, columns(self._head[0]) * _LETTER + _MARGIN)
        return width + _MARGIN, bottom + _LINE * (len(self._foot) + 1) + _MARGIN

    def _pixel(self, point: Point) -> Point:
        """Where a point of the layout is on the page."""
        across, along = point
        x, y = (across, along) if self._is_down else (along, across)
        return x + _MARGIN, y + self._top

    def _at(self, point: Point) -> str:
        x, y = self._pixel(point)
        return f"{x:.1f},{y:.1f}"

    def _arrows(self, layout: Layout) -> Iterator[str]:
        for arrow, target in self._found_arrows():
            *before, (port, start), (_, end) = layout.routes[arrow.source, target]
            critical = " critical" if arrow.is_critical else ""
            dotted = " conditional" if arrow.way == "when" else ""
            # The line ends where the head begins.
            line = self._line([*before, (port, start - _HEAD), (port, end - _HEAD)])
            yield f'<path class="arrow{critical}{dotted}" d="{line}"/>'
            half = _HEAD * (0.6 if critical else 0.4)
            head = [(port, end), (port - half, end - _HEAD), (port + half, end - _HEAD)]
            yield f'<path class="head{critical}" d="M{" L".join(map(self._at, head))} Z"/>'

    def _line(self, points: list[Point]) -> str:
        """Straight from the first point of a pair to the second, and bent to the next pair."""
        said = [f"M{self._at(points[0])} L{self._at(points[1])}"]
        for number in range(2, len(points), 2):
            here, there, end = points[number - 1], points[number], points[number + 1]
            middle = (here[1] + there[1]) / 2
            bend = [(here[0], middle), (there[0], middle), there]
            said.append(f"C{' '.join(map(self._at, bend))} L{self._at(end)}")
        return " ".join(said)

    def _box(self, box: Box, middle: Point) -> Iterator[str]:
        label = self._labels[box.name]
        x, y = middle[0] - label.width / 2, middle[1] - label.height / 2
        yield f'<g class="{_class(box)}">'
        yield f"<title>{escape(_whole(box))}</title>"
        size = f'width="{label.width:.1f}" height="{label.height:.1f}" rx="8"'
        if box.is_mapped:
            yield f'<rect class="box behind" x="{x + _BEHIND:.1f}" y="{y + _BEHIND:.1f}" {size}/>'
        yield f'<rect class="box" x="{x:.1f}" y="{y:.1f}" {size}/>'
        lines = [("name", label.name), *(("said", line) for line in label.said)]
        lines += [("figures", line) for line in label.figures]
        for number, (what, line) in enumerate(lines, start=1):
            yield _line(line, x + _PADDING, y + _LINE * number + _PADDING / 12, what)
        yield "</g>"


def _label(box: Box) -> _Label:
    mark = f"{CRITICAL} " if box.seen and box.seen.is_critical else ""
    outside = taken_from_outside(box)
    said = [*([f"← {outside}"] if outside else []), *remarks(box)]
    status, time, calls, tokens = figures(box.seen) if box.seen else ("",) * 4
    seen = [" · ".join(filter(None, [status, time, calls])), tokens]
    return _Label(
        name=_shortened(mark + box_title(box)),
        said=tuple(map(_shortened, said)),
        figures=tuple(map(_shortened, filter(None, seen))),
    )


def _whole(box: Box) -> str:
    """All that a box says, for a pointer that rests on it."""
    outside = taken_from_outside(box)
    lines = [box_title(box), *([f"← {outside}"] if outside else []), *remarks(box)]
    return "\n".join([*lines, *(filter(None, figures(box.seen)) if box.seen else ())])


def _class(box: Box) -> str:
    if box.seen is None:
        return "node"
    status = "absent" if box.seen.status in _ABSENT else box.seen.status
    return f"node {status}{' critical' if box.seen.is_critical else ''}"


def _legend(drawing: Drawing) -> Iterator[str]:
    if any(box.is_mapped for box in drawing.boxes):
        yield MAPPED_MEANS
    if drawing.run and drawing.run.critical_path:
        yield CRITICAL_MEANS
    if line := unknown_line(drawing):
        yield line


def _shortened(line: str) -> str:
    if columns(line) <= _LONGEST:
        return line
    while columns(line) >= _LONGEST:
        line = line[:-1]
    return f"{line}…"


def _line(text: str, x: float, y: float, what: str) -> str:
    return f'<text class="{what}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
