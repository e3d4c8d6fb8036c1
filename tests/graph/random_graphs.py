"""Graphs made to order: random DAGs, fan-outs and chains, as plain values and as graphs to run."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import networkx as nx
from hypothesis import strategies as st

from harness.graph import Graph

SEED = st.integers(0, 2**32 - 1)
"""Of a `Random` from which a whole pipeline follows."""
TICK_S = 1 / 1024
"""Node times are whole numbers of these: sums of them are exact, so that two may be compared."""
MOST_NEEDS = 4
"""More nodes than these nobody waits for."""

# --- what nodes do -------------------------------------------------------------------------------

Work = Callable[[], Awaitable[object]]


def _taking(count: int, *, works: bool) -> Callable[..., Awaitable[int]]:
    """Of a node that waits for so many; if it works, it first awaits what its `run` gives."""

    async def depth(run: Work | None = None, **before: int) -> int:
        if run is not None:
            await run()
        return 1 + max(before.values(), default=-1)

    names = (*(["run"] * works), *"abcd"[:count])
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in names]
    depth.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return depth


DEPTHS = tuple(_taking(count, works=False) for count in range(MOST_NEEDS + 1))
"""A node's function, by how many nodes it waits for."""
WORKING = tuple(_taking(count, works=True) for count in range(MOST_NEEDS + 1))
"""The same, of nodes that first await what their `run` gives when it is called."""


# --- shapes --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A DAG whose nodes take time."""

    needs: Mapping[str, tuple[str, ...]]
    """For each node, those that it waits for, all of them earlier in this mapping."""
    seconds: Mapping[str, float]
    """How long each node takes."""

    @property
    def critical_path_s(self) -> float:
        """How long the longest chain of nodes takes, as networkx sees it."""
        graph = nx.DiGraph()
        for name, needs in self.needs.items():
            # A node's time is on the edges to it: one from nowhere, and one from each need.
            for need in ("", *needs):
                graph.add_edge(need, name, seconds=self.seconds[name])
        return nx.dag_longest_path_length(graph, weight="seconds")

    @property
    def work_s(self) -> float:
        """How long all nodes take, one after another."""
        return sum(self.seconds.values())


def random_dag(
    random: Random,
    nodes: int,
    *,
    degree: int = MOST_NEEDS,
    layer: int | None = None,
    ticks: tuple[int, int] = (0, 32),
    tick_s: float = TICK_S,
) -> Shape:
    """A random DAG.

    Args:
        random: Where chance comes from.
        nodes: How many.
        degree: With layers, how many nodes of the layer before each node waits for; without, the
            most, of all that came before.
        layer: How many nodes a layer has; None for no layers.
        ticks: The least and the most that a node takes, in ticks.
        tick_s: What a tick is.
    """
    names = _names(nodes)
    needs = {}
    for number, name in enumerate(names):
        if layer is None:
            count, earlier = random.randint(0, degree), names[:number]
        else:
            begin = number - number % layer
            count, earlier = degree, names[max(0, begin - layer) : begin]
        needs[name] = tuple(random.sample(earlier, min(count, len(earlier))))
    seconds = {name: random.randint(*ticks) * tick_s for name in names}
    return Shape(needs=needs, seconds=seconds)


def fan_out(nodes: int) -> Shape:
    """Nodes that wait for nothing, each of which takes no time."""
    names = _names(nodes)
    return Shape(needs=dict.fromkeys(names, ()), seconds=dict.fromkeys(names, 0.0))


def chain(nodes: int) -> Shape:
    """Nodes that each wait for the one before, and take no time."""
    names = _names(nodes)
    needs = {name: names[max(0, number - 1) : number] for number, name in enumerate(names)}
    return Shape(needs=needs, seconds=dict.fromkeys(names, 0.0))


def graph_of(shape: Shape, functions: Sequence[Callable[..., Awaitable[int]]] = DEPTHS) -> Graph:
    """The shape as a graph to run; a node's output is how many nodes are in a row before it.

    Args:
        shape: The nodes, and what they wait for.
        functions: `DEPTHS`, whose nodes do nothing else, or `WORKING`.
    """
    graph = Graph("made to order")
    for name, needs in shape.needs.items():
        takes = dict(zip("abcd", needs, strict=False))
        graph.node(name=name, takes=takes)(functions[len(needs)])
    return graph


def depths(shape: Shape) -> dict[str, int]:
    """What the nodes of `graph_of` return, by name."""
    found: dict[str, int] = {}
    for name, needs in shape.needs.items():
        found[name] = 1 + max((found[need] for need in needs), default=-1)
    return found


def _names(nodes: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(nodes))
