"""Limits of a whole run: what reaches them, what then becomes of it, and what is counted.

Most nodes here take a limit for a result, so that it can be looked at.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_judge import verdict
from session_runs import BAD, GOOD, ONE_QUESTION, Calls, Charging, codes, fail, pipeline_of, run
from session_runs import settings_of as plain_settings_of

from harness import Journal, Message, Pipeline, Run, RunTrace, ScriptedBackend, load_run
from harness.errors import ContextOverflow, RunLimitReached, ServerError, StreamCut
from harness.inference import (
    ChatRequest,
    Completion,
    Embeddings,
    EmbedRequest,
    Endpoint,
    Limited,
    Retrying,
    RetryPolicy,
    SchemaKeeping,
    Timed,
    Usage,
    most_prompt_tokens,
    most_tokens_of,
)
from harness.session.run_spent import run_spent
from harness.session.session import open_session
from harness.session.spending import Spending
from harness.trace import ManualClock, Tracer
from harness.wiggum import NOTHING, Limits, LoopLimits, Spent, TokenPrice

PROMPT = "x" * 30
"""82 tokens at most with what a template may add, and one by the scripted backend's count."""


class Embedding(ScriptedBackend):
    """Makes a vector of each text."""

    async def embed(self, request):
        vectors = np.zeros((len(request.texts), 3), np.float32)
        return Embeddings(vectors=vectors, input_tokens=7, model_id="e")


def settings_of(tmp_path, **limits):
    return plain_settings_of(tmp_path, roles={"producer": "writer"}, limits=limits)


def two_words():
    return Charging(lambda _: "two words")


def asking(calls):
    """One call after another; gives the replies, and the error at the end, if there is one."""

    async def said(run: Run) -> list[str]:
        replies = []
        for number in range(calls):
            try:
                replies.append(
                    await run.chat("producer", PROMPT, max_output_tokens=20, seed=number)
                )
            except RunLimitReached as error:
                return [*replies, f"{error.limit}: {error}"]
        return replies

    return pipeline_of(said)


# Each call takes 1 + 2 tokens, and 102 at most.
BEYOND = {
    "tokens": ({"max_tokens": 108}, 3, ["102 tokens", "99 left", "at least 111"]),
    "cost": ({"max_cost_usd": 0.5}, 2, ["of max_cost_usd = 0.5 there are 0 left"]),
}


@pytest.mark.parametrize(("limits", "replies", "facts"), BEYOND.values(), ids=BEYOND)
def test_a_call_beyond_a_limit_is_not_sent_and_it_is_said_what_would_do(
    tmp_path, request, limits, replies, facts
):
    writer = two_words()
    *given, last = run(
        asking(9), settings_of(tmp_path, **limits), backends={"writer": writer}
    ).result
    assert given == ["two words"] * replies == ["two words"] * len(writer.requests)
    assert last.startswith(f"{request.node.callspec.id}: ")
    assert [fact for fact in facts if fact not in last] == []


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

    price = TokenPrice(usd_per_million_input_tokens=10_000, usd_per_million_output_tokens=2_000)
    spending = spending_of(send, ManualClock(), limits=Limits(**limits), prices={"m": price})
    asyncio.run(spending.chat(request(room=None)))

    assert sent == [room]


class Rambling(ScriptedBackend):
    """Fills whatever room it has."""

    def __init__(self):
        super().__init__(lambda asked: "so " * asked.max_output_tokens)

    async def chat(self, request):
        return replace(await super().chat(request), finish_reason="length")


