"""`harness trace open` with a real browser: the demo run as a person sees it.

HARNESS_SCREENSHOT=FILE.png keeps the picture.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo import DemoRun

from tests.chromium import Chromium

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).with_name("harness")


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
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found, line
    return found[0]


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


def test_ctrl_c_closes_it_and_is_no_failure(opened: subprocess.Popen[str]) -> None:
    with opened:
        address(opened)
        opened.send_signal(signal.SIGINT)
        assert opened.wait(10) == 0
