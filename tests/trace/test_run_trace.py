import asyncio
import json
import re

import pytest
from structlog.testing import capture_logs

from harness.trace import (
    ManualClock,
    RunEnded,
    RunStarted,
    RunTrace,
    SpanStarted,
    load_run,
    read_journal,
)

NEW_YEAR_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z


def test_a_run_leaves_its_journal_and_its_chrome_trace(tmp_path):
    clock = ManualClock(start_ns=40)
    with RunTrace(
        tmp_path / "new" / "traces", name="essay", clock=clock, wall_ns=lambda: NEW_YEAR_NS + 7
    ) as trace:
        with trace.span("draft"):
            clock.advance(ns=5)
        assert trace.record is None
        assert not trace.chrome_path.exists()

    assert re.fullmatch(r"20260101T000000Z-[0-9a-f]{12}", trace.run_id)
    assert trace.journal_path == tmp_path / "new" / "traces" / f"{trace.run_id}.jsonl"
    assert trace.chrome_path == tmp_path / "new" / "traces" / f"{trace.run_id}.json"
    assert set((tmp_path / "new" / "traces").iterdir()) == {trace.journal_path, trace.chrome_path}

    first, *_, last = read_journal(trace.journal_path)
    assert isinstance(first, RunStarted)
    assert (first.run_id, first.name) == (trace.run_id, "essay")
    assert (first.time_ns, first.wall_ns) == (40, NEW_YEAR_NS + 7)
    assert last == RunEnded(time_ns=45, status="ok")

    assert trace.record == load_run(trace.journal_path)
    assert trace.record.duration_ns == 5
    assert json.loads(trace.chrome_path.read_bytes())["traceEvents"]


@pytest.mark.parametrize(
    ("error", "status", "described"),
    [
        pytest.param(ValueError("boom"), "error", "ValueError: boom", id="error"),
        pytest.param(KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", id="Ctrl-C"),
        pytest.param(asyncio.CancelledError(), "cancelled", "CancelledError", id="cancelled"),
    ],
)
def test_a_run_that_fails_leaves_both_files_and_what_failed(tmp_path, error, status, described):
    trace = RunTrace(tmp_path, name="essay")

    with pytest.raises(type(error)) as caught, trace:
        raise error

    assert caught.value is error
    assert (trace.record.ended.status, trace.record.ended.error) == (status, described)
    assert trace.chrome_path.exists()


def test_runs_are_named_so_that_they_sort_by_time_and_never_meet(tmp_path):
    def run_id(wall_ns):
        with RunTrace(tmp_path, name="essay", wall_ns=lambda: wall_ns) as trace:
            return trace.run_id

    ids = [run_id(NEW_YEAR_NS + second * 10**9) for second in (0, 1, 60, 86_400)]

    assert ids == sorted(ids)
    assert run_id(NEW_YEAR_NS) != run_id(NEW_YEAR_NS)


def test_observers_see_each_record_after_it_is_in_the_journal(tmp_path):
    seen = []

    def observe(record):
        assert list(read_journal(trace.journal_path))[-1] == record
        seen.append(record)

    trace = RunTrace(tmp_path, name="essay", observers=[observe])
    with trace, trace.span("draft"):
        trace.counter("composite", 7.5, unit="points")

    assert seen == list(read_journal(trace.journal_path))
    assert len(seen) == 5


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

    assert len(seen_by_first) == 2
    assert seen_by_second == list(read_journal(trace.journal_path))
    assert [(log["event"], log["error"]) for log in logs] == [
        ("an observer failed and is called no more", "RuntimeError: the terminal is gone")
    ]


def remove_the_journal(trace):
    trace.journal_path.unlink()


def block_the_chrome_trace(trace):
    trace.chrome_path.mkdir()


def damage_the_journal(trace):
    trace.journal_path.write_bytes(b"damaged\n")


@pytest.mark.parametrize(
    "disturb", [remove_the_journal, block_the_chrome_trace, damage_the_journal]
)
def test_files_that_cannot_be_finished_are_a_warning(tmp_path, disturb):
    with capture_logs() as logs, RunTrace(tmp_path, name="essay") as trace:
        disturb(trace)

    assert [log["event"] for log in logs] == ["the trace is incomplete"]
    assert str(trace.run_id) in logs[0]["error"]


def test_a_directory_that_cannot_be_made_is_an_os_error_before_anything_runs(tmp_path):
    (tmp_path / "traces").write_text("a file")

    with pytest.raises(OSError, match="traces"):
        RunTrace(tmp_path / "traces", name="essay")


def test_what_happens_after_the_run_is_not_recorded(tmp_path):
    with RunTrace(tmp_path, name="essay") as trace:
        late = trace.span("late")

    with late:
        trace.instant("much later")

    assert load_run(trace.journal_path).spans == ()
