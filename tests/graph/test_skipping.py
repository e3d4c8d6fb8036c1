"""Nodes that are not run: who decides that, who hears of it, and what goes on without them."""

import pytest
from graph_runs import Calls, outputs_of, run, run_recorded

from harness.errors import PipelineInvalid
from harness.graph import Graph, Skipped, bind_inputs, graph_inputs
from harness.trace import Instant, NodeOutput, SpanStarted

NOT_WANTED = Skipped(reason="its when= was not true")


@pytest.fixture
def graph():
    return Graph("skipping")


def skipped(ended):
    return [(one.node, one.reason, one.because_of) for one in ended.skips]


# --- when= ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "is_run"),
    [
        pytest.param(True, True, id="true"),
        pytest.param(False, False, id="false"),
        pytest.param("yes", True, id="a text"),
        pytest.param("", False, id="an empty text"),
        pytest.param(None, False, id="nothing"),
        pytest.param([0], True, id="a list"),
    ],
)
def test_a_node_is_run_where_its_predicate_returns_something_true(graph, said, is_run):
    @graph.node(when=lambda: said)
    async def shout() -> str:
        return "hey"

    ended = run(graph)

    assert ended.status == "finished"
    assert ended.outputs == {"shout": "hey" if is_run else NOT_WANTED}
    assert skipped(ended) == ([] if is_run else [("shout", "its when= was not true", None)])


def test_a_predicate_sees_nodes_and_inputs_that_its_node_does_not_take(graph):
    @graph.node
    async def draft(text: str) -> str:
        return text

    def is_long(draft: str, words: int, at_most: int = 3) -> bool:
        return words > at_most

    @graph.node(when=is_long)
    async def shortened(text: str) -> str:
        return text[:1]

    assert set(graph_inputs(graph)) == {"text", "words", "at_most"}
    assert outputs_of(graph, text="abc", words=5)["shortened"] == "a"
    assert outputs_of(graph, text="abc", words="3")["shortened"] == NOT_WANTED
    assert outputs_of(graph, text="abc", words="3", at_most="2")["shortened"] == "a"


def test_an_input_of_a_predicate_alone_is_checked_as_any_other(graph):
    @graph.node(when=lambda mode: mode == "loud")
    async def shout(text: str) -> str:
        return text.upper()

    def is_deep(depth: int) -> bool:
        return depth > 1

    @graph.node(when=is_deep)
    async def dig() -> str:
        return "deep"

    with pytest.raises(PipelineInvalid, match="node 'shout' needs 'mode'"):
        bind_inputs(graph, {"text": "a", "depth": 1})
    with pytest.raises(PipelineInvalid, match="'depth' does not fit node 'dig'"):
        bind_inputs(graph, {"text": "a", "mode": "loud", "depth": "very"})
    assert outputs_of(graph, text="a", mode="loud", depth=2) == {"shout": "A", "dig": "deep"}


def test_a_predicate_without_annotations_leaves_the_type_of_an_input_to_others(graph):
    @graph.node(when=lambda words: words > 1)
    async def long() -> str:
        return "long"

    @graph.node
    async def counted(words: int = 5) -> int:
        return words

    @graph.node(each={"topic": "topics"})
    async def one(topic) -> str:
        return topic

    @graph.node
    async def every(topics: list[str]) -> int:
        return len(topics)

    values = bind_inputs(graph, {"topics": '["a"]', "words": "1"})

    assert values == {"words": 1, "topics": ["a"]}
    assert bind_inputs(graph, {"topics": ["a"]})["words"] == 5


def test_a_mapped_node_is_asked_item_by_item(graph):
    @graph.node(each={"n": "numbers"}, when=lambda n, least: n >= least)
    async def large(n: int) -> int:
        return n

    @graph.node
    async def kept(large: list[int]) -> list[int]:
        return large

    ended = run(graph, {"numbers": [1, 5, 2, 7], "least": 3})

    assert ended.outputs["kept"] == [5, 7]
    assert ended.outputs["large"] == [NOT_WANTED, 5, NOT_WANTED, 7]
    assert [one.node for one in ended.skips] == ["large[0]", "large[2]"]


def test_a_predicate_over_the_list_itself_decides_for_each_item_alike(graph):
    @graph.node(each={"n": "numbers"}, when=lambda n, numbers: n == max(numbers))
    async def largest(n: int) -> int:
        return n

    assert outputs_of(graph, numbers=[3, 9, 2])["largest"] == [NOT_WANTED, 9, NOT_WANTED]


