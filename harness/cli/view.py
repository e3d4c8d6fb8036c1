"""`harness view` and `harness trace open`: a run in the browser, as a page and as a timeline.

The page is for people who read a run's texts, or an evaluation's. It is a file, or it is served and
then follows a run in progress. Only this machine can open it.
"""

from __future__ import annotations

import tempfile
import threading
import webbrowser
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from secrets import token_urlsafe
from urllib.parse import unquote

import click
from rich.status import Status

from harness.analysis.evaluation_page import evaluation_json, is_evaluation_file
from harness.analysis.html_page import PageKind, html_of
from harness.analysis.run_page import page_json, run_page_of, version_of
from harness.cli.arguments import find_journal, run_argument, traces_directory, traces_option
from harness.cli.consoles import JournalCommand, Shown, clean, clean_json, say
from harness.cli.run_result import open_command
from harness.cli.trace import span_shown
from harness.cli.viewer import LoopbackServer, Site, perfetto_site, perfetto_ui
from harness.errors import InvalidInput
from harness.files import whole_file, writing
from harness.metrics import Metrics
from harness.trace import TIMELINES, Journal
from harness.trace.journal_reader import JOURNAL_SUFFIX

# Bytes of the data that are copied into a page at a time.
_PIECE = 1 << 20

_port_option = click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    help="Port of the page; by default any free one.",
)
_no_browser_option = click.option(
    "--no-browser", is_flag=True, help="Print the address, and open no browser."
)


@click.command(cls=JournalCommand)
@run_argument
@click.argument("other", required=False, type=click.Path(path_type=Path))
@traces_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the page to this file, instead of serving it.",
)
@_port_option
@_no_browser_option
@click.option(
    "--metrics",
    is_flag=True,
    help="Serve the run's metrics for Prometheus too, at /metrics, to any program of this machine.",
)
def view(
    run: str,
    other: Path | None,
    traces: Path | None,
    output: Path | None,
    port: int,
    *,
    no_browser: bool,
    metrics: bool,
) -> None:
    """Read a run in the browser: its graph, loops and calls, with every text.

    RUN is its id, a part of it, one of its files, or "latest"; or the output of an evaluation, and
    OTHER another output to show beside it, row by row. Served from this machine: nothing is
    uploaded. Ends when the tab is closed, or on Ctrl-C; with --metrics only then.
    """
    files = [Path(run), *([other] if other else [])]
    is_evaluation = other is not None or is_evaluation_file(files[0])
    if metrics and (output or is_evaluation):
        problem = "--metrics is for the served page of one run"
        raise InvalidInput(problem, code="option.of-one-run")
    kind: PageKind = "evaluation" if is_evaluation else "run"
    journal = None if is_evaluation else find_journal(run, traces)
    read = (
        partial(evaluation_json, files, traces=traces_directory(traces), clean=clean_json)
        if journal is None
        else partial(_page, journal)
    )
    if output is not None:
        with _reading(kind), writing(output), whole_file(output) as file:
            file.writelines(html_of(read(), nonce=token_urlsafe(), kind=kind))
        say(output)
        return
    with tempfile.TemporaryDirectory(prefix="harness-view-") as folder:
        site = (
            partial(_evaluation_site, read, Path(folder))
            if journal is None
            else _RunSite(journal, Path(folder))
        )
        public = {"/metrics"} if metrics else set()
        _serve(site, f"The {kind}", port=port, open_browser=not no_browser, public=public)


