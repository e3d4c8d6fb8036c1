import asyncio
import subprocess
import sys
import threading
from collections.abc import Mapping

import pytest
import structlog
from sample_runs import STARTED, journal_lines, whole_lines
from structlog.testing import capture_logs

from harness.trace import (
    Content,
    Instant,
    JournalWriter,
    NodeOutput,
    RecordMaker,
    Redactor,
    RunEnded,
    RunTrace,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    TraceOptions,
    load_run,
)


def instant(number):
    return Instant(None, "tick", number)


def writer_of(path, **options):
    return JournalWriter(path, maker=RecordMaker(), redactor=Redactor(), **options)


def kinds(records):
    return [type(record) for record in records]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.jsonl"


def test_a_journal_is_never_written_over(path):
    path.write_text("something else")

    with pytest.raises(FileExistsError):
        writer_of(path)

    assert path.read_text() == "something else"


def test_what_is_appended_is_written_in_its_order_when_the_journal_is_closed_at_the_latest(path):
    writer = writer_of(path)
    writer.append(STARTED)
    for number in range(10_000):
        writer.append(instant(number))
    assert journal_lines(path) == []  # nobody has started to write

    writer.close()

    assert journal_lines(path) == [STARTED, *map(instant, range(10_000))]


def test_a_started_writer_writes_by_itself_in_a_thread_of_its_own(path):
    threads, is_seen = [], threading.Event()

    def observe(record):
        threads.append(threading.current_thread())
        is_seen.set()

    writer = writer_of(path, observers=[observe])
    writer.start()
    writer.append(STARTED)

    assert is_seen.wait(10)
    assert journal_lines(path) == [STARTED]
    assert threads[0] is not threading.current_thread()
    writer.close()


def test_a_span_that_is_over_when_it_is_written_is_one_record_where_it_began(tmp_path):
    trace = RunTrace(tmp_path, name="essay", options=TraceOptions(timelines=()))
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


@pytest.mark.parametrize("durability", ["exit", "node", "sync"])
def test_every_durability_records_the_same_run(tmp_path, durability):
    options = TraceOptions(durability=durability)
    with RunTrace(tmp_path, name="essay", options=options) as trace:
        for number in range(100):
            with trace.span("node", number=number, prompt=trace.content(f"prompt {number % 7}")):
                trace.counter("queue", number, unit="calls")
            trace.output("node", number)
            asyncio.run(trace.persisted())

    run = load_run(trace.journal_path)
    assert [span.attributes["number"] for span in run.spans] == list(range(100))
    assert [output.value for output in run.outputs] == list(range(100))
    assert [counter.value for counter in run.counters] == list(range(100))
    assert sorted(run.contents.values()) == [f"prompt {number}" for number in range(7)]
    assert run.ended is not None


def test_everything_so_far_is_in_the_file_once_it_is_persisted(tmp_path):
    async def node(trace, number):
        with trace.span("node", number=number):
            trace.output("node", number)
            await trace.persisted()
            outputs = [r for r in whole_lines(trace.journal_path) if isinstance(r, NodeOutput)]
            assert NodeOutput("node", None, number) in outputs

    async def nodes(trace):
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(node(trace, number))

    with RunTrace(tmp_path, name="essay") as trace:
        asyncio.run(nodes(trace))


def test_who_waits_in_several_event_loops_is_told_in_its_own(tmp_path):
    async def wait(trace, name):
        for number in range(30):
            trace.output(name, number)
            await trace.persisted()
            outputs = [r for r in whole_lines(trace.journal_path) if isinstance(r, NodeOutput)]
            assert NodeOutput(name, None, number) in outputs
        done.append(name)

    async def waits(trace, thread):
        await asyncio.gather(*(wait(trace, f"{thread}-{number}") for number in range(4)))

    done = []
    with RunTrace(tmp_path, name="essay") as trace:
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

    # The run is not entered, so that who waits is told when the first loop is over.
    trace = RunTrace(tmp_path, name="essay", options=TraceOptions(timelines=()))
    with trace:
        asyncio.run(begin_to_wait(trace))
        asyncio.run(asyncio.wait_for(trace.persisted(), 10))

    assert load_run(trace.journal_path).ended.status == "ok"