def test_cells_of_a_product_are_asked_one_by_one(graph):
    @graph.node(each={"a": "left", "b": "right"}, combine="product", when=lambda a, b: a != b)
    async def pairs(a: int, b: int) -> int:
        return 10 * a + b

    @graph.node
    async def kept(pairs: list[int]) -> list[int]:
        return pairs

    assert outputs_of(graph, left=[1, 2], right=[1, 2, 3])["kept"] == [12, 13, 21, 23]


def test_a_predicate_means_by_a_name_what_its_node_means_by_it(graph):
    @graph.node
    async def plan() -> str:
        return "the plan"

    @graph.node(takes={"text": "plan"}, when=lambda text: text == "the plan")
    async def shown(text: str) -> str:
        return text

    assert outputs_of(graph)["shown"] == "the plan"


def test_a_predicate_that_raises_fails_its_node(graph):
    @graph.node(each={"n": "numbers"}, when=lambda n: 1 / n)
    async def inverse(n: int) -> float:
        return 1 / n

    ended = run(graph, {"numbers": [1, 0]})

    (failure,) = ended.failures
    assert (failure.node, type(failure.error), failure.attempts) == (
        "inverse[1]",
        ZeroDivisionError,
        0,
    )


@pytest.mark.parametrize(
    ("when", "message"),
    [
        pytest.param(lambda run: run, "must be a plain function", id="takes the run"),
        pytest.param(lambda *all: all, "name them all", id="takes anything"),
    ],
)
def test_a_predicate_that_cannot_be_asked_is_refused(graph, when, message):
    with pytest.raises(PipelineInvalid, match=message):

        @graph.node(when=when)
        async def shout() -> str:
            return "hey"


def test_an_async_predicate_is_refused(graph):
    async def asks(text: str) -> bool:
        return True

    with pytest.raises(PipelineInvalid, match="is a node of its own"):

        @graph.node(when=asks)
        async def shout(text: str) -> str:
            return text


# --- who takes what was skipped ------------------------------------------------------------------


def never(graph, name="nothing"):
    @graph.node(name=name, when=lambda: False)
    async def nothing() -> str:
        return "never"


def test_what_needs_a_skipped_node_is_skipped_all_along_the_chain(graph):
    never(graph)

    @graph.node
    async def second(nothing: str) -> str:
        return nothing

    @graph.node
    async def third(second: str, text: str) -> str:
        return second

    @graph.node
    async def beside(text: str) -> str:
        return text

    ended, records = run_recorded(graph, {"text": "a"})

    assert ended.status == "finished"
    assert skipped(ended) == [
        ("nothing", "its when= was not true", None),
        ("second", "'nothing' was skipped", "nothing"),
        ("third", "'second' was skipped", "second"),
    ]
    assert ended.outputs["beside"] == "a"
    # Nothing was begun, and nothing recorded of it but that it was skipped.
    spans = [one.attributes["label"] for one in records if isinstance(one, SpanStarted)]
    assert spans == ["beside"]
    assert [one.node for one in records if isinstance(one, NodeOutput)] == ["beside"]
    said = [one for one in records if isinstance(one, Instant) and one.name == "skip"]
    assert [one.attributes["node"] for one in said] == ["nothing", "second", "third"]


def test_who_asks_for_it_is_told_why(graph):
    never(graph)

    @graph.node
    async def told(nothing: str | Skipped) -> str:
        return nothing.reason if isinstance(nothing, Skipped) else nothing

    @graph.node
    async def after(told: str) -> str:
        return told

    ended = run(graph)

    assert ended.outputs["after"] == "its when= was not true"
    assert [one.node for one in ended.skips] == ["nothing"]


def test_of_two_that_it_takes_it_must_ask_for_both(graph):
    never(graph, "left")
    never(graph, "right")

    @graph.node
    async def one(left: str | Skipped, right: str) -> str:
        return "never"

    @graph.node
    async def both(left: str | Skipped, right: Skipped | str) -> bool:
        return isinstance(left, Skipped) and isinstance(right, Skipped)

    ended = run(graph)

    assert ended.outputs["both"] is True
    assert ended.outputs["one"] == Skipped(reason="'right' was skipped")


def test_a_list_of_items_has_those_that_there_are_or_all_if_asked(graph):
    @graph.node(each={"n": "numbers"}, when=lambda n: n % 2)
    async def odd(n: int) -> int:
        return n

    @graph.node
    async def kept(odd: list[int]) -> list[int]:
        return odd

    @graph.node
    async def places(odd: list[int | Skipped]) -> list[int | None]:
        return [None if isinstance(one, Skipped) else one for one in odd]

    @graph.node
    async def kept_or_none(odd: list[int] | Skipped) -> list[int]:
        assert not isinstance(odd, Skipped)
        return odd

    outputs = outputs_of(graph, numbers=[1, 2, 3, 4])

    assert outputs["kept"] == [1, 3]
    assert outputs["places"] == [1, None, 3, None]
    assert outputs["kept_or_none"] == [1, 3]


