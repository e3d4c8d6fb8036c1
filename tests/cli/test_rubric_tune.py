"""`harness rubric tune`, as a person types it who has labeled drafts."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from command import Done, harness
from golden import assert_shown

pytest.importorskip("scipy", reason="scipy is not installed")


RUBRIC = """\
# What we send out.
title: Essay
pass_at: 7   # a guess
dimensions:
  - name: length
    checks: [{ check: words, min: 3 }]
  - name: clear
    weight: 3
    judge: How clear is it?
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory with a rubric and 150 labeled drafts."""
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics/essay.yaml").write_text(RUBRIC)
    write_labels(tmp_path / "labels.csv", 150)
    return tmp_path


def write_labels(path: Path, count: int, *, evaluator: str = "judge", seed: int = 4) -> None:
    generator = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "draft", "accept", "human.clear", "score.clear", "evaluator", "note"])
        for number in range(count):
            bad = generator.random() < 0.25
            score = np.clip(generator.normal(5.2 if bad else 8, 1.1), 0, 10).round(1)
            people = np.clip(score + generator.normal(0, 1), 0, 10).round()
            label = "no" if bad else "yes"
            row = [f"d{number}", "A draft of five words.", label, people, score, evaluator, "?"]
            rows.writerow(row)


def tune(here: Path, *more: str | Path, labels: str = "labels.csv") -> Done:
    return harness("rubric", "tune", "essay", labels, *more, cwd=here)


def test_from_labels_to_a_threshold_in_the_rubric(here: Path) -> None:
    looked = tune(here, "--json")
    done = tune(here, "--write")
    named = looked.json["named"]
    kept = json.loads((here / "rubrics/essay.calibration.json").read_text())
    check = harness("rubric", "check", "--json", "essay", cwd=here)

    assert looked.exit_code == done.exit_code == 0
    written = RUBRIC.replace("pass_at: 7 ", f"pass_at: {named['threshold']:g} ")
    assert (here / "rubrics/essay.yaml").read_text() == written
    assert kept["rubric_sha256"] == check.json[0]["rubric"]["sha256"]
    assert (kept["evaluator"], kept["samples"]) == ("judge", [1])
    assert kept["aim"] == {"risk": "accepted", "target": 0.1, "confidence": 0.9, "looks": 1}
    assert kept["at"] == named
    assert_shown("rubric tune", "written", done)


def test_too_few_labels_are_told_with_how_many_are_missing(here: Path) -> None:
    write_labels(here / "few.csv", 30)
    done = tune(here, labels="few.csv")
    refused = tune(here, "--write", "--json", labels="few.csv")

    assert_shown("rubric tune", "too few labels", done)
    assert (refused.exit_code, refused.code) == (2, "tune.none-named")
    assert (here / "rubrics/essay.yaml").read_text() == RUBRIC


@pytest.mark.parametrize("risk", ["accepted", "rejected", "all"])
def test_the_rate_is_of_what_is_asked_for(here: Path, risk: str) -> None:
    found = tune(here, "--json", "--of", risk, "--target", "0.2", "--confidence", "80%").json
    trials = {"accepted": "accepted", "rejected": "rejects", "all": "drafts"}[risk]

    assert found["aim"] == {"target": 0.2, "risk": risk, "confidence": 0.8, "looks": 1}
    assert found["named"]["wrong"] <= 0.2 * found["named"][trials]


def test_a_rubric_that_was_edited_after_a_look_pays_for_it(here: Path) -> None:
    first = tune(here, "--json").json
    path = here / "rubrics/essay.yaml"
    path.write_text(RUBRIC.replace("weight: 3", "weight: 1"))
    edited = tune(here, "--json").json

    assert [one["aim"]["looks"] for one in (first, edited)] == [1, 2]
    assert_shown("rubric tune", "two looks", tune(here))
    path.write_text(RUBRIC)
    assert tune(here, "--json").json["aim"]["looks"] == 2


def test_who_judged_must_be_known_before_a_threshold_is_kept(here: Path) -> None:
    write_labels(here / "unsigned.csv", 150, evaluator="")
    refused = tune(here, "--write", "--json", labels="unsigned.csv")

    assert (refused.exit_code, refused.code) == (2, "tune.no-evaluator")


def test_where_code_alone_scored_nobody_else_need_be_known(here: Path) -> None:
    (here / "rubrics/essay.yaml").write_text(RUBRIC + "    optional: true\n")
    text = "id,draft,accept\n" + "".join(f"{n},It is {n} long.,yes\n" for n in range(40))
    (here / "checked.csv").write_text(text + "no,Short.,no\n")
    done = tune(here, "--write", "--json", labels="checked.csv")

    assert (done.exit_code, done.json["written"]["evaluator"]) == (0, None)


def test_a_file_has_its_own_names(here: Path) -> None:
    (here / "mine.jsonl").write_text(
        "".join(
            json.dumps({"nr": n, "ok": n % 3 > 0, "judge": 5 + n % 3}) + "\n" for n in range(60)
        )
    )
    columns = ("--columns", "accept=ok", "--columns", "score=judge", "--columns", "id=nr")
    found = tune(here, "--json", *columns, labels="mine.jsonl")

    assert found.json["named"]["threshold"] == 6


def test_people_who_gave_scores_accept_from_the_threshold_that_was_first(here: Path) -> None:
    text = "id,human.clear,score.clear,score.length,evaluator\n"
    text += "".join(f"{n},{4 + n % 6},{4 + n % 6},10,judge\n" for n in range(120))
    (here / "scores.csv").write_text(text)
    first = tune(here, "--json", "--write", labels="scores.csv").json
    again = tune(here, "--json", labels="scores.csv").json
    told = tune(here, "--json", "--accept-at", "8", labels="scores.csv").json

    assert first["accept_at"] == again["accept_at"] == 7
    assert first["named"]["threshold"] != 7
    assert again["own"]["rejects"] == first["own"]["rejects"]
    assert told["own"]["rejects"] > first["own"]["rejects"]


def test_mistakes_are_told_by_line_all_at_once(here: Path) -> None:
    (here / "bad.csv").write_text("id,accept,score.clear\n1,maybe,7\n2,yes,eleven\n3,no,11\n")
    done = tune(here, "--json", labels="bad.csv")

    assert (done.exit_code, done.code) == (2, "labels.invalid")
    assert [f"bad.csv:{line}:" in done.stderr for line in (2, 3, 4)] == [True] * 3
    assert not (here / "rubrics/essay.attempts.json").exists()


def test_only_the_labels_of_the_labels_count(here: Path) -> None:
    columns = "id,accept,human.clear,group,score.clear,evaluator"
    rows = [line.split(",") for line in (here / "labels.csv").read_text().splitlines()[1:]]
    scores = [f"{row[0]},perhaps,eleven,one,{row[4]},judge" for row in rows]
    (here / "scores.csv").write_text("\n".join([columns, *scores]))
    (here / "people.csv").write_text(
        "\n".join(",".join(row[:4]) for row in [["id", "draft", "accept", "human.clear"], *rows])
    )
    names = ("named", "grouped", "agreements")
    alone = tune(here, "--json").json
    apart = tune(here, "--scores", "scores.csv", "--json", labels="people.csv").json

    assert {name: apart[name] for name in names} == {name: alone[name] for name in names}


def test_graders_who_disagree_are_counted(here: Path) -> None:
    rows = [f"{n},yes,{'no' if n < 10 else 'yes'},8" for n in range(30)]
    (here / "tie.csv").write_text("\n".join(["id,accept.anna,accept.bo,score", *rows]))

    assert_shown("rubric tune", "graders who disagree", tune(here, labels="tie.csv"))


def test_labels_of_one_kind_are_no_fault_of_the_scores(here: Path) -> None:
    (here / "good.csv").write_text("id,accept,score\n" + "".join(f"{n},yes,9\n" for n in range(50)))
    done = tune(here, "--of", "rejected", labels="good.csv")

    assert_shown("rubric tune", "labels of one kind", done)


@pytest.mark.parametrize("target", ["10", "0", "ten", "100%", "-1%"])
def test_a_rate_that_is_no_share_is_refused(here: Path, target: str) -> None:
    assert tune(here, "--target", target).exit_code == 2


def test_a_rubric_that_ships_keeps_its_records_among_ones_own(tmp_path: Path) -> None:
    rows = "".join(f"{n},{'yes' if n % 9 else 'no'},8,judge\n" for n in range(40))
    (tmp_path / "labels.csv").write_text(f"id,accept,score,evaluator\n{rows}")
    given = ("rubric", "tune", "brief", "labels.csv")
    looked = harness(*given, cwd=tmp_path)
    more = ("--write", "--target", "40%", "--json")
    refused = harness(*given, *more, cwd=tmp_path)

    assert looked.exit_code == 0
    assert (tmp_path / "rubrics/brief.attempts.json").exists()
    assert (refused.exit_code, refused.code) == (2, "tune.rubric-ships")
