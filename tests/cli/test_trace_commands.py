"""`harness trace` and `harness runs` as a person meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.run_name import find_journal
from harness.errors import InvalidInput
from harness.trace import Journal, RunTrace

COMMAND = Path(sys.executable).with_name("harness")

ECHO = """\
from harness import Pipeline

echo = Pipeline("echo")

@echo.node
def shout(task: str) -> str:
    return task.upper()
"""


def harness(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two runs that ended and one that was killed."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "echo.py").write_text(ECHO)
    for task in ("tea", "cake"):
        assert harness("run", "echo.py", "--task", task, cwd=directory).returncode == 0
    killed = RunTrace(directory / "traces", name="killed")
    with killed, killed.span("run"), killed.span("node", label="slow"):
        pass
    lines = killed.journal_path.read_bytes().splitlines(keepends=True)
    whole = lines[0] + b'{"kind":"begin","id":1,"parent":null,"name":"run","time_ns":5}\n{"ki'
    killed.journal_path.with_stem("killed").write_bytes(whole)
    for path in (killed.journal_path, *killed.timeline_paths.values()):
        path.unlink()
    return directory


def journals(project: Path) -> list[Path]:
    return sorted((project / "traces").glob("2*.jsonl"))


def test_the_runs_that_ended_are_listed_the_latest_last(project: Path) -> None:
    done = harness("runs", cwd=project)

    assert done.returncode == 0, done.stderr
    log = (project / "traces/runs.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["run_id"] for line in log)
    assert done.stdout.index(first) < done.stdout.index(second)
    assert "PASS" in done.stdout


def test_runs_can_be_listed_as_json_and_fewer(project: Path) -> None:
    done = harness("runs", "--json", "--limit", "1", cwd=project)

    (line,) = map(json.loads, done.stdout.splitlines())
    assert (line["task"], line["final"], line["pipeline"]) == ("cake", "PASS", "echo")


def test_where_there_are_no_runs_the_list_says_so(tmp_path: Path) -> None:
    done = harness("runs", cwd=tmp_path)

    assert done.returncode == 2
    assert "traces/runs.jsonl: cannot be read (No such file or directory)" in done.stderr


@pytest.mark.parametrize(("form", "suffix"), [("chrome", ".json"), ("perfetto", ".pftrace")])
def test_a_run_is_exported_beside_its_journal(project: Path, form: str, suffix: str) -> None:
    journal = journals(project)[0]
    written = journal.with_suffix(suffix)
    as_the_run_left_it = written.read_bytes()
    written.unlink()

    done = harness("trace", "export", journal.stem, "--format", form, cwd=project)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(written.relative_to(project))
    assert written.read_bytes() == as_the_run_left_it


def test_a_run_is_exported_to_a_file_of_ones_choice(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "there.pftrace"

    done = harness("trace", "export", journals(project)[0], "--output", target, cwd=project)

    assert done.returncode == 0, done.stderr
    assert target.stat().st_size > 100


def test_a_file_that_cannot_be_written_is_said_and_not_a_traceback(project: Path) -> None:
    done = harness("trace", "export", journals(project)[0], "--output", "no/where", cwd=project)

    assert (done.returncode, done.stdout) == (2, "")
    assert "no/where.partial: No such file or directory" in done.stderr


def test_a_report_is_for_people_or_for_scripts(project: Path) -> None:
    run = journals(project)[0].stem

    assert run in harness("trace", "report", run, cwd=project).stdout
    report = json.loads(harness("trace", "report", run, "--json", cwd=project).stdout)
    assert report["run_id"] == run


def test_a_diagnosis_of_nothing_wrong_says_so(project: Path) -> None:
    run = journals(project)[0].stem

    assert "Nothing is wrong" in harness("trace", "diagnose", run, cwd=project).stdout
    done = harness("trace", "diagnose", run, "--json", cwd=project)
    said = json.loads(done.stdout)
    assert (said["run_id"], said["status"], said["findings"]) == (run, "ok", [])


def test_a_whole_journal_is_called_whole(project: Path) -> None:
    done = harness("trace", "check", journals(project)[0].stem, cwd=project)

    assert done.returncode == 0
    assert "whole; the run ended: ok" in done.stdout


def test_of_a_killed_runs_journal_the_check_says_what_was_open(project: Path) -> None:
    done = harness("trace", "check", "traces/killed.jsonl", "--json", cwd=project)

    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert (found["is_whole"], found["is_readable"], found["torn_bytes"]) == (False, True, 4)
    assert [span["name"] for span in found["open_spans"]] == ["run"]


def test_a_killed_run_is_exported_and_reported_too(project: Path) -> None:
    assert harness("trace", "export", "traces/killed.jsonl", cwd=project).returncode == 0
    assert "killed" in harness("trace", "report", "traces/killed.jsonl", cwd=project).stdout


def test_spans_are_not_sent_where_nobody_said_to(project: Path) -> None:
    done = harness("trace", "export", "--format", "otlp", cwd=project)

    assert done.returncode == 2
    assert "give --endpoint, such as http://127.0.0.1:6006" in done.stderr


def test_a_collector_that_is_not_there_is_a_failure(project: Path) -> None:
    done = harness(
        "trace", "export", "--format", "otlp", "--endpoint", "http://127.0.0.1:9", cwd=project
    )

    assert done.returncode == 1
    assert "no collector answers at http://127.0.0.1:9" in done.stderr


@pytest.mark.parametrize("command", ["open", "export", "report", "diagnose", "check"])
def test_a_run_that_is_not_there_is_answered_with_those_that_are(
    project: Path, command: str
) -> None:
    done = harness("trace", command, "2031", cwd=project)

    assert done.returncode == 2
    assert "there is no run '2031' in 'traces'" in done.stderr


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')

    done = harness("trace", "report", "notes.jsonl", cwd=tmp_path)

    assert done.returncode == 2
    assert "notes.jsonl:1: not a journal" in done.stderr


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        pytest.param("20260101T000000Z-aaaaaaaaaaaa", "20260101T000000Z-aaaaaaaaaaaa", id="an id"),
        pytest.param("20260101", "20260101T000000Z-aaaaaaaaaaaa", id="its beginning"),
        pytest.param("bbbb", "20260202T000000Z-bbbbbbbbbbbb", id="its end"),
        pytest.param("latest", "20260202T000000Z-bbbbbbbbbbbb", id="the latest"),
    ],
)
def test_a_run_is_found_by_part_of_its_name(tmp_path: Path, name: str, meant: str) -> None:
    for stem in ("20260101T000000Z-aaaaaaaaaaaa", "20260202T000000Z-bbbbbbbbbbbb", "runs"):
        (tmp_path / f"{stem}.jsonl").write_text("")
    (tmp_path / "20260101T000000Z-aaaaaaaaaaaa.77-00.jsonl").write_text("")  # a process that joined

    assert find_journal(name, tmp_path) == tmp_path / f"{meant}.jsonl"


def test_a_name_that_fits_two_runs_is_refused(tmp_path: Path) -> None:
    for stem in ("20260101T000000Z-aa", "20260102T000000Z-aa"):
        (tmp_path / f"{stem}.jsonl").write_text("")

    with pytest.raises(InvalidInput, match="could be any of 20260101T000000Z-aa, 20260102"):
        find_journal("2026", tmp_path)


def test_a_timeline_stands_for_its_run(project: Path) -> None:
    journal = journals(project)[0]

    found = find_journal(str(journal.with_suffix(".json")), project)

    assert Journal(found).started.run_id == journal.stem