def test_who_is_cancelled_while_it_waits_disturbs_nobody(tmp_path):
    async def wait(trace):
        waiting = [asyncio.create_task(trace.persisted()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results] == [
            type(None), asyncio.CancelledError, type(None)
        ]  # fmt: skip
        await trace.persisted()

    with RunTrace(tmp_path, name="essay") as trace:
        asyncio.run(wait(trace))

    assert load_run(trace.journal_path).ended is not None


def test_nobody_waits_for_a_journal_that_is_written_at_the_end_or_closed(tmp_path):
    with RunTrace(tmp_path, name="essay", options=TraceOptions(durability="exit")) as trace:
        asyncio.run(trace.persisted())
    asyncio.run(trace.persisted())


def test_whoever_makes_spans_faster_than_they_are_written_helps_to_write_them(tmp_path):
    trace = RunTrace(tmp_path, name="essay", options=TraceOptions(timelines=()))
    # The run is not entered, so that nobody else writes.
    for _ in range(30_000):
        with trace.span("step"):
            pass

    assert kinds(journal_lines(trace.journal_path)).count(SpanRecord) > 20_000
    with trace:
        pass
    records = journal_lines(trace.journal_path)
    assert {r.id for r in records if isinstance(r, SpanRecord | SpanStarted)} == set(
        range(1, 30_001)
    )


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
    assert journal_lines(path) == [STARTED]
    assert seen == [STARTED]
    assert (tmp_path / "another").read_bytes() == b""


@pytest.mark.parametrize("durability", ["node", "sync"])
def test_records_of_threads_do_not_mix(path, durability):
    writer = writer_of(path, durability=durability)
    writer.start()
    texts = [str(number) * 50_000 for number in range(8)]

    def write(text):
        for _ in range(10):
            writer.append(Content(sha256="", text=text))

    threads = [threading.Thread(target=write, args=[text]) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    assert sorted(record.text for record in journal_lines(path)) == sorted(texts * 10)


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
    assert [(log["event"], log["error"]) for log in logs] == [
        ("an observer failed and is called no more", "RuntimeError: the terminal is gone")
    ]


SIZE_LIMITED_RUN = """
import resource, sys
from pathlib import Path
from harness.trace import RunTrace, TraceOptions

resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
seen = []
options = TraceOptions(durability=sys.argv[2])
with RunTrace(Path(sys.argv[1]), name="limited", options=options, observers=[seen.append]) as trace:
    done = 0
    for number in range(100):
        with trace.span("step", number=number):
            done += 1
print(done, len(seen), trace.journal())
"""


@pytest.mark.parametrize("durability", ["exit", "node", "sync"])
def test_a_run_outlives_a_file_that_may_not_grow(tmp_path, durability):
    pytest.importorskip("resource", reason="file sizes cannot be limited here")

    done = subprocess.run(
        [sys.executable, "-c", SIZE_LIMITED_RUN, tmp_path, durability],
        capture_output=True,
        text=True,
        check=True,
    )

    *warnings, result = done.stdout.splitlines()
    assert result.startswith("100 202 ")  # who observes still sees everything
    assert "the journal is incomplete" in warnings[0]
    (journal,) = tmp_path.glob("*.jsonl")
    spans = load_run(journal).spans
    assert 0 < len(spans) < 100
    assert [span.attributes["number"] for span in spans] == list(range(len(spans)))


class Unreadable(Mapping):
    """An attribute that cannot be looked at."""

    def __getitem__(self, key):
        raise KeyError(key)

    def __iter__(self):
        raise ZeroDivisionError

    def __len__(self):
        return 1


@pytest.mark.parametrize("durability", ["exit", "node", "sync"])
def test_a_record_that_cannot_be_written_costs_no_other(tmp_path, durability):
    options = TraceOptions(durability=durability, timelines=())
    with capture_logs() as logs, RunTrace(tmp_path, name="essay", options=options) as trace:
        with trace.span("before"):
            pass
        # A lone surrogate takes the way on which values are looked at one by one.
        with trace.span("damaged", text="\ud800", odd=Unreadable()):
            pass
        asyncio.run(asyncio.wait_for(trace.persisted(), 10))
        with trace.span("after"):
            pass

    assert {log["event"] for log in logs} == {"a record is missing"}
    assert {span.name for span in load_run(trace.journal_path).spans} >= {"before", "after"}


def test_a_log_that_nobody_reads_any_more_stops_nothing(tmp_path):
    def closed_pipe(*_):
        raise BrokenPipeError

    structlog.configure(processors=[closed_pipe])
    try:
        with RunTrace(tmp_path, name="essay") as trace:
            trace.later(lambda: 1 / 0)
            asyncio.run(asyncio.wait_for(trace.persisted(), 10))
            with trace.span("after"):
                pass
    finally:
        structlog.reset_defaults()

    assert [span.name for span in load_run(trace.journal_path).spans] == ["after"]


def test_making_a_record_may_make_another(tmp_path):
    options = TraceOptions(durability="sync", timelines=())
    with RunTrace(tmp_path, name="essay", options=options) as trace:

        def told():
            with trace.span("told on the way"):
                return "a text"

        for _ in range(50):
            trace.instant("said", text_sha256=trace.content(told))

    record = load_run(trace.journal_path)
    assert (len(record.spans), len(record.instants)) == (50, 50)


def test_an_interpreter_that_ends_in_the_middle_leaves_what_was_recorded(tmp_path):
    program = (
        "import sys; from pathlib import Path; from harness import RunTrace\n"
        "trace = RunTrace(Path(sys.argv[1]), name='essay').__enter__()\n"
        "trace.span('open').__enter__()\n"
        "with trace.span('done'): pass\n"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)

    (journal,) = tmp_path.glob("*.jsonl")
    spans = {span.name: span.status for span in load_run(journal).spans}
    assert spans == {"open": "unfinished", "done": "ok"}
