import asyncio
import hashlib
from dataclasses import replace

import pytest
from calls import backend_at, phase
from clients import client_of
from loopback import GONE_BEFORE_A_BYTE, Loopback, Reply, error_reply, llama_server_stream
from manual_clock import ManualClock

from harness.errors import StreamCut
from harness.inference import (
    ChatRequest,
    Completion,
    Message,
    ScriptedBackend,
    ScriptedReply,
    ToolCall,
    ToolSpec,
    Usage,
)
from harness.inference.completion import InterTokenLatency
from harness.trace import Journal, RunTrace, TraceOptions, Tracer, calls_of
from harness.trace.calls import call_group
from harness.trace.records import Content, Instant, SpanEnded, SpanRecord, SpanStarted
from harness.trace.tracer import span_id, trace_id

REQUEST = ChatRequest(
    model="judge",
    role="evaluator",
    messages=(Message("system", "Be strict."), Message("user", "Judge.")),
    temperature=0.7,
    top_p=0.9,
    min_p=0.05,
    seed=7,
    max_output_tokens=64,
    reply_schema={"type": "object"},
)
WHOLE = Reply(steps=llama_server_stream("Go", "od."))
REFUSED = error_reply(400, {"error": {"message": "seed is not supported"}})
PROMPT = "[system]\nBe strict.\n\n[user]\nJudge."
ANSWER = Completion(
    text="Good.",
    reasoning="",
    finish_reason="stop",
    usage=Usage(input_tokens=31, output_tokens=3, cached_tokens=24),
    sent_ns=1_000_000,
    first_token_ns=101_000_000,
    phases=(phase("prefill", 1, 101, "reported"), phase("decode", 101, 400, "measured")),
    model_id="served-name",
)


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def of_class(records, record_class):
    return [record for record in records if isinstance(record, record_class)]


class Answering:
    """A backend with every field of its completion known."""

    def __init__(self, clock, answer=ANSWER):
        self.clock, self.answer = clock, answer

    async def chat(self, _request):
        self.clock.advance(ms=400)
        return self.answer


def chat_in(records):
    """The span of the one call."""
    (begun,) = (record for record in of_class(records, SpanStarted) if record.name == "chat")
    (end,) = (record for record in of_class(records, SpanEnded) if record.id == begun.id)
    return SpanRecord(
        id=begun.id,
        parent=None,
        name="chat",
        start_ns=begun.time_ns,
        end_ns=end.time_ns,
        attributes={**begun.attributes, **end.attributes},
    )


def test_a_call_is_a_span_that_says_what_was_asked_and_what_came():
    clock, records = ManualClock(1_000_000), []
    backend = Answering(clock)
    client = client_of(backend, tag="judge", tracer=Tracer(records.append, clock=clock))

    assert asyncio.run(client.chat(REQUEST)) == ANSWER

    [chat] = of_class(records, SpanStarted)
    assert (chat.name, chat.parent, chat.time_ns) == ("chat", None, 1_000_000)
    assert chat.attributes == {
        "track": "model judge",
        "label": "evaluator",
        "model": "judge",
        "role": "evaluator",
        "temperature": 0.7,
        "top_p": 0.9,
        "min_p": 0.05,
        "seed": 7,
        "max_output_tokens": 64,
        "structured": True,
        "prompt_chars": len("Be strict.Judge."),
        "prompt_sha256": sha256(PROMPT),
    }
    [end] = of_class(records, SpanEnded)
    assert (end.id, end.time_ns, end.status, end.error) == (chat.id, 401_000_000, "ok", None)
    assert end.attributes == {
        "ttft_ns": 100_000_000,
        "model_id": "served-name",
        "input_tokens": 31,
        "cached_tokens": 24,
        "output_tokens": 3,
        "finish_reason": "stop",
        "reply_sha256": sha256("Good."),
    }
    phases = of_class(records, SpanRecord)
    assert [(p.name, p.parent, p.start_ns, p.end_ns, p.attributes) for p in phases] == [
        ("prefill", chat.id, 1_000_000, 101_000_000, {"source": "reported"}),
        ("decode", chat.id, 101_000_000, 400_000_000, {"source": "measured"}),
    ]
    [first] = of_class(records, Instant)
    assert (first.name, first.span, first.time_ns) == ("first token", chat.id, 101_000_000)
    kept = [Content(sha256=sha256(text), text=text) for text in (PROMPT, "Good.")]
    assert of_class(records, Content) == kept


