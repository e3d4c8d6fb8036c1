"""`harness batch`: tables in; outputs, failures and figures out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import NOBODY, harness
from pipelines import ECHO

PICKY = """\
import os
import signal
from pathlib import Path
from harness import Pipeline

picky = Pipeline("picky")

@picky.node
def step(task: str) -> str:
    if "SIGNAL" in os.environ and task == "milk":
        signal.raise_signal(int(os.environ["SIGNAL"]))
    if task == "milk" and not Path("mended").exists():
        raise ValueError("milk is off")
    return task.upper()
"""
ONE_LENGTH = """\
title: Length
pass_at: 8
dimensions:
  - name: length
    checks: [{ check: words, min: 2, max: 9 }]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "picky.py").write_text(PICKY)
    (tmp_path / "rubrics").mkdir()
    (tmp_path / "rubrics" / "length.yaml").write_text(ONE_LENGTH)
    (tmp_path / "drinks.csv").write_text("id,task\n1,tea\n2,milk\n3,green tea\n")
    return tmp_path


def lines(path: Path) -> dict[str, object]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {one["id"]: one["output"] for one in found}


def test_rows_that_fail_are_told_and_tried_again(project: Path) -> None:
    first = harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    assert first.exit_code == 1
    assert "2 of 3 rows have their output" in first.stdout
    assert "drinks.csv:3: node 'rows[1]/picky/step' failed: ValueError: milk is off" in first.stdout
    assert lines(project / "out.jsonl") == {"1": "TEA", "3": "GREEN TEA"}

    (project / "mended").touch()
    again = harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    assert (again.exit_code, again.stderr) == (0, "")
    assert "3 of 3 rows have their output in out.jsonl, 2 of them from before" in again.stdout
    done = harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    assert "nothing was left to do" in done.stdout
    assert not (project / "out.jsonl.failures.jsonl").exists()


def test_an_interrupted_batch_says_how_to_go_on(project: Path) -> None:
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.csv", "--max-parallel", "1")
    ended = harness(*command, cwd=project, SIGNAL="15")
    assert ended.exit_code == 143
    assert "the same command goes on with out.csv" in ended.stderr
    (project / "mended").touch()
    again = harness(*command, "--json", cwd=project).json
    assert (again["done"], again["status"]) == (3, "finished")


def test_a_batch_is_resumed_by_its_own_command(project: Path) -> None:
    harness("batch", "picky.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    done = harness("resume", "latest", "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, "resume.is-batch")


def test_a_dry_run_says_what_would_be_made(project: Path) -> None:
    command = ("batch", "echo.py", "drinks.csv", "--output", "out.jsonl")
    new = harness(*command, "--dry-run", cwd=project)
    assert "Kept: 0. To be made: 3 new, 0 again." in new.stdout
    assert not (project / "traces").exists()

    harness(*command, cwd=project)
    (project / "echo.py").write_text(ECHO.replace("upper", "title"))
    changed = harness(*command, "--dry-run", cwd=project)
    assert "Kept: 0. To be made: 0 new, 3 again." in changed.stdout
    assert "echo/shout: 3 calls" in changed.stdout
    assert lines(project / "out.jsonl")["1"] == ["TEA"]


def test_outputs_are_scored_by_a_rubric(project: Path) -> None:
    (project / "mended").touch()
    command = ("batch", "picky.py", "drinks.csv", "--output", "out.jsonl")
    done = harness(*command, "--evaluate", "length", cwd=project)
    assert done.exit_code == 0, done.stderr
    assert "By 'length', 1 of 3 passed (33%; with 95 % confidence 6% to 79%)" in done.text
    scores = harness(*command, "--evaluate", "length", "--json", cwd=project).json["scores"]
    assert scores["mean_within"][0] < scores["mean"] < scores["mean_within"][1]


def test_what_is_set_for_all_rows_takes_their_columns(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs" / "a.md").write_text("a text")
    done = harness(
        *("batch", "echo.py", "docs", "--output", "out.jsonl", "--set", "task=@{path}"),
        *("--set", "times=2"),
        cwd=project,
    )
    assert done.exit_code == 0, done.stderr
    assert [*lines(project / "out.jsonl").values()] == [["A TEXT", "A TEXT"]]


def test_mistaken_rows_are_told_before_anything_runs(project: Path) -> None:
    (project / "drinks.csv").write_text("task,times\ntea,often\nmilk,2\n")
    done = harness("batch", "echo.py", "drinks.csv", "--output", "out.jsonl", "--json", cwd=project)
    assert (done.exit_code, done.code) == (2, "batch.rows-mistaken")
    assert "drinks.csv:2: " in done.stderr
    assert not (project / "traces").exists()


def test_progress_is_told_now_and_then_without_a_terminal(project: Path) -> None:
    rows = "".join(f"tea {n}\n" for n in range(100))
    (project / "drinks.csv").write_text("task\n" + rows)
    done = harness("batch", "echo.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    told = [line for line in done.stderr.splitlines() if line.startswith("rows ")]
    assert 2 <= len(told) <= 21
    assert " left" in told[0]


def test_one_row_is_shown_by_its_label(project: Path) -> None:
    harness("batch", "echo.py", "drinks.csv", "--output", "out.jsonl", cwd=project)
    row = harness("trace", "show", "rows[2]", "latest", cwd=project)
    assert "rows[2]/echo/shout" in row.stdout
    assert "rows[1]" not in row.stdout
    node = harness("trace", "show", "rows[2]/echo/shout", "latest", cwd=project)
    assert "rows[2] / rows[2]/echo/shout" in node.text


def test_the_report_has_a_line_for_each_node_and_not_for_each_row(project: Path) -> None:
    (project / "asks.py").write_text(
        'from harness import Pipeline, Run\nasks = Pipeline("asks")\n\n'
        "@asks.node\nasync def step(run: Run, task: str) -> str:\n"
        '    return await run.chat("producer", task)\n'
    )
    nobody = {"producer": {"backend": "llamacpp", "url": NOBODY, "model_id": "none"}}
    command = ("batch", "asks.py", "drinks.csv", "--output", "out.jsonl")
    failed = harness(*command, cwd=project, endpoints=nobody)
    assert (failed.exit_code, "All: out.jsonl.failures.jsonl" in failed.stdout) == (1, True)
    report = harness("trace", "report", "latest", "--json", cwd=project).json
    assert [one["name"] for one in report["nodes"]] == ["rows/asks/step"]
