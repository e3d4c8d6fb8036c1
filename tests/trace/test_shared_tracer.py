"""What several runs share is taken down in the trace of each that it concerns."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.trace import SharedTracer, SpanEnded, Tracer
from harness.trace.records import CounterSet, Instant, SpanStarted


class RunTracer(Tracer):
    """A run's, whose records are at hand."""

    def __init__(self, run_id):
        self.records = []
        super().__init__(self.records.append)
        self.run_id = run_id

    def of(self, kind):
        return [one for one in self.records if type(one) is kind]


@pytest.fixture
def shared():
    return SharedTracer()


def test_what_happens_in_a_runs_span_is_its_own_and_all_else_is_everybodys(shared):
    one, other = RunTracer("one"), RunTracer("other")
    with shared.heard_by(one), shared.heard_by(other):
        with one.span("node", node="draft"), shared.span("queue"):
            shared.instant("pause")
            assert (shared.current_run, shared.current_node) == ("one", "draft")
        shared.instant("evict")
        assert (shared.current_run, shared.current_node) == ("", None)
    assert [span.name for span in one.of(SpanStarted)] == ["node", "queue"]
    assert [instant.name for instant in one.of(Instant)] == ["pause", "evict"]
    assert [record.name for record in other.records] == ["evict"]


def test_a_run_that_begins_later_is_told_what_counters_stand_at(shared):
    first, second = RunTracer("first"), RunTracer("second")
    shared.counter("resident", 3, unit="bytes", track="budget")
    with shared.heard_by(first):
        shared.counter("resident", 5, unit="bytes", track="budget")
        with shared.heard_by(second):
            pass
        shared.counter("resident", 7, unit="bytes", track="budget")
    assert [record.value for record in first.of(CounterSet)] == [3, 5, 7]
    assert [record.value for record in second.of(CounterSet)] == [5]


def test_a_load_is_in_the_runs_that_wait_for_it_from_its_own_beginning_to_its_end(shared):
    waiting, late, idle = (RunTracer(name) for name in ("waiting", "late", "idle"))
    with shared.heard_by(waiting), shared.heard_by(late), shared.heard_by(idle):
        with shared.span("load", model="a") as load:
            with waiting.span("chat"):
                ids = {shared.id_of(load), shared.id_of(load)}
            load.set(done=True)
        with late.span("chat"):
            shared.id_of(load)
    assert idle.records == []
    for run in (waiting, late):
        (begun,) = [span for span in run.of(SpanStarted) if span.name == "load"]
        (ended,) = [span for span in run.of(SpanEnded) if span.id == begun.id]
        assert begun.time_ns == load.start_ns
        assert ended.time_ns == load.end_ns
        assert (begun.parent, begun.attributes) == (None, {"model": "a"})
    with shared.span("load") as load, shared.heard_by(idle), idle.span("chat"):
        shared.id_of(load)
    (begun,) = [span for span in idle.of(SpanStarted) if span.name == "load"]
    assert begun.time_ns > load.start_ns, "not before the run itself"
    assert ids == {begun.id for begun in waiting.of(SpanStarted) if begun.name == "load"}


def test_a_load_that_has_just_ended_is_in_a_run_once(shared):
    run = RunTracer("run")
    with shared.heard_by(run):
        with shared.span("load") as load:
            pass
        with run.span("chat"):
            assert len({shared.id_of(load) for _ in range(3)}) == 1
    assert [span.name for span in run.of(SpanStarted)].count("load") == 1


def test_the_load_of_a_run_that_ends_first_ends_with_it(shared):
    run = RunTracer("run")
    with shared.span("load") as load:
        with shared.heard_by(run), run.span("chat"):
            shared.id_of(load)
        (ended,) = [one for one in run.of(SpanEnded) if one.status == "cancelled"]
    assert len(run.of(SpanEnded)) == 2
    assert ended.time_ns <= load.end_ns


def test_servers_are_asked_only_while_there_is_a_run(shared):
    async def main():
        listening = asyncio.create_task(shared.listened_to())
        await asyncio.sleep(0)
        assert not listening.done()
        with shared.heard_by(RunTracer("run")):
            await listening
        assert not shared.has_runs

    asyncio.run(main())


def test_threads_that_begin_and_end_spans_do_not_lose_each_others(shared, request):
    interval_s = sys.getswitchinterval()
    request.addfinalizer(lambda: sys.setswitchinterval(interval_s))
    sys.setswitchinterval(1e-5)

    def load(_):
        for _ in range(2_000):
            with shared.span("load"):
                pass

    with ThreadPoolExecutor(8) as threads:
        assert len([*threads.map(load, range(8))]) == 8
