"""`harness trace`: a run's journal as a timeline, a report, a diagnosis, or one of its spans.

RUN is a run's id, any part of one, a file of the run, or `latest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.arguments import json_option, of_run, read_pairs
from harness.cli.consoles import Group, JournalCommand, Shown, say, show
from harness.cli.tables import seconds
from harness.errors import InvalidInput, did_you_mean
from harness.plugins import load_plugin, plugin_names
from harness.trace import TIMELINES, Exporter, ExportTarget, Journal, SpanRecord, events
from harness.trace.records import figures, own_track, title

# The ending of attributes that name a text by its hash.
_TEXT = "_sha256"
_LABELS_SHOWN = 5
_OPEN = "harness.cli.view:open_run", "Show a run in the Perfetto UI, served from this machine."


@click.group(cls=Group, lazy={"open": _OPEN})
def trace() -> None:
    """Inspect a run: RUN is its id, a part of it, one of its files, or "latest"."""


@trace.command(cls=JournalCommand)
@of_run
@click.option(
    "--format",
    "form",
    metavar="NAME",
    default="perfetto",
    show_default=True,
    help="chrome, perfetto, otlp (sent to an OpenTelemetry collector), or an exporter that is "
    "installed.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="File to write; a timeline stands beside the journal by default.",
)
@click.option("--endpoint", help="Where to send it: a collector, such as http://127.0.0.1:6006.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="An HTTP header to send along. May be repeated.",
)
@click.option("--content", is_flag=True, help="Send prompts and replies too.")
def export(
    journal: Path,
    form: str,
    *,
    output: Path | None,
    endpoint: str | None,
    headers: tuple[str, ...],
    content: bool,
) -> None:
    """Write a run as a timeline, or send it to a collector. The run may still be going."""
    for name, (suffix, write) in TIMELINES.items():
        if name != form:
            continue
        if endpoint or headers or content:
            raise InvalidInput(
                f"{form} writes a file; --endpoint, --header and --content are for exporters that "
                "send, such as --format otlp",
                code="option.not-for-timelines",
            )
        path = output or journal.with_suffix(suffix)
        with Shown(stderr=True).status(f"Writing {path} …"):
            write(Journal(journal), path)
        say(path)
        return
    if form not in (names := plugin_names("exporters")):
        raise InvalidInput(
            f"no exporter '{form}' is installed; " + did_you_mean(form, [*TIMELINES, *names]),
            code="option.format-unknown",
        )
    export_run: Exporter = load_plugin("exporters", form, callable)
    target = ExportTarget(
        output=output,
        endpoint=endpoint,
        headers=read_pairs(headers, option="--header", form="NAME=VALUE"),
        content=content,
    )
    with Shown(stderr=True).status(f"Exporting to {endpoint or output or form} …"):
        outcome = export_run(Journal(journal), target)
    say(outcome)


@trace.command(cls=JournalCommand)
@of_run
@click.option(
    "--ttft-ms",
    type=click.IntRange(min=0),
    default=500,
    show_default=True,
    help="Target for the time to the first token, in ms.",
)
@click.option(
    "--itl-ms",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Target for the time between tokens, in ms.",
)
@json_option
def report(journal: Path, *, ttft_ms: int, itl_ms: int, as_json: bool) -> None:
    """Show where the time, the tokens and the money went."""
    from harness.analysis import Targets, report_of  # noqa: PLC0415
    from harness.cli.trace_report import print_report  # noqa: PLC0415 - as above

    targets = Targets(ttft_ns=ttft_ms * 1_000_000, itl_ns=itl_ms * 1_000_000)
    show(report_of(Journal(journal), targets=targets), print_report, as_json=as_json)


@trace.command("show", cls=JournalCommand)
@click.argument("span")
@of_run
@json_option
def show_span(span: str, journal: Path, *, as_json: bool) -> None:
    """Show one SPAN, by its number, with its figures and texts: a call's prompt and reply, say.

    A node's call has a label too: 'findings[2]', or for a row of a batch 'rows[17]'.
    """
    details = span_shown(Journal(journal), int(span) if span.isdecimal() else span)
    show(details, print_span, as_json=as_json)


@trace.command(cls=JournalCommand)
@of_run
@json_option
def rounds(journal: Path, *, as_json: bool) -> None:
    """Show each round of a run's loops: scores, reasons, candidates, what changed."""
    from harness.cli.rounds import print_rounds, rounds_as_json  # noqa: PLC0415 - imports rubrics

    show(
        Journal(journal),
        print_rounds,
        as_json=as_json,
        fields=lambda journal: {"loops": rounds_as_json(journal)},
    )


