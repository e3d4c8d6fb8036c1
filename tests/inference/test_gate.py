import asyncio

import pytest
from clients import client_of
from manual_clock import ManualClock

from harness.errors import StreamCut
from harness.graph.executor import leave_behind
from harness.inference import ChatRequest, ScriptedBackend, as_messages
from harness.inference.gate import Replica
from harness.trace import SpanEnded, SpanStarted, Tracer


def request(text):
    return ChatRequest(model="m", messages=as_messages(text))


class Held(ScriptedBackend):
    """Answers each call when it is told to, or fails it."""

    def __init__(self):
        super().__init__(lambda request: request.messages[0].content)
        self.begun = []
        self._outcomes = {}

    async def chat(self, request):
        name = request.messages[0].content
        self.begun.append(name)
        self._outcomes[name] = asyncio.get_running_loop().create_future()
        await self._outcomes[name]
        return await super().chat(request)

    def answer(self, name):
        self._outcomes[name].set_result(None)

    def fail(self, name):
        self._outcomes[name].set_exception(StreamCut("it broke off", endpoint="m"))


async def until_idle():
    """Lets every task run until it waits for something."""
    for _ in range(20):
        await asyncio.sleep(0)


async def calls_to(backend, names):
    calls = {name: asyncio.create_task(backend.chat(request(name))) for name in names}
    await until_idle()
    return calls


def test_calls_beyond_the_limit_wait_and_go_in_the_order_they_came():
    async def main():
        held = Held()
        limited = client_of(held, gate={"max_parallel": 2})
        calls = await calls_to(limited, "abcd")
        assert held.begun == ["a", "b"]

        held.answer("b")
        await until_idle()
        assert held.begun == ["a", "b", "c"]

        # A newcomer does not slip in between the end of one call and the beginning of the next.
        held.answer("a")
        calls |= await calls_to(limited, "e")
        assert held.begun == ["a", "b", "c", "d"]

        held.answer("c")
        await until_idle()
        held.answer("d")
        held.answer("e")
        assert [(await call).text for call in calls.values()] == list("abcde")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("how", "then"),
    [
        ("fails", "b"),
        ("is cancelled", "b"),
        ("ends, and the next was cancelled before", "c"),
        ("ends, and the next was abandoned before", "c"),
        # The place is b's then, but b has not run yet.
        ("ends, and the next is cancelled just then", "c"),
    ],
)
def test_a_call_gives_its_place_to_the_next_that_waits_when_it(how, then):
    async def main():
        held = Held()
        limited = client_of(held, gate={"max_parallel": 1})

        async def first():
            await limited.chat(request("a"))
            if how.endswith("just then"):
                calls["b"].cancel()

        task = asyncio.create_task(first())
        calls = await calls_to(limited, "bc")
        if how == "is cancelled":
            task.cancel()
        elif how == "fails":
            held.fail("a")
        else:
            if how.endswith("before"):
                if "abandoned" in how:
                    leave_behind(calls["b"], label="b")
                calls["b"].cancel()
                await until_idle()
            held.answer("a")
        await asyncio.wait([task])
        await until_idle()

        assert held.begun == ["a", then]
        assert task.cancelled() == (how == "is cancelled")
        assert how != "fails" or isinstance(task.exception(), StreamCut)
        held.answer(then)
        assert (await calls[then]).text == then
        if then == "b":
            await until_idle()
            held.answer("c")
        await asyncio.wait(calls.values())

    asyncio.run(main())


@pytest.mark.parametrize(("slots", "begun"), [(2, ["a", "b"]), (None, ["a", "b", "c", "d"])])
def test_without_a_limit_of_its_own_there_are_as_many_places_as_the_server_says(slots, begun):
    asked = []

    async def ask_the_server():
        asked.append(1)
        await asyncio.sleep(0)
        return slots

    async def main():
        held = Held()
        limited = client_of(held, gate={"replicas": [Replica(slots=ask_the_server)]})
        calls = await calls_to(limited, "abcd")
        assert (held.begun, asked) == (begun, [1])
        for name in "abcd":
            held.answer(name)
            await until_idle()
        assert [(await call).text for call in calls.values()] == list("abcd")

    asyncio.run(main())


def test_a_wait_is_the_calls_queue_phase_and_no_wait_is_none():
    async def main():
        clock, records = ManualClock(), []
        tracer = Tracer(records.append, clock=clock)
        held = Held()
        traced = client_of(held, gate={"max_parallel": 1}, tracer=tracer)
        calls = await calls_to(traced, "ab")
        clock.advance(ms=250)
        held.answer("a")
        await calls["a"]
        await until_idle()
        clock.advance(ms=100)
        held.answer("b")
        await calls["b"]
        return records

    records = asyncio.run(main())
    [queue] = [r for r in records if isinstance(r, SpanStarted) and r.name == "queue"]
    why = {"place_of": "endpoint", "reason": "max_parallel = 1"}
    assert queue.attributes == {"source": "measured", **why}
    [end] = [r for r in records if isinstance(r, SpanEnded) and r.id == queue.id]
    assert end.time_ns - queue.time_ns == 250_000_000
