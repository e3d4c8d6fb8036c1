import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, BeforeValidator, Field, Strict, WrapSerializer, model_validator

from harness.errors import ConfigurationInvalid, ReplyInvalid
from harness.inference import Completion, Usage
from harness.inference.structured import ReplyType


class Finding(BaseModel):
    line: int
    text: str


class Tree(BaseModel):
    name: str
    branches: list["Tree"] = []


SHARE = Annotated[int, BeforeValidator(int), WrapSerializer(lambda value, write: write(value))]
SHARE_AND_ROWS = tuple[SHARE, int]


@dataclass
class Point:
    x: int
    y: int = 0


def reply(text, *, finish_reason="stop", reasoning=""):
    return Completion(
        text=text,
        reasoning=reasoning,
        finish_reason=finish_reason,
        usage=Usage(input_tokens=1, output_tokens=1, cached_tokens=None),
        sent_ns=0,
        first_token_ns=0,
        phases=(),
        model_id="m",
    )


class Note(BaseModel):
    title: str = ""
    tags: list[str] = []


class Colour(Enum):
    RED = "red"


class Hue(Enum):
    RED, BLUE, GREEN = "r", "green", "blue"


class Two(BaseModel):
    a: Hue
    b: Hue


def parse(python_type, text, **how):
    return ReplyType(python_type).parse(reply(text, **how), endpoint="judge")


@pytest.mark.parametrize(
    ("python_type", "text", "value"),
    [
        pytest.param(Finding, '{"line": 3, "text": "é"}', Finding(line=3, text="é"), id="model"),
        pytest.param(Point, '{"x": 1}', Point(1), id="dataclass"),
        pytest.param(
            list[Finding],
            '{"answer": [{"line": 3, "text": "t"}]}',
            [Finding(line=3, text="t")],
            id="list of models",
        ),
        pytest.param(
            Tree,
            '{"answer": {"name": "a", "branches": [{"name": "b"}]}}',
            Tree(name="a", branches=[Tree(name="b")]),
            id="model that contains itself",
        ),
        pytest.param(set[int], '{"answer": [1, 1]}', {1}, id="set"),
        pytest.param(Point, json.dumps('{"x": 1}'), Point(1), id="JSON in a text of JSON"),
        pytest.param(list[int], json.dumps("[1]"), [1], id="a list in a text of JSON"),
        pytest.param(list[int], '{"answer": "[1]"}', [1], id="an answer in a text"),
        pytest.param(Note, '{"title": null, "tags": "[]"}', Note(), id="null for a default"),
        pytest.param(Two, '{"a": "RED", "b": "green"}', Two(a="r", b="green"), id="enum, twice"),
        pytest.param(datetime | str, '"2024"', "2024", id="a number in a text is no time"),
        pytest.param(str | None, '{"answer": null}', None, id="optional"),
        pytest.param(list[str], '["a"]', ["a"], id="a list without the object around it"),
        pytest.param(Colour, '"red"', Colour.RED, id="a value of an enumeration alone"),
        pytest.param(
            list[Annotated[date, Strict()]],
            '{"answer": ["2026-11-20"]}',
            [date(2026, 11, 20)],
            id="strict types, strict as JSON is",
        ),
        pytest.param(SHARE_AND_ROWS, '[true, "1,000"]', (1, 1000), id="a type's own validator"),
    ],
)
def test_a_reply_becomes_a_value_of_its_type(python_type, text, value):
    assert parse(python_type, text) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"line": 1, "text": "a"}\n\nNote: {short}.',
        'Here: {"line": 1, "text": "a"} I kept it short.',
        '{"line": 1, "text": "a"}}',
        'The set {x} is small, and {"a","b"} too. {"line": 1, "text": "a"}',
        'For {"line": "int", "text": "str"}:\n```json\n{"line": 1, "text": "a"}\n```',
        '[{"line": 1, "text": "a"}]',
        'The schema {"type": "object", "properties": {}} asks for\n{"line": 1, "text": "a"}',
        '{"line": 1, "text": "a"}\nOnce more: {"text": "a", "line": 1}',
        '\ufeff~~~\n{"line": 1, "text": "a"}\n~~~',
        '{"line": 1, // the first\n /* "text": "b", */ "text": "a", # and last\n}',
        "I'd say {'line': 1, text: 'a'}",
        "As a[i] says. " * 300 + '{"line": 1, "text": "a"}',
    ],
)
def test_the_only_object_of_the_type_counts_wherever_it_stands(text):
    assert parse(Finding, text) == Finding(line=1, text="a")


