"""A trace in the Perfetto UI, as a real browser shows it."""

import base64
import json
import math
import os
from itertools import combinations
from pathlib import Path
from threading import Thread

import pytest
from sample_runs import span, write_journal

from harness.cli.viewer import LoopbackServer
from harness.trace import TIMELINES, Journal
from harness.trace.calls import PHASES
from harness.trace.perfetto import write_perfetto_trace
from tests.chromium import Chromium, open_trace, timeline_site

pytestmark = pytest.mark.slow

MS = 1_000_000
RECORDED = Path(__file__).parents[2] / "traces" / "recorded" / "brief.json"


def test_a_recorded_run_is_shown_and_no_one_else_is_asked_for_anything(tmp_path):
    events = json.loads(RECORDED.read_text(encoding="utf-8"))["traceEvents"]
    tracks = [e["args"]["name"] for e in events if e["name"] in ("process_name", "thread_name")]
    with (
        Chromium(tmp_path / "profile", width=1600, height=2000) as browser,
        LoopbackServer(timeline_site(RECORDED), grace_s=1) as viewer,
    ):
        thread = Thread(target=viewer.serve_until_closed, daemon=True)
        thread.start()
        open_trace(browser, viewer, name=RECORDED.name)
        browser.wait_for(
            f"{json.dumps(tracks)}.every(text => document.body?.innerText.includes(text))"
        )
        assert browser.hosts_asked() == {viewer.host}
        # Nor does the browser keep a copy of the trace.
        assert browser.evaluate("caches.has('cached_traces')") is False

        # When its page is closed, the server has to stop.
        assert thread.is_alive()
        browser.call("Page.close")
        thread.join(30)
        assert not thread.is_alive()


def test_the_slice_of_a_span_is_selected_and_zoomed_to(tmp_path):
    journal = Journal(RECORDED.with_suffix(".jsonl"))
    calls = [one for one in journal.spans() if one.name == "chat"]
    start_ns = calls[5].start_ns - journal.started.time_ns
    at = start_ns, calls[5].duration_ns, "model smollm2-135m"
    write_perfetto_trace(journal, path := tmp_path / "run.pftrace")

    with (
        Chromium(tmp_path / "profile", width=1600, height=900) as browser,
        LoopbackServer(timeline_site(path, at=at), grace_s=1) as viewer,
    ):
        thread = Thread(target=viewer.serve_until_closed, daemon=True)
        thread.start()
        open_trace(browser, viewer, name=path.name)
        # Its details, and its row at the top.
        texts = calls[5].attributes["label"], f"harness trace show {calls[5].id} ", "model smollm2"
        browser.wait_for(
            f"{json.dumps(texts)}.every(text => document.body.innerText.includes(text))"
        )
        # They can be seen: the panel, which is shut at first, is open.
        browser.wait_for("window.app.trace.tabs.tabPanelVisibility === 0")  # VISIBLE
        if place := os.environ.get("HARNESS_SCREENSHOT"):
            Path(place).write_bytes(browser.picture())
        browser.call("Page.close")
        thread.join(30)


@pytest.mark.parametrize("form", TIMELINES)
def test_the_phases_of_a_call_have_clearly_different_colors(tmp_path, form):
    # One call as wide as the page, each phase a fifth of it.
    call = span(1, 0, 500 * MS, name="chat", track="model small")
    phases = [
        span(number, 100 * MS * (number - 2), 100 * MS * (number - 1), parent=1, name=name)
        for number, name in enumerate(PHASES, start=2)
    ]
    journal = write_journal(tmp_path / "run.jsonl", call, *phases)
    ending, write = TIMELINES[form]
    write(journal, path := tmp_path / f"run{ending}")

    with (
        Chromium(tmp_path / "profile", width=1600, height=700) as browser,
        LoopbackServer(timeline_site(path), grace_s=1) as viewer,
    ):
        thread = Thread(target=viewer.serve_until_closed, daemon=True)
        thread.start()
        open_trace(browser, viewer, name=path.name)
        rows = browser.evaluate(COLORS % base64.b64encode(browser.picture()).decode())
        browser.call("Page.close")
        thread.join(30)

    # Of all rows of pixels, the one through the phases has the most different colors.
    apart = max((distances(row) for row in rows), key=lambda found: min(found.values()))
    # A difference of 2.3 is just seen; by their bare names, two pairs of phases are 5 and 8 apart.
    assert min(apart.values()) > 40, apart


def distances(colors):
    """How different the colors of each two phases look."""
    seen = dict(zip(PHASES, map(lab, colors), strict=True))
    return {pair: math.dist(seen[pair[0]], seen[pair[1]]) for pair in combinations(PHASES, 2)}


COLORS = """
(async () => {
    const picture = await createImageBitmap(
        await (await fetch("data:image/png;base64,%s")).blob());
    const canvas = new OffscreenCanvas(picture.width, picture.height);
    const context = canvas.getContext("2d");
    context.drawImage(picture, 0, 0);
    // Where the timeline lies in the page, left to right.
    const left = 250, width = picture.width - 20 - left;
    return Array.from({length: picture.height}, (_, y) =>
        [0, 1, 2, 3, 4].map(n =>
            [...context.getImageData(left + width * (n + 0.15) / 5, y, 1, 1).data].slice(0, 3)));
})()
"""


def lab(color):
    """CIELAB, in which distances are as people see them."""
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (value / 255 for value in color)
    )
    x, y, z = (
        t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116
        for t in (
            (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505,
            0.2126 * red + 0.7152 * green + 0.0722 * blue,
            (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089,
        )
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
