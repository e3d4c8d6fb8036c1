"""What the command writes to, and what becomes of it when that is not as usual."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command import COMMAND, ENVIRONMENT, harness
from sample_runs import load_run

import harness as package

PRINTS = """\
from harness import Pipeline

prints = Pipeline("prints")

@prints.node
def say(task: str = "ü") -> str:
    print("noted")
    return task
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "prints.py").write_text(PRINTS, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("script", "exit_code", "stdout", "stderr"),
    [
        pytest.param(
            '"$0" graph prints.py >/dev/full',
            1,
            "",
            "No space left",
            id="full",
            marks=pytest.mark.slow,
        ),
        pytest.param('"$0" runs --help >/dev/full', 1, "", "No space left", id="help, full"),
        pytest.param(
            'PYTHONIOENCODING=ascii "$0" run prints.py 2>&-',
            0,
            "\\xfc",
            "",
            id="ASCII, and stderr closed",
        ),
        pytest.param('"$0" run prints.py >&-', 0, "", "", id="stdout closed"),
        pytest.param(
            '"$0" run prints.py; timeout 60 "$0" view latest --output /dev/stdout | cat',
            *(0, "<html", ""),
            id="a page that is piped on",
        ),
        pytest.param(
            '{ "$0" run prints.py; echo "exit $?" >&2; } | :', 0, "", "exit 0", id="reader gone"
        ),
    ],
)
def test_a_command_ends_well_whatever_its_streams_are(
    project: Path, script: str, exit_code: int, stdout: str, stderr: str
) -> None:
    done = subprocess.run(
        ["sh", "-c", script, COMMAND],
        cwd=project,
        env=ENVIRONMENT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert (done.returncode, stdout in done.stdout, stderr in done.stderr) == (
        exit_code,
        True,
        True,
    )


def test_names_of_files_are_no_matter_of_the_locale(tmp_path: Path) -> None:
    """Of the folder, of one that was trusted before, and of one in the settings, under ASCII."""
    project = tmp_path / "Bücher"
    project.mkdir()
    (project / "prints.py").write_text(PRINTS, encoding="utf-8")
    (project / "harness.toml").write_text('traces = "Läufe"', encoding="utf-8")
    trust = tmp_path / "harness" / "trust"
    trust.parent.mkdir()
    trust.write_text("/nowhere/Größe\n", encoding="utf-8")
    ascii_alone = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    where = {"XDG_CONFIG_HOME": str(tmp_path), "PYTHONPATH": str(Path(package.__file__).parents[1])}
    for words in ("run prints.py", "resume latest", "memory add prints.py --store Stücke"):
        done = subprocess.run(
            [sys.executable, "-m", "harness", *words.split()],
            cwd=project,
            env=ENVIRONMENT | ascii_alone | where,
            capture_output=True,
            encoding="ascii",
            check=False,
        )
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert len([*(project / "Läufe").glob("2*Z-????????????.jsonl")]) == 1
    assert trust.read_text("utf-8").split("\n")[:2] == [
        "/nowhere/Größe",
        str(project / "prints.py"),
    ]


def test_only_the_result_is_on_standard_output(project: Path) -> None:
    done = harness("run", "prints.py", cwd=project)
    assert done.stdout == "ü\n"
    assert "noted" in done.stderr
    done = harness("run", "prints.py", "--json", cwd=project)
    assert done.json["result"] == "ü"


def test_the_traceback_of_a_node_is_in_the_journal_and_shown_when_asked_for(project: Path) -> None:
    (project / "raises.py").write_text(PRINTS.replace("return task", "return [][0]"))
    plain = harness("run", "raises.py", cwd=project)
    asked = harness("resume", "latest", "--traceback", cwd=project)
    line = 'raises.py", line 8'
    assert (plain.exit_code, asked.exit_code) == (1, 1)
    assert (line in plain.stderr, line in asked.stderr) == (False, True)
    (journal,) = (path for path in project.glob("traces/2*.jsonl") if "." not in path.stem)
    spans = [span.attributes for span in load_run(journal).spans if span.name == "node"]
    assert [line in str(one["traceback"]) for one in spans] == [True, True]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["resume", "2"], id="resume"),
        pytest.param(["runs", "diff", "2", "2"], id="runs diff"),
        pytest.param(["trace", "report", "2"], id="report"),
        pytest.param(["trace", "diagnose", "2"], id="diagnose"),
    ],
)
def test_a_journal_that_cannot_be_read_is_an_error_with_a_code(
    project: Path, command: list[str]
) -> None:
    assert harness("run", "prints.py", cwd=project).exit_code == 0
    (journal,) = project.glob("traces/2*.jsonl")
    journal.with_suffix(".1.jsonl").mkdir()  # cannot be read, even by root
    assert harness(*command, "--json", cwd=project).code == "journal.unreadable"


def test_what_is_no_file_is_no_run(project: Path) -> None:
    assert harness("run", "prints.py", cwd=project).exit_code == 0
    (project / "traces" / "loop.jsonl").symlink_to("loop.jsonl")
    (project / "traces" / "folder.jsonl").mkdir()
    assert harness("runs", cwd=project).exit_code == 0
    assert harness("trace", "report", "latest", cwd=project).exit_code == 0


KEYED = PRINTS.replace('print("noted")', "import os; task += os.environ['KEY']")


def test_no_file_of_variables_is_read(project: Path) -> None:
    (project / "prints.py").write_text(KEYED, encoding="utf-8")
    (project / ".env").write_text("KEY=1\n", encoding="utf-8")
    assert harness("run", "prints.py", cwd=project).exit_code == 1
    assert harness("run", "prints.py", cwd=project, KEY="2").exit_code == 0