@click.command("open", cls=JournalCommand)
@run_argument
@traces_option
@_port_option
@_no_browser_option
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

    Ends when the tab is closed, or on Ctrl-C.
    """
    perfetto_ui()  # Before a timeline is drawn that nothing could show.
    path = Path(run)
    is_timeline = path.suffix not in {"", JOURNAL_SUFFIX} and path.is_file()
    with tempfile.TemporaryDirectory(prefix="harness-open-") as folder:
        timeline, at = path, None
        if not is_timeline or span is not None:
            journal = find_journal(run, traces)
            if span is not None:
                details = span_shown(Journal(journal), span)
                at = details.start_ns, details.duration_ns, details.track
            suffix, write = TIMELINES["perfetto"]
            timeline = Path(folder, journal.stem + suffix)
            with Shown(stderr=True).status("Drawing the timeline …"):
                write(Journal(journal), timeline)
        site = partial(perfetto_site, trace=timeline, name=timeline.name, at=at)
        _serve(site, "Perfetto", port=port, open_browser=not no_browser)


def _serve(
    site: Callable[[str], Site],
    what: str,
    *,
    port: int,
    open_browser: bool,
    public: Collection[str] = (),
) -> None:
    """Serves a site until its last tab is closed, or until Ctrl-C; says its address.

    What is at `public` paths is for any program of this machine.
    """
    with LoopbackServer(site, port=port, public=public) as server:
        for path in public:
            say(f"Metrics at http://127.0.0.1:{server.server_port}{path}", err=True)
        # Not cleaned of secrets: without its token, the address opens nothing.
        click.echo(f"{what} at {server.url} (close the tab or press Ctrl-C to stop)", err=True)
        if open_browser:
            # Some browsers, such as those in a terminal, block their caller until they end.
            threading.Thread(target=webbrowser.open, args=[server.url], daemon=True).start()
        try:
            server.serve_until_closed()
        except KeyboardInterrupt:
            # The usual way to end it, not a failure.
            Shown(stderr=True).print("closed", style="dim")


def _reading(kind: PageKind) -> Status:
    return Shown(stderr=True).status(f"Reading the {kind} …")


def _evaluation_site(read: Callable[[], Iterator[bytes]], folder: Path, nonce: str) -> Site:
    page = folder / "evaluation.html"
    with _reading("evaluation"), whole_file(page) as file:
        file.writelines(html_of(read(), nonce=nonce, is_live=True, kind="evaluation"))
    return {"/": page}


def _page(journal: Path) -> Iterator[bytes]:
    return page_json(run_page_of(journal, open_command=open_command(journal)), clean=clean_json)


class _RunSite:
    """A run's page, data, metrics and timeline, each made in a folder when a browser asks for it.

    Methods that answer a browser get the query of its request.
    """

    def __init__(self, journal: Path, folder: Path) -> None:
        self._journal = journal
        self._folder = folder
        suffix, self._write_timeline = TIMELINES["perfetto"]
        self._timeline_file = folder / f"{journal.stem}{suffix}"
        # By the journal's version: reading a long run takes seconds, and several pages may ask.
        self.data = lru_cache(maxsize=1)(self._write_data)
        self._metrics_of = lru_cache(maxsize=1)(self._read_metrics)

    def __call__(self, nonce: str) -> Site:
        with _reading("run"):
            self.data(version_of(self._journal))
        site: Site = {"/": partial(self._html, nonce), "/run.json": self._news}
        site["/metrics"] = lambda _query: self._metrics_of(version_of(self._journal))
        try:
            return site | perfetto_site(
                nonce, trace=self._timeline, name=self._timeline_file.name, page="/timeline.html"
            )
        # The Perfetto UI is not installed.
        except InvalidInput as error:
            return site | {"/timeline.html": escape(str(error)).encode()}

    def _html(self, nonce: str, _query: str) -> Path:
        page = self._folder / "run.html"
        with self.data(version_of(self._journal)).open("rb") as file, whole_file(page) as html:
            data = iter(partial(file.read, _PIECE), b"")
            html.writelines(html_of(data, nonce=nonce, is_live=True))
        return page

    def _news(self, shown_version: str) -> Path | None:
        """The run's data; None if the page shows this version of the journal already."""
        version = version_of(self._journal)
        return None if unquote(shown_version) == version else self.data(version)

    def _timeline(self, _query: str) -> Path:
        self._write_timeline(Journal(self._journal), self._timeline_file)
        return self._timeline_file

    def _write_data(self, _version: str) -> Path:
        data = self._folder / "run.json"
        with whole_file(data) as file:
            file.writelines(_page(self._journal))
        return data

    def _read_metrics(self, _version: str) -> bytes:
        metrics = Metrics()
        metrics.add(Journal(self._journal))
        return clean(metrics.text()).encode()
