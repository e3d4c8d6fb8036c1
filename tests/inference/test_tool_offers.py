"""Tools as a type of the reply, and how it is found out that they have to be."""

import asyncio
import json
import time
from dataclasses import replace

import pytest
from clients import client_of
from manual_clock import ManualClock

from harness.errors import ReplyInvalid, ServerError
from harness.inference import (
    ChatRequest,
    Endpoint,
    Message,
    ScriptedBackend,
    ScriptedReply,
    ToolCall,
    ToolSpec,
    Usage,
)
from harness.inference.providers.registry import knowledge_of
from harness.inference.reply_in_progress import CallPiece, tool_calls
from harness.inference.structured import SchemaKnowledge
from harness.inference.tool_offers import ToolKnowledge
from harness.trace import Tracer
from harness.trace.records import SpanEnded

WEATHER = ToolSpec(
    "weather",
    "The weather in a city.",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "$defs": {"City": {"type": "string"}},
    },
)
LOOK = ToolSpec("look", "Looks around.", {"type": "object", "properties": {}})
ASKED = ChatRequest(
    model="m",
    messages=(Message("system", "Be brief."), Message("user", "Weather?")),
    tools=(WEATHER, LOOK),
)
CALL = '{"next":{"call":"weather","arguments":{"city":"Oslo"}}}'
ANSWER = '{"next":{"answer":"Sunny."}}'
TOLD, UNTOLD = (
    ScriptedReply(text="Hello.", usage=Usage(input_tokens=n, output_tokens=2, cached_tokens=None))
    for n in (140, 31)
)
CALLED = ScriptedReply(tool_calls=(ToolCall("call_a", "look", "{}"),))


def refusal(said='"auto" tool choice requires --enable-auto-tool-choice', status=400):
    return ServerError(said, endpoint="m", status=status)


def talk(
    *script, requests=(ASKED,), mode="typed", requires=True, schemas="enforced", at_once=False
):
    """The replies, what the backend was asked, and the trace's records."""
    records = []
    backend = ScriptedBackend(script)
    client = client_of(
        backend,
        tracer=Tracer(records.append, clock=ManualClock()),
        line={
            "tools": ToolKnowledge(mode, requires_calls=requires),
            "schemas": SchemaKnowledge(schemas),
        },
    )

    async def main():
        if at_once:
            return await asyncio.gather(*(client.chat(one) for one in requests))
        return [await client.chat(one) for one in requests]

    return asyncio.run(main()), backend.requests, records


# --- how tools are offered -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("probed", "replies", "mode"),
    [
        pytest.param(TOLD, [CALLED, CALLED], "native", id="the model is told"),
        pytest.param(UNTOLD, [CALL, ANSWER], "typed", id="the server says nothing"),
        pytest.param(refusal(), [CALL, ANSWER], "typed", id="vLLM refuses"),
        pytest.param(refusal("m does not support tools"), [CALL, ANSWER], "typed", id="Ollama"),
        pytest.param(refusal("tools param requires --jinja flag", 500), [CALL, ANSWER], "typed"),
        pytest.param(
            refusal("[{'loc': ('body', 'tools'), 'msg': 'Extra inputs are not permitted'}]", 422),
            [CALL, ANSWER],
            "typed",
            id="fields that it does not know",
        ),
    ],
)
def test_the_first_call_with_tools_finds_out_once_how_they_are_offered(probed, replies, mode):
    completions, asked, records = talk(probed, *replies, requests=(ASKED, ASKED), mode=None)

    assert [one.tools for one in completions] == [mode] * 2
    assert [bool(one.tools) for one in asked] == [True, *[mode == "native"] * 2]
    probe = next(record.attributes for record in records if isinstance(record, SpanEnded))
    assert probe["tools"] == mode


def test_calls_side_by_side_share_the_probe_and_a_late_refusal_is_learnt_by_all():
    completions, asked, _ = talk(
        refusal(), refusal(), CALL, CALL, requests=(ASKED, ASKED), mode="native", at_once=True
    )
    assert [one.tools for one in completions] == ["typed"] * 2
    assert [len(one.tools) for one in asked] == [2, 2, 0, 0]

    assert len(talk(UNTOLD, CALL, CALL, requests=(ASKED, ASKED), mode=None, at_once=True)[1]) == 3


@pytest.mark.parametrize(
    "error",
    [
        refusal("Invalid schema for function 'weather': required is not a list"),
        refusal("tools are unsupported", 401),
        refusal("the engine is dead", 500),
    ],
    ids=str,
)
def test_another_error_is_no_refusal(error):
    with pytest.raises(ServerError) as caught:
        talk(error, mode="native")
    assert caught.value is error


def test_a_call_without_tools_is_passed_on_as_it_is():
    plain = replace(ASKED, tools=())
    (completion,), asked, _ = talk("Sunny.", requests=(plain,))
    assert (completion.tools, asked) == (None, [plain])


