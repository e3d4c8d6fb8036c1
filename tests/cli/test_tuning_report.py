"""`harness rubric tune --report`: the page says what the terminal and `--json` say."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Done, harness
from golden import assert_shown

from tests.chromium import Chromium

pytest.importorskip("scipy", reason="scipy is not installed")

RUBRIC = """\
title: Essays <&> notes
pass_at: 7
dimensions:
  - name: clear
    weight: 3
    judge: How clear is it?
  - name: useful
    floor: 2
    judge: How useful is it?
"""
DRAFT = 'It says <script>alert("&")</script>.\n\nAnd more of draft {}.'


PLACES = (("clear", 0), ("useful", 2))
ORIGIN = {r"\d{4}-\d\d-\d\d \d\d:\d\d UTC": "DATE", r"harness \d+\.\d+\S*": "harness VERSION"}


def directory(path: Path) -> Path:
    """A directory with a rubric and 150 drafts that two people scored."""
    (path / "rubrics").mkdir()
    (path / "rubrics/essay.yaml").write_text(RUBRIC)
    write_labels(path / "labels.jsonl", 150)
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The same, for what is written there."""
    return directory(tmp_path)


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Such a directory with a report in it, and what `--json` says."""
    here = directory(tmp_path_factory.mktemp("reported"))
    return here, tune(here, "--json").json


def write_labels(path: Path, count: int, **more: Any) -> None:
    generator = np.random.default_rng(4)
    rows = []
    for number in range(count):
        bad = bool(generator.random() < 0.25)
        quality = generator.normal(5.2 if bad else 8, 1.1)
        seen = np.clip(quality + generator.normal(0, 1, 6), 0, 10).round(1).tolist()
        people = {name: dict(zip("ab", seen[at : at + 2], strict=True)) for name, at in PLACES}
        row = {"id": f"d{number}", "draft": DRAFT.format(number), "accept": not bad}
        row |= {"human": people, "score": {"clear": seen[4], "useful": seen[5]}}
        rows.append({**row, "evaluator": "judge", **more})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def tune(here: Path, *more: str, labels: str = "labels.jsonl") -> Done:
    return harness("rubric", "tune", "essay", labels, "--report", "tune.html", *more, cwd=here)


@pytest.mark.parametrize("name", ["rubrics/essay.yaml", "labels.jsonl", "report"])
def test_a_report_is_written_over_no_other_file(here: Path, name: str) -> None:
    before = (here / "rubrics/essay.yaml").read_text()
    refused = tune(here, "--report", name, "--json")

    assert (refused.exit_code, refused.code) == (2, "tune.report-not-html")
    assert (here / "rubrics/essay.yaml").read_text() == before
    assert [path.name for path in (here / "rubrics").iterdir()] == ["essay.yaml"]


def page(here: Path) -> str:
    return (here / "tune.html").read_text(encoding="utf-8")


def texts(here: Path) -> str:
    """What a reader reads."""
    body = page(here).partition("<body>")[2]
    lines = re.sub(r"</(p|tr|h\d|li)>", "\n", body)
    return "\n".join(
        " ".join(unescape(re.sub(r"<[^>]+>", " ", line)).split())
        for line in lines.splitlines()
        if re.sub(r"<[^>]+>", "", line).strip()
    )


def test_the_page_says_the_claim_first_and_every_figure_of_the_terminal(
    reported: tuple[Path, Any],
) -> None:
    here, found = reported

    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", found["origin"]["Date"])
    assert_shown("tuning report", "accepted", texts(here), masks=ORIGIN)
    assert_shown("tuning report", "in the terminal", tune(here))


def test_drafts_decided_otherwise_are_shown_as_text_the_worst_first(
    reported: tuple[Path, Any],
) -> None:
    here, said = reported
    found = said["disagreements"]
    shown = re.findall(r"<h3>(\w+): composite ([\d.]+)", page(here))

    assert shown == [(one["id"], f"{one['composite']:g}") for one in found]
    assert 0 < len(shown) <= 20
    text = DRAFT.format(found[0]["id"][1:])
    assert text in unescape(page(here))
    assert "<script" not in page(here)


def test_a_secret_in_a_draft_is_not_in_the_page(here: Path) -> None:
    secret = "a-secret-<&>-of-some-length"
    text = (here / "labels.jsonl").read_text().replace("And more", secret)
    (here / "labels.jsonl").write_text(text)
    arguments = ("rubric", "tune", "essay", "labels.jsonl", "--report", "tune.html")
    harness(*arguments, cwd=here, SOME_API_KEY=secret)

    assert "of draft" in page(here)
    assert "-of-some-length" not in page(here)


def test_the_page_loads_nothing_and_says_so_to_the_browser(reported: tuple[Path, Any]) -> None:
    source = page(reported[0])

    assert not re.search(r"url\(|@import|https?:|\s(src|href|style|onload|srcset|data)=", source)
    assert source.count("default-src 'none'; style-src 'unsafe-inline'") == 1


def test_every_text_is_a_text_wherever_it_stands(here: Path) -> None:
    nasty = """<script>alert("1")</script> & 'more' \x1b[2J"""
    rows = [json.loads(line) for line in (here / "labels.jsonl").read_text().splitlines()]
    for row in rows:
        row |= {"id": f"{nasty} {row['id']}", "task": nasty, "evaluator": nasty}
    (here / "labels.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tune(here)

    assert "<script" not in page(here)
    assert "\x1b" not in page(here)
    assert f"Task: {nasty}".replace("\x1b", "\ufffd") in unescape(page(here))


def test_a_page_that_cannot_be_written_is_the_callers_mistake(here: Path) -> None:
    (here / "tune.html").mkdir()

    assert tune(here).exit_code == 2


@pytest.mark.parametrize(
    ("case", "more"),
    [("rejected", ("--of", "rejected")), ("all", ("--of", "all")), ("none", ("--target", "2%"))],
)
def test_the_rate_is_of_what_is_asked_for(here: Path, case: str, more: tuple[str, ...]) -> None:
    done = tune(here, *more)

    assert done.exit_code == 0
    claim, _, _ = texts(here).partition("Drafts that count")
    assert_shown("tuning report", case, claim, masks=ORIGIN)


@pytest.mark.parametrize(
    ("case", "labels"),
    [
        ("decisions alone", "id,accept,score\n1,yes,8\n2,yes,8\n"),
        ("no threshold", "id,accept,score.clear,score.useful\n1,yes,8,1\n2,no,9,1\n"),
    ],
)
def test_what_labels_do_not_have_is_said(here: Path, case: str, labels: str) -> None:
    (here / "few.csv").write_text(labels)

    assert tune(here, labels="few.csv").exit_code == 0
    assert_shown("tuning report", case, texts(here), masks=ORIGIN)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_a_browser_shows_it_whole_in_either_scheme_and_asks_nobody(
    reported: tuple[Path, Any], tmp_path: Path, width: int, scheme: str
) -> None:
    here, _ = reported
    with Chromium(tmp_path / "profile", width=width, height=900) as browser:
        media = {"name": "prefers-color-scheme", "value": scheme}
        browser.call("Emulation.setEmulatedMedia", features=[media])
        browser.open((here / "tune.html").as_uri())
        browser.wait_for("document.readyState == 'complete' && document.querySelector('article')")

        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        # The policy lets in the page's own style, and the colors are the scheme's.
        color = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert color == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 28)"}[scheme]
        assert browser.hosts_asked() == set()
