import asyncio
import sqlite3
from contextlib import asynccontextmanager, closing
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ModelFileInvalid, StreamCut
from harness.inference import (
    ChatRequest,
    Completion,
    CountRequest,
    Endpoint,
    Message,
    Phase,
    ScriptedBackend,
    TokenLogprob,
    Traced,
    Usage,
    as_messages,
)
from harness.inference.around.cached import Cached, call_key, reply_identity
from harness.inference.around.call_cache import CallCache
from harness.inference.completion import InterTokenLatency
from harness.trace import ManualClock, SpanEnded, SpanRecord, Tracer

REQUEST = ChatRequest(model="m", messages=as_messages("Write."))


class Answering(ScriptedBackend):
    """Answers every call with one completion."""

    def __init__(self, completion):
        super().__init__([])
        self._completion = completion

    async def chat(self, request):
        self.requests.append(request)
        return self._completion


@asynccontextmanager
async def cached(backend, *, path=None, clock=None):
    cache = CallCache(path)
    try:
        yield Cached(backend, cache=cache, identity="m", clock=clock or ManualClock())
    finally:
        await cache.aclose()


def texts(requests, path=None):
    """What comes of these calls, and how many of them were asked of the model."""

    async def main():
        backend = ScriptedBackend(["first", "second", "third"])
        async with cached(backend, path=path) as calls:
            return [(await calls.chat(one)).text for one in requests], len(backend.requests)

    return asyncio.run(main())


def test_a_call_that_was_made_before_is_answered_as_it_was_then():
    assert texts([REQUEST, REQUEST, REQUEST]) == (["first"] * 3, 1)


def test_so_it_is_by_a_later_run(tmp_path):
    path = tmp_path / "calls.sqlite"
    texts([REQUEST], path=path)
    assert texts([REQUEST], path=path) == (["first"], 0)


@pytest.mark.parametrize(
    ("request_", "repeatable"),
    [
        pytest.param(REQUEST, True, id="greedy"),
        pytest.param(replace(REQUEST, temperature=0.7, seed=0), True, id="seeded"),
        pytest.param(replace(REQUEST, temperature=0.7), False, id="left to chance"),
    ],
)
def test_only_calls_that_are_meant_to_repeat_are_kept(request_, repeatable):
    expected = (["first", "first"], 1) if repeatable else (["first", "second"], 2)
    assert texts([request_, request_]) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"messages": as_messages("Write!")},
        {"messages": (Message("system", "Write."),)},
        {"messages": (*REQUEST.messages, Message("assistant", "Well."))},
        {"max_output_tokens": 64},
        {"temperature": 0.7, "seed": 7},
        {"frequency_penalty": 0.5},
        {"seed": 7},
        {"stop": ("END",)},
        {"reply_schema": {"type": "object"}},
        {"top_logprobs": 0},
    ],
    ids=", ".join,
)
def test_a_call_that_may_be_answered_otherwise_is_another(change):
    assert texts([REQUEST, replace(REQUEST, **change)]) == (["first", "second"], 2)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "tag"},
        {"role": "evaluator"},
        {"timeout_s": 9.0},
        {"on_text": str},
        {"on_piece": list},
    ],
    ids=", ".join,
)
def test_what_makes_no_difference_to_the_reply_makes_none_to_the_key(change):
    assert texts([REQUEST, replace(REQUEST, **change)]) == (["first", "first"], 1)


def test_a_temperature_of_0_is_one_of_0_0():
    assert texts([REQUEST, replace(REQUEST, temperature=0)]) == (["first", "first"], 1)


def test_every_field_of_a_request_is_known_to_be_in_the_key_or_not():
    # A new one has to be put in `call_key`, or else into the list above.
    assert {one.name for one in fields(ChatRequest)} == {
        *("messages", "max_output_tokens", "temperature", "frequency_penalty"),
        *("seed", "stop", "reply_schema", "top_logprobs"),
        *("model", "role", "timeout_s", "deadline", "on_text", "on_piece"),
    }


@pytest.mark.parametrize(
    ("change", "dropped", "kept"),
    [
        pytest.param({}, (), True, id="greedy"),
        pytest.param({}, ("frequency_penalty",), True, id="greedy, less something else"),
        pytest.param({}, ("temperature",), False, id="greedy was refused"),
        pytest.param({"seed": 7}, ("temperature",), True, id="but there is a seed"),
        pytest.param({"seed": 7}, ("temperature", "seed"), False, id="which was refused too"),
        pytest.param({"temperature": 0.7, "seed": 7}, ("seed",), False, id="the seed was refused"),
        pytest.param({"seed": 7}, ("seed",), True, id="a seed of a greedy call"),
    ],
)
def test_a_reply_is_kept_only_if_what_was_sent_would_give_it_again(change, dropped, kept):
    class Dropping(ScriptedBackend):
        async def chat(self, request):
            return replace(await super().chat(request), dropped=dropped)

    async def main():
        cache, backend = CallCache(None), Dropping(["first", "second"])
        cached = Cached(backend, cache=cache, identity="m", clock=ManualClock())
        for _ in range(2):
            reply = await cached.chat(replace(REQUEST, **change))
        await cache.aclose()
        return reply.from_cache

    assert asyncio.run(main()) is kept


def test_the_order_of_a_schemas_fields_is_part_of_it():
    a, b = {"type": "string"}, {"type": "number"}
    schemas = [{"properties": {"a": a, "b": b}}, {"properties": {"b": b, "a": a}}]
    keys = {call_key(replace(REQUEST, reply_schema=one), identity="m") for one in schemas}
    assert len(keys) == 2


