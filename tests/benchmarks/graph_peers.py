"""The same graphs as LangGraph and pydantic-graph run them, each in the shape that suits it best.

LangGraph: a node each, edges as they are; a node of several needs is one edge from all of them,
which waits for all. Its state is one list, to which each node adds a number. It goes from step to
step, and ends a step when all its nodes are done; since nothing here takes time, that costs it
nothing. A map is a `Send` for each item. Both of its doors are tried, `ainvoke` with async nodes
and `invoke` with plain ones; `best` says which is the faster.

pydantic-graph: its builder, which alone has forks and joins, without instrumentation. A fan-out is
one edge to all nodes and one from all to a join; a map is its own `.map()`; a node of several needs
has a join before it. To build that, it finds what dominates each join, and after each node it looks
at all joins under way: time and memory grow with the square of the nodes. A layered DAG of 2,000
took 27 s and 1.6 GB to build and 13 s to run, so that it is given one of 400 instead.
"""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from pydantic_graph import GraphBuilder, StepContext, reduce_list_append
from random_graphs import Shape

Timed = Callable[[], float]
"""Runs it once; returns the seconds from the call to the result."""


# --- LangGraph ----------------------------------------------------------------------------------


class State(TypedDict):
    """What LangGraph's nodes read and write."""

    done: Annotated[list[int], operator.add]


async def awaited(state: State) -> State:
    return {"done": [1]}


def plain(state: State) -> State:
    return {"done": [1]}


def langgraph(shape: Shape, door: Literal["ainvoke", "invoke"]) -> Timed:
    return _langgraph_timed(_langgraph_nodes(shape, _NODES[door]).compile(), len(shape.needs), door)


def langgraph_map(items: int, door: Literal["ainvoke", "invoke"]) -> Timed:
    builder = StateGraph(State)
    builder.add_node("item", _NODES[door])
    builder.add_conditional_edges(
        START, lambda _: [Send("item", {"done": []}) for _ in range(items)], ["item"]
    )
    return _langgraph_timed(builder.compile(), items, door)


def langgraph_durable(shape: Shape, directory: Path) -> Timed:
    """With what a node did on the disk before the next step begins, as ours with `node`."""

    async def once() -> float:
        path = directory / f"{time.monotonic_ns()}.sqlite"
        async with AsyncSqliteSaver.from_conn_string(str(path)) as saver:
            await saver.setup()
            graph = _langgraph_nodes(shape, awaited).compile(checkpointer=saver)
            config = _config(len(shape.needs)) | {"configurable": {"thread_id": "1"}}
            begun = time.perf_counter()
            state = await graph.ainvoke({"done": []}, config, durability="sync")
            took = time.perf_counter() - begun
        assert len(state["done"]) == len(shape.needs)
        return took

    return lambda: asyncio.run(once())


_NODES: dict[str, Callable[[State], Any]] = {"ainvoke": awaited, "invoke": plain}


def _langgraph_nodes(shape: Shape, node: Callable[[State], Any]) -> StateGraph[Any]:
    builder = StateGraph(State)
    for name, needs in shape.needs.items():
        builder.add_node(name, node)
        if len(needs) > 1:
            builder.add_edge(list(needs), name)
        else:
            builder.add_edge(needs[0] if needs else START, name)
    return builder


def _langgraph_timed(graph: Any, nodes: int, door: str) -> Timed:
    def once() -> float:
        begun = time.perf_counter()
        state = graph.invoke({"done": []}, _config(nodes))
        took = time.perf_counter() - begun
        assert len(state["done"]) == nodes
        return took

    async def once_awaited() -> float:
        begun = time.perf_counter()
        state = await graph.ainvoke({"done": []}, _config(nodes))
        took = time.perf_counter() - begun
        assert len(state["done"]) == nodes
        return took

    return once if door == "invoke" else lambda: asyncio.run(once_awaited())


def _config(nodes: int) -> dict[str, Any]:
    return {"recursion_limit": nodes + 10}


# --- pydantic-graph -----------------------------------------------------------------------------


async def step(context: StepContext[Any, Any, int]) -> int:
    return (context.inputs or 0) + 1


def pydantic_graph(shape: Shape) -> Timed:
    builder = GraphBuilder(input_type=int, output_type=list[int], auto_instrument=False)
    steps = {name: builder.step(step, node_id=name) for name in shape.needs}
    needed = {need for needs in shape.needs.values() for need in needs}
    last = builder.join(reduce_list_append, initial_factory=list[int], node_id="last")
    first = [steps[name] for name, needs in shape.needs.items() if not needs]
    builder.add(builder.edge_from(builder.start_node).to(*first))
    for name, needs in shape.needs.items():
        target = steps[name]
        if len(needs) > 1:
            target = builder.join(max_of, initial=0, node_id=f"before {name}")
            builder.add(builder.edge_from(target).to(steps[name]))
        for need in needs:
            builder.add(builder.edge_from(steps[need]).to(target))
    ends = [one for name, one in steps.items() if name not in needed]
    if len(ends) > 1:
        builder.add(builder.edge_from(*ends).to(last), builder.edge_from(last).to(builder.end_node))
    else:
        builder.add(builder.edge_from(*ends).to(builder.end_node))
    return _pydantic_timed(builder.build(), 0)


def pydantic_graph_map(items: int) -> Timed:
    builder = GraphBuilder(input_type=list[int], output_type=list[int], auto_instrument=False)
    item = builder.step(step, node_id="item")
    last = builder.join(reduce_list_append, initial_factory=list[int], node_id="last")
    builder.add(
        builder.edge_from(builder.start_node).map().to(item),
        builder.edge_from(item).to(last),
        builder.edge_from(last).to(builder.end_node),
    )
    return _pydantic_timed(builder.build(), [0] * items)


def max_of(one: int, other: int) -> int:
    return max(one, other)


def _pydantic_timed(graph: Any, inputs: object) -> Timed:
    async def once() -> float:
        begun = time.perf_counter()
        await graph.run(inputs=inputs)
        return time.perf_counter() - begun

    return lambda: asyncio.run(once())
