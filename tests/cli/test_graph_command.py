"""`harness graph` as a person meets it."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

COMMAND = Path(sys.executable).with_name("harness")
ROOT = Path(__file__).parents[2]
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

CYCLE = """\
from harness import Pipeline

cycle = Pipeline("cycle")

@cycle.node
def one(two): ...

@cycle.node
def two(one): ...
"""

MISFIT = """\
from harness import Pipeline

misfit = Pipeline("misfit")

@misfit.node
def one() -> str:
    return "text"

@misfit.node
def two(one: int) -> int:
    return one
"""


def harness(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "160"},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a pipeline, a run of it that ended well, and one that failed."""
    directory = tmp_path_factory.mktemp("project")
    for name, text in {"notes": NOTES, "cycle": CYCLE, "misfit": MISFIT}.items():
        (directory / f"{name}.py").write_text(text)
    assert harness("run", "notes.py", "--task", "a b c", cwd=directory).returncode == 0
    assert harness("run", "notes.py", "--task", "a bad", cwd=directory).returncode == 1
    return directory


def journals(project: Path) -> list[str]:
    # Of two that began in one second, the names do not say which was first.
    found = (project / "traces").glob("2*.jsonl")
    return [path.stem for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def test_a_pipeline_is_drawn_as_text(project: Path) -> None:
    done = harness("graph", "notes.py", cwd=project)

    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == """\
notes: 3 nodes in 3 layers; inputs: task

1  lines       ← task (in a thread)
2  findings ×  ← each lines (in a thread)
3  answer      ← task, findings[] (in a thread)

× is called once per item; [] takes the list of all items
"""
    )


def test_a_run_of_it_is_drawn_with_its_critical_path(project: Path) -> None:
    done = harness("graph", "notes.py:notes", "--run", journals(project)[0][-6:], cwd=project)

    assert done.returncode == 0, done.stderr
    assert f"run {journals(project)[0]}: " in done.stdout
    rows = [line for line in done.stdout.splitlines() if "←" in line]
    assert ["●" in row for row in rows] == [True, True, True]
    assert "findings ×3" in rows[1]


def test_a_failed_run_shows_what_failed_and_what_was_not_run(project: Path) -> None:
    done = harness("graph", "notes.py", "--run", journals(project)[1], "--json", cwd=project)

    nodes = {box["name"]: box["seen"]["status"] for box in json.loads(done.stdout)["boxes"]}
    assert (nodes["lines"], nodes["findings"]) == ("done", "failed")
    assert nodes["answer"] in {"not run", "skipped"}


def test_it_is_written_as_svg_to_a_file(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "notes.svg"
    done = harness("graph", "notes.py", "--format", "svg", "--output", target, cwd=project)

    assert (done.returncode, done.stdout) == (0, "")
    assert ElementTree.parse(target).getroot().tag.endswith("svg")


def test_it_is_printed_as_mermaid(project: Path) -> None:
    done = harness("graph", "notes.py", "--format", "mermaid", cwd=project)

    assert done.stdout.splitlines()[:4] == ["---", 'title: "notes"', "---", "flowchart TD"]


def test_its_arrows_are_there_as_json(project: Path) -> None:
    drawn = json.loads(harness("graph", "notes.py", "--json", cwd=project).stdout)

    assert drawn["inputs"] == ["task"]
    assert [
        (arrow["source"], box["name"], arrow["way"])
        for box in drawn["boxes"]
        for arrow in box["arrows"]
        if not arrow["is_input"]
    ] == [("lines", "findings", "item"), ("findings", "answer", "list")]


def test_an_example_is_drawn_in_its_recorded_run() -> None:
    done = harness("graph", "examples/brief.py", "--run", RECORDED, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    assert "sections ×3  4.91 s" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(["cycle.py"], "cycle.py:8: node 'two' closes a cycle", id="a cycle"),
        pytest.param(["misfit.py"], "takes 'one' as int, and 'one' returns str", id="types"),
        pytest.param(["nowhere.py"], "there is no file 'nowhere.py'", id="no file"),
        pytest.param(["notes.py:other"], "there is no pipeline 'other'", id="no pipeline"),
        pytest.param(["notes.py", "--run", "nothing"], "there is no run 'nothing'", id="no run"),
        pytest.param(
            ["notes.py", "--run", str(RECORDED)],
            "a run of the pipeline 'brief', and not of 'notes'",
            id="a run of another",
        ),
        pytest.param(["notes.py", "--output", "no/where"], "cannot be written", id="no folder"),
        pytest.param(["notes.py", "--json", "--format", "svg"], "give one", id="two forms"),
    ],
)
def test_what_cannot_be_drawn_is_said(project: Path, arguments: list[str], said: str) -> None:
    done = harness("graph", *arguments, cwd=project)

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
