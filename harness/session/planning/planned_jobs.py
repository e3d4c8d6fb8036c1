"""A pipeline as the calls that it will make, as far as they can be told before it runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Final

from harness.graph import Graph, Node
from harness.residency.simulation import Job
from harness.session.planning.asked_models import Stages

CALL_S: Final = 5.0
"""What any call is taken to last: how long they really are turns out when they are made."""


def planned_jobs(graph: Graph, asked: Mapping[str, Stages], *, items: int) -> list[Job]:
    """The calls to models of one run, and which of them come after which.

    A node that is mapped is taken to have as many items as said, and each of its calls to ask the
    same. A condition (`when`) is taken to hold. How many calls a run makes at once is left open.

    Args:
        graph: The pipeline.
        asked: By node, what each of its calls asks.
        items: How many items every mapped source has.
    """
    jobs: list[Job] = []
    planned: dict[str, _Planned] = {}
    order = {name: graph.dependencies(node) for name, node in graph.nodes.items()}
    for name in TopologicalSorter(order).static_order():
        node = graph.nodes[name]
        one = _Planned(is_mapped=node.is_mapped)
        for index in range(_calls_of(node, planned, items=items)):
            after = _before(node, index, order[name], planned)
            for number, stage in enumerate(asked.get(name, ())):
                ids = tuple(f"{name}[{index}].{number}.{model}" for model in stage)
                jobs += [
                    Job(id=id_, model=model, call_s=CALL_S, after=after)
                    for id_, model in zip(ids, stage, strict=True)
                ]
                after = ids
            one.ends.append(after)
        planned[name] = one
    return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """The calls of one node."""

    is_mapped: bool = False
    """Whether its output is a list of as many items as it has calls."""
    ends: list[tuple[str, ...]] = field(default_factory=list)
    """By call, the jobs after which it is over; of one that asks no model, those before it."""

    @property
    def all_ends(self) -> tuple[str, ...]:
        """The jobs after which all of it is over."""
        return tuple(dict.fromkeys(job for call in self.ends for job in call))


def _calls_of(node: Node, planned: Mapping[str, _Planned], *, items: int) -> int:
    """How often a node is called, which has its sources planned."""
    counts = [
        len(planned[one.source].ends) if _is_mapped(one.source, planned) else items
        for one in node.parameters
        if one.is_mapped
    ]
    return math.prod(counts) if node.combine == "product" else max(counts, default=1)


def _before(
    node: Node, index: int, sources: Sequence[str], planned: Mapping[str, _Planned]
) -> tuple[str, ...]:
    """The jobs that must be over before a call of a node begins."""
    # Side by side with another mapped node, it takes up each item as soon as that is there.
    by_item = {one.source for one in node.parameters if one.is_mapped and node.combine == "zip"}
    jobs: list[str] = []
    for source in sources:
        calls = planned[source].ends
        if source in by_item and _is_mapped(source, planned) and index < len(calls):
            jobs += calls[index]
        else:
            jobs += planned[source].all_ends
    return tuple(dict.fromkeys(jobs))


def _is_mapped(source: str, planned: Mapping[str, _Planned]) -> bool:
    return source in planned and planned[source].is_mapped
