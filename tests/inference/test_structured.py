from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Strict

from harness.errors import ConfigurationInvalid, ReplyInvalid
from harness.inference import Completion, ReplyType, Usage


class Finding(BaseModel):
    line: int
    text: str


class Tree(BaseModel):
    name: str
    branches: list["Tree"] = []


@dataclass
class Point:
    x: int
    y: int = 0


def reply(text, *, finish_reason="stop"):
    return Completion(
        text=text,
        reasoning="",
        finish_reason=finish_reason,
        usage=Usage(input_tokens=1, output_tokens=1, cached_tokens=None),
        sent_ns=0,
        first_token_ns=0,
        phases=(),
        model_id="m",
    )


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
        pytest.param(str | None, '{"answer": null}', None, id="optional"),
        pytest.param(
            list[Annotated[date, Strict()]],
            '{"answer": ["2026-11-20"]}',
            [date(2026, 11, 20)],
            id="strict types, strict as JSON is",
        ),
    ],
)
def test_a_reply_becomes_a_value_of_its_type(python_type, text, value):
    assert parse(python_type, text) == value


def test_a_wrapped_type_brings_its_definitions_along():
    schema = ReplyType(list[Finding]).schema

    assert (schema["type"], schema["required"]) == ("object", ["answer"])
    assert schema["additionalProperties"] is False
    assert schema["properties"]["answer"]["items"] == {"$ref": "#/$defs/Finding"}
    assert set(schema["$defs"]["Finding"]["properties"]) == {"line", "text"}


LIST_CUT = '{"answer": ["a", "b'


@pytest.mark.parametrize(
    ("python_type", "text", "where"),
    [
        (Finding, "Sure! Here it is:", "Invalid JSON"),
        (Finding, '{"line": 3}', "text: "),
        (list[str], '["a"]', "object"),
        (list[Finding], '{"answer": [{"line": 1, "text": ""}, {"line": 2}]}', "answer.1.text: "),
        (str | None, "{}", "answer: "),
        (int, '{"answer": 1, "why": "…"}', "why: "),
        (list[str], LIST_CUT, "max_output_tokens"),
    ],
    ids=str,
)
def test_a_reply_of_another_shape_is_refused_and_says_where(python_type, text, where):
    with pytest.raises(ReplyInvalid) as caught:
        parse(python_type, text, finish_reason="length" if text == LIST_CUT else "stop")

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
