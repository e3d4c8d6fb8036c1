"""Limits of a whole run: what reaches them, what then becomes of calls and loops, what is counted.

Most nodes here take a limit for a result, so that it can be looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_judge import verdict

from harness import Journal, Pipeline, Run, RunResult, ScriptedBackend, Settings, load_run
from harness.errors import EndpointUnreachable, RunLimitReached
from harness.inference import (
    Backend,
    ChatRequest,
    Completion,
    Embeddings,
    EmbedRequest,
    Message,
    Usage,
    most_tokens_of,
)
from harness.session.evaluation import choose_rubric
from harness.session.loop import run_loop
from harness.session.run_spent import run_spent
from harness.session.session import Session, open_session
from harness.session.settings import LimitSettings
from harness.session.spending import Spending
from harness.trace import ManualClock, Tracer
from harness.wiggum import NOTHING, Limits, LoopLimits, Spent, TokenPrice, WiggumResult, rounds_from

PROMPT = "x" * 30
"""Ten tokens at most, and one by the scripted backend's count."""

GOOD = (
    "A cold start takes 8 to 15 s from disk. Keeping the model loaded between calls removes it, "
    "so the next call begins at once and needs less than 0.2 s."
)

ONE_QUESTION = """\
title: One question
pass_at: 8
repeats: 1
dimensions:
  - name: length
    checks: [{ check: words, min: 1, max: 5000 }]
  - name: relevance
    weight: 3
    judge: Is the task answered?
"""


class Charging(ScriptedBackend):
    """Says what its replies cost: a quarter of a dollar each."""

    async def chat(self, request: ChatRequest) -> Completion:
        return replace(await super().chat(request), cost_usd=0.25)


class Embedding(ScriptedBackend):
    """Makes a vector of each text."""

    async def embed(self, request: EmbedRequest) -> Embeddings:
        return Embeddings(
            vectors=np.zeros((len(request.texts), 3), np.float32), input_tokens=7, model_id="e"
        )


def settings_of(tmp_path: Path, **limits: float) -> Settings:
    return Settings(
        traces=tmp_path / "traces",
        roles={"producer": "writer"},
        limits=LimitSettings.model_validate(limits),
    )


def run(pipeline: Pipeline, settings: Settings, **backends: Backend) -> RunResult:
    return asyncio.run(pipeline.run_async({}, settings=settings, backends=backends))


def asking(calls: int) -> Pipeline:
    """One call after another; gives the replies, and the limit at the end, if there is one."""
    pipeline = Pipeline("asking")

    @pipeline.node
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

    return pipeline


@pytest.mark.parametrize(
    ("limits", "replies", "said"),
    [
        pytest.param(
            # Each call takes 1 + 2, and 30 at most.
            {"max_tokens": 36},
            3,
            "tokens: the run is at its limit: a call to 'writer' may take 30 tokens, and of "
            "max_tokens = 36 there are 27 left; to go on it needs max_tokens to be at least 39 "
            "(--max-tokens, Pipeline(limits=...), or [limits] in harness.toml)",
            id="tokens",
        ),
        pytest.param(
            {"max_cost_usd": 0.5},
            2,
            "cost: the run is at its limit: a call to 'writer' may cost 0 dollars, and of "
            "max_cost_usd = 0.5 there are 0 left; to go on it needs max_cost_usd to be more "
            "(--max-cost-usd, Pipeline(limits=...), or [limits] in harness.toml)",
            id="cost",
        ),
        pytest.param(
            {"max_calls": 4},
            4,
            "calls: the run is at its limit: max_calls = 4 are made; 'writer' is not called; to go "
            "on it needs max_calls to be at least 5 (--max-calls, Pipeline(limits=...), or "
            "[limits] in harness.toml)",
            id="calls",
        ),
    ],
)
def test_a_call_beyond_a_limit_is_not_sent_and_the_message_says_what_would_do(
    tmp_path: Path, limits: dict[str, float], replies: int, said: str
) -> None:
    writer = Charging(lambda _: "two words")

    result = run(asking(9), settings_of(tmp_path, **limits), writer=writer)

    assert result.result == ["two words"] * replies + [said]
    assert len(writer.requests) == replies


