import asyncio
import time

from harness.session.heartbeat import heartbeat
from harness.trace import SpanRecord, Tracer


def lags_of(work) -> list[SpanRecord]:
    """What is recorded of the event loop while it runs this."""
    records: list[SpanRecord] = []

    async def main() -> None:
        with heartbeat(Tracer(records.append)):
            await asyncio.sleep(0.03)
            await work()
            await asyncio.sleep(0.03)

    asyncio.run(main())
    return [record for record in records if record.name == "client lag"]


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
        with heartbeat(Tracer(records.append)):
            await asyncio.sleep(0.03)
            block(0.2)

    asyncio.run(main())
    assert longest(records).duration_ns > 0.1e9


def test_waiting_is_no_stall():
    async def work() -> None:
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.3) for _ in range(3)))

    # The machine may be busy for moments; it is not for as long as the threads wait.
    assert all(lag.attributes["longest_ns"] < 0.25e9 for lag in lags_of(work))
