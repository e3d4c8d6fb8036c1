"""`harness trace` and `harness runs` as a person meets them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.run_name import find_journal
from harness.errors import ConfigurationInvalid, InvalidInput
from harness.trace import Journal, RunEnded, RunStarted, RunTrace, SpanStarted
from harness.trace.journal_line import encode

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

    assert (done.returncode, done.stdout) == (0, "")
    assert "no run has ended yet that is in traces/runs.jsonl" in done.stderr


def test_a_run_that_was_resumed_is_listed_once_and_counts_as_the_latest(tmp_path: Path) -> None:
    lines = (
        {"run_id": run_id, "pipeline": "essay", "final": final}
        for run_id, final in (("a-1", "WAITING"), ("b-2", "PASS"), ("a-1", "STOPPED"))
    )
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    listed = harness("runs", "--traces", tmp_path, cwd=tmp_path).stdout
    assert listed.count("a-1") == 1
    assert listed.index("b-2") < listed.index("a-1")
    assert "STOPPED" in listed
    latest = harness("runs", "--traces", tmp_path, "--limit", "1", "--json", cwd=tmp_path).stdout
    assert json.loads(latest)["final"] == "STOPPED"


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
    assert "no/where: No such file or directory" in done.stderr


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
    assert (found["is_whole"], found["is_readable"]) == (False, True)
    assert [span["name"] for span in found["open_spans"]] == ["run"]
    (file,) = found["files"]
    assert (file["path"], file["torn_bytes"], file["ended"]) == ("traces/killed.jsonl", 4, None)
    assert file["records"] == {"run": 1, "begin": 1}


def test_a_check_looks_at_every_file_of_a_run(tmp_path: Path) -> None:
    started = RunStarted(1, "20260101T000000Z-aaaaaaaaaaaa", "essay", 0, 0, 1)
    journal = tmp_path / f"{started.run_id}.jsonl"
    journal.write_bytes(encode(started) + encode(RunEnded(90, "ok")))
    joined = journal.with_suffix(".77-00.jsonl")
    joined.write_bytes(
        encode(started._replace(joined_ns=5)) + b'{"kind":"end","id":1,"time_ns":"a"}\n'
    )

    done = harness("trace", "check", joined, cwd=tmp_path)

    assert done.returncode == 1
    assert f"{journal}: whole; the run ended: ok\nrecords: 1 run, 1 run end\n" in done.stdout
    assert f"{joined}: damaged\nrecords: 1 run\nline 2: time_ns of a 'end'" in done.stdout


@pytest.fixture
def resumed(tmp_path: Path) -> Path:
    """The journal of a run that was killed, resumed, and then had to wait."""
    started = RunStarted(1, "20260101T000000Z-aaaaaaaaaaaa", "essay", 0, 0, 1)
    journal = tmp_path / f"{started.run_id}.jsonl"
    journal.write_bytes(encode(started) + encode(SpanStarted(1, None, "run", 2_000_000_000)))
    second = started._replace(joined_ns=2_000_000_000, part=1)
    ended = RunEnded(1_000_000_000, "waiting")
    journal.with_suffix(".1.jsonl").write_bytes(encode(second) + encode(ended))
    journal.with_suffix(".7-00.jsonl").write_bytes(encode(second._replace(parent=1, joined_ns=0)))
    return journal


def test_a_check_names_the_parts_of_a_run(resumed: Path) -> None:
    done = harness("trace", "check", resumed.with_suffix(".1.jsonl"), cwd=resumed.parent)

    assert done.returncode == 1  # a process that joined was killed
    stops = "readable, but it stops before the run's end: killed"
    for said in (
        f"{resumed} (part 0): {stops}; it was resumed\n",
        f"{resumed.with_suffix('.1.jsonl')} (part 1): whole; the run ended: waiting\n",
        f"{resumed.with_suffix('.7-00.jsonl')} (joined part 1): {stops}, or still going\n",
    ):
        assert said in done.stdout
    resumed.with_suffix(".7-00.jsonl").unlink()
    done = harness("trace", "check", resumed, "--json", cwd=resumed.parent)
    found = json.loads(done.stdout)
    assert (done.returncode, found["is_whole"], found["parts"]) == (0, True, 2)


def test_a_report_and_a_diagnosis_are_of_all_parts(resumed: Path) -> None:
    report = harness("trace", "report", resumed, cwd=resumed.parent).stdout
    assert "essay, 3.00 s in 2 parts, waiting for an answer\n" in report
    assert "Still under way" not in report
    diagnosis = harness("trace", "diagnose", resumed, cwd=resumed.parent).stdout
    assert "Nothing is wrong" in diagnosis


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "not a journal\nrecords: none\nthe file is empty\n", id="empty"),
        pytest.param(b'{"ki', "killed in its first line, or not a journal\n", id="half a line"),
        pytest.param(b"\x7f\xff\n", "not a journal\nrecords: none\nline 1: not JSON", id="binary"),
    ],
)
def test_a_check_of_what_is_no_journal_says_so(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "run.jsonl").write_bytes(content)

    done = harness("trace", "check", "run.jsonl", cwd=tmp_path)

    assert done.returncode == 1
    assert f"run.jsonl: {said}" in done.stdout


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
        pytest.param("0202T", "20260202T000000Z-bbbbbbbbbbbb", id="a part in the middle"),
        pytest.param("essay", "essay", id="a name that is part of another"),
        pytest.param("latest", "20260202T000000Z-bbbbbbbbbbbb", id="the latest"),
    ],
)
def test_a_run_is_found_by_part_of_its_name(tmp_path: Path, name: str, meant: str) -> None:
    first, second = "20260101T000000Z-aaaaaaaaaaaa", "20260202T000000Z-bbbbbbbbbbbb"
    begun = encode(RunStarted(1, first, "essay", 0, 0, 1))
    for age, (stem, content) in enumerate(
        [
            ("killed at once", b""),
            ("notes", b'{"a":1}\n'),
            ("binary", b"\xff\n"),
            ("runs", begun),
            (f"{first}.77-00", begun),  # a process that joined
            (second, begun),
            (first, begun),
            ("essay", b""),
            ("second essay", b""),
        ]
    ):
        path = tmp_path / f"{stem}.jsonl"
        path.write_bytes(content)
        moment_s = 1e9 - age * 60 if content == begun else 2e9
        os.utime(path, (moment_s, moment_s))

    assert find_journal(name, tmp_path) == tmp_path / f"{meant}.jsonl"


def test_the_latest_run_is_the_one_that_went_on_last(tmp_path: Path) -> None:
    first, second = "20260101T000000Z-aaaaaaaaaaaa", "20260202T000000Z-bbbbbbbbbbbb"
    for name, moment_s in ((first, 1e9), (second, 1.1e9), (f"{first}.1", 1.2e9)):
        path = tmp_path / f"{name}.jsonl"
        path.write_bytes(encode(RunStarted(1, name[:29], "essay", 0, 0, 1)))
        os.utime(path, (moment_s, moment_s))

    assert find_journal("latest", tmp_path) == tmp_path / f"{first}.jsonl"
    assert find_journal("aaaa", tmp_path) == tmp_path / f"{first}.jsonl"


def test_a_name_that_fits_two_runs_is_refused(tmp_path: Path) -> None:
    for stem in ("20260101T000000Z-aa", "20260102T000000Z-aa"):
        (tmp_path / f"{stem}.jsonl").write_text("")

    with pytest.raises(InvalidInput, match="could be any of 20260101T000000Z-aa, 20260102"):
        find_journal("2026", tmp_path)


def test_a_timeline_stands_for_its_run(project: Path) -> None:
    journal = journals(project)[0]

    found = find_journal(str(journal.with_suffix(".json")), project)

    assert Journal(found).started.run_id == journal.stem


def test_a_file_of_a_process_that_joined_stands_for_its_run(tmp_path: Path) -> None:
    journal = tmp_path / "20260101T000000Z-aaaaaaaaaaaa.jsonl"
    joined = journal.with_suffix(".77-00c0ffee.jsonl")
    joined.write_text("")

    with pytest.raises(InvalidInput, match=f"the run's journal, {journal.name}, is not beside it"):
        find_journal(str(joined), None)
    journal.write_text("")
    assert find_journal(str(joined), None) == journal
    copy = tmp_path / "essay.old.jsonl"
    copy.write_text("")
    assert find_journal(str(copy), None) == copy


def test_a_file_of_a_part_stands_for_its_run(tmp_path: Path) -> None:
    journal = tmp_path / "20260101T000000Z-aaaaaaaaaaaa.jsonl"
    part = journal.with_suffix(".2.jsonl")
    part.write_text("")

    with pytest.raises(InvalidInput, match=f"the run's journal, {journal.name}, is not beside it"):
        find_journal(str(part), None)
    journal.write_text("")
    assert find_journal(str(part), None) == journal


def test_a_file_is_found_whatever_stands_in_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "harness.toml").write_text("[broken")
    (tmp_path / "run.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)

    assert find_journal("run.jsonl", None) == Path("run.jsonl")
    with pytest.raises(ConfigurationInvalid):
        find_journal("latest", None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("there/", "a directory; name a run in it: latest --traces ", id="slash"),
        pytest.param(".", "a directory; name a run in it: latest --traces .,", id="here"),
        pytest.param("there", "there is no run 'there'", id="a directory's name"),
        pytest.param("notes.txt", "not a file of a run; give its journal (.jsonl) or", id="text"),
        pytest.param("away.jsonl", "away.jsonl: there is no such file", id="no such file"),
        pytest.param("there/away", "there/away: there is no such file", id="no such place"),
    ],
)
def test_what_cannot_be_a_run_is_refused_with_what_could(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "notes.txt").write_text("")
    (tmp_path / "20260101T000000Z-aa.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidInput, match=re.escape(message)):
        find_journal(name, tmp_path)


def test_where_no_file_is_a_journal_there_is_no_latest(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text("")

    with pytest.raises(InvalidInput, match="there are no runs in"):
        find_journal("latest", tmp_path)
