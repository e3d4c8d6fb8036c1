"""A graph as Mermaid's flowchart, for a Markdown file.

https://mermaid.js.org/syntax/flowchart.html

Every text stands in quotes, with what Mermaid or HTML would read as more than a letter written as
an entity; the ids are numbers, since a name may be a word of the language, such as `end`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import orjson

from harness.graph.picture.drawing import Box, Drawing, Way
from harness.graph.picture.words import (
    CRITICAL,
    MAPPED,
    box_title,
    figures,
    printable,
    remarks,
    run_line,
    taken_from_outside,
)

_MEAN_NOTHING = frozenset(f" _-.,:/()[]+=→←·{MAPPED}{CRITICAL}")
"""Signs that are themselves within quotes, as letters and digits are."""
_ARROWS: Mapping[Way, str] = {
    "value": "-->",
    "item": "-- each -->",
    "list": "-->",
    "when": "-. when .->",
}
_CRITICAL_ARROWS: Mapping[Way, str] = {
    **_ARROWS,
    "value": "==>",
    "item": "== each ==>",
    "list": "==>",
}
_ABSENT = {"skipped", "not run"}


def as_mermaid(drawing: Drawing) -> str:
    """The text of a flowchart; ends with a newline."""
    return "".join(f"{line}\n" for line in _lines(drawing))


def _lines(drawing: Drawing) -> Iterator[str]:
    yield from ("---", f"title: {_title(drawing)}", "---", f"flowchart {drawing.direction}")
    ids = {box.name: f"n{number}" for number, box in enumerate(drawing.boxes)}
    for box in drawing.boxes:
        opening, closing = _shape(box)
        label = "<br/>".join(map(_escaped, _label(box)))
        yield f'    {ids[box.name]}{opening}"{label}"{closing}'
    for box in drawing.boxes:
        for arrow in box.arrows:
            if not arrow.is_input:
                line = (_CRITICAL_ARROWS if arrow.is_critical else _ARROWS)[arrow.way]
                yield f"    {ids[arrow.source]} {line} {ids[box.name]}"
    yield from _classes(drawing, ids)


def _title(drawing: Drawing) -> str:
    """The picture's title as a text of YAML, whose quotes JSON's are too."""
    said = " · ".join(filter(None, [printable(drawing.name), run_line(drawing)]))
    return orjson.dumps(said).decode()


def _shape(box: Box) -> tuple[str, str]:
    """A box with double sides is called once per item; a hexagon may be skipped."""
    if box.is_mapped:
        return "[[", "]]"
    return ("{{", "}}") if box.when else ("(", ")")


def _label(box: Box) -> Iterator[str]:
    critical = f"{CRITICAL} " if box.seen and box.seen.is_critical else ""
    yield critical + box_title(box)
    if outside := taken_from_outside(box):
        yield f"← {outside}"
    yield from remarks(box)
    if box.seen and (said := " · ".join(filter(None, figures(box.seen)))):
        yield said


def _classes(drawing: Drawing, ids: Mapping[str, str]) -> Iterator[str]:
    critical = [ids[box.name] for box in drawing.boxes if box.seen and box.seen.is_critical]
    absent = [ids[box.name] for box in drawing.boxes if box.seen and box.seen.status in _ABSENT]
    for name, style, members in (
        ("critical", "stroke-width:4px", critical),
        ("absent", "stroke-dasharray:5 4", absent),
    ):
        if members:
            yield f"    classDef {name} {style}"
            yield f"    class {','.join(members)} {name}"


def _escaped(text: str) -> str:
    return "".join(
        sign if sign.isalnum() or sign in _MEAN_NOTHING else f"#{ord(sign)};" for sign in text
    )
