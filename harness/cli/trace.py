"""`harness trace`: a run's journal as a timeline, a report, a diagnosis, or checked for damage.

RUN is a run's id, any part of one, a file of the run, or `latest`.
"""

from __future__ import annotations

import sys
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.text import Text

from harness.cli.arguments import (
    LATEST,
    find_journal,
    json_option,
    read_pairs,
    traces_option,
)
from harness.cli.consoles import (
    Shown,
    failures_told,
    json_object,
    log_to_stderr,
    results,
    say,
    write_json,
)
from harness.cli.process import FAILED, UNUSABLE, LazyGroup, uncollected
from harness.errors import InvalidInput, did_you_mean
from harness.plugins import load_plugin, plugin_names
from harness.trace import TIMELINES, Exporter, ExportTarget, Journal

if TYPE_CHECKING:
    from harness.analysis.damage import FileCheck, JournalCheck
    from harness.cli.viewer import LoopbackServer

_RUN = click.argument("run", default=LATEST)

port_option = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the page; by default any free one.",
)

no_browser_option = click.option(
    "--no-browser", is_flag=True, help=("Print the address, and open no browser.")
)


_OPEN = {
    "open": (
        "harness.cli.trace_open:open_run",
        "Show a run in the Perfetto UI, served from this machine.",
    )
}


@click.group(cls=LazyGroup, lazy=_OPEN)
def trace() -> None:
    """Inspect a run: RUN is its id, a part of it, one of its files, or "latest"."""
    log_to_stderr()


@trace.command()
@_RUN
@traces_option
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
    run: str,
    traces: Path | None,
    form: str,
    *,
    output: Path | None,
    endpoint: str | None,
    headers: tuple[str, ...],
    content: bool,
) -> None:
    """Write a run as a timeline, or send it to a collector. The run may still be going."""
    with complaints(), uncollected():
        timeline = next((TIMELINES[name] for name in TIMELINES if name == form), None)
        if timeline is None:
            if form not in (names := plugin_names("exporters")):
                raise InvalidInput(
                    f"no exporter '{form}' is installed; "
                    + did_you_mean(form, [*TIMELINES, *names]),
                    code="option.format-unknown",
                )
            export_run: Exporter = load_plugin("exporters", form, callable)
        elif endpoint or headers or content:
            raise InvalidInput(
                f"{form} writes a file; --endpoint, --header and --content are for exporters that "
                "send, such as --format otlp",
                code="option.not-for-timelines",
            )
        journal = _journal(run, traces)
        if timeline is not None:
            suffix, write = timeline
            path = output or journal.path.with_suffix(suffix)
            with Shown(stderr=True).status(f"Writing {path} …"):
                write(journal, path)
            say(path)
            return
        target = ExportTarget(
            output=output,
            endpoint=endpoint,
            headers=read_pairs(headers, option="--header", form="NAME=VALUE"),
            content=content,
        )
        with Shown(stderr=True).status(f"Exporting to {endpoint or output or form} …"):
            outcome = export_run(journal, target)
        say(outcome)


@trace.command()
@_RUN
@traces_option
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
def report(
    run: str,
    traces: Path | None,
    *,
    ttft_ms: int,
    itl_ms: int,
    as_json: bool,
) -> None:
    """Show where the time, the tokens and the money went."""
    from harness.analysis import Targets, report_of  # noqa: PLC0415
    from harness.cli.trace_report import print_report  # noqa: PLC0415 - as above

    targets = Targets(ttft_ns=ttft_ms * 1_000_000, itl_ns=itl_ms * 1_000_000)
    with complaints(as_json=as_json), uncollected():
        run_report = report_of(_journal(run, traces), targets=targets)
    if as_json:
        write_json(json_object(run_report))
    else:
        print_report(run_report, results())


@trace.command()
@click.argument("span")
@_RUN
@traces_option
@json_option
def show(span: str, run: str, traces: Path | None, *, as_json: bool) -> None:
    """Show one SPAN, by its number, with its figures and texts: a call's prompt and reply, say.

    A node's call has a label too: 'findings[2]', or for a row of a batch 'rows[17]'.
    """
    from harness.cli.trace_show import print_span, span_shown  # noqa: PLC0415

    with complaints(as_json=as_json):
        details = span_shown(_journal(run, traces), int(span) if span.isdecimal() else span)
    if as_json:
        write_json(json_object(details))
    else:
        print_span(details, results())