def test_an_apostrophe_in_a_text_may_be_escaped_as_in_python():
    assert parse(Finding, r'{"line": 1, "text": "it\'s"}').text == "it's"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('Draft: {"line": 1, "text": "a"} Final: {"line": 2, "text": "b"}', "2 different values"),
        ('{"findings": [{"line": 1, "text": "a"},,]}', "Invalid JSON"),
        ("{'line': 1, 'text': 'a'} or {'line': 2, 'text': 'b'}", "2 different values"),
        ('{"line": 1, "text": "the "best" one"}', "Invalid JSON"),
        ("{'line': 1, 'text': '\\x61'}", "Invalid JSON"),
        ('[{"line": 1, "text": "a"}, {"line": 2, "text": "b"}]', "object"),
    ],
)
def test_no_object_is_picked_out_of_several_or_of_one_that_is_broken(text, problem):
    with pytest.raises(ReplyInvalid, match=problem):
        parse(Finding, text)


@dataclass
class Shelf:
    room: str = ""


class Renamed(BaseModel):
    title: str = Field("", alias="Title")

    @model_validator(mode="before")
    @classmethod
    def unpacked(cls, value):
        return value.get("note", value)


# What small models send for a schema that they read in their prompt, or take for a function.
MISPLACED = (
    (Note, json.dumps(ReplyType(Note).schema), "repeats the schema"),
    (dict[str, Any], json.dumps(ReplyType(dict[str, Any]).schema), "repeats the schema"),
    (Note, '{"type": "object", "properties": {"title": {"type": "string"}}}', "'properties'"),
    (Note, '{"properties": {"title": "Tea", "tags": []}, "required": ["title"]}', "'properties'"),
    (Note, '{"name": "Note", "arguments": {"title": "Tea"}}', "'arguments'"),
    (Note, '{"title": "Note", "parameters": {"title": "Tea"}}', "'parameters'"),
    (Note, '{"Note": {"title": "Tea"}}', "none of the fields of the type, only 'Note'"),
    (Note, '{"Title": "Tea", "Tags": []}', "none of the fields of the type, only 'Title', 'Tags'"),
    (Shelf, '{"shelf": {"room": "A"}}', "none of the fields of the type, only 'shelf'"),
    (Note, json.dumps('{"Title": "Tea"}'), "none of the fields of the type, only 'Title'"),
)


@pytest.mark.parametrize(("python_type", "text", "problem"), MISPLACED)
def test_an_object_whose_fields_are_elsewhere_is_no_value_of_defaults(python_type, text, problem):
    with pytest.raises(ReplyInvalid, match=problem):
        parse(python_type, text)


@pytest.mark.parametrize(
    ("python_type", "text", "value"),
    [
        (Note, f'{json.dumps(ReplyType(Note).schema)}\n{{"title": "Tea"}}', Note(title="Tea")),
        (Note, "{}", Note()),
        (Note, '{"title": "Tea", "input": {"file": "a"}}', Note(title="Tea")),
        (Shelf, '{"room": "A", "floor": 2}', Shelf("A")),
        (Renamed, '{"note": {"Title": "Tea"}}', Renamed(Title="Tea")),
        (dict[str, Any], '{"properties": {"a": 1}}', {"properties": {"a": 1}}),
    ],
)
def test_further_fields_and_names_of_its_own_do_not_make_it_none(python_type, text, value):
    assert parse(python_type, text) == value


