"""From labels to scores and on to a threshold: `score` keeps labels, `tune` reads scores."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from command import Done
from demo import ROOT
from judging import DRAFTS, RUBRIC, alone, judged

pytest.importorskip("scipy", reason="scipy is not installed")

COUNT = 12
MANY = 60
NAMES = list(DRAFTS)
"""One after another, so that there are as many of each."""


def text(number: int) -> str:
    return f"{DRAFTS[NAMES[number % 3]].strip()} Number {number}."


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with labels of some drafts: people reject the poor ones."""
    (tmp_path / "notes.yaml").write_text(RUBRIC)
    write(tmp_path / "labels.csv")
    return tmp_path


def write(path: Path, count: int = COUNT, **changed: str) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "draft", "accept", "human.clear.anna", "group", "note"])
        for number in range(count):
            accept = changed.get(f"d{number}", "no" if number % 3 == 2 else "yes")
            rows.writerow([f"d{number}", text(number), accept, 8 - number % 3, f"g{number}", "?"])


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- scores that keep labels -----------------------------------------------------------------


@pytest.mark.parametrize("output", ["scored.jsonl", "scored.csv"])
def test_scored_labels_are_labels_with_scores(here: Path, output: str) -> None:
    write(here / "labels.csv", MANY)
    given = ("notes.yaml", "labels.csv", "--samples", "2", "--output", output)
    scored, calls = judged("score", *given, cwd=here)
    done = alone("tune", "notes.yaml", output, "--json", "--write", cwd=here)

    assert (scored.exit_code, calls) == (0, 2 * MANY)
    assert done.exit_code == 0, done.stderr
    found = done.json
    assert (found["drafts"], found["ignored_columns"], found["outdated"]) == (MANY, [], [])
    assert found["named"]["threshold"] == 7.8
    assert (found["written"]["evaluator"], found["written"]["samples"]) == ("evaluator", [2])
    assert [one["name"] for one in found["agreements"]] == ["clear"]
    # The threshold that was written has no part in these scores.
    again = alone("tune", "notes.yaml", output, "--json", cwd=here).json
    assert (again["outdated"], again["aim"]["looks"]) == ([], 1)


