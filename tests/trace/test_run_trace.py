import asyncio
import json
import os
import re

import pytest
from sample_runs import journal_lines
from structlog.testing import capture_logs

from harness.errors import InvalidInput
from harness.trace import (
    TIMELINES,
    Instant,
    JoinedTrace,
    Journal,
    ManualClock,
    RunEnded,
    RunStarted,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    TraceOptions,
    load_run,
)

NEW_YEAR_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z


def test_a_run_leaves_its_journal_and_its_timelines(tmp_path):
    clock = ManualClock(start_ns=40)
    directory = tmp_path / "new" / "traces"
    with RunTrace(directory, name="essay", clock=clock, wall_ns=lambda: NEW_YEAR_NS + 7) as trace:
        with trace.span("draft"):
            clock.advance(ns=5)
        assert set(directory.iterdir()) == {trace.journal_path}

    assert re.fullmatch(r"20260101T000000Z-[0-9a-f]{12}", trace.run_id)
    assert trace.journal_path == directory / f"{trace.run_id}.jsonl"
    assert trace.timeline_paths == {
        "chrome": directory / f"{trace.run_id}.json",
        "perfetto": directory / f"{trace.run_id}.pftrace",
    }
    assert set(directory.iterdir()) == {trace.journal_path, *trace.timeline_paths.values()}

    first, *_, last = journal_lines(trace.journal_path)
    assert first == RunStarted(1, trace.run_id, "essay", NEW_YEAR_NS + 7, 40, os.getpid())
    assert last == RunEnded(45, "ok")

    journal = trace.journal()
    assert (journal.started, journal.ended, journal.duration_ns) == (first, last, 5)
    assert list(journal.spans()) == [SpanRecord(1, None, "draft", 40, 45)]
    assert json.loads(trace.timeline_paths["chrome"].read_bytes())["traceEvents"]
    assert trace.timeline_paths["perfetto"].stat().st_size > 0


@pytest.mark.parametrize("timelines", [(), ("perfetto",), ("chrome",), tuple(TIMELINES)])
def test_which_timelines_a_run_leaves_is_a_choice(tmp_path, timelines):
    options = TraceOptions(timelines=timelines)
    with RunTrace(tmp_path, name="essay", options=options) as trace:
        pass

    assert sorted(path.suffix for path in tmp_path.iterdir()) == sorted(
        [".jsonl", *(TIMELINES[form][0] for form in timelines)]
    )
    assert set(trace.timeline_paths) == set(timelines)


