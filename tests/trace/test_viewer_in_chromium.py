"""A trace in the Perfetto UI, as a real browser shows it."""

import json
from pathlib import Path
from threading import Thread

import pytest

from harness.trace.viewer import TraceViewer
from tests.chromium import Chromium, open_trace

pytestmark = pytest.mark.slow

RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.json"


def test_a_recorded_run_is_shown_and_no_one_else_is_asked_for_anything(tmp_path):
    events = json.loads(RECORDED.read_text(encoding="utf-8"))["traceEvents"]
    tracks = [e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")]
    with (
        Chromium(tmp_path / "profile", width=1600, height=2000) as browser,
        TraceViewer(RECORDED, grace_s=1) as viewer,
    ):
        thread = Thread(target=viewer.serve_until_closed, daemon=True)
        thread.start()
        open_trace(browser, viewer, name=RECORDED.name)
        browser.wait_for(
            f"{json.dumps(tracks)}.every(text => document.body?.innerText.includes(text))"
        )
        assert browser.hosts_asked() == {f"127.0.0.1:{viewer.server_port}"}
        # Nor does the browser keep a copy of the trace.
        assert browser.evaluate("caches.has('cached_traces')") is False

        # When its page is closed, the server has to stop.
        assert thread.is_alive()
        browser.call("Page.close")
        thread.join(30)
        assert not thread.is_alive()