@pytest.mark.parametrize("output", ["scored.jsonl", "scored.csv"])
def test_a_label_that_was_mended_replaces_the_one_before_without_asking_again(
    here: Path, output: str
) -> None:
    given = ("score", "notes.yaml", "labels.csv", "--output", output)
    judged(*given, cwd=here)
    write(here / "labels.csv", d0="no")

    _, calls = judged(*given, cwd=here)

    assert calls == 0
    found = alone("tune", "notes.yaml", output, "--json", cwd=here).json
    assert (found["drafts"], found["own"]["rejects"]) == (COUNT, COUNT // 3 + 1)
    size = (here / output).stat().st_size
    judged(*given, cwd=here)
    assert (here / output).stat().st_size == size


def test_labels_of_several_raters_in_rows_of_their_own_are_kept_in_one(here: Path) -> None:
    (here / "long.csv").write_text(
        "id,draft,rater,human.clear,human.length,accept\n"
        f'a,"{text(0)}",anna,7,,yes\na,"{text(0)}",bob,8,,\na,,bob,,6,no\n'
        f'b,"{text(1)}",anna,5,,no\nb,"{text(2)}",bob,5,,no\n'
    )
    done, calls = judged("score", "notes.yaml", "long.csv", "--output", "out.jsonl", cwd=here)
    first, second = sorted(rows(here / "out.jsonl"), key=lambda row: str(row["id"]))

    assert (done.exit_code, calls) == (1, 2)
    assert "long.csv:6" in done.stdout, "another text is another draft"
    assert {name: first[name] for name in first if name.startswith(("human", "accept"))} == {
        "human.clear.anna": "7",
        "human.clear.bob": "8",
        "human.length.bob": "6",
        "accept.anna": "yes",
        "accept.bob": "no",
    }
    assert second["human.clear.anna"] == "5"


def test_labels_under_other_names_are_kept_under_those_that_tuning_knows(here: Path) -> None:
    lines = (here / "labels.csv").read_text().splitlines(keepends=True)
    (here / "labels.csv").write_text("".join([lines[0].replace("accept", "ok"), *lines[1:]]))
    given = ("notes.yaml", "labels.csv", "--columns", "accept=ok", "--output", "out.csv")

    alone("score", *given, "--checks-only", cwd=here)

    with (here / "out.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["accept"], first["human.clear.anna"], first["group"]) == ("yes", "8", "g0")
    assert not first.keys() & {"ok", "note", "draft"}


@pytest.mark.parametrize(
    ("repeats", "samples", "uneven"), [(3, (), COUNT), (3, ("--samples", "1"), 0), (1, (), 0)]
)
def test_drafts_that_were_judged_more_often_only_near_the_threshold_are_told(
    here: Path, repeats: int, samples: tuple[str, ...], uneven: int
) -> None:
    (here / "notes.yaml").write_text(RUBRIC.replace("repeats: 1", f"repeats: {repeats}"))
    judged("score", "notes.yaml", "labels.csv", "--output", "scored.csv", *samples, cwd=here)

    done = alone("tune", "notes.yaml", "scored.csv", cwd=here)

    assert ("scored without --samples" in done.text) is bool(uneven)


def test_scores_by_another_version_of_the_rubric_are_told(here: Path) -> None:
    judged("score", "notes.yaml", "labels.csv", "--output", "scored.jsonl", cwd=here)
    (here / "notes.yaml").write_text(RUBRIC.replace("weight: 3", "weight: 2"))

    found = alone("tune", "notes.yaml", "scored.jsonl", "--json", cwd=here).json
    said = alone("tune", "notes.yaml", "scored.jsonl", cwd=here).text

    assert len(found["outdated"]) == COUNT
    assert "12 have scores by another version of the rubric" in said


def test_another_threshold_needs_no_judgement_where_their_number_is_fixed(here: Path) -> None:
    given = ("score", "notes.yaml", "labels.csv", "--output", "out.jsonl", "--json")
    given += ("--samples", "2")
    judged(*given, cwd=here)
    (here / "notes.yaml").write_text(RUBRIC.replace("pass_at: 8", "pass_at: 7.5"))

    done, asked = judged(*given, cwd=here)

    assert asked == 0
    passed = [one["passed"] for one in done.json["drafts"]]
    assert passed == [number % 3 < 2 for number in range(COUNT)]
    assert {row["rubric_sha256"] for row in rows(here / "out.jsonl")} == {
        done.json["rubric_sha256"]
    }


# --- scores of a file of their own -----------------------------------------------------------


def scored(here: Path, *more: str, **judge: Any) -> Done:
    given = ("notes.yaml", "labels.csv", "--samples", "2", "--output", "scored.jsonl")
    return judged("score", *given, *more, cwd=here, **judge)[0]


def tune(here: Path, *more: str) -> Done:
    return alone(
        "tune", "notes.yaml", "labels.csv", "--scores", "scored.jsonl", "--json", *more, cwd=here
    )


def test_both_ways_to_scores_are_one_look_at_the_labels(here: Path) -> None:
    scored(here)
    tune(here)
    done = alone("tune", "notes.yaml", "scored.jsonl", "--json", cwd=here)

    assert done.json["aim"]["looks"] == 1
    (look,) = json.loads((here / "notes.attempts.json").read_text())["attempts"]
    assert len(look["scores"]) == COUNT


def test_a_copy_of_a_rubric_does_not_look_at_labels_for_free(here: Path) -> None:
    scored(here)
    tune(here)
    (here / "copy.yaml").write_text(RUBRIC.replace("weight: 3", "weight: 9"))
    (here / "labels.csv").rename(here / "renamed.csv")
    given = ("renamed.csv", "--scores", "scored.jsonl", "--json")
    done = alone("tune", "copy.yaml", *given, cwd=here)

    looks = json.loads((here / "copy.attempts.json").read_text())["attempts"]
    assert (done.exit_code, len(looks)) == (0, 2)


def test_a_draft_that_could_not_be_judged_is_told_and_the_others_count(here: Path) -> None:
    write(here / "labels.csv", 5)
    scored(here, at={"poor.md": "I would rather not."})
    done = tune(here)

    assert (done.exit_code, done.json["drafts"]) == (0, 4)
    assert done.json["dropped"] == {"no 'score.clear'": ["d2"]}


def test_without_scores_it_says_how_they_come_about(here: Path) -> None:
    done = alone("tune", "notes.yaml", "labels.csv", "--json", cwd=here)

    assert (done.exit_code, done.code) == (2, "tune.nothing-to-count")
    assert "harness rubric score" in done.stderr


# --- the guide -------------------------------------------------------------------------------

LABELS = "examples/labels/release_notes.csv"


def test_the_hour_of_the_guide_with_an_evaluator_asks_it_once(
    tmp_path: Path,
) -> None:
    guide = (ROOT / "docs/rubrics.md").read_text(encoding="utf-8")
    (notes,) = re.findall(r"`rubrics/notes.yaml`:\n\n```yaml\n(.*?)```", guide, re.DOTALL)
    steps = re.findall(rf"^\$ harness rubric (.*{LABELS}.*)", guide, re.MULTILINE)
    (first,) = re.findall(r"`harness\s+rubric (score notes .* --output scored.jsonl)`", guide)
    steps = [first, *(f"{one} --scores scored.jsonl" * ("tune" in one) or one for one in steps)]
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics/notes.yaml").write_text(notes)
    shutil.copytree(ROOT / "examples/labels", tmp_path / "examples/labels")
    with (tmp_path / LABELS).open(newline="") as file:
        accept = {row["draft"].strip(): row["accept"] for row in csv.DictReader(file)}
    turns = itertools.cycle([0, 0.5, 1])

    def score(prompt: str) -> float:
        (said,) = {accept[draft] for draft in accept if draft in prompt}
        return {"yes": 8.5, "no": 3}[said] + next(turns)

    calls = []
    for step in steps:
        done, asked = judged(*shlex.split(step), cwd=tmp_path, score=score)
        assert done.exit_code == 0, done.stderr
        calls.append(asked)

    assert calls == [3 * 30, 0, 0, 0]
    kept = json.loads((tmp_path / "rubrics/notes.calibration.json").read_text())
    assert (kept["evaluator"], kept["samples"]) == ("evaluator", [3])