def test_a_server_that_cannot_require_a_call_is_sent_a_type_where_one_is_required():
    required = replace(ASKED, tool_choice="required")
    completions, asked, _ = talk(
        CALLED, CALL, requests=(ASKED, required), mode="native", requires=False
    )
    assert [one.tools for one in completions] == ["native", "typed"]
    next_schema = asked[1].reply_schema["properties"]["next"]
    assert [list(one["properties"]) for one in next_schema["anyOf"]] == [["call", "arguments"]] * 2


@pytest.mark.parametrize(
    ("backend", "tools", "mode"),
    [
        ("ollama", None, "native"),
        ("ollama", "typed", "typed"),
        ("vllm", None, None),
        ("vllm", "native", "native"),
        ("mlc", None, "typed"),
    ],
)
def test_the_provider_says_what_is_known_and_the_endpoint_has_the_last_word(backend, tools, mode):
    endpoint = Endpoint(tag="m", backend=backend, url="http://127.0.0.1:1", tools=tools)
    assert knowledge_of(endpoint)[1]._mode.value == mode


# --- the typed way ---------------------------------------------------------------------------


def test_tools_become_a_type_that_is_told_first_and_the_same_for_all_turns():
    (first,), (asked,), _ = talk(CALL)

    assert first.tool_calls == (ToolCall("call00001", "weather", '{"city":"Oslo"}'),)
    assert (first.text, first.finish_reason, first.structured) == ("", "tool_calls", "enforced")
    system, user = asked.messages
    assert system.content.startswith("Be brief.\n\nYou can call these tools:\n- weather: The weath")
    assert user == ASKED.messages[1]
    schema = asked.reply_schema
    weather, _, answer = schema["properties"]["next"]["anyOf"]
    place = weather["properties"]["arguments"]["properties"]["city"]["$ref"]
    assert schema["$defs"] == {place.removeprefix("#/$defs/"): {"type": "string"}}
    assert weather["properties"]["call"] == {"type": "string", "enum": ["weather"]}
    assert answer["properties"] == {"answer": {"type": "string"}}

    said = Message("assistant", "", tool_calls=(*first.tool_calls, ToolCall("b", "look", "{}")))
    results = (Message("tool", "21 °C", answers="call00001"), Message("tool", "Fog.", answers="b"))
    again = replace(ASKED, messages=(*ASKED.messages, said, *results))
    (second,), (asked,), _ = talk(ANSWER, requests=(again,))
    assert (second.text, second.tool_calls, second.finish_reason) == ("Sunny.", (), "stop")
    assert asked.messages[:2] == (system, user)
    assert [message.role for message in asked.messages[2:]] == ["assistant", "user"]
    assert asked.messages[2].content.splitlines()[0] == CALL
    assert asked.messages[3].content == "Result of weather:\n21 °C\n\nResult of look:\nFog."
    assert talk(CALL, requests=(again,))[0][0].tool_calls[0].id == "call00002"


def test_definitions_further_down_in_a_tools_schema_are_found_where_references_look():
    place = {"$ref": "#/$defs/City", "$defs": {"City": {"type": "string"}}}
    tool = ToolSpec("weather", "", {"type": "object", "properties": {"place": place}})
    _, (asked,), _ = talk(CALL, requests=(replace(ASKED, tools=(tool,), tool_choice="required"),))
    call = asked.reply_schema["properties"]["next"]
    place = call["properties"]["arguments"]["properties"]["place"]
    assert asked.reply_schema["$defs"][place["$ref"].removeprefix("#/$defs/")] == {"type": "string"}


def test_results_are_text_also_where_no_tool_is_offered_any_more():
    said = Message("assistant", "", tool_calls=(ToolCall("a", "look", "{}"),))
    last = replace(
        ASKED, messages=(*ASKED.messages, said, Message("tool", "Fog.", answers="a")), tools=()
    )
    _, (asked,), _ = talk("Foggy.", requests=(last,))
    assert [message.role for message in asked.messages] == ["system", "user", "assistant", "user"]


SCHEMA = {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}, "$defs": {"T": {}}}


def test_a_schema_is_the_type_of_the_answer_or_told_in_words():
    both = replace(ASKED, reply_schema=SCHEMA)
    (typed,), (asked,), _ = talk('{"next":{"answer":{"t":21}}}', requests=(both,))
    assert (typed.text, typed.structured) == ('{"t":21}', "enforced")
    answer = asked.reply_schema["properties"]["next"]["anyOf"][-1]["properties"]["answer"]
    assert answer["properties"]["t"]["$ref"].removeprefix("#/$defs/") in asked.reply_schema["$defs"]

    (native,), (asked,), _ = talk("{}", requests=(both,), mode="native")
    assert (native.structured, asked.reply_schema, asked.tools) == ("advisory", None, ASKED.tools)
    assert json.dumps(SCHEMA, separators=(",", ":")) in asked.messages[0].content


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(f"Sure!\n```json\n{CALL}\n```", "", id="fenced"),
        pytest.param('{"call":"weather","arguments":{"city":"Oslo"}}', "", id="not wrapped"),
        pytest.param("It is sunny.", "It is sunny.", id="an answer without its JSON"),
        pytest.param('{"next":{"answer":"{"}}', "{", id="an answer of braces"),
    ],
)
def test_a_model_that_is_only_told_is_understood(text, said):
    (completion,), (asked,), _ = talk(text, schemas="advisory")
    assert (completion.text, bool(completion.tool_calls)) == (said, not said)
    assert "matches this JSON Schema" in asked.messages[-1].content


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ('{"next":{"call":"weather"', {}),
        ('{"next":{"sing":"la"}}', {}),
        ("It is sunny.", {"tool_choice": "required"}),
        (ANSWER, {"tool_choice": "required"}),
    ],
)
def test_what_is_neither_a_call_nor_an_answer_is_an_error_after_it_is_on_record(text, how):
    with pytest.raises(ReplyInvalid) as caught:
        talk(text, requests=(replace(ASKED, **how),))
    assert caught.value.text == text