def test_no_call_outlives_the_runs_time(tmp_path: Path) -> None:
    writer = ScriptedBackend(lambda _: "too late", delay_s=600)

    result = run(asking(2), settings_of(tmp_path, max_seconds=0.3), writer=writer)

    said = (
        "time: the run is at its limit: max_seconds = 0.3 were over before 'writer' had answered; "
        "to go on it needs max_seconds to be more (--max-seconds, Pipeline(limits=...), or "
        "[limits] in harness.toml)"
    )
    assert result.result == [said]
    assert result.duration_s < 30


def test_a_map_of_sixteen_stops_at_the_limit_and_keeps_what_is_done(tmp_path: Path) -> None:
    pipeline = Pipeline("mapped")

    @pipeline.node
    async def topics() -> list[str]:
        return [PROMPT] * 16

    @pipeline.node(each={"topic": "topics"})
    async def found(run: Run, topic: str) -> str:
        try:
            return await run.chat("producer", topic, max_output_tokens=20)
        except RunLimitReached as error:
            return error.limit

    # All at once would take 16 times 30 at most, and one after another 16 times 3.
    writer = ScriptedBackend(lambda _: "two words")
    result = run(pipeline, settings_of(tmp_path, max_tokens=60), writer=writer)

    assert sorted(map(str, result.outputs["found"])) == ["tokens"] * 5 + ["two words"] * 11  # type: ignore[call-overload]
    assert len(writer.requests) == 11, "by then 33 are taken, and 30 more do not fit into 60"


def sixteen() -> Pipeline:
    """So many calls, one after another, by as many nodes; and a node that needs them all."""
    pipeline = Pipeline("stopped", parallel_calls=1)

    @pipeline.node
    async def topics() -> list[str]:
        return [PROMPT] * 16

    @pipeline.node(each={"topic": "topics"})
    async def found(run: Run, topic: str) -> str:
        return await run.chat("producer", topic, max_output_tokens=20)

    @pipeline.node
    async def told(found: list[str]) -> int:
        return len(found)

    return pipeline


@pytest.mark.parametrize(
    ("limits", "given"),
    [
        # Each call takes 1 + 2 tokens, and 30 at most.
        pytest.param({"max_tokens": 45}, 6, id="tokens"),
        pytest.param({"max_cost_usd": 1.0}, 4, id="cost"),
        pytest.param({"max_calls": 5}, 5, id="calls"),
    ],
)
def test_a_run_that_reaches_a_limit_is_stopped_with_what_it_has(
    tmp_path: Path, limits: dict[str, float], given: int
) -> None:
    writer = Charging(lambda _: "two words")
    result = run(sixteen(), settings_of(tmp_path, **limits), writer=writer)

    assert result.status == "stopped"
    assert "the run is at its limit" in str(result.stopped_by)
    assert len(writer.requests) == given
    assert result.spent.calls == given
    assert "told" not in result.outputs


def test_calls_wait_for_what_those_under_way_do_not_need(tmp_path: Path) -> None:
    pipeline = Pipeline("waiting")

    @pipeline.node
    async def found(run: Run) -> list[str]:
        calls = [run.chat("producer", PROMPT, max_output_tokens=20) for _ in range(8)]
        return await asyncio.gather(*calls)

    writer = ScriptedBackend(lambda _: "two words")
    result = run(pipeline, settings_of(tmp_path, max_tokens=60), writer=writer)

    assert result.result == ["two words"] * 8
    waits = [s for s in load_run(result.files.journal).spans if s.name == "wait for room"]
    assert len(waits) == 6, "two of thirty fit at once"


def test_calls_to_embed_are_calls(tmp_path: Path) -> None:
    pipeline = Pipeline("embedding")

    @pipeline.node
    async def found(run: Run) -> list[str]:
        await run.embed("producer", ["a"])
        await run.chat("producer", PROMPT)
        try:
            await run.embed("producer", ["b"])
        except RunLimitReached as error:
            return [error.limit]
        return []

    writer = Embedding(["two words"])
    result = run(pipeline, settings_of(tmp_path, max_calls=2), writer=writer)

    assert result.result == ["calls"]


