"""A graph with all that a graph can have, and which of its calls are left to be made."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any

from graph_runs import Calls, label
from pydantic import BaseModel

from harness.graph import Default, Graph, Retry, Skipped
from harness.trace import NodeOutput


@dataclass(frozen=True)
class Finding:
    topic: str
    words: frozenset[str]


class Verdict(BaseModel):
    score: float
    notes: tuple[float, ...] = ()


def everything(calls: Calls, *, ending: str = ".") -> Graph:
    """The graph; its calls are counted."""
    inner = Graph("brief")

    @inner.node
    async def topics(text: str) -> list[str]:
        calls.note(f"topics of {text}")
        return text.split()

    @inner.node(each={"topic": "topics"}, retry=Retry(3, first_delay_s=0))
    async def findings(topic: str) -> Finding:
        calls.note(f"findings of {topic}")
        return Finding(topic, frozenset({topic, topic.upper(), "a", "b", "c"}))

    graph = Graph("everything")

    @graph.node
    async def lines(text: str) -> list[str]:
        calls.note("lines")
        return text.split(", ")

    @graph.node(each={"line": "lines"}, when=lambda line: line != "c")
    async def capitals(line: str) -> str:
        calls.note(f"capitals {line}")
        return line.upper() + ending

    @graph.node(each={"capital": "capitals"})
    def lengths(capital: str) -> int:
        return len(capital)

    @graph.node(each={"a": "capitals", "b": "numbers"}, combine="product")
    async def cells(a: str | Skipped, b: int) -> str:
        calls.note(f"cells {b}")
        return f"{a.reason if isinstance(a, Skipped) else a}{b}"

    @graph.node
    async def ticks(lines: list[str]) -> AsyncIterator[int]:
        calls.note("ticks")
        for number, _ in enumerate(lines):
            await asyncio.sleep(0)
            yield number

    @graph.node(each={"tick": "ticks", "line": "lines"})
    async def ticked(tick: int, line: str) -> tuple[int, str]:
        calls.note(f"ticked {tick}")
        return tick, line

    @graph.node(each={"count": "numbers"})
    async def spelled(count: int) -> AsyncIterator[str]:
        calls.note(f"spelled {count}")
        for number in range(count):
            yield str(number)

    @graph.node(each={"line": "lines"})
    async def briefs(run, line: str) -> list[str]:
        calls.note(f"briefs {line}")
        found = (await run.call(inner, {"text": f"{line} {line}x"}))["findings"]
        return [finding.topic for finding in found]

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def mapped(run, lines: list[str]) -> list[int]:
        calls.note("mapped")

        async def size(line: str) -> int:
            calls.note(f"size {line}")
            return len(line)

        def double(one: int) -> int:
            return 2 * one

        return await run.map(double, await run.map(size, lines))

    @graph.node(on_error="skip")
    async def broken(lines: list[str]) -> str:
        calls.note("broken")
        raise RuntimeError("out of luck")

    @graph.node(on_error=Default("instead"))
    async def replaced(lines: list[str]) -> str:
        calls.note("replaced")
        raise RuntimeError("out of luck")

    @graph.node
    async def verdict(broken: str | Skipped, replaced: str, lengths: list[int]) -> Verdict:
        calls.note("verdict")
        assert isinstance(broken, Skipped)
        return Verdict(score=len(replaced), notes=(len(lengths), 0.5))

    @graph.node
    async def last(
        *,
        verdict: Verdict,
        cells: list[str],
        ticked: list[tuple[int, str]],
        ticks: list[int],
        spelled: list[list[str]],
        briefs: list[list[str]],
        mapped: list[int],
        capitals: list[str | Skipped],
    ) -> dict[str, object]:
        calls.note("last")
        return {
            "score": verdict.score,
            "cells": cells,
            "ticked": [list(one) for one in ticked],
            "ticks": ticks,
            "spelled": spelled,
            "briefs": briefs,
            "mapped": mapped,
            "skipped": sum(isinstance(one, Skipped) for one in capitals),
        }

    return graph


INPUTS: dict[str, Any] = {"text": "a, b, c, d", "numbers": [2, 0, 1]}


def calls_left(outputs: Iterable[NodeOutput] = ()) -> Counter[str]:
    """The calls that are to be made when these outputs are there."""
    # Items of a generator that is not mapped are made again with their generator.
    there = {label(one) for one in outputs if one.node != "ticks" or one.item is None}
    return Counter(name for name, needless in _calls() if there.isdisjoint(needless))


def _calls() -> Iterable[tuple[str, tuple[str, ...]]]:
    """Each call, and the outputs of which any makes it needless."""
    for name in ("lines", "ticks", "mapped", "broken", "replaced", "verdict", "last"):
        yield name, (name,)
    lines = INPUTS["text"].split(", ")
    for index, line in enumerate(lines):
        whole = f"briefs[{index}]"
        if line != "c":
            yield f"capitals {line}", (f"capitals[{index}]",)
        yield f"ticked {index}", (f"ticked[{index}]",)
        yield f"size {line}", ("mapped", f"mapped/size[{index}]")
        yield f"briefs {line}", (whole,)
        yield f"topics of {line} {line}x", (whole, f"{whole}/brief/topics")
        yield f"findings of {line}", (whole, f"{whole}/brief/findings[0]")
        yield f"findings of {line}x", (whole, f"{whole}/brief/findings[1]")
    for index, number in enumerate(INPUTS["numbers"]):
        yield f"spelled {number}", (f"spelled[{index}]",)
        for cell in range(index, len(lines) * len(INPUTS["numbers"]), len(INPUTS["numbers"])):
            yield f"cells {number}", (f"cells[{cell}]",)