@pytest.mark.parametrize("on_cut", ["error", "keep"])
def test_a_reply_that_a_limit_cut_is_told_as_that_limit_and_asked_anew(tmp_path, on_cut):
    async def said(run: Run) -> str:
        return await run.chat("producer", PROMPT, on_cut=on_cut)

    writer, settings = Rambling(), settings_of(tmp_path, max_tokens=300)
    pipeline = pipeline_of(said)
    result = run(pipeline, settings, backends={"writer": writer})
    room = writer.requests[0].max_output_tokens
    if on_cut == "keep":
        assert (result.status, len(result.result.split())) == ("finished", room)
        return
    assert (result.status, "limit of tokens" in result.stopped_by) == ("stopped", True)

    more = settings_of(tmp_path, max_tokens=2_000)
    done = ScriptedBackend(["two words"])
    assert run(pipeline, more, backends={"writer": done}, resume="latest").result == "two words"


def test_no_call_outlives_the_runs_time(tmp_path):
    writer = ScriptedBackend(lambda _: "too late", delay_s=600)
    settings = settings_of(tmp_path, max_seconds=0.3)
    (said,) = run(asking(2), settings, backends={"writer": writer}).result
    assert said.startswith("time: ")
    assert "max_seconds = 0.3" in said


def mapping(calls, **how):
    """So many calls by as many nodes; and a node that needs them all."""
    pipeline = Pipeline("mapped", **how)

    @pipeline.node
    async def topics() -> list[str]:
        return [PROMPT] * calls

    @pipeline.node(each={"topic": "topics"})
    async def found(run: Run, topic: str) -> str:
        return await run.chat("producer", topic, max_output_tokens=20)

    @pipeline.node
    async def told(found: list[str]) -> int:
        return len(found)

    return pipeline


STOPPED = {
    "tokens, all at once": ({"max_tokens": 132}, None, 11),  # 33 are taken, and 102 do not fit
    "cost": ({"max_cost_usd": 1.0}, 1, 4),
    "calls": ({"max_calls": 5}, 1, 5),
}


@pytest.mark.parametrize(("limits", "at_once", "given"), STOPPED.values(), ids=STOPPED)
def test_a_run_that_reaches_a_limit_is_stopped_with_what_it_has(tmp_path, limits, at_once, given):
    writer = two_words()
    settings = settings_of(tmp_path, **limits)
    result = run(mapping(16, parallel_calls=at_once), settings, backends={"writer": writer})
    assert result.status == "stopped"
    assert next(iter(limits)) in result.stopped_by
    assert len(writer.requests) == result.spent.calls == given
    assert "told" not in result.outputs


def test_a_run_that_is_stopped_and_resumed_again_and_again_pays_for_nothing_twice(tmp_path):
    writer, pipeline = two_words(), mapping(8, parallel_calls=1)
    for most in (3, 6, 9):
        limits = Limits(max_calls=most)  # which go before those of the settings
        result = run(
            pipeline,
            settings_of(tmp_path, max_calls=1),
            resume="latest" if most > 3 else None,
            limits=limits,
            backends={"writer": writer},
        )
        made = min(most, 8)
        assert len(writer.requests) == made
        for spent in (result.spent, run_spent(Journal(result.files.journal))):
            assert (spent.calls, spent.tokens, spent.cost_usd) == (made, 3 * made, made / 4)
    assert (result.status, result.result) == ("finished", 8)


def test_calls_wait_for_what_those_under_way_do_not_need(tmp_path):
    async def found(run: Run) -> list[str]:
        calls = [run.chat("producer", PROMPT, max_output_tokens=20) for _ in range(8)]
        return await asyncio.gather(*calls)

    settings = settings_of(tmp_path, max_tokens=204)
    result = run(pipeline_of(found), settings, backends={"writer": two_words()})
    assert result.result == ["two words"] * 8
    waits = [s for s in load_run(result.files.journal).spans if s.name == "wait for room"]
    assert len(waits) == 6, "two fit at once"


