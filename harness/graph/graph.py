"""Graphs: nodes joined by the names of their parameters.

An edge is a parameter that bears another node's name: the node waits for the other and receives
what it returned. Every other parameter is an input of the whole graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar, overload

from harness.errors import PipelineInvalid
from harness.graph.node import Node, read_node

P = ParamSpec("P")
R = TypeVar("R")


class Graph:
    """A set of nodes, checked as each is added.

    Args:
        name: What runs of it are called.

    Attributes:
        nodes: By name, in the order of definition.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}

    @overload
    def node(self, function: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def node(
        self, /, *, each: Mapping[str, str] = ...
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def node(
        self, function: Callable[P, R] | None = None, /, *, each: Mapping[str, str] | None = None
    ) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
        """Makes a function a node; the function itself stays as it was.

        Args:
            function: When used without parentheses.
            each: Maps a parameter to the node or input whose items it receives, one call per
                item, in parallel. Two mapped parameters are walked side by side and must have the
                same number of items. Who consumes the node receives the list, in order.

        Raises:
            PipelineInvalid: The name is taken, the signature cannot be a node's, or the node
                closes a cycle.
        """

        def add(function: Callable[P, R]) -> Callable[P, R]:
            self._add(read_node(function, each or {}))
            return function

        return add if function is None else add(function)

    def dependencies(self, node: Node) -> tuple[str, ...]:
        """The nodes that must be done before this one starts."""
        return tuple(dict.fromkeys(p.source for p in node.parameters if p.source in self.nodes))

    def _add(self, node: Node) -> None:
        earlier = self.nodes.get(node.name)
        if earlier is not None:
            raise PipelineInvalid(
                f"pipeline '{self.name}' has two nodes called '{node.name}'; the first is on line "
                f"{earlier.line}",
                path=node.path,
                line=node.line,
            )
        self.nodes[node.name] = node
        cycle = self._cycle_through(node)
        if cycle:
            del self.nodes[node.name]
            raise PipelineInvalid(
                f"node '{node.name}' closes a cycle: {' → '.join(cycle)}; a parameter that bears a "
                "node's name waits for that node, so rename one of them",
                path=node.path,
                line=node.line,
            )

    def _cycle_through(self, node: Node) -> list[str]:
        """The cycle that a new node closes, from the node back to itself; empty if none."""
        if not any(p.source == node.name for n in self.nodes.values() for p in n.parameters):
            return []  # nobody waits for it, so nothing can lead back to it
        # Here rather than at the top: networkx takes 70 ms to import, and few graphs get here.
        import networkx as nx  # noqa: PLC0415

        waits_for = nx.DiGraph(
            (name, source)
            for name, other in self.nodes.items()
            for source in self.dependencies(other)
        )
        try:
            edges = nx.find_cycle(waits_for, node.name)
        except nx.NetworkXNoCycle:
            return []
        return [edges[0][0], *(target for _, target in edges)]
