"""What each server is sent of a schema, an effort, own fields and returned turns: a row each."""

import asyncio
from dataclasses import replace
from typing import get_args

import orjson
import pytest
from calls import REQUEST, ask
from loopback import Reply, vllm_stream

from harness.inference import Message, ToolCall
from harness.inference.endpoint import WireName
from harness.inference.tool_offers import ToolKnowledge
from harness.trace import Tracer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {"a": {"type": "string"}}}
"""Not of the strict form: `a` may be left out, and there may be more."""
THINKS = {"reasoning_effort": "low", "enable_thinking": True, "thinking": True}
BY_TEMPLATE = {"reasoning_effort": "low", "chat_template_kwargs": THINKS}
OLLAMA = Reply(
    headers=(("content-type", "application/x-ndjson"),),
    steps=(b'{"message": {"content": "a"}, "done": true, "done_reason": "stop"}\n',),
)


def nested(schema, *, strict=True):
    inner = {"name": "reply", "schema": schema, "strict": strict}
    return {"response_format": {"type": "json_schema", "json_schema": inner}}


def of_type(kind, **more):
    return {"response_format": {"type": kind, **more}}


ROWS = {
    "openai": (nested(SCHEMA), nested(OPEN, strict=False), BY_TEMPLATE),
    **{
        name: (nested(SCHEMA), nested(OPEN), BY_TEMPLATE)
        for name in ("llamacpp", "vllm", "sglang", "lmstudio", "runpod", "modal")
    },
    "tgi": (
        of_type("json_schema", value={"name": "reply", "schema": SCHEMA}),
        of_type("json_schema", value={"name": "reply", "schema": OPEN}),
        BY_TEMPLATE,
    ),
    "tensorrt-llm": (of_type("json", schema=SCHEMA), of_type("json", schema=OPEN), BY_TEMPLATE),
    "tabbyapi": (
        of_type("json_schema", json_schema=SCHEMA),
        of_type("json_schema", json_schema=OPEN),
        BY_TEMPLATE,
    ),
    "mlc": (
        of_type("json_object", schema=orjson.dumps(SCHEMA).decode()),
        of_type("json_object", schema=orjson.dumps(OPEN).decode()),
        {},
    ),
    "triton-openai": ({}, {}, BY_TEMPLATE),
    "ollama": ({"format": SCHEMA}, {"format": OPEN}, {"think": "low"}),
}
PLACES = ("response_format", "format", "reasoning_effort", "chat_template_kwargs", "think")


def test_every_server_of_the_wire_has_a_row():
    assert set(ROWS) == {*get_args(WireName), "ollama"}


@pytest.mark.parametrize("backend", ROWS)
@pytest.mark.parametrize("schema", [SCHEMA, OPEN], ids=["strict", "open"])
def test_a_schema_an_effort_and_own_fields_stand_where_the_server_looks(backend, schema):
    strict, loose, effort = ROWS[backend]
    request = replace(
        REQUEST,
        reply_schema=schema,
        reasoning_effort="low",
        extra_body={"priority": 3, "chat_template_kwargs": {"x": 1}},
    )

    completion, server = ask(
        OLLAMA if backend == "ollama" else Reply(steps=vllm_stream("a")),
        request=request,
        backend=backend,
    )

    (asked,) = server.asked
    own = {"chat_template_kwargs": {**effort.get("chat_template_kwargs", {}), "x": 1}}
    expected = (strict if schema is SCHEMA else loose) | effort | own
    assert {name: asked.body[name] for name in PLACES if name in asked.body} == expected
    assert asked.body["priority"] == 3
    assert ("reasoning_effort" in completion.dropped) == (effort == {})


@pytest.mark.parametrize("tools", ["native", "typed"])
@pytest.mark.parametrize("backend", ROWS)
def test_integers_of_any_length_are_sent(backend, tools):
    call = ToolCall("a", "look", f'{{"n": {2**64}}}')
    turns = (Message("assistant", "", tool_calls=(call,)), Message("tool", "7", answers="a"))
    request = replace(
        REQUEST,
        messages=(*REQUEST.messages, *turns),
        reply_schema={**SCHEMA, "properties": {"a": {"type": "integer", "maximum": 2**64}}},
        extra_body={"x": 2**64},
    )
    request = asyncio.run(ToolKnowledge(tools).offer(request, None, tracer=Tracer(lambda _: None)))

    reply = OLLAMA if backend == "ollama" else Reply(steps=vllm_stream("a"))
    _, server = ask(reply, request=request, backend=backend)
    assert server.asked[0].body["x"] == 2**64


@pytest.mark.parametrize("backend", ROWS)
def test_fields_of_a_turn_go_back_to_their_server_alone(backend):
    reply = OLLAMA if backend == "ollama" else Reply(steps=vllm_stream("a"))
    named = {"name": "ann"}
    kept = Message("user", "b", extra=named)
    others = Message("assistant", "a", extra={"reasoning": "c"}, source="@elsewhere")

    _, server = ask(
        reply,
        request=replace(REQUEST, messages=(REQUEST.messages[0], others, kept)),
        backend=backend,
    )

    first, second, third = server.asked[0].body["messages"]
    assert first.keys() == second.keys() == {"role", "content"}
    assert third == {"role": "user", "content": "b", "name": "ann"}
