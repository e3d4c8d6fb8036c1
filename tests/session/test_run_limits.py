"""Limits of a whole run: what reaches them, what then becomes of it, and what is counted.

Most nodes here take a limit for a result, so that it can be looked at.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import replace

import pytest
from manual_clock import ManualClock
from sample_runs import load_run
from scripted_judge import verdict
from servers.emulated import Emulated
from session_runs import (
    BAD,
    GOOD,
    ONE_QUESTION,
    Calls,
    Charging,
    codes,
    fail,
    line_of,
    pipeline_of,
    run,
)
from session_runs import settings_of as plain_settings_of

from harness import Journal, Message, Pipeline, Run, RunTrace, ScriptedBackend
from harness.errors import ContextOverflow, HarnessError, RunLimitReached, ServerError
from harness.graph import Graph
from harness.inference import ChatRequest, Limits, Spent
from harness.inference.request import most_prompt_tokens
from harness.session.open_run import RunPlan, open_run
from harness.session.resume import run_spent

PROMPT = "x" * 30
"""82 tokens at most with what a template may add, and one by the scripted backend's count."""


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
    result = run(mapping(16, max_parallel=at_once), settings, backends={"writer": writer})
    assert result.status == "stopped"
    assert next(iter(limits)) in result.stopped_by
    assert len(writer.requests) == result.spent.calls == given
    assert "told" not in result.outputs


def test_a_run_that_is_stopped_and_resumed_again_and_again_pays_for_nothing_twice(tmp_path):
    writer, pipeline = two_words(), mapping(8, max_parallel=1)
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


def test_calls_that_never_connected_take_nothing(tmp_path):
    with socket.socket() as bound:  # nothing listens there
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1"

        async def text(run: Run) -> list[str]:
            errors = []
            for seed in range(4):
                try:
                    await run.chat("producer", PROMPT, max_output_tokens=20, seed=seed)
                except HarnessError as error:
                    errors.append(error.code)
            return errors

        once = {"max_attempts": 1}
        settings = plain_settings_of(
            tmp_path,
            roles={"producer": "writer"},
            limits={"max_tokens": 150, "max_calls": 1},
            endpoints={"writer": {"backend": "openai", "url": url, "retry": once}},
        )
        result = run(pipeline_of(text), settings)
    assert result.result == ["call.unreachable"] * 4
    for spent in (result.spent, run_spent(Journal(result.files.journal))):
        assert (spent.calls, spent.tokens, spent.unpriced_calls) == (0, 0, 0)


REFUSED = {
    "the account's limit": (429, {}, {}),
    "when to come again": (429, {}, {"retry-after": "0"}),
    "loading": (503, {"error": "loading model"}, {}),
    "overloaded": (503, {}, {"retry-after": "0"}),
    "no such field": (400, {"error": {"message": "unknown field"}}, {}),
    "no such value": (422, {"detail": "n is not a number"}, {}),
    "no such model": (404, {"error": {"message": "model x not found"}}, {}),
    "wrong key": (401, {}, {}),
    "too long": (400, {"error": {"code": "context_length_exceeded", "message": "long"}}, {}),
}
WORKED = {"failed": 500, "behind a gateway": 502, "timed out": 408, "while it answered": 424}


class Refusing(Emulated):
    def __init__(self, status, body, headers):
        super().__init__()
        self.refusal = (status, body, headers)

    async def respond(self, _asked, answer):
        status, body, headers = self.refusal
        await answer.json(body, status=status, headers=tuple(headers.items()))


def asked_of_one_that_refuses(tmp_path, status, body=None, headers=None, **more):
    """What the run and its journal say that four such calls took, two of them at once."""

    async def text(run: Run) -> list[str]:
        async def ask(seed):
            try:
                await run.chat("producer", PROMPT, max_output_tokens=20, seed=seed, **more)
            except HarnessError as error:
                return error.code

        return [await ask(0), await ask(1), *await asyncio.gather(ask(2), ask(3))]

    async def main():
        async with Refusing(status, body or {}, headers or {}) as server:
            settings = plain_settings_of(
                tmp_path,
                roles={"producer": "writer"},
                limits={"max_tokens": 350},
                endpoints={
                    "writer": {
                        "backend": "openai",
                        "url": f"{server.root}/v1",
                        "retry": {"max_attempts": 1},
                        "max_outage_s": 0,
                        "usd_per_million_input_tokens": 1,
                        "usd_per_million_output_tokens": 1,
                    }
                },
            )
            return await pipeline_of(text).run_async(settings=settings)

    result = asyncio.run(main())
    assert len(result.result) == 4
    listed, sums = line_of(result), ("input_tokens", "output_tokens")
    assert [listed[name] for name in sums] == [getattr(result.spent, name) for name in sums]
    return result.spent, run_spent(Journal(result.files.journal))