def test_a_limit_to_the_cost_that_bounds_nothing_is_warned_of_once(tmp_path: Path) -> None:
    writer = ScriptedBackend(lambda _: "two words")
    result = run(asking(3), settings_of(tmp_path, max_cost_usd=1), writer=writer)

    (warning,) = map(str, result.warnings)
    assert warning.startswith("max_cost_usd = 1 bounded nothing: no call's price is known; write")


@pytest.mark.parametrize(
    ("limits", "backend"),
    [
        pytest.param({"max_cost_usd": 1}, Charging(lambda _: "x"), id="a price that is known"),
        pytest.param({"max_calls": 9}, ScriptedBackend(lambda _: "x"), id="another limit"),
    ],
)
def test_a_limit_that_bounds_something_is_not_warned_of(
    tmp_path: Path, limits: dict[str, float], backend: Backend
) -> None:
    assert run(asking(3), settings_of(tmp_path, **limits), writer=backend).warnings == ()


# --- loops -----------------------------------------------------------------------------------


def looping(tmp_path: Path, *, rounds_at_most: int = 9, **own: float) -> Pipeline:
    """A loop over a draft that never passes."""
    path = tmp_path / "one.yaml"
    path.write_text(ONE_QUESTION)
    pipeline = Pipeline("looping")

    @pipeline.node
    async def text(run: Run) -> str:
        try:
            ended = await run.wiggum(
                "Cold starts?",
                rubric=path,
                draft="It takes 900 years.",
                max_rounds=rounds_at_most,
                **own,  # type: ignore[arg-type]
            )
        except RunLimitReached as error:
            return f"{error.limit}: {error}"
        return ended.text

    return pipeline


def rising(*, drafts_before: int = 0) -> dict[str, ScriptedBackend]:
    """A writer whose every draft is better, by the judge's word."""
    scores = iter([1 + n / 2 for n in range(drafts_before, 12)])
    texts = iter(f"{GOOD} This is draft {n}." for n in range(drafts_before, 9))
    return {
        "writer": Charging(lambda _: next(texts)),
        "strict": Charging(lambda asked: verdict(asked, next(scores))),
    }


def with_judge(settings: Settings) -> Settings:
    return settings.model_copy(update={"roles": {"producer": "writer", "evaluator": "strict"}})


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        pytest.param({"max_calls": 4}, "max_calls = 4 are made", id="calls"),
        pytest.param(
            {"max_cost_usd": 1.1},
            "may take 0.5 dollars, and of max_cost_usd = 1.1 (all that the run has left) there "
            "are 0.35 left",
            id="cost",
        ),
        pytest.param(
            {"max_tokens": 6_000}, "of max_tokens = 6000 (all that the run has left)", id="tokens"
        ),
    ],
)
def test_a_loop_in_a_run_at_its_limit_ends_with_its_best_draft(
    tmp_path: Path, limits: dict[str, float], detail: str
) -> None:
    backends = rising()
    result = run(looping(tmp_path), with_judge(settings_of(tmp_path, **limits)), **backends)

    (loop,) = result.loops
    assert loop.stop_reason == "budget"
    assert detail in loop.stop_detail
    assert 1 < len(loop.rounds) < 9
    assert result.result == loop.text == loop.rounds[-1].draft
    if "max_calls" not in limits:
        # It saw the end coming: no draft was written that nobody judged.
        assert len(backends["writer"].requests) == len(backends["strict"].requests) - 1