@pytest.mark.parametrize(
    ("python_type", "text", "value"),
    [
        (list[str], '```json\n["a","b"]\n```', ["a", "b"]),
        (list[str], 'Sure: ["a", "b"]. Done.', ["a", "b"]),
        (list[str], '```json\n{"answer": ["a"]}\n```', ["a"]),
        (list[Finding], '[{"line": 1, "text": "t"}] it is.', [Finding(line=1, text="t")]),
        (Tree, 'Sure: {"name": "a", "branches": []}', Tree(name="a")),
        (Tree, '```\n[{"name": "a"}]\n```', Tree(name="a")),
        (Finding | Point, '```json\n{"x": 1}\n```', Point(1)),
        (Finding | None, 'Here: {"line": 1, "text": "t"}', Finding(line=1, text="t")),
        (Literal["refund", "technical"], "technical", "technical"),
        (Literal["refund", "technical"], "“technical”.", "technical"),
        (Literal["refund", "technical"], "```\ntechnical\n```", "technical"),
        (Literal["refund", "technical"], "Refund.", "refund"),
        (Literal["a", "A"], "a", "a"),
        (list[Literal["C", "C#", 3]], '["c", "(C#)", "3"]', ["C", "C#", 3]),
        (Colour, "**red**", Colour.RED),
        (Colour | None, "RED", Colour.RED),
        (int | None, "None", None),
        (
            dict[str, Any],
            '{"a": None, "b": True, "c": "one\ntwo"}',
            {"a": None, "b": True, "c": "one\ntwo"},
        ),
        (list[int | None], '["1,234", null]', [1234, None]),
        (Literal["caf\xe9", "tea"], "Cafe\u0301", "caf\xe9"),
        (str | list[str], "Hello there.", "Hello there."),
        (Tree, '```json\n"{\\"name\\": \\"a\\"}"\n```', Tree(name="a")),
        (float, "1,234.5", 1234.5),
        (str, "Hello there.", "Hello there."),
        (date, "2026-11-20.", date(2026, 11, 20)),
        (int, "```\n42\n```", 42),
        (Decimal, "12345678901234567.89", Decimal("12345678901234567.89")),
        (list[dict[str, Decimal]], '[{"a": 1.50}]', [{"a": Decimal("1.50")}]),
        (dict[str, Decimal], 'So: [{"a": 0.10}]', {"a": Decimal("0.10")}),
        (
            dict[str, Decimal | Any],
            '{"a": 12.50, "b": 1e400}',
            {"a": Decimal("12.50"), "b": Decimal("1E+400")},
        ),
    ],
    ids=str,
)
def test_a_value_without_the_object_around_it_counts_too(python_type, text, value):
    assert str(parse(python_type, text)) == str(value)


@pytest.mark.parametrize(
    ("python_type", "text"),
    [
        (list[int], "[1, 2] or [3]"),
        (Literal["refund", "technical"], "refund or technical"),
        (Literal["refund", "technical"], "It is technical."),
        (int, "between 3 and 4"),
        (float, "nan"),
        (str, '{"text": "hello"}'),
        (str, "Here: " + '{"text": "hello"}'),
        (list[str], "a, b"),
        (str | None, "none"),
        (float, "1,234"),
        (Literal["aB", "Ab"], "“AB”!"),
        (Literal["refund", "technical"], "Not refund."),
        (Hue, "Blue"),
        (Colour | Hue, "Red"),
        (list[Decimal], "[12345678901234567.89, 12345678901234567.90]"),
        (datetime, "2024"),
        (list[date | time], '["0"]'),
        (dict[str, timedelta], '{"a": 30}'),
        (list[int], "[true]"),
        (float | None, "false"),
        (Literal[1, 2], "true"),
        (Finding | str, 'Here: {"line": 1, "text"'),
    ],
    ids=str,
)
def test_what_may_be_another_value_is_not_guessed(python_type, text):
    with pytest.raises(ReplyInvalid):
        parse(python_type, text)


