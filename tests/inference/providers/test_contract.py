"""The one contract of all backends: what holds of a call, whichever server it goes to.

In the fast tier every row has a trial of each kind but those that wait: a call that stalls, ends
at a limit or is cancelled is tried on three protocols. All trials of all rows are slow.
"""

import asyncio
import base64
import json
from dataclasses import replace

import numpy as np
import pytest
from calls import PATIENCE_S, streamed_or_whole
from clients import client_of
from contract_rows import FAST_ROWS, ROWS, WAITING_ROWS, Engines
from servers.emulated import TEXT, THOUGHT

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    ModelNotFound,
    NotOffered,
    Overloaded,
    StreamCut,
)
from harness.inference import ChatRequest, EmbedRequest, Image, Message, ToolSpec, as_messages
from harness.inference.structured import SchemaKnowledge
from harness.inference.tool_offers import ToolKnowledge

WHOLE = "".join(TEXT)
HELLO = "Say hello."
TOO_LONG = "river " * 3000
"""For all real models here; emulated ones find it too long when that is the trial."""
ENDLESS = "Write the numbers from 1 to 2000, separated by commas: 1, 2, 3,"
"""Asked for less plainly, a small model may be done after a few tokens."""
IN_JSON = 'Name a city and its number of owls as JSON, such as {"city": "Oslo", "owls": 3}.'
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "owls": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "owls"],
    "additionalProperties": False,
}


def rows_for(trial, *, fast=FAST_ROWS):
    """The rows that a trial is for; in the fast tier, those of these names."""

    def marks(row):
        if row.missing:
            yield pytest.mark.skip(reason=row.missing)
        if row.name not in fast:
            yield pytest.mark.slow

    rows = [row for row in ROWS if trial not in row.lacks]
    return pytest.mark.parametrize(
        "row", [pytest.param(row, id=row.name, marks=[*marks(row)]) for row in rows]
    )


@pytest.fixture(scope="module")
def play():
    """Opens a row for a trial, and does something with what is open."""
    with asyncio.Runner() as runner:
        engines = Engines()

        def play(row, trial, act, **settings):
            async def main():
                async with (
                    asyncio.timeout(PATIENCE_S),
                    row.open(trial, engines, settings) as opened,
                ):
                    return await act(opened)

            return runner.run(main())

        yield play
        runner.run(engines.aclose())


def chat(prompt=HELLO, **how):
    """What asks for a reply."""

    async def act(opened):
        asked = {"max_output_tokens": 100, **how}
        return await opened.backend.chat(
            ChatRequest(model="judge", messages=as_messages(prompt), **asked)
        )

    return act


# --- replies ---------------------------------------------------------------------------------


@rows_for("reply")
def test_a_reply_is_whole_and_counted_and_its_phases_follow_each_other(row, play):
    told = []

    completion = play(row, "reply", chat(on_text=told.append))

    assert "".join(told) == completion.text
    assert len(told) > 1 or row.name == "scripted"
    assert (completion.finish_reason, completion.reasoning) == ("stop", "")
    assert completion.model_id
    assert completion.usage.input_tokens > 0
    assert completion.usage.output_tokens > 1
    if row.is_real:
        assert completion.text.startswith("Hello")
    else:
        assert completion.text == WHOLE
        assert completion.usage.cached_tokens == row.cached_tokens
    edges = [edge for phase in completion.phases for edge in (phase.start_ns, phase.end_ns)]
    assert edges == sorted(edges)
    assert edges[0] == completion.sent_ns
    assert edges[1:-1:2] == edges[2::2]
    assert completion.sent_ns <= completion.first_token_ns <= edges[-1]


@rows_for("whole")
def test_a_reply_that_is_not_streamed_is_the_same(row, play):
    told = []

    completion = play(row, "whole", chat(on_text=told.append), stream=False)

    assert told == [completion.text]
    assert (completion.finish_reason, completion.itl) == ("stop", None)
    assert completion.phases[-1].end_ns > completion.sent_ns
    assert completion.text.startswith("Hello") if row.is_real else completion.text == WHOLE


@rows_for("schema")
@streamed_or_whole
def test_a_schema_is_held_to(row, stream, play):
    async def act(opened):
        completion = await chat(IN_JSON, reply_schema=SCHEMA)(opened)
        return completion, opened.enforced

    completion, enforced = play(row, "schema", act, stream=stream)

    reply = json.loads(completion.text)
    assert set(reply) == {"city", "owls"}
    assert isinstance(reply["owls"], int)
    assert enforced in (None, [SCHEMA])


