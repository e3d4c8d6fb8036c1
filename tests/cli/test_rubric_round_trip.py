"""From labels to scores and on to a threshold: `score` keeps labels, `tune` asks for scores."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from command import NOBODY, Done, harness
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


def tune(here: Path, *more: str, labels: str = "labels.csv", **judge: Any) -> tuple[Done, int]:
    return judged("tune", "notes.yaml", labels, "--json", *more, cwd=here, **judge)


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
        "id,draft,rater,dimension,human,accept\n"
        f'a,"{text(0)}",anna,clear,7,yes\na,"{text(0)}",bob,clear,8,\na,,bob,length,6,no\n'
        f'b,"{text(1)}",anna,clear,5,no\nb,"{text(2)}",bob,clear,5,no\n'
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


# --- labels without scores -------------------------------------------------------------------


def test_drafts_without_scores_are_judged_once_and_kept(here: Path) -> None:
    write(here / "labels.csv", MANY)
    first, calls = tune(here, "--samples", "2", "--write")
    again, more = tune(here, "--samples", "2")

    assert first.exit_code == 0, first.stderr
    assert (calls, more) == (2 * MANY, 0), "the threshold that was written changes no score"
    kept = Path(first.json["scores_kept"])
    assert kept.name in first.stderr
    assert all(len(row["score.clear"]) == 2 for row in rows(here / kept))
    assert (first.json["samples"], first.json["named"]["threshold"]) == ([2], 7.8)
    assert first.json["written"]["evaluator"] == "evaluator"
    assert again.json["named"] == first.json["named"]
    assert again.json["aim"]["looks"] == 1


def test_the_noise_of_its_samples_is_used_from_then_on(here: Path) -> None:
    write(here / "labels.csv", MANY)
    lower = iter([8.0, 9.0] * MANY)

    def score(prompt: str) -> float:
        return 3.0 if DRAFTS["poor.md"].strip() in prompt else next(lower)

    given = ("--samples", "2", "--max-parallel", "1", "--write")
    done, _ = tune(here, *given, score=score)
    noise = done.json["written"]["noise"]
    scored, _ = judged("score", "notes.yaml", "labels.csv", "--json", cwd=here)

    # (10 + 3 * 8) / 4 and (10 + 3 * 9) / 4 deviate by 0.57, in two drafts of three.
    assert noise["deviation"] == pytest.approx(0.57 * (2 / 3) ** 0.5, abs=0.01)
    assert (noise["evaluator"], noise["drafts"]) == ("evaluator", MANY)
    assert scored.exit_code == 0
    journal = (here / scored.json["journal"]).read_text()
    assert journal.count('"evaluator noise"') == 1
    judges = [one["judges"] for one in scored.json["drafts"]]
    assert {one["borderline"] for one in judges} == {True, False}


def test_only_what_is_missing_is_asked_for(here: Path) -> None:
    labels = [
        {"id": f"d{n}", "draft": text(n), "accept": n % 3 < 2, "evaluator": "evaluator"}
        for n in range(COUNT)
    ]
    for one in labels[4:]:
        one["score"] = {"clear": [9, 9]}
    labels[0].pop("accept")
    (here / "some.jsonl").write_text("".join(json.dumps(one) + "\n" for one in labels))

    done, calls = tune(here, "--samples", "2", "--output", "mine.csv", labels="some.jsonl")

    assert (done.exit_code, calls) == (0, 3 * 2)
    assert (done.json["drafts"], done.json["scores_kept"]) == (COUNT - 1, "mine.csv")


def test_both_ways_to_scores_are_one_look_at_the_labels(here: Path) -> None:
    tune(here, "--samples", "2")
    given = ("notes.yaml", "labels.csv", "--samples", "2", "--output", "scored.jsonl")
    judged("score", *given, cwd=here)

    done = alone("tune", "notes.yaml", "scored.jsonl", "--json", cwd=here)

    assert done.json["aim"]["looks"] == 1
    (look,) = json.loads((here / "notes.attempts.json").read_text())["attempts"]
    assert len(look["scores"]) == COUNT


def test_after_ctrl_c_the_same_command_asks_for_the_rest(here: Path) -> None:
    serial = ("--samples", "1", "--max-parallel", "1")
    first, _ = tune(here, *serial, at={"poor.md": int(signal.SIGINT)})
    second, calls = tune(here, *serial)

    assert first.exit_code == 130
    assert "the same command goes on" in first.stderr
    assert (second.exit_code, calls) == (0, COUNT - 2)


def test_a_draft_that_could_not_be_judged_is_told_and_the_others_count(here: Path) -> None:
    (here / "labels.csv").write_text(
        "id,draft,accept\n" + "".join(f'd{n},"{text(n)}",yes\n' for n in (0, 1, 3, 4))
    )
    with (here / "labels.csv").open("a") as file:
        file.write(f'bad,"{text(2)}",no\n')
    done, _ = tune(here, at={"poor.md": "I would rather not."})

    assert done.exit_code == 1
    assert (list(done.json["not_judged"]), done.json["drafts"]) == (["bad"], 4)
    assert done.json["dropped"] == {"no 'score.clear'": ["bad"]}


def test_a_judge_out_of_reach_ends_it_without_a_look(here: Path) -> None:
    dead = {"evaluator": {"url": f"{NOBODY}/v1", "model_id": "judge"}}
    given = ("rubric", "tune", "notes.yaml", "labels.csv", "--json")
    done = harness(*given, cwd=here, endpoints=dead)

    assert (done.exit_code, done.code) == (1, "call.unreachable")
    assert not (here / "notes.attempts.json").exists()


def test_without_an_evaluator_it_says_how_scores_come_about(here: Path) -> None:
    done = alone("tune", "notes.yaml", "labels.csv", "--json", cwd=here)

    assert (done.exit_code, done.code) == (2, "tune.no-scores")
    for remedy in ("[roles]", "--role evaluator=TAG", "score.clear"):
        assert remedy in done.stderr


def test_what_may_be_left_out_is_asked_for_only_where_there_is_an_evaluator(here: Path) -> None:
    (here / "notes.yaml").write_text(RUBRIC + "    optional: true\n")
    without = alone("tune", "notes.yaml", "labels.csv", "--json", cwd=here)
    done, calls = tune(here, "--samples", "1")

    assert (without.exit_code, without.json["drafts"], without.json["samples"]) == (0, COUNT, [])
    assert (done.exit_code, calls) == (0, COUNT)


def test_scores_of_two_evaluators_are_not_mixed(here: Path) -> None:
    (here / "labels.csv").write_text(
        f'id,draft,accept,score.clear,evaluator\n1,"{text(0)}",yes,8,other\n2,"{text(1)}",yes,,\n'
    )
    done, calls = tune(here)

    assert (done.exit_code, done.code, calls) == (2, "tune.other-evaluator", 0)


# --- the guide -------------------------------------------------------------------------------

LABELS = "examples/labels/release_notes.csv"


def test_the_hour_of_the_guide_with_an_evaluator_asks_it_once_and_keeps_its_noise(
    tmp_path: Path,
) -> None:
    guide = (ROOT / "docs/rubrics.md").read_text(encoding="utf-8")
    (notes,) = re.findall(r"`rubrics/notes.yaml`:\n\n```yaml\n(.*?)```", guide, re.DOTALL)
    steps = re.findall(rf"^\$ harness rubric (.*{LABELS}.*)", guide, re.MULTILINE)
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

    assert calls == [3 * 30, 0, 0]
    kept = json.loads((tmp_path / "rubrics/notes.calibration.json").read_text())
    assert (kept["evaluator"], kept["samples"]) == ("evaluator", [3])
    assert kept["noise"]["deviation"] > 0
