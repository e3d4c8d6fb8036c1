"""The inputs of a graph: what it needs from outside, checked before anything starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from harness.errors import Notice, PipelineInvalid, did_you_mean
from harness.graph.graph import Graph
from harness.graph.node import Node, Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A value that comes from outside."""

    name: str
    """What the parameters that receive it are called."""
    node: Node
    """The node whose annotation and default count: the first that takes it, unless a later one
    has a default, or a type, and the first has none."""
    parameter: Parameter
    """That node's parameter."""

    @property
    def annotation(self) -> Any:  # noqa: ANN401 - whatever the pipeline's author wrote
        """The type it must have; a mapped parameter's input is a list of that type."""
        one: Any = self.node.annotation(self.parameter.name)
        return list[one] if self.parameter.is_mapped else one

    @property
    def has_default(self) -> bool:
        """Whether it need not be given; a mapped parameter's default is one item, not the list."""
        return not (self.parameter.is_required or self.parameter.is_mapped)


_ANY = (object, list[object])
"""What the type of an input is that nobody has annotated."""


def graph_inputs(graph: Graph) -> dict[str, Input]:
    """Every parameter that no node provides, by name.

    Raises:
        PipelineInvalid: Two nodes take one input with different types or defaults.
    """
    inputs: dict[str, Input] = {}
    for node in graph.nodes.values():
        for parameter in node.everything_taken:
            if parameter.source not in graph.nodes:
                name = parameter.source
                found = Input(name=name, node=node, parameter=parameter)
                inputs[name] = _agreed(inputs[name], found) if name in inputs else found
    return inputs


def doubtful_inputs(graph: Graph, given: Collection[str]) -> Iterator[Notice]:
    """Inputs that are at their default, and perhaps meant for a node that is called nearly so."""
    for name, item in graph_inputs(graph).items():
        near = next((node for node in graph.nodes if _is_one_edit(name, node)), None)
        if near is not None and name not in given and near != item.node.name:
            yield Notice(
                code="pipeline.input-like-node",
                message=f"{item.node.path}:{item.node.line}: '{name}' of node '{item.node.name}' "
                f"uses its default; to take the output of node '{near}', rename it to '{near}'",
            )


def _is_one_edit(one: str, other: str) -> bool:
    """Whether a letter more, less, changed, or two that changed places make one of the other."""
    while one[:1] == other[:1] != "":
        one, other = one[1:], other[1:]
    while one[-1:] == other[-1:] != "":
        one, other = one[:-1], other[:-1]
    return max(len(one), len(other)) == 1 or (len(one) == 2 and one == other[::-1])


def _agreed(first: Input, second: Input) -> Input:
    """The one of two that speaks for both: the one with a default, or else with a type."""
    chosen, other = sorted(
        (first, second), key=lambda one: (one.has_default, one.annotation not in _ANY), reverse=True
    )
    if other.annotation not in (chosen.annotation, *_ANY) or (
        other.has_default and other.parameter.default != chosen.parameter.default
    ):
        raise PipelineInvalid(
            f"nodes '{first.node.name}' and '{second.node.name}' take the input '{first.name}' "
            "with different types or defaults; give both the same, or rename one",
            code="pipeline.inputs-disagree",
            path=second.node.path,
            line=second.node.line,
        )
    return chosen


def bind_inputs(graph: Graph, given: Mapping[str, object]) -> dict[str, object]:
    """The value of every input: given, or its default.

    Raises:
        PipelineInvalid: An input is missing, unknown, or of the wrong type.
    """
    inputs = graph_inputs(graph)
    for name in given:
        if name not in inputs:
            what = "is a node, not an input" if name in graph.nodes else "is not an input"
            raise PipelineInvalid(
                f"'{name}' {what} of pipeline '{graph.name}'; {did_you_mean(name, inputs)}",
                code="pipeline.unknown-input",
            )
    return {
        name: _checked(item, given[name]) if name in given else _default(graph, item)
        for name, item in inputs.items()
    }


def _default(graph: Graph, item: Input) -> object:
    if item.has_default:
        return item.parameter.default
    node = item.node
    # A misspelt edge looks like an input that nobody gives.
    others = graph.nodes.keys() - {node.name}
    raise PipelineInvalid(
        f"node '{node.name}' needs '{item.name}', which is neither given nor the name of a node; "
        "give it" + (f", or name a node; {did_you_mean(item.name, others)}" if others else ""),
        code="pipeline.input-missing",
        path=node.path,
        line=node.line,
    )


def _checked(item: Input, value: object) -> object:
    adapter = _adapter(item.annotation)
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        # A command line gives texts: '3', 'true', '["a", "b"]'.
        if isinstance(value, str):
            try:
                return adapter.validate_json(value)
            except ValidationError:
                pass
        first = error.errors()[0]
        given = first["input"]
        said = repr(given[:80]) if isinstance(given, str) else repr(given)[:80]
        where = "".join(f"[{key!r}]" for key in first["loc"])
        raise PipelineInvalid(
            f"input '{item.name}{where}' does not fit node '{item.node.name}': {first['msg']} "
            f"(given: {said})",
            code="pipeline.input-invalid",
        ) from error


def _adapter(annotation: Any) -> TypeAdapter[object]:  # noqa: ANN401 - as above
    try:
        return TypeAdapter(annotation)
    except PydanticSchemaGenerationError:
        # A class that pydantic knows nothing of: what is given must be an instance.
        return TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
