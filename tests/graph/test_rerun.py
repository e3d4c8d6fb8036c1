"""Runs that go on with other code or other inputs: what is made again, and why."""

from collections.abc import AsyncIterator

import pytest
from graph_runs import Calls, nests, reruns, resumed, run, step

from harness.graph import Graph, Retry


@pytest.fixture
def calls():
    return Calls()


# --- what has changed ----------------------------------------------------------------------------


def diamond(*, left="l", right="r"):
    graph = Graph("diamond")
    step(graph, "first", "text", gives=lambda text: text.strip())
    step(graph, "on_the_left", "first", gives=lambda first: first + left)
    step(graph, "on_the_right", "first", "tone", gives=lambda *all: right.join(all))
    step(graph, "last", "on_the_left", "on_the_right", gives="{}{}".format)
    return graph


@pytest.mark.parametrize(
    ("change", "inputs", "why"),
    [
        pytest.param({}, {}, {}, id="nothing"),
        pytest.param(
            {"left": "L"}, {}, {"on_the_left": "code", "last": "input 'on_the_left'"}, id="code"
        ),
        pytest.param(
            {},
            {"tone": "loud"},
            {"on_the_right": "input 'tone'", "last": "input 'on_the_right'"},
            id="an input",
        ),
        pytest.param({}, {"text": " a"}, {"first": "input 'text'"}, id="to the same end"),
    ],
)
def test_what_changed_is_made_again_with_all_that_it_reaches(change, inputs, why):
    before = {"text": "a", "tone": "plain"}
    _, records = resumed(diamond(), [], before)

    ended, _ = resumed(diamond(**change), records, before | inputs)

    assert sorted(reruns(ended)) == sorted(
        (name, f"its {one} changed") for name, one in why.items()
    )
    assert set(ended.reused) == set(ended.outputs) - set(why)
    assert ended.outputs == run(diamond(**change), before | inputs).outputs


def test_only_items_that_changed_are_made_again(calls):
    graph = Graph("items")
    step(graph, "doubled", each={"n": "numbers"}, calls=calls, gives=lambda n: 2 * n)
    step(graph, "shown", each={"one": "doubled"}, calls=calls, gives=str)

    _, records = resumed(graph, [], {"numbers": [1, 2, 3]})
    calls.clear()
    ended, _ = resumed(graph, records, {"numbers": [1, 5, 3, 4]})

    assert ended.outputs["shown"] == ["2", "10", "6", "8"]
    assert sorted(calls.counts) == ["doubled 4", "doubled 5", "shown 10", "shown 8"]
    assert sorted(reruns(ended)) == [
        ("doubled[1]", "its input 'n' changed"),
        ("shown[1]", "its input 'one' changed"),
    ]


_HELPER = "first"


def test_what_a_function_refers_to_is_looked_at_before_every_run(monkeypatch):
    graph = Graph("notebook")

    @graph.node
    async def page() -> str:
        return _HELPER

    first, records = resumed(graph, [])
    monkeypatch.setitem(globals(), "_HELPER", "second")
    ended, _ = resumed(graph, records)

    assert (first.outputs["page"], ended.outputs["page"]) == ("first", "second")
    assert reruns(ended) == [("page", "its code changed")]


# --- nested --------------------------------------------------------------------------------------


def test_a_change_within_a_nested_graph_is_seen_by_whoever_calls_it(calls):
    def graph(factor):
        inner, outer = Graph("inner"), Graph("outer")
        step(inner, "one", "n", calls=calls, gives=int)
        step(inner, "two", "one", calls=calls, gives=lambda one: factor * one)
        nests(outer, "page", inner, inputs={"n": 1})
        return outer

    _, records = resumed(graph(2), [])
    calls.clear()
    ended, records = resumed(graph(3), records)

    assert ended.outputs == {"page": [{"one": 1, "two": 3}]}
    assert calls.counts == {"two 1": 1}
    assert ended.reused == ("page/inner/one",)
    ended, _ = resumed(graph(3), records)
    assert ended.outputs == {"page": [{"one": 1, "two": 3}]}
    assert calls.counts == {"two 1": 1}


def test_a_next_part_finds_what_the_first_had_nested(calls):
    graph, inner = Graph("outer"), Graph("inner")
    step(inner, "one", "n", calls=calls)

    @graph.node
    async def page(run) -> int:
        for n in range(3):
            await run.call(inner, {"n": n})
        calls.note("page")
        if calls.counts["page"] < 3:
            raise RuntimeError("not yet")
        return 3

    records: list[object] = []
    for status in ("failed", "failed", "finished"):
        ended, records = resumed(graph, records)
        assert ended.status == status

    assert calls.counts == {"one 0": 1, "one 1": 1, "one 2": 1, "page": 3}


# --- attempts ------------------------------------------------------------------------------------


def test_a_second_attempt_makes_nothing_again_that_had_finished_inside(calls):
    graph, inner = Graph("outer"), Graph("inner")

    @inner.node(on_error="skip")
    async def unlucky() -> str:
        calls.note("unlucky")
        if calls.counts["unlucky"] < 2:
            raise RuntimeError("not yet")
        return "lucky"

    @inner.node
    async def words() -> AsyncIterator[str]:
        for word in ("a", "b"):
            calls.note(word)
            yield word

    step(inner, "last", "words", "unlucky", calls=calls, gives=lambda words, _: "".join(words))

    async def deep(run, one: int) -> list[int]:
        calls.note(f"deep {one}")
        if calls.counts["deep 5"] == 1:
            raise RuntimeError("not yet")
        return [one]

    @graph.node(retry=Retry(3, first_delay_s=0))
    async def page(run) -> list[object]:
        calls.note("page")
        found = await run.map(deep, [1, 5])
        outputs = await run.call(inner, {})
        if calls.counts["page"] < 3:
            raise RuntimeError("not yet")
        return [found, outputs["last"]]

    ended = run(graph)

    assert ended.outputs == {"page": [[[1], [5]], "ab"]}
    assert (ended.skips, ended.reused, ended.reruns) == ((), (), ())
    assert calls.counts == {
        "page": 3, "deep 1": 1, "deep 5": 2, "unlucky": 2, "a": 1, "b": 1,
        "last ['a', 'b'] lucky": 1,
    }  # fmt: skip
