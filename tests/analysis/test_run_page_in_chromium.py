"""A run's page as a real browser shows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo import ROOT

from harness.analysis.html_page import html_of
from harness.analysis.run_page import page_json, run_page_of
from harness.trace import Content, Instant, NodeOutput, Record, RunEnded, sha256_of
from tests.chromium import Chromium
from tests.sample_runs import span, write_journal

pytestmark = pytest.mark.slow

MS = 1_000_000
PRICES = {"usd_per_million_input_tokens": 10.0, "usd_per_million_output_tokens": 20.0}
RECORDED = ROOT / "traces" / "recorded" / "brief.jsonl"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    profile = tmp_path_factory.mktemp("profile")
    with Chromium(profile, width=1400, height=900) as browser:
        browser.call("Runtime.enable")
        yield browser


def opened(browser: Chromium, journal: Path, tmp_path: Path, *, at: str = "") -> None:
    page = tmp_path / "run.html"
    page.write_bytes(b"".join(html_of(page_json(run_page_of(journal)), nonce="chance")))
    browser.open(f"{page.as_uri()}{at}")
    browser.wait_for("document.querySelector('h1')?.textContent && location.href !== 'about:blank'")


def batch_of(rows: int) -> Iterator[Record]:
    """A batch whose rows ask a model once, and are scored."""
    yield Instant(None, "pipeline", 0, {"pipeline": "words", "is_batch": True})
    yield Instant(None, "endpoint", 0, {"model": "m", **PRICES})
    for n in range(rows):
        first, start_ns = 3 * n + 1, n * MS
        row, inner = f"rows[{n}]", f"rows[{n}]/words/draft"
        times = {"start_ns": start_ns, "end_ns": start_ns + 9 * MS}
        tokens = {"input_tokens": 100_000, "output_tokens": 50_000}
        yield span(first, **times, name="node", node="rows", item=n, label=row)
        yield span(first + 1, **times, parent=first, name="node", node=inner, label=inner)
        yield span(first + 2, **times, parent=first + 1, name="chat", model="m", **tokens)
        yield NodeOutput(inner, None, f"draft of {n}")
        yield NodeOutput("rows", n, f"text of {n}")
        yield NodeOutput("scores", n, {"composite": 7.0, "passed": True, "scores": {}})
    yield RunEnded((rows + 10) * MS, "ok")


def shown(browser: Chromium) -> list[str]:
    rows = "[...document.querySelectorAll('.call')].map((one) => one.id)"
    return browser.evaluate(rows)  # type: ignore[return-value]


def test_no_text_of_a_model_runs_wherever_it_stands(browser: Chromium, tmp_path: Path) -> None:
    nasty = "</script><img src=x onerror=\"window.ran='yes'\"><script>window.ran='yes'</script>"
    prompt = f"[system]\n{nasty}\n\n[user]\n{nasty} javascript:alert(1)"
    asked = {"model": nasty, "role": nasty, "label": nasty, "finish_reason": nasty, nasty: nasty}
    hashes = {"prompt_sha256": sha256_of(prompt), "reply_sha256": sha256_of(nasty)}
    write_journal(
        tmp_path / "run.jsonl",
        Content(sha256_of(prompt), prompt),
        Content(sha256_of(nasty), nasty),
        span(1, 0, 9 * MS, name="node", node=nasty, label=nasty),
        span(2, 1 * MS, 5 * MS, parent=1, name="chat", **asked, **hashes),
        NodeOutput(nasty, None, {nasty: nasty}),
        RunEnded(9 * MS, "error", nasty),
    )
    opened(browser, tmp_path / "run.jsonl", tmp_path, at="#call-2")
    browser.evaluate("document.querySelector('.node').click()")
    browser.evaluate("document.getElementById('search').value = 'onerror'; search()")
    browser.wait_for("document.querySelectorAll('.message mark').length >= 3")
    assert browser.evaluate("document.querySelectorAll('main img, main script').length") == 0
    assert browser.evaluate("window.ran ?? null") is None
    assert browser.hosts_asked() == set()
    # As text: not innerText, which leaves out what content-visibility has not drawn yet.
    texts = "document.querySelector('main').textContent"
    assert browser.evaluate(f"{texts}.split('onerror=').length > 8") is True


def test_a_recorded_run_can_be_read_with_the_keyboard(browser: Chromium, tmp_path: Path) -> None:
    opened(browser, RECORDED, tmp_path)
    texts = [
        "parts",
        "sections \N{MULTIPLICATION SIGN} 3",
        "Round 2: 9.6",
        "the last sentence breaks off",
        "taken",
    ]
    browser.evaluate("document.getElementById('round-1-1').open = true")
    said = "document.body.innerText"
    browser.wait_for(f"{json.dumps(texts)}.every((text) => {said}.includes(text))")
    assert browser.evaluate("document.querySelectorAll('ins, del').length") == 2

    def press(key: str) -> object:
        browser.call("Input.dispatchKeyEvent", type="keyDown", key=key, text=key[:1])
        browser.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        return browser.evaluate("document.activeElement.closest('[id]')?.id")

    assert [press("j") for _ in range(4)] == ["round-1-1", "round-1-2", "call-8", "call-20"]
    assert press("k") == "call-8"
    assert press("/") == "search"
    browser.call("Input.insertText", text="OF THIS TEXT ABOUT FITTING")
    browser.wait_for("document.getElementById('found').textContent === '1 of 8 calls'")
    browser.wait_for("document.querySelectorAll('.call').length === 1")
    assert shown(browser) == ["call-22"]
    press("Escape")
    browser.wait_for("document.querySelectorAll('.call').length === 8")

    browser.evaluate("location.hash = 'call-54'")
    browser.wait_for("document.getElementById('call-54').open")
    command = "harness trace open --span 54"
    browser.wait_for(f"document.getElementById('call-54').innerText.includes({command!r})")


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_is_wider_than_the_window(browser: Chromium, tmp_path: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", **size)
    opened(browser, RECORDED, tmp_path, at="#call-22")
    browser.wait_for("document.getElementById('call-22')?.open")
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth") is True


def test_of_ten_thousand_calls_only_those_near_the_window_are_drawn(
    browser: Chromium, tmp_path: Path
) -> None:
    texts = [f"Question {number}?" for number in range(10_000)]
    write_journal(
        tmp_path / "run.jsonl",
        *(Content(sha256_of(text), text) for text in texts),
        *(
            span(n + 1, n * MS, (n + 9) * MS, name="chat", model="m", prompt_sha256=sha256_of(text))
            for n, text in enumerate(texts)
        ),
        RunEnded(20_000 * MS, "ok"),
    )
    opened(browser, tmp_path / "run.jsonl", tmp_path)
    browser.wait_for("document.querySelector('.call')")
    assert len(shown(browser)) < 1_000
    browser.evaluate("location.hash = 'call-9001'")
    browser.wait_for("document.activeElement.closest('.call')?.id === 'call-9001'")
    browser.evaluate("document.getElementById('search').value = 'question 4321'; search()")
    browser.wait_for("document.querySelectorAll('.call').length === 1")
    assert shown(browser) == ["call-4322"]


def test_rows_of_a_batch_can_be_searched_and_lead_to_their_parts(
    browser: Chromium, tmp_path: Path
) -> None:
    write_journal(tmp_path / "run.jsonl", *batch_of(3_000))
    opened(browser, tmp_path / "run.jsonl", tmp_path)
    browser.wait_for("document.querySelector('.row')")
    drawn = "document.querySelectorAll('.row').length"
    assert browser.evaluate(drawn) < 1_000
    head = "document.querySelector('header').innerText"
    browser.wait_for(f"{head}.includes('3,000 rows, 7.00 on average')")

    browser.evaluate("document.getElementById('search').value = 'text of 2718'; search()")
    browser.wait_for(f"{drawn} === 1")
    browser.wait_for("document.querySelector('.row summary').innerText")
    summary = browser.evaluate("document.querySelector('.row summary').innerText")
    assert " ".join(str(summary).split()) == "rows[2718] text of 2718 done 7 $2.00 9.0 ms"
    browser.evaluate("document.querySelector('.row').open = true")
    part = "rows[2718]/words/draft"
    browser.wait_for(f"document.querySelector('.row').innerText.includes({part!r})")

    browser.evaluate("document.getElementById('search').value = ''; search()")
    browser.evaluate("location.hash = 'row-rows[1234]'")
    browser.wait_for("document.activeElement.closest('.row')?.id === 'row-rows[1234]'")


def test_many_calls_at_once_are_drawn_as_shares_of_their_phases(
    browser: Chromium, tmp_path: Path
) -> None:
    calls = [
        one
        for n in range(5_000)
        for call, ms in [(2 * n + 1, n // 50)]
        for one in [
            span(call, ms * MS, (ms + 2) * MS, name="chat", model="m"),
            span(call + 1, ms * MS, (ms + 1) * MS, parent=call, name="decode"),
        ]
    ]
    write_journal(tmp_path / "run.jsonl", *calls, RunEnded(200 * MS, "ok"))
    opened(browser, tmp_path / "run.jsonl", tmp_path)
    plot = "document.querySelector('figure.whole svg')"
    browser.wait_for(plot)
    said = browser.evaluate(f"{plot}.textContent")
    assert "at most 100 at once" in str(said)
    height = "document.querySelector('figure.whole path.%s').getBBox().height"
    # Of each call one half is decoding, and nothing is known of the other.
    assert browser.evaluate(height % "decode") == browser.evaluate(height % "other") > 50


def test_a_run_that_recorded_no_texts_says_so(browser: Chromium, tmp_path: Path) -> None:
    hashes = {"prompt_sha256": sha256_of("Why?"), "reply_sha256": sha256_of("So.")}
    call = span(1, 0, 5 * MS, name="chat", model="m", **hashes)
    write_journal(tmp_path / "run.jsonl", call, RunEnded(9 * MS, "ok"))
    opened(browser, tmp_path / "run.jsonl", tmp_path, at="#call-1")
    said = ["This run recorded no texts", "No prompt is recorded", "No reply is recorded"]
    browser.wait_for(f"{json.dumps(said)}.every((text) => document.body.innerText.includes(text))")
