"""Nodes that run once per item: which items, in which order, and when each begins."""

import asyncio
import gc
import time
from random import Random

import pytest
from graph_runs import Calls, outputs_of, run

from harness.errors import PipelineInvalid
from harness.graph import Graph, Skipped


@pytest.fixture
def graph():
    return Graph("mapped")


@pytest.fixture
def calls():
    return Calls()


def numbers_of(graph, *values, name="numbers"):
    """Adds a node that returns these."""

    @graph.node(name=name)
    async def source() -> list[int]:
        return list(values)


# --- which items ---------------------------------------------------------------------------------


@pytest.mark.parametrize("left_is_a_node", [True, False], ids=["of a node", "of an input"])
@pytest.mark.parametrize("right_is_a_node", [True, False], ids=["of a node", "of an input"])
def test_lists_are_walked_side_by_side(graph, left_is_a_node, right_is_a_node):
    inputs = {}
    for name, is_a_node, values in (
        ("left", left_is_a_node, (1, 2, 3)),
        ("right", right_is_a_node, (10, 20, 30)),
    ):
        if is_a_node:
            numbers_of(graph, *values, name=name)
        else:
            inputs[name] = list(values)

    @graph.node(each={"a": "left", "b": "right"})
    async def sums(a: int, b: int, more: int = 100) -> int:
        return a + b + more

    assert outputs_of(graph, **inputs)["sums"] == [111, 122, 133]


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        pytest.param([[1, 2], [10]], [(1, 10), (2, 10)], id="two"),
        pytest.param(
            [[1, 2], [3, 4], [5, 6]],
            [(a, b, c) for a in (1, 2) for b in (3, 4) for c in (5, 6)],
            id="three",
        ),
        pytest.param([[1, 2], [], [5]], [], id="one of them empty"),
        pytest.param([[], [], []], [], id="all of them empty"),
        pytest.param([[7], [8], [9]], [(7, 8, 9)], id="one of each"),
    ],
)
@pytest.mark.parametrize("are_nodes", [True, False], ids=["nodes", "inputs"])
def test_a_product_takes_each_with_each_the_last_one_fastest(graph, axes, expected, are_nodes):
    names = ["first", "second", "third"][: len(axes)]
    inputs = dict(zip(names, axes, strict=True))
    if are_nodes:
        for name, values in inputs.items():
            numbers_of(graph, *values, name=name)
        inputs = {}

    async def two(a: int, b: int) -> list[int]:
        return [a, b]

    async def three(a: int, b: int, c: int) -> list[int]:
        return [a, b, c]

    each = dict(zip("abc", names, strict=False))
    graph.node(name="cells", each=each, combine="product")(two if len(axes) == 2 else three)

    assert [tuple(one) for one in outputs_of(graph, **inputs)["cells"]] == expected


def test_a_product_of_mapped_and_generating_nodes_is_in_the_same_order(graph):
    numbers_of(graph, 1, 2)

    @graph.node(each={"number": "numbers"})
    async def doubled(number: int) -> int:
        await asyncio.sleep(1 / number)  # the last is there first
        return 2 * number

    @graph.node
    async def letters():
        for letter in "ab":
            yield letter

    @graph.node(each={"n": "doubled", "s": "letters"}, combine="product")
    async def cells(n: int, s: str) -> str:
        return f"{s}{n}"

    assert outputs_of(graph)["cells"] == ["a2", "b2", "a4", "b4"]


def test_one_list_may_be_walked_by_two_parameters(graph):
    numbers_of(graph, 1, 2)

    @graph.node(each={"a": "numbers", "b": "numbers"}, combine="product")
    async def cells(a: int, b: int) -> int:
        return 10 * a + b

    @graph.node(each={"a": "cells", "b": "cells"})
    async def pairs(a: int, b: int) -> bool:
        return a == b

    outputs = outputs_of(graph)

    assert outputs["cells"] == [11, 12, 21, 22]
    assert outputs["pairs"] == [True] * 4


@pytest.mark.parametrize("parallel_calls", [None, 1, 3])
def test_the_order_is_that_of_the_list_whoever_is_done_first(graph, parallel_calls):
    values = list(range(40))
    seconds = [Random(3).random() for _ in values]
    numbers_of(graph, *values)

    @graph.node(each={"number": "numbers"})
    async def first(number: int) -> int:
        await asyncio.sleep(seconds[number])
        return number

    @graph.node(each={"number": "first"})
    async def second(number: int) -> int:
        await asyncio.sleep(seconds[-number])
        return number

    @graph.node
    async def all_of_them(first: list[int], second: list[int]) -> list[list[int]]:
        return [first, second]

    assert run(graph, parallel_calls=parallel_calls).outputs["all_of_them"] == [values, values]


