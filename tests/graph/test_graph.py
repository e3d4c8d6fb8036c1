"""What a pipeline is made of, and the mistakes that are found as it is written or checked."""

import functools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import annotated_later
import pytest
from graph_runs import outputs_of, step
from pydantic import BaseModel

from harness.errors import PipelineInvalid
from harness.graph import Graph, Retry, bind_inputs, graph_inputs
from harness.graph.node import EMPTY, Parameter

HERE = Path(__file__)


@pytest.fixture
def graph():
    return Graph("essay")


def added(graph, function, **options):
    graph.node(**options)(function)
    return [*graph.nodes.values()][-1]


def refusal(act, *given, **options):
    with pytest.raises(PipelineInvalid) as caught:
        act(*given, **options)
    return caught.value


# --- a node --------------------------------------------------------------------------------------


def test_a_node_takes_what_its_signature_names(graph):
    def section(topic: str, *, run: object, words: int = 100): ...

    node = added(graph, section, each={"topic": "topics"})

    assert (node.name, node.function, node.path) == ("section", section, HERE)
    assert node.line == section.__code__.co_firstlineno
    topic, words = node.parameters
    assert (topic.name, topic.source, topic.is_mapped) == ("topic", "topics", True)
    assert topic.default is EMPTY
    assert words == Parameter(name="words", source="words", is_mapped=False, default=100)
    assert (node.takes_run, node.is_mapped) == (True, True)


def test_decorated_functions_and_methods_are_read_as_they_were_written(graph):
    class Desk:
        def write(self, topic: str): ...

    def plain(size: int): ...

    @functools.wraps(plain)
    def wrapper(*args, **kwargs): ...

    for function, name, annotation in ((Desk().write, "topic", str), (wrapper, "size", int)):
        node = added(graph, function)
        assert [one.name for one in node.parameters] == [name]
        assert node.annotation(name) is annotation
    assert node.line == plain.__code__.co_firstlineno


def test_a_node_may_be_called_otherwise_than_its_function(graph):
    async def shout(text: str) -> str:
        return text.upper()

    graph.node(name="loud")(shout)
    graph.node(name="louder", takes={"text": "loud"})(shout)
    step(
        graph, "both", "more", each={"one": "words"}, takes={"more": "louder"}, gives="{}{}".format
    )

    assert graph.dependencies(graph.nodes["both"]) == ("louder",)
    assert outputs_of(graph, text="a", words=["b", "c"])["both"] == ["bA", "cA"]


async def page(run, text: str): ...


def takes_any_number(*texts): ...
def takes_by_position(text, /): ...


class CanBeCalled:
    def __call__(self, topic): ...


NEITHER = {"takes": {"text": "plan"}, "each": {"text": "plans"}}


@pytest.mark.parametrize(
    ("function", "options", "code"),
    [
        (takes_any_number, {}, "pipeline.parameter-without-name"),
        (takes_by_position, {}, "pipeline.parameter-positional-only"),
        (page, {"name": "run"}, "pipeline.node-name-reserved"),
        (page, {"name": "two words"}, "pipeline.node-name-invalid"),
        (lambda text: text, {}, "pipeline.node-name-invalid"),
        (page, {"takes": {"txt": "plan"}}, "pipeline.unknown-parameter"),
        (page, {"each": {"run": "plan"}}, "pipeline.unknown-parameter"),
        (page, NEITHER, "pipeline.parameter-taken-twice"),
        (page, {"each": "topics"}, "pipeline.option-invalid"),
        (page, {"combine": "cross"}, "pipeline.option-invalid"),
    ],
    ids=lambda part: repr(part)[:40] if isinstance(part, dict) else "",
)
def test_what_cannot_be_a_node_is_refused_where_it_is_written(graph, function, options, code):
    error = refusal(graph.node(**options), function)

    assert error.code == code
    assert (error.path, error.line) == (HERE, function.__code__.co_firstlineno)
    assert not graph.nodes


@pytest.mark.parametrize(
    "function", [len, CanBeCalled(), functools.partial(page, 1)], ids=["C", "object", "partial"]
)
def test_what_was_not_written_with_def_is_refused(graph, function):
    assert refusal(graph.node, function).code == "pipeline.node-without-signature"