@pytest.mark.parametrize(
    ("limits", "backend", "warned"),
    [
        pytest.param({"max_cost_usd": 1}, ScriptedBackend, ["limits.cost-unbounded"], id="once"),
        pytest.param({"max_cost_usd": 1}, Charging, [], id="a price that is known"),
        pytest.param({"max_calls": 9}, ScriptedBackend, [], id="another limit"),
    ],
)
def test_a_limit_to_the_cost_that_bounds_nothing_is_warned_of(tmp_path, limits, backend, warned):
    backends = {"writer": backend(lambda _: "x")}
    result = run(asking(3), settings_of(tmp_path, **limits), backends=backends)
    assert codes(result.warnings) == warned


# --- loops -----------------------------------------------------------------------------------


def looping(tmp_path, *, max_rounds=9, **own):
    """A loop over a draft that never passes."""
    path = tmp_path / "one.yaml"
    path.write_text(ONE_QUESTION)

    async def text(run: Run) -> str:
        try:
            ended = await run.wiggum("t", rubric=path, draft=BAD, max_rounds=max_rounds, **own)
        except RunLimitReached as error:
            return f"{error.limit}: {error}"
        return ended.text

    return pipeline_of(text)


def rising(*, drafts_before=0):
    """A writer whose every draft is better, by the judge's word."""
    scores = iter([1 + n / 2 for n in range(drafts_before, 12)])
    texts = iter(f"{GOOD} This is draft {n}." for n in range(drafts_before, 9))
    return {
        "writer": Charging(lambda _: next(texts)),
        "strict": Charging(lambda asked: verdict(asked, next(scores))),
    }


def judged(tmp_path, **limits):
    roles = {"producer": "writer", "evaluator": "strict"}
    return settings_of(tmp_path, **limits).model_copy(update={"roles": roles})


ENDS = {
    "calls": ({"max_calls": 4}, {}, "max_calls = 4"),
    "tokens": ({"max_tokens": 6_000}, {}, "of max_tokens = 6000 (all that the run has left)"),
    "cost": ({"max_cost_usd": 1.1}, {}, "max_cost_usd = 1.1 (all that the run has left) there are"),
    "its own, tighter": (
        {"max_tokens": 100_000, "max_cost_usd": 50},
        {"max_cost_usd": 1.1},
        "of max_cost_usd = 1.1 there are 0.35 left",
    ),
}


@pytest.mark.parametrize(("limits", "own", "detail"), ENDS.values(), ids=ENDS)
def test_a_loop_at_a_limit_ends_with_its_best_draft(tmp_path, limits, own, detail):
    backends = rising()
    result = run(looping(tmp_path, **own), judged(tmp_path, **limits), backends=backends)
    (loop,) = result.loops
    assert loop.stop_reason == "budget"
    assert detail in loop.stop_detail
    assert 1 < len(loop.rounds) < 9
    assert result.result == loop.text == loop.rounds[-1].draft
    if "max_calls" not in limits:
        # It saw the end coming: no draft was written that nobody judged.
        assert len(backends["writer"].requests) == len(backends["strict"].requests) - 1


def test_a_loop_that_goes_on_in_a_later_part_has_what_the_run_has_left(tmp_path):
    parts, path = Calls(), tmp_path / "one.yaml"
    path.write_text(ONE_QUESTION)

    async def text(run: Run) -> None:
        first = parts.note("a part") == 1
        await run.wiggum("t", rubric=path, draft=BAD, max_rounds=2 if first else 9)
        if first:
            raise ValueError("behind the loop")

    # A judgement, a revision and its judgement: 0.75 dollars.
    settings = judged(tmp_path, max_cost_usd=1.3)
    fail(pipeline_of(text), settings, backends=rising())
    backends = rising(drafts_before=2)
    (loop,) = run(pipeline_of(text), settings, resume="latest", backends=backends).loops
    assert (loop.stop_reason, len(loop.rounds)) == ("budget", 3), "0.55 are left: one more"
    assert [len(one.requests) for one in backends.values()] == [1, 1]


# --- by itself -------------------------------------------------------------------------------


def request(model="m", *, chars=30, room=20, **more):
    message = Message("user", "x" * chars)
    return ChatRequest(model=model, messages=(message,), max_output_tokens=room, **more)


