import asyncio
from dataclasses import replace

import orjson
import pytest
from clients import client_of
from manual_clock import ManualClock

from harness.errors import ServerError
from harness.inference import ChatRequest, Message, ScriptedBackend
from harness.inference.structured import SchemaKnowledge, mode_of
from harness.trace import Tracer
from harness.trace.records import SpanEnded

SCHEMA = {"type": "object", "properties": {"owls": {"type": "integer"}}, "required": ["owls"]}
ASKED = ChatRequest(
    model="judge",
    messages=(Message("system", "Count."), Message("user", "How many owls?")),
    reply_schema=SCHEMA,
)
KEPT = '{"word": "owl-7f3a"}'
ANSWER = '{"owls": 3}'


def server_error(status):
    return ServerError("response_format is not supported", endpoint="judge", status=status)


def keeping_client(backend, *, known=None, **how):
    return client_of(backend, tag="judge", line={"schemas": known or SchemaKnowledge()}, **how)


def keeping(*script, calls=1, known=None, asked=ASKED):
    """The completions of calls one after another, what the backend was asked, and the trace."""
    records = []
    tracer = Tracer(records.append, clock=ManualClock())
    backend, knowledge = ScriptedBackend(script), SchemaKnowledge(known)

    async def main():
        # Tags of one server share what is known.
        return [
            await keeping_client(backend, tracer=tracer, known=knowledge).chat(asked)
            for _ in range(calls)
        ]

    return asyncio.run(main()), backend.requests, records


@pytest.mark.parametrize(
    ("probed", "mode"),
    [
        pytest.param(KEPT, "enforced", id="nothing else can be said"),
        pytest.param('{"greeting": "Hello!"}', "advisory", id="JSON, but another"),
        pytest.param("Hello there!", "ignored", id="no notice taken"),
        pytest.param('Sure! {"word": "owl-7f3a"}', "ignored", id="in a sentence of its own"),
    ],
)
def test_the_first_call_with_a_schema_finds_out_once_what_becomes_of_it(probed, mode):
    completions, requests, records = keeping(probed, ANSWER, ANSWER, calls=2)

    assert [(one.structured, one.text) for one in completions] == [(mode, ANSWER)] * 2
    assert len(requests) == 3
    probe = next(record.attributes for record in records if isinstance(record, SpanEnded))
    assert (probe["schema"], probe["model_id"]) == (mode, "judge")
    assert probe["output_tokens"] == len(probed.split())
    if mode == "enforced":
        assert requests[1] == ASKED
    else:  # the model is told at the very end of the prompt
        first, last = requests[1].messages
        assert first == ASKED.messages[0]
        assert last.content.startswith("How many owls?\n\n")
        assert last.content.endswith(orjson.dumps(SCHEMA).decode())
        assert requests[1].reply_schema == SCHEMA


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        pytest.param("", "advisory", id="nothing but thought"),
        pytest.param('{ \n\n"word": \n\n', "enforced", id="blanks used up the limit"),
        pytest.param("Hello there, dear", "ignored", id="a long greeting"),
    ],
)
def test_a_probe_that_the_limit_cut_is_judged_by_what_there_is(text, mode):
    reply = asyncio.run(ScriptedBackend([text]).chat(ASKED))

    assert mode_of(replace(reply, finish_reason="length")) == mode


def test_what_is_known_is_not_probed_and_a_call_without_a_schema_is_passed_on():
    (completion,), requests, _ = keeping(ANSWER, known="enforced")
    assert (completion.structured, requests) == ("enforced", [ASKED])

    plain = replace(ASKED, reply_schema=None)
    (completion,), requests, _ = keeping("Three.", asked=plain)
    assert (completion.structured, requests) == (None, [plain])


def test_a_server_that_refuses_schemas_is_sent_none():
    (completion,), (_, asked), _ = keeping(server_error(400), ANSWER)

    assert (completion.structured, asked.reply_schema) == ("advisory", None)
    assert "JSON" in asked.messages[1].content


def test_a_probe_that_fails_says_nothing_and_is_made_again():
    error = server_error(500)
    wrapped = keeping_client(ScriptedBackend([error, KEPT, ANSWER]))

    with pytest.raises(type(error)):
        asyncio.run(wrapped.chat(ASKED))
    assert asyncio.run(wrapped.chat(ASKED)).structured == "enforced"


@pytest.mark.parametrize("fails", [False, True])
def test_calls_side_by_side_wait_for_one_probe_and_for_no_other_when_it_fails(fails):
    error = server_error(500)

    def answer(asked):
        return error if fails else ANSWER if asked == ASKED else KEPT

    async def main():
        wrapped = keeping_client(backend)
        calls = [asyncio.create_task(wrapped.chat(ASKED)) for _ in range(4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    backend = ScriptedBackend(answer)
    outcomes = asyncio.run(main())
    if fails:
        assert outcomes == [error] * 4
    assert len(backend.requests) == (1 if fails else 5)


def test_a_probe_whose_caller_gives_up_is_made_by_the_next():
    class Slow(ScriptedBackend):
        async def chat(self, request):
            reply = await super().chat(request)
            if len(self.requests) == 1:
                await asyncio.Event().wait()
            return reply

    async def main():
        wrapped = keeping_client(Slow([KEPT, KEPT, ANSWER]))
        first, second = (asyncio.create_task(wrapped.chat(ASKED)) for _ in range(2))
        for _ in range(2):
            await asyncio.sleep(0)
        first.cancel()
        return (await second).structured

    assert asyncio.run(main()) == "enforced"
