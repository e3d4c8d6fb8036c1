"""A reply without text is no answer, whoever asked for it, and the model is asked once more."""

from __future__ import annotations

import asyncio
import json

import pytest
from scripted_judge import judge
from session_runs import (
    GOOD,
    ONE_QUESTION,
    SOURCE,
    fail,
    instants_of,
    pipeline_of,
    refused,
    run,
    settings_of,
)

from harness import Limits, Run, ScriptedBackend, ScriptedReply, ToolCall, Usage
from harness.errors import ReplyCut, ReplyEmpty
from harness.inference import ChatRequest, Client, Message
from harness.inference.client import Route
from harness.inference.completion import is_visible
from harness.inference.endpoint import Endpoint
from harness.inference.gate import Gate
from harness.trace import Tracer

BLANKS = {
    "nothing": "",
    "newlines": "\n\n",
    "a space that does not break": "\u00a0\u202f",
    "an ideographic space": "\u3000",
    "zero width": "\u200b\u200d\ufeff\u2060",
    "a mark of direction": "\u200f",
    "a Hangul filler": "\u3164",
    "an accent without a letter": "\u0301",
    "a fence with nothing in it": "```json\n\n```",
    "a fence that was only opened": "```\n",
}
TEXTS = {
    "a letter": "a",
    "zero": "0",
    "a new emoji": "\U0001fae9",
    "no": "いいえ",
    "a dash": "—",
    "code": "```\nx\n```",
    "code in one line": "```x```",
    "half a pair of quotes": '"',
}


@pytest.mark.parametrize(("text"), BLANKS.values(), ids=BLANKS)
def test_what_shows_nothing_is_no_text(text):
    assert not is_visible(text)


@pytest.mark.parametrize(("text"), TEXTS.values(), ids=TEXTS)
def test_the_shortest_answers_are_text(text):
    assert is_visible(text)


async def chats(run: Run, q: str) -> str:
    return await run.chat("producer", q)


async def streams(run: Run, q: str) -> str:
    return "".join([piece async for piece in run.stream("producer", q)])


async def maps(run: Run, q: str) -> str:
    async def one(run: Run, item: str) -> str:
        return await run.chat("producer", item)

    return "".join(await run.map(one, [q]))


async def types(run: Run, q: str) -> str:
    return await run.chat("producer", q, returns=str)


WAYS = [chats, streams, maps, types]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("blank", ["", " \u200b\n", "```\n```"])
def test_a_second_reply_without_text_is_an_error_and_no_output(tmp_path, way, blank):
    writer = ScriptedBackend([blank] * 3)
    with refused("reply.empty"):
        run(pipeline_of(way), settings_of(tmp_path), {"q": "2+2?"}, backends={"producer": writer})
    assert len(writer.requests) == 2


@pytest.mark.parametrize("way", WAYS)
def test_the_second_reply_counts_and_the_second_request_says_what_was_missing(tmp_path, way):
    text = '{"answer": "Four."}' if way is types else "Four."
    writer = ScriptedBackend(["\n", text])
    ended = run(
        pipeline_of(way), settings_of(tmp_path), {"q": "2+2?"}, backends={"producer": writer}
    )
    assert ended.result.strip() == "Four."
    first, second = (one.messages[-1].content for one in writer.requests)
    assert second.startswith(first)
    assert second != first, "a greedy model would say the same"
    assert [one["reason"] for one in instants_of(ended, "retry")] == ["ReplyEmpty"]
    assert ended.spent.calls == 2


def test_a_reply_without_text_is_taken_where_it_is_wanted(tmp_path):
    async def quiet(run: Run) -> str:
        return await run.chat("producer", "?", allow_empty=True)

    writer = ScriptedBackend(["\u200b"])
    ended = run(pipeline_of(quiet), settings_of(tmp_path), backends={"producer": writer})
    assert ended.result in {"", "\u200b"}
    assert len(writer.requests) == 1


CALL = (ToolCall("a", "look", "{}"),)
THOUGHTS = ScriptedReply(reasoning="It is four.", usage=None)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        pytest.param(ScriptedReply(), "nothing visible came", id="nothing"),
        pytest.param(THOUGHTS, "reasoning .* is all", id="reasoning alone"),
        pytest.param(
            ScriptedReply(
                usage=Usage(
                    input_tokens=9, output_tokens=642, cached_tokens=None, reasoning_tokens=642
                )
            ),
            r"reasoning \(642 tokens\) is all",
            id="reasoning that the server only counts",
        ),
        pytest.param(ScriptedReply(tool_calls=CALL), "none was offered", id="calls of no tool"),
    ],
)
def test_the_error_names_what_came_instead(tmp_path, reply, reason):
    writer = ScriptedBackend([reply] * 2)
    error = fail(
        pipeline_of(chats), settings_of(tmp_path), {"q": "?"}, backends={"producer": writer}
    ).__cause__
    assert error.usage is not None
    with pytest.raises(ReplyEmpty, match=reason):
        raise error


