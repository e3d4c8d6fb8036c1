"""What a model is told of a function, and how its arguments and results are read."""

from __future__ import annotations

import decimal
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import numpy as np
import pytest
from pydantic import BaseModel, Field
from session_runs import pipeline_of, refused, run, settings_of

from harness import Completion, Run, ScriptedBackend, ScriptedReply, Tool, ToolCall, ToolSpec, mcp
from harness.errors import InvalidInput
from harness.session.tools import ToolFailed, cut, inlined, result_of, tool_specs, usable_tool

if TYPE_CHECKING:
    from decimal import Decimal


@dataclass
class Place:
    city: str
    zip: int = 0


class Window(BaseModel):
    first: int = Field(description="The first line.")
    last: int | None = None


async def search(
    run: Run,
    query: str,
    limit: Annotated[int, Field(ge=1)] = 5,
    kind: Literal["news", "all"] = "all",
) -> list[str]:
    """Finds passages.

    Best first.

    Args:
        query: What to look for,
            in any language.
        limit (int): At most so many.

    Returns:
        Passages.
    """
    return [query] * limit


def test_a_model_is_told_of_a_function_by_its_signature_and_docstring() -> None:
    assert usable_tool(search).spec == ToolSpec(
        name="search",
        description="Finds passages.\n\nBest first.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What to look for, in any language."},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "default": 5,
                    "description": "At most so many.",
                },
                "kind": {"type": "string", "enum": ["news", "all"], "default": "all"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    )


def test_names_of_pydantic_and_nested_types_are_parameters_as_others_are() -> None:
    def look(json: str, copy: Place, _where: Window | None = None) -> str:
        return ""

    tool = usable_tool(Tool(look, name="look-up", description="Looks."))

    assert (tool.spec.name, tool.spec.description) == ("look-up", "Looks.")
    assert tool.read('{"json": "a", "copy": {"city": "Ulm"}, "_where": {"first": 2}}') == {
        "json": "a",
        "copy": Place("Ulm"),
        "_where": Window(first=2),
    }


def no_annotation(query) -> str: ...
def no_annotation_of_run(run, query: str) -> str: ...
def run_by_another_name(ctx: Run, query: str) -> str: ...


class Counter:
    def inc(self, by: int) -> int: ...


def star(*words: str) -> str: ...
def by_place(word: str, /) -> str: ...
def no_type(make: Callable[[], int]) -> str: ...
def unknown_type(price: Decimal) -> str: ...
async def stream(word: str) -> AsyncIterator[str]:
    yield word


