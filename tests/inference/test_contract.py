"""The one contract of all backends: what holds of a call, whichever server it goes to."""

import asyncio
import json

import numpy as np
import pytest
from contract_rows import ROWS, TRIALS, Engines, Opened
from loopback import Loopback, Reply, llama_server_stream
from servers.emulated import TEXT, THOUGHT

from harness.errors import (
    CallTimeout,
    ContextOverflow,
    ModelNotFound,
    Overloaded,
    StreamCut,
)
from harness.inference import (
    ChatRequest,
    CountRequest,
    EmbedRequest,
    Endpoint,
    OpenAIWire,
    as_messages,
)

WHOLE = "".join(TEXT)
HELLO = "Say hello."
TOO_LONG = "river " * 3000
"""For all real models here; emulated ones find it too long when that is the trial."""
ENDLESS = "Write the numbers from 1 to 2000, separated by commas: 1, 2, 3,"
"""Asked for less plainly, a small model may be done after a few tokens."""
IN_JSON = 'Name a city and its number of owls as JSON, such as {"city": "Oslo", "owls": 3}.'
PATIENCE_S = 30.0
"""For what happens at once or never."""
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "owls": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "owls"],
    "additionalProperties": False,
}


def rows_for(trial):
    """The rows that a trial is for."""
    return pytest.mark.parametrize(
        "row",
        [
            pytest.param(
                row,
                id=row.name,
                marks=[
                    *[pytest.mark.slow] * row.is_real,
                    *[pytest.mark.skip(reason=row.missing)] * bool(row.missing),
                ],
            )
            for row in ROWS
            if trial not in row.lacks
        ],
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


def test_every_trial_that_a_row_lacks_is_one():
    assert all(set(row.lacks) <= set(TRIALS) for row in ROWS)


# --- replies ---------------------------------------------------------------------------------


@rows_for("reply")
def test_a_reply_is_whole_and_counted(row, play):
    completion = play(row, "reply", chat())

    assert completion.finish_reason == "stop"
    assert completion.reasoning == ""
    assert completion.model_id
    assert completion.usage.input_tokens > 0
    assert completion.usage.output_tokens > 1
    if row.is_real:
        assert completion.text.startswith("Hello")
    else:
        assert completion.text == WHOLE
        assert completion.usage.cached_tokens == row.cached_tokens


@rows_for("reply")
def test_a_calls_phases_follow_each_other_from_its_sending_on(row, play):
    completion = play(row, "reply", chat())

    edges = [edge for phase in completion.phases for edge in (phase.start_ns, phase.end_ns)]
    assert edges == sorted(edges)
    assert completion.phases[0].start_ns == completion.sent_ns
    assert edges[1:-1:2] == edges[2::2]
    assert completion.sent_ns <= completion.first_token_ns <= edges[-1]


@rows_for("pieces")
def test_the_pieces_that_are_told_are_the_reply(row, play):
    told = []

    completion = play(row, "pieces", chat(on_text=told.append))

    assert len(told) > 1
    assert "".join(told) == completion.text


@rows_for("whole")
def test_a_reply_that_is_not_streamed_is_the_same(row, play):
    told = []

    completion = play(row, "whole", chat(on_text=told.append), stream=False)

    assert told == [completion.text]
    assert completion.finish_reason == "stop"
    assert completion.itl is None
    assert completion.phases[-1].end_ns > completion.sent_ns
    if row.is_real:
        assert completion.text.startswith("Hello")
    else:
        assert completion.text == WHOLE


@rows_for("schema")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_schema_is_held_to(row, stream, play):
    async def act(opened):
        completion = await chat(IN_JSON, reply_schema=SCHEMA)(opened)
        return completion, opened.enforced

    completion, enforced = play(row, "schema", act, stream=stream)

    reply = json.loads(completion.text)
    assert set(reply) == {"city", "owls"}
    assert isinstance(reply["owls"], int)
    assert enforced in (None, [SCHEMA])


@rows_for("log probabilities")
def test_every_token_comes_with_its_log_probability_and_its_rivals(row, play):
    completion = play(row, "log probabilities", chat(top_logprobs=2, max_output_tokens=6))

    # The token that ends a reply has no text.
    tokens = [one.token for one in completion.logprobs]
    assert completion.text == "".join(tokens).removesuffix("<|im_end|>")
    assert all(one.logprob <= 0 for one in completion.logprobs)
    assert {len(one.top) for one in completion.logprobs} == {2}


@rows_for("stop")
def test_a_reply_ends_before_a_stop_text(row, play):
    whole = play(row, "stop", chat()).text
    stop = whole[len(whole) // 2 :][:3]

    completion = play(row, "stop", chat(stop=(stop,)))

    assert completion.finish_reason == "stop"
    assert completion.text == whole[: whole.index(stop)]


@rows_for("length")
def test_a_reply_ends_at_its_token_limit(row, play):
    completion = play(row, "length", chat(max_output_tokens=2))

    assert completion.finish_reason == "length"
    assert completion.text
    assert row.is_real is False or completion.usage.output_tokens == 2


@rows_for("empty")
def test_a_reply_may_be_empty(row, play):
    told = []

    # A real model would say Hello.
    completion = play(row, "empty", chat(on_text=told.append, stop=("H",) if row.is_real else ()))

    assert completion.text == ""
    assert completion.finish_reason == "stop"
    assert told == []


@rows_for("thinking")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_what_is_thought_aloud_is_not_part_of_the_answer(row, stream, play):
    told = []

    completion = play(row, "thinking", chat(on_text=told.append), stream=stream)

    assert completion.reasoning == "".join(THOUGHT)
    assert completion.text == "".join(told) == WHOLE


# --- refusals --------------------------------------------------------------------------------


@rows_for("overflow")
def test_a_prompt_that_is_too_long_is_said_to_be(row, play):
    with pytest.raises(row.overflow) as caught:
        play(row, "overflow", chat(TOO_LONG))

    if row.overflow is ContextOverflow and row.name != "scripted":
        _check_counts(row, caught.value)


@rows_for("whole overflow")
def test_a_prompt_that_is_too_long_is_said_to_be_without_a_stream_too(row, play):
    with pytest.raises(ContextOverflow) as caught:
        play(row, "whole overflow", chat(TOO_LONG), stream=False)

    _check_counts(row, caught.value)


def _check_counts(row, error):
    assert "Shorten the prompt" in str(error)
    if row.is_real:
        assert error.context_tokens > 0
        assert error.prompt_tokens is None or error.prompt_tokens > error.context_tokens
    else:
        assert (error.prompt_tokens, error.context_tokens) == row.overflow_counts


@rows_for("unknown model")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_model_that_is_not_served_is_said_to_be(row, stream, play):
    with pytest.raises(ModelNotFound):
        play(row, "unknown model", chat(), stream=stream)


@rows_for("overload")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
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


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("abort", id="vLLM's abort"),
        pytest.param("error", id="MLC's error"),
        pytest.param("timeout", id="TensorRT-LLM's timeout"),
        pytest.param("cancelled", id="TensorRT-LLM's cancelled"),
        pytest.param("insufficient_system_resource", id="DeepSeek's"),
        pytest.param("network_error", id="GLM's"),
        pytest.param("words of next year", id="an unknown one"),
    ],
)
def test_a_generation_that_the_server_breaks_off_is_no_reply(word):
    async def main():
        async with Loopback(
            [Reply(steps=llama_server_stream("Hel", finish_reason=word))]
        ) as server:
            wire = OpenAIWire(Endpoint(tag="judge", url=server.url))
            with pytest.raises(StreamCut, match=f"broke the generation off .*'{word}'"):
                await chat()(Opened(backend=wire))
            await wire.aclose()

    asyncio.run(main())