def spending_of(chat, clock, *, limits, before=NOTHING, prices=None):
    """On a model that is asked by this function."""
    backend = Embedding([])
    backend.chat = chat
    sent = Timed(backend, endpoint=Endpoint(tag="m", backend="scripted"))
    return Spending(
        sent.chat,
        sent.embed,
        limits=limits,
        prices=prices or {},
        before=before,
        clock=clock,
        began_ns=clock(),
        tracer=Tracer(),
    )


def reply(input_tokens, output_tokens):
    usage = Usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=None)
    return Completion(
        text="x",
        reasoning="",
        finish_reason="stop",
        usage=usage,
        sent_ns=0,
        first_token_ns=None,
        phases=(),
        model_id="m",
    )


PART = {
    "tokens": (Limits(max_tokens=60), Spent(input_tokens=31), "29 left"),
    "calls": (Limits(max_calls=8), Spent(calls=8), "max_calls = 8"),
    "cost": (Limits(max_cost_usd=2), Spent(cost_usd=2.0), "0 left"),
    "time": (Limits(max_seconds=60), Spent(time_ns=60 * 10**9), "max_seconds = 60"),
}


@pytest.mark.parametrize(("limits", "before", "fact"), PART.values(), ids=PART)
def test_what_earlier_parts_of_a_run_spent_counts(request, limits, before, fact):
    backend = ScriptedBackend(["two words"])
    spending = spending_of(backend.chat, ManualClock(), limits=limits, before=before)
    with pytest.raises(RunLimitReached) as caught:
        asyncio.run(spending.chat(globals()["request"]()))
    assert caught.value.limit == request.node.callspec.id
    assert fact in str(caught.value)
    assert backend.requests == []


def test_what_a_run_spent_is_what_was_spent_before_and_since():
    clock = ManualClock()
    clock.advance(ns=5)
    price = TokenPrice(usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=10.0)
    before = Spent(calls=2, input_tokens=100, output_tokens=10, cost_usd=0.5, time_ns=900)

    async def use():
        spending = spending_of(
            ScriptedBackend(["one two three"]).chat,
            clock,
            limits=Limits(max_seconds=10),
            before=before,
            prices={"m": price},
        )
        clock.advance(ns=70)
        await spending.chat(request())
        await spending.embed(EmbedRequest(model="m", texts=("a", "b")))
        return spending

    spending = asyncio.run(use())
    assert spending.spent == Spent(
        calls=4,
        input_tokens=100 + 1 + 7,
        output_tokens=10 + 3,
        cost_usd=0.5 + (1 * 2 + 3 * 10 + 7 * 2) / 1e6,
        time_ns=970,
    )
    assert spending.deadline_ns == 5 + 10 * 10**9 - 900


def test_replies_from_the_cache_take_nothing_and_make_room_for_others():
    async def known(_):
        await asyncio.sleep(0)
        return replace(reply(10, 20), from_cache=True, cost_usd=0.0)

    async def use():
        limits = Limits(max_calls=2, max_tokens=102)
        spending = spending_of(None, ManualClock(), limits=limits)
        spending._chat = known  # which sends nothing
        await asyncio.gather(*(spending.chat(request()) for _ in range(9)))
        return spending

    assert asyncio.run(use()).spent == Spent()


def test_a_loop_may_take_what_is_left_beside_its_earlier_rounds():
    before = Spent(input_tokens=700, cost_usd=2.0, time_ns=8 * 10**9)
    limits = Limits(max_tokens=1_000, max_cost_usd=3, max_seconds=10)
    spending = spending_of(ScriptedBackend([]).chat, ManualClock(), limits=limits, before=before)
    loop = spending.tightened(LoopLimits(max_cost_usd=2.25), before=before)
    of_run = frozenset({"tokens", "time"})
    assert loop == LoopLimits(max_tokens=1_000, max_cost_usd=2.25, max_seconds=10, of_run=of_run)
    anew = spending.tightened(LoopLimits())
    assert (anew.max_tokens, anew.max_cost_usd, anew.max_seconds) == (300, 1, 2)


