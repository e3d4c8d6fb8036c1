"""Where cells stand along their layer: near what they are joined to, in order, and apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

from harness.graph.picture.ordering import Cell, Rows

_SWEEPS = 24
_STRAIGHTNESS = 8.0
"""How much more it matters that a passing arrow runs straight than where a box stands."""


def cell_positions(rows: Rows, widths: Mapping[Cell, float], *, gap: float) -> dict[Cell, float]:
    """The middles of the cells; the first edge of all is at 0.

    Args:
        rows: The layers in order.
        widths: What each cell takes.
        gap: Between two of them.
    """
    at: dict[Cell, float] = {}
    for row in rows.rows:
        at |= zip(row, _packed(row, widths, gap=gap), strict=True)
    for sweep in range(_SWEEPS):
        # Down, up, down …; at the end, each between all of its neighbours.
        is_last = sweep >= _SWEEPS - 2
        joined = rows.before if sweep % 2 == 0 else rows.after
        for row in rows.rows if sweep % 2 == 0 else rows.rows[::-1]:
            wanted = []
            for cell in row:
                others = rows.neighbours(cell) if is_last else joined[cell]
                wanted.append(sum(at[one] for one in others) / len(others) if others else at[cell])
            weights = [_STRAIGHTNESS if _is_passage(cell, rows) else 1.0 for cell in row]
            packed = _packed(row, widths, gap=gap)
            at |= zip(row, nearest_apart(wanted, packed, weights), strict=True)
    first = min(at[cell] - widths[cell] / 2 for cell in at)
    return {cell: middle - first for cell, middle in at.items()}


def nearest_apart(
    wanted: Sequence[float], packed: Sequence[float], weights: Sequence[float]
) -> list[float]:
    """The positions nearest to those wanted, by squares, that are as far apart as when packed.

    The pool adjacent violators algorithm: what stands in each other's way moves as one.
    Barlow, Bartholomew, Bremner and Brunk, "Statistical Inference under Order Restrictions", 1972.

    Args:
        wanted: In order of the cells.
        packed: Where they would stand side by side.
        weights: How much it matters to each.
    """
    pools: list[tuple[float, float, int]] = []  # where to, by what weight, how many cells
    for one, offset, weight in zip(wanted, packed, weights, strict=True):
        shift, total, count = one - offset, weight, 1
        while pools and pools[-1][0] >= shift:
            other_shift, other_total, other_count = pools.pop()
            shift = (shift * total + other_shift * other_total) / (total + other_total)
            total, count = total + other_total, count + other_count
        pools.append((shift, total, count))
    shifts = [shift for shift, _, count in pools for _ in range(count)]
    return [shift + offset for shift, offset in zip(shifts, packed, strict=True)]


def _is_passage(cell: Cell, rows: Rows) -> bool:
    """Whether it is no box: what comes before it is of the same box."""
    return any(before[0] == cell[0] for before in rows.before[cell])


def _packed(row: Sequence[Cell], widths: Mapping[Cell, float], *, gap: float) -> list[float]:
    """Middles of cells that stand side by side, the first at 0."""
    steps = ((widths[one] + widths[other]) / 2 + gap for one, other in pairwise(row))
    return list(accumulate(steps, initial=0.0))
