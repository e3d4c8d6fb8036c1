"""A graph as it is drawn: boxes in layers, the arrows into them, and what a run made of them."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from harness.graph.graph import Graph
from harness.graph.node import Node, Parameter, When
from harness.graph.picture.seen import NodeSeen, RunSeen

Way = Literal["value", "item", "list", "when"]
"""How a node takes something: as it is, one item a call, as the list that a mapped node's calls
gave, or only to decide whether it is run."""

Kind = Literal["async", "plain", "stream"]
"""A coroutine function; one that runs in a thread; one that yields its items as they come."""

Direction = Literal["TD", "LR"]
"""Where later layers are: below, or to the right."""

# What a box and a layer take of a page that is four wide and three high, in its quarters.
_BREADTH, _LAYER_DOWN = 180 / 4, 110 / 3
_LAYER_ACROSS, _HEIGHT = 230 / 4, 64 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """What goes into a node."""

    source: str
    """The node it comes from, or the graph's input."""
    is_input: bool
    """Whether it comes from outside."""
    way: Way
    """How the node takes it."""
    is_critical: bool = False
    """Whether it lies on the critical path of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A node."""

    name: str
    """The node's."""
    layer: int
    """Nodes between it and the top, along the longest way."""
    arrows: tuple[Arrow, ...]
    """What it takes, in the order of its signature; nothing twice in the same way."""
    is_mapped: bool
    """Whether it is called once per item."""
    kind: Kind
    """What sort of function it is."""
    when: str | None
    """What decides whether it is run: `wanted(task)`; None when it always is."""
    roles: tuple[str, ...]
    """The roles that it says it uses."""
    seen: NodeSeen | None = None
    """What the run made of it; None when there is no run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """A graph, to be drawn in one form or another."""

    name: str
    """The graph's."""
    inputs: tuple[str, ...]
    """What it needs from outside, in the order in which nodes take it."""
    boxes: tuple[Box, ...]
    """Layer by layer, and within each in the order of definition."""
    run: RunSeen | None = None
    """The run whose figures it shows; None when there is none."""

    @property
    def layers(self) -> int:
        """How many there are."""
        return self.boxes[-1].layer + 1 if self.boxes else 0

    @property
    def direction(self) -> Direction:
        """Which way it comes nearest to the shape of a page: boxes are wider than they are high."""
        widest = max(Counter(box.layer for box in self.boxes).values(), default=0)
        down = max(widest * _BREADTH, self.layers * _LAYER_DOWN)
        across = max(self.layers * _LAYER_ACROSS, widest * _HEIGHT)
        return "TD" if down <= across else "LR"

    @property
    def unknown(self) -> tuple[str, ...]:
        """Nodes that the run had and the graph does not have."""
        known = {box.name for box in self.boxes}
        return tuple(name for name in (self.run.nodes if self.run else ()) if name not in known)


def drawing_of(graph: Graph, run: RunSeen | None = None) -> Drawing:
    """What there is to draw.

    Args:
        graph: One that was checked: it has no cycle.
        run: What became of it in a run.
    """
    # Here rather than at the top: networkx takes 70 ms to import.
    import networkx as nx  # noqa: PLC0415

    order = nx.DiGraph()
    order.add_nodes_from(graph.nodes)
    for node in graph.nodes.values():
        order.add_edges_from((name, node.name) for name in node.sources if name in graph.nodes)
    rank = {name: number for number, name in enumerate(graph.nodes)}
    # A node's generation is the length of the longest way to it.
    layers = [sorted(names, key=rank.__getitem__) for names in nx.topological_generations(order)]
    sources = dict.fromkeys(name for node in graph.nodes.values() for name in node.sources)
    return Drawing(
        name=graph.name,
        inputs=tuple(name for name in sources if name not in graph.nodes),
        boxes=tuple(
            _box(graph.nodes[name], graph, layer, run)
            for layer, names in enumerate(layers)
            for name in names
        ),
        run=run,
    )


def _box(node: Node, graph: Graph, layer: int, run: RunSeen | None) -> Box:
    return Box(
        name=node.name,
        layer=layer,
        arrows=tuple(dict.fromkeys(_arrows(node, graph, run))),
        is_mapped=node.is_mapped,
        kind=_kind(node),
        when=_condition(node.when) if node.when else None,
        roles=node.policies.over(graph.policies).models or (),
        seen=run.of(node.name) if run else None,
    )


def _arrows(node: Node, graph: Graph, run: RunSeen | None) -> Iterator[Arrow]:
    taken = {parameter.source for parameter in node.parameters}
    asked = [one for one in (node.when.parameters if node.when else ()) if one.source not in taken]
    for parameter in (*node.parameters, *asked):
        source = parameter.source
        yield Arrow(
            source=source,
            is_input=source not in graph.nodes,
            way="when" if source not in taken else _way(parameter, graph.nodes.get(source)),
            is_critical=run is not None and (source, node.name) in run.critical_steps,
        )


def _way(parameter: Parameter, source: Node | None) -> Way:
    if parameter.is_mapped:
        return "item"
    gives_items = source is not None and (source.is_mapped or source.is_streaming)
    return "list" if gives_items else "value"


def _kind(node: Node) -> Kind:
    if node.is_streaming:
        return "stream"
    is_async = inspect.iscoroutinefunction(inspect.unwrap(node.function))
    return "async" if is_async else "plain"


def _condition(when: When) -> str:
    name = getattr(when.function, "__name__", "when").strip("<>")
    return f"{name}({', '.join(parameter.name for parameter in when.parameters)})"
