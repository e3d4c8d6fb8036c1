import functools
import inspect
import re
from pathlib import Path
from typing import Annotated, Literal

import annotated_later
import pytest

from harness.errors import PipelineInvalid
from harness.graph import Parameter
from harness.graph.read_node import read_node

HERE = Path(__file__)


async def essay(
    *,
    run,
    price: "NotThere",  # noqa: F821 - that is the case
    tone: Literal["plain", "formal"],
    rounds: Annotated[int, "above zero"],
    sources: list[str],
    anything,
): ...


def line_of(function):
    return function.__code__.co_firstlineno


def test_a_node_takes_what_its_signature_names():
    def section(topic: str, *, run: object, words: int = 100): ...

    node = read_node(section, each={"topic": "topics"})

    assert (node.name, node.function, node.path) == ("section", section, HERE)
    assert node.line == line_of(section)
    topic, words = node.parameters
    assert topic == Parameter(
        name="topic", source="topics", is_mapped=True, default=inspect.Parameter.empty
    )
    assert topic.is_required
    assert words == Parameter(name="words", source="words", is_mapped=False, default=100)
    assert not words.is_required
    assert node.takes_run
    assert node.is_mapped


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        pytest.param("each", "topics", 'write {"parameter": "source"}', id="each"),
        pytest.param("takes", ["topics"], 'write {"parameter": "source"}', id="takes"),
        pytest.param("combine", "cross", 'write "zip" or "product"', id="combine"),
    ],
)
def test_an_option_of_another_form_is_refused_with_the_form_to_write(option, value, message):
    def section(topic): ...

    with pytest.raises(
        PipelineInvalid, match="node 'section': " + re.escape(f"{option}={value!r}")
    ) as refused:
        read_node(section, **{option: value})

    assert str(refused.value).endswith(message)
    assert refused.value.line == line_of(section)


def test_a_node_without_parameters_takes_nothing():
    def now(): ...

    node = read_node(now)

    assert node.parameters == ()
    assert not node.takes_run
    assert not node.is_mapped


def test_a_decorated_function_is_read_as_it_was_written():
    def twice(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return 2 * function(*args, **kwargs)

        return wrapper

    def plain(size: int): ...

    node = read_node(twice(plain))

    assert [p.name for p in node.parameters] == ["size"]
    assert node.line == line_of(plain)
    assert node.annotation("size") is int


def test_a_method_is_a_node_without_its_self():
    class Desk:
        def write(self, topic: str): ...

    node = read_node(Desk().write)

    assert [p.name for p in node.parameters] == ["topic"]
    assert node.annotation("topic") is str


def takes_any_number(*texts): ...
def takes_any_names(**texts): ...
def takes_by_position(text, /): ...
def takes_topics(topics, run): ...
def run(topic): ...


class Callable:
    def __call__(self, topic): ...


@pytest.mark.parametrize(
    ("function", "each", "message"),
    [
        pytest.param(
            takes_any_number,
            {},
            "node 'takes_any_number' takes *texts; an edge is a parameter name, so name them all",
            id="*args",
        ),
        pytest.param(
            takes_any_names,
            {},
            "node 'takes_any_names' takes **texts; an edge is a parameter name, so name them all",
            id="**kwargs",
        ),
        pytest.param(
            takes_by_position,
            {},
            "parameter 'text' of node 'takes_by_position' is positional-only; values are given by "
            "name, so remove the '/'",
            id="positional-only",
        ),
        pytest.param(
            takes_topics,
            {"topic": "topics"},
            "each= of node 'takes_topics' names 'topic', which is not a parameter that takes a "
            "value; did you mean 'topics'?",
            id="each= names no parameter",
        ),
        pytest.param(
            takes_topics,
            {"run": "topics"},
            "each= of node 'takes_topics' names 'run', which is not a parameter that takes a "
            "value; known: topics",
            id="each= names the run",
        ),
        pytest.param(
            run,
            {},
            "a node cannot be called 'run', since a parameter of that name receives the run; "
            "rename the function",
            id="called like the run",
        ),
    ],
)
def test_a_signature_that_cannot_be_a_nodes_is_refused_where_it_stands(function, each, message):
    with pytest.raises(PipelineInvalid) as caught:
        read_node(function, each=each)

    assert str(caught.value) == f"{HERE}:{line_of(function)}: {message}"
    assert (caught.value.path, caught.value.line) == (HERE, line_of(function))


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(len, id="written in C"),
        pytest.param(Callable(), id="object that can be called"),
        pytest.param(functools.partial(takes_topics, 1), id="partial"),
    ],
)
def test_what_was_not_written_with_def_is_refused(function):
    with pytest.raises(PipelineInvalid, match="wrap it in a function written with def"):
        read_node(function)


@pytest.mark.parametrize(
    "function",
    [pytest.param(essay, id="as types"), pytest.param(annotated_later.essay, id="as texts")],
)
class TestAnnotations:
    @pytest.mark.parametrize(
        ("parameter", "annotation"),
        [
            ("tone", Literal["plain", "formal"]),
            ("rounds", Annotated[int, "above zero"]),
            ("sources", list[str]),
            ("anything", object),
        ],
    )
    def test_the_type_of_a_parameter_is_known(self, function, parameter, annotation):
        # Although another parameter's is not: nothing but an input's type is ever needed.
        assert read_node(function).annotation(parameter) == annotation

    def test_a_type_that_exists_for_checkers_only_is_named_with_the_remedy(self, function):
        with pytest.raises(PipelineInvalid) as caught:
            read_node(function).annotation("price")

        assert "the annotation of 'price' in node 'essay' cannot be resolved" in str(caught.value)
        assert "import the name at run time, not only under TYPE_CHECKING" in str(caught.value)
        assert caught.value.path == Path(function.__code__.co_filename)
