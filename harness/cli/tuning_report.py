"""What `harness rubric tune` found, as a page for a browser or paper.

It has the sentences and tables of the terminal, and the texts of the worst disagreements. It loads
nothing and runs no script; it is light or dark by the reader's setting, and light on paper.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from rich.table import Table

from harness.cli.consoles import clean
from harness.files import write_whole
from harness.rubric import Rubric
from harness.rubric.calibration.labels import COMPOSITE
from harness.rubric.calibration.tuning import Tuning

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
    title = f"{rubric.title}: thresholds by labels"
    # Even if a text's markup got in, a browser would load nothing.
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    meta: list[dict[str, str]] = [
        {"charset": "utf-8"},
        {"http-equiv": "Content-Security-Policy", "content": policy},
        {"name": "viewport", "content": "width=device-width, initial-scale=1"},
        {"name": "color-scheme", "content": "light dark"},
    ]
    style = Path(__file__).with_suffix(".css").read_text(encoding="utf-8")
    head = _element("head", *(Element("meta", attributes) for attributes in meta))
    head.extend([_text("title", title), _text("style", style)])
    main = _element(
        "main",
        _text("h1", title),
        _text("p", " ".join(line.strip() for line in claim), class_="claim"),
        _element("ul", *(_text("li", line.strip()) for line in remarks), class_="lines"),
        _text("h2", "Thresholds"),
        *(_as_html(rows) for rows in tables[:1]),
        _text("h2", "Evaluator and people"),
        *([] if tuning.agreements else [_text("p", _NO_SCORES)]),
        *(_as_html(rows) for rows in tables[1:] if rows.row_count),
        *_disagreements(tuning),
        _table("What these figures come from", ["", ""], [*origin.items()]),
    )
    html = _element("html", head, _element("body", main), lang="en")
    for node in html.iter():
        # Before `tostring` escapes it: a secret with `&` in it would look different after.
        node.text = _CONTROLS.sub("\ufffd", clean(node.text or ""))
        for name, value in node.items():
            node.set(name, _CONTROLS.sub("\ufffd", clean(value)))
    page = tostring(html, encoding="unicode", method="html")
    write_whole(path, f"<!doctype html>\n{page}\n".encode())


def _element(tag: str, *children: Element, **attributes: str) -> Element:
    """An element; the attribute `class` is given as `class_`, and `aria-label` as `aria_label`."""
    named = {name.strip("_").replace("_", "-"): value for name, value in attributes.items()}
    node = Element(tag, named)
    node.extend(children)
    return node


def _text(tag: str, text: str, **attributes: str) -> Element:
    node = _element(tag, **attributes)
    node.text = text
    return node


def _as_html(rows: Table) -> Element:
    columns = [[str(cell) for cell in column.cells] for column in rows.columns]
    head = [str(column.header) for column in rows.columns]
    return _table(str(rows.title), head, list(zip(*columns, strict=True)))


def _table(caption: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    """A table in a box that scrolls; the first cell of each row is its heading."""
    lines = [
        _element("tr", _text("th", row[0], scope="row"), *(_text("td", cell) for cell in row[1:]))
        for row in rows
    ]
    table = _element(
        "table",
        _text("caption", caption),
        _element("thead", _element("tr", *(_text("th", name, scope="col") for name in head))),
        _element("tbody", *lines),
    )
    # A keyboard can scroll only a box with a tab stop, and that needs a name.
    return _element("div", table, class_="wide", tabindex="0", role="group", aria_label=caption)


def _disagreements(tuning: Tuning) -> Iterator[Element]:
    if not tuning.disagreements:
        return
    yield _text("h2", "Decided otherwise than by people")
    yield _text("p", "At the rubric's own threshold, the farthest from it first.", class_="quiet")
    for draft in tuning.disagreements:
        labeled = draft.labeled
        scores: list[str] = []
        for name, score in draft.scores.items():
            if name != COMPOSITE:
                people = labeled.people.get(name)
                mean = f" (people {statistics.fmean(people.values()):.3g})" if people else ""
                scores.append(f"{name} {score:g}{mean}")
        lines = [", ".join(scores)]
        if labeled.task:
            lines.append(f"Task: {labeled.task}")
        decided = "people reject, the rubric accepts"
        if draft.accept:
            decided = "people accept, the rubric rejects"
        yield _element(
            "article",
            _text("h3", f"{labeled.id}: composite {draft.composite:g}; {decided}"),
            *(_text("p", line, class_="quiet") for line in lines),
            _text("pre", labeled.draft or "(The labels do not have its text.)", tabindex="0"),
        )
