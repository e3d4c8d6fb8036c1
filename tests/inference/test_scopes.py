"""Scopes in scopes: what counts where, and which limit of several refuses a call."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from metered import client_on, reply, request

from harness import ScriptedBackend
from harness.errors import LimitReached, RunLimitReached
from harness.inference import Completion, Limits
from harness.inference.meter import _innermost
from harness.inference.request import most_prompt_tokens


def test_a_call_counts_in_the_loop_that_it_is_made_in_and_in_all_around_it():
    async def use():
        run = client_on(ScriptedBackend(["a", "b", "c", "d"]).chat, ManualClock(), limits=Limits())
        command = run.meter.inside(Limits(), whose="command")
        client = replace(run, meter=command)
        await client.chat(request())
        with command.loop(Limits()) as outer:
            await client.chat(request())
            with command.loop(Limits()) as inner:
                await asyncio.gather(client.chat(request()), client.chat(request()))
        scopes = [inner, outer, command, run.meter]
        assert inner.chain == tuple(scopes)
        return [scope.spent.calls for scope in scopes]

    assert asyncio.run(use()) == [2, 3, 4, 4]


WHOSE = {
    "loop": ([1, 9, 9], "loop.limit-reached", "(max_calls = 1)"),
    "command": ([9, 1, 9], "run.limit-reached", "the command is at its limit"),
    "run": ([9, 9, 1], "run.limit-reached", "the run is at its limit"),
}


@pytest.mark.parametrize(("calls", "code", "fact"), WHOSE.values(), ids=WHOSE)
def test_the_tightest_of_the_scopes_refuses_and_is_named(calls, code, fact):
    of_loop, of_command, of_run = (Limits(max_calls=most) for most in calls)

    async def use():
        run = client_on(ScriptedBackend(["a", "b"]).chat, ManualClock(), limits=of_run)
        client = replace(run, meter=run.meter.inside(of_command, whose="command"))
        with client.meter.loop(of_loop):
            await client.chat(request())
            await client.chat(request())

    with pytest.raises(LimitReached) as caught:
        asyncio.run(use())
    assert (caught.value.code, fact in str(caught.value)) == (code, True)


def test_a_call_that_waits_for_room_in_a_loop_keeps_none_outside_waiting():
    under_way, order = asyncio.Event(), []

    async def send(asked):
        order.append(asked.seed)
        if asked.seed == 1:
            await under_way.wait()
        return reply(1, 1)

    async def use():
        client = client_on(send, ManualClock(), limits=Limits(max_tokens=9_000))
        with client.meter.loop(Limits(max_tokens=150)):
            inside = [asyncio.create_task(client.chat(request(seed=seed))) for seed in (1, 2)]
        for _ in range(9):
            await asyncio.sleep(0)
        await asyncio.wait_for(client.chat(request(seed=3)), timeout=60)
        under_way.set()
        await asyncio.gather(*inside)

    asyncio.run(use())
    assert order == [1, 3, 2]


@given(
    calls=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4)), max_size=16),
    of_run=st.integers(1, 2_000),
    of_loops=st.lists(st.integers(1, 2_000), min_size=2, max_size=2),
)
def test_loops_side_by_side_and_the_run_around_them_all_keep_their_limits(calls, of_run, of_loops):
    async def send(asked):
        for _ in range(asked.seed):
            await asyncio.sleep(0)
        return reply(most_prompt_tokens(asked), asked.max_output_tokens)

    async def all_of_them():
        client = client_on(send, ManualClock(), limits=Limits(max_tokens=of_run))
        scopes, tasks = [client.meter], []
        for most in of_loops:
            with client.meter.loop(Limits(max_tokens=most)) as loop:
                scopes.append(loop)
        for place, turns in calls:
            token = _innermost.set(scopes[place])
            tasks.append(asyncio.create_task(client.chat(request(room=None, seed=turns))))
            _innermost.reset(token)
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
        return scopes, ends

    scopes, ends = asyncio.run(all_of_them())
    assert {type(end) for end in ends} <= {Completion, LimitReached, RunLimitReached}
    run, *loops = scopes
    for scope, most in zip(scopes, [of_run, *of_loops], strict=True):
        assert scope.spent.tokens <= most
    outside = sum(
        end.usage.input_tokens + end.usage.output_tokens
        for end, (place, _) in zip(ends, calls, strict=True)
        if place == 0 and isinstance(end, Completion)
    )
    assert run.spent.tokens == outside + sum(loop.spent.tokens for loop in loops)


def test_calls_of_a_loop_that_state_no_room_have_what_those_before_them_left():
    """One at a time, since the first may take all: each is sized anew when it has its turn."""
    rooms = []

    async def send(asked):
        await asyncio.sleep(0)
        rooms.append(asked.max_output_tokens)
        return reply(82, asked.max_output_tokens // 2)

    async def use():
        client = client_on(send, ManualClock(), limits=Limits())
        with client.meter.loop(Limits(max_tokens=500)):
            calls = (client.chat(request(room=None, seed=seed)) for seed in range(4))
            return await asyncio.gather(*calls, return_exceptions=True)

    ends = asyncio.run(use())
    assert [type(end) for end in ends] == [Completion, Completion, Completion, LimitReached]
    assert rooms == [256, 208, 22]