# --- when items begin ----------------------------------------------------------------------------


def test_an_item_begins_when_the_item_it_takes_is_there_and_not_before(graph, calls):
    @graph.node(each={"seconds": "waits"})
    async def first(seconds: int) -> int:
        await calls.take(f"first {seconds}", seconds)
        return seconds

    @graph.node(each={"one": "first"})
    async def second(one: int) -> int:
        await calls.take(f"second {one}", 10)
        return one

    @graph.node(each={"one": "second"})
    async def third(one: int) -> int:
        calls.note(f"third {one}")
        return one

    @graph.node
    async def last(third: list[int]) -> list[int]:
        calls.note("last")
        return third

    assert outputs_of(graph, waits=[3, 1, 2])["last"] == [3, 1, 2]
    assert calls.begun_s == {
        **{f"first {n}": 0 for n in (1, 2, 3)},
        **{f"second {n}": n for n in (1, 2, 3)},
        **{f"third {n}": n + 10 for n in (1, 2, 3)},
        "last": 13,
    }


def test_an_item_of_two_mapped_nodes_waits_for_the_later(graph, calls):
    @graph.node(each={"seconds": "waits"})
    async def left(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    @graph.node(each={"seconds": "waits"})
    async def right(seconds: int) -> int:
        await asyncio.sleep(6 - seconds)
        return seconds

    @graph.node(each={"a": "left", "b": "right"})
    async def both(a: int, b: int) -> int:
        calls.note(f"both {a}")
        return a - b

    assert outputs_of(graph, waits=[1, 2, 5])["both"] == [0, 0, 0]
    assert calls.begun_s == {"both 1": 5, "both 2": 4, "both 5": 5}


def test_a_product_waits_for_all_its_lists(graph, calls):
    @graph.node(each={"seconds": "waits"})
    async def left(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    @graph.node(each={"a": "left", "b": "others"}, combine="product")
    async def cells(a: int, b: int) -> int:
        calls.note(f"{a} {b}")
        return a

    outputs_of(graph, waits=[1, 3], others=[0, 0])

    assert calls.begun_s == {"1 0": 3, "3 0": 3}
    assert calls.counts == {"1 0": 2, "3 0": 2}


def test_what_takes_an_item_and_the_whole_list_waits_for_the_list(graph, calls):
    @graph.node(each={"seconds": "waits"})
    async def first(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    @graph.node(each={"one": "first"})
    async def share(one: int, first: list[int]) -> list[int]:
        calls.note(f"share {one}")
        return [one, sum(first)]

    assert outputs_of(graph, waits=[1, 2, 4])["share"] == [[1, 7], [2, 7], [4, 7]]
    assert calls.begun_s == {"share 1": 4, "share 2": 4, "share 4": 4}


def test_an_item_waits_for_what_it_takes_beside_the_list(graph, calls):
    @graph.node
    async def tone() -> str:
        await asyncio.sleep(5)
        return "!"

    @graph.node(each={"seconds": "waits"})
    async def first(seconds: int) -> int:
        await asyncio.sleep(seconds)
        return seconds

    @graph.node(each={"one": "first"})
    async def second(one: int, tone: str) -> str:
        calls.note(f"second {one}")
        return f"{one}{tone}"

    assert outputs_of(graph, waits=[1, 7])["second"] == ["1!", "7!"]
    assert calls.begun_s == {"second 1": 5, "second 7": 7}


# --- lists that differ ---------------------------------------------------------------------------


def test_lists_that_differ_fail_before_an_item_is_called(graph, calls):
    @graph.node(each={"a": "left", "b": "right"})
    async def pairs(a: int, b: int) -> int:
        calls.note("pair")
        return a + b

    (failure,) = run(graph, {"left": [1, 2], "right": [1]}).failures
    assert isinstance(failure.error, PipelineInvalid)
    assert "'left' has 2, 'right' has 1" in str(failure.error)
    assert failure.node == "pairs"
    assert not calls.counts


# --- items that are not to be had ----------------------------------------------------------------


def test_an_item_that_was_skipped_is_skipped_and_the_others_go_on(graph):
    @graph.node(each={"number": "numbers"}, when=lambda number: number % 2)
    async def odd(number: int) -> int:
        return number

    @graph.node(each={"one": "odd"})
    async def doubled(one: int) -> int:
        return 2 * one

    @graph.node(each={"one": "odd"})
    async def shown(one: int | Skipped) -> str:
        return "left out" if isinstance(one, Skipped) else str(one)

    @graph.node
    async def total(doubled: list[int]) -> int:
        return sum(doubled)

    @graph.node
    async def places(doubled: list[int | Skipped]) -> list[bool]:
        return [isinstance(one, Skipped) for one in doubled]

    ended = run(graph, {"numbers": [1, 2, 3, 4]})

    assert ended.status == "finished"
    assert ended.outputs["shown"] == ["1", "left out", "3", "left out"]
    assert ended.outputs["total"] == 8
    assert ended.outputs["places"] == [False, True, False, True]
    assert [(one.node, one.because_of) for one in ended.skips] == [
        ("odd[1]", None),
        ("doubled[1]", "odd[1]"),
        ("odd[3]", None),
        ("doubled[3]", "odd[3]"),
    ]


def test_a_failed_item_stops_what_needs_it_and_no_other_item(graph, calls):
    @graph.node(each={"number": "numbers"})
    async def first(number: int) -> int:
        if number == 2:
            raise RuntimeError("no twos")
        return number

    @graph.node(each={"one": "first"})
    async def second(one: int) -> int:
        calls.note(f"second {one}")
        return one

    @graph.node
    async def total(second: list[int]) -> int:
        return sum(second)

    ended = run(graph, {"numbers": [1, 2, 3]})

    assert [one.node for one in ended.failures] == ["first[1]"]
    assert [(one.node, one.because_of) for one in ended.skips] == [
        ("second[1]", "first[1]"),
        ("total", "first[1]"),
    ]
    assert calls.counts == {"second 1": 1, "second 3": 1}


def test_a_list_that_was_skipped_as_a_whole_skips_what_maps_over_it_and_says_so(graph):
    @graph.node(when=lambda: False)
    async def numbers() -> list[int]:
        return [1]

    @graph.node(each={"number": "numbers"})
    async def shown(number: int | Skipped) -> str:
        return "an item"

    ended = run(graph)

    assert ended.status == "finished"
    assert isinstance(ended.outputs["shown"], Skipped)
    assert [one.node for one in ended.skips] == ["numbers", "shown"]


# --- many ----------------------------------------------------------------------------------------


def test_an_obstacle_travels_along_any_number_of_mapped_nodes(graph):
    links = 1200

    @graph.node(each={"number": "numbers"})
    async def link0(number: int) -> int:
        if number:
            raise RuntimeError("no")
        return number

    async def link(one: int) -> int:
        return one

    for number in range(1, links):
        graph.node(name=f"link{number}", each={"one": f"link{number - 1}"})(link)

    ended = run(graph, {"numbers": [0, 1]})

    assert len(ended.failures) == 1
    assert len(ended.skips) == links - 1


def seconds_for(items):
    graph = Graph("many")

    @graph.node(each={"number": "numbers"})
    async def first(number: int) -> int:
        return number

    @graph.node(each={"one": "first"})
    async def second(one: int, first: list[int]) -> int:
        await asyncio.sleep(1)  # so that all are under way together
        return one + len(first)

    gc.disable()  # how long that takes depends on what other tests have left
    began = time.process_time()
    try:
        outputs = outputs_of(graph, numbers=list(range(items)))
        took_s = time.process_time() - began
    finally:
        gc.enable()
    assert outputs["second"] == list(range(items, 2 * items))
    return took_s


def test_thousands_of_items_take_time_and_memory_in_proportion():
    seconds_for(100)  # what is only done once
    few, many = (min(seconds_for(items) for _ in range(3)) for items in (750, 3000))

    assert many < 10 * few  # 16 times if each item looked at all others

    graph = Graph("many")

    @graph.node(each={"number": "numbers"})
    async def first(number: int) -> int:
        return number

    seen = Calls()

    @graph.node(each={"one": "first"})
    async def second(one: int, first: list[int]) -> int:
        seen.note(str(id(first)))
        await asyncio.sleep(1)
        return one

    outputs_of(graph, numbers=list(range(1000)))
    assert len(seen.counts) == 1, "each item has a list of all items of its own"
