import asyncio
import gc
import sys
import time
from pathlib import Path

import pytest

import harness
from harness.session.monitoring import heartbeat
from harness.trace import SpanRecord, Tracer


def lags_of(work) -> list[SpanRecord]:
    """What is recorded of the event loop while it runs this."""
    records: list[SpanRecord] = []

    async def main() -> None:
        with heartbeat(recording(records)):
            await asyncio.sleep(0.03)
            await work()
            await asyncio.sleep(0.03)

    asyncio.run(main())
    return [record for record in records if record.name == "client lag"]


def recording(records: list[SpanRecord]) -> Tracer:
    tracer = Tracer(records.append)
    tracer.run_id = "run"
    return tracer


def longest(lags: list[SpanRecord]) -> SpanRecord:
    return max(lags, key=lambda lag: lag.duration_ns)


def block(seconds: float) -> None:
    time.sleep(seconds)


def test_a_stall_is_recorded_with_the_function_that_made_it():
    async def work() -> None:
        block(0.4)

    lag = longest(lags_of(work))
    assert lag.duration_ns > 0.3e9
    assert lag.attributes["function"] == "block"
    assert lag.attributes["at"].startswith("test_heartbeat.py:")
    assert lag.attributes["track"] == "client lag"


@pytest.mark.parametrize(("file", "function"), [("/client.py", None), ("_demo/app.py", "call")])
def test_code_of_harness_that_blocks_is_put_on_no_line_of_its_caller(file, function):
    names = {}
    file = f"{Path(harness.__file__).parent}{file}"
    exec(compile("async def call():\n    sleep(0.4)", file, "exec"), {"sleep": time.sleep}, names)

    async def work() -> None:
        await names["call"]()

    lag = longest(lags_of(work))
    assert lag.attributes.get("function") == function
    assert ("at" in lag.attributes) is (function is not None)


def test_a_pause_for_garbage_has_its_name_and_no_line():
    heap, computed_s = [[] for _ in range(1_000_000)], []

    async def work() -> None:
        begun_s = time.thread_time()
        gc.collect()
        computed_s.append(time.thread_time() - begun_s)

    lag = longest(lags_of(work))
    assert heap
    if 1.5 * computed_s[0] > lag.duration_ns / 1e9:  # else other programs had the core
        assert lag.attributes["function"] == "garbage collection"
        assert lag.attributes.get("at") is None


def test_a_process_that_does_not_run_is_not_collecting():
    async def work() -> None:
        gc.callbacks.append(lambda phase, _: time.sleep(0.4) if phase == "start" else None)
        gc.freeze()  # what other tests left takes long to collect
        try:
            gc.collect()
        finally:
            gc.unfreeze()
            gc.callbacks.pop()

    lag = longest(lags_of(work))
    assert lag.attributes.get("function") != "garbage collection"


def test_no_garbage_is_collected_while_a_stall_is_looked_at(monkeypatch):
    # CPython gh-106883: a thread that starts meanwhile would wait for ever, and all others with it.
    collects, look = [], sys._current_frames

    def frames():
        collects.append(gc.isenabled())
        return look()

    monkeypatch.setattr(sys, "_current_frames", frames)

    async def work() -> None:
        block(0.4)

    lags_of(work)
    assert set(collects) == {False}
    assert gc.isenabled()


def test_stalls_one_after_the_other_are_one_record():
    async def work() -> None:
        for _ in range(4):
            block(0.08)
            await asyncio.sleep(0)

    lag = longest(lags_of(work))
    assert lag.duration_ns > 0.25e9
    assert lag.attributes["longest_ns"] <= lag.duration_ns


def test_a_stall_at_the_very_end_is_recorded_too():
    records: list[SpanRecord] = []

    async def main() -> None:
        with heartbeat(recording(records)):
            await asyncio.sleep(0.03)
            block(0.2)

    asyncio.run(main())
    assert longest(records).duration_ns > 0.1e9


def test_waiting_is_no_stall():
    async def work() -> None:
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.3) for _ in range(3)))

    # The machine may be busy for moments; it is not for as long as the threads wait.
    assert all(lag.attributes["longest_ns"] < 0.25e9 for lag in lags_of(work))


def test_without_a_record_no_heart_beats():
    tracer = Tracer()

    async def main() -> None:
        with heartbeat(tracer):
            block(0.1)
            assert tracer.stalls.overdue_ns == 0

    asyncio.run(main())
