"""Where the boxes of a picture stand, and where its arrows run between them.

The method of Sugiyama, Tagawa and Toda ("Methods for Visual Understanding of Hierarchical System
Structures", IEEE Transactions on Systems, Man, and Cybernetics 11(2), 1981): layers; an order
within each by the middles of neighbours, swept to and fro; then positions. What passes a layer has
a place of its own there, so that no arrow runs through a box; all arrows that leave a node share
those places.

Positions are counted `across`, along a layer, and `along`, from layer to layer; which of them is
from left to right is for who draws to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from harness.graph.picture.ordering import Rows, ordered_rows
from harness.graph.picture.positions import cell_positions

_PASSAGE = 6.0
"""What a passing arrow takes of a layer."""
_PORTS = 0.7
"""The part of a box's side that arrows arrive at."""
_STEEPNESS, _MOST_STRETCH = 8.0, 2.5
"""Layers are apart by that part of their width, and by no more than so many times the least."""
_APART = 8.0
"""Arrows that arrive nearer to each other than that arrive at one point."""

Point = tuple[float, float]
"""Across and along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a box takes."""

    across: float
    """Of its layer."""
    along: float
    """From layer to layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A picture's positions, in the unit of the sizes; none is below 0."""

    boxes: Mapping[str, Point]
    """The middles of the boxes."""
    routes: Mapping[tuple[str, str], tuple[Point, ...]]
    """By source and target, the points that an arrow runs through. They come in pairs, with a
    straight line from the first to the second, and a bend from there to the next pair."""
    size: Size
    """Of the whole."""


def lay_out(
    layers: Sequence[Sequence[str]],
    edges: Sequence[tuple[str, str]],
    sizes: Mapping[str, Size],
    *,
    gap: float,
    layer_gap: float,
) -> Layout:
    """Finds places for boxes.

    Args:
        layers: The boxes of each layer; there is one at least.
        edges: From and to, none twice; each leads to a later layer.
        sizes: By box.
        gap: Between boxes of a layer.
        layer_gap: Between layers, at least; the wider they are, the more room arrows need.
    """
    layer_of = {name: layer for layer, names in enumerate(layers) for name in names}
    rows = ordered_rows(layers, edges)
    widths = {
        cell: sizes[cell[0]].across if layer_of[cell[0]] == cell[1] else _PASSAGE
        for row in rows.rows
        for cell in row
    }
    across = cell_positions(rows, widths, gap=gap)
    depths = [max(sizes[name].along for name in names) for names in layers]
    widest = max(across[cell] for cell in across)
    layer_gap = max(layer_gap, min(_MOST_STRETCH * layer_gap, widest / _STEEPNESS))
    starts = list(accumulate((depth + layer_gap for depth in depths), initial=0.0))
    extents = [(start, start + depth) for start, depth in zip(starts, depths, strict=False)]
    arriving = _ports(rows, layer_of, sizes, across)

    def route(source: str, target: str) -> Iterator[Point]:
        own, other = layer_of[source], layer_of[target]
        start, end = extents[own]
        yield across[source, own], (start + end + sizes[source].along) / 2
        yield across[source, own], end
        for layer in range(own + 1, other):
            yield from ((across[source, layer], edge) for edge in extents[layer])
        start, end = extents[other]
        yield arriving[source, target], start
        yield arriving[source, target], (start + end - sizes[target].along) / 2

    return Layout(
        boxes={
            name: (across[name, layer], sum(extents[layer]) / 2) for name, layer in layer_of.items()
        },
        routes={edge: tuple(route(*edge)) for edge in edges},
        size=Size(
            across=max(across[cell] + width / 2 for cell, width in widths.items()),
            along=extents[-1][1],
        ),
    )


def _ports(
    rows: Rows,
    layer_of: Mapping[str, int],
    sizes: Mapping[str, Size],
    across: Mapping[tuple[str, int], float],
) -> dict[tuple[str, str], float]:
    """Where each arrow arrives at its box: side by side, in the order of where they come from."""
    ports: dict[tuple[str, str], float] = {}
    for target, layer in layer_of.items():
        sources = sorted(
            (name for name, _ in rows.before[target, layer]),
            key=lambda name: across[name, layer - 1],
        )
        step = sizes[target].across * _PORTS / max(1, len(sources))
        # So many that their heads would be a smear: they meet in one.
        step = step if step >= _APART else 0.0
        first = across[target, layer] - step * (len(sources) - 1) / 2
        ports |= {(source, target): first + step * number for number, source in enumerate(sources)}
    return ports
