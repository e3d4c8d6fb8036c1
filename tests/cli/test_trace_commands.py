"""`harness trace` and `harness runs` as a person meets them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from command import NOBODY, Done, harness
from golden import assert_shown
from pipelines import ECHO
from sample_runs import sealed

from harness.trace import RunEnded, RunStarted, RunTrace, SpanStarted

RUN_ID = "20260101T000000Z-aaaaaaaaaaaa"


def trace(*arguments: str | Path, cwd: Path) -> Done:
    return harness("trace", *arguments, cwd=cwd, COLUMNS="160")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two runs that ended and one that was killed."""
    directory = tmp_path_factory.mktemp("project")
    (directory / "echo.py").write_text(ECHO)
    for task in ("tea", "cake"):
        assert harness("run", "echo.py", "--task", task, cwd=directory).exit_code == 0
    killed = RunTrace(directory / "traces", name="killed")
    with killed, killed.span("run"), killed.span("node", label="slow"):
        pass
    lines = killed.journal_path.read_bytes().splitlines(keepends=True)
    whole = lines[0] + sealed(SpanStarted(1, None, "run", 5), first=2) + b'{"ki'
    killed.journal_path.with_stem("killed").write_bytes(whole)
    for path in (killed.journal_path, *killed.timeline_paths.values()):
        path.unlink()
    return directory


@pytest.fixture
def journal(project: Path) -> Path:
    return min((project / "traces").glob("2*.jsonl"))


# --- runs ----------------------------------------------------------------------------------------


def test_runs_are_listed_the_latest_last(project: Path) -> None:
    done = harness("runs", cwd=project)

    assert done.exit_code == 0, done.stderr
    log = (project / "traces/runs.jsonl").read_text().splitlines()
    first, second = (json.loads(line)["run_id"] for line in log)
    assert done.stdout.index(first) < done.stdout.index(second)
    listed = harness("runs", "--json", "--limit", "2", cwd=project).stdout.splitlines()
    ends = [(one["task"], one["final"], one["pipeline"]) for one in map(json.loads, listed)]
    assert ends == [("cake", "DONE", "echo"), ("", "KILLED", "killed")]


def test_runs_that_were_killed_or_still_go_on_are_listed_too(tmp_path: Path) -> None:
    (tmp_path / "echo.py").write_text(ECHO)
    harness("run", "echo.py", "--task", "tea", cwd=tmp_path)
    (ended,) = (tmp_path / "traces").glob("2*.jsonl")

    def listed() -> dict[str, str]:
        lines = harness("runs", "--json", cwd=tmp_path).stdout.splitlines()
        return {one["run_id"]: one["final"] for one in map(json.loads, lines)}

    assert listed() == {ended.stem: "DONE"}
    with RunTrace(tmp_path / "traces", name="goes on") as going:
        going.flush()
        assert listed() == {ended.stem: "DONE", going.run_id: "GOING"}
    going.journal_path.unlink()
    other = ended.with_stem(RUN_ID)
    other.write_bytes(sealed(RunStarted(1, other.stem, "killed", 0, 0, 1)))
    resumed = RunStarted(1, ended.stem, "echo", 0, 0, 1, joined_ns=2_000_000_000, part=1)
    ended.with_suffix(".1.jsonl").write_bytes(sealed(resumed))  # and killed again
    assert list(listed().items()) == [(other.stem, "KILLED"), (ended.stem, "KILLED")]


def test_where_there_are_no_runs_the_list_says_so(tmp_path: Path) -> None:
    done = harness("runs", cwd=tmp_path)

    assert (done.exit_code, done.stdout) == (0, "")
    assert "traces/runs.jsonl" in done.stderr


def test_runs_take_one_line_each_on_eighty_columns(tmp_path: Path) -> None:
    line = {
        "run_id": "20261123T181103Z-463af1cdc603",
        "pipeline": "brief",
        "final": "STOPPED",
        "wiggum_scores": [7.5, 9.0],
        "producer_model": "qwen2.5-7b-instruct",
        "run_duration_s": 1234.5,
        "input_tokens": 123_456,
        "output_tokens": 12_345,
    }
    (tmp_path / "runs.jsonl").write_text(json.dumps(line) + "\n")
    listed = harness("runs", "--traces", tmp_path, cwd=tmp_path, COLUMNS="80").stdout
    (row,) = (one for one in listed.splitlines() if "2026" in one)
    shown = ("20261123T181103Z-463af1cdc603", "brief", "STOPPED", "1234.5", "123,456", "12,345")
    assert [one for one in shown if one not in row] == []
    assert len(row) <= 80


def test_a_run_that_was_resumed_is_listed_once_and_counts_as_the_latest(tmp_path: Path) -> None:
    lines = (
        {"run_id": run_id, "pipeline": "essay", "final": final}
        for run_id, final in (("a-1", "WAITING"), ("b-2", "PASS"), ("a-1", "STOPPED"))
    )
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    listed = harness("runs", "--traces", tmp_path, cwd=tmp_path).stdout
    assert listed.count("a-1") == 1
    assert listed.index("b-2") < listed.index("a-1")
    latest = harness("runs", "--traces", tmp_path, "--limit", "1", "--json", cwd=tmp_path)
    assert latest.json["final"] == "STOPPED"