@pytest.mark.parametrize("opening", ["[", '{"answer":', '[{"a":'])
@pytest.mark.parametrize("times", [300, 50_000])
def test_a_model_that_only_opens_brackets_gives_no_value(opening, times):
    for text in (opening * times, f'{{"answer":{"[" * times}{"]" * times}}}'):
        with pytest.raises(ReplyInvalid):
            parse(list[int], text)


@pytest.mark.parametrize("fence", ["```", "~~~json"])
def test_a_fence_with_empty_lines_takes_no_time(fence):
    assert parse(int, f"{fence}\n{' ' * 50}\n 7\n\n{fence[:3]}") == 7
    with pytest.raises(ReplyInvalid):
        parse(int, fence + "\n" * 50_000 + "x")


@pytest.mark.parametrize(
    ("python_type", "text", "problem"),
    [
        (list[int], '[1, "b"]', "1: Input should be a valid integer"),
        (list[Finding], '```json\n[{"line": "x", "text": "t"}]\n```', "0.line: Input should be"),
        (Finding | None, 'Here: {"line": 1}', "text: Field required"),
        (list[int], '{"answer": ["b"]}', "answer.0: Input should be a valid integer"),
    ],
    ids=["a list", "in a fence", "an object", "wrapped"],
)
def test_what_is_wrong_is_said_of_the_value_with_or_without_its_object(python_type, text, problem):
    with pytest.raises(ReplyInvalid) as caught:
        parse(python_type, text)
    assert caught.value.problem.startswith(problem)


def test_a_reply_of_reasoning_alone_is_said_to_be_that():
    with pytest.raises(ReplyInvalid) as caught:
        ReplyType(Finding).parse(reply("", reasoning="Hm."), endpoint="judge")
    assert "reasoning" in caught.value.problem


def test_a_wrapped_type_brings_its_definitions_along():
    schema = ReplyType(list[Finding]).schema

    assert (schema["type"], schema["required"]) == ("object", ["answer"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["answer"]["items"] == {"$ref": "#/$defs/Finding"}
    assert set(schema["$defs"]["Finding"]["properties"]) == {"line", "text"}


CUT = ('{"answer": ["a", "b', "Hello th")


@pytest.mark.parametrize(
    ("python_type", "text", "where"),
    [
        (Finding, "Sure! Here it is:", "Invalid JSON"),
        (Finding, '{"line": 3}', "text: "),
        (list[str], '["a"', "Invalid JSON"),
        (Colour, '"green"', "should be 'red'"),
        (list[Finding], '{"answer": [{"line": 1, "text": ""}, {"line": 2}]}', "answer.1.text: "),
        (str | None, "{}", "answer: "),
        (int, '{"answer": 1, "why": "…"}', "why: "),
        (list[str], CUT[0], "max_output_tokens"),
        (str, CUT[1], "max_output_tokens"),
        (Finding, '{"line": 3, "text": a}', "expected value"),
        (Finding, '{"line": 3, "text": "a", "line": 4}', "a key that stands twice"),
        (float, '{"answer": NaN}', "NaN is no JSON"),
    ],
    ids=str,
)
def test_a_reply_of_another_shape_is_refused_and_says_where(python_type, text, where):
    with pytest.raises(ReplyInvalid) as caught:
        parse(python_type, text, finish_reason="length" if text in CUT else "stop")

    assert (caught.value.endpoint, caught.value.text) == ("judge", text)
    assert where in str(caught.value)


def shout(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    "given",
    ["Finding", shout, len, 7, {"type": "object"}, Callable[[int], int], list["Missing"]],  # noqa: F821
    ids=["name", "function", "builtin", "value", "schema", "callable", "name inside"],
)
def test_what_is_no_type_to_answer_in_is_refused(given: Any):
    with pytest.raises(ConfigurationInvalid) as caught:
        ReplyType(given)
    assert caught.value.code == "reply.type-unusable"


def test_a_completion_is_shown_in_a_line():
    shown = repr(reply("word " * 1000))
    assert shown.startswith("Completion('word word")
    assert len(shown) < 200