@rows_for("late error")
def test_an_error_in_the_middle_of_a_stream_is_raised(row, play):
    with pytest.raises(row.late_error):
        play(row, "late error", chat())


@rows_for("garbage")
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_what_is_not_the_protocol_is_no_reply(row, stream, play):
    with pytest.raises(row.garbage if stream else row.unreadable):
        play(row, "garbage", chat(), stream=stream)


@rows_for("silent")
def test_a_server_that_says_nothing_meets_the_limit_for_the_first_token(row, play):
    # A model in this process cannot be silenced, but no prompt is read so soon.
    soon_s = 0.005 if row.is_real else 0.05
    with pytest.raises(CallTimeout, match="first_token_timeout_s") as caught:
        play(row, "silent", chat("A long story. " * 30), first_token_timeout_s=soon_s)

    assert caught.value.limit == "first_token_timeout_s"


@rows_for("stalled")
def test_a_stream_that_stalls_meets_the_limit_between_tokens(row, play):
    soon_s = 0.0001 if row.is_real else 0.05
    with pytest.raises(CallTimeout, match="between_tokens_timeout_s") as caught:
        play(row, "stalled", chat("Tell a story."), between_tokens_timeout_s=soon_s)

    assert caught.value.limit == "between_tokens_timeout_s"


@rows_for("cancelling")
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


@rows_for("counting")
def test_a_conversation_is_counted_as_the_model_reads_it(row, play):
    async def act(opened):
        prompt = as_messages("one two three")
        asked = ChatRequest(model="judge", messages=prompt, max_output_tokens=1)
        completion = await opened.backend.chat(asked)
        count = await opened.backend.count_tokens(CountRequest(model="judge", messages=prompt))
        return count, completion.usage.input_tokens

    count, input_tokens = play(row, "counting", act)

    assert count == (input_tokens if row.is_real else 3)