def test_reasoning_that_used_up_the_room_is_told_from_an_answer_that_was_cut(tmp_path):
    writer = ScriptedBackend([ScriptedReply(reasoning="Let me see", finish_reason="length")])
    error = fail(
        pipeline_of(chats), settings_of(tmp_path), {"q": "?"}, backends={"producer": writer}
    ).__cause__
    with pytest.raises(ReplyCut, match="used up its room"):
        raise error
    assert len(writer.requests) == 1


def test_json_that_was_filed_as_reasoning_is_the_answer(tmp_path):
    async def number(run: Run) -> int:
        return await run.chat("producer", "?", returns=int)

    writer = ScriptedBackend([ScriptedReply(reasoning='{"answer": 42}')])
    ended = run(pipeline_of(number), settings_of(tmp_path), backends={"producer": writer})
    assert ended.result == 42


def test_a_stored_reply_is_none_if_it_is_empty(tmp_path):
    """Nothing without text is kept, in the run's file or the cache."""
    writer = ScriptedBackend(["", "", "Four."])
    given, pipeline = settings_of(tmp_path), pipeline_of(chats)
    fail(pipeline, given, {"q": "?"}, backends={"producer": writer})
    ended = run(pipeline, given, backends={"producer": writer}, resume="latest")
    assert ended.result == "Four."


def test_a_limit_of_calls_counts_the_second_request(tmp_path):
    writer = ScriptedBackend([""] * 3)
    ended = run(
        pipeline_of(chats),
        settings_of(tmp_path),
        {"q": "?"},
        backends={"producer": writer},
        limits=Limits(max_calls=1),
    )
    assert (ended.status, len(writer.requests)) == ("stopped", 1)


def test_a_client_without_a_run_does_the_same():
    endpoint = Endpoint(tag="m", backend="openai", url="http://127.0.0.1:9/v1", model_id="m")
    writer = ScriptedBackend(["", "Four."])
    tracer = Tracer()
    line = Route(endpoint=endpoint, backends=(writer,), gate=Gate(endpoint=endpoint, tracer=tracer))
    client = Client(routes={"m": line}, tracer=tracer)
    request = ChatRequest(model="m", messages=(Message("user", "?"),))
    assert asyncio.run(client.chat(request)).text == "Four."


# --- judges and loops ----------------------------------------------------------------------------


def looping(tmp_path, *, writer=(GOOD,), evaluator=None, **more):
    rubric = tmp_path / "one.yaml"
    rubric.write_text(ONE_QUESTION)

    async def loop(run: Run) -> list:
        found = await run.wiggum("Why?", rubric=str(rubric), sources=[SOURCE], **more)
        return [found.passed, found.stop_reason, found.text]

    backends = {"writer": ScriptedBackend(list(writer)), "judge": evaluator or judge(10)}
    given = settings_of(tmp_path, roles={"producer": "writer", "evaluator": "judge"})
    return run(pipeline_of(loop), given, backends=backends).result, backends


def test_a_first_draft_without_text_is_asked_for_once_more(tmp_path):
    result, backends = looping(tmp_path, writer=["", GOOD])
    assert result == [True, "passed", GOOD]
    assert len(backends["writer"].requests) == 2

    with refused("reply.empty"):
        looping(tmp_path, writer=["", ""])


def test_a_judge_that_says_nothing_abstains_with_the_reason(tmp_path):
    evaluator = ScriptedBackend([ScriptedReply(reasoning="Hm.")] * 2)
    with refused("evaluation.abstained") as caught:
        looping(tmp_path, evaluator=evaluator)
    assert "is all that it holds" in str(caught.value)
    assert len(evaluator.requests) == 2


def test_rows_of_a_batch_without_a_reply_are_failures(tmp_path):
    rows = [{"q": "a"}, {"q": "b"}]
    writer = ScriptedBackend(lambda request: "" if request.messages[0].content[0] == "a" else "B")
    batch = asyncio.run(
        pipeline_of(chats).batch(
            rows,
            output=tmp_path / "out.jsonl",
            settings=settings_of(tmp_path),
            backends={"producer": writer},
        )
    )
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert len(lines) == 1
    assert len(batch.failures) == 1
