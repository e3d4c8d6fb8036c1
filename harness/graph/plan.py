"""A graph compiled for execution: its nodes as steps, and who takes whose output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from harness.graph.annotations import item_of, members_of
from harness.graph.fingerprint import Fingerprint, code_of
from harness.graph.graph import Graph, returned
from harness.graph.node import Node, Parameter
from harness.graph.outcome import Skipped
from harness.graph.policies import Policies
from harness.graph.values import ValueForm, value_form


@dataclass(slots=True, kw_only=True, eq=False)
class Step:
    """A node, compiled for running."""

    node: Node
    policies: Policies
    form: ValueForm
    item_form: ValueForm | None  # of a generating node's items; None for other nodes
    code: Fingerprint
    mapped: tuple[Parameter, ...]
    unmapped: tuple[Parameter, ...]  # those of its `when` included
    takes_skipped: frozenset[str]  # parameters annotated as `str | Skipped`
    takes_skipped_items: frozenset[str]  # parameters annotated as `list[str | Skipped]`
    waits_for: int = 0  # how many nodes it needs the whole output of
    consumers: list[Step] = field(default_factory=list)  # steps that need its whole output
    follows: bool = False  # whether it takes items of another as they come
    followers: list[Step] = field(default_factory=list)  # steps that take its items as they come

    @property
    def generates(self) -> bool:
        """Whether it gives its items one after another in one call."""
        return self.item_form is not None and not self.mapped

    @property
    def gives_items(self) -> bool:
        """Whether its output is made item by item."""
        return bool(self.mapped) or self.item_form is not None


_PLANS: WeakKeyDictionary[Graph, Sequence[Step]] = WeakKeyDictionary()


def plan_of(graph: Graph) -> Sequence[Step]:
    """The graph's nodes as steps, in the order of definition; compiled once for all its runs.

    Raises `PipelineInvalid` if an annotation names something that does not exist.
    """
    plan = _PLANS.get(graph)
    # A node may have been added since, or, in a notebook, have taken the place of another.
    if plan is None or [id(step.node) for step in plan] != [*map(id, graph.nodes.values())]:
        plan = _PLANS[graph] = _compile(graph)
    else:
        for step in plan:
            # The names in its code may mean something else now, as in a notebook.
            step.code = code_of(step.node.function)
    return plan


def _compile(graph: Graph) -> list[Step]:
    """A step for each node, among the followers or consumers of the steps that it takes from."""
    steps = {node.name: _step(node, graph) for node in graph.nodes.values()}
    for step in steps.values():
        for name in step.node.sources:
            if (source := steps.get(name)) is None:
                continue  # an input of the graph
            if source.gives_items and _takes_items_alone(step, name):
                source.followers.append(step)
                step.follows = True
            else:
                source.consumers.append(step)
                step.waits_for += 1
    return list(steps.values())


def _step(node: Node, graph: Graph) -> Step:
    conditions = node.when.parameters if node.when else ()
    from_nodes = {
        parameter.name: node.annotation(parameter.name)
        for parameter in node.parameters
        if parameter.source in graph.nodes
    }
    return Step(
        node=node,
        policies=node.policies.over(graph.policies),
        form=value_form(returned(node)),
        item_form=value_form(item_of(node.annotation("return"))) if node.is_generator else None,
        code=code_of(node.function),
        mapped=tuple(parameter for parameter in node.parameters if parameter.is_mapped),
        unmapped=tuple(
            parameter for parameter in (*node.parameters, *conditions) if not parameter.is_mapped
        ),
        takes_skipped=frozenset(
            name for name, annotation in from_nodes.items() if Skipped in members_of(annotation)
        ),
        takes_skipped_items=frozenset(
            name
            for name, annotation in from_nodes.items()
            if Skipped in members_of(item_of(annotation))
        ),
    )


def _takes_items_alone(step: Step, source: str) -> bool:
    """Whether a step takes only the items of a source, as they come."""
    return (
        step.node.combine == "zip"
        and any(parameter.source == source for parameter in step.mapped)
        and all(parameter.source != source for parameter in step.unmapped)
    )
