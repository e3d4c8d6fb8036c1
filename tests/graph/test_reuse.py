"""Runs that go on where they were cut off, and outputs of other runs: what is not made again."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass

import pytest
from graph_runs import (
    Calls,
    as_read,
    cut,
    label,
    outputs_in,
    reruns,
    resumed,
    run,
    run_in_journal,
    step,
)

from harness.errors import RunLimitReached
from harness.graph import Cache, Default, Graph
from harness.trace import Tracer

EACH = {"n": "numbers"}


@dataclass(frozen=True)
class Finding:
    topic: str
    words: frozenset[str]


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def graph():
    return Graph("reused")


class Client:
    """What has no form in JSON."""


# --- cut anywhere --------------------------------------------------------------------------------


def everything() -> Graph:
    """A graph in which outputs come about in every way."""
    inner, graph = Graph("brief"), Graph("everything")
    step(inner, "findings", each={"topic": "topics"}, gives=str.upper)
    step(graph, "some", each={"line": "lines"}, when=lambda line: line != "c", gives=str)

    @graph.node
    async def ticks(lines: list[str]) -> AsyncIterator[int]:
        for number, _ in enumerate(lines):
            yield number

    @graph.node(each={"tick": "ticks", "line": "lines"})
    async def found(tick: int, line: str) -> Finding:
        return Finding(line, frozenset({line, "a", "b", str(tick)}))

    @graph.node(each={"line": "lines"})
    async def briefs(run, line: str) -> list[str]:
        return (await run.call(inner, {"topics": [line, f"{line}x"]}))["findings"]

    @graph.node
    async def mapped(run, lines: list[str]) -> list[int]:
        async def size(line: str) -> int:
            return len(line)

        return await run.map(size, lines)

    step(graph, "replaced", raises=RuntimeError, on_error=Default("instead"))
    names = ("some", "ticks", "found", "briefs", "mapped", "replaced")
    step(graph, "last", *names, gives=lambda *taken: len(taken))
    return graph


def test_a_run_cut_anywhere_goes_on_to_the_same_end_and_makes_nothing_again(tmp_path):
    inputs = {"lines": ["a", "b", "c"]}
    ended, path = run_in_journal(tmp_path / "whole", everything(), inputs)
    assert ended.status == "finished"

    for kept in range(1, len(path.read_bytes().splitlines()), 7):
        rest = cut(path, kept, tmp_path / f"cut{kept}")
        there = {label(one) for one in outputs_in(rest)}
        again, _ = run_in_journal(tmp_path, everything(), inputs, resume=rest)

        assert again.outputs == ended.outputs
        assert again.reruns == ()
        (part,) = rest.parent.glob("*.1.jsonl")
        made = {label(one) for one in outputs_in(part)}
        # Items of a generator are made again with their generator.
        assert {one for one in there & made if not one.startswith("ticks[")} == set(), kept


# --- what cannot be reused -----------------------------------------------------------------------


def test_an_output_with_a_secret_in_it_is_made_again(graph, calls, tmp_path):
    secret = "hunter2-hunter2"
    step(graph, "login", calls=calls, gives=f"token {secret}")
    # Who takes it is as it was: its digest is that of the whole value.
    step(graph, "page", "login", gives=len)

    first, path = run_in_journal(tmp_path, graph, secrets=(secret,))
    assert secret not in path.read_text()
    ended, _ = run_in_journal(tmp_path, graph, secrets=(secret,), resume=path)

    assert ended.outputs == first.outputs
    assert calls.counts == {"login": 2}
    ((node, reason),) = reruns(ended)
    assert node == "login"
    assert "secret" in reason


@pytest.mark.parametrize("given", [Client(), [Client()]], ids=["object", "list"])
def test_what_takes_an_input_that_cannot_be_written_down_is_made_again(graph, given):
    step(graph, "page", "client", gives="page")
    step(graph, "after", "page")

    _, records = resumed(graph, [], {"client": given})
    ended, _ = resumed(graph, records, {"client": given})

    assert ended.reused == ("after",)
    ((node, reason),) = reruns(ended)
    assert node == "page"
    assert "'client' cannot be written" in reason


class Shop:
    """A database's handle, told from others by its place."""

    def __init__(self, place):
        self.place, self.handle = place, sqlite3.connect(":memory:")

    def code_parts(self):
        return (self.place,)


def test_a_handle_that_says_what_tells_it_from_others_is_an_input_like_any(graph):
    step(graph, "page", "shop", gives="page")

    def go_on(records, place):
        shop = Shop(place)
        with closing(shop.handle):
            return resumed(graph, records, {"shop": shop})

    _, records = go_on([], "eu.db")
    same, _ = go_on(records, "eu.db")
    other, _ = go_on(records, "us.db")

    assert (same.reused, reruns(same)) == (("page",), [])
    assert reruns(other) == [("page", "its input 'shop' changed")]


def test_a_handle_that_is_told_from_others_by_something_without_a_form_is_made_again(graph):
    step(graph, "page", "shop", gives="page")

    def go_on(records):
        shop = Shop(sqlite3.connect(":memory:"))
        with closing(shop.handle), closing(shop.place):
            return resumed(graph, records, {"shop": shop})

    _, records = go_on([])
    again, _ = go_on(records)

    assert again.reused == ()


