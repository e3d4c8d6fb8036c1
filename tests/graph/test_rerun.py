"""Runs that go on with other code or other inputs: what is made again, and why."""

from collections.abc import AsyncIterator

import pytest
from graph_runs import Calls, outputs_of, reruns, resumed, run

from harness.graph import Graph, Retry

# --- what has changed ----------------------------------------------------------------------------


def diamond(calls, *, left=1, right="r"):
    graph = Graph("diamond")

    @graph.node
    async def first(text: str) -> str:
        calls.note("first")
        return text

    @graph.node
    async def on_the_left(first: str) -> str:
        calls.note("left")
        return first + "l" * left

    @graph.node
    async def on_the_right(first: str, tone: str = "plain") -> str:
        calls.note("right")
        return first + right + tone

    @graph.node
    async def last(on_the_left: str, on_the_right: str) -> str:
        calls.note("last")
        return on_the_left + on_the_right

    @graph.node
    async def aside(tone: str = "plain") -> str:
        calls.note("aside")
        return tone

    return graph


@pytest.mark.parametrize(
    ("change", "inputs", "made", "why"),
    [
        pytest.param({}, {}, [], [], id="nothing"),
        pytest.param(
            {"left": 2},
            {},
            ["left", "last"],
            [("on_the_left", "its code changed"), ("last", "its input 'on_the_left' changed")],
            id="code",
        ),
        pytest.param(
            {},
            {"tone": "loud"},
            ["right", "aside", "last"],
            [
                ("on_the_right", "its input 'tone' changed"),
                ("aside", "its input 'tone' changed"),
                ("last", "its input 'on_the_right' changed"),
            ],
            id="an input",
        ),
        pytest.param(
            {"left": 2, "right": "R"},
            {},
            ["left", "right", "last"],
            [
                ("on_the_left", "its code changed"),
                ("on_the_right", "its code changed"),
                ("last", "its inputs 'on_the_left' and 'on_the_right' changed"),
            ],
            id="two codes",
        ),
    ],
)
def test_what_changed_is_made_again_with_all_that_it_reaches(change, inputs, made, why):
    calls = Calls()
    _, records = resumed(diamond(calls), [], {"text": "a"})
    calls.clear()

    ended, _ = resumed(diamond(calls, **change), records, {"text": "a", **inputs})

    assert sorted(calls.counts.elements()) == sorted(made)
    assert sorted(reruns(ended)) == sorted(why)
    fresh, _ = resumed(diamond(Calls(), **change), [], {"text": "a", **inputs})
    assert ended.outputs == fresh.outputs


def test_what_is_made_again_to_the_same_end_reaches_nothing():
    calls = Calls()

    def graph(strip):
        graph = Graph("same")

        @graph.node
        async def first(text: str) -> str:
            calls.note("first")
            return text.strip() if strip else text

        @graph.node
        async def second(first: str) -> str:
            calls.note("second")
            return first

        return graph

    _, records = resumed(graph(strip=False), [], {"text": "a"})
    calls.clear()
    ended, _ = resumed(graph(strip=True), records, {"text": "a"})

    assert calls.counts == {"first": 1}
    assert reruns(ended) == [("first", "its code changed")]
    assert ended.reused == ("second",)


def test_only_items_that_changed_are_made_again():
    calls = Calls()
    graph = Graph("items")

    @graph.node(each={"n": "numbers"})
    async def doubled(n: int) -> int:
        calls.note(f"doubled {n}")
        return 2 * n

    @graph.node(each={"one": "doubled"})
    async def shown(one: int) -> str:
        calls.note(f"shown {one}")
        return str(one)

    _, records = resumed(graph, [], {"numbers": [1, 2, 3]})
    calls.clear()
    ended, _ = resumed(graph, records, {"numbers": [1, 5, 3, 4]})

    assert ended.outputs["shown"] == ["2", "10", "6", "8"]
    assert sorted(calls.counts) == ["doubled 4", "doubled 5", "shown 10", "shown 8"]
    assert sorted(reruns(ended)) == [
        ("doubled[1]", "its input 'n' changed"),
        ("shown[1]", "its input 'one' changed"),
    ]


def test_a_parameter_that_came_or_went_is_a_change():
    def graph(*, with_tone):
        graph = Graph("parameters")
        if with_tone:

            @graph.node(name="page")
            async def page(text: str, tone: str = "plain") -> str:
                return text

        else:

            @graph.node(name="page")
            async def page(text: str) -> str:
                return text

        return graph

    _, records = resumed(graph(with_tone=True), [], {"text": "a"})
    ended, _ = resumed(graph(with_tone=False), records, {"text": "a"})

    assert len(ended.reruns) == 1
    assert not ended.reused


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