def test_money_that_is_held_in_fractions_is_all_there_again_afterwards():
    """In floats 0.1 + 0.3 - 0.1 - 0.3 is not 0: a call that takes all the rest waited for ever."""
    price = TokenPrice(usd_per_million_input_tokens=0.0, usd_per_million_output_tokens=1e5)

    async def free(asked):
        await asyncio.sleep(0)
        return replace(reply(0, 0), endpoint=asked.model)

    async def use():
        limits = Limits(max_cost_usd=0.4)
        spending = spending_of(free, ManualClock(), limits=limits, prices={"m": price})
        await asyncio.gather(spending.chat(request(room=1)), spending.chat(request(room=3)))
        await asyncio.wait_for(spending.chat(request(room=4)), timeout=60)

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

        spending = spending_of(send, ManualClock(), limits=Limits(max_tokens=150))
        calls = [spending.chat(request(), sending=being_sent) for _ in range(3)]
        calls.append(spending.embed(EmbedRequest(model="m", texts=("a",)), sending=being_sent))
        await asyncio.gather(*calls)

    asyncio.run(use())
    assert (seen, sending) == ([1, 1, 1], [])


class Counted(ScriptedBackend):
    """A server that counts as it likes, and cuts streams; a probe is answered as the others are."""

    def __init__(self, calls):
        super().__init__([])
        self.calls = calls
        self.spending = None
        self.under_way = 0
        self.sent = 0

    async def chat(self, request):
        limits, spent = self.spending.limits, self.spending.spent
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
        backend = Limited(
            Timed(server, endpoint=Endpoint(tag="m", backend="scripted")),
            max_concurrency=places,
            tracer=Tracer(),
        )
        backend = Retrying(
            SchemaKeeping(backend, tracer=Tracer()),
            policy=RetryPolicy(base_s=0),
            randomness=random.Random(0),
            tracer=Tracer(),
        )
        server.spending = spending = Spending(
            backend.chat,
            backend.embed,
            limits=limits,
            prices={},
            before=NOTHING,
            clock=ManualClock(),
            began_ns=0,
            tracer=Tracer(),
        )
        tasks = [
            asyncio.create_task(
                spending.chat(replace(request(room=room), seed=number, reply_schema=schema))
            )
            for number in range(len(calls))
        ]
        for _ in range(7):
            await asyncio.sleep(0)
        for number in gone & set(range(len(calls))):
            tasks[number].cancel()
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)
        return ends, spending.spent, server.sent

    ends, spent, sent = asyncio.run(all_of_them())
    expected = (Completion, RunLimitReached, ServerError, StreamCut, asyncio.CancelledError)
    assert [end for end in ends if not isinstance(end, expected)] == []
    assert spent.calls == sent <= limits.max_calls


