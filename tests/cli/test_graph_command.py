"""`harness graph` as a person meets it; what is drawn is tested with the pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Done, harness

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
    """A directory with a pipeline, and one that cannot be drawn."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "notes.py").write_text(NOTES)
    (directory / "misfit.py").write_text(MISFIT)
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


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        pytest.param("misfit.py", "pipeline.types-disagree", "'first' as int", id="types"),
        pytest.param("none.py", "pipeline.no-file", "none.py", id="no file"),
    ],
)
def test_what_cannot_be_drawn_is_said(project: Path, arguments: str, code: str, named: str) -> None:
    done = graph(*arguments.split(), "--json", cwd=project)

    assert (done.exit_code, done.code) == (2, code)
    assert named in done.stderr
