"""`harness rubric compare`, as a person types it who has labels and two sets of scores."""

from __future__ import annotations

import asyncio
import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
from command import Done, harness
from golden import assert_shown
from judging import DRAFTS, judged
from judging import RUBRIC as NOTES

from harness import Pipeline, Settings

pytest.importorskip("scipy", reason="scipy is not installed")

RUBRIC = """\
title: Essay
pass_at: 7
dimensions:
  - name: clear
    weight: 3
    judge: How clear is it?
  - name: useful
    judge: How useful is it?
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with two rubrics, labels with the scores of one evaluator, and those of two."""
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics/essay.yaml").write_text(RUBRIC)
    (tmp_path / "rubrics/other.yaml").write_text(RUBRIC.replace("weight: 3", "weight: 1"))
    generator = np.random.default_rng(1)
    quality = generator.normal(7, 1.5, 200)
    for name, noise in (("good", 0.4), ("bad", 3), ("labels", 0.4)):
        rows = [["id", "accept", "human.clear", "score.clear", "score.useful", "evaluator"]]
        for number, one in enumerate(quality):
            scores = np.clip(one + generator.normal(0, noise, 2), 0, 10).round(1)
            people = float(np.clip(one, 0, 10).round())
            rows.append([f"d{number}", "yes" if one > 6 else "no", people, *scores, name])
        if name == "bad":  # scores alone
            rows = [[row[0], *row[3:]] for row in rows]
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return tmp_path


def compare(here: Path, *more: str) -> Done:
    return harness("rubric", "compare", *more, "--rubric", "essay", cwd=here)


def test_of_two_evaluators_the_better_one_is_named_and_equal_ones_are_not(here: Path) -> None:
    found = compare(here, "labels.csv", "bad.csv", "--json").json
    equal = compare(here, "labels.csv", "good.csv", "--json").json

    assert found["sides"] == ["essay, labels", "essay, bad"]
    for name, kind in (("clear", "pearson"), ("composite", "auc")):
        worse = found["people"]["agreement"][name][kind]
        same = equal["people"]["agreement"][name][kind]["difference"]
        assert worse["first"] > worse["second"]
        assert worse["difference"]["high"] < 0
        assert same["low"] < 0 < same["high"]
    better, worse = found["people"]["named"]
    assert better["threshold"] < worse["threshold"]
    assert better["accepted"] > worse["accepted"]


def test_what_is_said_stands_in_words_for_people(here: Path) -> None:
    done = compare(here, "labels.csv", "bad.csv", "--target", "15%")
    equal = compare(here, "labels.csv", "good.csv")

    assert_shown("rubric compare", "two evaluators", done)
    assert_shown("rubric compare", "equal ones", equal)


def test_two_rubrics_are_compared_on_the_same_scores(here: Path) -> None:
    found = compare(here, "labels.csv", "labels.csv", "--other-rubric", "other", "--json").json

    assert found["sides"] == ["essay, labels", "other, labels"]
    assert found["people"]["agreement"]["clear"]["pearson"]["difference"]["value"] == 0
    assert found["people"]["agreement"]["composite"]["auc"]["difference"]["value"] != 0
    for name in ("essay", "other"):
        kept = json.loads((here / f"rubrics/{name}.attempts.json").read_text())
        assert len(kept["attempts"]) == 2


def test_a_look_by_comparing_is_a_look_as_with_tune(here: Path) -> None:
    compare(here, "labels.csv", "bad.csv")
    tuned = harness("rubric", "tune", "essay", "labels.csv", "--json", cwd=here).json

    assert tuned["aim"]["looks"] == 2