def test_a_run_without_a_revise_loop_says_so_and_points_at_no_rounds(project: Path) -> None:
    done = trace("rounds", cwd=project)

    assert_shown("trace rounds", "no loop", done)
    ended = harness("run", "echo.py", "--task", "tea", cwd=project)
    hints = ("trace rounds" in ended.stderr, "trace report" in ended.stderr)
    assert hints == (False, True)


# --- export --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "suffix"), [("chrome", ".json"), ("perfetto", ".pftrace")])
def test_a_run_is_exported_beside_its_journal(
    project: Path, journal: Path, form: str, suffix: str
) -> None:
    written = journal.with_suffix(suffix)
    as_the_run_left_it = written.read_bytes()
    written.unlink()

    done = trace("export", journal.stem, "--format", form, cwd=project)

    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == str(written.relative_to(project))
    assert written.read_bytes() == as_the_run_left_it


@pytest.mark.parametrize(
    "options", ["--endpoint http://h", "--format otlp", f"--format otlp --endpoint {NOBODY}"]
)
def test_what_cannot_be_exported_is_said(project: Path, journal: Path, options: str) -> None:
    done = trace("export", journal, *options.split(), cwd=project)

    assert_shown("trace export", options, done)


def test_a_missing_package_of_the_export_is_named_with_its_extra(
    project: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.trace.v1.trace_pb2", None)
    monkeypatch.delitem(sys.modules, "harness.analysis.otlp", raising=False)

    done = trace("export", journal, "--format", "otlp", "--endpoint", NOBODY, cwd=project)

    assert (done.exit_code, "wiggum-harness[otlp]" in " ".join(done.stderr.split())) == (2, True)


# --- report, diagnose ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["report", "diagnose"])
def test_a_run_is_looked_at_by_people_and_scripts(
    project: Path, journal: Path, command: str
) -> None:
    for_people = trace(command, journal.stem, cwd=project)
    said = trace(command, journal.stem, "--json", cwd=project)
    assert (for_people.exit_code, said.exit_code) == (0, 0)
    found = [one["rule"] for one in said.json.get("findings", ())]  # if the machine is busy
    expected = {"report": journal.stem, "diagnose": "Nothing was found."}
    assert all(one in for_people.stdout for one in found or [expected[command]])
    assert said.json["run_id"] == journal.stem


def test_a_killed_run_is_drawn_and_reported(project: Path, tmp_path: Path) -> None:
    target = tmp_path / "killed.pftrace"
    trace("export", "traces/killed.jsonl", "--output", target, cwd=project)
    assert target.stat().st_size > 50
    report = trace("report", "traces/killed.jsonl", cwd=project)
    assert_shown(
        "trace report",
        "a killed run",
        report,
        masks={r"(killed, ).* s,": r"\1 0 s,", r"(what|run ) .*": r"\1 …"},
    )


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """The journal of a run that was killed, resumed, and then had to wait."""
    started = RunStarted(1, RUN_ID, "essay", 0, 0, 1)
    journal = tmp_path / f"{RUN_ID}.jsonl"
    journal.write_bytes(sealed(started, SpanStarted(1, None, "run", 2_000_000_000)))
    second = started._replace(joined_ns=2_000_000_000, part=1)
    ended = RunEnded(1_000_000_000, "waiting")
    journal.with_suffix(".1.jsonl").write_bytes(sealed(second, ended))
    return journal


def test_a_report_and_a_diagnosis_are_of_all_parts(parts: Path) -> None:
    assert_shown("trace report", "two parts", trace("report", parts, cwd=parts.parent))
    assert trace("diagnose", parts, "--json", cwd=parts.parent).json["findings"] == []


@pytest.mark.parametrize("command", ["open", "export", "report --json"])
def test_a_run_that_is_not_there_is_exit_code_2(project: Path, command: str) -> None:
    done = trace(*command.split(), "2031", cwd=project)

    assert done.exit_code == 2
    assert "'2031' in 'traces'" in done.stderr
    assert "--json" not in command or done.code == "run.not-found"


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')

    done = trace("report", "notes.jsonl", "--json", cwd=tmp_path)

    assert (done.exit_code, done.code) == (2, "journal.invalid")
    assert "notes.jsonl:1: " in done.stderr


def test_a_span_is_shown_by_its_number(project: Path, journal: Path) -> None:
    said = trace("show", "1", journal.stem, "--json", cwd=project)
    assert json.loads(said.stdout)["span"] == 1
    assert trace("show", "1", journal.stem, cwd=project).exit_code == 0
    assert trace("show", "9999", journal.stem, cwd=project).exit_code == 2
