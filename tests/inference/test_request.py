"""What goes into a call, and the small parts that every backend is made of."""

import asyncio
import json
import math
import threading
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from manual_clock import ManualClock

from harness.errors import InvalidInput, ServerError, StreamCut
from harness.inference import (
    ChatRequest,
    EmbedRequest,
    Message,
    ScriptedBackend,
    ToolCall,
    ToolSpec,
    as_messages,
)
from harness.inference.completion import Phase, as_vectors
from harness.inference.json_text import json_of
from harness.inference.reply_store import call_key
from harness.inference.request import as_texts, most_prompt_tokens, most_tokens_in
from harness.threads import to_its_end

SOUND = {"type": "input_audio", "input_audio": {"data": "…"}}


def request(text="Write two words.", **how):
    return ChatRequest(model="m", messages=as_messages(text), **how)


# --- what is asked ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: as_messages(b"caf\xe9".decode("utf-8", "surrogateescape")), "request.not-text"),
        (lambda: ChatRequest(model="m", messages=()), "request.no-messages"),
        (lambda: as_messages(7), "request.not-a-message"),
        (lambda: as_messages(b"Hello."), "request.not-a-message"),
        (lambda: as_messages(["Hello."]), "request.not-a-message"),
        (lambda: as_messages({"content": "Hello."}), "request.not-a-message"),
        (lambda: as_messages({"role": "tool", "content": "Hello."}), "request.answers-nothing"),
        (lambda: as_messages({"role": "user", "content": 7}), "request.content-not-text"),
        (lambda: as_messages({"role": "user", "content": [SOUND]}), "request.part-not-text"),
        (lambda: Message("narrator", "Once"), "request.role-unknown"),
        (lambda: EmbedRequest(model="m", texts=()), "request.no-texts"),
        (lambda: request(max_output_tokens=0), "request.no-room"),
        (lambda: request(temperature=math.nan), "request.temperature-negative"),
        (lambda: request(temperature=math.inf), "request.temperature-negative"),
        (lambda: request(seed=2**70), "request.long-seed"),
        (lambda: request(top_p=0.0), "request.cutoff-out-of-range"),
        (lambda: request(top_k=0), "request.cutoff-out-of-range"),
        (lambda: request(min_p=math.nan), "request.cutoff-out-of-range"),
        (lambda: request(frequency_penalty=2.5), "request.penalty-out-of-range"),
        (lambda: request(timeout_s=0.0), "request.timeout-not-positive"),
        (lambda: request(timeout_s="3"), "request.wrong-type"),
        (lambda: request(temperature="hot"), "request.wrong-type"),
        (lambda: request(temperature=None), "request.wrong-type"),
        (lambda: request(max_output_tokens="5"), "request.wrong-type"),
        (lambda: request(max_output_tokens=True), "request.wrong-type"),
        (lambda: request(seed=0.5), "request.wrong-type"),
        (lambda: request(stop="END"), "request.wrong-type"),
        (lambda: request(on_text=3), "request.wrong-type"),
        (lambda: request(reply_schema=[1]), "request.wrong-type"),
        (lambda: ChatRequest(model=3, messages=as_messages("a")), "request.wrong-type"),
        (lambda: ChatRequest(model="m", messages="Hello."), "request.wrong-type"),
        (lambda: EmbedRequest(model="m", texts=(1, 2)), "request.wrong-type"),
        (lambda: as_texts(3), "request.wrong-type"),
        (lambda: json_of({"extra_body": {1}}), "request.wrong-type"),
    ],
)
def test_what_no_server_could_answer_is_refused_before_any_call(make, code):
    with pytest.raises(InvalidInput) as caught:
        make()
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("number", "plain"),
    [
        (np.int64(7), {"seed": 7}),
        (np.int32(7), {"top_k": 7}),
        (np.int64(7), {"max_output_tokens": 7}),
        (np.float32(0.5), {"top_p": 0.5}),
        (np.float64(0.5), {"presence_penalty": 0.5}),
        (Fraction(1, 2), {"temperature": 0.5}),
    ],
    ids=repr,
)
def test_a_number_of_another_library_is_sent_and_kept_as_pythons_own(number, plain):
    (name,) = plain
    asked = request(**{name: number})
    assert (asked, type(getattr(asked, name))) == (request(**plain), type(plain[name]))
    assert call_key(asked, identity="m") == call_key(request(**plain), identity="m")


