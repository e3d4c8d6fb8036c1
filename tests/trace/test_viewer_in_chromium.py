"""A trace in the Perfetto UI, as a real browser shows it.

HARNESS_SCREENSHOT=FILE.png keeps the picture of the recorded trace.
"""

import json
import os
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from harness.trace.timelines.viewer import TraceViewer
from tests.chromium import Chromium, open_trace

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.json"


@pytest.fixture
def browser(tmp_path):
    with Chromium(tmp_path / "profile", width=1600, height=2000) as browser:
        yield browser


@contextmanager
def shown(browser: Chromium, trace: Path):
    """Perfetto with a trace in it; at the end its page is closed, and the server has to stop."""
    with TraceViewer(trace, grace_s=1) as viewer:
        thread = Thread(target=viewer.serve_until_closed, daemon=True)
        thread.start()
        try:
            open_trace(browser, viewer, name=trace.name)
            yield viewer
            assert thread.is_alive()
        finally:
            browser.call("Page.close")
            thread.join(30)
            assert not thread.is_alive()


def names_of_tracks(trace: Path) -> list[str]:
    return [
        event["args"]["name"]
        for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        if event["name"] in ("process_name", "thread_name")
    ]


def wait_for_texts(browser: Chromium, texts: list[str]) -> None:
    browser.wait_for(f"{json.dumps(texts)}.every(text => document.body?.innerText.includes(text))")


def test_a_recorded_run_is_shown_and_no_one_else_is_asked_for_anything(browser, tmp_path):
    with shown(browser, RECORDED) as viewer:
        wait_for_texts(browser, names_of_tracks(RECORDED))
        assert browser.hosts_asked() == {f"127.0.0.1:{viewer.server_port}"}
        # Nor does the browser keep a copy of the trace.
        assert browser.evaluate("caches.has('cached_traces')") is False

        picture = browser.picture()
        assert picture.startswith(b"\x89PNG")
        for place in (tmp_path / "brief.png", os.environ.get("HARNESS_SCREENSHOT")):
            if place:
                Path(place).write_bytes(picture)
