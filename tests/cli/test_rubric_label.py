"""`harness rubric label`, as a person types who says which drafts are good enough."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command import Done, harness
from golden import assert_shown
from judging import DRAFTS, judged
from test_runs_export import BETTER, RUBRIC, WORSE, write_run

from harness.rubric import load_rubric
from harness.rubric.calibration.labels import Labels, read_labels

TASK = ("--task", "Say what keeping a model loaded is good for.")


def label(drafts: Path, typed: str, *words: str, names: tuple[str, ...] = (*DRAFTS,)) -> Done:
    given = ("notes.yaml", *names, *TASK, "--output", "labels.jsonl", *words)
    return harness("rubric", "label", *given, cwd=drafts, stdin=typed)


def rows(drafts: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (drafts / "labels.jsonl").read_text().splitlines()]


def accepted(drafts: Path, *, rater: str = "me") -> dict[str, bool]:
    """What a rater decided, in the order in which it was asked."""
    every = [row for row in rows(drafts) if row["rater"] == rater]
    return {row["id"]: row["accept"] for row in every if "accept" in row}


def read(drafts: Path) -> Labels:
    rubric = load_rubric(str(drafts / "notes.yaml"))
    return read_labels(drafts / "labels.jsonl", rubric, columns={})


def test_what_is_answered_is_what_tune_reads(drafts: Path) -> None:
    done = label(drafts, "y\nn\nyes\n", "--rater", "anna")

    order = list(accepted(drafts, rater="anna"))
    found = {one.id: one for one in read(drafts).drafts}
    assert done.exit_code == 0
    assert sorted(order) == sorted(DRAFTS)
    assert [found[name].accept for name in order] == [{"anna": one} for one in (True, False, True)]
    assert {name: one.draft for name, one in found.items()} == DRAFTS
    assert {one.task for one in found.values()} == {TASK[1]}
    assert read(drafts).ignored == ()


def test_the_rater_sees_task_and_draft_and_no_score_or_name(drafts: Path) -> None:
    done = label(drafts, "q\n")

    shown = [name for name, text in DRAFTS.items() if text.strip() in done.stdout]
    assert len(shown) == 1
    assert TASK[1] in done.stdout
    assert shown[0] not in done.stdout


def test_the_same_command_goes_on_in_the_same_order(drafts: Path) -> None:
    label(drafts, "y\n")
    first = rows(drafts)
    label(drafts, "n\n")
    done = label(drafts, "y\n")
    again = label(drafts, "")

    order = sorted(DRAFTS, key=list(accepted(drafts)).index)
    assert rows(drafts)[0] == first[0]
    assert list(accepted(drafts).values()) == [True, False, True]
    assert DRAFTS[order[2]] in done.stdout
    assert_shown("rubric label", "all labeled", again)


def test_a_draft_that_is_added_later_leaves_the_others_in_their_order(drafts: Path) -> None:
    label(drafts, "y\n")
    (drafts / "more.md").write_text("A further draft with some words.\n")
    label(drafts, "y\ny\ny\n", names=(*DRAFTS, "more.md"))
    order = [name for name in accepted(drafts) if name != "more.md"]
    (drafts / "labels.jsonl").write_text(json.dumps(rows(drafts)[0]) + "\n")
    label(drafts, "y\ny\n")

    assert list(accepted(drafts)) == order


KEYS = {
    "back": ("y\nb\nn\n", [False]),
    "back twice": ("y\ny\nb\nb\nn\nn\n", [False, False]),
    "skip": ("s\ny\n", [True]),
    "nothing to go back to": ("b\ny\n", [True]),
    "no answer": ("maybe\n1\n\ny\n", [True]),
    "sources": ("y\nv\nn\n", [True, False]),
    "quit": ("y\nq\nn\n", [True]),
    "all skipped": ("s\ns\ns\n", []),
}


@pytest.mark.parametrize(("typed", "decisions"), KEYS.values(), ids=KEYS)
def test_keys(drafts: Path, typed: str, decisions: list[bool]) -> None:
    done = label(drafts, typed)

    assert done.exit_code == 0
    assert list(accepted(drafts).values()) == decisions


def test_what_was_skipped_comes_again_the_next_time(drafts: Path) -> None:
    label(drafts, "s\ny\ny\n")
    label(drafts, "y\n")

    assert len(accepted(drafts)) == 3


def test_an_answer_of_an_earlier_time_can_be_taken_back(drafts: Path) -> None:
    label(drafts, "y\n")
    label(drafts, "b\nn\n")

    assert [(row["accept"], row["draft"]) for row in rows(drafts)] == [
        (False, DRAFTS[rows(drafts)[0]["id"]])
    ]


def test_a_second_rater_labels_the_same_drafts_in_an_order_of_their_own(drafts: Path) -> None:
    for number in range(8):
        (drafts / f"{number}.md").write_text(f"Draft number {number} has several words.\n")
    names = tuple(f"{number}.md" for number in range(8))
    label(drafts, "y\n" * 8, "--rater", "anna", names=names)
    label(drafts, "n\n" * 7 + "b\n" * 9 + "n\n" * 8, "--rater", "ben", names=names)

    orders = [list(accepted(drafts, rater=rater)) for rater in ("anna", "ben")]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    assert {tuple(one.accept.items()) for one in read(drafts).drafts} == {
        (("anna", True), ("ben", False))
    }


def test_at_a_narrow_terminal_without_color_no_line_is_too_long(drafts: Path) -> None:
    long = "Words that go on and on. " * 20
    (drafts / "long.md").write_text(long)
    done = harness(
        *("rubric", "label", "notes.yaml", "long.md", "--output", "labels.jsonl"),
        cwd=drafts,
        typed="y\n",
        NO_COLOR="1",
        COLUMNS="80",
    )

    assert accepted(drafts) == {"long.md": True}
    # What is typed ends the line of a question.
    assert max(map(len, done.stdout.replace(": ", "\n").splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert " ".join(long.split()) in done.text


# --- which drafts ----------------------------------------------------------------------------


@pytest.fixture
def scored(drafts: Path) -> Path:
    """The same with scores of two of the drafts that pass at 7."""
    given = ("notes.yaml", *DRAFTS, *TASK, "--output")
    for name in ("scores.jsonl", "scores.csv"):
        judged("score", *given, name, cwd=drafts)
    return drafts


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_scores_go_into_the_labels_unseen(scored: Path, ending: str) -> None:
    done = label(scored, "y\n" * 3, "--scores", f"scores.{ending}")

    found = {one.id: one for one in read(scored).drafts}
    given = {name: one.scores["clear"] for name, one in found.items()}
    assert given == {"good.md": (9,), "fair.md": (7,), "poor.md": (3,)}
    assert {one.evaluator for one in found.values()} == {"evaluator"}
    assert "9" not in done.stdout


def test_a_judgement_without_a_score_keeps_its_place_in_the_labels(scored: Path) -> None:
    scores = (scored / "scores.jsonl").read_text()
    scores = re.sub(r'("score.clear":)([\d.]+)', r"\1[\2,null,9]", scores)
    (scored / "scores.jsonl").write_text(scores)
    label(scored, "y\n" * 3, "--scores", "scores.jsonl")

    assert {tuple(row["score.clear"][1:]) for row in rows(scored)} == {(None, 9)}
    assert read(scored).unreadable == {"score.clear": 3}


CHOSEN = {
    "above 7": (["--above", "7"], {"good.md", "fair.md"}),
    "above 8": (["--above", "8"], {"good.md"}),
    "at pass_at": (["--suggest", "9"], {"good.md"}),
    "not below a floor": (["--above", "4", "--suggest", "9"], {"good.md", "fair.md"}),
}


@pytest.mark.parametrize(("words", "expected"), CHOSEN.values(), ids=CHOSEN)
def test_only_drafts_that_would_be_accepted_are_asked_for(
    scored: Path, words: list[str], expected: set[str]
) -> None:
    label(scored, "y\n" * 3, "--scores", "scores.jsonl", *words)
    assert set(accepted(scored)) == expected


def test_a_suggestion_is_the_same_until_it_is_answered(scored: Path) -> None:
    suggest = ("--scores", "scores.jsonl", "--above", "7", "--suggest", "1")
    label(scored, "y\n", *suggest)
    label(scored, "y\n", *suggest)

    assert len(accepted(scored)) == 1


def test_of_a_group_one_draft_is_suggested(scored: Path) -> None:
    table = [{"id": n, "draft": t, "group": "all", "split": "hold"} for n, t in DRAFTS.items()]
    (scored / "drafts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    suggest = ("--scores", "scores.jsonl", "--above", "7", "--suggest", "5")

    label(scored, "y\n" * 3, *suggest, names=("drafts.jsonl",))

    (one,) = read(scored).drafts
    assert (one.group, one.split) == ("all", "hold")


@pytest.mark.parametrize(
    "words",
    [
        "--suggest 3",
        "--scores scores.jsonl --task Else.",
        "--output labels.csv",
        "--output scores.jsonl",
        "--run latest",
    ],
)
def test_what_cannot_work_is_refused_before_the_first_question(scored: Path, words: str) -> None:
    done = label(scored, "y\n", "--traces", "none", *words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert_shown("rubric label", f"refused: {words}", done.stderr)


def test_a_draft_that_has_changed_since_is_told(drafts: Path) -> None:
    label(drafts, "y\n" * 3)
    (drafts / "good.md").write_text("Now it says something else than before.\n")

    assert_shown("rubric label", "a draft that has changed", label(drafts, "y\n"))
    assert len(rows(drafts)) == 3


# --- drafts of runs --------------------------------------------------------------------------


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with two runs by the rubric, whose second draft passes, and one by another."""
    (tmp_path / "long.yaml").write_text(
        "title: Long\npass_at: 9\n"
        "dimensions: [{ name: long, checks: [{ check: words, min: 6 }] }]\n"
    )
    for more in ("", " Yes."):
        write_run(tmp_path, WORSE, BETTER + more, rubric=str(tmp_path / "long.yaml"))
    write_run(tmp_path, WORSE, BETTER, rubric=RUBRIC.model_copy(update={"title": "Another"}))
    return tmp_path


