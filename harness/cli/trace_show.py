"""One span of a run, with every text that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.tables import seconds
from harness.errors import InvalidInput
from harness.trace import Journal, SpanRecord, events
from harness.trace.records import figures, own_track, title

_TEXT = "_sha256"
"""How attributes end that name a text by its hash."""

_LABELS_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanShown:
    """A span, what lies directly in it, and its texts."""

    span: int
    name: str
    title: str
    track: str
    """The track that it starts; empty for a span on the track around it."""
    status: str
    error: str | None
    start_ns: int
    """From the run's start."""
    duration_ns: int
    around: tuple[str, ...]
    """The titles of the spans around it, outermost first."""
    attributes: Mapping[str, object]
    """Without the attributes that name its texts."""
    parts: tuple[tuple[str, int, int], ...] = ()
    """Title, start from the run's start, and duration of each span directly in it."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """By the attribute without its ending: `prompt`, `reply`, `draft`."""


def span_shown(journal: Journal, target: int | str) -> SpanShown:
    """Looks a span up by its number, or the last call of a node by its label."""
    titles: dict[int, tuple[str, int | None]] = {}
    labels: dict[str, None] = {}
    match: SpanRecord | None = None
    parts: list[SpanRecord] = []
    for span in journal.spans():
        titles[span.id] = title(span), span.parent
        is_node = events.NodeAttempt.of(span) is not None
        if is_node:
            labels[title(span)] = None
        if span.id == target or (is_node and title(span) == target):
            match, parts = span, []
        elif match is not None and span.parent == match.id:
            parts.append(span)
    if match is None:
        near = get_close_matches(str(target), labels, n=_LABELS_TOLD) or [*labels][:_LABELS_TOLD]
        calls = f"; calls of nodes: {', '.join(near)}" if near else ""
        raise InvalidInput(
            f"the run has no span {target}; a slice's arguments have its number as `span`{calls}",
            code="trace.no-such-span",
        )
    origin_ns = journal.started.time_ns
    hashes = {str(value) for name, value in match.attributes.items() if name.endswith(_TEXT)}
    texts = journal.texts(hashes)
    named = {
        name.removesuffix(_TEXT): texts[str(value)]
        for name, value in match.attributes.items()
        if name.endswith(_TEXT) and str(value) in texts
    }
    return SpanShown(
        span=match.id,
        name=match.name,
        title=title(match),
        track=own_track(match),
        status=match.status,
        error=match.error,
        start_ns=match.start_ns - origin_ns,
        duration_ns=match.duration_ns,
        around=(*_around(match.parent, titles),),
        attributes={
            name: value
            for name, value in match.attributes.items()
            if name.removesuffix(_TEXT) not in named and name not in {"label", "track"}
        },
        parts=tuple((title(part), part.start_ns - origin_ns, part.duration_ns) for part in parts),
        texts=named,
    )


def _around(parent: int | None, titles: Mapping[int, tuple[str, int | None]]) -> list[str]:
    chain: list[str] = []
    while parent is not None and parent in titles:
        caption, parent = titles[parent]
        chain.append(caption)
    return chain[::-1]


def print_span(details: SpanShown, console: Console) -> None:
    """Prints it: what it is, its figures, what lies in it, and its texts."""
    ended = "" if details.status == "ok" else f", {details.status}"
    where = " / ".join((*details.around, details.title))
    console.print(Text(where, style="bold"), soft_wrap=True)
    console.print(
        Text(
            f"{details.name}, span {details.span}{ended}: {seconds(details.duration_ns)} s from "
            f"second {seconds(details.start_ns)}"
        )
    )
    if details.error:
        console.print(Text(details.error, style="red"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in figures(details.attributes):
        table.add_row(Text(name, style="dim"), Text(value))
    for caption, start_ns, duration_ns in details.parts:
        took = f"{seconds(duration_ns)} s from second {seconds(start_ns)}"
        table.add_row(Text(caption, style="dim"), Text(took))
    console.print(table)
    for name, text in details.texts.items():
        console.print(Text(f"\n{name}", style="bold"))
        console.print(Text(text), soft_wrap=True)
