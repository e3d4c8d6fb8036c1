"""Nodes that are not run: who decides that, who hears of it, and what goes on without them."""

import pytest
from graph_runs import outputs_of, run, run_recorded, step

from harness.errors import PipelineInvalid
from harness.graph import Graph, Skipped, graph_inputs
from harness.trace import Instant, NodeOutput, SpanStarted

NOT_WANTED = Skipped(reason="its when= was not true")
EACH = {"n": "numbers"}


@pytest.fixture
def graph():
    return Graph("skipping")


def skipped(ended):
    return [(one.node, one.because_of) for one in ended.skips]


# --- when= ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", ["yes", ""], ids=repr)
def test_a_node_is_run_where_its_predicate_returns_something_true(graph, said):
    step(graph, "shout", gives="hey", when=lambda: said)

    ended = run(graph)

    assert ended.status == "finished"
    assert ended.outputs == {"shout": "hey" if said else NOT_WANTED}
    assert skipped(ended) == ([] if said else [("shout", None)])


def test_a_predicate_sees_nodes_and_inputs_that_its_node_does_not_take(graph):
    step(graph, "draft", "text", gives=str)

    def is_long(draft: str, words: int, at_most: int = 3) -> bool:
        return words > at_most

    step(graph, "shortened", "text", when=is_long, gives=lambda text: text[:1])

    assert set(graph_inputs(graph)) == {"text", "words", "at_most"}
    assert outputs_of(graph, text="abc", words=5)["shortened"] == "a"
    assert outputs_of(graph, text="abc", words="3")["shortened"] == NOT_WANTED
    assert outputs_of(graph, text="abc", words="3", at_most="2")["shortened"] == "a"


def test_the_record_of_a_skip_names_what_its_predicate_was_given(graph):
    step(graph, "route", gives="left")
    step(graph, "right", gives="", when=lambda route, text: route == text)

    _, records = run_recorded(graph, {"text": "a"})

    (skip,) = [one for one in records if isinstance(one, Instant) and one.name == "skip"]
    assert (skip.attributes["because_of"], skip.attributes["decided_by"]) == (
        None, ("route", "text"),
    )  # fmt: skip


def test_a_mapped_node_is_asked_item_by_item(graph):
    step(graph, "large", each=EACH, gives=int, when=lambda n, least: n >= least)
    step(graph, "largest", each=EACH, gives=int, when=lambda n, numbers: n == max(numbers))
    step(graph, "kept", "large", gives=list)

    ended = run(graph, {"numbers": [1, 5, 2, 7], "least": 3})

    assert ended.outputs["kept"] == [5, 7]
    assert ended.outputs["large"] == [NOT_WANTED, 5, NOT_WANTED, 7]
    assert ended.outputs["largest"] == [NOT_WANTED, NOT_WANTED, NOT_WANTED, 7]
    assert [node for node, _ in skipped(ended) if node.startswith("large[")] == [
        "large[0]", "large[2]",
    ]  # fmt: skip


async def asks_a_model(text: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("when", "code"),
    [
        pytest.param(lambda run: run, "pipeline.when-not-plain", id="takes the run"),
        pytest.param(asks_a_model, "pipeline.when-not-plain", id="async"),
        pytest.param(lambda *all: all, "pipeline.parameter-without-name", id="takes anything"),
    ],
)
def test_a_predicate_that_cannot_be_asked_is_refused(graph, when, code):
    with pytest.raises(PipelineInvalid) as caught:
        step(graph, "shout", when=when)

    assert caught.value.code == code


# --- who takes what was skipped ------------------------------------------------------------------


def never(graph, *names):
    for name in names:
        step(graph, name, when=lambda: False, gives="never")


def test_what_needs_a_skipped_node_is_skipped_all_along_the_chain(graph):
    never(graph, "nothing")
    asked = []
    step(graph, "second", when=lambda nothing: asked.append(str(nothing)))
    step(graph, "third", "second", "text")
    step(graph, "beside", "text", gives=str)

    ended, records = run_recorded(graph, {"text": "a"})

    assert ended.status == "finished"
    assert skipped(ended) == [("nothing", None), ("second", "nothing"), ("third", "second")]
    assert ended.outputs["beside"] == "a"
    # Nothing was begun or asked, and nothing recorded but that it was skipped.
    assert asked == []
    spans = [one.attributes["label"] for one in records if isinstance(one, SpanStarted)]
    assert spans == ["beside"]
    assert [one.node for one in records if isinstance(one, NodeOutput)] == ["beside"]
    said = [one for one in records if isinstance(one, Instant) and one.name == "skip"]
    assert [one.attributes["node"] for one in said] == ["nothing", "second", "third"]


