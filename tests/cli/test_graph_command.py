"""`harness graph` as a person meets it."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import Done, harness

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


def graph(*arguments: str | Path, cwd: Path) -> Done:
    return harness("graph", *arguments, cwd=cwd, COLUMNS="160")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a pipeline, a run of it that ended well, and one that failed."""
    directory = tmp_path_factory.mktemp("project")
    for name, text in {"notes": NOTES, "cycle": CYCLE, "misfit": MISFIT}.items():
        (directory / f"{name}.py").write_text(text)
    assert harness("run", "notes.py", "--task", "a b c", cwd=directory).exit_code == 0
    assert harness("run", "notes.py", "--task", "a bad", cwd=directory).exit_code == 1
    return directory


def journals(project: Path) -> list[str]:
    # Of two that began in one second, the names do not say which was first.
    found = (project / "traces").glob("2*.jsonl")
    return [path.stem for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def test_a_pipeline_is_drawn_as_text(project: Path) -> None:
    done = graph("notes.py", cwd=project)

    assert (done.exit_code, done.stderr) == (0, "")
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
    done = graph("notes.py:notes", "--run", journals(project)[0][-6:], cwd=project)

    assert done.exit_code == 0, done.stderr
    assert f"run {journals(project)[0]}: " in done.stdout
    rows = [line for line in done.stdout.splitlines() if "←" in line]
    assert ["●" in row for row in rows] == [True, True, True]
    assert "findings ×3" in rows[1]


def test_a_failed_run_shows_what_failed_and_what_was_not_run(project: Path) -> None:
    done = graph("notes.py", "--run", journals(project)[1], "--json", cwd=project)

    nodes = {box["name"]: box["seen"]["status"] for box in done.json["boxes"]}
    assert (nodes["lines"], nodes["findings"]) == ("done", "failed")
    assert nodes["answer"] in {"not run", "skipped"}


def test_it_is_written_as_svg_to_a_file(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "notes.svg"
    done = graph("notes.py", "--format", "svg", "--output", target, cwd=project)

    assert (done.exit_code, done.stdout) == (0, "")
    assert ElementTree.parse(target).getroot().tag.endswith("svg")


def test_it_is_printed_as_mermaid(project: Path) -> None:
    done = graph("notes.py", "--format", "mermaid", cwd=project)

    assert done.stdout.splitlines()[:4] == ["---", 'title: "notes"', "---", "flowchart TD"]


def test_its_arrows_are_there_as_json(project: Path) -> None:
    drawn = graph("notes.py", "--json", cwd=project).json

    assert drawn["inputs"] == ["task"]
    assert [
        (arrow["source"], box["name"], arrow["way"])
        for box in drawn["boxes"]
        for arrow in box["arrows"]
        if not arrow["is_input"]
    ] == [("lines", "findings", "item"), ("findings", "answer", "list")]


def test_an_example_is_drawn_in_its_recorded_run() -> None:
    done = graph("examples/brief.py", "--run", RECORDED, cwd=ROOT)

    assert done.exit_code == 0, done.stderr
    assert "sections ×3  4.91 s" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        pytest.param(["cycle.py"], "pipeline.cycle", "cycle.py:8: node 'two'", id="a cycle"),
        pytest.param(["misfit.py"], "pipeline.types-disagree", "'one' as int", id="types"),
        pytest.param(["nowhere.py"], "pipeline.no-file", "'nowhere.py'", id="no file"),
        pytest.param(["notes.py:other"], "pipeline.unknown", "'other'", id="no pipeline"),
        pytest.param(["notes.py", "--run", "nothing"], "", "'nothing'", id="no run"),
        pytest.param(
            ["notes.py", "--run", str(RECORDED)],
            "run.other-pipeline",
            "'brief'",
            id="another's run",
        ),
        pytest.param(
            ["notes.py", "--output", "no/where"], "file.unwritable", "no/where: ", id="no folder"
        ),
        pytest.param(
            ["notes.py", "--format", "svg"], "option.excludes-another", "--json", id="two forms"
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(
    project: Path, arguments: list[str], code: str, named: str
) -> None:
    done = graph(*arguments, "--json", cwd=project)

    assert done.exit_code == 2
    assert done.code.startswith(code), done.code
    assert named in done.stderr