def test_columns_are_renamed_in_whichever_file_has_them(here: Path) -> None:
    text = (here / "labels.csv").read_text()
    (here / "mine.csv").write_text(text.replace("id,accept", "nr,ship_it", 1))
    renamed = ("--columns", "id=nr", "--columns", "accept=ship_it")
    done = compare(here, "mine.csv", "bad.csv", *renamed, "--json")

    assert done.json["people"] == compare(here, "labels.csv", "bad.csv", "--json").json["people"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_scores_are_read_as_score_writes_them(tmp_path: Path, ending: str) -> None:
    (tmp_path / "notes.yaml").write_text(NOTES)
    for name, text in DRAFTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "labels.csv").write_text(
        "id,accept,score.clear,score.length,evaluator\ngood.md,yes,9,10,other\n"
        "fair.md,yes,3,10,other\npoor.md,no,7,10,other\n"
    )
    output = f"scores.{ending}"
    given = ("score", "notes.yaml", *DRAFTS, "--output", output, "--samples", "2")
    scored, _ = judged(*given, cwd=tmp_path)
    second, _ = judged(*given[:-1], "3", "--output", f"more.{ending}", cwd=tmp_path)
    bare = harness("rubric", "compare", output, f"more.{ending}", "--json", cwd=tmp_path)
    given = ("labels.csv", output, "--rubric", "notes.yaml", "--json")
    found = harness("rubric", "compare", *given, cwd=tmp_path)

    assert (scored.exit_code, second.exit_code, bare.exit_code, found.exit_code) == (0, 0, 0, 0)
    assert bare.json["shifts"]["composite"]["mean"]["difference"]["value"] == 0
    auc = found.json["people"]["agreement"]["composite"]["auc"]
    assert (auc["first"], auc["second"]) == (0.5, 1)
    assert found.json["sides"] == ["notes, other", "notes, evaluator"]


def test_what_cannot_be_compared_is_told(here: Path) -> None:
    rows = (here / "good.csv").read_text()
    (here / "changed.csv").write_text(rows.replace("no", "yes"))
    (here / "others.csv").write_text(rows.replace("\nd", "\ne"))
    (here / "unscored.csv").write_text("id,text\nd1,A text.\n")

    for second, code in (
        ("changed.csv", "compare.drafts-differ"),
        ("others.csv", "compare.no-pairs"),
        ("unscored.csv", "labels.no-labels"),
    ):
        refused = compare(here, "labels.csv", second, "--json")
        assert (refused.exit_code, refused.code) == (2, code)
    unnamed = harness("rubric", "compare", "bad.csv", "good.csv", "--json", cwd=here)
    assert (unnamed.exit_code, unnamed.code) == (2, "compare.no-rubric")
    assert not (here / "rubrics/essay.attempts.json").exists()


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_outputs_of_a_batch_have_to_be_scored_first(tmp_path: Path, ending: str) -> None:
    pipeline = Pipeline("shout")

    @pipeline.node
    def text(word: str) -> str:
        return word.upper()

    output = tmp_path / f"out.{ending}"
    settings = Settings(traces=tmp_path / "traces")
    asyncio.run(pipeline.batch([{"word": "tea"}], output=output, settings=settings))
    refused = harness("rubric", "compare", output, output, "--json", cwd=tmp_path)

    assert (refused.exit_code, refused.code) == (2, "compare.no-rubric")
    assert "'harness evaluate'" in refused.stderr
    assert "--rubric" not in refused.stderr


def test_without_labels_the_shift_of_scores_is_told_and_nothing_counts_as_a_look(
    here: Path,
) -> None:
    rows = [line.split(",") for line in (here / "bad.csv").read_text().splitlines()]
    (here / "lower.csv").write_text(
        "id,score.clear,score.useful,rubric\n"
        + "".join(f"{row[0]},{max(0, float(row[1]) - 1)},{row[2]},essay\n" for row in rows[1:])
    )
    found = compare(here, "bad.csv", "lower.csv", "--json").json
    said = compare(here, "bad.csv", "lower.csv")
    again = harness("rubric", "compare", "lower.csv", "lower.csv", cwd=here)

    assert found["people"] is None
    clear, useful = found["shifts"]["clear"]["mean"], found["shifts"]["useful"]["mean"]
    assert clear["difference"]["low"] < -0.8 > clear["difference"]["value"] > -1.01
    assert useful["difference"]["value"] == 0 == len(found["only_second"])
    assert found["only_first"]
    assert_shown("rubric compare", "without labels", said)
    assert_shown("rubric compare", "the same scores", again)
    assert not (here / "rubrics/essay.attempts.json").exists()