async def essay(
    *,
    run,
    price: "NotThere",  # noqa: F821 - that is the case
    tone: Literal["plain", "formal"],
    rounds: Annotated[int, "above zero"],
    sources: list[str],
    anything,
): ...


@pytest.mark.parametrize("function", [essay, annotated_later.essay], ids=["types", "texts"])
def test_types_of_parameters_are_known_although_one_exists_for_checkers_only(graph, function):
    node = added(graph, function)

    assert {name: node.annotation(name) for name in ("tone", "rounds", "sources", "anything")} == {
        "tone": Literal["plain", "formal"],
        "rounds": Annotated[int, "above zero"],
        "sources": list[str],
        "anything": object,
    }
    error = refusal(node.annotation, "price")
    assert error.code == "pipeline.annotation-unresolved"
    assert error.path == Path(function.__code__.co_filename)


# --- edges ---------------------------------------------------------------------------------------


def test_a_parameter_that_bears_a_nodes_name_is_an_edge_whenever_that_is_defined(graph):
    step(graph, "text", "sections", "plan", "style")
    step(graph, "sections", "task", "plan", each={"topic": "plan"})
    step(graph, "plan", "task")

    assert list(graph.nodes) == ["text", "sections", "plan"]
    found = {node.name: graph.dependencies(node) for node in graph.nodes.values()}
    assert found == {"text": ("sections", "plan"), "sections": ("plan",), "plan": ()}


def test_two_nodes_of_one_name_are_refused(graph):
    def plan(): ...

    def another_plan(task): ...

    graph.node(plan)
    error = refusal(graph.node(name="plan"), another_plan)

    assert error.code == "pipeline.duplicate-node"
    assert (error.path, error.line) == (HERE, another_plan.__code__.co_firstlineno)
    assert graph.nodes["plan"].parameters == ()


@pytest.mark.parametrize(
    ("nodes", "cycle"),
    [
        pytest.param({"a": (["a"], {})}, "a → a", id="itself"),
        pytest.param(
            {
                "before": ([], {}),
                "a": (["b", "before"], {}),
                "b": (["c"], {}),
                "after": (["a"], {}),
                "c": (["before", "task", "a"], {}),
            },
            "c → a → b → c",
            id="three among others",
        ),
        pytest.param({"a": ([], {"each": {"x": "b"}}), "b": (["a"], {})}, "b → a → b", id="each="),
        pytest.param({"a": ([], {"when": lambda b: b}), "b": (["a"], {})}, "b → a → b", id="when="),
    ],
)
def test_a_cycle_is_named_in_full_and_its_last_node_is_not_added(graph, nodes, cycle):
    *others, last = nodes.items()
    for name, (takes, options) in others:
        step(graph, name, *takes, **options)

    error = refusal(step, graph, last[0], *last[1][0], **last[1][1])

    assert error.code == "pipeline.cycle"
    assert f" {cycle};" in str(error)
    assert list(graph.nodes) == [name for name, _ in others]


# --- include -------------------------------------------------------------------------------------


def brief() -> Graph:
    brief = Graph("brief", retry=Retry(7))

    @brief.node
    async def lines(text: str) -> list[str]:
        return text.split()

    @brief.node(each={"line": "lines"}, takes={"end": "mark"})
    async def shouted(line: str, end: str = "!") -> str:
        return line.upper() + end

    step(brief, "answer", "shouted", retry=Retry(2), gives=" ".join)
    return brief


def test_another_graph_is_included_under_a_prefix_and_stays_as_it_is(graph):
    other = brief()
    step(graph, "page", "title", gives="{} page".format)

    graph.include(other, prefix="left", takes={"text": "page", "mark": "sign"})
    graph.include(other, prefix="right")
    step(graph, "joined", "left_answer", "right_answer", gives="{} / {}".format)

    names = ["lines", "shouted", "answer"]
    assert list(other.nodes) == names
    included = [f"{prefix}_{name}" for prefix in ("left", "right") for name in names]
    assert list(graph.nodes) == ["page", *included, "joined"]
    assert set(graph_inputs(graph)) == {"title", "sign", "text", "mark"}
    assert bind_inputs(graph, {"title": "a", "text": "b"})["sign"] == "!"
    assert outputs_of(graph, title="a", text="b c", sign="?")["joined"] == "A? PAGE? / B! C!"
    attempts = [graph.nodes[f"left_{name}"].policies.retry.attempts for name in names]
    assert attempts == [7, 7, 2]


