"""Running a graph: every node as soon as what it needs is there.

Knows nothing of models. A node's output is in the journal before anything that depends on it
starts; the first failure cancels what is still running and ends the run. Plain functions run in
threads, which cannot be cancelled: what one returns after that is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from harness.errors import NodeFailed, PipelineInvalid
from harness.graph.graph import Graph
from harness.graph.node import RUN_PARAMETER, Node
from harness.trace import Tracer

DEFAULT_PARALLEL_CALLS = 16


async def execute(
    graph: Graph,
    inputs: Mapping[str, object],
    *,
    run: object,
    tracer: Tracer,
    parallel_calls: int = DEFAULT_PARALLEL_CALLS,
) -> dict[str, object]:
    """Runs every node once (a mapped node once per item) and returns what each gave.

    Args:
        graph: What to run.
        inputs: The value of every input, as `bind_inputs` gives them.
        run: Handed to nodes that take a `run`.
        tracer: Sees every node, and its output.
        parallel_calls: How many node calls may be under way at once.

    Raises:
        NodeFailed: A node raised; the cause is chained.
    """
    execution = _Execution(
        graph, dict(inputs), run=run, tracer=tracer, parallel_calls=parallel_calls
    )
    try:
        await execution.run_all()
    except* NodeFailed as group:
        # Siblings may fail in the same moment; the first is the one to report.
        first = _first(group)
        raise first from first.__cause__
    return {name: execution.values[name] for name in graph.nodes}


class _Execution:
    """The state of one run of a graph."""

    def __init__(
        self,
        graph: Graph,
        values: dict[str, object],
        *,
        run: object,
        tracer: Tracer,
        parallel_calls: int,
    ) -> None:
        self.values = values
        self._graph = graph
        self._run = run
        self._tracer = tracer
        self._places = asyncio.Semaphore(parallel_calls)
        self._done = {name: asyncio.Event() for name in graph.nodes}
        # The spans of what is done, by node and item, in the order they ended.
        self._spans: dict[str, dict[int | None, int]] = {name: {} for name in graph.nodes}

    async def run_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for node in self._graph.nodes.values():
                group.create_task(self._run_node(node, group))

    async def _run_node(self, node: Node, group: asyncio.TaskGroup) -> None:
        for source in self._graph.dependencies(node):
            await self._done[source].wait()
        self.values[node.name] = await (
            self._map(node, group) if node.is_mapped else self._call(node, None)
        )
        self._done[node.name].set()

    async def _map(self, node: Node, group: asyncio.TaskGroup) -> list[object]:
        try:
            count = _common_length(node, self.values)
        except PipelineInvalid as error:
            raise NodeFailed(node.name, error) from error
        # In the group of all nodes, so that an item's failure stops the others at once.
        tasks = [group.create_task(self._call(node, item)) for item in range(count)]
        return [await task for task in tasks]

    async def _call(self, node: Node, item: int | None) -> object:
        label = node.name if item is None else f"{node.name}[{item}]"
        async with self._places:
            with self._tracer.span(
                "node", track=f"node {node.name}", label=label, node=node.name, item=item
            ) as span:
                self._draw_needs(node, item, span.id)
                try:
                    value = await self._invoke(node, item)
                    self._tracer.output(node.name, _as_json(value), item=item)
                    await self._tracer.persisted()
                    self._spans[node.name][item] = span.id
                except asyncio.CancelledError as error:
                    task = asyncio.current_task()
                    if task is None or task.cancelling():
                        raise
                    # Nobody cancelled this call; what it awaited was. Left alone, its task would
                    # end without a word and leave its successors waiting.
                    raise NodeFailed(
                        label, asyncio.CancelledError("what it waited for was cancelled")
                    ) from error
                except Exception as error:  # noqa: BLE001 - whatever a node raises is its failure
                    cause = _first(error)
                    raise NodeFailed(label, cause) from cause
        return value

    def _draw_needs(self, node: Node, item: int | None, span: int) -> None:
        """Arrows from what this call waited for: a walk back along them is what took so long.

        From one item to the same item where a list is walked through; from every item to a plain
        node that takes the list; and to each of many items that take the whole list, from the item
        that was done last: all of them would be too many to see, or to keep.
        """
        waited_for: dict[int, None] = {}
        for parameter in node.parameters:
            sources = self._spans.get(parameter.source, {})
            if parameter.is_mapped and item in sources:
                waited_for[sources[item]] = None
            else:
                done = list(sources.values())
                waited_for |= dict.fromkeys(done[-1:] if node.is_mapped else done)
        for source in waited_for:
            self._tracer.flow("output", source=source, target=span)

    async def _invoke(self, node: Node, item: int | None) -> object:
        arguments: dict[str, Any] = {RUN_PARAMETER: self._run} if node.takes_run else {}
        for parameter in node.parameters:
            value: Any = self.values[parameter.source]
            arguments[parameter.name] = value[item] if parameter.is_mapped else value
        if inspect.iscoroutinefunction(node.function):
            return await node.function(**arguments)
        value = await asyncio.to_thread(node.function, **arguments)
        # A decorator may hide that the function under it is async.
        return await value if inspect.isawaitable(value) else value


def _common_length(node: Node, values: Mapping[str, object]) -> int:
    """How many items a mapped node has."""
    counts = {}
    for parameter in node.parameters:
        if parameter.is_mapped:
            items = values[parameter.source]
            if not isinstance(items, list | tuple):
                raise PipelineInvalid(
                    f"each= maps over '{parameter.source}', which is a {type(items).__name__} and "
                    "not a list",
                    path=node.path,
                    line=node.line,
                )
            counts[parameter.source] = len(items)
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"'{source}' has {count}" for source, count in counts.items())
        raise PipelineInvalid(
            f"each= walks lists side by side, and they differ in length: {listed}",
            path=node.path,
            line=node.line,
        )
    return next(iter(counts.values()))


def _as_json(value: object) -> object:
    """What the journal keeps of an output.

    Raises:
        TypeError: It has no form in JSON, or can be read only once.
    """
    if isinstance(value, Iterator):
        raise TypeError(
            f"its output is a {type(value).__name__}, which can be read only once; return a list"
        )
    try:
        return to_jsonable_python(value)
    except ValueError as error:
        raise TypeError(f"its output cannot be written to the journal: {error}") from error


def _first(error: BaseException) -> BaseException:
    """The first leaf of nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
