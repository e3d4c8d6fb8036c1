"""Who watches a run is told what begins, what ends, and how many items there are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from harness.graph import Graph, NodeCall, Retry, execute
from harness.trace import Tracer


class Watcher:
    """Writes down what it is told: `+` for what begins, `-` for what ends."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begins(self, node: str, item: int | None) -> None:
        self.told.append(f"+{node}{'' if item is None else item}")

    def ends(self, node: str, item: int | None) -> None:
        self.told.append(f"-{node}{'' if item is None else item}")

    def counts(self, node: str, total: int) -> None:
        self.told.append(f"{node}={total}")


def told(graph: Graph, **inputs: object) -> list[str]:
    watcher = Watcher()
    asyncio.run(execute(graph, inputs, run_of=lambda call: call, tracer=Tracer(), watcher=watcher))
    return watcher.told


def test_items_and_nodes_begin_and_end() -> None:
    graph = Graph("items")

    @graph.node(each={"word": "words"})
    async def loud(word: str) -> str:
        return word.upper()

    @graph.node
    async def joined(loud: list[str]) -> str:
        return " ".join(loud)

    assert told(graph, words=["a", "b"]) == [
        "loud=2", "+loud0", "-loud0", "+loud1", "-loud1", "-loud", "+joined", "-joined",
    ]  # fmt: skip


def test_what_is_not_run_ends_all_the_same() -> None:
    graph = Graph("skips")

    @graph.node(each={"number": "numbers"}, when=lambda number: number > 1)
    async def large(number: int) -> int:
        return number

    @graph.node
    async def broken() -> int:
        raise ValueError("no")

    @graph.node
    async def behind(broken: int) -> int:
        return broken

    said = told(graph, numbers=[1, 2])
    assert sorted(said) == [
        "+broken", "+large1", "-behind", "-broken", "-large", "-large0", "-large1", "large=2",
    ]  # fmt: skip


def test_a_call_that_is_made_again_is_one() -> None:
    graph = Graph("again")
    calls = []

    @graph.node(retry=Retry(3, first_delay_s=0.0))
    async def flaky() -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError("not yet")

    assert told(graph) == ["+flaky", "-flaky"]
    assert len(calls) == 3


def test_what_is_yielded_or_nested_is_no_call_of_its_own() -> None:
    graph = Graph("inside")

    async def inner(number: int) -> int:
        return number

    @graph.node
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    @graph.node
    async def mapped(run: NodeCall, numbers: list[int]) -> list[int]:
        return await run.map(inner, numbers)

    assert told(graph) == ["+numbers", "-numbers", "+mapped", "-mapped"]