def test_an_input_that_can_be_read_only_once_is_not_read_to_compare_it(graph):
    step(graph, "total", "numbers", gives=sum)

    assert run(graph, {"numbers": iter([1, 2, 3])}).outputs == {"total": 6}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, 2),
        (tuple[float, ...], (1, 2.5)),
        (int, 10**30),
        (Finding, Finding("a", frozenset("xyz"))),
        (object, {"b": 1, "a": [None, True]}),
    ],
)
def test_values_of_every_kind_are_reused_and_so_is_what_takes_them(graph, annotation, value):
    async def source():
        return value

    source.__annotations__["return"] = annotation
    graph.node(source)
    step(graph, "after", "source")

    _, records = resumed(graph, [])
    ended, _ = resumed(graph, records)

    assert ended.reused == ("source", "after")
    back = ended.outputs["source"]
    assert back == value or repr(back) == repr(value)


# --- failures, limits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status"),
    [(ZeroDivisionError(), "failed"), (RunLimitReached("over", limit="cost"), "stopped")],
)
def test_what_failed_or_was_stopped_is_made_again_and_nothing_else(graph, calls, error, status):
    luck = Calls()

    def work(n):
        if n == 2 and not luck.counts:
            luck.note("next time")
            raise error
        return n

    step(graph, "paid", each=EACH, calls=calls, gives=work)
    step(graph, "total", "paid", gives=sum)

    ended, records = resumed(graph, [], {"numbers": [1, 2, 3]})
    assert ended.status == status
    ended, _ = resumed(graph, records, {"numbers": [1, 2, 3]})

    assert ended.outputs["total"] == 6
    assert calls.counts == {"paid 1": 1, "paid 2": 2, "paid 3": 1}


def test_what_was_left_out_is_listed_in_every_part(graph):
    step(graph, "inverse", each=EACH, on_error="skip", gives=lambda n: 1 / n)
    step(graph, "rounded", each={"one": "inverse"})

    first, records = resumed(graph, [], {"numbers": [1, 0]})
    second, _ = resumed(graph, records, {"numbers": [1, 0]})

    assert [one.node for one in first.skips] == ["inverse[1]", "rounded[1]"]
    assert second.skips == first.skips
    assert set(second.reused) == {"inverse[0]", "inverse[1]", "rounded[0]"}


# --- a cache: outputs of other runs --------------------------------------------------------------


class Kept:
    """A cache of outputs in memory."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    async def find(self, key: str) -> str | None:
        return self.values.get(key)

    def keep(self, key: str, text: str) -> None:
        self.values[key] = text


def cached(calls, *, ending=""):
    graph = Graph("cached")

    @graph.node(each={"text": "texts"}, cache=Cache(max_age_s=60))
    async def page(text: str) -> Finding:
        calls.note(text)
        return Finding(text + ending, frozenset(text))

    step(graph, "uncached", "page", gives=len)
    return graph


def test_outputs_of_other_runs_will_do_where_a_node_says_so(calls):
    cache, records = Kept(), []
    first = run(cached(calls), {"texts": ["a", "b"]}, cache=cache)
    assert (calls.counts, first.reused) == ({"a": 1, "b": 1}, ())
    texts = {"texts": ["b", "a", "c"]}

    ended = run(cached(calls), texts, cache=cache, tracer=Tracer(records.append))

    assert calls.counts == {"a": 1, "b": 1, "c": 1}
    assert ended.reused == ("page[0]", "page[1]")
    assert [one.topic for one in ended.outputs["page"]] == ["b", "a", "c"]
    # They are in this run's journal too: it can be resumed without the cache.
    assert [label(one) for one in as_read(records)][:2] == ["page[0]", "page[1]"]
    again, _ = resumed(cached(calls), records, texts)
    assert calls.counts["c"] == 1
    assert again.outputs == ended.outputs


@pytest.mark.parametrize("change", ["code", "what is kept"])
def test_what_a_cache_has_of_other_code_or_another_type_is_made_anew(calls, change):
    cache = Kept()
    run(cached(calls), {"texts": ["a"]}, cache=cache)
    if change == "what is kept":
        cache.values = dict.fromkeys(cache.values, b'{"other": 1}')

    graph = cached(calls, ending="!" if change == "code" else "")
    ended = run(graph, {"texts": ["a"]}, cache=cache)

    assert (ended.status, ended.reused) == ("finished", ())
    assert calls.counts["a"] == 2


def test_failures_defaults_and_what_cannot_be_told_apart_are_not_kept():
    cache = Kept()
    graph = Graph("uncached", cache=Cache())
    step(graph, "replaced", raises=RuntimeError, on_error=Default("instead"))
    step(graph, "left_out", raises=RuntimeError, on_error="skip")
    step(graph, "of_client", "client", gives="page")

    run(graph, {"client": Client()}, cache=cache)

    assert not cache.values


# --- outputs that a node changes, although others have them too ----------------------------------


def test_a_list_that_one_consumer_changes_is_whole_for_those_that_map_over_it(graph):
    step(graph, "texts", gives=["a", "b", "c"])
    step(graph, "changed", "texts", gives=list.clear)
    step(graph, "copied", each={"text": "texts"}, seconds=1, gives=str)
    step(graph, "emptied", "copied", gives=list.clear)
    step(graph, "again", each={"one": "copied"}, gives=str)

    assert run(graph, max_parallel=1).outputs["again"] == ["a", "b", "c"]
