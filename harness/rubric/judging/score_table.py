"""Scores in the rows of a Markdown table."""

from __future__ import annotations

import re

from harness.rubric.judging.labels import Labels
from harness.rubric.judging.stated_score import StatedScore, score_at
from harness.rubric.rubric import Scale

_MOST_CELLS = 20


def score_column(row: str) -> int | None:
    """Which column has the scores, if this row is the head of a table that says so."""
    titles = [row[start:end].strip(" \t*_\r").casefold() for start, end in _cells(row)]
    is_score = [re.match(r"(?:score|rating|grade)\b", title) is not None for title in titles]
    return is_score.index(True) if sum(is_score) == 1 else None


def score_in_row(
    row: str, *, labels: Labels, scale: Scale, column: int | None
) -> tuple[str, StatedScore] | None:
    """The dimension that a row is about and its score.

    The score stands in the column of scores; where none is known, in the only cell that has one and
    nothing else.
    """
    cells = _cells(row)
    # The first column may number them.
    names = (labels.find(row[start:end]) for start, end in cells[:2])
    name = next((name for name in names if name), None)
    if name is None:
        return None
    if column is not None:
        stated = score_at(row, *cells[column], scale) if column < len(cells) else None
        return (name, stated) if stated else None
    found = [stated for start, end in cells[1:] if (stated := score_at(row, start, end, scale))]
    whole = [one for one in found if re.match(r"[ \t*_]*(?:\||\r?\Z)", row[one.behind :])]
    return (name, whole[0]) if len(whole) == 1 else None


def _cells(row: str) -> list[tuple[int, int]]:
    """Where the cells of a row begin and end."""
    bars = [bar.start() for bar in re.finditer(r"\|", row)][: _MOST_CELLS + 1]
    return [(bar + 1, end) for bar, end in zip(bars, [*bars[1:], len(row)], strict=True)]
