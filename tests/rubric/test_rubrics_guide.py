"""The guide for authors is tried as they would: its files written, its commands run."""

from __future__ import annotations

import csv
import fnmatch
import re
import shlex
import shutil

import pytest
from click.testing import CliRunner

from harness.cli.main import command
from harness.errors import RubricInvalid
from harness.files import shipped_directory
from harness.rubric import Dimension, Rubric, load_rubric
from harness.rubric.checks import CHECKS
from harness.rubric.rubric import FILLED_IN

ROOM = shipped_directory("rubrics")
PATH = ROOM.parent / "docs" / "rubrics.md"
pytestmark = pytest.mark.skipif(not PATH.exists(), reason="the guide is in the repository only")

README = PATH.read_text(encoding="utf-8") if PATH.exists() else ""
FILE = re.compile(r"`([\w./]+)`:\n\n```(?:yaml|markdown|csv|python)\n(.*?)```", re.DOTALL)
SHELL = re.compile(r"```console\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
MISTAKE = re.compile(r"^\| `(.*?)` \| `(.*?)` \| `(.*)` \|$", re.MULTILINE)
FILES = dict(FILE.findall(README))
BEFORE, _, REST = README.partition("## From thirty labels")
HOUR, _, BEHIND = REST.partition("\n## ")
COMMANDS, STEPS = (
    [found for block in SHELL.findall(text) for found in COMMAND.findall(block)]
    for text in (BEFORE + BEHIND, HOUR)
)
LABELS = "examples/labels/release_notes.csv"
MISTAKES = MISTAKE.findall(README.partition("| instead of |")[2].partition("\n\n")[0])


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A directory with the guide's files in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("HARNESS_TRUST", str(tmp_path))  # as it says
    for name, content in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
    (tmp_path / LABELS).parent.mkdir(parents=True)
    shutil.copy(ROOM.parent / LABELS, tmp_path / LABELS)
    return tmp_path


def rows(title: str) -> dict[str, str]:
    """A table's lines by what stands in their first column."""
    table = README.partition(f"| {title} |")[2].partition("\n\n")[0]
    lines = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
    return {cells[0].strip(): " | ".join(cells[1:]) for cells in lines}


def test_no_block_goes_untried():
    assert len(FILES) == len(re.findall(r"```(?:yaml|markdown|csv|python)\n", README))
    assert len(COMMANDS) + len(STEPS) == len(re.findall(r"^\$ ", README, re.MULTILINE))
    assert len(MISTAKES) >= 5


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".yaml")])
def test_every_rubric_in_it_can_be_used(written, name):
    assert load_rubric(name).dimensions


@pytest.mark.parametrize(("line", "output"), COMMANDS, ids=[line for line, _ in COMMANDS])
def test_every_command_prints_what_is_shown(written, line, output):
    prints(line, output)


def prints(line, output):
    program, *arguments = shlex.split(line)
    result = CliRunner().invoke(command, arguments)
    # A line of its own, … stands for some lines.
    shown = re.sub(r"^…$", "*", output.replace("[", "[[]"), flags=re.MULTILINE)

    assert program == "harness"
    assert result.exit_code == 0, result.stderr
    assert fnmatch.fnmatchcase(result.stdout, shown), result.stdout


def test_the_hour_goes_step_by_step_as_it_is_told(written):
    pytest.importorskip("scipy", reason="scipy is not installed")
    for line, output in STEPS:
        prints(line, output)

    assert load_rubric("notes").pass_at == 9.7
    with (written / LABELS).open(newline="") as file:
        labels = [*csv.DictReader(file)]
    assert len(labels) == 30
    assert {row["accept"] for row in labels if "TODO" in row["draft"]} == {"no"}


@pytest.mark.parametrize(("instead_of", "this", "message"), MISTAKES)
def test_every_mistake_in_it_is_answered_as_it_says(written, instead_of, this, message):
    path = written / "rubrics" / "notes.yaml"
    notes = path.read_text()
    # A name is taken with the dash in front of it, which is the mistake in one case.
    assert instead_of in notes
    path.write_text(notes.replace(instead_of, this, 1))

    with pytest.raises(RubricInvalid) as caught:
        load_rubric("notes")
    assert [problem.message for problem in caught.value.problems] == [message]
    assert caught.value.line is not None


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("in a rubric", set(Rubric.model_fields) - FILLED_IN),
        ("in a dimension", set(Dimension.model_fields)),
        ("check", set(CHECKS)),
    ],
)
def test_its_tables_leave_nothing_out(title, known):
    assert {name for cell in rows(title) for name in re.findall(r"`(\w+)`", cell)} == known


def test_the_docstring_of_its_function_is_told_to_the_writer(written):
    told = re.search(r'requirement that the writer is told, here "(.*?)"', README)[1]
    assert told in load_rubric("calm").requirements


def test_the_room_lists_every_rubric_that_ships():
    listed = re.findall(r"^\| `(\w+)` \|", (ROOM / "README.md").read_text(), re.MULTILINE)
    assert set(listed) == {path.stem for path in ROOM.glob("*.yaml")}


@pytest.mark.parametrize("name", CHECKS)
def test_every_parameter_of_every_check_is_named(name):
    parameters = rows("check")[f"`{name}`"].partition(" | ")[0]
    named = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", parameters))

    assert set(named) == set(CHECKS[name].model_fields) - {"check"}