def label_runs(runs: Path, typed: str, *words: str) -> Done:
    given = ("rubric", "label", "long.yaml", "--output", "labels.jsonl", *words)
    return harness(*given, cwd=runs, stdin=typed)


def test_the_drafts_of_loops_are_labeled_with_their_scores_and_groups(runs: Path) -> None:
    done = label_runs(runs, "y\n" * 9, "--run", "all")

    labels = read_labels(runs / "labels.jsonl", load_rubric(str(runs / "long.yaml")), columns={})
    found = {one.draft: one for one in labels.drafts}
    assert (len(labels.drafts), "Write it." in done.stdout) == (4, True)
    assert found.keys() == {WORSE, BETTER, f"{BETTER} Yes."}
    assert found[BETTER].scores["long"] == (10,)
    assert len({one.group for one in labels.drafts}) == 2


def test_of_each_loop_a_draft_that_passed_is_suggested(runs: Path) -> None:
    label_runs(runs, "y\n" * 9, "--run", "all", "--suggest", "5")
    assert {row["draft"] for row in rows(runs)} == {BETTER, f"{BETTER} Yes."}


def test_labels_of_runs_are_enough_to_tune_by(runs: Path) -> None:
    pytest.importorskip("scipy")
    label_runs(runs, "y\n" * 9, "--run", "all")

    done = harness("rubric", "tune", "long.yaml", "labels.jsonl", "--json", cwd=runs)

    assert (done.exit_code, done.json["own"]["drafts"], done.json["dropped"]) == (0, 2, {})