def test_a_loop_with_tighter_limits_keeps_them(tmp_path: Path) -> None:
    settings = with_judge(settings_of(tmp_path, max_tokens=100_000, max_cost_usd=50))
    result = run(looping(tmp_path, max_cost_usd=1.1), settings, **rising())

    (loop,) = result.loops
    assert "of max_cost_usd = 1.1 there are 0.35 left" in loop.stop_detail


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        pytest.param({"max_tokens": 100}, "the run's has to be", id="too little for a first"),
        pytest.param({"max_calls": 1}, "max_calls = 1 are made", id="no calls"),
    ],
)
def test_a_loop_that_cannot_even_begin_meets_the_runs_limit(
    tmp_path: Path, limits: dict[str, float], said: str
) -> None:
    pipeline = looping(tmp_path)

    @pipeline.node
    async def again(run: Run, text: str) -> str:
        try:
            return (await run.wiggum("More?", rubric=tmp_path / "one.yaml", draft=text)).text
        except RunLimitReached as error:
            return f"{error.limit}: {error}"

    result = run(pipeline, with_judge(settings_of(tmp_path, **limits)), **rising())
    assert said in str(result.outputs["again"])


# --- a run in parts --------------------------------------------------------------------------


async def in_session(
    settings: Settings,
    use: Callable[[Session], Awaitable[None]],
    *,
    spent: Spent,
    limits: Limits | None = None,
    **backends: Backend,
) -> Session:
    async with open_session(
        settings, name="part", environment={}, backends=backends, spent=spent, limits=limits
    ) as session:
        await use(session)
    return session


@pytest.mark.parametrize(
    ("limits", "before", "limit", "left"),
    [
        pytest.param(Limits(max_tokens=60), Spent(input_tokens=31), "tokens", 29, id="tokens"),
        pytest.param(Limits(max_calls=8), Spent(calls=8), "calls", None, id="calls"),
        pytest.param(Limits(max_cost_usd=2), Spent(cost_usd=2.0), "cost", 0, id="cost"),
        pytest.param(Limits(max_seconds=60), Spent(time_ns=60 * 10**9), "time", None, id="time"),
    ],
)
def test_what_earlier_parts_of_a_run_spent_counts(
    tmp_path: Path, limits: Limits, before: Spent, limit: str, left: int | None
) -> None:
    writer = ScriptedBackend(["two words"])

    async def use(session: Session) -> None:
        with pytest.raises(RunLimitReached) as caught:
            await session.spending.chat(request("writer"))
        assert caught.value.limit == limit
        assert left is None or f"there are {left} left" in str(caught.value)

    asyncio.run(in_session(settings_of(tmp_path), use, spent=before, limits=limits, writer=writer))
    assert writer.requests == []


def test_a_part_goes_on_counting_where_the_journal_of_those_before_ends(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, max_calls=4)
    writer = ScriptedBackend(lambda _: "two words")

    async def use(session: Session) -> None:
        for _ in range(3):
            await session.spending.chat(request("writer"))

    async def both() -> None:
        first = await in_session(settings, use, spent=NOTHING, writer=writer)
        before = run_spent(Journal(first.trace.journal_path))
        with pytest.raises(RunLimitReached, match="max_calls = 4 are made"):
            await in_session(settings, use, spent=before, writer=writer)

    asyncio.run(both())
    assert len(writer.requests) == 4


def test_a_run_that_is_stopped_and_resumed_again_and_again_pays_for_nothing_twice(
    tmp_path: Path,
) -> None:
    writer = Charging(lambda _: "two words")
    pipeline, settings = sixteen(), settings_of(tmp_path)
    run_id = None
    for most in (3, 6, 9, 12, 15, 18):
        result = asyncio.run(
            pipeline.run_async(
                {},
                resume=run_id,
                limits=Limits(max_calls=most),
                settings=settings,
                backends={"writer": writer},
            )
        )
        run_id = result.run_id
        made = min(most, 16)
        assert len(writer.requests) == made
        by_journal = run_spent(Journal(result.files.journal))
        for spent in (result.spent, by_journal):
            assert (spent.calls, spent.tokens, spent.cost_usd) == (made, 3 * made, made / 4)
    assert (result.status, result.result) == ("finished", 16)


