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


def span_shown(journal: Journal, wanted: int | str) -> SpanShown:
    """Looks a span up by its number, or the last call of a node by its label.

    Raises:
        InvalidInput: The run has no such span.
        JournalInvalid: A line in the middle is not a record.
    """
    titles: dict[int, tuple[str, int | None]] = {}
    labels: dict[str, None] = {}
    found: SpanRecord | None = None
    parts: list[SpanRecord] = []
    for span in journal.spans():
        titles[span.id] = title(span), span.parent
        is_node = events.NodeAttempt.of(span) is not None
        if is_node:
            labels[title(span)] = None
        if span.id == wanted or (is_node and title(span) == wanted):
            found, parts = span, []
        elif found is not None and span.parent == found.id:
            parts.append(span)
    if found is None:
        near = get_close_matches(str(wanted), labels, n=_LABELS_TOLD) or [*labels][:_LABELS_TOLD]
        calls = f"; calls of nodes: {', '.join(near)}" if near else ""
        raise InvalidInput(
            f"the run has no span {wanted}; a slice's arguments have its number as `span`{calls}",
            code="trace.no-such-span",
        )
    origin_ns = journal.started.time_ns
    hashes = {str(value) for name, value in found.attributes.items() if name.endswith(_TEXT)}
    texts = journal.texts(hashes)
    named = {
        name.removesuffix(_TEXT): texts[str(value)]
        for name, value in found.attributes.items()
        if name.endswith(_TEXT) and str(value) in texts
    }
    return SpanShown(
        span=found.id,
        name=found.name,
        title=title(found),
        track=own_track(found),
        status=found.status,
        error=found.error,
        start_ns=found.start_ns - origin_ns,
        duration_ns=found.duration_ns,
        around=(*_around(found.parent, titles),),
        attributes={
            name: value
            for name, value in found.attributes.items()
            if name.removesuffix(_TEXT) not in named and name not in {"label", "track"}
        },
        parts=tuple((title(one), one.start_ns - origin_ns, one.duration_ns) for one in parts),
        texts=named,
    )


def _around(parent: int | None, titles: Mapping[int, tuple[str, int | None]]) -> list[str]:
    chain: list[str] = []
    while parent is not None and parent in titles:
        said, parent = titles[parent]
        chain.append(said)
    return chain[::-1]


def print_span(shown: SpanShown, console: Console) -> None:
    """Prints it: what it is, its figures, what lies in it, and its texts."""
    ended = "" if shown.status == "ok" else f", {shown.status}"
    where = " / ".join((*shown.around, shown.title))
    console.print(Text(where, style="bold"), soft_wrap=True)
    console.print(
        Text(
            f"{shown.name}, span {shown.span}{ended}: {seconds(shown.duration_ns)} s from second "
            f"{seconds(shown.start_ns)}"
        )
    )
    if shown.error:
        console.print(Text(shown.error, style="red"))
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in figures(shown.attributes):
        table.add_row(Text(name, style="dim"), Text(value))
    for said, start_ns, duration_ns in shown.parts:
        took = f"{seconds(duration_ns)} s from second {seconds(start_ns)}"
        table.add_row(Text(said, style="dim"), Text(took))
    console.print(table)
    for name, text in shown.texts.items():
        console.print(Text(f"\n{name}", style="bold"))
        console.print(Text(text), soft_wrap=True)
