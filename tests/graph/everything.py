"""A graph in which outputs come about in every way, and which of its calls are left to be made."""

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


def everything(calls: Calls) -> Graph:
    """The graph; its calls are counted."""
    inner = Graph("brief")

    @inner.node(each={"topic": "topics"}, retry=Retry(3, first_delay_s=0))
    async def findings(topic: str) -> Finding:
        calls.note(f"findings of {topic}")
        return Finding(topic, frozenset({topic, topic.upper(), "a", "b", "c"}))

    graph = Graph("everything")

    @graph.node(each={"line": "lines"}, when=lambda line: line != "c")
    async def capitals(line: str) -> str:
        calls.note(f"capitals {line}")
        return line.upper()

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

    @graph.node(each={"line": "lines"})
    async def briefs(run, line: str) -> list[str]:
        calls.note(f"briefs {line}")
        found = (await run.call(inner, {"topics": [line, f"{line}x"]}))["findings"]
        return [finding.topic for finding in found]

    @graph.node(retry=Retry(2, first_delay_s=0))
    async def mapped(run, lines: list[str]) -> list[int]:
        calls.note("mapped")

        async def size(line: str) -> int:
            calls.note(f"size {line}")
            return len(line)

        return await run.map(size, lines)

    @graph.node(on_error=Default("instead"))
    async def replaced(lines: list[str]) -> str:
        calls.note("replaced")
        raise RuntimeError("out of luck")

    @graph.node
    async def verdict(replaced: str, capitals: list[str]) -> Verdict:
        calls.note("verdict")
        return Verdict(score=len(replaced), notes=(len(capitals), 0.5))

    @graph.node
    async def last(
        *,
        verdict: Verdict,
        ticked: list[tuple[int, str]],
        ticks: list[int],
        briefs: list[list[str]],
        mapped: list[int],
        capitals: list[str | Skipped],
    ) -> list[object]:
        calls.note("last")
        skipped = sum(isinstance(one, Skipped) for one in capitals)
        return [verdict.score, [list(one) for one in ticked], ticks, briefs, mapped, skipped]

    return graph


INPUTS: dict[str, Any] = {"lines": ["a", "b", "c"]}


def calls_left(outputs: Iterable[NodeOutput] = ()) -> Counter[str]:
    """The calls that are to be made when these outputs are there."""
    # Items of a generator that is not mapped are made again with their generator.
    there = {label(one) for one in outputs if one.node != "ticks" or one.item is None}
    return Counter(name for name, needless in _calls() if there.isdisjoint(needless))


def _calls() -> Iterable[tuple[str, tuple[str, ...]]]:
    """Each call, and the outputs of which any makes it needless."""
    for name in ("ticks", "mapped", "replaced", "verdict", "last"):
        yield name, (name,)
    for index, line in enumerate(INPUTS["lines"]):
        whole = f"briefs[{index}]"
        if line != "c":
            yield f"capitals {line}", (f"capitals[{index}]",)
        yield f"ticked {index}", (f"ticked[{index}]",)
        yield f"size {line}", ("mapped", f"mapped/size[{index}]")
        yield f"briefs {line}", (whole,)
        yield f"findings of {line}", (whole, f"{whole}/brief/findings[0]")
        yield f"findings of {line}x", (whole, f"{whole}/brief/findings[1]")