def test_tools_that_were_offered_and_called_are_on_record():
    records = []
    look = ToolSpec("look", "Looks.", {"type": "object"})
    call = ToolCall("a", "look", '{"at":"owls"}')
    client = client_of(
        ScriptedBackend([ScriptedReply(text="I look.", tool_calls=(call,)), "Two owls."]),
        tracer=Tracer(records.append, clock=ManualClock()),
    )
    asked = ChatRequest(model="m", messages=(Message("user", "How many?"),), tools=(look,))
    said = (
        Message("assistant", "I look.", tool_calls=(call,)),
        Message("tool", "Two.", answers="a"),
    )

    async def main():
        await client.chat(asked)
        await client.chat(replace(asked, messages=(*asked.messages, *said), tools=()))

    asyncio.run(main())
    assert [one.attributes.get("tools_offered") for one in of_class(records, SpanStarted)] == [
        1,
        None,
    ]
    assert [one.attributes.get("tools") for one in of_class(records, SpanEnded)] == ["native", None]
    texts = [one.text for one in of_class(records, Content)]
    called = '[calls look, a]\n{"at":"owls"}'
    assert f"I look.\n\n{called}" in texts
    told = f"[user]\nHow many?\n\n[assistant]\nI look.\n\n{called}\n\n[tool a]\nTwo."
    assert told in texts


@pytest.mark.parametrize(
    ("kv_bytes", "told"),
    [
        pytest.param(lambda tokens: tokens * 1024, {"prompt_kv_bytes": 31 * 1024}, id="known"),
        pytest.param(None, {}, id="unknown"),
    ],
)
def test_a_call_says_what_its_prompt_takes_of_the_cache_where_that_is_known(kv_bytes, told):
    clock, records = ManualClock(1_000_000), []
    client = client_of(Answering(clock), tag="judge", tracer=Tracer(records.append, clock=clock))
    lines = {"judge": replace(client.routes["judge"], kv_bytes=kv_bytes)}

    asyncio.run(replace(client, routes=lines).chat(REQUEST))

    [end] = of_class(records, SpanEnded)
    assert {k: v for k, v in end.attributes.items() if k == "prompt_kv_bytes"} == told


@pytest.mark.parametrize(
    ("before", "replies", "attempts"),
    [
        pytest.param((), (WHOLE,), None, id="one request"),
        pytest.param(
            (WHOLE,), (GONE_BEFORE_A_BYTE, REFUSED, WHOLE), 3, id="a stale connection too"
        ),
    ],
)
def test_a_real_call_is_inside_its_span_with_the_requests_that_it_took(before, replies, attempts):
    records = []
    tracer = Tracer(records.append)

    async def main():
        server = Loopback(before + replies)
        async with server, backend_at(server, clock=tracer.now_ns) as wire:
            if before:
                await wire.chat(replace(REQUEST, seed=None))
            await client_of(wire, tag="judge", tracer=tracer).chat(REQUEST)

    asyncio.run(main())
    [chat], [end] = of_class(records, SpanStarted), of_class(records, SpanEnded)
    assert end.attributes.get("attempts") == attempts
    edges = [edge for one in of_class(records, SpanRecord) for edge in (one.start_ns, one.end_ns)]
    assert edges
    assert [chat.time_ns, *edges, end.time_ns] == sorted([chat.time_ns, *edges, end.time_ns])


def test_a_server_is_told_which_span_of_the_run_its_request_belongs_to(tmp_path):
    async def main(tracer):
        server = Loopback([WHOLE])
        async with server, backend_at(server, clock=tracer.now_ns) as wire:
            await client_of(wire, tag="judge", tracer=tracer).chat(REQUEST)
        return server.requests[0].headers

    with RunTrace(tmp_path, name="run", options=TraceOptions(timelines=())) as trace:
        told = asyncio.run(main(trace))["traceparent"]
    unrecorded = asyncio.run(main(Tracer()))

    [chat] = [span for span in Journal(trace.journal_path).spans() if span.name == "chat"]
    expected = trace_id(trace.run_id).hex(), span_id(trace.run_id, chat.id).hex()
    assert told == "00-{}-{}-01".format(*expected)
    assert "traceparent" not in unrecorded


