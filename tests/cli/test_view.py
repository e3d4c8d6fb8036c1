"""`harness view`: a file, or a page that follows the run."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import webbrowser
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import pytest
from command import COMMAND, harness, interrupt
from demo import ROOT

from harness.analysis.run_page import version_of
from harness.trace import RunTrace, Span
from tests.chromium import Chromium
from tests.sample_runs import write_journal

RECORDED = ROOT / "traces" / "recorded" / "brief.jsonl"


def test_a_run_is_written_as_one_file_for_its_reader_alone(tmp_path: Path) -> None:
    done = harness("view", RECORDED, "--output", "pages/run.html", cwd=tmp_path)
    page = tmp_path / "pages" / "run.html"
    assert (done.exit_code, done.stdout, done.stderr) == (0, "pages/run.html\n", "")
    assert 'data-live="no"' in page.read_text()
    assert page.stat().st_mode & 0o777 == 0o600


def test_the_latest_run_is_meant_where_none_is_named(tmp_path: Path) -> None:
    done = harness("view", "--output", "run.html", cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    (tmp_path / "traces").mkdir()
    write_journal(tmp_path / "traces" / "a.jsonl")
    done = harness("view", "--output", "run.html", cwd=tmp_path)
    assert done.exit_code == 0


def test_a_page_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = harness("view", RECORDED, "--output", "file/run.html", cwd=tmp_path)
    assert (done.exit_code, "cannot be written" in done.stderr) == (2, True)


def test_a_secret_of_the_environment_is_in_no_page(tmp_path: Path) -> None:
    secret = "Quantisation and the judge"  # is in the texts
    harness("view", RECORDED, "--output", "run.html", cwd=tmp_path, MY_API_KEY=secret)
    page = (tmp_path / "run.html").read_text()
    assert secret not in page
    assert "Prefix caching" in page


def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *paths: str) -> list[tuple[int, bytes]]:
    """What a browser gets that opens the page of the recorded run, and then these."""
    answers: list[tuple[int, bytes]] = []

    def browser(url: str) -> None:
        # Browsers resolve its name by themselves, and Python does not.
        where = urlsplit(url)
        connection = HTTPConnection("127.0.0.1", where.port or 0, timeout=10)
        own = {"Host": where.netloc, "Cookie": f"harness={where.query.removeprefix('token=')}"}
        for path in ("", *paths):
            connection.request("GET", f"/{path}", headers=own)
            with connection.getresponse() as answer:
                answers.append((answer.status, answer.read()))
        interrupt()

    monkeypatch.setattr(webbrowser, "open", browser)
    done = harness("view", RECORDED, cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (0, "")
    assert re.search(r"The run at http://\w+\.localhost:", done.stderr)
    assert list(tmp_path.iterdir()) == []
    return answers


def test_a_served_page_is_told_what_is_new_and_has_the_timeline_beside_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = f"run.json?{quote(version_of(RECORDED))}"
    paths = ("run.json?older", known, "timeline.html", "localtrace")
    answers = asked(monkeypatch, tmp_path, *paths)
    assert [status for status, _ in answers] == [200, 200, 204, 200, 200]
    page, news, nothing, timeline, trace = (body for _, body in answers)
    assert b'data-live="yes"' in page
    assert json.loads(news)["version"] == version_of(RECORDED)
    assert nothing == b""
    assert b"/harness.js" in timeline
    assert b"smollm2-135m" in trace


def test_where_the_timeline_would_be_it_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "viztracer", None)
    _, (_, said) = asked(monkeypatch, tmp_path, "timeline.html")
    assert b"pip install &#x27;wiggum-harness[view]&#x27;" in said


def test_prometheus_reads_the_metrics_of_a_run_that_goes_on_and_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is missing")
    run = ExitStack()
    trace = run.enter_context(RunTrace(tmp_path, name="essay"))
    pages: list[dict[str, float]] = []

    def call() -> Span:
        span = trace.span("chat", model="small", output_tokens=7)
        with span:
            trace.completed_span("decode", start_ns=0, end_ns=1)
        return span

    def prometheus(url: str) -> None:
        port = urlsplit(url).port or 0
        for step in (call, trace.span("chat", model="small").__enter__, call, run.close):
            step()
            trace.flush()
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
                text = answer.read().decode()
            families = parser.text_string_to_metric_families(text)
            samples = [sample for family in families for sample in family.samples]
            pages.append({one.name: one.value for one in samples if "le" not in one.labels})
        for path, host in (("run.json", ""), ("metrics", "evil.example"), ("", "localhost")):
            connection = HTTPConnection("127.0.0.1", port, timeout=10)
            named = {"Host": f"{host}:{port}"} if host else {}
            connection.request("GET", f"/{path}", headers=named)
            with connection.getresponse() as answer:
                assert answer.status == 403
        interrupt()

    monkeypatch.setattr(webbrowser, "open", prometheus)
    done = harness("view", trace.journal_path, "--metrics", cwd=tmp_path)
    assert done.exit_code == 0
    assert re.match(r"Metrics at http://127.0.0.1:\d+/metrics\n", done.stderr)
    calls = [page["gen_ai_client_operation_duration_seconds_count"] for page in pages]
    assert calls == [1, 1, 2, 2]
    assert pages[-1]["gen_ai_client_token_usage_sum"] == 14
    assert [page.get("harness_calls_active", 0) for page in pages] == [0, 1, 1, 0]
    assert [page["harness_runs_active"] for page in pages] == [1, 1, 1, 0]
    assert pages[-1]["gen_ai_workflow_duration_seconds_count"] == 1


def test_metrics_are_for_no_one_else_unless_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def intruder(url: str) -> None:
        with pytest.raises(HTTPError, match="403") as refused:
            urlopen(f"http://127.0.0.1:{urlsplit(url).port}/metrics", timeout=10)
        refused.value.close()
        interrupt()

    monkeypatch.setattr(webbrowser, "open", intruder)
    assert harness("view", RECORDED, cwd=tmp_path).exit_code == 0


@pytest.mark.slow
def test_a_served_page_follows_the_run_and_keeps_what_is_open_until_its_tab_is_closed(
    tmp_path: Path,
) -> None:
    with RunTrace(tmp_path, name="essay") as trace, Chromium(tmp_path / "profile") as browser:

        def call(prompt: str) -> None:
            texts = {"prompt_sha256": trace.content(prompt), "reply_sha256": trace.content("So.")}
            with trace.span("chat", model="small", **texts):
                pass
            trace.flush()

        call("Why?")
        command = [COMMAND, "view", trace.journal_path, "--no-browser"]
        viewed = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert viewed.stderr is not None
        browser.open(viewed.stderr.readline().split()[3])
        browser.wait_for("document.querySelectorAll('.call').length === 1")
        browser.evaluate("location.hash = document.querySelector('.call').id")
        browser.wait_for("document.querySelector('.call').open")
        assert "running" in str(browser.evaluate("document.getElementById('name').textContent"))

        call("Why not?")
        browser.wait_for("document.querySelectorAll('.call').length === 2")
        opened = "[...document.querySelectorAll('.call')].map((one) => one.open)"
        assert browser.evaluate(opened) == [True, False]
        link = browser.evaluate("document.querySelector('.inside a').href")
        assert "/timeline.html#slice=" in str(link)
        assert len(browser.hosts_asked()) == 1

        browser.call("Page.close")
        assert viewed.wait(30) == 0
        viewed.stderr.close()


def test_an_evaluation_is_written_as_one_file_also_beside_another(tmp_path: Path) -> None:
    line = {"id": "a", "epoch": 1, "output": "4", "scores": {"x": 1.0}, "inputs": {"q": "2+2"}}
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    one = harness("view", "a.jsonl", "--output", "one.html", cwd=tmp_path)
    assert (one.exit_code, one.stdout) == (0, "one.html\n")
    two = harness("view", "a.jsonl", "b.jsonl", "--output", "two.html", cwd=tmp_path)
    assert two.exit_code == 0
    assert (tmp_path / "two.html").read_text().count('"name":"') == 4  # two files, a score of each
    (tmp_path / "c.csv").write_text("id,task\n1,tea\n")
    refused = harness("view", "a.jsonl", "c.csv", "--output", "x.html", cwd=tmp_path)
    assert (refused.exit_code, "c.csv:2: it is no row of an evaluation" in refused.stderr) == (
        2,
        True,
    )
    assert not (tmp_path / "x.html").exists()
