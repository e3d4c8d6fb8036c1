"""`harness view`: one run as a page for people who read its texts, as a file or served.

A served page follows a run in progress. Only this machine can open it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from secrets import token_urlsafe
from urllib.parse import unquote

import click

from harness.analysis.evaluation_page import evaluation_json, is_evaluation_file
from harness.analysis.run_page import html_of, page_json, run_page_of, version_of
from harness.cli.arguments import LATEST, find_journal, traces_directory, traces_option
from harness.cli.consoles import Shown, clean, clean_json, failures_told, log_to_stderr, say
from harness.cli.process import uncollected
from harness.cli.run_result import open_command
from harness.cli.trace import no_browser_option, port_option, show_served
from harness.cli.viewer import LoopbackServer, Site, perfetto_site
from harness.errors import InvalidInput
from harness.files import whole_file, writing
from harness.metrics import Metrics
from harness.trace import TIMELINES, Journal

_PIECE = 1 << 20
"""Bytes of a page that are sent on at once."""


@click.command()
@click.argument("run", default=LATEST)
@click.argument("other", required=False, type=click.Path(path_type=Path))
@traces_option
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Write the page to this file, instead of serving it.",
)
@port_option
@no_browser_option
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
    log_to_stderr()
    with failures_told(of_journals=True):
        files = [Path(run), *([other] if other else [])]
        if metrics and (output or other or is_evaluation_file(files[0])):
            problem = "--metrics is for the served page of one run"
            raise InvalidInput(problem, code="option.of-one-run")
        if other is not None or is_evaluation_file(files[0]):
            directory = traces_directory(traces)
            write = partial(_write_evaluation, files, directory)
            if output is not None:
                write(output, nonce=token_urlsafe(), is_live=False)
                say(output)
            else:
                _serve_evaluation(write, port=port, open_browser=not no_browser)
            return
        journal = find_journal(run, traces)
        if output is None:
            serve_page(journal, port=port, open_browser=not no_browser, metrics=metrics)
            return
        with Shown(stderr=True).status("Reading the run …"):
            page = _page(journal)
            with writing(output), whole_file(output) as file:
                file.writelines(html_of(page, nonce=token_urlsafe()))
        say(output)


def _write_evaluation(
    files: Sequence[Path], traces: Path, page: Path, *, nonce: str, is_live: bool
) -> None:
    with Shown(stderr=True).status("Reading the rows …"), writing(page), whole_file(page) as file:
        pieces = evaluation_json(files, traces=traces, clean=clean_json)
        file.writelines(html_of(pieces, nonce=nonce, is_live=is_live, kind="evaluation"))


def _serve_evaluation(write: Callable[..., None], *, port: int, open_browser: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="harness-view-") as folder:
        page = Path(folder, "evaluation.html")

        def site(nonce: str) -> Site:
            write(page, nonce=nonce, is_live=True)
            return {"/": lambda _: page}

        with LoopbackServer(site, port=port) as server, suppress(KeyboardInterrupt):
            show_served(server, "The evaluation", open_browser=open_browser)


def serve_page(
    journal: Path, *, port: int, open_browser: bool, anchor: str = "", metrics: bool = False
) -> None:
    """Shows a run's page until its tab is closed, or until Ctrl-C.

    `anchor` is what to show first, such as `#call-31`; port 0 is any free one. `metrics` are for
    any program of this machine.

    Raises:
        InvalidInput: The port is taken.
        JournalInvalid: It cannot be read.
    """
    console = Shown(stderr=True)
    with tempfile.TemporaryDirectory(prefix="harness-view-") as folder:
        # Reading a long run takes seconds, and several pages may ask.
        read = lru_cache(maxsize=1)(partial(_read, journal, Path(folder, "run.json")))
        with console.status("Reading the run …"):
            read(version_of(journal))
        site = partial(_site, journal, read, Path(folder))
        public = {"/metrics"} if metrics else set()
        with LoopbackServer(site, port=port, public=public) as server:
            if metrics:
                say(f"Metrics at http://127.0.0.1:{server.server_port}/metrics", err=True)
            try:
                show_served(server, "The run", open_browser=open_browser, anchor=anchor)
            except KeyboardInterrupt:
                # The usual way to end it, not a failure.
                console.print("closed", style="dim")


def _page(journal: Path) -> Iterator[bytes]:
    with uncollected():
        page = run_page_of(journal, open_command=open_command(journal))
    return page_json(page, clean=clean_json)


def _read(journal: Path, page: Path, _version: str) -> Path:
    with whole_file(page) as file:
        file.writelines(_page(journal))
    return page


def _site(journal: Path, read: Callable[[str], Path], folder: Path, nonce: str) -> Site:
    """The page, what it asks for news, and the timeline, drawn when it is opened."""
    suffix, write = TIMELINES["perfetto"]
    drawn = folder / f"{journal.stem}{suffix}"

    def page(_: str) -> Path:
        html = folder / "run.html"
        with read(version_of(journal)).open("rb") as data, whole_file(html) as file:
            file.writelines(
                html_of(iter(partial(data.read, _PIECE), b""), nonce=nonce, is_live=True)
            )
        return html

    def news(mark: str) -> Path | None:
        version = version_of(journal)
        return None if unquote(mark) == version else read(version)

    def timeline(_: str) -> Path:
        write(Journal(journal), drawn)
        return drawn

    @lru_cache(maxsize=1)
    def metrics_of(_version: str) -> bytes:
        metrics = Metrics()
        metrics.add(Journal(journal))
        return clean(metrics.text()).encode()

    def metrics(_: str) -> bytes:
        return metrics_of(version_of(journal))

    site: Site = {"/": page, "/run.json": news, "/metrics": metrics}
    try:
        return site | perfetto_site(nonce, trace=timeline, name=drawn.name, page="/timeline.html")
    except InvalidInput as error:
        return site | {"/timeline.html": escape(str(error)).encode()}
