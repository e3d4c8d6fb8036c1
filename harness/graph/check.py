"""What can only be seen of a whole graph: that what nodes return is what others take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.annotations import described, fits, item_of
from harness.graph.node import Node, Parameter
from harness.graph.policies import Default
from harness.graph.values import value_form

if TYPE_CHECKING:
    from harness.graph.graph import Graph


def check_graph(graph: Graph) -> None:
    """Raises for the first mistake; see `Graph.check`."""
    if graph.result is not None and graph.result not in graph.nodes:
        raise PipelineInvalid(
            f"result='{graph.result}' of pipeline '{graph.name}' is none of its nodes; "
            + did_you_mean(graph.result, graph.nodes),
            code="pipeline.result-unknown",
        )
    for node in graph.nodes.values():
        _check_output(node, graph)
        for parameter in node.everything_taken:
            if parameter.source in graph.nodes:
                _check_edge(graph.nodes[parameter.source], node, parameter)


def returned(node: Node) -> object:
    """The annotation of what one call of a node gives: of a generating node, the list of all."""
    annotation = node.annotation("return")
    if not node.is_streaming:
        return annotation
    item: Any = item_of(annotation)
    return list[item]


def output_annotation(node: Node) -> object:
    """The annotation of a node's whole output: of a mapped node, the list of all."""
    one: Any = returned(node)
    return list[one] if node.is_mapped else one


def _check_output(node: Node, graph: Graph) -> None:
    annotation = returned(node)
    try:
        form = value_form(annotation)
    except TypeError as error:
        raise PipelineInvalid(
            f"what node '{node.name}' returns has to be in the run's journal: {error}",
            code="pipeline.output-not-recordable",
            path=node.path,
            line=node.line,
        ) from error
    on_error = node.policies.over(graph.policies).on_error
    if isinstance(on_error, Default):
        try:
            form.encode(form.check(on_error.value))
        except TypeError as error:
            raise PipelineInvalid(
                f"node '{node.name}' has on_error=Default({on_error.value!r}): {error}",
                code="pipeline.default-does-not-fit",
                path=node.path,
                line=node.line,
            ) from error


def _check_edge(source: Node, node: Node, parameter: Parameter) -> None:
    wanted, produced = node.annotation(parameter.name), output_annotation(source)
    if parameter.is_mapped:
        item = item_of(produced)
        if item is None:
            raise PipelineInvalid(
                f"each= of node '{node.name}' maps over '{source.name}', which returns "
                f"{described(produced)} and not a list",
                code="pipeline.maps-no-list",
                path=node.path,
                line=node.line,
            )
        produced = item
    if not fits(produced, wanted):
        what = "gives items that are" if parameter.is_mapped else "returns"
        raise PipelineInvalid(
            f"node '{node.name}' takes '{parameter.name}' as {described(wanted)}, and "
            f"'{source.name}' {what} {described(produced)}; make the annotations agree",
            code="pipeline.types-disagree",
            path=node.path,
            line=node.line,
        )
