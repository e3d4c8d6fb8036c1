import pytest
from sample_runs import sealed
from structlog.testing import capture_logs

from harness.trace import AUDIT_LOG, Instant, RunStarted, append_line, dump_json, list_runs
from harness.trace.records import SCHEMA_VERSION
from harness.trace.run_list import read_audit_log

ENTRY = {
    "run_id": "20260102T030405Z-00",
    "timestamp": "2026-01-02T03:04:05+00:00",
    "pipeline": "essay",
    "task": "Über 概要",
    "final": "PASS",
}


def line_of(**more):
    return dump_json({**ENTRY, **more}) + b"\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / AUDIT_LOG


def test_entries_are_appended_a_line_each_and_read_back(path):
    assert list(read_audit_log(path)) == []
    append_line(path, line_of(wiggum_scores=[6.0, 8.5], input_tokens=100, tool_calls=[]))
    # What Python makes of bytes on a command line that are not UTF-8.
    task = b"two\ncaf\xe9".decode("utf-8", "surrogateescape")
    append_line(path, line_of(run_id="another", task=task))
    append_line(path, b'{"final": "PASS", "plan": ["a"]}\n\n')

    bare, second, first = read_audit_log(path)
    assert (bare.run_id, bare.task, bare.wiggum_scores, bare.final) == (None, "", (), "PASS")
    assert (first.run_id, first.task, first.final) == (ENTRY["run_id"], "Über 概要", "PASS")
    assert (first.wiggum_scores, first.input_tokens, first.stop_reason) == ((6.0, 8.5), 100, None)
    assert first.model_dump()["tool_calls"] == []  # further fields are kept
    assert (second.run_id, second.task) == ("another", "two\ncaf?")


def test_a_run_that_was_resumed_is_listed_once_where_it_ended_last(path):
    ends = [("a", "WAITING"), ("b", "PASS"), ("a", "STOPPED"), (None, ""), (None, ""), ("a", "OK")]
    for run_id, final in ends:
        append_line(path, line_of(run_id=run_id, final=final))

    # Those without an id are each of a run of its own.
    assert [(line.run_id, line.final) for line in list_runs(path.parent)] == [
        ("b", "PASS"), (None, ""), (None, ""), ("a", "OK")
    ]  # fmt: skip


def test_what_is_no_whole_line_of_a_run_is_left_out(path):
    whole = line_of()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole + whole[:length])
        assert len(list(read_audit_log(path))) == 1

    # What a full disk cut off takes no other line with it.
    append_line(path, whole)
    path.write_bytes(path.read_bytes() + b"a note\n" + whole)
    with capture_logs() as logs:
        assert [line.run_id for line in read_audit_log(path)] == [ENTRY["run_id"]] * 3
    assert [log["line"] for log in logs if log["code"] == "audit.line-skipped"] == [4, 2]


def test_a_killed_run_whose_journal_is_damaged_does_not_hide_the_others(path):
    append_line(path, line_of())
    started = RunStarted(SCHEMA_VERSION, "20260103T030405Z-01", "essay", 0, 0, 1)
    lines = [sealed(started), b"{}\n", sealed(Instant(None, "resumed", 5), first=3)]
    (path.parent / "20260103T030405Z-01.jsonl").write_bytes(b"".join(lines))

    assert [line.run_id for line in list_runs(path.parent)] == [ENTRY["run_id"]]


def begin_run(folder, run_id, wall_ns):
    folder.joinpath(f"{run_id}.jsonl").write_bytes(
        sealed(RunStarted(SCHEMA_VERSION, run_id, "essay", 0, wall_ns, 1))
    )


def test_the_latest_runs_are_those_of_the_whole_list(path):
    """Ended in another order than they began, killed before and among them, and of no known id."""
    for day, run_id in enumerate(("20260101T000000Z-k", "20260103T000000Z-k", "mine")):
        begin_run(path.parent, run_id, (1767225600 + 2 * day * 86_400) * 10**9)
    for day in (2, 4, 1, 5):
        run_id = f"2026010{day}T120000Z-e"
        timestamp = f"2026-01-0{day}T12:00:00+00:00"
        append_line(path, line_of(run_id=run_id, timestamp=timestamp))

    whole = [line.run_id for line in list_runs(path.parent)]
    assert len(whole) == 7
    for latest in range(1, 9):
        assert [line.run_id for line in list_runs(path.parent, latest=latest)] == whole[-latest:]