@pytest.mark.parametrize(
    "prompt",
    [
        pytest.param("Hello.", id="text"),
        pytest.param(Message("user", "Hello."), id="message"),
        pytest.param({"role": "user", "content": "Hello."}, id="dictionary"),
        pytest.param([{"role": "user", "content": "Hello."}], id="list of dictionaries"),
        pytest.param(
            [{"role": "user", "content": [{"type": "text", "text": "Hel"}, "lo."]}], id="parts"
        ),
    ],
)
def test_a_prompt_may_be_a_text_a_message_or_what_other_libraries_take(prompt):
    assert as_messages(prompt) == (Message("user", "Hello."),)


def test_a_prompt_may_hold_calls_of_tools_as_openai_has_them():
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    read = as_messages(
        [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "An owl.", "tool_call_id": "call_1"},
        ]
    )
    looked = Message("assistant", "", tool_calls=(ToolCall("call_1", "look", "{}"),))
    assert read == (looked, Message("tool", "An owl.", answers="call_1"))
    for calls in ([{"name": "look"}], {"name": "look"}, 5):
        with pytest.raises(InvalidInput) as caught:
            as_messages({"role": "assistant", "content": "", "tool_calls": calls})
        assert caught.value.code == "request.not-a-tool-call"


def test_tools_and_calls_of_them_are_part_of_a_prompts_estimate():
    plain = request()
    tool = ToolSpec("look", "Looks at an owl. " * 30, {"type": "object", "properties": {}})
    call = ToolCall("call_1", "look", json.dumps({"at": "owls" * 60}))
    called = Message("assistant", "", tool_calls=(call,))

    more = most_prompt_tokens(replace(plain, tools=(tool,))) - most_prompt_tokens(plain)
    assert more > most_tokens_in(tool.description)
    told = replace(plain, messages=(*plain.messages, called))
    more = most_prompt_tokens(told) - most_prompt_tokens(plain)
    assert more > most_tokens_in(call.arguments)


@pytest.mark.parametrize(
    ("text", "most"),
    [
        pytest.param("x" * 301, 101, id="rounded up"),
        pytest.param("\u65f6" * 100, 100, id="a letter of Chinese for each"),
        pytest.param("\ud800", 1, id="half a letter"),
    ],
)
def test_a_text_has_at_most_a_token_for_three_bytes(text, most):
    assert most_tokens_in(text) == most


# --- vectors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([[1.0, 2.0], [1.0]], id="ragged"),
        pytest.param([[], []], id="all are empty"),
        pytest.param([[1.0]], id="too few"),
        pytest.param([[1.0], [math.nan]], id="not a number"),
        pytest.param([[1.0], [1e300]], id="larger than float32"),
    ],
)
def test_what_is_not_a_vector_per_text_is_the_servers_fault(rows):
    with pytest.raises(ServerError) as caught:
        as_vectors(rows, count=2)

    assert caught.value.status is None


# --- the scripted backend --------------------------------------------------------------------


def test_a_script_is_played_in_order_and_its_end_says_at_which_call():
    async def main():
        cut = StreamCut("it broke off", endpoint="m")
        backend = ScriptedBackend(["one", cut])
        assert (await backend.chat(request("first"))).text == "one"
        with pytest.raises(StreamCut) as caught:
            await backend.chat(request("second"))
        assert caught.value is cut
        with pytest.raises(LookupError, match="call 3"):
            await backend.chat(request("third"))
        assert backend.requests == [request(text) for text in ("first", "second", "third")]
        await backend.aclose()
        assert (await ScriptedBackend("one text").chat(request())).text == "one text"

    asyncio.run(main())


def test_a_completion_counts_words_and_is_timed_by_the_given_clock():
    clock = ManualClock(5_000)

    def answer(_request):
        clock.advance(ms=3)
        return "two words"

    completion = asyncio.run(ScriptedBackend(answer, clock=clock).chat(request()))

    assert (completion.usage.input_tokens, completion.usage.output_tokens) == (3, 2)
    assert (completion.usage.cached_tokens, completion.finish_reason) == (None, "stop")
    assert (completion.model_id, completion.sent_ns) == ("m", 5_000)
    assert completion.first_token_ns == 3_005_000
    prefill = Phase(name="prefill", start_ns=5_000, end_ns=3_005_000, source="derived")
    assert completion.phases == (prefill,)


# --- what runs in a thread -------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, OSError("no space")], ids=["well", "failing"])
def test_a_cancellation_waits_for_its_end_and_is_not_lost(error):
    under_way, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work():
        under_way.set()
        assert may_end.wait(10)
        ended.set()
        if error is not None:
            raise error

    async def main():
        task = asyncio.create_task(to_its_end(work))
        assert await asyncio.to_thread(under_way.wait, 10)
        task.cancel()
        await asyncio.wait([task], timeout=0)
        assert not task.done()

        may_end.set()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert ended.is_set()
        assert cancelled.value.__cause__ is error

    asyncio.run(main())