def test_a_call_that_failed_is_made_again():
    async def main():
        backend = ScriptedBackend([StreamCut("it broke off", endpoint="m"), "A draft."])
        async with cached(backend) as calls:
            with pytest.raises(StreamCut):
                await calls.chat(REQUEST)
            assert (await calls.chat(REQUEST)).text == "A draft."

    asyncio.run(main())


WHOLE = Completion(
    text="Good.",
    reasoning="Let me see.",
    finish_reason="length",
    usage=Usage(
        input_tokens=31, output_tokens=3, cached_tokens=None, reasoning_tokens=2, draft_tokens=0
    ),
    sent_ns=1,
    first_token_ns=2,
    phases=(Phase(name="decode", start_ns=2, end_ns=3, source="measured"),),
    model_id="served-name",
    itl=InterTokenLatency(mean_ns=1, p95_ns=2),
    cost_usd=0.01,
    logprobs=(TokenLogprob(token="Good", logprob=-0.1, top=(("Bad", float("-inf")),)),),
    structured="enforced",
    dropped=("seed",),
)


def twice(completion, *, clock):
    async def main():
        async with cached(Answering(completion), clock=clock) as calls:
            first = await calls.chat(REQUEST)
            clock.advance(ms=5)
            return first, await calls.chat(REQUEST)

    return asyncio.run(main())


def test_a_reply_comes_back_without_what_it_took_and_cost():
    first, again = twice(WHOLE, clock=ManualClock(7))

    assert first == WHOLE
    assert again == replace(
        WHOLE,
        sent_ns=5_000_007,
        first_token_ns=None,
        phases=(),
        itl=None,
        cost_usd=0.0,
        from_cache=True,
    )


NUMBERS = st.floats(allow_nan=False)
COMPLETIONS = st.builds(
    Completion,
    phases=st.just(()),
    itl=st.none(),
    cost_usd=st.none(),
    first_token_ns=st.none(),
    logprobs=st.lists(
        st.builds(
            TokenLogprob,
            logprob=NUMBERS,
            top=st.lists(st.tuples(st.text(), NUMBERS), max_size=3).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
    from_cache=st.just(value=False),
)


@given(COMPLETIONS)
def test_a_reply_comes_back_as_it_was_whatever_it_was(completion):
    _, again = twice(completion, clock=ManualClock())
    assert replace(again, sent_ns=completion.sent_ns, from_cache=False) == completion


@pytest.mark.parametrize(("text", "pieces"), [("A draft.", ["A draft."]), ("", [])])
def test_who_listens_is_told_a_known_reply_in_one_piece(text, pieces):
    async def main():
        async with cached(ScriptedBackend([text])) as calls:
            await calls.chat(REQUEST)
            await calls.chat(replace(REQUEST, on_text=heard.append))

    heard = []
    asyncio.run(main())
    assert heard == pieces


@pytest.mark.parametrize("text", ["{}", "no JSON", '{"text": 1}'])
def test_what_is_kept_but_is_no_completion_is_asked_for_anew(tmp_path, text):
    path = tmp_path / "calls.sqlite"
    texts([REQUEST], path=path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE reply SET text = ?", (text,))

    assert texts([REQUEST, REQUEST], path=path) == (["first", "first"], 1)


def test_the_trace_says_that_no_model_was_asked():
    records = []

    async def main():
        tracer = Tracer(records.append)
        async with cached(Answering(WHOLE), clock=tracer.now_ns) as calls:
            traced = Traced(calls, tracer=tracer)
            await traced.chat(REQUEST)
            await traced.chat(REQUEST)

    asyncio.run(main())
    first, again = [record.attributes for record in records if isinstance(record, SpanEnded)]
    assert first["input_tokens"] == 31
    assert again["from_cache"] is True
    assert not {"input_tokens", "ttft_ns", "itl_mean_ns"} & set(again)
    assert again["cost_usd"] == 0.0
    assert len([record for record in records if isinstance(record, SpanRecord)]) == 1


def test_counts_are_asked_for_each_time():
    async def main():
        async with cached(ScriptedBackend([])) as calls:
            count = CountRequest(model="m", messages=as_messages("Two words"))
            assert await calls.count_tokens(count) == 2

    asyncio.run(main())


SERVED = {"tag": "m", "url": "http://127.0.0.1:8000/v1"}


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"tag": "other", "model_id": "m"}, True),
        ({"timeout_s": 9.0}, True),
        ({"max_concurrency": 2}, True),
        ({"url": "http://127.0.0.1:8001/v1"}, False),
        ({"model_id": "M"}, False),
        ({"backend": "vllm"}, False),
        ({"drop": ("temperature",)}, False),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_endpoints_share_replies_only_when_they_would_reply_alike(change, alike):
    one, other = Endpoint(**SERVED), Endpoint(**SERVED | change)
    assert (reply_identity(one) == reply_identity(other)) == alike


def test_a_file_that_was_changed_is_another_model(tmp_path):
    endpoint = Endpoint(tag="m", path=tmp_path / "m.gguf")
    with pytest.raises(ModelFileInvalid, match=r"m\.gguf: cannot be read"):
        reply_identity(endpoint)

    endpoint.path.write_bytes(b"GGUF")
    before = reply_identity(endpoint)
    assert before == reply_identity(endpoint)
    endpoint.path.write_bytes(b"GGUF, and more of it")
    assert reply_identity(endpoint) != before
