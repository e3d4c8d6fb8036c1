"""What no node provides: which inputs those are, and of which type their values must be."""

import enum
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict

import annotated_later
import numpy
import pytest
from graph_runs import step
from pydantic import BaseModel

from harness.errors import PipelineInvalid
from harness.graph import Graph, bind_inputs, graph_inputs

ZEROS, ONES = numpy.zeros(3), numpy.ones(3)


class Limits(BaseModel):
    rounds: int


@dataclass(frozen=True)
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


class Client:
    """What pydantic knows nothing of."""


CLIENT = Client()


def graph_of(*functions):
    graph = Graph("essay")
    for number, function in enumerate(functions):
        graph.node(name=f"node{number}")(function)
    return graph


def graph_taking(annotation):
    def only(given: annotation): ...

    return graph_of(only)


def refusal(graph, given):
    with pytest.raises(PipelineInvalid) as caught:
        bind_inputs(graph, given)
    return caught.value


@dataclass
class Connections:
    """A dataclass with a field that pydantic does not know."""

    number: int
    client: Client


CONNECTIONS = Connections(1, CLIENT)


# --- which ---------------------------------------------------------------------------------------


def test_what_no_node_provides_is_an_input():
    graph = Graph("essay")

    @graph.node
    def plan(run, task: str, words: int = 100): ...

    @graph.node(each={"topic": "plan", "source": "sources"})
    def sections(topic: str, source: str, task: str, plan=None): ...

    inputs = graph_inputs(graph)

    nodes = {"task": "plan", "words": "plan", "sources": "sections"}
    assert {name: item.node.name for name, item in inputs.items()} == nodes
    assert [item.annotation for item in inputs.values()] == [str, int, list[str]]
    given = {"task": "t", "sources": ["a"]}
    assert bind_inputs(graph, given) == {**given, "words": 100}


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        pytest.param({"taks": "t"}, "pipeline.unknown-input", "'task'", id="misspelt"),
        pytest.param({"plan": "t"}, "pipeline.unknown-input", "a node", id="a node"),
        pytest.param({}, "pipeline.input-missing", "", id="missing"),
        pytest.param({"task": "t"}, "pipeline.input-missing", "'plan'", id="a misspelt edge"),
    ],
)
def test_a_name_that_is_no_input_or_has_no_value_is_refused(given, code, said):
    graph = Graph("essay")
    step(graph, "plan", "task")
    step(graph, "text", "plann")

    error = refusal(graph, given)

    assert error.code == code
    assert said in str(error)


def test_a_missing_input_is_asked_for_where_it_is_taken():
    graph = Graph("essay")

    @graph.node(each={"topic": "topics"})
    def section(topic: str = "anything"): ...  # a default for an item is none for the list

    error = refusal(graph, {})

    assert error.code == "pipeline.input-missing"
    assert (error.path, error.line) == (Path(__file__), graph.nodes["section"].line)


# --- of which type -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (int, "3", 3),
        (str, "3", "3"),
        (Path, "a/b", Path("a/b")),
        (list[str], '["a", "b"]', ["a", "b"]),
        (Literal["plain", "formal"], "formal", "formal"),
        (Colour, "red", Colour.RED),
        (Point, '{"x": 1}', Point(x=1)),
        (object, b"\xff", b"\xff"),
        (Client, CLIENT, CLIENT),
        (Connections, CONNECTIONS, CONNECTIONS),
    ],
)
def test_a_text_becomes_the_annotated_type_and_a_value_of_it_stays(annotation, text, value):
    assert bind_inputs(graph_taking(annotation), {"given": text}) == {"given": value}
    assert bind_inputs(graph_taking(annotation), {"given": value}) == {"given": value}


@pytest.mark.parametrize(
    ("annotation", "given", "said"),
    [
        pytest.param(int, "three", "'given'", id="text that is no number"),
        pytest.param(str, 3, "(given: 3)", id="number for a text"),
        pytest.param(Literal["plain", "formal"], "loud", "'formal'", id="Literal"),
        pytest.param(list[int], [1, "x"], "'given[1]'", id="one item of a list"),
        pytest.param(Limits, {"rounds": "many"}, "'given['rounds']'", id="one field of a model"),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(annotation, given, said):
    error = refusal(graph_taking(annotation), {"given": given})

    assert error.code == "pipeline.input-invalid"
    assert said in str(error)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads it there")
def test_a_typed_dict_of_the_standard_library_is_refused_with_the_one_to_use():
    class Options(TypedDict):
        words: int

    error = refusal(graph_taking(Options), {"given": {"words": 3}})

    assert (error.code, error.path) == ("pipeline.input-unreadable", Path(__file__))
    assert "typing_extensions.TypedDict" in str(error)


def test_a_list_that_is_taken_whole_and_by_item_need_be_annotated_once():
    graph = Graph("essay")

    @graph.node(each={"topic": "topics"})
    def section(topic): ...

    @graph.node
    def total(topics: list[str]): ...

    assert bind_inputs(graph, {"topics": '["a"]'}) == {"topics": ["a"]}
    assert "'topics[0]'" in str(refusal(graph, {"topics": [1]}))


def test_annotations_may_be_texts():
    graph = Graph("essay")
    given = {"tone": "formal", "rounds": "2", "sources": '["a"]', "anything": 1}
    error = refusal(graph_of(annotated_later.essay), {**given, "price": "1"})
    assert error.code == "pipeline.annotation-unresolved"

    step(graph, "price")
    graph.node(annotated_later.essay)
    assert bind_inputs(graph, given) == {**given, "rounds": 2, "sources": ["a"]}


# --- taken by two --------------------------------------------------------------------------------


def with_type_and_default(words: int = 100): ...
def with_another_type(words: str = "100"): ...
def with_another_default(words: int = 5): ...
def with_type(words: int): ...
def with_text_as_default(words="many"): ...
def with_default(words=5): ...
def with_array(words=ZEROS): ...
def with_another_array(words=ONES): ...
def with_nothing(words): ...


@pytest.mark.parametrize(
    ("first", "second", "given", "bound"),
    [
        (with_nothing, with_type_and_default, "3", 3),
        (with_nothing, with_type_and_default, None, 100),
        (with_type, with_type_and_default, None, 100),
        (with_nothing, with_default, "3", "3"),
    ],
)
def test_who_says_nothing_of_an_input_leaves_it_to_others(first, second, given, bound):
    given = {} if given is None else {"words": given}

    assert bind_inputs(graph_of(first, second), given) == {"words": bound}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (with_type_and_default, with_another_type),
        (with_type_and_default, with_another_default),
        (with_type, with_text_as_default),
        (with_array, with_another_array),
    ],
)
def test_two_nodes_that_disagree_about_an_input_are_refused(first, second):
    assert refusal(graph_of(first, second), {}).code == "pipeline.inputs-disagree"
