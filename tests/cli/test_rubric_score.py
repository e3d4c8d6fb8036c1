"""`harness rubric score` as a rubric's author meets it: tables or JSON, and exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from command import harness
from golden import assert_shown
from judging import DRAFTS, RUBRIC, alone, judged
from sample_runs import load_run

# --- with an evaluator -----------------------------------------------------------------------


def test_each_draft_is_told_its_scores_why_not_more_and_whether_it_passed(drafts: Path) -> None:
    done, _ = judged("score", "notes.yaml", "good.md", "poor.md", "--task", "Be clear.", cwd=drafts)
    assert_shown("rubric score", "two drafts", done)


def test_json_is_one_object_with_what_was_found_of_each_draft(drafts: Path) -> None:
    arguments = ("score", "notes.yaml", *DRAFTS, "--json")
    result = judged(*arguments, cwd=drafts)[0].json
    assert [one["id"] for one in result["drafts"]] == list(DRAFTS)
    assert [one["composite"] for one in result["drafts"]] == [9.3, 7.8, 4.8]
    assert [one["passed"] for one in result["drafts"]] == [True, False, False]
    assert result["drafts"][2]["below_floor"] == ["clear"]
    assert (result["rubric"], result["pass_at"]) == ("notes", 8)


@pytest.mark.parametrize("output", ["scores.jsonl", "scores.csv"])
def test_why_a_check_could_not_judge_is_told_in_the_table_the_file_and_json(
    tmp_path: Path, output: str
) -> None:
    (tmp_path / "notes.yaml").write_text(
        "title: Notes\nlanguage: zh\ndimensions:\n"
        "  - { name: length, checks: [{ check: words, min: 5 }] }\n"
        "  - { name: end, checks: [{ check: finished }] }\n"
    )
    (tmp_path / "a.md").write_text("我们修复了导入问题。")
    arguments = ("rubric", "score", "notes.yaml", "a.md", "--output", output)
    why = "not for this language: no blanks part its words; give a range of 'characters'"

    assert f"Not scored: length: {why}." in harness(*arguments, cwd=tmp_path).text
    drafts = harness(*arguments, "--json", cwd=tmp_path).json["drafts"]
    reasons = drafts[0]["unjudged_reasons"]
    assert (json.loads(reasons) if isinstance(reasons, str) else reasons) == {"length": why}


def test_sources_and_task_reach_the_evaluator(drafts: Path) -> None:
    (drafts / "task.txt").write_text("Explain cold starts.")
    (drafts / "a.md").write_text("Source A says 8 s.")
    (drafts / "b.md").write_text("Source B says 15 s.")
    seen: list[str] = []

    def score(prompt: str) -> float:
        seen.append(prompt)
        return 9.0

    given = ("--task", "@task.txt", "--sources", "a.md", "--sources", "b.md")
    judged("score", "notes.yaml", "good.md", *given, cwd=drafts, score=score)
    for text in ("Explain cold starts.", "Source A says 8 s.", "Source B says 15 s."):
        assert text in seen[0]


@pytest.mark.parametrize(("command", "as_json"), [("score", True), ("noise", False)])
def test_a_call_that_fails_on_one_draft_leaves_what_the_others_got(
    drafts: Path, command: str, *, as_json: bool
) -> None:
    given = ("notes.yaml", "good.md", "poor.md", "fair.md", *["--json"] * as_json)
    done, _ = judged(command, *given, cwd=drafts, at={"fair.md": "I would rather not."})
    assert done.exit_code == 1
    assert "I would rather not." in done.text
    if as_json:
        assert [bool(one["error"]) for one in done.json["drafts"]] == [False, False, True]


@pytest.mark.parametrize(
    ("names", "at", "end"),
    [
        pytest.param(("good.md",), {}, "PASS", id="all pass"),
        pytest.param(("good.md", "poor.md"), {}, "FAIL", id="one does not"),
        pytest.param(("good.md", "fair.md"), {"fair.md": "No."}, "ERROR", id="one has no verdict"),
    ],
)
def test_the_list_of_runs_says_whether_the_whole_batch_passed(
    drafts: Path, names: tuple[str, ...], at: dict[str, str], end: str
) -> None:
    judged("score", "notes.yaml", *names, cwd=drafts, at=at)

    assert json.loads(harness("runs", "--json", cwd=drafts).stdout)["final"] == end


@pytest.mark.parametrize(
    ("command", "number", "code"),
    [
        pytest.param("score", signal.SIGINT, 130, id="score-Ctrl-C"),
        pytest.param("noise", signal.SIGTERM, 143, id="noise-SIGTERM"),
    ],
)
def test_interrupted_it_closes_the_run_as_far_as_it_came(
    drafts: Path, command: str, number: signal.Signals, code: int
) -> None:
    given = ("notes.yaml", "good.md", "fair.md", "--max-parallel", "1")
    done, _ = judged(command, *given, cwd=drafts, at={"fair.md": int(number)})
    assert (done.exit_code, done.stdout, done.stderr.strip()) == (code, "", "interrupted")
    (journal,) = (drafts / "traces").glob("2*.jsonl")
    record = load_run(journal)
    assert record.ended is not None
    assert record.ended.status == "cancelled"
    ended = [span.status for span in record.spans if span.name == "evaluate"]
    assert ended == ["ok", "cancelled"]


# --- without one -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "more"), [("no evaluator", ()), ("checks only", ("--checks-only",))]
)
def test_without_an_evaluator_the_checks_are_scored_and_what_was_not_judged_is_said(
    drafts: Path, case: str, more: tuple[str, ...]
) -> None:
    given = ("score", "notes.yaml", *DRAFTS, *more)
    done, calls = judged(*given, cwd=drafts) if more else (alone(*given, cwd=drafts), 0)
    assert calls == 0
    assert_shown("rubric score", case, done)


@pytest.mark.parametrize(("rubric", "passed"), [("floored.yaml", False), ("answer", True)])
def test_where_checks_decide_no_judge_is_needed(drafts: Path, rubric: str, *, passed: bool) -> None:
    floor = "    floor: 5\n    checks: [{ check: words, min: 500, max: 4000 }]"
    text = RUBRIC.replace("    checks: [{ check: words, min: 5, max: 40 }]", floor)
    (drafts / "floored.yaml").write_text(text)
    given = ("good.md", "--sources", "good.md", "--json")
    done = alone("score", rubric, *given, cwd=drafts)
    assert done.json["drafts"][0]["passed"] is passed


# --- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        pytest.param("nots good.md", "rubric.", "'nots'", id="no such rubric"),
        pytest.param("notes.yaml empty.md", "file.empty", "empty.md: ", id="empty draft"),
        pytest.param("judged.yaml good.md --checks-only", "evaluation.", "'judged'", id="checks"),
        pytest.param("judged.yaml good.md", "roles.", "'evaluator'", id="evaluator"),
    ],
)
def test_what_is_not_usable_is_said_with_exit_code_2(
    drafts: Path, arguments: str, code: str, named: str
) -> None:
    only_judged = "title: X\ndimensions:\n  - name: clear\n    judge: Is it?\n"
    (drafts / "judged.yaml").write_text(only_judged)
    (drafts / "empty.md").write_text(" \n")
    done = alone("score", *arguments.split(), "--json", cwd=drafts)
    assert done.exit_code == 2
    assert done.code.startswith(code), done.code
    assert named in done.stderr