@trace.command()
@_RUN
@traces_option
@json_option
def rounds(run: str, traces: Path | None, *, as_json: bool) -> None:
    """Show each round of a run's loops: scores, reasons, candidates, what changed."""
    from harness.cli.rounds import print_rounds, rounds_as_json  # noqa: PLC0415 - imports rubrics

    with complaints(as_json=as_json):
        journal = _journal(run, traces)
        if as_json:
            write_json(json_object({"loops": rounds_as_json(journal)}))
        else:
            print_rounds(journal, results())


@trace.command()
@_RUN
@traces_option
@json_option
def diagnose(run: str, traces: Path | None, *, as_json: bool) -> None:
    """Name what cost time or failed, what it means, and what to change."""
    from harness.analysis import diagnose as findings_of  # noqa: PLC0415
    from harness.cli.trace_report import print_findings  # noqa: PLC0415

    with complaints(as_json=as_json), uncollected():
        findings = findings_of(_journal(run, traces))
    if as_json:
        write_json(json_object(findings))
    else:
        print_findings(findings, results())


@trace.command()
@_RUN
@traces_option
@json_option
def check(run: str, traces: Path | None, *, as_json: bool) -> None:
    """Show whether a journal is whole; what was under way at its end stands in the report.

    Exit codes: 0 it is whole, 1 it is not, 2 there is no such run.
    """
    from harness.analysis.damage import check_journal  # noqa: PLC0415

    with complaints(as_json=as_json):
        checked = check_journal(find_journal(run, traces))
    if as_json:
        write_json(json_object(_check_fields(checked)))
    else:
        print_check(checked, results())
    sys.exit(0 if checked.is_whole else FAILED)


def _journal(run: str, traces: Path | None) -> Journal:
    return Journal(find_journal(run, traces))


@contextmanager
def complaints(*, as_json: bool = False) -> Iterator[None]:
    """Turns errors into words and exit codes, also for files that cannot be written."""
    try:
        with failures_told(as_json=as_json, of_journals=True):
            yield
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        say(f"harness: {place}{error.strerror}", err=True)
        sys.exit(UNUSABLE)


def print_check(checked: JournalCheck, console: Console) -> None:
    """Prints the state and the problems of each file."""
    last = checked.files[-1].part
    for file in checked.files:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(file.records.items()))
        verdict = _verdict(file, is_of_last_part=file.part == last)
        part = f" (part {file.part})" if last else ""
        console.print(Text(f"{file.path}{part}: {verdict}"), soft_wrap=True)
        console.print(Text(f"records: {kinds or 'none'}"), style="dim")
        for problem in file.problems:
            line = "" if problem.line is None else f"line {problem.line}: "
            console.print(Text(f"{line}{problem.message}"), style="red")


def _check_fields(checked: JournalCheck) -> object:
    return to_jsonable_python(  # for its paths
        {
            "is_whole": checked.is_whole,
            "is_readable": checked.is_readable,
            "run_id": checked.run_id,
            "parts": len(checked.files),
            "files": [
                {"is_whole": file.is_whole, "is_readable": file.is_readable, **asdict(file)}
                for file in checked.files
            ],
        }
    )


def _verdict(file: FileCheck, *, is_of_last_part: bool) -> str:
    if file.run_id is None:
        is_torn = file.torn_bytes > 0 and not file.problems
        return "killed in its first line, or not a journal" if is_torn else "not a journal"
    if file.problems:
        return "damaged"
    if file.is_whole:
        return f"whole; the run ended: {file.ended}"
    torn = f", in the middle of a line ({file.torn_bytes} bytes)" if file.torn_bytes else ""
    why = "killed, or still going" if is_of_last_part else "killed; it was resumed"
    return f"readable, but it stops before the run's end{torn}: {why}"


def show_served(server: LoopbackServer, what: str, *, open_browser: bool, anchor: str = "") -> None:
    """Serves until the last tab is closed; standard error has the address."""
    url = server.url + anchor
    # Not cleaned of secrets: without its token, the address opens nothing.
    click.echo(f"{what} at {url} (close the tab or press Ctrl-C to stop)", err=True)
    if open_browser:
        # Some browsers, such as those in a terminal, block their caller until they end.
        threading.Thread(target=webbrowser.open, args=[url], daemon=True).start()
    server.serve_until_closed()