@rows_for("stop")
def test_a_reply_ends_before_a_stop_text(row, play):
    whole = play(row, "stop", chat()).text
    stop = whole[len(whole) // 2 :][:3]

    completion = play(row, "stop", chat(stop=(stop,)))

    assert completion.finish_reason == "stop"
    assert completion.text == whole[: whole.index(stop)]


@rows_for("length")
@streamed_or_whole
def test_a_reply_ends_at_its_token_limit(row, stream, play):
    completion = play(row, "length", chat(max_output_tokens=2), stream=stream)

    assert completion.finish_reason == "length"
    assert completion.text
    assert row.is_real is False or completion.usage.output_tokens == 2


@rows_for("empty")
def test_a_reply_may_be_empty(row, play):
    told = []

    # A real model would say Hello.
    completion = play(row, "empty", chat(on_text=told.append, stop=("H",) if row.is_real else ()))

    assert (completion.text, completion.finish_reason, told) == ("", "stop", [])


@rows_for("thinking")
@streamed_or_whole
def test_what_is_thought_aloud_is_not_part_of_the_answer(row, stream, play):
    told = []

    completion = play(row, "thinking", chat(on_text=told.append), stream=stream)

    assert completion.reasoning == "".join(THOUGHT)
    assert completion.text == "".join(told) == WHOLE


# --- tools and images ------------------------------------------------------------------------

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}}
CITY |= {"required": ["city"], "additionalProperties": False}
WEATHER = ToolSpec("weather", "The weather in a city.", CITY)
TIME = ToolSpec("time", "The time in a city.", CITY)
ASKED = (Message("user", "What is the weather in Kraków? Use the tool."),)
CALLED = '{"city":"Kraków"}'


def talk(*tools, line=None, **how):
    """Asks, answers the calls, and asks again: the two replies, and what was open."""

    async def act(opened):
        backend = opened.backend
        client = client_of(backend, tag="judge", line=line) if line else backend
        request = ChatRequest(model="judge", messages=ASKED, tools=tools, max_output_tokens=100)
        first = await client.chat(replace(request, **how))
        said = (
            Message("assistant", first.text, tool_calls=first.tool_calls),
            *(Message("tool", "Sunny, 21 °C.", answers=call.id) for call in first.tool_calls),
        )
        return first, await client.chat(replace(request, messages=(*ASKED, *said))), opened.asked

    return act


def compact(call):
    return call.name, json.dumps(json.loads(call.arguments), separators=(",", ":"), ensure_ascii=0)


def check_talk(first, second, *, mode, names=("weather",)):
    assert (first.finish_reason, first.tools, second.tools) == ("tool_calls", mode, mode)
    assert [compact(call) for call in first.tool_calls] == [(name, CALLED) for name in names]
    assert len({call.id for call in first.tool_calls}) == len(names)
    assert (second.text, second.tool_calls, second.finish_reason) == (WHOLE, (), "stop")


@rows_for("tools")
@streamed_or_whole
def test_a_tool_is_offered_called_and_answered(row, stream, play):
    first, second, _ = play(row, "tools", talk(WEATHER), stream=stream)

    check_talk(first, second, mode="native")
    assert first.first_token_ns is not None or not stream


@rows_for("several tools")
@streamed_or_whole
def test_several_calls_keep_their_order_and_have_ids_of_their_own(row, stream, play):
    first, second, _ = play(row, "several tools", talk(WEATHER, TIME), stream=stream)

    check_talk(first, second, mode="native", names=("weather", "time"))


@rows_for("no tools")
def test_a_server_or_model_without_tools_is_sent_a_type_instead(row, play):
    line = {"tools": ToolKnowledge(), "schemas": SchemaKnowledge()}

    first, second, asked = play(row, "no tools", talk(WEATHER, line=line))

    check_talk(first, second, mode="typed")
    assert [("tools" in one.body) for one in asked] == [True, False, False, False]


@rows_for("typed tools")
def test_tools_may_be_a_type_everywhere(row, play):
    line = {"tools": ToolKnowledge("typed"), "schemas": SchemaKnowledge()}

    talking = talk(WEATHER, line=line, tool_choice="required")
    first, second, _ = play(row, "typed tools", talking)

    if row.is_real:
        (call,) = first.tool_calls
        assert (call.name, set(call.as_object()), first.text) == ("weather", {"city"}, "")
        assert second.text or second.tool_calls
    else:
        check_talk(first, second, mode="typed")


PNG = b"\x89PNG\r\n\x1a\n of an owl"
SHOWN = Message("user", "What is this?", images=(Image.from_bytes(PNG),))


@rows_for("images")
def test_images_are_sent_as_they_are(row, play):
    async def act(opened):
        completion = await chat(SHOWN)(opened)
        return completion, opened.asked

    completion, asked = play(row, "images", act)

    assert completion.text == WHOLE
    said = json.dumps(asked[-1].body)
    assert said.index(base64.b64encode(PNG).decode()) > 0
    assert "What is this?" in said