def test_a_node_that_became_mapped_takes_nothing_for_its_items():
    def graph(each):
        graph = Graph("shape")

        @graph.node(name="page", each=each)
        async def page(n) -> int:
            return 1

        return graph

    _, records = resumed(graph({}), [], {"n": [1, 2]})
    ended, _ = resumed(graph({"n": "n"}), records, {"n": [1, 2]})

    assert ended.outputs == {"page": [1, 1]}
    assert not ended.reused


# --- nested --------------------------------------------------------------------------------------


def test_a_change_within_a_nested_graph_is_seen_by_whoever_calls_it():
    calls = Calls()

    def graph(factor):
        inner = Graph("inner")

        @inner.node
        async def one(n: int) -> int:
            calls.note("one")
            return n

        @inner.node
        async def two(one: int) -> int:
            calls.note("two")
            return factor * one

        outer = Graph("outer")

        @outer.node
        async def page(run) -> int:
            calls.note("page")
            return (await run.call(inner, {"n": 1}))["two"]

        return outer

    _, records = resumed(graph(2), [])
    calls.clear()
    ended, records = resumed(graph(3), records)

    assert ended.outputs == {"page": 3}
    assert sorted(calls.counts) == ["page", "two"]
    assert ended.reused == ("page/inner/one",)
    calls.clear()
    ended, _ = resumed(graph(3), records)
    assert ended.outputs == {"page": 3}
    assert not calls.counts


def test_a_second_attempt_and_a_next_part_find_what_the_first_had_nested():
    calls = Calls()
    inner = Graph("inner")

    @inner.node
    async def one(n: int) -> int:
        calls.note(f"one {n}")
        return n

    graph = Graph("outer")

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


def test_a_second_attempt_makes_nothing_again_that_had_finished_inside():
    calls = Calls()
    inner = Graph("inner")

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

    @inner.node
    async def last(words: list[str], unlucky: str) -> str:
        calls.note("last")
        return "".join(words)

    async def deep(run, one: int) -> list[int]:
        async def deeper(two: int) -> int:
            calls.note(f"deeper {two}")
            return two

        found = await run.map(deeper, [one, one + 1])
        calls.note(f"deep {one}")
        if calls.counts["deep 5"] == 1:
            raise RuntimeError("not yet")
        return found

    graph = Graph("outer")

    @graph.node(retry=Retry(3, first_delay_s=0))
    async def page(run) -> list[object]:
        calls.note("page")
        found = await run.map(deep, [1, 5])
        outputs = await run.call(inner, {})
        if calls.counts["page"] < 3:
            raise RuntimeError("not yet")
        return [found, outputs["last"]]

    ended = run(graph)

    assert ended.outputs == {"page": [[[1, 2], [5, 6]], "ab"]}
    assert (ended.skips, ended.reused, ended.reruns) == ((), (), ())
    assert calls.counts == {
        "page": 3, "deep 1": 1, "deep 5": 2, "deeper 1": 1, "deeper 2": 1, "deeper 5": 1,
        "deeper 6": 1, "unlucky": 2, "a": 1, "b": 1, "last": 1,
    }  # fmt: skip


def test_a_second_attempt_makes_again_what_it_gives_something_else():
    calls = Calls()

    async def step(one: int) -> int:
        calls.note(f"step {one}")
        return one

    graph = Graph("outer")

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def page(run) -> list[int]:
        calls.note("page")
        found = await run.map(step, [1, calls.counts["page"] + 1])
        if calls.counts["page"] < 2:
            raise RuntimeError("not yet")
        return found

    assert outputs_of(graph) == {"page": [1, 3]}
    assert calls.counts == {"page": 2, "step 1": 1, "step 2": 1, "step 3": 1}


def test_what_is_reused_or_made_again_by_each_of_two_attempts_is_said_once():
    calls = Calls()

    def graph(factor):
        async def same(one: int) -> int:
            return one

        async def other(one: int) -> int:
            if factor == 3 and calls.counts["page"] < 3:
                raise RuntimeError("not yet")
            return factor * one

        graph = Graph("outer")

        @graph.node(retry=Retry(2, first_delay_s=0))
        async def page(run) -> list[int]:
            calls.note("page")
            found = [*await run.map(same, [1]), *await run.map(other, [1])]
            if calls.counts["page"] < 3:
                raise RuntimeError("not yet")
            return found

        return graph

    _, records = resumed(graph(2), [])
    calls.counts["page"] = 1
    ended, _ = resumed(graph(3), records)

    assert ended.outputs == {"page": [1, 3]}
    assert ended.reused == ("page/same[0]",)
    assert reruns(ended) == [("page/other[0]", "its code changed")]
