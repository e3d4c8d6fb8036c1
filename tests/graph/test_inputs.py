import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import annotated_later
import pytest
from pydantic import BaseModel, Field

from harness.errors import PipelineInvalid
from harness.graph import Graph, bind_inputs, graph_inputs


class Limits(BaseModel):
    rounds: int


@dataclass(frozen=True)
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


class Client:
    """What pydantic knows nothing of."""

    def __repr__(self) -> str:
        return "Client()"


def graph_taking(annotation):
    graph = Graph("essay")

    def only(given: annotation): ...

    graph.node(only)
    return graph


def test_what_no_node_provides_is_an_input():
    graph = Graph("essay")

    @graph.node
    def plan(run, task: str, words: int = 100): ...

    @graph.node(each={"topic": "plan", "source": "sources"})
    def sections(topic: str, source: str, task: str, plan=None): ...

    inputs = graph_inputs(graph)

    assert {name: item.node.name for name, item in inputs.items()} == {
        "task": "plan",
        "words": "plan",
        "sources": "sections",
    }
    assert [item.annotation for item in inputs.values()] == [str, int, list[str]]


def test_an_input_is_what_was_given_or_its_default():
    graph = Graph("essay")

    @graph.node
    def plan(task: str, words: int = 100, style: str = "plain"): ...

    assert bind_inputs(graph, {"task": "t", "words": 5}) == {
        "task": "t",
        "words": 5,
        "style": "plain",
    }


def test_one_default_serves_every_node_that_takes_the_input():
    graph = Graph("essay")

    @graph.node
    def plan(words: int): ...

    @graph.node
    def text(words: int = 100): ...

    assert bind_inputs(graph, {}) == {"words": 100}
    assert bind_inputs(graph, {"words": "5"}) == {"words": 5}


def _takes_int(words: int = 100): ...


def _takes_text(words: str = "100"): ...


def _takes_another_default(words: int = 5): ...


@pytest.mark.parametrize("second", [_takes_text, _takes_another_default])
def test_two_nodes_that_disagree_about_an_input_are_refused(second):
    graph = Graph("essay")
    graph.node(_takes_int)
    graph.node(second)

    with pytest.raises(PipelineInvalid, match="'words' with different types or defaults"):
        bind_inputs(graph, {})


def test_a_default_does_not_stand_in_for_a_node():
    graph = Graph("essay")

    @graph.node
    def plan(): ...

    @graph.node
    def text(plan="no plan"): ...

    assert graph_inputs(graph) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        pytest.param(
            {"taks": "t"},
            "'taks' is not an input of pipeline 'essay'; did you mean 'task'?",
            id="misspelt",
        ),
        pytest.param(
            {"task": "t", "colour": "red"},
            "'colour' is not an input of pipeline 'essay'; known: task, words",
            id="unknown",
        ),
        pytest.param(
            {"plan": "t"},
            "'plan' is a node, not an input of pipeline 'essay'; known: task, words",
            id="a node",
        ),
    ],
)
def test_a_name_that_is_no_input_is_refused_with_those_that_are(given, message):
    graph = Graph("essay")

    @graph.node
    def plan(task: str, words: int = 100): ...

    with pytest.raises(PipelineInvalid) as caught:
        bind_inputs(graph, given)

    assert str(caught.value) == message


def test_a_misspelt_edge_suggests_the_node():
    graph = Graph("essay")

    @graph.node
    def sections(task: str = ""): ...

    @graph.node
    def text(section: str): ...

    with pytest.raises(PipelineInvalid) as caught:
        bind_inputs(graph, {})

    assert (caught.value.path, caught.value.line) == (Path(__file__), graph.nodes["text"].line)
    assert str(caught.value).endswith(
        "node 'text' needs 'section', which is neither given nor the name of a node; give it, or "
        "name a node; did you mean 'sections'?"
    )


def test_a_missing_input_of_the_only_node_is_asked_for():
    with pytest.raises(PipelineInvalid) as caught:
        bind_inputs(graph_taking(str), {})

    assert str(caught.value).endswith("neither given nor the name of a node; give it")


def test_the_default_of_a_mapped_parameter_does_not_stand_in_for_the_list():
    graph = Graph("essay")

    @graph.node(each={"topic": "topics"})
    def section(topic: str = "anything"): ...

    with pytest.raises(PipelineInvalid, match="needs 'topics'"):
        bind_inputs(graph, {})


CONVERTED = [
    pytest.param(int, "3", 3, id="int"),
    pytest.param(float, "2.5", 2.5, id="float"),
    pytest.param(bool, "true", True, id="bool"),
    pytest.param(str, "3", "3", id="str stays text"),
    pytest.param(str, '["a"]', '["a"]', id="str that looks like JSON stays text"),
    pytest.param(Path, "a/b", Path("a/b"), id="Path"),
    pytest.param(list[str], '["a", "b"]', ["a", "b"], id="list"),
    pytest.param(dict[str, int], '{"a": 1}', {"a": 1}, id="dict"),
    pytest.param(tuple[int, ...], "[1, 2]", (1, 2), id="tuple"),
    pytest.param(int | None, "null", None, id="optional"),
    pytest.param(Literal["plain", "formal"], "formal", "formal", id="Literal"),
    pytest.param(Annotated[int, Field(gt=0)], "3", 3, id="Annotated"),
    pytest.param(Colour, "red", Colour.RED, id="enum"),
    pytest.param(Point, '{"x": 1}', Point(x=1), id="dataclass"),
    pytest.param(Limits, '{"rounds": 2}', Limits(rounds=2), id="pydantic model"),
]