def test_labels_of_a_file_of_their_own_are_those_of_both_sides(here: Path) -> None:
    people = [line.split(",") for line in (here / "labels.csv").read_text().splitlines()]
    (here / "people.csv").write_text("".join(f"{','.join(row[:3])}\n" for row in people))
    apart = compare(here, "good.csv", "bad.csv", "--labels", "people.csv", "--json").json

    assert apart["people"]["agreement"]["clear"]["pearson"]["difference"]["high"] < 0
    assert apart["sides"] == ["essay, good", "essay, bad"]


def evaluation(path: Path, rows: list[dict[str, object]], *, epochs: int = 1) -> None:
    """Writes an output of 'harness evaluate' of a table without ids."""
    lines = [
        {
            "id": row.get("id", f"t.csv:{n}"),
            "epoch": epoch,
            "file": "t.csv",
            "line": n,
            "inputs": {k: v for k, v in row.items() if k != "right"},
            "output": "It is so.",
            "scores": {"right": row["right"]},
        }
        for n, row in enumerate(rows, start=2)
        for epoch in range(1, epochs + 1)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def questions(*right: float, **more: object) -> list[dict[str, object]]:
    return [{"q": f"What is {n}?", "right": score, **more} for n, score in enumerate(right)]


def test_rows_without_an_id_are_paired_by_their_inputs(tmp_path: Path) -> None:
    rows = questions(0, 1, 1, 0) * 2  # the same question twice
    evaluation(tmp_path / "d.jsonl", rows)
    evaluation(tmp_path / "f.jsonl", sorted(rows, key=lambda row: -float(str(row["right"]))))
    found = harness("rubric", "compare", "d.jsonl", "f.jsonl", "--json", cwd=tmp_path).json
    assert found["drafts"] == 8
    assert found["shifts"]["right"]["pearson"]["value"] == pytest.approx(1)

    evaluation(tmp_path / "g.jsonl", questions(0, 1, other="x"))
    refused = harness("rubric", "compare", "d.jsonl", "g.jsonl", "--json", cwd=tmp_path)
    assert (refused.exit_code, refused.code) == (2, "compare.no-pairs")
    assert_shown("rubric compare", "no pairs", refused.stderr)


def test_rows_without_a_partner_are_counted(tmp_path: Path) -> None:
    evaluation(tmp_path / "a.jsonl", questions(*[0, 1, 0] * 10))
    evaluation(tmp_path / "b.jsonl", questions(*[1] * 10))
    done = harness("rubric", "compare", "a.jsonl", "b.jsonl", cwd=tmp_path)
    found = harness("rubric", "compare", "a.jsonl", "b.jsonl", "--json", cwd=tmp_path).json
    assert_shown("rubric compare", "rows without a partner", done)
    assert found["without_partner"] == [20, 0]


def test_drafts_without_a_partner_are_counted(here: Path) -> None:
    text = "id,score.clear,score.useful\n"
    (here / "a.csv").write_text(text + "d1,7,7\nd2,8,8\nd3,9,9\n")
    (here / "b.csv").write_text(text + "d2,8,8\nd3,7,7\nd4,9,9\nd5,9,9\n")

    assert compare(here, "a.csv", "b.csv", "--json").json["without_partner"] == [1, 2]
    done = compare(here, "a.csv", "b.csv")
    assert "in B, drafts of A: 1." in done.text
    assert "in A, drafts of B: 2." in done.text

    (here / "people.csv").write_text("id,accept\nd2,yes\n")
    some = compare(here, "a.csv", "b.csv", "--labels", "people.csv")
    assert "left out, drafts of A: 2." in some.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cut.json", '{"version": 2, "eval": {"mod'),
        ("a.json", '{"a": 1}'),
        ("a.jsonl", '{"a": 1}\n'),
        ("cut.jsonl", '{"id": "t.csv:2", "ep'),
        ("cut.eval", "PK no"),
    ],
)
def test_a_broken_file_is_named_on_either_side(tmp_path: Path, name: str, text: str) -> None:
    evaluation(tmp_path / "ours.jsonl", questions(0, 1))
    (tmp_path / name).write_text(text)
    for files in (("ours.jsonl", name), (name, "ours.jsonl")):
        refused = harness("rubric", "compare", *files, cwd=tmp_path)
        assert_shown("rubric compare", f"broken: {name}", refused)


