import pytest
from sample_runs import STARTED, write_journal

from harness.errors import JournalInvalid
from harness.trace import (
    Content,
    CounterSet,
    Flow,
    Instant,
    NodeOutput,
    RunEnded,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    load_run,
)
from harness.trace.journal_line import encode


def test_a_run_is_put_together_from_its_records(tmp_path):
    path = tmp_path / "run.jsonl"
    write_journal(
        path,
        SpanStarted(1, None, "run", 10),
        SpanStarted(2, 1, "chat", 20, {"a": 1, "b": 1}),
        Content("f00d", "a prompt"),
        Instant(2, "first token", 25),
        SpanEnded(2, 30, "error", "X: y", {"b": 2, "c": 3}),
        CounterSet("composite", "points", 31, 7.5, 1),
        Flow("draft", 1, 2),
        NodeOutput("plan", None, ["a"]),
        SpanRecord(3, 1, "chat", 32, 33),
        SpanEnded(1, 40),
        RunEnded(41, "ok"),
    )

    run = load_run(path)

    assert run.started == STARTED
    assert run.ended == RunEnded(41, "ok")
    assert run.duration_ns == 41
    assert run.spans == (
        SpanRecord(1, None, "run", 10, 40),
        SpanRecord(2, 1, "chat", 20, 30, "error", "X: y", {"a": 1, "b": 2, "c": 3}),
        SpanRecord(3, 1, "chat", 32, 33),
    )
    assert run.instants == (Instant(2, "first token", 25),)
    assert run.counters == (CounterSet("composite", "points", 31, 7.5, 1),)
    assert run.flows == (Flow("draft", 1, 2),)
    assert run.outputs == (NodeOutput("plan", None, ["a"]),)
    assert run.contents == {"f00d": "a prompt"}


def test_a_killed_run_has_no_end(tmp_path):
    write_journal(tmp_path / "run.jsonl", SpanStarted(1, None, "run", 10))

    run = load_run(tmp_path / "run.jsonl")

    assert run.ended is None
    assert [span.status for span in run.spans] == ["unfinished"]


def test_a_file_with_a_broken_line_is_named(tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_bytes(encode(STARTED) + b"broken\n" + encode(RunEnded(1, "ok")))

    with pytest.raises(JournalInvalid) as caught:
        load_run(path)

    assert (caught.value.path, caught.value.line) == (path, 2)
