"""A graph compiled for running: what each node needs, and who waits for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from harness.graph.annotations import asks_for, item_of
from harness.graph.check import returned
from harness.graph.fingerprint import Code, code_of
from harness.graph.graph import Graph
from harness.graph.node import Node, Parameter
from harness.graph.outcome import Skipped
from harness.graph.policies import Policies
from harness.graph.values import ValueForm, value_form


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A node with all that a run has to know of it."""

    node: Node
    """As defined."""
    policies: Policies
    """The node's own, over those of the graph."""
    form: ValueForm
    """What one call of it gives, as a value that can be written down and read back."""
    item_form: ValueForm | None
    """Of a generating node: what it yields."""
    says: Code
    """What its function's code says."""
    mapped: tuple[Parameter, ...]
    """Its mapped parameters."""
    whole: tuple[Parameter, ...]
    """The others, and those of its `when`."""
    takes_skipped: frozenset[str]
    """Parameters that ask for `Skipped`."""
    takes_skipped_items: frozenset[str]
    """Parameters that ask for lists with `Skipped` in them."""
    waits_for: int = 0
    """How many nodes it needs the whole output of."""
    consumers: list[Step] = field(default_factory=list)
    """Who needs its whole output."""
    followers: list[Step] = field(default_factory=list)
    """Who takes its items as they come."""

    @property
    def code(self) -> str:
        """The digest of its function's code."""
        return self.says.digest

    @property
    def gives_items(self) -> bool:
        """Whether its output is made item by item."""
        return bool(self.mapped) or self.item_form is not None


_PLANS: WeakKeyDictionary[Graph, Sequence[Step]] = WeakKeyDictionary()


def plan_of(graph: Graph) -> Sequence[Step]:
    """The graph's nodes as steps, in the order of definition; compiled once for all its runs.

    Raises:
        PipelineInvalid: An annotation names something that does not exist.
    """
    plan = _PLANS.get(graph)
    # Nodes are only ever added.
    if plan is None or len(plan) != len(graph.nodes):
        plan = _PLANS[graph] = _compile(graph)
    else:
        for step in plan:  # what it refers to may be another now, as in a notebook
            step.says = code_of(step.node.function)
    return plan


def _compile(graph: Graph) -> list[Step]:
    steps = {node.name: _step(node, graph) for node in graph.nodes.values()}
    for step in steps.values():
        for name in step.node.sources:
            source = steps.get(name)
            if source is None:
                continue
            if source.gives_items and _streams(step, name):
                source.followers.append(step)
            else:
                source.consumers.append(step)
                step.waits_for += 1
    return list(steps.values())


def _step(node: Node, graph: Graph) -> Step:
    asked = node.when.parameters if node.when else ()
    both = (*node.parameters, *asked)
    return Step(
        node=node,
        policies=node.policies.over(graph.policies),
        form=value_form(returned(node)),
        item_form=value_form(item_of(node.annotation("return"))) if node.is_streaming else None,
        says=code_of(node.function),
        mapped=tuple(one for one in node.parameters if one.is_mapped),
        whole=tuple(one for one in both if not one.is_mapped),
        takes_skipped=_asking(node, graph, lambda annotation: annotation),
        takes_skipped_items=_asking(node, graph, item_of),
    )


def _asking(node: Node, graph: Graph, part: Callable[[object], object]) -> frozenset[str]:
    """The parameters that ask for `Skipped` in a part of their annotation."""
    return frozenset(
        one.name
        for one in node.parameters
        if one.source in graph.nodes and asks_for(part(node.annotation(one.name)), Skipped)
    )


def _streams(step: Step, source: str) -> bool:
    """Whether a step takes the items of a source as they come, and nothing else of it."""
    return (
        step.node.combine == "zip"
        and any(one.source == source for one in step.mapped)
        and all(one.source != source for one in step.whole)
    )