@pytest.mark.parametrize(("status", "body", "headers"), REFUSED.values(), ids=REFUSED)
def test_calls_that_their_server_refused_take_no_tokens(tmp_path, status, body, headers):
    for spent in asked_of_one_that_refuses(tmp_path, status, body, headers):
        assert (spent.calls, spent.tokens) == (4, 0)
        assert (spent.estimated_calls, spent.unpriced_calls) == (0, 0)


@pytest.mark.parametrize(
    "refusal", [*REFUSED.values(), *((status,) for status in WORKED.values())], ids=str
)
def test_a_call_whose_probe_failed_was_not_sent(tmp_path, refusal):
    live, read = asked_of_one_that_refuses(tmp_path, *refusal, returns=list[int])
    for counted in ("calls", "tokens", "estimated_calls", "unpriced_calls"):
        assert getattr(live, counted) == getattr(read, counted), counted


def test_a_request_that_is_sent_again_with_less_room_counts_twice(tmp_path):
    overflow = ContextOverflow("long", endpoint="writer", context_tokens=1_000)
    writer = ScriptedBackend([overflow, "two words"])

    async def said(run: Run) -> str:
        return await run.chat("producer", PROMPT)

    settings = settings_of(tmp_path, max_tokens=6_000)
    result = run(pipeline_of(said), settings, backends={"writer": writer})
    assert result.result == "two words"
    for spent in (result.spent, run_spent(Journal(result.files.journal))):
        assert spent.calls == len(writer.requests) == 2


@pytest.mark.parametrize("status", WORKED.values(), ids=WORKED)
def test_calls_that_failed_while_their_server_worked_take_their_prompts(tmp_path, status):
    for spent in asked_of_one_that_refuses(tmp_path, status):
        assert (spent.calls, spent.tokens, spent.estimated_calls) == (4, 4 * 82, 4)


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
    "tokens": ({"max_tokens": 6_000}, {}, "of the run's max_tokens = 6000 there are"),
    "cost": ({"max_cost_usd": 1.1}, {}, "of the run's max_cost_usd = 1.1 there are"),
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
            raise RuntimeError("behind the loop")

    # A judgement, a revision and its judgement: 0.75 dollars.
    settings = judged(tmp_path, max_cost_usd=1.3)
    fail(pipeline_of(text), settings, backends=rising())
    backends = rising(drafts_before=2)
    (loop,) = run(pipeline_of(text), settings, resume="latest", backends=backends).loops
    assert (loop.stop_reason, len(loop.rounds)) == ("budget", 3), "0.55 are left: one more"
    assert [len(one.requests) for one in backends.values()] == [1, 1]


# --- added up from the journal ----------------------------------------------------------------


def request(model, *, chars=30, room=20, **more):
    message = Message("user", "x" * chars)
    return ChatRequest(model=model, messages=(message,), max_output_tokens=room, **more)


class Uncounting(ScriptedBackend):
    async def chat(self, request):
        return replace(await super().chat(request), usage=None)


def metered(tmp_path, replies, requests, *, backend=Charging, **trace):
    """The session's meter after these calls, some of which fail; and its journal."""

    async def main():
        settings = plain_settings_of(tmp_path, roles={"producer": "writer"}, trace=trace)
        plan = RunPlan(
            graph=Graph("asked"), settings=settings, backends={"writer": backend(replies)}
        )
        async with open_run(plan, environment={}) as session:
            for one in requests:
                try:
                    await session.client.chat(one)
                except ServerError:
                    continue
            return session.meter.spent, session.trace.journal_path

    return asyncio.run(main())


def test_the_journal_has_what_the_meter_counted(tmp_path):
    said = ["one two three", ServerError("broken", endpoint="writer"), "one two three"]
    requests = [ChatRequest(model="writer", messages=(Message("user", f"{n}?"),)) for n in "abc"]
    spent, path = metered(tmp_path, said, requests)
    found = run_spent(Journal(path))
    assert (spent.calls, spent.output_tokens, spent.cost_usd) == (3, 6, 0.5)
    assert spent.input_tokens == 2 + most_prompt_tokens(requests[1])
    assert found == replace(spent, time_ns=found.time_ns)


def test_the_journal_estimates_what_a_server_did_not_count_as_the_meter_did(tmp_path):
    messages = (Message("system", "Be brief."), Message("user", "Why?\n\nAnd how?"))
    asked = ChatRequest(model="writer", messages=messages)
    spent, path = metered(tmp_path, ["one two three", "four"], [asked] * 2, backend=Uncounting)
    found = run_spent(Journal(path))
    assert (spent.estimated_calls, spent.output_tokens > 0) == (2, True)
    assert found == replace(spent, time_ns=found.time_ns)