def test_a_loop_that_goes_on_in_a_later_part_has_what_the_run_has_left(tmp_path: Path) -> None:
    settings = with_judge(settings_of(tmp_path, max_cost_usd=1.3))
    # A judgement, a revision and its judgement: 0.75 dollars.
    first = run(looping(tmp_path, rounds_at_most=2), settings, **rising())
    journal = Journal(first.files.journal)
    ended: list[WiggumResult] = []

    async def use(session: Session) -> None:
        ended.append(
            await run_loop(
                session,
                "Cold starts?",
                ask=session.spending.chat,
                chosen=choose_rubric(tmp_path / "one.yaml", rubrics=tmp_path),
                sources=(),
                draft=None,
                limits=LoopLimits(max_rounds=9),
                revise="whole",
                revise_from="best",
                rescore="all",
                max_output_tokens=512,
                rounds=rounds_from(journal),
                key="text/wiggum#1",
            )
        )

    backends = rising(drafts_before=2)
    asyncio.run(in_session(settings, use, spent=run_spent(journal), **backends))
    (loop,) = ended
    assert (loop.stop_reason, len(loop.rounds)) == ("budget", 3), "0.55 are left: one more"
    assert [len(one.requests) for one in backends.values()] == [1, 1]


def test_limits_that_are_given_go_before_those_of_the_settings(tmp_path: Path) -> None:
    async def use(session: Session) -> None:
        assert session.spending.limits == Limits(max_calls=2, max_tokens=900)

    settings = settings_of(tmp_path, max_calls=1, max_tokens=900)
    asyncio.run(
        in_session(
            settings,
            use,
            spent=NOTHING,
            limits=Limits(max_calls=2),
            writer=ScriptedBackend([]),
        )
    )


# --- by itself -------------------------------------------------------------------------------


def request(model: str = "m", *, chars: int = 30, room: int = 20) -> ChatRequest:
    return ChatRequest(
        model=model, messages=(Message("user", "x" * chars),), max_output_tokens=room
    )


def spending_of(
    chat: Callable[[ChatRequest], Awaitable[Completion]],
    clock: ManualClock,
    *,
    limits: Limits,
    before: Spent = NOTHING,
    prices: dict[str, TokenPrice] | None = None,
) -> Spending:
    return Spending(
        chat,
        Embedding([]).embed,
        limits=limits,
        prices=prices or {},
        before=before,
        clock=clock,
        began_ns=clock(),
        tracer=Tracer(),
    )


def reply(input_tokens: int, output_tokens: int) -> Completion:
    return Completion(
        text="x",
        reasoning="",
        finish_reason="stop",
        usage=Usage(input_tokens=input_tokens, output_tokens=output_tokens, cached_tokens=None),
        sent_ns=0,
        first_token_ns=None,
        phases=(),
        model_id="m",
    )


def test_what_a_run_spent_is_what_was_spent_before_and_since() -> None:
    clock = ManualClock()
    clock.advance(ns=5)
    price = TokenPrice(usd_per_million_input_tokens=2.0, usd_per_million_output_tokens=10.0)
    before = Spent(calls=2, input_tokens=100, output_tokens=10, cost_usd=0.5, time_ns=900)

    async def use() -> Spending:
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


def test_replies_from_the_cache_take_nothing_and_make_room_for_others() -> None:
    async def known(_: ChatRequest) -> Completion:
        await asyncio.sleep(0)
        return replace(reply(10, 20), from_cache=True, cost_usd=0.0)

    async def use() -> Spending:
        limits = Limits(max_calls=2, max_tokens=30)
        spending = spending_of(known, ManualClock(), limits=limits)
        await asyncio.gather(*(spending.chat(request()) for _ in range(9)))
        return spending

    assert asyncio.run(use()).spent == Spent()


