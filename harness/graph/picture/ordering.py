"""In which order the boxes of each layer stand, so that few arrows cross."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 16

Cell = tuple[str, int]
"""A box, or a place where what leaves it passes a later layer: the box's name, and the layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The layers' cells in order, and how they are joined."""

    rows: tuple[tuple[Cell, ...], ...]
    """From left to right, or from the top down."""
    before: Mapping[Cell, tuple[Cell, ...]]
    """What each is joined to in the layer before."""
    after: Mapping[Cell, tuple[Cell, ...]]
    """What each is joined to in the next layer."""

    def neighbours(self, cell: Cell) -> tuple[Cell, ...]:
        """On both sides."""
        return (*self.before[cell], *self.after[cell])

    def crossings(self) -> int:
        """Pairs of joints between layers that cross."""
        return sum(_crossings(row, below, self.after) for row, below in pairwise(self.rows))


def ordered_rows(layers: Sequence[Sequence[str]], edges: Sequence[tuple[str, str]]) -> Rows:
    """The best of some sweeps, each of which sorts every layer by its neighbours' middle.

    Args:
        layers: The boxes of each; where nothing speaks against it, they stay in this order.
        edges: From and to; each leads to a later layer.
    """
    best = rows = _joined(layers, edges)
    fewest = best.crossings()
    for sweep in range(_SWEEPS):
        if fewest == 0:
            break
        rows = _swept(rows, is_down=sweep % 2 == 0)
        crossings = rows.crossings()
        if crossings < fewest:
            best, fewest = rows, crossings
    return best


def _joined(layers: Sequence[Sequence[str]], edges: Sequence[tuple[str, str]]) -> Rows:
    layer_of = {name: layer for layer, names in enumerate(layers) for name in names}
    rows: list[list[Cell]] = [
        [(name, layer) for name in names] for layer, names in enumerate(layers)
    ]
    # Dictionaries for sets that keep their order.
    before: dict[Cell, dict[Cell, None]] = {cell: {} for row in rows for cell in row}
    after: dict[Cell, dict[Cell, None]] = {cell: {} for row in rows for cell in row}
    for source, target in edges:
        cell = (source, layer_of[source])
        for layer in range(layer_of[source] + 1, layer_of[target] + 1):
            next_cell = (target if layer == layer_of[target] else source, layer)
            if next_cell not in before:
                before[next_cell], after[next_cell] = {}, {}
                rows[layer].append(next_cell)
            after[cell][next_cell] = None
            before[next_cell][cell] = None
            cell = next_cell
    return Rows(
        rows=tuple(tuple(row) for row in rows),
        before={cell: tuple(joined) for cell, joined in before.items()},
        after={cell: tuple(joined) for cell, joined in after.items()},
    )


def _swept(rows: Rows, *, is_down: bool) -> Rows:
    """Every layer sorted by the layer before it, from the top down; or the other way round."""
    joined = rows.before if is_down else rows.after
    place: dict[Cell, float] = {}
    swept = []
    for row in rows.rows if is_down else rows.rows[::-1]:
        middles = {
            cell: sum(place[other] for other in joined[cell]) / len(joined[cell])
            for cell in row
            if joined[cell]
        }
        # What is joined to nothing there stays where it is among the others.
        own = iter(sorted(middles, key=middles.__getitem__))
        swept.append(tuple(next(own) if cell in middles else cell for cell in row))
        place |= {cell: number / max(1, len(row) - 1) for number, cell in enumerate(swept[-1])}
    return Rows(rows=tuple(swept if is_down else swept[::-1]), before=rows.before, after=rows.after)


def _crossings(
    row: Sequence[Cell], below: Sequence[Cell], after: Mapping[Cell, Sequence[Cell]]
) -> int:
    place = {cell: number for number, cell in enumerate(below)}
    seen: list[int] = []
    crossings = 0
    for cell in row:
        ends = [place[other] for other in after[cell]]
        # Two cross where the one that begins further left ends further right.
        crossings += sum(len(seen) - bisect_right(seen, end) for end in ends)
        for end in ends:
            insort(seen, end)
    return crossings