def test_a_call_whose_end_nobody_saw_is_lost_and_said_to_be(tmp_path):
    seen = []

    def look(_):
        # The run as it would be found if it were killed here.
        (path,) = (tmp_path / "traces").glob("*.jsonl")
        seen.append(run_spent(Journal(path)))
        return "one two three"

    metered(tmp_path, look, [request("writer", chars=300)] * 2, durability="sync")
    first, second = seen
    assert (first.calls, first.estimated_calls) == (1, 1)
    assert first.input_tokens == most_prompt_tokens(request("writer", chars=300))
    assert (second.calls, second.estimated_calls, second.output_tokens) == (2, 1, 3)


PRICES = {"usd_per_million_input_tokens": 2.0, "usd_per_million_output_tokens": 10.0}
HOURLY = {"usd_per_hour": 3.0}
CHAT = {"input_tokens": 1_000, "output_tokens": 100}
PAID = Spent(calls=1, input_tokens=1_000, output_tokens=100, cost_usd=0.003)
UNCOUNTED = Spent(calls=1, estimated_calls=1, unpriced_calls=1)
UNPRICED = replace(PAID, cost_usd=None, unpriced_calls=1)
RECORDED = {
    "a chat": ("chat", CHAT, PRICES, PAID),
    "a reply from the cache": ("chat", {"from_cache": True}, PRICES, Spent()),
    "a probe": ("schema probe", CHAT, PRICES, PAID),
    "tokens that nobody counted": ("chat", {}, PRICES, UNCOUNTED),
    "no price": ("chat", CHAT, {}, UNPRICED),
    "by the hour": ("chat", CHAT, HOURLY, UNPRICED),
    "by both": ("chat", CHAT, {**PRICES, **HOURLY}, PAID),
}  # fmt: skip


@pytest.mark.parametrize("is_refused", [False, True], ids=["of use", "of no use, as when empty"])
@pytest.mark.parametrize("case", RECORDED)
def test_what_models_and_machines_are_paid_for_is_counted(tmp_path, case, is_refused):
    name, said, prices, expected = RECORDED[case]
    clock = ManualClock()
    with RunTrace(tmp_path, name="run", clock=clock) as trace:
        trace.instant("endpoint", model="m", **prices)
        with suppress(ServerError), trace.span(name, model="m", **said):
            clock.advance(ns=1_800 * 10**9)
            if is_refused:
                raise ServerError("its reply is of no use", endpoint="m")
    found = run_spent(Journal(trace.journal_path))
    assert found.seconds == 1_800
    assert found.cost_usd == pytest.approx(expected.cost_usd)
    for counted in ("calls", "tokens", "estimated_calls", "unpriced_calls"):
        assert getattr(found, counted) == getattr(expected, counted), counted


def test_a_call_that_was_cut_off_costs_its_estimated_prompt(tmp_path):
    with RunTrace(tmp_path, name="run") as trace:
        trace.instant("endpoint", model="m", **PRICES)
        prompt = trace.content("[user]\n" + "x" * 300)
        chat = trace.span("chat", model="m", prompt_sha256=prompt)
        with suppress(asyncio.CancelledError), chat:
            raise asyncio.CancelledError
    found, tokens = run_spent(Journal(trace.journal_path)), 300 // 3 + 72
    assert (found.tokens, found.cost_usd, found.unpriced_calls) == (tokens, tokens * 2 / 1e6, 0)


@pytest.mark.parametrize("wait", ["wait for room", "queue", "hold"])
def test_a_call_that_was_cancelled_while_it_waited_was_not_sent(tmp_path, wait):
    with RunTrace(tmp_path, name="run") as trace:
        with suppress(asyncio.CancelledError), trace.span("chat", model="m"), trace.span(wait):
            raise asyncio.CancelledError
        with suppress(asyncio.CancelledError), trace.span("chat", model="m"):
            with trace.span(wait):
                pass
            raise asyncio.CancelledError
    assert run_spent(Journal(trace.journal_path)).calls == 1


@pytest.mark.parametrize("probe", ["schema probe", "tool probe"])
def test_a_call_that_was_cancelled_during_its_probe_was_not_sent(tmp_path, probe):
    with RunTrace(tmp_path, name="run") as trace:
        chat = trace.span("chat", model="m")
        with suppress(asyncio.CancelledError), chat, trace.span(probe, model="m"):
            raise asyncio.CancelledError
    assert run_spent(Journal(trace.journal_path)).calls == 1  # the probe
