"""What a further attempt of a node asks its models: only for the reply that failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel, field_validator
from session_runs import fail, pipeline_of, refused, run, settings_of

from harness import Retry, Run, ScriptedBackend, ToolCall
from harness.errors import ServerError
from harness.inference import ScriptedReply

THREE = '{"answer": 3}'


class Even(BaseModel):
    """Valid JSON of the right shape, and still not what is wanted."""

    number: int

    @field_validator("number")
    @classmethod
    def _is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


def prompts(writer):
    return [request.messages[0].content for request in writer.requests]


async def asks(run: Run) -> list:
    """Two good replies before the one that may fail, one of them sampled."""
    good = [
        await run.chat("producer", "first"),
        await run.chat("producer", "second", temperature=0.9),
    ]
    return [*good, await run.chat("producer", "number", returns=int)]


def retried(tmp_path, node, replies, *, retry=3, **tables):
    writer = ScriptedBackend(replies)
    pipeline = pipeline_of(node, retry=Retry(retry, first_delay_s=0))
    given = settings_of(tmp_path, **tables)
    return run(pipeline, given, backends={"producer": writer}), writer


@pytest.mark.parametrize(
    "wrong",
    ["three", '{"answer": "three"}', '{"answer": 3', "[3]"],
    ids=["prose", "a type", "broken", "a list"],
)
@pytest.mark.parametrize("trace", [{}, {"content": "hash"}], ids=["resumable", "without texts"])
def test_good_calls_are_replayed_and_the_bad_one_is_told_its_mistake(tmp_path, wrong, trace):
    ended, writer = retried(tmp_path, asks, ["A", "B", wrong, THREE], trace=trace)

    assert ended.result == ["A", "B", 3]
    assert prompts(writer) == ["first", "second", "number", "number"]
    assert [m.content for m in writer.requests[-1].messages][1] == wrong
    assert {one.temperature for one in writer.requests} == {0, 0.9}


@dataclass
class Ledger:
    paid: list[int] = field(default_factory=list)


def payers():
    """Tools that change what they close over, with what they paid."""
    paid, ledger, members, count = [], Ledger(), set(), 0

    def listed(euros: int) -> str:
        paid.append(euros)
        return "ok"

    def fields(euros: int) -> str:
        ledger.paid.append(euros)
        ledger.paid = [*ledger.paid]
        paid.append(euros)
        return "ok"

    def in_set(euros: int) -> str:
        members.add(euros)
        paid.append(euros)
        return "ok"

    def counted(euros: int) -> str:
        nonlocal count
        count += 1
        paid.append(euros)
        return "ok"

    return [(tool, paid) for tool in (listed, fields, in_set, counted)]


@pytest.mark.parametrize("number", range(4), ids=["list", "fields", "set", "nonlocal"])
@pytest.mark.parametrize("how", ["retry", "resume"])
def test_a_tool_that_changes_what_it_closes_over_is_called_once(tmp_path, number, how):
    tool, paid = payers()[number]

    async def pays(run: Run) -> int:
        await run.agent("producer", "pay", tools=[tool])
        return await run.chat("producer", "number", returns=int)

    call = ToolCall("1", tool.__name__, '{"euros": 5}')
    writer = ScriptedBackend([ScriptedReply(tool_calls=(call,)), "done", "no idea", THREE])
    backends, given = {"producer": writer}, settings_of(tmp_path)
    pipeline = pipeline_of(pays, retry=Retry(2 if how == "retry" else 1, first_delay_s=0))
    if how == "retry":
        assert run(pipeline, given, backends=backends).result == 3
    else:
        fail(pipeline, given, backends=backends)
        assert run(pipeline, given, backends=backends, resume="latest").result == 3
    assert paid == [5]


def test_a_server_that_failed_is_asked_again_and_no_other_call_is_made(tmp_path):
    down = ServerError("no", endpoint="producer", status=400)
    ended, writer = retried(tmp_path, asks, ["A", "B", down, THREE])

    assert ended.result == ["A", "B", 3]
    assert prompts(writer) == ["first", "second", "number", "number"]
    assert writer.requests[2].messages == writer.requests[3].messages


def test_calls_of_one_prompt_each_keep_their_reply_over_attempts(tmp_path):
    async def asks(run: Run) -> list:
        same = [run.chat("producer", "same", temperature=1.0) for _ in range(3)]
        return [*await asyncio.gather(*same), await run.chat("producer", "number", returns=int)]

    ended, writer = retried(tmp_path, asks, ["A", "B", "C", "?", "??", THREE])
    assert ended.result == ["A", "B", "C", 3]
    assert len(writer.requests) == 6


def test_a_step_inside_the_node_replays_its_good_calls_too(tmp_path):
    async def outer(run: Run) -> list:
        async def inner(run: Run, item: str) -> list:
            return [
                await run.chat("producer", f"{item} first"),
                await run.chat("producer", f"{item} number", returns=int),
            ]

        return await run.map(inner, ["a", "b"], max_parallel=1)

    ended, writer = retried(tmp_path, outer, ["A", THREE, "B", "?", THREE])
    assert ended.result == [["A", 3], ["B", 3]]
    assert prompts(writer) == ["a first", "a number", "b first", "b number", "b number"]


def test_replies_that_a_node_could_not_use_are_others_the_next_time(tmp_path):
    async def parses(run: Run) -> int:
        first = await run.chat("producer", "first")
        return int(first) + await run.chat("producer", "number", returns=int)

    ended, writer = retried(tmp_path, parses, ["one", "1", "?", THREE])
    assert ended.result == 4
    # The first again, as it misled the node; then its second reply is replayed.
    assert prompts(writer) == ["first", "first", "number", "number"]
    assert [one.temperature for one in writer.requests] == [0, 0.3, 0.3, 0.3]


def test_a_resumed_run_tells_the_mistake_and_replays_the_rest(tmp_path):
    writer = ScriptedBackend(["A", "B", "?", THREE])
    given, pipeline = settings_of(tmp_path), pipeline_of(asks)
    fail(pipeline, given, backends={"producer": writer})
    ended = run(pipeline, given, backends={"producer": writer}, resume="latest")

    assert ended.result == ["A", "B", 3]
    assert prompts(writer) == ["first", "second", "number", "number"]
    assert len(writer.requests[-1].messages) == 3


def test_attempts_of_a_call_ask_for_its_type_again(tmp_path):
    async def even(run: Run) -> int:
        return (await run.chat("producer", "?", returns=Even, attempts=3)).number

    writer = ScriptedBackend(['{"number": 3}', "four", '{"number": 4}'])
    assert run(pipeline_of(even), settings_of(tmp_path), backends={"producer": writer}).result == 4
    first, second, third = (one.messages for one in writer.requests)
    assert second[:1] == first
    assert "must be even" in second[-1].content
    assert third[:3] == second


def test_attempts_end_with_the_last_mistake(tmp_path):
    async def even(run: Run) -> int:
        return (await run.chat("producer", "?", returns=Even, attempts=2)).number

    writer = ScriptedBackend(['{"number": 3}', '{"number": 5}', '{"number": 4}'])
    with refused("call.reply-invalid"):
        run(pipeline_of(even), settings_of(tmp_path), backends={"producer": writer})
    assert len(writer.requests) == 2


@pytest.mark.parametrize("attempts", [0, -1, True, "2"])
def test_attempts_are_a_count(tmp_path, attempts):
    async def asks(run: Run) -> int:
        return await run.chat("producer", "?", returns=int, attempts=attempts)

    with refused("request.attempts-not-positive"):
        run(pipeline_of(asks), settings_of(tmp_path), backends={"producer": ScriptedBackend([])})