LONG = '{"n":123456789012345678901,"x":1.10}'


@pytest.mark.parametrize(
    ("text", "said", "arguments"),
    [
        (f'{{"next":{{"call":"weather","arguments":{LONG}}}}}', "", [LONG]),
        (f'{{"next":{{"answer":{LONG}}}}}', LONG, []),
        ('{"next":{"answer":1.10}}', "1.10", []),
    ],
)
def test_numbers_of_typed_calls_and_answers_keep_their_digits(text, said, arguments):
    (reply,), _, _ = talk(text)
    assert (reply.text, [call.arguments for call in reply.tool_calls]) == (said, arguments)


def test_a_typed_reply_that_was_cut_stays_a_text():
    cut = ScriptedReply(text='{"next":{"call":"wea', finish_reason="length")
    (completion,), _, _ = talk(cut)
    assert (completion.finish_reason, completion.tool_calls) == ("length", ())
    assert completion.text == cut.text


def test_a_listener_hears_the_answer_and_no_json():
    heard = []
    talk(CALL, ANSWER, requests=[replace(ASKED, on_text=heard.append)] * 2)
    assert heard == ["Sunny."]


# --- calls in pieces -------------------------------------------------------------------------


def piece(index=None, id="", name="", arguments=""):  # noqa: A002 - the field's name
    return CallPiece(index, id, name, arguments)


GATHERED = {
    "numbered, in pieces": (
        [
            *(piece(0, "a", "f"), piece(0, "", "", '{"x":'), piece(0, "", "", "1}")),
            *(piece(1, "b", "g"), piece(1, "", "", "{}")),
        ],
        [("a", "f", '{"x":1}'), ("b", "g", "{}")],
    ),
    "whole, with neither number nor id": (
        [piece(None, "", "f", "{}"), piece(None, "", "f", '{"x":1}')],
        [("call00002", "f", "{}"), ("call00003", "f", '{"x":1}')],
    ),
    "all numbered 0": (
        [piece(0, "a", "f", "{}"), piece(0, "b", "f", "{}")],
        [("a", "f", "{}"), ("b", "f", "{}")],
    ),
    "all numbered 0, without ids": (
        [piece(0, "", "f", "{}"), piece(0, "", "g", "{}")],
        [("call00002", "f", "{}"), ("call00003", "g", "{}")],
    ),
    "all numbered 0 and named, of one tool": (
        [
            *(piece(0, "", "f", '{"x"'), piece(0, "", "f", ":1}"), piece(0, "", "f")),
            *(piece(0, "", "f", '{"x":2}'), piece(0, "", "f", '{"x":2}')),
        ],
        [("call00002", "f", '{"x":1}'), ("call00003", "f", '{"x":2}')],
    ),
    "one id and number for all": (
        [piece(0, "a", "f"), piece(0, "a", "g"), piece(0, "a", "f", '{"x":1}')],
        [("a", "f", "{}"), ("call00002", "g", "{}"), ("call00003", "f", '{"x":1}')],
    ),
    "all again": ([piece(0, "a", "f", "{"), piece(0, "a", "f", "}")], [("a", "f", "{}")]),
    "a late id": ([piece(0, "", "f"), piece(0, "a")], [("a", "f", "{}")]),
    "a used id": ([piece(0, "call00001", "f")], [("call00002", "f", "{}")]),
}


@pytest.mark.parametrize(("pieces", "calls"), GATHERED.values(), ids=GATHERED)
def test_pieces_are_gathered_into_calls(pieces, calls):
    before = (Message("assistant", "", tool_calls=(ToolCall("call00001", "f", "{}"),)),)
    assert [(one.id, one.name, one.arguments) for one in tool_calls(pieces, before)] == calls


def test_a_name_in_every_piece_takes_no_time():
    pieces = [piece(0, "", "f", '{"x":['), *[piece(0, "", "f", "1234567,")] * 30_000]
    began_s = time.process_time()
    assert len(tool_calls(pieces, ())) == 1
    assert time.process_time() - began_s < 2
