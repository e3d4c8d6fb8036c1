"""Writing a run: its journal, its observers, its timelines, and what disturbs them."""

import asyncio
import json
import os
import re
import threading
from collections.abc import Mapping

import pytest
from manual_clock import ManualClock
from sample_runs import STARTED, journal_lines, load_run, whole_lines
from structlog.testing import capture_logs

from harness.trace import (
    Content,
    Instant,
    NodeOutput,
    Redactor,
    RunEnded,
    RunStarted,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    TraceOptions,
)
from harness.trace.journal import JournalWriter
from harness.trace.tracer import RecordMaker

NEW_YEAR_NS = 1_767_225_600_000_000_000  # 2026-01-01T00:00:00Z
DURABILITIES = pytest.mark.parametrize("durability", ["exit", "node", "sync"])


def instant(number):
    return Instant(None, "tick", number)


def writer_of(path, **options):
    redactor = Redactor()
    return JournalWriter(path, maker=RecordMaker(redactor=redactor), redactor=redactor, **options)


def new_run(directory, **options):
    """A run that draws no timelines."""
    return RunTrace(directory, name="essay", options=TraceOptions(timelines=(), **options))


def kinds(records):
    return [type(record) for record in records]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


# --- the writer ------------------------------------------------------------------------------


def test_a_journal_is_never_written_over(path):
    path.write_text("something else")

    with pytest.raises(FileExistsError):
        writer_of(path)

    assert path.read_text() == "something else"


def test_what_is_appended_is_written_in_its_order_when_the_journal_is_closed_at_the_latest(path):
    writer = writer_of(path)
    writer.append(STARTED)
    for number in range(5_000):  # more than are looked at together
        writer.append(instant(number))
    assert journal_lines(path) == []  # nobody has started to write

    writer.flush()
    assert journal_lines(path) == [STARTED, *map(instant, range(5_000))]

    writer.append(instant(5_000))
    writer.close()
    assert journal_lines(path)[-1] == instant(5_000)


def test_what_was_appended_before_is_in_the_file_once_writing_has_started(path):
    writer = writer_of(path)
    writer.append(STARTED)
    writer.start()

    assert journal_lines(path) == [STARTED]
    writer.close()


def test_a_started_writer_writes_by_itself_in_a_thread_of_its_own(path):
    threads, is_seen = [], threading.Event()

    def observe(record):
        threads.append(threading.current_thread())
        is_seen.set()

    writer = writer_of(path, observers=[observe])
    writer.start()
    writer.append(STARTED)

    assert is_seen.wait(60)
    assert journal_lines(path) == [STARTED]
    assert threads[0] is not threading.current_thread()
    writer.close()


@pytest.mark.parametrize("durability", ["node", "sync"])
def test_what_comes_after_the_end_is_dropped(path, tmp_path, durability):
    seen = []
    writer = writer_of(path, durability=durability, observers=[seen.append])
    writer.append(STARTED)
    writer.close()
    # This file gets the number that the journal had with the operating system.
    with (tmp_path / "another").open("wb"):
        writer.append(instant(1))
        writer.close()

    assert writer.failure is None
    assert journal_lines(path) == seen == [STARTED]
    assert (tmp_path / "another").read_bytes() == b""


