"""What the nodes of a pipeline will ask of models, before anything runs.

A node's source is read, and that of the functions that it hands its run to. What cannot be read or
followed makes what is known incomplete, and not wrong: it is a forecast.
"""

from __future__ import annotations

from collections.abc import Mapping

from harness.graph import Graph
from harness.session.node_uses import MEMORY, Loop, NodeUses, Turn
from harness.session.source_uses import Sources

__all__ = ["MEMORY", "Loop", "NodeUses", "Turn", "uses_of"]


def uses_of(graph: Graph) -> Mapping[str, NodeUses]:
    """What one call of each node asks, by the node's name.

    Where a node declares `models=`, it asks in these roles and no others. In which order, its
    source says if that names the same; else they are taken to come by turns.
    """
    return Sources().of_graph(graph)
