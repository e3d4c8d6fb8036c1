"""`harness trace open`: a run in the Perfetto UI; without the UI, as the page of `harness view`."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path

import click

from harness.cli.arguments import LATEST, find_journal, traces_option
from harness.cli.consoles import Shown, say
from harness.cli.trace import complaints, no_browser_option, port_option, show_served
from harness.cli.trace_show import span_shown
from harness.cli.view import serve_page
from harness.cli.viewer import TraceViewer, perfetto_ui
from harness.errors import InvalidInput
from harness.trace import TIMELINES, Journal
from harness.trace.journal_reader import JOURNAL_SUFFIX


@click.command("open")
@click.argument("run", default=LATEST)
@traces_option
@port_option
@no_browser_option
@click.option(
    "--span",
    type=click.IntRange(min=1),
    metavar="N",
    help="Select this span, by its number, and zoom to it.",
)
def open_run(
    run: str, traces: Path | None, port: int, span: int | None, *, no_browser: bool
) -> None:
    """Show a run in the Perfetto UI, served from this machine: nothing is uploaded.

    Ends when the tab is closed, or on Ctrl-C. Where the UI is not installed, the page of harness
    view is shown instead.
    """
    console = Shown(stderr=True)
    with complaints():
        try:
            perfetto_ui()
        except InvalidInput as missing:
            _show_page(run, traces, missing, span=span, port=port, open_browser=not no_browser)
            return
        path = Path(run)
        is_timeline = path.suffix not in {"", JOURNAL_SUFFIX} and path.exists()
        with tempfile.TemporaryDirectory(prefix="harness-open-") as folder:
            timeline, at = path, None
            if not is_timeline or span is not None:
                journal = Journal(find_journal(run, traces))
                if span is not None:
                    details = span_shown(journal, span)
                    at = details.start_ns, details.duration_ns, details.track
                timeline = Path(folder, journal.path.stem + TIMELINES["perfetto"][0])
                with console.status("Drawing the timeline …"):
                    TIMELINES["perfetto"][1](journal, timeline)
            try:
                show_timeline(timeline, open_browser=not no_browser, port=port, at=at)
            except KeyboardInterrupt:
                # The usual way to end it, not a failure.
                console.print("closed", style="dim")


def _show_page(
    run: str,
    traces: Path | None,
    missing: InvalidInput,
    *,
    span: int | None,
    port: int,
    open_browser: bool,
) -> None:
    """Shows the run as a page, and says how to see its timeline.

    Raises:
        InvalidInput: There is no such run, or `run` is a timeline without its journal.
    """
    try:
        journal = find_journal(run, traces)
    except InvalidInput as error:
        is_other_file = error.code in {"run.journal-missing", "run.not-its-file"}
        raise (missing if is_other_file else error) from None
    suffix, write = TIMELINES["perfetto"]
    timeline = journal.with_suffix(suffix)
    if not timeline.exists():
        with suppress(OSError):  # the folder may be somebody else's
            write(Journal(journal), timeline)
    say(f"harness: {missing}", err=True)
    if timeline.exists():
        say(f"The timeline: {timeline}", err=True)
    anchor = "" if span is None else f"#call-{span}"
    serve_page(journal, port=port, open_browser=open_browser, anchor=anchor)


def show_timeline(
    trace: Path,
    *,
    open_browser: bool = True,
    port: int = 0,
    at: tuple[int, int, str] | None = None,
) -> None:
    """Shows a trace in Perfetto until its tab is closed; Ctrl-C comes out as it is.

    `at` is start, duration and track of the slice to select; port 0 is any free one.

    Raises:
        InvalidInput: There is no such file, the port is taken, or the UI is not installed.
    """
    with TraceViewer(trace, port=port, at=at) as viewer:
        show_served(viewer, "Perfetto", open_browser=open_browser)