def test_a_loop_that_goes_on_may_take_what_is_left_beside_its_earlier_rounds() -> None:
    before = Spent(input_tokens=700, cost_usd=2.0, time_ns=8 * 10**9)
    spending = spending_of(
        ScriptedBackend([]).chat,
        ManualClock(),
        limits=Limits(max_tokens=1_000, max_cost_usd=3, max_seconds=10),
        before=before,
    )

    loop = spending.tightened(LoopLimits(max_cost_usd=2.25), before=before)

    assert loop == LoopLimits(
        max_tokens=1_000,
        max_cost_usd=2.25,
        max_seconds=10,
        of_run=frozenset({"tokens", "time"}),
    )
    anew = spending.tightened(LoopLimits())
    assert (anew.max_tokens, anew.max_cost_usd, anew.max_seconds) == (300, 1, 2)


def test_of_what_nothing_is_left_the_runs_own_refusal_tells() -> None:
    spending = spending_of(
        ScriptedBackend([]).chat,
        ManualClock(),
        limits=Limits(max_tokens=50),
        before=Spent(input_tokens=50),
    )
    assert spending.tightened(LoopLimits(max_tokens=80)) == LoopLimits(max_tokens=80)
    with pytest.raises(RunLimitReached, match="of max_tokens = 50 there are 0 left"):
        asyncio.run(spending.chat(request()))


def test_money_that_is_held_in_fractions_is_all_there_again_afterwards() -> None:
    """In floats 0.1 + 0.3 - 0.1 - 0.3 is not 0: a call that takes all the rest waited for ever."""
    price = TokenPrice(usd_per_million_input_tokens=0.0, usd_per_million_output_tokens=1e5)
    clock = ManualClock()

    async def free(asked: ChatRequest) -> Completion:
        await asyncio.sleep(0)
        return replace(reply(0, 0), endpoint=asked.model)

    async def use() -> None:
        spending = spending_of(free, clock, limits=Limits(max_cost_usd=0.4), prices={"m": price})
        await asyncio.gather(spending.chat(request(room=1)), spending.chat(request(room=3)))
        await asyncio.wait_for(spending.chat(request(room=4)), timeout=5)

    asyncio.run(use())


call = st.tuples(
    st.integers(1, 60),  # characters of the prompt
    st.integers(1, 30),  # room for the reply
    st.floats(0, 1),  # which share of both it takes
    st.integers(0, 4),  # turns of the event loop until it is answered
    st.sampled_from(["answered", "answered", "answered", "failed", "cancelled"]),
)


@given(calls=st.lists(call, max_size=16), limit=st.integers(1, 200))
def test_calls_at_once_never_take_more_than_the_limit_and_none_is_refused_too_soon(
    calls: list[tuple[int, int, float, int, str]], limit: int
) -> None:
    clock = ManualClock()
    most_under_way = 0

    async def all_of_them() -> list[object]:
        nonlocal most_under_way

        async def send(asked: ChatRequest) -> Completion:
            nonlocal most_under_way
            _, _, share, turns, end = calls[int(asked.seed or 0)]
            most_under_way += most_tokens_of(asked)
            assert spending.spent.tokens + most_under_way <= limit
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                if end == "failed":
                    raise EndpointUnreachable("gone", endpoint="m")
            finally:
                most_under_way -= most_tokens_of(asked)
            most_in = most_tokens_of(asked) - asked.max_output_tokens
            return reply(int(most_in * share), int(asked.max_output_tokens * share))

        async def one(number: int) -> None:
            chars, room, _, _, _ = calls[number]
            asked = replace(request(chars=chars, room=room), seed=number)
            try:
                await spending.chat(asked)
            except RunLimitReached:
                # Not even with nothing else under way.
                assert spending.spent.tokens + most_tokens_of(asked) > limit
                raise
            finally:
                assert spending.spent.tokens <= limit

        spending = spending_of(send, clock, limits=Limits(max_tokens=limit))
        tasks = [asyncio.create_task(one(number)) for number in range(len(calls))]
        await asyncio.sleep(0)
        for task, (*_, end) in zip(tasks, calls, strict=True):
            if end == "cancelled":
                task.cancel()
        return await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), timeout=60)

    for end in asyncio.run(all_of_them()):
        expected = (type(None), RunLimitReached, EndpointUnreachable, asyncio.CancelledError)
        assert isinstance(end, expected)
