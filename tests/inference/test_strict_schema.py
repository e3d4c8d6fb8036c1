"""Schemas by the rules of OpenAI's strict mode, and what is made of its replies."""

import asyncio
import json
import math
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from clients import client_of
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypeAliasType

from harness.errors import ServerError
from harness.inference import ChatRequest, Message, ScriptedBackend, ScriptedReply
from harness.inference.call_spans import conversation_text
from harness.inference.providers.openai_wire import openai_schema
from harness.inference.strict_schema import plain, strict_schema
from harness.inference.structured import ReplyType, SchemaKnowledge
from harness.trace import Content, SpanEnded, Tracer

T = TypeVar("T")
REFUSED = {"oneOf", "allOf", "not", "prefixItems", "uniqueItems", "default", "minLength"}


class Bike(BaseModel):
    kind: Literal["bike"] = "bike"
    gears: int


class Van(BaseModel):
    kind: Literal["van"] = "van"
    seats: int = 2


class Trip(BaseModel):
    by: Annotated[Bike | Van, Field(discriminator="kind", description="How.")]


class Node(BaseModel):
    name: str
    children: list["Node"] = []
    parent: "Node | None" = None


class Box(BaseModel, Generic[T]):
    holds: T = Field(description="Beside a reference.")
    label: str = Field("none", min_length=2, description="A label.")


class Priced(BaseModel):
    price: Decimal
    day: date
    pair: tuple[int, str] = (1, "a")
    marks: set[str] = set()
    raw: bytes = b"a"
    size: int | None = 5


Size = TypeAliasType("Size", int | None)


class Named(BaseModel):
    size: Size = 5
    name: str = "a"


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    city: str


@dataclass
class Point:
    x: float = 0.0
    y: float | None = None


def faults(part, at="()"):
    """What OpenAI would refuse."""
    if isinstance(part, list):
        return [fault for item in part for fault in faults(item, at)]
    if not isinstance(part, dict):
        return []
    names = part.get("properties", {})
    found = [f"{at}: {name}" for name in REFUSED & part.keys()]
    if part.get("type") == "object" and (
        part.get("additionalProperties") is not False or {*names} != {*part["required"]}
    ):
        found.append(f"{at}: open")
    if "$ref" in part and len(part) > 1:
        found.append(f"{at}: $ref beside others")
    inner = {**names, **part.get("$defs", {}), "items": part.get("items"), "any": part.get("anyOf")}
    return found + [fault for name, one in inner.items() for fault in faults(one, f"{at}.{name}")]


BIKE = {"kind": "bike", "gears": 7}
BOXED = {"holds": BIKE, "label": None}
NODE = {"name": "a", "children": None, "parent": None}
PRICED = {"price": "2.50", "day": "2026-02-03", "pair": None, "marks": ["x"], "raw": None}


@pytest.mark.parametrize(
    ("kind", "reply", "value"),
    [
        pytest.param(Trip, {"by": BIKE}, Trip(by=Bike(gears=7)), id="a tagged union"),
        pytest.param(
            Trip, {"by": {"kind": "van", "seats": None}}, Trip(by=Van()), id="a default in a union"
        ),
        pytest.param(
            Node,
            {"answer": {**NODE, "children": [NODE]}},
            Node(name="a", children=[Node(name="a")]),
            id="recursive",
        ),
        pytest.param(Box[Bike], BOXED, Box[Bike](holds=Bike(gears=7)), id="generic"),
        pytest.param(
            Priced,
            PRICED | {"size": None},
            Priced(price=Decimal("2.50"), day=date(2026, 2, 3), marks={"x"}, size=None),
            id="Decimal, date, tuple, set, bytes, and null as a value",
        ),
        pytest.param(Point, {"x": None, "y": None}, Point(), id="a dataclass"),
        pytest.param(list[Point], {"answer": [{"x": 1, "y": None}]}, [Point(x=1)], id="a list"),
    ],
)
def test_a_type_is_sent_in_strict_form_and_read_as_it_is(kind, reply, value):
    wanted = ReplyType(kind)
    backend = ScriptedBackend([json.dumps(reply)])
    knowledge = SchemaKnowledge("enforced", strict=True)
    request = ChatRequest(model="m", messages=(Message("user", "a"),), reply_schema=wanted.schema)

    completion = asyncio.run(client_of(backend, line={"schemas": knowledge}).chat(request))
    sent = backend.requests[0].reply_schema
    assert faults(sent) == []
    assert strict_schema(sent) == sent
    assert openai_schema(sent)["response_format"]["json_schema"]["strict"] is True
    assert wanted.parse(completion, endpoint="m") == value
    assert completion.structured == "enforced"


def test_a_reply_that_came_as_reasoning_is_read_as_one_in_strict_form_too():
    thought = 'So:\n{"kind": "van", "seats": null}'
    backend = ScriptedBackend([ScriptedReply(text="", reasoning=thought)])
    knowledge, wanted = SchemaKnowledge("enforced", strict=True), ReplyType(Van)
    request = ChatRequest(model="m", messages=(Message("user", "a"),), reply_schema=wanted.schema)

    completion = asyncio.run(client_of(backend, line={"schemas": knowledge}).chat(request))
    assert wanted.parse(completion, endpoint="m") == Van()