def test_a_graph_that_includes_another_may_be_included_and_even_itself(graph):
    middle = Graph("middle")
    middle.include(brief(), prefix="one")
    graph.include(middle, prefix="all")
    assert list(graph.nodes) == ["all_one_lines", "all_one_shouted", "all_one_answer"]

    graph.include(graph, prefix="x", takes={"text": "all_one_answer"})
    assert outputs_of(graph, text="a")["x_all_one_answer"] == "A!!"


@pytest.mark.parametrize(
    ("prefix", "takes", "code"),
    [
        pytest.param("left", {}, "pipeline.duplicate-node", id="a name that is taken"),
        pytest.param("my left", {}, "pipeline.prefix-invalid", id="no name"),
        pytest.param("right", {"txet": "above"}, "pipeline.unknown-input", id="no input"),
        pytest.param("right", {"text": "above"}, "pipeline.cycle", id="a cycle"),
    ],
)
def test_a_graph_that_cannot_be_included_leaves_nothing_behind(graph, prefix, takes, code):
    step(graph, "left_answer")
    step(graph, "above", "right_answer")
    nodes = dict(graph.nodes)

    assert refusal(graph.include, brief(), prefix=prefix, takes=takes).code == code

    assert graph.nodes == nodes
    step(graph, "right_lines", "above")
    graph.check()


# --- check ---------------------------------------------------------------------------------------


@dataclass
class Finding:
    text: str


class Verdict(BaseModel):
    score: int


class Client:
    """Nothing that a journal could hold."""


def two_nodes(produced, wanted, how):
    """A graph in which one node returns what the other takes, or maps over."""
    graph = Graph("essay")

    def source(n): ...
    def taker(value): ...

    source.__annotations__["return"] = produced
    taker.__annotations__["value"] = wanted
    graph.node(name="source", each={"n": "ns"} if "of a map" in how else None)(source)
    way = {"value": "source"}
    graph.node(**{"each" if "an item" in how else "takes": way})(taker)
    return graph


@pytest.mark.parametrize(
    ("produced", "wanted", "how", "code"),
    [
        (str, int, "", "pipeline.types-disagree"),
        (Finding, Verdict, "", "pipeline.types-disagree"),
        (str, str, "of a map", "pipeline.types-disagree"),
        (list[str], int, "an item", "pipeline.types-disagree"),
        (str, str, "an item", "pipeline.maps-no-list"),
        (dict[str, int], str, "an item", "pipeline.maps-no-list"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_node_that_takes_it(produced, wanted, how, code):
    graph = two_nodes(produced, wanted, how)

    error = refusal(graph.check)

    assert error.code == code
    assert (error.path, error.line) == (HERE, graph.nodes["taker"].line)
    assert ("list(d.items())" in str(error)) is (produced == dict[str, int])


@pytest.mark.parametrize("annotation", [list[Client], Iterator[str]], ids=str)
def test_outputs_that_cannot_be_journaled_are_refused_where_they_are_made(graph, annotation):
    async def unrecordable(): ...

    unrecordable.__annotations__["return"] = annotation
    graph.node(unrecordable)

    error = refusal(graph.check)

    assert error.code == "pipeline.output-not-recordable"
    assert (error.path, error.line) == (HERE, unrecordable.__code__.co_firstlineno)


def test_items_that_a_generator_yields_are_checked_as_a_list_of_them(graph):
    @graph.node
    async def ticks() -> AsyncIterator[int]:
        yield 1

    @graph.node
    async def total(ticks: list[int]) -> int: ...

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> str: ...

    graph.check()

    @graph.node
    async def wrong(ticks: list[str]) -> str: ...

    assert refusal(graph.check).code == "pipeline.types-disagree"
