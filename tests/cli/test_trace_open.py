"""`harness trace open`: the run is served until it is told to end, and shown in a real browser.

HARNESS_SCREENSHOT=FILE.png keeps the picture.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import webbrowser
from pathlib import Path
from urllib.request import HTTPCookieProcessor, build_opener

import pytest
from command import COMMAND, harness, interrupt
from demo import ROOT, DemoRun

from harness.trace import load_run
from tests.chromium import Chromium


@pytest.fixture
def opened(demo_run: DemoRun) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [COMMAND, "trace", "open", "latest", "--no-browser"],
        cwd=demo_run.directory,
        stderr=subprocess.PIPE,
        text=True,
    )


def address(opened: subprocess.Popen[str]) -> str:
    assert opened.stderr is not None
    line = opened.stderr.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/\S+", line)
    assert found, line
    return found[0]


@pytest.mark.slow
def test_the_demo_run_is_shown_until_its_tab_is_closed(
    opened: subprocess.Popen[str], tmp_path: Path
) -> None:
    with opened, Chromium(tmp_path / "profile", width=1600, height=1700) as browser:
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_serves_until_it_is_told_to_end_which_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: signal.Signals
) -> None:
    urls: list[str] = []
    pages = []

    def browser(url: str) -> None:
        urls.append(url)
        with build_opener(HTTPCookieProcessor()).open(url) as page:
            pages.append(page.read())
        interrupt(number)

    monkeypatch.setattr(webbrowser, "open", browser)
    done = harness("trace", "open", ROOT / "traces/recorded/brief.jsonl", cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (0, "")
    assert b"/harness.js" in pages[0]
    assert urls[0] in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_span_is_shown_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripts = []

    def browser(url: str) -> None:
        opener = build_opener(HTTPCookieProcessor())
        opener.open(url).close()
        with opener.open(url.partition("?")[0] + "harness.js") as script:
            scripts.append(script.read().decode())
        interrupt(signal.SIGINT)

    monkeypatch.setattr(webbrowser, "open", browser)
    recorded = ROOT / "traces/recorded/brief.jsonl"
    calls = [one for one in load_run(recorded).spans if one.name == "chat"]
    harness("trace", "open", recorded, "--span", str(calls[0].id), cwd=tmp_path)
    assert f'"dur": "{calls[0].duration_ns}"' in scripts[0]
    assert "dev.perfetto.PinTracksByRegex" in scripts[0]


@pytest.mark.parametrize(
    ("file", "span", "code"),
    [("brief.jsonl", "999", "trace.no-such-span"), ("brief.json", "1", "option.of-a-run")],
)
def test_a_span_that_cannot_be_shown_is_said(
    tmp_path: Path, file: str, span: str, code: str
) -> None:
    done = harness("trace", "open", ROOT / "traces/recorded" / file, "--span", span, cwd=tmp_path)
    assert done.exit_code == 2
    assert MESSAGES[code] in done.stderr


MESSAGES = {
    "trace.no-such-span": "the run has no span 999",
    "option.of-a-run": "--span takes a run",
}