@rows_for("no images")
def test_images_are_not_lost_where_there_is_no_place_for_them(row, play):
    with pytest.raises(NotOffered, match="images"):
        play(row, "no images", chat(SHOWN))


# --- refusals --------------------------------------------------------------------------------


@rows_for("overflow")
@streamed_or_whole
def test_a_prompt_that_is_too_long_is_said_to_be(row, stream, play):
    expected = row.overflow if stream else ContextOverflow
    with pytest.raises(expected) as caught:
        play(row, "overflow", chat(TOO_LONG), stream=stream)

    if row.is_real:
        prompt_tokens, context_tokens = caught.value.prompt_tokens, caught.value.context_tokens
        assert context_tokens > 0
        assert prompt_tokens is None or prompt_tokens > context_tokens
    elif expected is ContextOverflow:
        told = caught.value.prompt_tokens, caught.value.context_tokens
        assert told == row.overflow_counts


@rows_for("unknown model")
@streamed_or_whole
def test_a_model_that_is_not_served_is_said_to_be(row, stream, play):
    with pytest.raises(ModelNotFound):
        play(row, "unknown model", chat(), stream=stream)


@rows_for("overload")
@streamed_or_whole
def test_a_server_that_is_full_says_later(row, stream, play):
    with pytest.raises(Overloaded) as caught:
        play(row, "overload", chat(), stream=stream)

    assert caught.value.retry_after_s == row.retry_after_s


# --- what breaks -----------------------------------------------------------------------------


@rows_for("cut stream")
def test_a_stream_that_is_cut_is_no_reply(row, play):
    with pytest.raises(StreamCut):
        play(row, "cut stream", chat())


@rows_for("cut whole")
def test_a_reply_that_is_cut_is_none_without_a_stream_either(row, play):
    with pytest.raises(StreamCut):
        play(row, "cut whole", chat(), stream=False)


@rows_for("unended stream")
def test_a_stream_without_its_proper_end_is_no_reply(row, play):
    with pytest.raises(StreamCut):
        play(row, "unended stream", chat())


@rows_for("late error")
def test_an_error_in_the_middle_of_a_stream_is_raised(row, play):
    with pytest.raises(row.late_error):
        play(row, "late error", chat())


@rows_for("garbage")
@streamed_or_whole
def test_what_is_not_the_protocol_is_no_reply(row, stream, play):
    with pytest.raises(row.garbage if stream else row.unreadable):
        play(row, "garbage", chat(), stream=stream)


# --- what waits ------------------------------------------------------------------------------


def warm_up(row, play):
    """The first call through litellm takes seconds, which no limit here has."""
    if row.name.startswith("litellm"):
        play(row, "reply", chat())


@rows_for("silent", fast=WAITING_ROWS)
def test_a_server_that_says_nothing_meets_the_limit_for_the_first_token(row, play):
    warm_up(row, play)
    # A model from a file cannot be silenced, but no prompt is read so soon.
    soon_s = 0.005 if row.is_real else row.soon_s
    with pytest.raises(CallTimeout) as caught:
        play(row, "silent", chat("A long story. " * 30), first_token_timeout_s=soon_s)

    assert caught.value.limit == "first_token_timeout_s"


@rows_for("stalled", fast=WAITING_ROWS)
def test_a_stream_that_stalls_meets_the_limit_between_tokens(row, play):
    warm_up(row, play)
    soon_s = 0.0001 if row.is_real else row.soon_s
    with pytest.raises(CallTimeout) as caught:
        play(row, "stalled", chat("Tell a story."), between_tokens_timeout_s=soon_s)

    assert caught.value.limit == "between_tokens_timeout_s"


@rows_for("cancelling", fast=WAITING_ROWS)
def test_cancelling_a_call_hangs_up(row, play):
    async def act(opened):
        began = asyncio.Event()
        asking = chat(ENDLESS, max_output_tokens=400, on_text=lambda _: began.set())
        async with asyncio.TaskGroup() as group:
            call = group.create_task(asking(opened))
            await began.wait()
            call.cancel()
        assert call.cancelled()
        if opened.hung_up:
            await opened.hung_up()

    play(row, "cancelling", act)


# --- beside chatting -------------------------------------------------------------------------


@rows_for("embedding")
def test_texts_become_vectors_in_their_order(row, play):
    texts = ("an owl", "a longer text")

    async def act(opened):
        def embed(*texts):
            return opened.backend.embed(EmbedRequest(model="judge", texts=texts))

        return await embed(*texts), [await embed(text) for text in texts]

    both, each = play(row, "embedding", act)

    assert both.vectors.dtype == np.float32
    assert both.vectors.tolist() == [one.vectors[0].tolist() for one in each]
    assert both.vectors[0].tolist() != both.vectors[1].tolist()
    assert both.input_tokens > 0