@given(
    calls=st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30), st.floats(0, 1)), max_size=16),
    limit=st.integers(1, 600),
)
def test_no_call_is_refused_that_would_fit_if_nothing_were_under_way(calls, limit):
    async def one(spending, chars, room):
        asked = request(chars=chars, room=room)
        try:
            await spending.chat(asked)
        except RunLimitReached:
            assert spending.spent.tokens + most_tokens_of(asked) > limit

    async def all_of_them():
        shares = iter(calls)

        async def send(asked):
            *_, share = next(shares)
            await asyncio.sleep(0)
            assert spending.spent.tokens + most_tokens_of(asked) <= limit
            return reply(int(most_prompt_tokens(asked) * share), asked.max_output_tokens)

        spending = spending_of(send, ManualClock(), limits=Limits(max_tokens=limit))
        await asyncio.wait_for(
            asyncio.gather(*(one(spending, chars, room) for chars, room, _ in calls)), timeout=60
        )
        assert spending.spent.tokens <= limit

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
    sent = []

    async def send(asked):
        sent.append(asked.max_output_tokens)
        await asyncio.sleep(0.01)
        return reply(0, 0)

    async def use():
        price = TokenPrice(usd_per_million_input_tokens=1e3, usd_per_million_output_tokens=1e3)
        spending = spending_of(send, ManualClock(), limits=Limits(**limits), prices={"m": price})

        async def soon(turns):
            for _ in range(turns):
                await asyncio.sleep(0)
            await spending.chat(request(room=None))

        # Not all at the very same time.
        await asyncio.gather(*map(soon, range(4)))

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
        spending = spending_of(send, ManualClock(), limits=Limits(max_tokens=6_000))
        for _ in range(2):
            assert (await spending.chat(asked)).cut_by is None, "it was the context"

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
        timed = Timed(ScriptedBackend([]), endpoint=Endpoint(tag="m", backend="scripted"))
        timed._backend.chat = send
        keeping = SchemaKeeping(timed, tracer=Tracer())
        spending = spending_of(None, ManualClock(), limits=Limits(max_tokens=2_000))
        spending._chat = keeping.chat
        await spending.chat(request(room=None, reply_schema={"type": "object"}))

    asyncio.run(use())
    probe, room = rooms
    assert (probe, room < 1_900 - 82) == (256, True)


def test_what_came_of_a_reply_before_it_broke_off_counts():
    told = []

    async def use():
        async def send(asked):
            for _ in range(5):
                asked.on_piece()
            raise StreamCut("cut", endpoint="m")

        spending = spending_of(send, ManualClock(), limits=Limits(max_tokens=1_000))
        with pytest.raises(StreamCut):
            await spending.chat(request(on_piece=lambda: told.append(1)))
        return spending.spent

    spent = asyncio.run(use())
    assert (spent.input_tokens, spent.output_tokens, len(told)) == (82, 5, 5)


def test_what_a_server_counts_is_what_is_expected_of_its_next_prompts():
    async def use():
        async def send(_):
            await asyncio.sleep(0)
            return reply(820, 20)  # ten times the estimate

        spending = spending_of(send, ManualClock(), limits=Limits(max_tokens=1_679))
        await spending.chat(request())
        with pytest.raises(RunLimitReached):
            await spending.chat(request())
        return spending.spent.tokens

    assert asyncio.run(use()) == 840


def test_calls_that_wait_for_the_probe_of_one_that_waits_for_room_come_to_their_end():
    """One call has used the room that it was let in with; the other holds its own, and waits."""

    async def use():
        async def answers(asked):
            await asyncio.sleep(0)
            return reply(1, 1)

        server = ScriptedBackend([])
        server.chat = answers
        timed = Timed(server, endpoint=Endpoint(tag="m", backend="scripted"))
        shared = SchemaKeeping(timed, tracer=Tracer())

        async def chat(asked):
            if asked.seed:  # an attempt elsewhere, before
                await timed.chat(replace(asked, reply_schema=None))
            return await shared.chat(asked)

        spending = spending_of(None, ManualClock(), limits=Limits(max_calls=2))
        spending._chat = chat
        asked = replace(request(), reply_schema={"type": "object"})
        calls = [spending.chat(replace(asked, seed=1)), spending.chat(asked)]
        ends = asyncio.gather(*calls, return_exceptions=True)
        return await asyncio.wait_for(ends, timeout=60), spending.spent.calls

    ends, made = asyncio.run(use())
    assert {type(end) for end in ends} <= {Completion, RunLimitReached}
    assert made == 2


# --- added up from the journal ----------------------------------------------------------------