def test_a_reply_without_its_nulls_keeps_its_digits():
    reply = '{"price": 12345678901234567.890, "size": 12345678901234567890123, "raw": null}'
    written = '{"price":12345678901234567.890,"size":12345678901234567890123}'
    assert plain(reply, ReplyType(Priced).schema) == written


@pytest.mark.parametrize(
    ("kind", "reply", "written"),
    [
        pytest.param(Named, '{"size":null,"name":null}', '{"size":null}', id="null by a reference"),
        pytest.param(Named, '{"size":1,"name":null}', '{"size":1}', id="a number by a reference"),
        pytest.param(
            Box[str], '{"holds":"\ue000x","label":null}', '{"holds":"\ue000x"}', id="an odd letter"
        ),
    ],
)
def test_only_nulls_of_the_strict_form_are_left_out(kind, reply, written):
    assert plain(reply, ReplyType(kind).schema) == written


def test_a_reply_that_is_nested_deeply_stays_as_it_is():
    deep = '{"name":"a","parent":null,"children":[' * 300 + "]}" * 300
    assert plain(deep, ReplyType(Node).schema) == deep


@pytest.mark.parametrize("place", ["#/definitions/City", "#/properties/a"])
def test_a_reference_to_a_place_that_moves_has_no_strict_form(place):
    city = {"type": "string"}
    fields = {"a": city, "b": {"$ref": place}}
    schema = {"type": "object", "properties": fields, "definitions": {"City": city}}
    assert strict_schema(schema) is None


@pytest.mark.parametrize("kind", [dict[str, int], list[Any], Open, list[dict[str, Any]]])
def test_a_type_that_is_open_goes_without_strict_and_the_model_is_told(kind):
    schema, backend = ReplyType(kind).schema, ScriptedBackend(["{}"])
    knowledge = SchemaKnowledge("enforced", strict=True)
    request = ChatRequest(model="m", messages=(Message("user", "a"),), reply_schema=schema)

    completion = asyncio.run(client_of(backend, line={"schemas": knowledge}).chat(request))
    assert strict_schema(schema) is None
    assert openai_schema(schema)["response_format"]["json_schema"]["strict"] is False
    assert "JSON Schema" in backend.requests[0].messages[0].content
    assert completion.structured == "advisory"


@pytest.mark.parametrize("type_", [{}, {"type": "object"}, {"type": ["object", "null"]}])
def test_an_object_is_closed_however_it_says_that_it_is_one(type_):
    inner = strict_schema(type_ | {"properties": {"a": {"type": "string"}}, "required": ["a"]})

    assert (inner["additionalProperties"], inner["required"]) == (False, ["a"])
    assert inner["type"] == type_.get("type", "object")


def test_keywords_that_strict_mode_lacks_are_told_in_the_description():
    label = strict_schema(ReplyType(Box[int]).schema)["properties"]["label"]

    assert label["anyOf"][0]["description"] == 'A label. (default: "none"; minLength: 2)'
    assert (
        strict_schema({"type": "number", "default": math.nan})["description"] == "(default: null)"
    )


def test_a_refused_schema_is_told_in_words_from_then_on_and_no_other_is():
    refused, taken = (ReplyType(kind).schema for kind in (Bike, Point))

    def answer(request):
        if request.reply_schema == refused:
            return ServerError("In context=(): too deep", endpoint="m", status=400)
        return ScriptedReply(text='{"gears": 7}')

    backend = ScriptedBackend(answer)
    client = client_of(backend, line={"schemas": SchemaKnowledge("enforced")})
    modes = []
    for schema in (refused, refused, taken):
        request = ChatRequest(model="m", messages=(Message("user", "a"),), reply_schema=schema)
        modes.append(asyncio.run(client.chat(request)).structured)

    assert modes == ["advisory", "advisory", "enforced"]
    assert [sent.reply_schema for sent in backend.requests] == [refused, None, None, taken]


def test_a_call_that_fails_without_its_schema_too_does_not_blame_it():
    refuses, schema = [True], ReplyType(Bike).schema

    def answer(_):
        return (
            ServerError("no such format", endpoint="m", status=400)
            if refuses[0]
            else '{"gears": 7}'
        )

    backend = ScriptedBackend(answer)
    client = client_of(backend, line={"schemas": SchemaKnowledge("enforced")})
    request = ChatRequest(model="m", messages=(Message("user", "a"),), reply_schema=schema)

    with pytest.raises(ServerError):
        asyncio.run(client.chat(request))
    assert len(backend.requests) == 2
    refuses[0] = False
    assert asyncio.run(client.chat(request)).structured == "enforced"


def test_a_call_is_recorded_with_the_schema_that_was_sent_in_words():
    records = []
    backend = ScriptedBackend(lambda _: ScriptedReply(text='{"gears": 7}'))
    client = client_of(
        backend, tracer=Tracer(records.append), line={"schemas": SchemaKnowledge("advisory")}
    )
    messages = (Message("user", "Which bike?"),)
    schema = ReplyType(Bike).schema
    asyncio.run(client.chat(ChatRequest(model="m", messages=messages, reply_schema=schema)))

    texts = {one.sha256: one.text for one in records if isinstance(one, Content)}
    ends = [one.attributes for one in records if isinstance(one, SpanEnded)]
    (prompt,) = [texts[said["prompt_sha256"]] for said in ends if "prompt_sha256" in said]
    assert prompt == conversation_text(backend.requests[0].messages)
    assert '"gears"' in prompt