@pytest.mark.parametrize(("annotation", "text", "value"), CONVERTED)
def test_a_text_becomes_the_annotated_type(annotation, text, value):
    assert bind_inputs(graph_taking(annotation), {"given": text}) == {"given": value}


@pytest.mark.parametrize(("annotation", "text", "value"), CONVERTED)
def test_a_value_of_the_annotated_type_stays_as_it_is(annotation, text, value):
    assert bind_inputs(graph_taking(annotation), {"given": value}) == {"given": value}


@pytest.mark.parametrize(
    ("annotation", "given", "message"),
    [
        pytest.param(
            int,
            "three",
            "input 'given' does not fit node 'only': Input should be a valid integer, unable to "
            "parse string as an integer (given: 'three')",
            id="text that is no number",
        ),
        pytest.param(
            str, 3, "'only': Input should be a valid string (given: 3)", id="number for a text"
        ),
        pytest.param(
            Literal["plain", "formal"],
            "loud",
            "'only': Input should be 'plain' or 'formal' (given: 'loud')",
            id="Literal",
        ),
        pytest.param(
            Annotated[int, Field(gt=0)],
            0,
            "'only': Input should be greater than 0 (given: 0)",
            id="Annotated",
        ),
        pytest.param(
            list[int],
            [1, "x"],
            "input 'given[1]' does not fit node 'only': Input should be a valid integer, unable to "
            "parse string as an integer (given: 'x')",
            id="one item of a list",
        ),
        pytest.param(
            Limits,
            {"rounds": "many"},
            "input 'given['rounds']' does not fit node 'only': Input should be a valid integer, "
            "unable to parse string as an integer (given: 'many')",
            id="one field of a model",
        ),
        pytest.param(
            Client,
            "a client",
            "'only': Input should be an instance of Client (given: 'a client')",
            id="a class that pydantic does not know",
        ),
        pytest.param(int, "x" * 100, f"(given: '{'x' * 80}')", id="long text"),
    ],
)
def test_a_value_of_another_type_is_refused_in_words(annotation, given, message):
    with pytest.raises(PipelineInvalid) as caught:
        bind_inputs(graph_taking(annotation), {"given": given})

    assert str(caught.value).endswith(message)


def test_an_instance_of_a_class_that_pydantic_does_not_know_is_passed_on():
    client = Client()

    assert bind_inputs(graph_taking(Client), {"given": client})["given"] is client


def test_an_input_without_a_type_takes_anything():
    graph = Graph("essay")

    @graph.node
    def only(given): ...

    assert bind_inputs(graph, {"given": b"\xff"}) == {"given": b"\xff"}


@pytest.mark.parametrize("given", [["a", "b"], '["a", "b"]'], ids=["list", "text"])
def test_the_input_of_a_mapped_parameter_is_a_list_of_its_type(given):
    graph = Graph("essay")

    @graph.node(each={"topic": "topics"})
    def section(topic: str): ...

    assert bind_inputs(graph, {"topics": given}) == {"topics": ["a", "b"]}


def test_annotations_may_be_texts():
    graph = Graph("essay")
    graph.node(annotated_later.essay)
    given = {"tone": "formal", "rounds": "2", "sources": '["a"]', "anything": 1}

    with pytest.raises(PipelineInvalid, match="not only under TYPE_CHECKING"):
        bind_inputs(graph, {**given, "price": "1"})
    graph.nodes.clear()

    @graph.node
    def price(): ...

    graph.node(annotated_later.essay)
    assert bind_inputs(graph, given) == {**given, "rounds": 2, "sources": ["a"]}


def _takes_anything(words): ...


def _takes_anything_or_five(words=5): ...


@pytest.mark.parametrize(
    ("first", "second", "given", "bound"),
    [
        pytest.param(_takes_anything, _takes_int, {"words": "3"}, 3, id="the second has a type"),
        pytest.param(_takes_int, _takes_anything, {"words": "3"}, 3, id="the first has a type"),
        pytest.param(_takes_anything, _takes_int, {}, 100, id="the second has a default"),
        pytest.param(_takes_int, _takes_anything, {}, 100, id="the first has a default"),
        pytest.param(
            _takes_anything, _takes_anything_or_five, {"words": "3"}, "3", id="neither has a type"
        ),
    ],
)
def test_who_says_nothing_of_an_input_leaves_it_to_others(first, second, given, bound):
    graph = Graph("essay")
    graph.node(name="first")(first)
    graph.node(name="second")(second)

    assert bind_inputs(graph, given) == {"words": bound}


def test_a_list_that_is_taken_whole_and_by_item_need_be_annotated_once():
    graph = Graph("essay")

    @graph.node(each={"topic": "topics"})
    def section(topic): ...

    @graph.node
    def total(topics: list[str]): ...

    assert bind_inputs(graph, {"topics": '["a"]'}) == {"topics": ["a"]}
    with pytest.raises(PipelineInvalid, match=r"'topics\[0\]' does not fit node 'total'"):
        bind_inputs(graph, {"topics": [1]})


def test_a_type_and_a_default_from_two_nodes_do_not_add_up():
    graph = Graph("essay")

    @graph.node
    def first(words: int): ...

    @graph.node
    def second(words="many"): ...

    with pytest.raises(PipelineInvalid, match="'words' with different types or defaults"):
        bind_inputs(graph, {})
