"""The meter: what is reserved, refused, awaited and counted, by itself in front of a model."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from dataclasses import replace

import pytest
from clients import AT_ONCE, priced
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from metered import client_on, reply, request

from harness import ScriptedBackend
from harness.errors import ContextOverflow, RunLimitReached, ServerError, StreamCut
from harness.inference import Completion, EmbedRequest, Limits, Spent
from harness.inference.client import CallSource
from harness.inference.limits import refusal
from harness.inference.reply_store import ReplyCache
from harness.inference.request import most_prompt_tokens, most_tokens_of
from harness.inference.structured import SchemaKnowledge
from harness.text_store import TextStore

PART = {
    "tokens": (Limits(max_tokens=60), Spent(input_tokens=31), "29 left"),
    "calls": (Limits(max_calls=8), Spent(calls=8), "max_calls = 8"),
    "cost": (Limits(max_cost_usd=2), Spent(cost_usd=2.0), "0 left"),
    "time": (Limits(max_seconds=60), Spent(time_ns=60 * 10**9), "max_seconds = 60"),
}


@pytest.mark.parametrize(("limits", "before", "fact"), PART.values(), ids=PART)
def test_what_earlier_parts_of_a_run_spent_counts(request, limits, before, fact):
    backend = ScriptedBackend(["two words"])
    client = client_on(backend.chat, ManualClock(), limits=limits, before=before)
    with pytest.raises(RunLimitReached) as caught:
        asyncio.run(client.chat(globals()["request"]()))
    assert caught.value.limit == request.node.callspec.id
    assert fact in str(caught.value)
    assert backend.requests == []


def test_what_is_left_of_millions_of_tokens_is_told_to_the_last():
    need, used = Spent(input_tokens=2_000_000), Spent(input_tokens=3_765_433)
    _, message = refusal(Limits(max_tokens=5_000_000), model="m", need=need, used=used)
    assert message.endswith("of max_tokens = 5000000 there are 1234567 left")


# A call takes 79 + 50 tokens at most, and 790 + 1,000 millionths of a dollar.
TOO_LOW = {
    "dollars": ("command", 0, {"max_cost_usd": 0.001}, "none fits this limit: --max-cost-usd"),
    "tokens": ("command", 0, {"max_tokens": 120}, "--max-tokens has to be at least 129"),
    "used up": ("command", 1, {"max_tokens": 130}, "the next command goes on, with a limit"),
    "used up dollars": ("command", 1, {"max_cost_usd": 0.0018}, "the next command goes on"),
    "of a run": ("run", 1, {"max_cost_usd": 0.001}, "max_cost_usd to be at least 0.0019 (limits="),
    "all of it": ("run", 0, {"max_cost_usd": 0.001}, "max_cost_usd to be at least 0.0018 (limits="),
}


@pytest.mark.parametrize(("whose", "before", "limits", "words"), TOO_LOW.values(), ids=TOO_LOW)
def test_a_limit_that_no_call_fits_says_what_one_needs_and_pays_for_no_probe(
    whose, before, limits, words
):
    price = priced(usd_per_million_input_tokens=10.0, usd_per_million_output_tokens=20.0)
    backend = ScriptedBackend(lambda _: '{"ok": true}')
    run = client_on(backend.chat, ManualClock(), limits=Limits(), prices={"m": price})
    client = replace(run, meter=run.meter.inside(Limits(**limits), whose=whose))
    client.meter._add(taken=Spent(calls=1, input_tokens=6, cost_usd=0.0001) if before else Spent())
    route = replace(client.routes["m"], schemas=SchemaKnowledge("m"))
    client = replace(client, routes={"m": route})
    with pytest.raises(RunLimitReached) as caught:
        asyncio.run(client.chat(request(chars=20, room=50, reply_schema={"type": "object"})))
    assert words in str(caught.value)
    assert backend.requests == []


def test_what_a_run_spent_is_what_was_spent_before_and_since():
    clock = ManualClock()
    clock.advance(ns=5)
    price = priced(usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=10.0)
    before = Spent(calls=2, input_tokens=100, output_tokens=10, cost_usd=0.5, time_ns=900)

    async def use():
        client = client_on(
            ScriptedBackend(["one two three"]).chat,
            clock,
            limits=Limits(max_seconds=10),
            before=before,
            prices={"m": price},
        )
        clock.advance(ns=70)
        await client.chat(request())
        await client.embed(EmbedRequest(model="m", texts=("a", "b")))
        return client

    client = asyncio.run(use())
    assert client.meter.spent == Spent(
        calls=4,
        input_tokens=100 + 1 + 7,
        output_tokens=10 + 3,
        cost_usd=0.5 + (1 * 2 + 3 * 10 + 7 * 2) / 1e6,
        time_ns=970,
    )
    assert client.meter.left("time").amount == pytest.approx(10 - 970e-9)


def test_replies_from_the_cache_take_nothing_and_make_room_for_others():
    async def use():
        async def answer(_):
            await asyncio.sleep(0)
            return reply(10, 20)

        cache = ReplyCache(TextStore(None))
        limits = Limits(max_calls=2, max_tokens=132)
        client = client_on(
            answer, ManualClock(), limits=limits, cache=cache, line={"identity": "m"}
        )
        await client.chat(request())
        await asyncio.gather(*(client.chat(request()) for _ in range(9)))
        await cache.aclose()
        return client

    assert asyncio.run(use()).meter.spent.calls == 1


def test_a_reply_in_the_cache_needs_no_room():
    async def use():
        cache = ReplyCache(TextStore(None))
        client = client_on(
            ScriptedBackend(["tea"]).chat,
            ManualClock(),
            limits=Limits(max_calls=1),
            cache=cache,
            line={"identity": "m"},
        )
        texts = [(await client.chat(request())).text for _ in range(2)]
        with pytest.raises(RunLimitReached):
            await client.chat(request(chars=31))
        await cache.aclose()
        return texts

    assert asyncio.run(use()) == ["tea", "tea"]


def test_a_reply_that_a_limit_cut_is_not_cached():
    async def use():
        async def answer(_):
            return replace(reply(10, 20), finish_reason="length")

        cache = ReplyCache(TextStore(None))
        client = client_on(
            answer,
            ManualClock(),
            limits=Limits(max_tokens=1_000),
            cache=cache,
            line={"identity": "m"},
        )
        replies = [await client.chat(request(room=None)) for _ in range(2)]
        await cache.aclose()
        return [(made.cut_by, made.from_cache) for made in replies]

    assert asyncio.run(use()) == [("tokens", False)] * 2


def test_a_reply_that_a_loops_limit_cut_is_no_answer_to_the_same_call_outside_it():
    async def use():
        async def answer(sent):
            is_cut = sent.max_output_tokens is not None
            return replace(reply(10, 20), finish_reason="length" if is_cut else "stop")

        cache = ReplyCache(TextStore(None))
        client = client_on(
            answer, ManualClock(), limits=Limits(), cache=cache, line={"identity": "m"}
        )
        with client.meter.loop(Limits(max_tokens=1_000)):
            inside = await client.chat(request(room=None))
        outside = await client.chat(request(room=None))
        await cache.aclose()
        return inside.finish_reason, outside.finish_reason

    assert asyncio.run(use()) == ("length", "stop")


def test_a_loop_may_take_what_is_left_beside_its_earlier_rounds():
    before = Spent(input_tokens=700, cost_usd=2.0, time_ns=8 * 10**9)
    limits = Limits(max_tokens=1_000, max_cost_usd=3, max_seconds=10)
    client = client_on(ScriptedBackend([]).chat, ManualClock(), limits=limits, before=before)
    with client.meter.loop(Limits(max_cost_usd=2.25)) as loop:
        loop.go_on_from(before)
        rests = {limit: loop.left(limit) for limit in ("tokens", "cost", "time", "calls")}
    assert rests.pop("calls") is None
    assert {limit: (rest.amount, rest.limit) for limit, rest in rests.items()} == {
        "tokens": (300, "the run's max_tokens = 1000"),
        "cost": (0.25, "max_cost_usd = 2.25"),
        "time": (2, "the run's max_seconds = 10"),
    }


def test_money_that_is_held_in_fractions_is_all_there_again_afterwards():
    """In floats 0.1 + 0.3 - 0.1 - 0.3 is not 0: a call that takes all the rest waited for ever."""
    price = priced(usd_per_million_input_tokens=0.0, usd_per_million_output_tokens=1e5)

    async def free(asked):
        await asyncio.sleep(0)
        return replace(reply(0, 0), text="", endpoint=asked.model)

    async def use():
        limits = Limits(max_cost_usd=0.4)
        client = client_on(free, ManualClock(), limits=limits, prices={"m": price})
        await asyncio.gather(*(client.chat(request(room=n, allow_empty=True)) for n in (1, 3)))
        await asyncio.wait_for(client.chat(request(room=4, allow_empty=True)), timeout=60)

    asyncio.run(use())


def test_a_call_is_being_sent_while_its_server_is_asked_and_not_while_it_waits():
    sending, seen = [], []

    @contextmanager
    def being_sent():
        sending.append(1)
        yield
        sending.pop()

    async def use():
        async def send(_):
            seen.append(len(sending))
            await asyncio.sleep(0)
            return reply(1, 1)

        client = client_on(send, ManualClock(), limits=Limits(max_tokens=150))
        calls = [client.chat(request(), caller=CallSource(sending=being_sent)) for _ in range(3)]
        calls.append(
            client.embed(
                EmbedRequest(model="m", texts=("a",)), caller=CallSource(sending=being_sent)
            )
        )
        await asyncio.gather(*calls)

    asyncio.run(use())
    assert (seen, sending) == ([1, 1, 1], [])


class Counted(ScriptedBackend):
    """A server that counts as it likes, and cuts streams; a probe is answered as the others are."""

    def __init__(self, calls):
        super().__init__([])
        self.calls = calls
        self.client = None
        self.under_way = 0
        self.sent = 0

    async def chat(self, request):
        limits, spent = self.client.meter.limits, self.client.meter.spent
        self.sent += 1
        assert spent.tokens < limits.max_tokens, "nothing is sent once the limit is reached"
        assert spent.calls + self.under_way < limits.max_calls
        self.under_way += 1
        tokens, turns, ends = self.calls[int(request.seed or 0)]
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
            if end := next(ends, None):
                if end == "cut":
                    raise StreamCut("cut", endpoint="m")
                raise ServerError("no", endpoint="m", status=400)
        finally:
            self.under_way -= 1
        return reply(tokens, request.max_output_tokens or 9_000)


call = st.tuples(
    st.integers(1, 400),  # what its prompt is, by the server's count
    st.integers(0, 4),  # turns of the event loop until it is answered
    st.lists(st.sampled_from(["cut", "refused"]), max_size=2).map(iter),  # attempts before
)


@given(
    calls=st.lists(call, max_size=16),
    limits=st.builds(Limits, max_tokens=st.integers(1, 30_000), max_calls=st.integers(1, 20)),
    places=st.integers(1, 16),
    gone=st.sets(st.integers(0, 15)),
    stated=st.tuples(st.sampled_from([None, {"type": "object"}]), st.sampled_from([None, 20])),
)
def test_a_limit_is_overrun_by_the_calls_that_are_under_way_when_it_is_reached_and_no_more(
    calls, limits, places, gone, stated
):
    schema, room = stated

    async def all_of_them():
        server = Counted(calls)
        server.client = client = client_on(
            server.chat,
            ManualClock(),
            limits=limits,
            gate={"max_parallel": places},
            line={"schemas": SchemaKnowledge()},
            retry=AT_ONCE,
        )
        tasks = [
            asyncio.create_task(
                client.chat(replace(request(room=room), seed=number, reply_schema=schema))
            )
            for number in range(len(calls))
        ]
        for _ in range(7):
            await asyncio.sleep(0)
        for number in gone & set(range(len(calls))):
            tasks[number].cancel()
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
        return ends, client.meter.spent, server.sent

    ends, spent, sent = asyncio.run(all_of_them())
    expected = (Completion, RunLimitReached, ServerError, StreamCut, asyncio.CancelledError)
    assert [end for end in ends if not isinstance(end, expected)] == []
    assert spent.calls == sent <= limits.max_calls


@given(
    calls=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30), st.floats(0, 1)), max_size=16),
    limit=st.integers(1, 600),
)
def test_no_call_is_refused_that_would_fit_if_nothing_were_under_way(calls, limit):
    async def one(client, chars, room):
        asked = request(chars=chars, room=room)
        try:
            await client.chat(asked)
        except RunLimitReached:
            assert client.meter.spent.tokens + most_tokens_of(asked) > limit

    async def all_of_them():
        shares = iter(calls)

        async def send(asked):
            *_, share = next(shares)
            await asyncio.sleep(0)
            assert client.meter.spent.tokens + most_tokens_of(asked) <= limit
            return reply(int(most_prompt_tokens(asked) * share), asked.max_output_tokens)

        client = client_on(send, ManualClock(), limits=Limits(max_tokens=limit))
        await asyncio.wait_for(
            asyncio.gather(*(one(client, chars, room) for chars, room, _ in calls)), timeout=60
        )
        assert client.meter.spent.tokens <= limit

    asyncio.run(all_of_them())


@pytest.mark.parametrize(
    ("limits", "rooms"),
    [
        pytest.param({"max_tokens": 4_000}, [918] * 4, id="tokens"),
        pytest.param({"max_cost_usd": 4.0}, [918] * 4, id="money"),
        # 256 and a prompt of 82: two at a time, and what the first two leave.
        pytest.param({"max_tokens": 700}, [256, 256, 268, 268], id="too little for all at once"),
        # The third would have 42 beside them: it waits, since they may need less, and so they do.
        pytest.param({"max_tokens": 800}, [256, 256, 318, 318], id="too little beside others"),
        pytest.param({"max_tokens": 400_000}, [None] * 4, id="ample"),
        pytest.param({"max_calls": 4}, [None] * 4, id="no such limit"),
    ],
)
def test_calls_that_state_no_room_share_what_is_left(limits, rooms):
    sent, unanswered = [], []

    async def turns(number):
        for _ in range(number):
            await asyncio.sleep(0)

    async def send(asked):
        sent.append(asked.max_output_tokens)
        unanswered.append(asyncio.get_running_loop().create_future())
        return await unanswered[-1]

    async def answer_when_no_more_is_sent():
        while len(sent) < 4 or unanswered:
            await turns(100)
            while unanswered:
                unanswered.pop().set_result(replace(reply(0, 0), text=""))

    async def use():
        price = priced(usd_per_million_input_tokens=1e3, usd_per_million_output_tokens=1e3)
        client = client_on(send, ManualClock(), limits=Limits(**limits), prices={"m": price})

        async def soon(number):
            await turns(number)
            await client.chat(request(room=None, allow_empty=True))

        # Not all at the very same time.
        await asyncio.gather(answer_when_no_more_is_sent(), *map(soon, range(4)))

    asyncio.run(use())
    assert sent == rooms


def test_room_that_was_given_by_a_limit_is_no_more_than_a_context_has():
    rooms = []

    async def send(asked):
        await asyncio.sleep(0)
        rooms.append(asked.max_output_tokens)
        prompt = len(asked.messages[0].content)
        if prompt + asked.max_output_tokens > 1_000:
            raise ContextOverflow("long", endpoint="m", context_tokens=1_000)
        return replace(reply(30, 5), finish_reason="length")

    async def use(asked):
        client = client_on(send, ManualClock(), limits=Limits(max_tokens=6_000))
        for _ in range(2):
            assert (await client.chat(asked)).cut_by is None, "it was the context"

    asyncio.run(use(request(room=None)))
    assert rooms == [5_918, 918, 918]
    with pytest.raises(ContextOverflow):  # what was stated is not changed
        asyncio.run(use(request(room=2_000)))
    with pytest.raises(ContextOverflow):  # the prompt alone is too long
        asyncio.run(use(request(room=None, chars=6_000)))


def test_a_call_whose_probe_took_of_its_room_is_sent_with_what_is_left():
    rooms = []

    async def send(asked):
        await asyncio.sleep(0)
        rooms.append(asked.max_output_tokens)
        return reply(40, 60)

    async def use():
        client = client_on(
            send,
            ManualClock(),
            limits=Limits(max_tokens=2_000),
            line={"schemas": SchemaKnowledge()},
        )
        await client.chat(request(room=None, reply_schema={"type": "object"}))

    asyncio.run(use())
    probe, room = rooms
    assert (probe, room < 1_900 - 82) == (256, True)


def test_a_loop_counts_probes_and_retries_as_its_run_does():
    sent = []

    async def send(asked):
        sent.append(asked)
        if len(sent) == 2:
            raise StreamCut("cut", endpoint="m")
        return reply(40, 60)

    async def use():
        clock = ManualClock()
        line = {"schemas": SchemaKnowledge()}
        client = client_on(send, clock, limits=Limits(), line=line, retry=AT_ONCE)
        with client.meter.loop(Limits()) as loop:
            await client.chat(request(reply_schema={"type": "object"}))
        return loop.spent, client.meter.spent

    of_loop, of_run = asyncio.run(use())
    assert (len(sent), of_run.calls) == (3, 3)
    assert of_loop == of_run


def test_what_came_of_a_reply_before_it_broke_off_counts():
    told = []

    async def use():
        async def send(asked):
            for _ in range(5):
                asked.on_piece()
            raise StreamCut("cut", endpoint="m")

        client = client_on(send, ManualClock(), limits=Limits(max_tokens=1_000))
        with pytest.raises(StreamCut):
            await client.chat(request(on_piece=lambda: told.append(1)))
        return client.meter.spent

    spent = asyncio.run(use())
    assert (spent.input_tokens, spent.output_tokens, len(told)) == (82, 5, 5)


def test_what_a_server_counts_is_what_is_expected_of_its_next_prompts():
    async def use():
        async def send(_):
            await asyncio.sleep(0)
            return reply(820, 20)  # ten times the estimate

        client = client_on(send, ManualClock(), limits=Limits(max_tokens=1_679))
        await client.chat(request())
        with pytest.raises(RunLimitReached):
            await client.chat(request())
        return client.meter.spent.tokens

    assert asyncio.run(use()) == 840


def test_calls_that_wait_for_the_probe_of_one_that_waits_for_room_come_to_their_end():
    """One call has used the room that it was let in with; the other holds its own, and waits."""

    async def use():
        breaks = [StreamCut("cut", endpoint="m")]

        async def answers(asked):
            await asyncio.sleep(0)
            if asked.seed and breaks:  # an attempt that uses the room it was let in with
                raise breaks.pop()
            return reply(1, 1)

        client = client_on(
            answers,
            ManualClock(),
            limits=Limits(max_calls=2),
            line={"schemas": SchemaKnowledge()},
            retry=AT_ONCE,
        )
        asked = replace(request(), reply_schema={"type": "object"})
        calls = [client.chat(replace(asked, seed=1)), client.chat(asked)]
        ends = asyncio.gather(*calls, return_exceptions=True)
        return await asyncio.wait_for(ends, timeout=60), client.meter.spent.calls

    ends, made = asyncio.run(use())
    assert {type(end) for end in ends} <= {Completion, RunLimitReached}
    assert made == 2


@pytest.mark.parametrize(
    ("limits", "room"),
    # The prompt takes 82 tokens at most.
    [
        pytest.param({}, None, id="none"),
        pytest.param({"max_tokens": 300}, 218, id="tokens"),
        pytest.param({"max_cost_usd": 1.0}, 90, id="cost"),
        pytest.param({"max_tokens": 150, "max_cost_usd": 1.0}, 68, id="both"),
    ],
)
def test_a_call_that_states_no_room_has_what_the_limits_leave(limits, room):
    sent = []

    async def send(asked):
        sent.append(asked.max_output_tokens)
        return reply(10, 1)

    price = priced(usd_per_million_input_tokens=10_000, usd_per_million_output_tokens=2_000)
    client = client_on(send, ManualClock(), limits=Limits(**limits), prices={"m": price})
    asyncio.run(client.chat(request(room=None)))

    assert sent == [room]