@trace.command(cls=JournalCommand)
@of_run
@json_option
def diagnose(journal: Path, *, as_json: bool) -> None:
    """Name what cost time or failed, what it means, and what to change."""
    from harness.analysis import diagnose as findings_of  # noqa: PLC0415
    from harness.cli.trace_report import print_findings  # noqa: PLC0415

    show(findings_of(Journal(journal)), print_findings, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanShown:
    """A span, what lies directly in it, and its texts."""

    span: int
    name: str
    title: str
    track: str  # the track that it begins; empty if it lies on the track around it
    status: str
    error: str | None
    start_ns: int  # from the run's start
    duration_ns: int
    around: tuple[str, ...]  # the titles of the spans around it, outermost first
    attributes: Mapping[str, object]  # without those that name its texts
    # Title, start from the run's start, and duration of each span directly in it.
    parts: tuple[tuple[str, int, int], ...]
    texts: Mapping[str, str]  # name, such as `prompt`, `reply` or `draft` → text


def span_shown(journal: Journal, target: int | str) -> SpanShown:
    """Looks a span up by its number, or the last call of a node by its label."""
    span, parts, around = _find_span(journal, target)
    origin_ns = journal.started.time_ns
    hashes = {
        name.removesuffix(_TEXT): str(value)
        for name, value in span.attributes.items()
        if name.endswith(_TEXT)
    }
    text_by_hash = journal.texts({*hashes.values()})
    texts = {name: text_by_hash[sha] for name, sha in hashes.items() if sha in text_by_hash}
    return SpanShown(
        span=span.id,
        name=span.name,
        title=title(span),
        track=own_track(span),
        status=span.status,
        error=span.error,
        start_ns=span.start_ns - origin_ns,
        duration_ns=span.duration_ns,
        around=around,
        attributes={
            name: value
            for name, value in span.attributes.items()
            if name.removesuffix(_TEXT) not in texts and name not in {"label", "track"}
        },
        parts=tuple((title(part), part.start_ns - origin_ns, part.duration_ns) for part in parts),
        texts=texts,
    )


def _find_span(
    journal: Journal, target: int | str
) -> tuple[SpanRecord, list[SpanRecord], tuple[str, ...]]:
    """The span, the spans directly in it, and the titles of those around it, outermost first."""
    titles: dict[int, tuple[str, int | None]] = {}  # span → its title and the span around it
    labels: dict[str, None] = {}
    match: SpanRecord | None = None
    parts: list[SpanRecord] = []
    for span in journal.spans():
        titles[span.id] = title(span), span.parent
        is_node = events.NodeAttempt.of(span) is not None
        if is_node:
            labels[title(span)] = None
        if span.id == target or (is_node and title(span) == target):
            match = span
            parts = []
        elif match is not None and span.parent == match.id:
            parts.append(span)
    if match is None:
        near = get_close_matches(str(target), labels, n=_LABELS_SHOWN) or [*labels][:_LABELS_SHOWN]
        calls = f"; calls of nodes: {', '.join(near)}" if near else ""
        raise InvalidInput(
            f"the run has no span {target}; a slice's arguments have its number as `span`{calls}",
            code="trace.no-such-span",
        )
    around: list[str] = []
    parent = match.parent
    while parent is not None and parent in titles:
        caption, parent = titles[parent]
        around.insert(0, caption)
    return match, parts, tuple(around)


def print_span(details: SpanShown, console: Console) -> None:
    """Prints a span: its place, its figures, the spans in it, and its texts."""
    ended = "" if details.status == "ok" else f", {details.status}"
    time = f"{seconds(details.duration_ns)} s from second {seconds(details.start_ns)}"
    path = " / ".join((*details.around, details.title))
    console.print(path, style="bold", soft_wrap=True)
    console.print(f"{details.name}, span {details.span}{ended}: {time}")
    if details.error:
        console.print(details.error, style="red")
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in figures(details.attributes):
        table.add_row(Text(name, style="dim"), value)
    for caption, start_ns, duration_ns in details.parts:
        took = f"{seconds(duration_ns)} s from second {seconds(start_ns)}"
        table.add_row(Text(caption, style="dim"), took)
    console.print(table)
    for name, text in details.texts.items():
        console.print(f"\n{name}", style="bold")
        console.print(text, soft_wrap=True)
