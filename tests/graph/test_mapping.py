"""Nodes that run once per item: which items, in which order, and when each begins."""

import asyncio
import itertools
import sys

import pytest
from graph_runs import Calls, outputs_of, run, step

from harness.errors import PipelineInvalid
from harness.graph import Graph


@pytest.fixture
def graph():
    return Graph("mapped")


@pytest.fixture
def calls():
    return Calls()


# --- which items ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lists", [("ab", "cd", "ef"), ("ab", "", "c")], ids=str)
def test_a_product_takes_each_with_each_the_last_one_fastest(graph, lists):
    first, second, third = map(list, lists)
    step(graph, "first", gives=first)
    each = {"a": "first", "b": "second", "c": "third"}
    step(graph, "cells", each=each, combine="product", gives=lambda *all: "".join(all))

    cells = outputs_of(graph, second=second, third=third)["cells"]

    assert cells == ["".join(cell) for cell in itertools.product(*lists)]


# --- when items begin ----------------------------------------------------------------------------


async def wait(seconds):
    await asyncio.sleep(seconds)
    return seconds


def test_an_item_begins_when_the_item_it_takes_is_there_and_not_before(graph, calls):
    step(graph, "first", each={"seconds": "waits"}, gives=wait)
    step(graph, "second", each={"n": "first"}, seconds=10, calls=calls, gives=int)
    step(graph, "third", each={"n": "second"}, calls=calls, gives=int)
    step(graph, "last", "third", gives=list)

    assert outputs_of(graph, waits=[3, 1, 2])["last"] == [3, 1, 2]
    begun_s = {f"second {n}": n for n in (1, 2, 3)} | {f"third {n}": n + 10 for n in (1, 2, 3)}
    assert calls.begun_s == begun_s


def test_an_item_waits_for_what_it_takes_beside_the_list(graph, calls):
    step(graph, "tone", seconds=5, gives="!")
    step(graph, "first", each={"seconds": "waits"}, gives=wait)
    step(graph, "second", "tone", each={"one": "first"}, calls=calls)
    step(graph, "share", "first", each={"one": "first"}, calls=calls)

    outputs_of(graph, waits=[1, 7])

    whole = {"share 1 [1, 7]": 7, "share 7 [1, 7]": 7}
    assert calls.begun_s == {"second 1 !": 5, "second 7 !": 7, **whole}


# --- lists that cannot be walked -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "code"),
    [
        pytest.param("text", ["b"], "pipeline.maps-no-list", id="a text"),
        pytest.param(["a"], {"b": 1}, "pipeline.maps-no-list", id="a dictionary"),
        pytest.param(["a", "b"], ["c"], "pipeline.lengths-differ", id="different lengths"),
    ],
)
def test_what_cannot_be_mapped_fails_the_node_where_it_is_written(graph, calls, left, right, code):
    step(graph, "left", gives=left)
    step(graph, "right", gives=right)
    step(graph, "pair", each={"one": "left", "other": "right"}, calls=calls)

    (failure,) = run(graph).failures

    assert (failure.node, failure.attempts) == ("pair", 0)
    assert isinstance(failure.error, PipelineInvalid)
    assert (failure.error.code, failure.error.line) == (code, graph.nodes["pair"].line)
    assert ("list(d.items())" in str(failure.error)) is isinstance(right, dict)
    assert not calls.counts


# --- many ----------------------------------------------------------------------------------------


def test_an_obstacle_travels_along_any_number_of_mapped_nodes(graph):
    links = 1200  # more than functions may call each other
    step(graph, "link0", each={"number": "numbers"}, raises=RuntimeError)
    for number in range(1, links):
        step(graph, f"link{number}", each={"one": f"link{number - 1}"})

    ended = run(graph, {"numbers": [0]})

    assert len(ended.failures) == 1
    assert len(ended.skips) == links - 1


def work_for(items):
    """How many functions are called in a run of so many items, that all are under way at once."""
    graph, lists, called = Graph("many"), Calls(), itertools.count()
    step(graph, "first", each={"number": "numbers"}, gives=int)
    seen = lambda _, first: lists.note(str(id(first)))  # noqa: E731
    step(graph, "second", "first", each={"one": "first"}, seconds=1, gives=seen)

    sys.setprofile(lambda *_: next(called))
    try:
        run(graph, {"numbers": [*range(items)]})
    finally:
        sys.setprofile(None)
    assert len(lists.counts) == 1, "each item has a list of all items of its own"
    return next(called)


def test_many_items_take_work_in_proportion():
    assert work_for(400) < 6 * work_for(100)  # 16 times if each item looked at all others
