"""One run of a graph, with all that can be seen of it from outside."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import virtual_time
from graph_runs import execute

from harness.graph import Execution, Graph, bind_inputs
from harness.trace import NodeOutput, Record, SpanEnded, SpanStarted, SpanStatus, Tracer

RunsCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]
"""`asyncio.run`, and its like in virtual time."""


@dataclass(frozen=True)
class SeenSpan:
    """An attempt of a call of a node."""

    status: SpanStatus | None
    seconds: float
    error: str | None


@dataclass(frozen=True)
class Watched:
    """What was seen of a run."""

    ended: Execution
    records: list[Record]
    tasks_left: set[asyncio.Task[Any]]
    seconds: float

    @property
    def failures(self) -> list[tuple[str, type[BaseException], int]]:
        return [(one.node, type(one.error), one.attempts) for one in self.ended.failures]

    @property
    def skips(self) -> dict[str, str | None]:
        """Because of what, by what was left out."""
        by_label = {one.node: one.because_of for one in self.ended.skips}
        assert len(by_label) == len(self.ended.skips), self.ended.skips
        return by_label

    @property
    def attempts(self) -> dict[str, list[SeenSpan]]:
        return attempts_in(self.records)

    @property
    def statuses(self) -> dict[str, list[SpanStatus | None]]:
        """How each attempt ended, by its call."""
        return {label: [one.status for one in spans] for label, spans in self.attempts.items()}

    @property
    def recorded(self) -> set[str]:
        """The calls whose outputs are in the journal."""
        outputs = [one for one in self.records if isinstance(one, NodeOutput)]
        return {one.node if one.item is None else f"{one.node}[{one.item}]" for one in outputs}


def attempts_in(records: list[Record]) -> dict[str, list[SeenSpan]]:
    """The spans of nodes, by call; each has at most one end."""
    ends: dict[int, SpanEnded] = {}
    for one in records:
        if isinstance(one, SpanEnded):
            assert one.id not in ends
            ends[one.id] = one
    spans: dict[str, list[SeenSpan]] = defaultdict(list)
    for one in records:
        if isinstance(one, SpanStarted) and one.name == "node":
            end = ends.get(one.id)
            seen = SeenSpan(None, 0.0, None)
            if end is not None:
                seen = SeenSpan(end.status, (end.time_ns - one.time_ns) / 1e9, end.error)
            spans[str(one.attributes["label"])].append(seen)
    return dict(spans)


def all_spans_ended(records: list[Record]) -> bool:
    """Whether each span that began has come to its end, once."""
    begun = [one.id for one in records if isinstance(one, SpanStarted)]
    return sorted(begun) == sorted(one.id for one in records if isinstance(one, SpanEnded))


async def unended_tasks() -> set[asyncio.Task[Any]]:
    """Tasks beside this one that go on."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for _ in range(8):  # in which those notice that were ended by force
        await asyncio.sleep(0)
    return {task for task in left if not task.done()}


def watch(
    graph: Graph,
    inputs: Mapping[str, object] | None = None,
    *,
    runs: RunsCoroutine = virtual_time.run,
    tracer_class: type[Tracer] = Tracer,
    max_parallel: int | None = None,
    deadline_s: float | None = None,
) -> Watched:
    """Runs a graph, in virtual time if not told otherwise; nodes' runs are their `NodeCall`."""
    records: list[Record] = []

    async def main() -> Watched:
        loop = asyncio.get_running_loop()
        graph.check()
        begun_s = loop.time()
        ended = await execute(
            graph,
            bind_inputs(graph, inputs or {}),
            run_of=lambda call: call,
            tracer=tracer_class(records.append, clock=lambda: round(loop.time() * 1e9)),
            max_parallel=max_parallel,
            deadline_s=deadline_s,
        )
        seconds = loop.time() - begun_s
        return Watched(ended, records, await unended_tasks(), seconds)

    watched: Watched = runs(main())
    return watched
