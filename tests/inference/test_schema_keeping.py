import asyncio
from dataclasses import replace

import orjson
import pytest

from harness.errors import ContextOverflow, Overloaded, ServerError
from harness.inference import ChatRequest, Message, ScriptedBackend
from harness.inference.around.schema_keeping import SchemaKeeping, SchemaKnowledge, mode_of
from harness.trace import ManualClock, Tracer
from harness.trace.records import SpanEnded

SCHEMA = {"type": "object", "properties": {"owls": {"type": "integer"}}, "required": ["owls"]}
ASKED = ChatRequest(
    model="judge",
    messages=(Message("system", "Count."), Message("user", "How many owls?")),
    reply_schema=SCHEMA,
)
KEPT = '{"word": "owl-7f3a"}'
ANSWER = '{"owls": 3}'


def keeping(*script, calls=1, known=None):
    """The completions of calls one after another, what the backend was asked, and the trace."""
    records = []
    tracer = Tracer(records.append, clock=ManualClock())
    backend = ScriptedBackend(script)

    async def main():
        wrapped = SchemaKeeping(backend, tracer=tracer, known=SchemaKnowledge(known))
        return [await wrapped.chat(ASKED) for _ in range(calls)]

    return asyncio.run(main()), backend.requests, records


@pytest.mark.parametrize(
    ("probed", "mode"),
    [
        pytest.param(KEPT, "enforced", id="nothing else can be said"),
        pytest.param('{\n  "word":\n  "owl-7f3a"\n}', "enforced", id="with blanks"),
        pytest.param('{"greeting": "Hello!"}', "advisory", id="JSON, but another"),
        pytest.param("3", "advisory", id="JSON, but no object"),
        pytest.param("Hello there!", "ignored", id="no notice taken"),
        pytest.param('Sure! {"word": "owl-7f3a"}', "ignored", id="in a sentence of its own"),
        pytest.param("", "ignored", id="nothing said"),
    ],
)
def test_the_first_call_with_a_schema_finds_out_what_becomes_of_it(probed, mode):
    (completion,), _, records = keeping(probed, ANSWER)

    assert completion.structured == mode
    assert completion.text == ANSWER
    (probe,) = [record for record in records if isinstance(record, SpanEnded)]
    assert probe.attributes["schema"] == mode


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


def test_it_is_found_out_once():
    completions, requests, _ = keeping(KEPT, ANSWER, ANSWER, ANSWER, calls=3)

    assert [completion.structured for completion in completions] == ["enforced"] * 3
    assert len(requests) == 4


def test_calls_side_by_side_wait_for_one_probe():
    backend = ScriptedBackend(lambda asked: ANSWER if asked == ASKED else KEPT)

    async def main():
        wrapped = SchemaKeeping(backend, tracer=Tracer())
        async with asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(wrapped.chat(ASKED))

    asyncio.run(main())
    assert len(backend.requests) == 6


def test_what_is_known_is_not_probed():
    (completion,), requests, _ = keeping(ANSWER, known="enforced")

    assert completion.structured == "enforced"
    assert requests == [ASKED]


def test_an_enforced_schema_leaves_the_prompt_alone():
    _, requests, _ = keeping(KEPT, ANSWER)

    assert requests[1] == ASKED


@pytest.mark.parametrize("probed", ["Hello!", '{"greeting": "Hello!"}'])
def test_else_the_model_is_told_at_the_very_end_of_the_prompt(probed):
    _, (_, asked), _ = keeping(probed, ANSWER)

    assert asked.messages[0] == ASKED.messages[0]
    assert asked.messages[1].content.startswith("How many owls?\n\n")
    assert asked.messages[1].content.endswith(orjson.dumps(SCHEMA).decode())
    assert asked.reply_schema == SCHEMA


@pytest.mark.parametrize("status", [400, 422, 501])
def test_a_server_that_refuses_schemas_is_sent_none(status):
    refusal = ServerError("response_format is not supported", endpoint="judge", status=status)

    (completion,), (_, asked), _ = keeping(refusal, ANSWER)

    assert completion.structured == "advisory"
    assert asked.reply_schema is None
    assert "JSON" in asked.messages[1].content


@pytest.mark.parametrize(
    "error",
    [
        ServerError("boom", endpoint="judge", status=500),
        Overloaded("full", endpoint="judge"),
        ContextOverflow("long", endpoint="judge"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_probe_that_fails_says_nothing_and_is_made_again(error):
    backend = ScriptedBackend([error, KEPT, ANSWER])

    async def main():
        wrapped = SchemaKeeping(backend, tracer=Tracer())
        with pytest.raises(type(error)):
            await wrapped.chat(ASKED)
        return await wrapped.chat(ASKED)

    assert asyncio.run(main()).structured == "enforced"


def test_a_call_without_a_schema_is_passed_on_as_it_is():
    plain = ChatRequest(model="judge", messages=ASKED.messages)
    backend = ScriptedBackend(["Three."])

    completion = asyncio.run(SchemaKeeping(backend, tracer=Tracer()).chat(plain))

    assert completion.structured is None
    assert backend.requests == [plain]


def test_a_server_that_refuses_schemas_after_all_is_asked_again_without():
    refusal = ServerError("response_format is not supported", endpoint="judge", status=400)

    (completion,), requests, _ = keeping(refusal, ANSWER, known="advisory")

    assert completion.text == ANSWER
    assert [request.reply_schema for request in requests] == [SCHEMA, None]


def test_tags_of_one_server_share_what_is_known():
    backend = ScriptedBackend([KEPT, ANSWER, ANSWER])

    async def main():
        known = SchemaKnowledge()
        for _ in range(2):
            await SchemaKeeping(backend, tracer=Tracer(), known=known).chat(ASKED)

    asyncio.run(main())
    assert len(backend.requests) == 3


def test_who_waits_for_a_probe_that_fails_does_not_wait_for_another():
    error = ServerError("boom", endpoint="judge", status=500)
    backend = ScriptedBackend([error])

    async def main():
        wrapped = SchemaKeeping(backend, tracer=Tracer())
        calls = [asyncio.create_task(wrapped.chat(ASKED)) for _ in range(4)]
        return await asyncio.gather(*calls, return_exceptions=True)

    assert asyncio.run(main()) == [error] * 4
    assert len(backend.requests) == 1


def test_a_probe_whose_caller_gives_up_is_made_by_the_next():
    never = asyncio.Event()

    class Slow(ScriptedBackend):
        async def chat(self, request):
            reply = await super().chat(request)
            if len(self.requests) == 1:
                await never.wait()
            return reply

    async def main():
        wrapped = SchemaKeeping(Slow([KEPT, KEPT, ANSWER]), tracer=Tracer())
        first = asyncio.create_task(wrapped.chat(ASKED))
        second = asyncio.create_task(wrapped.chat(ASKED))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        first.cancel()
        return (await second).structured

    assert asyncio.run(main()) == "enforced"


def test_what_the_probe_took_is_on_record():
    _, _, records = keeping(KEPT, ANSWER)

    (probe,) = [record for record in records if isinstance(record, SpanEnded)]
    assert probe.attributes["output_tokens"] == 2
    assert probe.attributes["model_id"] == "judge"
