"""`harness graph` as a person meets it; what is drawn is tested with the pictures."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

from __future__ import annotations

from pathlib import Path

import pytest
from command import Done, harness
from demo import ROOT

RECORDED = ROOT / "traces/recorded/brief.jsonl"

NOTES = """\
from harness import Pipeline

notes = Pipeline("notes")

@notes.node
def lines(task: str) -> list[str]:
    return task.split()

@notes.node(each={"line": "lines"})
def findings(line: str) -> str:
    if line == "bad":
        raise ValueError("a bad line")
    return line.upper()

@notes.node
def answer(task: str, findings: list[str]) -> str:
    return f"{task}: {findings}"
"""
MISFIT = """\
from harness import Pipeline

two = Pipeline("two")

@two.node
def first() -> str: ...

@two.node
def second(first: int) -> int: ...
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a pipeline, a run of it that ended well, and one that failed."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "notes.py").write_text(NOTES)
    (directory / "misfit.py").write_text(MISFIT)
    for task, traces in (("a b c", "well"), ("a bad", "badly")):
        (directory / f"{traces}.toml").write_text(f'traces = "{traces}"\n')
        harness("run", "notes.py", "--task", task, "--config", f"{traces}.toml", cwd=directory)
    return directory


def graph(*arguments: str | Path, cwd: Path) -> Done:
    return harness("graph", *arguments, cwd=cwd)


def test_a_pipeline_is_drawn_as_mermaid_or_json(project: Path) -> None:
    done = graph("notes.py:notes", cwd=project)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith('---\ntitle: "notes"\n---\nflowchart TD\n')
    drawn = graph("notes.py", "--json", cwd=project).json
    assert drawn["inputs"] == ["task"]
    assert [box["name"] for box in drawn["boxes"]] == ["lines", "findings", "answer"]


def test_a_run_of_it_is_drawn_with_its_critical_path(project: Path) -> None:
    done = graph("notes.py", "--run", "latest", "--traces", "well", cwd=project)

    boxes = [line.split("<br/>")[0].strip() for line in done.stdout.splitlines() if "<br/>" in line]
    assert boxes == ['n0("● lines', 'n1[["● findings ×3', 'n2("● answer']


def test_a_failed_run_shows_what_failed_and_what_was_not_run(project: Path) -> None:
    done = graph("notes.py", "--run", "latest", "--traces", "badly", "--json", cwd=project)

    nodes = {box["name"]: box["seen"]["status"] for box in done.json["boxes"]}
    assert (nodes["lines"], nodes["findings"]) == ("done", "failed")
    assert nodes["answer"] in {"not run", "skipped"}


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        pytest.param("misfit.py", "pipeline.types-disagree", "'first' as int", id="types"),
        pytest.param("notes.py --run x", "run.none-yet", "'traces'", id="no run"),
        pytest.param(f"notes.py --run {RECORDED}", "run.other-pipeline", "'brief'", id="another"),
    ],
)
def test_what_cannot_be_drawn_is_said(project: Path, arguments: str, code: str, named: str) -> None:
    done = graph(*arguments.split(), "--json", cwd=project)

    assert (done.exit_code, done.code) == (2, code)
    assert named in done.stderr