def test_a_call_that_fails_leaves_an_error_in_its_span():
    records = []
    cut = StreamCut("it broke off", endpoint="judge")

    with pytest.raises(StreamCut):
        asyncio.run(
            client_of(ScriptedBackend([cut]), tag="judge", tracer=Tracer(records.append)).chat(
                REQUEST
            )
        )

    [end] = of_class(records, SpanEnded)
    assert (end.status, end.error) == ("error", f"StreamCut: {cut}")
    assert end.attributes.pop("prompt_estimate") >= 1
    assert end.attributes == {"error_code": "call.stream-cut"}


def test_a_call_is_on_record_before_it_ends_and_one_that_is_cancelled_did_nothing_wrong():
    records = []

    async def main():
        traced = client_of(
            ScriptedBackend([], delay_s=3600), tag="judge", tracer=Tracer(records.append)
        )
        async with asyncio.TaskGroup() as group:
            call = group.create_task(traced.chat(REQUEST))
            await asyncio.sleep(0)
            assert of_class(records, SpanStarted)
            assert not of_class(records, SpanEnded)
            call.cancel()

    asyncio.run(main())
    [end] = of_class(records, SpanEnded)
    assert end.status == "cancelled"


@pytest.mark.parametrize(
    ("beats_ms", "sources", "unreliable"),
    [
        # The first token came while nobody looked: when, and so how long decoding took, is unknown.
        (
            (*range(0, 51, 10), 101, *range(110, 400, 10)),
            ["reported", "unreliable"],
            ["itl_max_ns", "itl_mean_ns", "itl_p95_ns", "itl_p99_ns", "ttft_ns"],
        ),
        # In the middle of the reply: from first to last token is right, and the waits are not.
        (
            (*range(0, 200, 10), 300, *range(310, 400, 10)),
            ["reported", "measured"],
            ["itl_max_ns", "itl_p95_ns", "itl_p99_ns"],
        ),
        (range(0, 400, 10), ["reported", "measured"], None),
    ],
)
def test_what_the_process_saw_too_late_is_marked_and_in_no_figure(beats_ms, sources, unreliable):
    clock, records = ManualClock(), []
    tracer = Tracer(records.append, clock=clock)
    waits = InterTokenLatency(mean_ns=10_000_000, p95_ns=11_000_000, p99_ns=0, max_ns=12_000_000)

    class Stalled:
        async def chat(self, _request):
            for time_ms in beats_ms:
                clock.advance(ns=time_ms * 1_000_000 - clock())
                tracer.stalls.beat()
            clock.advance(ns=400_000_000 - clock())
            return replace(ANSWER, itl=waits)

    asyncio.run(client_of(Stalled(), tag="judge", tracer=tracer).chat(REQUEST))
    spans = of_class(records, SpanRecord)
    assert [span.attributes["source"] for span in spans] == sources
    (end,) = of_class(records, SpanEnded)
    assert end.attributes.get("unreliable") == unreliable
    figures = call_group(calls_of([chat_in(records), *spans]))
    assert figures.unreliable == (unreliable is not None)
    assert (figures.ttft is None) is ("ttft_ns" in (unreliable or ()))
    assert (figures.itl_mean is None) is ("itl_mean_ns" in (unreliable or ()))
    assert (figures.decode_tokens_per_s is None) is ("unreliable" in sources)


THOUGHT = Usage(input_tokens=31, output_tokens=640, cached_tokens=None, reasoning_tokens=600)
DECODED_WHOLE = (phase("prefill", 1, 101, "derived"), phase("decode", 101, 400, "reported"))


@pytest.mark.parametrize(
    ("answer", "decode_tokens"),
    [
        pytest.param(ANSWER, 2, id="no reasoning"),
        pytest.param(replace(ANSWER, usage=THOUGHT), 39, id="reasoning before the first piece"),
        pytest.param(replace(ANSWER, usage=THOUGHT, reasoning="So."), 639, id="streamed reasoning"),
        pytest.param(
            replace(ANSWER, usage=THOUGHT, phases=DECODED_WHOLE), 639, id="time by the server"
        ),
        pytest.param(replace(ANSWER, usage=None), None, id="not counted"),
    ],
)
def test_tokens_of_decode_are_without_reasoning_that_was_not_streamed(answer, decode_tokens):
    clock, records = ManualClock(), []
    client = client_of(
        Answering(clock, answer), tag="judge", tracer=Tracer(records.append, clock=clock)
    )
    asyncio.run(client.chat(REQUEST))
    (call,) = calls_of([chat_in(records)])
    assert call.decode_tokens == decode_tokens