def test_a_list_of_which_every_item_was_skipped_is_empty(graph):
    @graph.node(each={"n": "numbers"}, when=lambda n: n is None)
    async def none(n: int) -> int:
        return n

    @graph.node
    async def kept(none: list[int]) -> int:
        return len(none)

    @graph.node
    async def places(none: list[int | Skipped]) -> int:
        return len(none)

    outputs = outputs_of(graph, numbers=[1, 2, 3])

    assert (outputs["kept"], outputs["places"]) == (0, 3)


def test_who_asks_for_skipped_items_is_skipped_by_a_list_that_was_never_begun(graph):
    @graph.node(when=lambda: False)
    async def numbers() -> list[str]:
        return ["never"]

    @graph.node(each={"n": "numbers"})
    async def doubled(n: str) -> str:
        return n

    @graph.node
    async def places(doubled: list[str | Skipped]) -> int:
        return len(doubled)

    @graph.node
    async def told(doubled: list[str] | Skipped) -> str:
        assert isinstance(doubled, Skipped)
        return doubled.reason

    ended = run(graph)

    assert ended.outputs["places"] == Skipped(reason="'doubled' was skipped")
    assert ended.outputs["told"] == "'numbers' was skipped"


def test_cells_of_a_product_are_skipped_with_the_item_they_take(graph):
    @graph.node(each={"n": "numbers"}, when=lambda n: n != 2)
    async def some(n: int) -> int:
        return n

    @graph.node(each={"a": "some", "b": "letters"}, combine="product")
    async def cells(a: int, b: str) -> str:
        return f"{a}{b}"

    @graph.node
    async def text(cells: list[str]) -> str:
        return " ".join(cells)

    ended = run(graph, {"numbers": [1, 2, 3], "letters": ["x", "y"]})

    assert ended.outputs["text"] == "1x 1y 3x 3y"
    assert [(one.node, one.because_of) for one in ended.skips] == [
        ("some[1]", None),
        ("cells[2]", "some[1]"),
        ("cells[3]", "some[1]"),
    ]


def test_a_predicate_of_a_skipped_node_is_not_asked(graph):
    never(graph)
    asked = Calls()

    def ask(nothing: str) -> bool:
        asked.note("asked")
        return True

    @graph.node(when=ask)
    async def second() -> str:
        return "never"

    ended = run(graph)

    assert ended.outputs["second"] == Skipped(reason="'nothing' was skipped")
    assert not asked.counts


def test_a_failure_goes_before_a_skip(graph):
    never(graph)

    @graph.node
    async def broken() -> str:
        raise RuntimeError("no")

    @graph.node
    async def last(nothing: str, broken: str) -> str:
        return "never"

    ended = run(graph)

    assert "last" not in ended.outputs
    assert skipped(ended)[-1] == ("last", "'broken' failed", "broken")


# --- included graphs -----------------------------------------------------------------------------


def test_predicates_keep_their_meaning_in_a_graph_that_is_included(graph):
    brief = Graph("brief")

    @brief.node
    async def text(source: str) -> str:
        return source

    @brief.node(when=lambda text, least: len(text) > least)
    async def short(text: str) -> str:
        return text[:1]

    @brief.node
    async def told(short: str | Skipped, text: str) -> str:
        return text if isinstance(short, Skipped) else short

    @graph.node
    async def page(words: str) -> str:
        return words

    graph.include(brief, prefix="left", takes={"source": "page"})
    graph.include(brief, prefix="right", takes={"source": "other"})

    assert set(graph_inputs(graph)) == {"words", "least", "other"}
    outputs = outputs_of(graph, words="hello", other="ab", least=3)

    assert (outputs["left_short"], outputs["left_told"]) == ("h", "h")
    assert (outputs["right_short"], outputs["right_told"]) == (NOT_WANTED, "ab")


def test_an_item_wise_predicate_is_included_with_what_it_maps_over(graph):
    even = Graph("even")

    @even.node(each={"n": "numbers"}, when=lambda n, offset=0: (n + offset) % 2 == 0)
    async def kept(n: int) -> int:
        return n

    @graph.node
    async def tens() -> list[int]:
        return [10, 11, 12]

    graph.include(even, prefix="of", takes={"numbers": "tens", "offset": "shift"})

    @graph.node
    async def total(of_kept: list[int]) -> int:
        return sum(of_kept)

    assert outputs_of(graph)["total"] == 22
    assert outputs_of(graph, shift=1)["total"] == 11
