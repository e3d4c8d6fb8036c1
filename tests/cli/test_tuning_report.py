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


def page(here: Path) -> str:
    return (here / "tune.html").read_text(encoding="utf-8")


def texts(here: Path) -> str:
    """What a reader reads, with what is said of plots."""
    body = page(here).partition("<body>")[2]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_claim_stands_first(reported: tuple[Path, Any]) -> None:
    here, found = reported
    own, named = found["own"], found["named"]
    first = re.findall(r"<p[^>]*>(.*?)</p>", page(here))[0]

    trials, wrong = own["accepted"], own["wrong"]
    assert unescape(first).startswith(
        f"pass_at 7 accepts {trials} of 150: {wrong} of {trials} ({100 * wrong / trials:.3g}%) of "
        f"the accepted are wrong. At most {100 * found['own_bound']:.3g}% are, 90% sure, if it was "
        f"chosen before these labels were seen. Threshold {named['threshold']:g} accepts "
    )
    assert "Claim: at most 10% of the accepted are wrong, 90% sure" in first


def test_every_figure_is_that_of_the_json_and_of_the_terminal(reported: tuple[Path, Any]) -> None:
    here, found = reported
    printed = tune(here).text
    said = texts(here)

    for one in found["agreements"]:
        r, person = one["estimates"]["pearson"], one["ceiling"]
        assert f"{r['value']:.2f} ({r['low']:.2f} to {r['high']:.2f})" in said
        assert f" {person:.2f} " in said
    auc = found["discrimination"]
    line = f"{auc['value']:.2f} ({auc['low']:.2f} to {auc['high']:.2f}) of pairs (AUC)"
    assert line in said
    assert line in printed


def test_it_says_what_its_figures_come_from(reported: tuple[Path, Any]) -> None:
    here, found = reported
    made = found["origin"]

    for name, value in made.items():
        if name != "Date":
            assert f"{name} {value}" in texts(here)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", made["Date"])
    assert made["Labels"].startswith("labels.jsonl, 150 of 150 drafts")
    assert found["rubric_sha256"] in made["Rubric"]
    assert made["Evaluator"] == "judge"
    assert "fixed sequence" in made["Method"]


def test_the_curve_passes_through_every_threshold(reported: tuple[Path, Any]) -> None:
    here, found = reported
    _, curve = re.findall(r'<path d="M([^"]+)" class="line first">', page(here))[:2]
    points = [tuple(map(float, one.split())) for one in curve.split("L")]
    bottom, top = 228, 28
    shares = [one["wrong"] / one["accepted"] for one in reversed(found["steps"])]

    # For every threshold a step: its beginning and its end, at the same height.
    assert [y for _, y in points[::2]] == [y for _, y in points[1::2]]
    drawn = [(bottom - y) / (bottom - top) for _, y in points[1::2]]
    assert drawn == pytest.approx(shares, abs=0.001)


def test_the_bars_are_all_drafts_that_count(reported: tuple[Path, Any]) -> None:
    here, found = reported
    bars = re.findall(
        r'<rect x="\S+" y="\S+" width="\S+" height="(\S+)" class="bar (\w+)">', page(here)
    )
    heights = {
        look: sum(float(height) for height, one in bars if one == look)
        for look in ("first", "second")
    }
    good = found["drafts"] - found["own"]["rejects"]

    assert heights["second"] / heights["first"] == pytest.approx(found["own"]["rejects"] / good)
    assert f"people accept {good}, in the median" in texts(here)


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        pytest.param((), "of the accepted are wrong", id="accepted"),
        pytest.param(("--of", "rejected"), "of those that people reject are", id="rejected"),
        pytest.param(("--of", "all"), "of all are accepted and wrong", id="all"),
        pytest.param(("--target", "2%"), "No threshold allows the claim: at most 2%", id="none"),
    ],
)
def test_the_rate_is_of_what_is_asked_for(here: Path, more: tuple[str, ...], said: str) -> None:
    done = tune(here, *more)

    assert done.exit_code == 0
    assert said in texts(here).partition("Drafts that count")[0]


def test_what_labels_do_not_have_is_said_and_not_drawn(here: Path) -> None:
    (here / "few.csv").write_text("id,accept,score\n1,yes,8\n2,yes,8\n")
    done = tune(here, labels="few.csv")
    said = texts(here)

    assert done.exit_code == 0
    assert "Evaluator not named" in said
    assert "At the least 36 more are missing" in said
    assert "The labels have no scores by people, only decisions." in said
    assert "people accept 2, in the median 8; people reject 0." in said
    assert page(here).count("<figure>") == 2


def test_drafts_that_no_threshold_accepts_have_no_curve(here: Path) -> None:
    (here / "low.csv").write_text("id,accept,score.clear,score.useful\n1,yes,8,1\n2,no,9,1\n")

    assert tune(here, labels="low.csv").exit_code == 0
    assert "2 of them fail at every threshold" in texts(here)
    assert "No threshold allows the claim" in texts(here)
    assert page(here).count("<figure>") == 1


def test_a_threshold_that_these_labels_set_has_no_bound_by_them(here: Path) -> None:
    tune(here, "--write")
    tune(here)

    assert "It was set by these labels" in texts(here)


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
        outside = browser.evaluate(TEXTS_OUTSIDE)
        assert outside == []
        assert browser.hosts_asked() == set()
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    images = [node for node in nodes if node.get("role", {}).get("value") in ("image", "img")]
    named = [(node["name"]["value"], node["description"]["value"]) for node in images]
    assert len(named) == page(here).count("<figure>") == 2
    assert all(name and description for name, description in named)


TEXTS_OUTSIDE = """
[...document.querySelectorAll('figure > svg text')].filter(text => {
    const own = text.getBoundingClientRect(), all = text.closest('svg').getBoundingClientRect();
    return own.left < all.left - 1 || own.right > all.right + 1 || own.bottom > all.bottom + 1;
}).map(text => text.textContent)
"""
"""Of a plot, which do not lie in it."""