@pytest.mark.parametrize("more", [(), ("--rubric", "essay")], ids=["rows", "drafts"])
def test_a_pipe_is_read_once_and_sides_have_their_names(here: Path, more: tuple[str, ...]) -> None:
    if more:
        text = "id,score.clear\nd1,7\nd2,8\n"
    else:
        evaluation(here / "rows.jsonl", questions(0, 1, 1))
        text = (here / "rows.jsonl").read_text()
    ending = "csv" if more else "jsonl"
    (here / f"b.{ending}").write_text(text)
    os.mkfifo(pipe := here / f"a.{ending}")
    # What is in a pipe stays there as long as it is open for anyone.
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    pipe.write_text(text)
    done = harness("rubric", "compare", pipe.name, f"b.{ending}", *more, "--json", cwd=here)
    os.close(reader)

    assert done.exit_code == 0, done.stderr
    sides = ("essay, a.csv", "essay, b.csv") if more else ("a.jsonl", "b.jsonl")
    assert tuple(done.json["sides"]) == sides


def test_a_reducer_that_needs_more_epochs_is_refused(tmp_path: Path) -> None:
    for name, epochs in (("a.jsonl", 5), ("b.jsonl", 3)):
        evaluation(tmp_path / name, questions(0, 1, 1, 0), epochs=epochs)
    given = ("rubric", "compare", "a.jsonl", "b.jsonl", "--json", "--reduce")
    assert harness(*given, "pass_at_3", cwd=tmp_path).json["shifts"]["right"]["drafts"] == 4
    refused = harness(*given, "pass_at_5", cwd=tmp_path)
    assert (refused.exit_code, refused.code) == (2, "evaluation.reducer-unknown")


def test_a_success_is_what_it_was_in_each_evaluation(tmp_path: Path) -> None:
    for name, least in (("a.jsonl", 8), ("b.jsonl", 7)):
        evaluation(tmp_path / name, questions(3, 7, 7, 9), epochs=2)
        about = {"reduce": "mean", "success": {"right": least}}
        (tmp_path / f"{name}.batch").write_text(json.dumps({"evaluation": about}))
    command = ("rubric", "compare", "a.jsonl", "b.jsonl", "--json", "--reduce")
    means = {
        reduce: harness(*command, reduce, cwd=tmp_path).json["shifts"]["right"]["mean"]
        for reduce in ("at_least_2", "pass_at_1", "at_least_2:3", "mean")
    }
    assert {reduce: (mean["first"], mean["second"]) for reduce, mean in means.items()} == {
        "at_least_2": (0.25, 0.75),
        "pass_at_1": (0.25, 0.75),
        "at_least_2:3": (1, 1),
        "mean": (6.5, 6.5),
    }


def test_what_two_rows_or_equal_scores_cannot_tell_is_a_dash(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        evaluation(tmp_path / name, questions(1, 1))
    shown = harness("rubric", "compare", "a.jsonl", "b.jsonl", cwd=tmp_path)
    assert_shown("rubric compare", "equal scores of two rows", shown)