@pytest.mark.parametrize("durability", ["node", "sync"])
def test_records_of_threads_do_not_mix(path, durability):
    writer = writer_of(path, durability=durability)
    writer.start()
    texts = [str(number) * 50_000 for number in range(4)]

    def write(text):
        for _ in range(5):
            writer.append(Content(sha256="", text=text))

    threads = [threading.Thread(target=write, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    assert sorted(record.text for record in journal_lines(path)) == sorted(texts * 5)


def test_an_observer_that_fails_is_called_no_more_and_the_others_are(path):
    seen_by_first, seen_by_second = [], []

    def first(record):
        seen_by_first.append(record)
        if record == instant(1):
            raise RuntimeError("the terminal is gone")

    with capture_logs() as logs:
        writer = writer_of(path, durability="sync", observers=[first, seen_by_second.append])
        for number in range(4):
            writer.append(instant(number))
        writer.close()

    assert seen_by_first == [instant(0), instant(1)]
    assert seen_by_second == journal_lines(path) == [instant(number) for number in range(4)]
    assert [(log["code"], log["error"]) for log in logs] == [
        ("trace.observer-failed", "RuntimeError: the terminal is gone")
    ]


def test_a_span_that_is_over_when_it_is_written_is_one_record_where_it_began(tmp_path):
    trace = new_run(tmp_path)
    # The run is not entered yet, so all of this is written together.
    with trace.span("node", n=1), trace.span("chat", n=1) as chat:
        trace.instant("first token")
        chat.set(n=2)
    open_span = trace.span("load")
    open_span.__enter__()
    with trace:
        asyncio.run(trace.persisted())
        open_span.__exit__(None, None, None)

    records = journal_lines(trace.journal_path)
    assert kinds(records[1:]) == [
        SpanRecord, SpanRecord, Instant, SpanStarted, SpanEnded, RunEnded
    ]  # fmt: skip
    assert [record.id for record in records[1:3]] == [1, 2]
    assert [record.attributes for record in records[1:3]] == [{"n": 1}, {"n": 2}]


def test_whoever_makes_spans_faster_than_they_are_written_helps_to_write_them(tmp_path):
    trace = new_run(tmp_path)
    # The run is not entered, so that nobody else writes.
    for _ in range(30_000):
        with trace.span("step"):
            pass

    written = journal_lines(trace.journal_path)
    assert kinds(written).count(SpanRecord) > 20_000
    with trace:
        pass
    spans = [
        r for r in journal_lines(trace.journal_path) if isinstance(r, SpanRecord | SpanStarted)
    ]
    assert {one.id for one in spans} == set(range(1, 30_001))


@DURABILITIES
def test_a_disk_that_does_not_keep_what_it_takes_is_said_once_and_harms_no_run(path, durability):
    writer = writer_of(path, durability=durability)
    reader, takes_all_and_keeps_nothing = os.pipe()  # a pipe cannot be synced
    os.dup2(takes_all_and_keeps_nothing, writer._descriptor)

    with capture_logs() as logs:
        for number in range(3):
            writer.append(instant(number))
        writer.close()
    os.close(takes_all_and_keeps_nothing)
    os.close(reader)

    assert [log["code"] for log in logs] == ["trace.journal-incomplete"]
    assert isinstance(writer.failure, OSError)


class Unreadable(Mapping):
    """An attribute that cannot be looked at."""

    def __getitem__(self, key):
        raise KeyError(key)

    def __iter__(self):
        raise ZeroDivisionError

    def __len__(self):
        return 1


@DURABILITIES
def test_a_record_that_cannot_be_written_costs_no_other(tmp_path, durability):
    with capture_logs() as logs, new_run(tmp_path, durability=durability) as trace:
        with trace.span("before"):
            pass
        # A lone surrogate takes the way on which values are looked at one by one.
        with trace.span("damaged", text="\ud800", odd=Unreadable()):
            pass
        asyncio.run(asyncio.wait_for(trace.persisted(), 60))
        with trace.span("after"):
            pass

    assert {log["code"] for log in logs} == {"trace.record-missing"}
    assert {span.name for span in load_run(trace.journal_path).spans} >= {"before", "after"}


def test_making_a_record_may_make_another(tmp_path):
    with new_run(tmp_path, durability="sync") as trace:

        def told():
            with trace.span("told on the way"):
                return "a text"

        for _ in range(9):
            trace.instant("said", text_sha256=trace.content(told))

    record = load_run(trace.journal_path)
    assert (len(record.spans), len(record.instants)) == (9, 9)


# --- those who wait for the disk -------------------------------------------------------------


def test_everything_so_far_is_in_the_file_once_it_is_persisted_in_whatever_event_loop(tmp_path):
    async def wait(trace, name):
        for number in range(5):
            trace.output(NodeOutput(name, None, number))
            await trace.persisted()
            outputs = [r for r in whole_lines(trace.journal_path) if isinstance(r, NodeOutput)]
            assert NodeOutput(name, None, number) in outputs
        done.append(name)

    async def waits(trace, thread):
        await asyncio.gather(*(wait(trace, f"{thread}-{number}") for number in range(4)))

    done = []
    with new_run(tmp_path) as trace:
        threads = [
            threading.Thread(target=lambda n=n: asyncio.run(waits(trace, n))) for n in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(done) == [f"{thread}-{number}" for thread in range(3) for number in range(4)]


def test_a_loop_that_is_over_keeps_nobody_in_another_from_being_told(tmp_path):
    async def begin_to_wait(trace):
        asyncio.get_running_loop().create_task(trace.persisted())
        await asyncio.sleep(0)

    with new_run(tmp_path) as trace:
        asyncio.run(begin_to_wait(trace))
        asyncio.run(asyncio.wait_for(trace.persisted(), 60))
    asyncio.run(trace.persisted())  # when it is closed, nobody waits

    assert load_run(trace.journal_path).ended.status == "ok"


def test_who_is_cancelled_while_it_waits_disturbs_nobody(tmp_path):
    async def wait(trace):
        waiting = [asyncio.create_task(trace.persisted()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert kinds(results) == [type(None), asyncio.CancelledError, type(None)]
        await trace.persisted()

    with new_run(tmp_path) as trace:
        asyncio.run(wait(trace))

    assert load_run(trace.journal_path).ended is not None


# --- runs ------------------------------------------------------------------------------------


def test_a_run_leaves_its_journal_and_its_timelines(tmp_path):
    clock = ManualClock(start_ns=40)
    directory = tmp_path / "new" / "traces"
    trace = RunTrace(directory, name="essay", clock=clock, wall_ns=lambda: NEW_YEAR_NS + 7)
    trace.instant("settings read")  # what happens before the run is entered is in it too
    with trace:
        with trace.span("draft"):
            clock.advance(ns=2, ms=3)
        late, outlives = trace.span("late"), trace.span("outlives it")
        outlives.__enter__()
        assert set(directory.iterdir()) == {trace.journal_path}
    outlives.__exit__(None, None, None)
    with late:
        trace.instant("much later")

    assert re.fullmatch(r"20260101T000000Z-[0-9a-f]{12}", trace.run_id)
    assert trace.journal_path == directory / f"{trace.run_id}.jsonl"
    assert trace.timeline_paths == {
        "chrome": directory / f"{trace.run_id}.json",
        "perfetto": directory / f"{trace.run_id}.pftrace",
    }
    assert set(directory.iterdir()) == {trace.journal_path, *trace.timeline_paths.values()}
    first, second, *_, last = journal_lines(trace.journal_path)
    assert first == RunStarted(1, trace.run_id, "essay", NEW_YEAR_NS + 7, 40, os.getpid())
    assert (second, last) == (Instant(None, "settings read", 40), RunEnded(3_000_042, "ok"))
    journal = trace.journal()
    assert (journal.started, journal.ended, journal.duration_ns) == (first, last, 3_000_002)
    assert [(span.name, span.status) for span in journal.spans()] == [
        ("draft", "ok"),
        ("outlives it", "unfinished"),
    ]
    assert json.loads(trace.timeline_paths["chrome"].read_bytes())["traceEvents"]
    assert trace.timeline_paths["perfetto"].stat().st_size > 0


def test_runs_are_named_so_that_they_sort_by_time_and_never_meet(tmp_path):
    def run_id(second):
        wall_ns = NEW_YEAR_NS + second * 10**9
        return RunTrace(tmp_path, name="essay", wall_ns=lambda: wall_ns).run_id

    ids = [run_id(second) for second in (0, 1, 60, 86_400)]

    assert ids == sorted(ids)
    assert run_id(0) != run_id(0)


@pytest.mark.parametrize(
    ("error", "status", "described"),
    [
        (ValueError("boom"), "error", "ValueError: boom"),
        (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt"),
        (asyncio.CancelledError(), "cancelled", "CancelledError"),
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


@DURABILITIES
def test_observers_see_every_record_in_order_once_it_is_in_the_journal(tmp_path, durability):
    seen = []

    def observe(record):
        (path,) = tmp_path.glob("*.jsonl")
        lines = journal_lines(path)
        if isinstance(record, SpanStarted | SpanEnded):
            # Those of one span that were written together are one record there.
            spans = [one for one in lines if isinstance(one, SpanStarted | SpanEnded | SpanRecord)]
            assert record.id in {one.id for one in spans}
        else:
            assert record in lines
        seen.append(record)

    options = TraceOptions(durability=durability)
    trace = RunTrace(tmp_path, name="essay", options=options, observers=[observe])
    with trace, trace.span("draft", prompt=trace.content("a prompt")):
        trace.counter("composite", 7.5, unit="points")
        asyncio.run(trace.persisted())

    assert [type(record).__name__ for record in seen] == [
        "RunStarted", "Content", "SpanStarted", "CounterSet", "SpanEnded", "RunEnded"
    ]  # fmt: skip
    run = load_run(trace.journal_path)
    assert ([span.status for span in run.spans], len(run.counters)) == (["ok"], 1)


def remove_the_journal(trace):
    trace.journal_path.unlink()


def block_one_timeline(trace):
    trace.timeline_paths["chrome"].mkdir()


@pytest.mark.parametrize(
    ("disturb", "code", "written"),
    [
        (remove_the_journal, "trace.journal-unreadable", 0),
        (block_one_timeline, "trace.timeline-missing", 1),
    ],
)
def test_files_that_cannot_be_finished_are_a_warning(tmp_path, disturb, code, written):
    with capture_logs() as logs, RunTrace(tmp_path, name="essay") as trace:
        asyncio.run(trace.persisted())
        disturb(trace)

    assert [log["code"] for log in logs][-1:] == [code]
    assert all(trace.run_id in log["error"] for log in logs)
    assert [path.is_file() for path in trace.timeline_paths.values()] == [True] * written