def test_a_tool_of_any_number_of_values_is_told_to_take_a_list() -> None:
    with pytest.raises(InvalidInput, match=r"takes '\*words: .*; take a list: words: list"):
        usable_tool(star)
    with pytest.raises(InvalidInput, match="without '/'"):
        usable_tool(by_place)


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        (no_annotation, "tool.parameter-unannotated"),
        (no_annotation_of_run, "tool.parameter-unannotated"),
        (run_by_another_name, "tool.run-misnamed"),
        (Counter.inc, "tool.method-unbound"),
        (star, "tool.parameter-without-name"),
        (by_place, "tool.parameter-without-name"),
        (no_type, "tool.type-unusable"),
        (unknown_type, "tool.type-unusable"),
        (stream, "tool.yields"),
        (lambda word: word, "tool.name-invalid"),
        (print, "tool.not-a-function"),
        (mcp(url="http://127.0.0.1:1"), "tool.not-a-function"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_a_function_that_cannot_be_a_tool_is_refused_at_its_line(tool: Any, code: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        usable_tool(tool)
    assert caught.value.code == code
    if code != "tool.not-a-function":
        assert caught.value.path is not None
        assert caught.value.path.name == "test_tools.py"
        assert caught.value.line == tool.__code__.co_firstlineno


def test_a_parameter_named_run_is_the_models_unless_it_is_annotated_as_a_run() -> None:
    def logs(run: str) -> str:
        return run

    tool = usable_tool(logs)

    assert not tool.takes_run
    assert tool.spec.parameters["properties"] == {"run": {"type": "string"}}
    assert tool.read('{"run": "a"}') == {"run": "a"}


def test_an_annotation_describes_a_parameter_that_the_docstring_does_not() -> None:
    def buy(
        amount: Annotated[int, Field(description="how many")],
        size: Annotated[int, Field(description="of the annotation")],
    ) -> str:
        """Buys.

        Args:
            size: Of the docstring.
        """
        return f"{amount} {size}"

    assert usable_tool(buy).spec.parameters["properties"] == {
        "amount": {"type": "integer", "description": "how many"},
        "size": {"type": "integer", "description": "Of the docstring."},
    }


class Frame:
    """As pandas has it."""

    def to_dict(self, orient: str) -> object:
        return [{"a": 1}] if orient == "records" else {}


class Weather:
    def to_dict(self) -> object:
        return {}


LOOP: list[object] = []
LOOP.append(LOOP)


class Walk(BaseModel):
    kind: Literal["walk"] = "walk"
    hours: int


class Ride(BaseModel):
    kind: Literal["ride"] = "ride"
    discriminator: str = ""


class Trip(BaseModel):
    part: Walk | Ride = Field(discriminator="kind")
    then: Trip | None = None


def test_a_nested_type_stands_where_it_is_used() -> None:
    def plan(parts: list[Annotated[Walk | Ride, Field(discriminator="kind")]]) -> str:
        return ""

    (walk, ride) = usable_tool(plan).spec.parameters["properties"]["parts"]["items"]["oneOf"]

    assert walk["properties"]["hours"] == {"type": "integer"}
    assert ride["properties"]["discriminator"]["type"] == "string"


def test_a_type_that_holds_itself_keeps_its_references() -> None:
    def plan(trip: Trip) -> str:
        return ""

    assert set(usable_tool(plan).spec.parameters["$defs"]) == {"Trip", "Walk", "Ride"}


def test_a_reference_to_elsewhere_stays() -> None:
    schema = {"type": "object", "properties": {"$ref": {"$ref": "https://example.org/ref.json"}}}
    assert inlined(schema) == schema


def test_a_definition_without_fields_stays() -> None:
    schema = {"$defs": {"Any": True}, "properties": {"x": {"$ref": "#/$defs/Any"}}}
    assert inlined(schema) == schema


def test_a_method_without_its_object_is_told_from_a_bound_one() -> None:
    with pytest.raises(InvalidInput, match=r"give a bound method: Counter\(…\).inc"):
        usable_tool(Counter.inc)
    assert usable_tool(Counter().inc).spec.name == "inc"


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput) as caught:
        tool_specs([search, Tool(search)])
    assert caught.value.code == "tool.name-twice"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "query: Field required"),
        ('{"query": "a", "limit": 0}', "limit: Input should be greater than or equal to 1"),
        ('{"query": "a", "limt": 1}', "there is no argument 'limt' (did you mean 'limit'?)"),
        ('{"query": "a", "run": 1}', "there is no argument 'run'"),
        ('{"query": "a", "kind": "old"}', "kind: Input should be 'news' or 'all'"),
        ('{"query": "a", "limit": true}', "limit: Input should be a valid integer"),
    ],
    ids=["cut", "list", "missing", "out of range", "misspelt", "the run", "no choice", "true"],
)
def test_wrong_arguments_are_told_in_words(written: str, told: str) -> None:
    with pytest.raises(ToolFailed, match=re.escape(told)) as caught:
        usable_tool(search).read(written)
    assert caught.value.outcome == "invalid"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('{"query": "a"}', {"query": "a"}),
        ('{"query": "a", "limit": "3"}', {"query": "a", "limit": 3}),
        ('{"query": "a", "limit": null}', {"query": "a", "limit": 5}),
    ],
    ids=["defaults are the function's", "a number in quotes", "null for a default"],
)
def test_arguments_are_read(written: str, read: Mapping[str, object]) -> None:
    assert usable_tool(search).read(written) == read


def test_a_large_number_has_the_digits_that_the_model_wrote() -> None:
    def find(key: int, fields: dict[str, Any]) -> None: ...

    read = usable_tool(find).read('{"key": 1234567890123456789012345, "fields": {"n": 2e1}}')
    assert read == {"key": 1234567890123456789012345, "fields": {"n": 20}}
    with_any = usable_tool(find).read('{"key": 1, "fields": {"n": 18446744073709551617}}')
    assert with_any["fields"] == {"n": 18446744073709551617}


