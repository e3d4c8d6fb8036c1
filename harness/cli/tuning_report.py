"""What `harness rubric tune` found, as a page for a browser or paper.

It has the sentences and tables of the terminal, and the texts of the worst disagreements. It loads
nothing and runs no script; it is light or dark by the reader's setting, and light on paper.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

from rich.table import Table

from harness.cli.consoles import clean
from harness.cli.tables import table
from harness.files import write_whole
from harness.rubric import Rubric
from harness.rubric.calibration.labels import COMPOSITE
from harness.rubric.calibration.tuning import Rated, Tuning

_NO_SCORES = "The labels have no scores by people, only decisions."
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def write_report(
    path: Path,
    tuning: Tuning,
    rubric: Rubric,
    *,
    origin: Mapping[str, str],
    claim: Iterable[str],
    remarks: Iterable[str],
    tables: Sequence[Table],
) -> None:
    """Writes the page, whole or not at all.

    `origin` is title → what the figures come from. The lines of `claim` and `remarks`, and the
    `tables`, of thresholds and of agreement, are those that the terminal shows.

    Raises:
        InvalidInput: It cannot be written.
    """
    thresholds, agreement = tables
    title = f"{rubric.title}: thresholds by labels"
    came_from = table("What these figures come from", "", "")
    for name, text in origin.items():
        came_from.add_row(name, text)
    parts = [
        _tag("h1", title),
        _tag("p", " ".join(line.strip() for line in claim), class_="claim"),
        "<ul class=lines>",
        *(_tag("li", line.strip()) for line in remarks),
        "</ul>",
        *_table(thresholds),
        *(_table(agreement) if tuning.agreements else [_tag("p", _NO_SCORES)]),
        *_disagreements(tuning),
        *_table(came_from),
    ]
    page = Template(Path(__file__).with_suffix(".html").read_text(encoding="utf-8"))
    html = page.substitute(title=_safe(title), main="\n".join(parts))
    write_whole(path, html.encode())


def _safe(text: str) -> str:
    # Cleaned before it is escaped: a secret with `&` in it would look different after.
    return escape(_CONTROLS.sub("\ufffd", clean(text)))


def _tag(name: str, text: str, **attributes: str) -> str:
    """An element with a text; the attribute `class` is given as `class_`."""
    words = [f'{key.rstrip("_")}="{value}"' for key, value in attributes.items()]
    return f"<{' '.join([name, *words])}>{_safe(text)}</{name}>"


def _table(rows: Table) -> Iterator[str]:
    """A heading and a table in a box that scrolls; each row's first cell is its heading."""
    title = str(rows.title)
    yield _tag("h2", title)
    # A keyboard can scroll only a box with a tab stop, and that needs a name.
    yield f'<div class=wide tabindex=0 role=group aria-label="{_safe(title)}"><table>'
    heads = [_tag("th", str(column.header), scope="col") for column in rows.columns]
    yield f"<tr>{''.join(heads)}</tr>"
    for first, *rest in zip(*(column.cells for column in rows.columns), strict=True):
        cells = [_tag("th", str(first), scope="row"), *(_tag("td", str(cell)) for cell in rest)]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</table></div>"


def _disagreements(tuning: Tuning) -> Iterator[str]:
    if not tuning.disagreements:
        return
    yield _tag("h2", "Decided otherwise than by people")
    others = " Of those that were not held back." if tuning.held_back else ""
    order = f"At the rubric's own threshold, the farthest from it first.{others}"
    yield _tag("p", order, class_="quiet")
    for draft in tuning.disagreements:
        labeled = draft.labeled
        decided = "people reject, the rubric accepts"
        if draft.accept:
            decided = "people accept, the rubric rejects"
        yield "<article>"
        yield _tag("h3", f"{labeled.id}: composite {draft.composite:g}; {decided}")
        yield _tag("p", ", ".join(_scores(draft)), class_="quiet")
        if labeled.task:
            yield _tag("p", f"Task: {labeled.task}", class_="quiet")
        yield _tag("pre", labeled.draft or "(The labels do not have its text.)", tabindex="0")
        yield "</article>"


def _scores(draft: Rated) -> Iterator[str]:
    for name, score in draft.scores.items():
        if name != COMPOSITE:
            people = draft.labeled.people.get(name)
            mean = f" (people {statistics.fmean(people.values()):.3g})" if people else ""
            yield f"{name} {score:g}{mean}"
