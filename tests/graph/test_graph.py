import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import PipelineInvalid
from harness.graph import Graph


def node_named(name, *parameters, each=None):
    """A function of this name with these parameters, added to a graph by calling it."""
    namespace = {}
    exec(f"def {name}({', '.join(parameters)}): ...", namespace)
    return lambda graph: graph.node(each=each or {})(namespace[name])


def test_a_parameter_that_bears_a_nodes_name_is_an_edge():
    graph = Graph("essay")

    @graph.node
    def plan(task): ...

    @graph.node(each={"topic": "plan"})
    def sections(topic, task): ...

    @graph.node
    def text(plan, sections, style="plain"): ...

    assert list(graph.nodes) == ["plan", "sections", "text"]
    assert graph.dependencies(graph.nodes["plan"]) == ()
    assert graph.dependencies(graph.nodes["sections"]) == ("plan",)
    assert graph.dependencies(graph.nodes["text"]) == ("plan", "sections")


def test_a_source_that_is_used_twice_is_one_dependency():
    graph = Graph("essay")
    node_named("plan")(graph)
    node_named("text", "topic", "plan", each={"topic": "plan"})(graph)

    assert graph.dependencies(graph.nodes["text"]) == ("plan",)


def test_a_function_stays_as_it_was():
    graph = Graph("essay")

    def double(number):
        return 2 * number

    assert graph.node(double) is double
    assert double(4) == 8

    def triple(number):
        return 3 * number

    assert graph.node(each={"number": "numbers"})(triple) is triple


def test_two_nodes_of_one_name_are_refused():
    graph = Graph("essay")

    @graph.node
    def plan(): ...

    first_line = graph.nodes["plan"].line

    with pytest.raises(PipelineInvalid) as caught:

        @graph.node
        def plan(task): ...

    assert caught.value.path == Path(__file__)
    assert caught.value.line > first_line
    assert str(caught.value).endswith(
        f"pipeline 'essay' has two nodes called 'plan'; the first is on line {first_line}"
    )
    assert graph.nodes["plan"].parameters == ()


@pytest.mark.parametrize(
    ("nodes", "cycle"),
    [
        pytest.param([node_named("a", "a")], "a → a", id="itself"),
        pytest.param([node_named("a", "b"), node_named("b", "a")], "b → a → b", id="two"),
        pytest.param(
            [
                node_named("before"),
                node_named("a", "b", "before"),
                node_named("b", "c"),
                node_named("after", "a"),
                node_named("c", "before", "task", "a"),
            ],
            "c → a → b → c",
            id="three among others",
        ),
        pytest.param(
            [node_named("a", "item", each={"item": "b"}), node_named("b", "a")],
            "b → a → b",
            id="through each=",
        ),
    ],
)
def test_a_cycle_is_named_in_full_and_its_last_node_is_not_added(nodes, cycle):
    graph = Graph("essay")
    *others, last = nodes
    for add in others:
        add(graph)
    names = list(graph.nodes)

    with pytest.raises(PipelineInvalid, match=f"closes a cycle: {cycle}; ") as caught:
        last(graph)

    assert caught.value.line == 1
    assert list(graph.nodes) == names


def test_a_node_may_be_defined_before_what_it_waits_for():
    graph = Graph("essay")
    node_named("text", "sections", "plan")(graph)
    node_named("sections", "plan")(graph)
    node_named("plan")(graph)

    assert graph.dependencies(graph.nodes["text"]) == ("sections", "plan")


IMPORTS = """
import sys
from harness.graph import Graph

graph = Graph("essay")

@graph.node
def plan(task): ...

@graph.node
def text(plan, notes): ...

print("networkx" in sys.modules)

@graph.node
def notes(): ...

print("networkx" in sys.modules)
"""


def test_networkx_is_imported_only_when_a_cycle_is_possible():
    # It takes longer to import than everything else that a graph needs.
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", "True"]