def test_a_decimal_has_the_digits_that_the_model_wrote() -> None:
    def pay(price: decimal.Decimal, rates: dict[str, float]) -> None: ...

    written = '{"price": 12345678901234567.89, "rates": {"a": 1.50}}'
    for arguments in (written, json.dumps(written)):
        read = usable_tool(pay).read(arguments)
        assert str(read) == "{'price': Decimal('12345678901234567.89'), 'rates': {'a': 1.5}}"


@pytest.mark.parametrize("written", ["", " ", "null", "{}", '"{}"'])
def test_no_arguments_are_written_in_many_ways(written: str) -> None:
    def now() -> str:
        """The time."""
        return "noon"

    assert usable_tool(now).read(written) == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (None, "null"),
        ([Place("Ulm"), Window(first=1)], '[{"city":"Ulm","zip":0},{"first":1,"last":null}]'),
        ({"b": {1}}, '{"b":[1]}'),
        (b"\xff", '"_w=="'),
        (float("nan"), '"NaN"'),
        ({"a": np.array([[1.5, np.nan]]), "n": np.int64(3)}, '{"a":[[1.5,"NaN"]],"n":3}'),
        pytest.param(Frame(), '[{"a":1}]', id="a table"),
    ],
    ids=str,
)
def test_results_become_texts(value: object, text: str) -> None:
    assert result_of(value) == (text, ())


@pytest.mark.parametrize("value", [object(), np.float32, LOOP], ids=["object", "class", "loop"])
def test_a_result_that_json_cannot_say_is_an_error(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        result_of(value)


def test_a_method_of_the_users_own_makes_no_table() -> None:
    with pytest.raises(TypeError, match="Weather'> has no form in it"):
        result_of(Weather())


def test_half_a_character_is_left_out() -> None:
    assert cut("half \ud800", max_chars=9) == "half ?"


def test_the_middle_of_a_long_text_is_left_out() -> None:
    text = cut("a" * 700 + "b" * 9_000_000 + "c" * 300, max_chars=900)
    assert text.startswith("a" * 600 + "\n[… 9,000,100 characters are left out here")
    assert text.endswith("]\n" + "c" * 300)


def test_a_chat_with_tools_returns_the_calls_that_the_model_asks_for(tmp_path: Any) -> None:
    asked = ToolCall("1", "search", '{"query": "tea"}')
    model = ScriptedBackend([ScriptedReply(tool_calls=(asked,))])
    seen: list[Completion] = []

    async def answer(run: Run) -> str:
        tools = [search, ToolSpec(name="weather", description="", parameters={"type": "object"})]
        seen.append(await run.chat("producer", "Tea?", tools=tools, tool_choice="required"))
        return ""

    run(pipeline_of(answer), settings_of(tmp_path), backends={"producer": model})

    assert seen[0].tool_calls == (asked,)
    assert [one.name for one in model.requests[0].tools] == ["search", "weather"]
    assert model.requests[0].tool_choice == "required"


def test_a_server_of_tools_needs_an_agent(tmp_path: Any) -> None:
    async def answer(run: Run) -> str:
        await run.chat("producer", "Tea?", tools=[mcp(url="http://127.0.0.1:1")])  # type: ignore[list-item]
        return ""

    with refused("tool.not-a-function"):
        run(pipeline_of(answer), settings_of(tmp_path))


class Payment(BaseModel):
    euros: float


class Rates(NamedTuple):  # a type that two parameters share has a schema of its own
    low: float


def test_a_number_that_no_limit_holds_is_no_argument_unless_its_type_allows_it():
    def pay(euros: float, parts: list[Payment] | None = None) -> str:
        """Pay."""
        return f"{euros} {parts}"

    def measure(value: Annotated[float, Field(allow_inf_nan=True)]) -> str:
        """Measure."""
        return str(value)

    tool = usable_tool(pay)
    for given in ('{"euros":"nan"}', '{"euros":"inf"}', '{"euros":1,"parts":[{"euros":"-inf"}]}'):
        with pytest.raises(ToolFailed, match="finite"):
            tool.read(given)
    assert tool.read('{"euros":"1.5"}') == {"euros": 1.5}

    def quote(a: Rates, b: Rates) -> str:
        """Quote."""
        return f"{a} {b}"

    with pytest.raises(ToolFailed, match="finite"):
        usable_tool(quote).read('{"a":["nan"],"b":[1]}')
    assert usable_tool(measure).read('{"value":"inf"}') == {"value": float("inf")}
