"""A graph as text: a line for each node, from those that wait for nothing to those at the end.

No lines are drawn between nodes: each names what it takes, which is above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.graph.picture.drawing import Box, Drawing
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
    taken,
    unknown_line,
)

_LONGEST_TITLE = 40
"""Columns. A longer name moves what follows it, in its own line alone."""
_GAP = "  "


def as_text(drawing: Drawing, *, width: int = 100) -> str:
    """Lines that end with a newline each.

    Args:
        drawing: What to draw.
        width: Columns, beyond which a line goes on in the next; a name is never broken.
    """
    lines = [_headline(drawing), *filter(None, [run_line(drawing)])]
    if drawing.boxes:
        lines += ["", *_box_lines(drawing, width)]
    if legend := list(_legend(drawing)):
        lines += ["", *legend]
    return "".join(f"{line}\n" for line in lines)


def _headline(drawing: Drawing) -> str:
    nodes, layers = len(drawing.boxes), drawing.layers
    return (
        f"{printable(drawing.name)}: {nodes} node{'' if nodes == 1 else 's'} in {layers} "
        f"layer{'' if layers == 1 else 's'}; inputs: {', '.join(drawing.inputs) or 'none'}"
    )


def _box_lines(drawing: Drawing, width: int) -> Iterator[str]:
    """The nodes' lines: layer, mark, name, the run's figures in columns, what the node takes."""
    boxes = drawing.boxes
    layers = [
        "" if number and boxes[number - 1].layer == box.layer else str(box.layer + 1)
        for number, box in enumerate(boxes)
    ]
    marks = [CRITICAL if box.seen and box.seen.is_critical else "" for box in boxes]
    grid = [
        _column(layers, right=True),
        *([_column(marks)] if drawing.run else []),
        _column([box_title(box) for box in boxes]),
    ]
    if drawing.run:
        seen = [figures(box.seen) if box.seen else ("",) * 4 for box in boxes]
        grid += [_column(cells, right=True) for cells in zip(*seen, strict=True) if any(cells)]
    for box, cells in zip(boxes, zip(*grid, strict=True), strict=True):
        yield from _wrapped(_GAP.join(cells), list(_pieces(box)), width=width)


def _column(cells: Sequence[str], *, right: bool = False) -> list[str]:
    """The cells, padded to one width."""
    width = min(_LONGEST_TITLE, max(map(columns, cells)))
    padding = [" " * (width - columns(cell)) for cell in cells]
    return [
        space + cell if right else cell + space for cell, space in zip(cells, padding, strict=True)
    ]


def _pieces(box: Box) -> Iterator[str]:
    """What a node takes and what was said of it, in pieces between which a line may end."""
    last = len(box.arrows) - 1
    for number, arrow in enumerate(box.arrows):
        yield f"{'' if number else '← '}{taken(arrow)}{',' if number < last else ''}"
    if said := remarks(box):
        yield f"({'; '.join(said)})"


def _wrapped(start: str, pieces: Sequence[str], *, width: int) -> Iterator[str]:
    """A line, and those that it goes on in, under where its first piece stands."""
    indent = " " * columns(f"{start}{_GAP}← ")
    line = start + _GAP
    has_piece = False
    for piece in pieces:
        if has_piece and columns(line) + columns(piece) + 1 > width:
            yield line.rstrip()
            line, has_piece = indent, False
        line += f" {piece}" if has_piece else piece
        has_piece = True
    yield line.rstrip()


def _legend(drawing: Drawing) -> Iterator[str]:
    """What the signs mean, of those that there are."""
    signs = []
    if any(box.is_mapped for box in drawing.boxes):
        signs.append(MAPPED_MEANS)
    if any(arrow.way == "list" for box in drawing.boxes for arrow in box.arrows):
        signs.append("[] takes the list of all items")
    if drawing.run and drawing.run.critical_path:
        signs.append(CRITICAL_MEANS)
    if signs:
        yield "; ".join(signs)
    if line := unknown_line(drawing):
        yield line