def test_who_asks_for_it_is_told_why_and_must_ask_for_all(graph):
    never(graph, "left", "right")

    @graph.node
    async def one(left: str | Skipped, right: str) -> str:
        return "never"

    @graph.node
    async def both(left: str | Skipped, right: Skipped | str) -> list[str]:
        return [left.reason, right.reason]

    @graph.node
    async def after(both: list[str]) -> int:
        return len(both)

    ended = run(graph)

    assert ended.outputs["both"] == [NOT_WANTED.reason] * 2
    assert ended.outputs["after"] == 2
    assert skipped(ended) == [("left", None), ("right", None), ("one", "right")]


@pytest.mark.parametrize("numbers", [[1, 2, 3, 4], [2, 4]], ids=["some", "none"])
def test_a_list_of_items_has_those_that_there_are_or_all_if_asked(graph, numbers):
    step(graph, "odd", each=EACH, gives=int, when=lambda n: n % 2)
    step(graph, "doubled", each={"n": "odd"}, gives=lambda n: 2 * n)
    step(graph, "kept", "doubled", gives=list)

    @graph.node(each={"one": "odd"})
    async def shown(one: int | Skipped) -> str:
        return "left out" if isinstance(one, Skipped) else str(one)

    @graph.node
    async def places(doubled: list[int | Skipped]) -> list[int]:
        return [0 if isinstance(one, Skipped) else one for one in doubled]

    @graph.node
    async def kept_or_none(odd: list[int] | Skipped) -> list[int]:
        return odd

    ended = run(graph, {"numbers": numbers})

    odd = [n for n in numbers if n % 2]
    assert ended.outputs["kept"] == [2 * n for n in odd]
    assert ended.outputs["shown"] == [str(n) if n % 2 else "left out" for n in numbers]
    assert ended.outputs["places"] == [2 * n if n % 2 else 0 for n in numbers]
    assert ended.outputs["kept_or_none"] == odd
    even = [f"odd[{place}]" for place, n in enumerate(numbers) if not n % 2]
    assert [one for one in skipped(ended) if one[1]] == [
        (label.replace("odd", "doubled"), label) for label in even
    ]


def test_who_asks_for_skipped_items_is_skipped_by_a_list_that_was_never_begun(graph):
    never(graph, "numbers")
    step(graph, "doubled", each=EACH)

    @graph.node
    async def places(doubled: list[str | Skipped]) -> int:
        return len(doubled)

    @graph.node
    async def told(doubled: list[str] | Skipped) -> bool:
        return isinstance(doubled, Skipped)

    ended = run(graph)

    assert skipped(ended) == [
        ("numbers", None), ("doubled", "numbers"), ("places", "doubled"),
    ]  # fmt: skip
    assert ended.outputs["told"] is True


def test_cells_of_a_product_are_asked_one_by_one_and_skipped_with_the_item_they_take(graph):
    step(graph, "some", each=EACH, gives=int, when=lambda n: n != 2)
    each = {"a": "some", "b": "letters"}
    unwanted = lambda a, b: (a, b) != (3, "y")  # noqa: E731
    step(graph, "cells", each=each, combine="product", when=unwanted, gives=lambda a, b: f"{a}{b}")
    step(graph, "text", "cells", gives=" ".join)

    ended = run(graph, {"numbers": [1, 2, 3], "letters": ["x", "y"]})

    assert ended.outputs["text"] == "1x 1y 3x"
    assert set(skipped(ended)) == {
        ("some[1]", None), ("cells[2]", "some[1]"), ("cells[3]", "some[1]"), ("cells[5]", None),
    }  # fmt: skip


# --- included graphs -----------------------------------------------------------------------------


def test_predicates_keep_their_meaning_in_a_graph_that_is_included(graph):
    brief = Graph("brief")
    step(brief, "text", "source", gives=str)
    is_long = lambda text, least: len(text) > least  # noqa: E731
    step(brief, "short", "text", when=is_long, gives=lambda text: text[:1])
    step(graph, "page", "words", gives=str)

    graph.include(brief, prefix="left", takes={"source": "page"})
    graph.include(brief, prefix="right", takes={"source": "other"})

    assert set(graph_inputs(graph)) == {"words", "least", "other"}
    outputs = outputs_of(graph, words="hello", other="ab", least=3)
    assert (outputs["left_short"], outputs["right_short"]) == ("h", NOT_WANTED)
