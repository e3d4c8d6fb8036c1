import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from graph_runs import outputs_of
from pydantic import BaseModel

from harness.errors import PipelineInvalid
from harness.graph import Default, Graph, Retry, Skipped, bind_inputs, graph_inputs


def node_named(name, *parameters, each=None, called=None, **options):
    """A function of this name with these parameters, added to a graph by calling it."""
    namespace = {}
    exec(f"def {name}({', '.join(parameters)}): ...", namespace)
    return lambda graph: graph.node(name=called, each=each or {}, **options)(namespace[name])


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
        pytest.param(
            [node_named("a", "text", takes={"text": "b"}), node_named("b", "a")],
            "b → a → b",
            id="through takes=",
        ),
        pytest.param(
            [node_named("a", when=lambda b: b), node_named("b", "a")],
            "b → a → b",
            id="through when=",
        ),
        pytest.param([node_named("a", when=lambda a: a)], "a → a", id="itself, through when="),
        pytest.param(
            [node_named("a", "c"), node_named("b", "a"), node_named("x", "b", called="c")],
            "c → b → a → c",
            id="by another name than its function's",
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
def notes(plan): ...

print("networkx" in sys.modules)
"""


def test_networkx_is_imported_only_when_a_cycle_is_possible():
    # It takes longer to import than everything else that a graph needs.
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", "True"]


# --- names ---------------------------------------------------------------------------------------


def test_a_node_may_be_called_otherwise_than_its_function():
    graph = Graph("essay")

    async def shout(text: str) -> str:
        return text.upper()

    graph.node(name="loud")(shout)
    graph.node(name="louder", takes={"text": "loud"})(shout)

    @graph.node(name="both", each={"one": "words"}, takes={"more": "louder"})
    async def joined(one: str, more: str) -> str:
        return one + more

    assert list(graph.nodes) == ["loud", "louder", "both"]
    assert graph.dependencies(graph.nodes["both"]) == ("louder",)
    assert outputs_of(graph, text="a", words=["b", "c"])["both"] == ["bA", "cA"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param({"name": "two words"}, "cannot be called 'two words'", id="two words"),
        pytest.param({"name": ""}, "cannot be called ''", id="no name"),
        pytest.param({"name": "run"}, "cannot be called 'run'", id="the run"),
        pytest.param(
            {"takes": {"txt": "plan"}},
            "takes= of node 'page' names 'txt', which is not a parameter that takes a value; did "
            "you mean 'text'?",
            id="takes= names no parameter",
        ),
        pytest.param(
            {"each": {"run": "plan"}},
            "each= of node 'page' names 'run', which is not a parameter that takes a value",
            id="each= names the run",
        ),
        pytest.param(
            {"takes": {"text": "plan"}, "each": {"text": "plans"}},
            "each= and takes= of node 'page' both say where 'text' is from",
            id="both",
        ),
    ],
)
def test_names_that_mean_nothing_are_refused_where_the_function_stands(options, message):
    graph = Graph("essay")

    async def page(run, text: str) -> str:
        return text

    with pytest.raises(PipelineInvalid) as caught:
        graph.node(**options)(page)

    assert message in str(caught.value)
    assert (caught.value.path, caught.value.line) == (
        Path(__file__),
        page.__code__.co_firstlineno,
    )
    assert not graph.nodes


def test_a_lambda_is_asked_for_a_name():
    graph = Graph("essay")

    with pytest.raises(PipelineInvalid, match="name=…"):
        graph.node(lambda text: text)

    graph.node(name="page")(lambda text: text)
    assert outputs_of(graph, text="a") == {"page": "a"}


# --- include -------------------------------------------------------------------------------------


def brief() -> Graph:
    brief = Graph("brief", retry=Retry(7))

    @brief.node
    async def lines(text: str) -> list[str]:
        return text.split()

    @brief.node(each={"line": "lines"}, takes={"end": "mark"})
    async def shouted(line: str, end: str = "!") -> str:
        return line.upper() + end

    @brief.node(retry=Retry(2))
    async def answer(shouted: list[str]) -> str:
        return " ".join(shouted)

    return brief


def test_another_graph_is_included_under_a_prefix_and_stays_as_it_is():
    graph, other = Graph("page"), brief()

    @graph.node
    async def page(title: str) -> str:
        return f"{title} page"

    graph.include(other, prefix="left", takes={"text": "page", "mark": "sign"})
    graph.include(other, prefix="right")

    @graph.node
    async def joined(left_answer: str, right_answer: str) -> str:
        return f"{left_answer} / {right_answer}"

    assert list(other.nodes) == ["lines", "shouted", "answer"]
    assert list(graph.nodes) == [
        "page",
        *("left_lines", "left_shouted", "left_answer"),
        *("right_lines", "right_shouted", "right_answer"),
        "joined",
    ]
    assert set(graph_inputs(graph)) == {"title", "sign", "text", "mark"}
    assert bind_inputs(graph, {"title": "a", "text": "b"})["sign"] == "!"
    assert outputs_of(graph, title="a", text="b c", sign="?")["joined"] == "A? PAGE? / B! C!"


def test_policies_come_along_with_an_included_graph():
    graph = Graph("page", retry=Retry(5))

    graph.include(brief(), prefix="left")

    attempts = {name: node.policies.retry.attempts for name, node in graph.nodes.items()}
    assert attempts == {"left_lines": 7, "left_shouted": 7, "left_answer": 2}


def test_a_graph_that_includes_another_may_be_included_and_even_itself():
    middle, graph = Graph("middle"), Graph("page")
    middle.include(brief(), prefix="one")
    graph.include(middle, prefix="all")
    assert list(graph.nodes) == ["all_one_lines", "all_one_shouted", "all_one_answer"]
    assert outputs_of(graph, text="a")["all_one_answer"] == "A!"

    graph.include(graph, prefix="x", takes={"text": "all_one_answer"})
    assert outputs_of(graph, text="a")["x_all_one_answer"] == "A!!"


def test_an_input_that_is_no_input_of_the_other_is_refused_with_a_suggestion():
    with pytest.raises(PipelineInvalid) as caught:
        Graph("page").include(brief(), prefix="left", takes={"txet": "page"})

    assert str(caught.value) == (
        "takes= names 'txet', which is not an input of pipeline 'brief'; did you mean 'text'?"
    )


@pytest.mark.parametrize(
    ("prefix", "takes", "message"),
    [
        pytest.param("left", {}, "has two nodes called 'left_answer'", id="a name that is taken"),
        pytest.param("my left", {}, "prefix='my left' would give nodes names", id="no name"),
        pytest.param("", {}, "prefix='' would give nodes names", id="nothing"),
        pytest.param(
            "right",
            {"text": "above"},
            "closes a cycle: right_answer → right_shouted → right_lines → above → right_answer",
            id="a cycle",
        ),
    ],
)
def test_a_graph_that_cannot_be_included_leaves_nothing_behind(prefix, takes, message):
    graph = Graph("page")
    node_named("left_answer")(graph)
    node_named("above", "right_answer")(graph)
    nodes = dict(graph.nodes)

    with pytest.raises(PipelineInvalid, match=message):
        graph.include(brief(), prefix=prefix, takes=takes)

    assert graph.nodes == nodes
    node_named("right_lines", "above")(graph)
    graph.check()


# --- check ---------------------------------------------------------------------------------------


@dataclass
class Finding:
    text: str


class Verdict(BaseModel):
    score: int


class Client:
    """Nothing that a journal could hold."""


def two_nodes(produced, wanted, *, each=False, maps=False):
    """A graph in which one node returns what the other takes."""
    graph = Graph("essay")

    def source_of_many(n): ...
    def taker(value): ...

    first = source_of_many if maps else (lambda: None)
    first.__annotations__["return"] = produced
    taker.__annotations__["value"] = wanted
    graph.node(name="source", each={"n": "ns"} if maps else None)(first)
    way = {"value": "source"}
    graph.node(each=way if each else None, takes=None if each else way)(taker)
    return graph


FIT = [
    pytest.param(str, str, {}, id="the same"),
    pytest.param(str, object, {}, id="anything"),
    pytest.param(int, float, {}, id="a whole number for a number"),
    pytest.param(str | None, str, {}, id="perhaps"),
    pytest.param(str, str | Skipped, {}, id="or skipped"),
    pytest.param(list[str], str, {"each": True}, id="an item"),
    pytest.param(list[str], str | Skipped, {"each": True}, id="an item or skipped"),
    pytest.param(str, list[str], {"maps": True}, id="the list of a mapped node"),
    pytest.param(str, list[str | Skipped], {"maps": True}, id="with skipped items"),
    pytest.param(str, str, {"maps": True, "each": True}, id="an item of a mapped node"),
    pytest.param(Verdict, Verdict, {}, id="a model"),
]

UNFIT = [
    pytest.param(
        str, int, {}, "takes 'value' as int, and 'source' returns str; make", id="another type"
    ),
    pytest.param(
        Finding, Verdict, {}, "as Verdict, and 'source' returns Finding", id="another class"
    ),
    pytest.param(
        list[str], list[int], {}, "as list[int], and 'source' returns list[str]", id="items"
    ),
    pytest.param(
        str, str, {"maps": True}, "as str, and 'source' returns list[str]", id="a list for one"
    ),
    pytest.param(
        list[str],
        int,
        {"each": True},
        "as int, and 'source' gives items that are str",
        id="items of another type",
    ),
    pytest.param(
        str,
        str,
        {"each": True},
        "each= of node 'taker' maps over 'source', which returns str and not a list",
        id="each= over a text",
    ),
    pytest.param(
        dict[str, int], str, {"each": True}, "returns dict[str, int] and not a list", id="a mapping"
    ),
    pytest.param(set[str], str, {"each": True}, "returns set[str] and not a list", id="a set"),
]


@pytest.mark.parametrize(("produced", "wanted", "how"), FIT)
def test_what_fits_passes_the_check(produced, wanted, how):
    two_nodes(produced, wanted, **how).check()


@pytest.mark.parametrize(("produced", "wanted", "how", "message"), UNFIT)
def test_what_does_not_fit_is_refused_at_the_node_that_takes_it(produced, wanted, how, message):
    graph = two_nodes(produced, wanted, **how)

    with pytest.raises(PipelineInvalid) as caught:
        graph.check()

    assert message in str(caught.value)
    taker = graph.nodes["taker"]
    assert str(caught.value).startswith(f"{__file__}:{taker.line}: ")


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        pytest.param(Client, "Client", id="a class of one's own"),
        pytest.param(Callable[[], int], "Callable[[], int]", id="a function"),
        pytest.param(Iterator[str], "Iterator[str]", id="an iterator"),
        pytest.param(list[Client], "list[Client]", id="a list of them"),
    ],
)
def test_outputs_that_cannot_be_journaled_are_refused_where_they_are_made(annotation, said):
    graph = Graph("essay")

    async def page(): ...

    page.__annotations__["return"] = annotation
    graph.node(page)

    with pytest.raises(PipelineInvalid) as caught:
        graph.check()

    line = page.__code__.co_firstlineno
    assert str(caught.value).startswith(
        f"{__file__}:{line}: what node 'page' returns has to be in the run's journal: {said} "
        "cannot be written to a journal and read back"
    )


def test_items_that_a_generator_yields_are_checked_as_a_list_of_them():
    graph = Graph("essay")

    @graph.node
    async def ticks() -> AsyncIterator[int]:
        yield 1

    @graph.node
    async def total(ticks: list[int]) -> int:
        return sum(ticks)

    @graph.node(each={"tick": "ticks"})
    async def shown(tick: int) -> str:
        return str(tick)

    graph.check()

    @graph.node
    async def wrong(ticks: list[str]) -> str:
        return ""

    with pytest.raises(PipelineInvalid, match=r"as list\[str\], and 'ticks' returns list\[int\]"):
        graph.check()


@pytest.mark.parametrize(
    "when",
    [pytest.param(None, id="its own"), pytest.param("graph", id="the pipeline's")],
)
def test_a_default_must_be_what_the_node_returns(when):
    on_error = Default(3)
    graph = Graph("essay", on_error=on_error if when else None)

    @graph.node(on_error=None if when else on_error)
    async def page() -> str:
        return "page"

    with pytest.raises(PipelineInvalid, match="node 'page' has on_error=Default\\(3\\)"):
        graph.check()


def test_an_edge_of_a_predicate_is_checked_too():
    graph = Graph("essay")

    @graph.node
    async def plan() -> str:
        return "plan"

    def is_long(plan: int) -> bool:
        return plan > 3

    @graph.node(when=is_long)
    async def page() -> str:
        return "page"

    with pytest.raises(PipelineInvalid, match="takes 'plan' as int, and 'plan' returns str"):
        graph.check()