def metered(tmp_path, replies, requests, **trace):
    """The session's meter after these calls, some of which fail; and its journal."""

    async def main():
        settings = plain_settings_of(tmp_path, roles={"producer": "writer"}, trace=trace)
        async with open_session(
            settings, name="asked", environment={}, backends={"writer": Charging(replies)}
        ) as session:
            for one in requests:
                try:
                    await session.spending.chat(one)
                except ServerError:
                    continue
            return session.spending.spent, session.trace.journal_path

    return asyncio.run(main())


def test_the_journal_has_what_the_meter_counted(tmp_path):
    said = ["one two three", ServerError("broken", endpoint="writer", status=400), "one two three"]
    requests = [ChatRequest(model="writer", messages=(Message("user", f"{n}?"),)) for n in "abc"]
    spent, path = metered(tmp_path, said, requests)
    found = run_spent(Journal(path))
    assert (spent.calls, spent.output_tokens, spent.cost_usd) == (3, 6, 0.5)
    for name in ("calls", "output_tokens", "cost_usd", "estimated_calls", "unpriced_calls"):
        assert getattr(found, name) == getattr(spent, name), name
    # The journal has a prompt with the role of each message, of two tokens or so.
    assert spent.input_tokens == 2 + most_prompt_tokens(requests[1])
    assert 0 <= found.input_tokens - spent.input_tokens <= 3
    assert (found.total_usd, found.lost_calls) == (0.5, 0)


def test_a_call_whose_end_nobody_saw_is_lost_and_said_to_be(tmp_path):
    seen = []

    def look(_):
        # The run as it would be found if it were killed here.
        (path,) = (tmp_path / "traces").glob("*.jsonl")
        seen.append(run_spent(Journal(path)))
        return "one two three"

    metered(tmp_path, look, [request("writer", chars=300)] * 2, durability="sync")
    first, second = seen
    assert (first.calls, first.lost_calls, first.estimated_calls) == (1, 1, 1)
    assert 172 <= first.input_tokens <= 175
    assert (second.calls, second.lost_calls, second.output_tokens) == (2, 1, 3)


PRICES = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 10.0}
HOURLY = {"usd_per_hour": 3.0}
CHAT = {"input_tokens": 1_000, "output_tokens": 100}
PAID = Spent(calls=1, input_tokens=1_000, output_tokens=100, cost_usd=0.003)
UNCOUNTED = Spent(calls=1, estimated_calls=1, unpriced_calls=1)
UNPRICED = replace(PAID, cost_usd=None, unpriced_calls=1)
RECORDED = {
    "a chat": ("chat", CHAT, PRICES, PAID, 0.003),
    "a reply from the cache": ("chat", {"from_cache": True}, PRICES, Spent(), None),
    "a probe": ("schema probe", CHAT, PRICES, PAID, 0.003),
    "tokens that nobody counted": ("chat", {}, PRICES, UNCOUNTED, None),
    "no price": ("chat", CHAT, {}, UNPRICED, None),
    "by the hour": ("chat", CHAT, HOURLY, UNPRICED, 1.5),
    "by both": ("chat", CHAT, {**PRICES, **HOURLY}, PAID, 1.503),
}  # fmt: skip


@pytest.mark.parametrize("case", RECORDED)
def test_what_models_and_machines_are_paid_for_is_counted(tmp_path, case):
    name, said, prices, expected, total_usd = RECORDED[case]
    clock = ManualClock()
    with RunTrace(tmp_path, name="run", clock=clock) as trace:
        trace.instant("endpoint", model="m", **prices)
        with trace.span(name, model="m", **said):
            clock.advance(ns=1_800 * 10**9)
    found = run_spent(Journal(trace.journal_path))
    assert found.seconds == 1_800
    assert found.cost_usd == pytest.approx(expected.cost_usd)
    assert found.total_usd == pytest.approx(total_usd)
    assert found.cached_calls == int("from_cache" in said)
    for counted in ("calls", "tokens", "estimated_calls", "unpriced_calls"):
        assert getattr(found, counted) == getattr(expected, counted), counted