@pytest.mark.parametrize(
    ("error", "status", "described"),
    [
        pytest.param(ValueError("boom"), "error", "ValueError: boom", id="error"),
        pytest.param(KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", id="Ctrl-C"),
        pytest.param(asyncio.CancelledError(), "cancelled", "CancelledError", id="cancelled"),
    ],
)
def test_a_run_that_fails_leaves_all_files_and_what_failed(tmp_path, error, status, described):
    trace = RunTrace(tmp_path, name="essay")

    with pytest.raises(type(error)) as caught, trace:
        raise error

    assert caught.value is error
    ended = trace.journal().ended
    assert (ended.status, ended.error) == (status, described)
    assert all(path.exists() for path in trace.timeline_paths.values())


def test_runs_are_named_so_that_they_sort_by_time_and_never_meet(tmp_path):
    def run_id(wall_ns):
        with RunTrace(tmp_path, name="essay", wall_ns=lambda: wall_ns) as trace:
            return trace.run_id

    ids = [run_id(NEW_YEAR_NS + second * 10**9) for second in (0, 1, 60, 86_400)]

    assert ids == sorted(ids)
    assert run_id(NEW_YEAR_NS) != run_id(NEW_YEAR_NS)


def test_what_happens_before_the_run_is_entered_is_in_it_too(tmp_path):
    trace = RunTrace(tmp_path, name="essay")
    trace.instant("settings read")

    with trace:
        pass

    assert [type(record) for record in journal_lines(trace.journal_path)] == [
        RunStarted, Instant, RunEnded
    ]  # fmt: skip


def test_what_happens_after_the_run_is_not_recorded(tmp_path):
    with RunTrace(tmp_path, name="essay") as trace:
        late = trace.span("late")

    with late:
        trace.instant("much later")

    assert load_run(trace.journal_path).spans == ()


def test_a_span_that_outlives_the_run_is_unfinished(tmp_path):
    with RunTrace(tmp_path, name="essay") as trace:
        late = trace.span("late")
        late.__enter__()
    late.__exit__(None, None, None)

    assert [span.status for span in load_run(trace.journal_path).spans] == ["unfinished"]


@pytest.mark.parametrize("durability", ["exit", "node", "sync"])
def test_observers_see_every_record_in_order_once_it_is_in_the_journal(tmp_path, durability):
    seen = []

    def observe(record):
        (path,) = tmp_path.glob("*.jsonl")
        lines = journal_lines(path)
        match record:
            case SpanStarted() | SpanEnded():
                # Those of one span that were written together are one record there.
                assert any(
                    isinstance(line, SpanStarted | SpanEnded | SpanRecord) and line.id == record.id
                    for line in lines
                )
            case _:
                assert record in lines
        seen.append(record)

    options = TraceOptions(durability=durability)
    trace = RunTrace(tmp_path, name="essay", options=options, observers=[observe])
    with trace, trace.span("draft", prompt=trace.content("a prompt")):
        trace.counter("composite", 7.5, unit="points")

    assert [type(record).__name__ for record in seen] == [
        "RunStarted", "Content", "SpanStarted", "CounterSet", "SpanEnded", "RunEnded"
    ]  # fmt: skip


def test_an_observer_that_fails_is_called_no_more_and_the_run_goes_on(tmp_path):
    seen_by_first, seen_by_second = [], []

    def first(record):
        seen_by_first.append(record)
        if isinstance(record, SpanStarted):
            raise RuntimeError("the terminal is gone")

    with capture_logs() as logs:
        trace = RunTrace(tmp_path, name="essay", observers=[first, seen_by_second.append])
        with trace, trace.span("draft"):
            pass

    assert [type(record) for record in seen_by_first] == [RunStarted, SpanStarted]
    assert [type(record) for record in seen_by_second] == [
        RunStarted, SpanStarted, SpanEnded, RunEnded
    ]  # fmt: skip
    assert [(log["event"], log["error"]) for log in logs] == [
        ("an observer failed and is called no more", "RuntimeError: the terminal is gone")
    ]
    assert [span.status for span in trace.journal().spans()] == ["ok"]


def remove_the_journal(trace):
    trace.journal_path.unlink()


def damage_the_journal(trace):
    trace.journal_path.write_bytes(b"damaged\n")


def block_both_timelines(trace):
    for path in trace.timeline_paths.values():
        path.mkdir()


def block_one_timeline(trace):
    trace.timeline_paths["chrome"].mkdir()


@pytest.mark.parametrize(
    ("disturb", "warnings"),
    [
        pytest.param(remove_the_journal, ["the journal cannot be read"], id="no journal"),
        pytest.param(damage_the_journal, ["the journal cannot be read"], id="damaged journal"),
        pytest.param(block_both_timelines, ["a timeline is missing"] * 2, id="no timeline"),
        pytest.param(block_one_timeline, ["a timeline is missing"], id="one timeline"),
    ],
)
def test_files_that_cannot_be_finished_are_a_warning(tmp_path, disturb, warnings):
    with capture_logs() as logs, RunTrace(tmp_path, name="essay") as trace:
        asyncio.run(trace.persisted())
        disturb(trace)

    assert [log["event"] for log in logs] == warnings
    assert all(trace.run_id in log["error"] for log in logs)
    written = [path for path in trace.timeline_paths.values() if path.is_file()]
    assert len(written) == (1 if disturb is block_one_timeline else 0)


def test_a_directory_that_cannot_be_made_is_an_os_error_before_anything_runs(tmp_path):
    (tmp_path / "traces").write_text("a file")

    with pytest.raises(OSError, match="traces"):
        RunTrace(tmp_path / "traces", name="essay")


def test_an_invitation_holds_what_another_process_needs_and_no_secret(tmp_path):
    options = TraceOptions(content="hash", durability="sync", secrets=["correct horse"])
    with RunTrace(tmp_path, name="essay", options=options) as trace, trace.span("node") as node:
        invitation = trace.invitation()

    assert "correct horse" not in invitation
    assert json.loads(invitation) == {
        "journal": str(trace.journal_path.absolute()),
        "run_id": trace.run_id,
        "name": "essay",
        "span": node.id,
        "part": 0,
        "time_ns": json.loads(invitation)["time_ns"],
        "content": "hash",
        "durability": "sync",
        "secret_variables": [],
    }


@pytest.mark.parametrize("invitation", ["", "{}", "no JSON", '{"journal": "/tmp/x"}'])
def test_what_is_no_invitation_is_refused_with_the_remedy(invitation):
    with pytest.raises(InvalidInput, match=r"hand over what RunTrace\.invitation returned"):
        JoinedTrace(invitation)


def test_a_joined_trace_keeps_to_the_runs_content_policy(tmp_path):
    options = TraceOptions(content="hash")
    with (
        RunTrace(tmp_path, name="essay", options=options) as trace,
        trace.span("node"),
        JoinedTrace(trace.invitation()) as joined,
    ):
        joined.output("plan", "a text")
        with joined.span("chat", prompt_sha256=joined.content("a prompt")):
            pass

    assert (joined.run_id, joined.name) == (trace.run_id, "essay")
    run = load_run(trace.journal_path)
    assert run.contents == {}
    assert [output.value for output in run.outputs] == [None]
    assert [span.name for span in run.spans] == ["node", "chat"]


def test_what_a_joined_trace_recorded_is_in_the_timelines(tmp_path):
    with RunTrace(tmp_path, name="essay") as trace, trace.span("node"):  # noqa: SIM117 - in it
        with JoinedTrace(trace.invitation()) as joined, joined.span("work in another process"):
            pass

    for path in trace.timeline_paths.values():
        assert b"work in another process" in path.read_bytes()
    assert len(list(Journal(trace.journal_path).spans())) == 2
