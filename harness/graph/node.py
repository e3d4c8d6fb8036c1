"""Nodes: the functions of a pipeline, and what their signatures say."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from harness.errors import PipelineInvalid, did_you_mean

RUN_PARAMETER = "run"
"""A parameter of this name receives the run; it is neither an edge nor an input."""

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Something that a node takes."""

    name: str
    """As in the signature."""
    source: str
    """The node or input whose value it receives: its own name, unless `each` says otherwise."""
    is_mapped: bool
    """Whether it receives one item of the source at a time."""
    default: object
    """`inspect.Parameter.empty` when there is none."""

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A function, and where each of its parameters comes from."""

    name: str
    """The function's name."""
    function: Callable[..., object]
    """Plain or async."""
    parameters: tuple[Parameter, ...]
    """In the order of the signature, without the run."""
    takes_run: bool
    """Whether the signature asks for the run."""
    path: Path
    """The file it is written in."""
    line: int
    """Where it begins there."""

    @property
    def is_mapped(self) -> bool:
        """Whether it runs once per item."""
        return any(parameter.is_mapped for parameter in self.parameters)

    def annotation(self, parameter: str) -> object:
        """The type a parameter is annotated with; `object` when it is not.

        Raises:
            PipelineInvalid: The annotation names something that does not exist.
        """
        function = inspect.unwrap(self.function)
        # Of this parameter alone: nobody needs the others' types at run time.
        one = SimpleNamespace(
            __annotations__={
                name: annotation
                for name, annotation in inspect.get_annotations(function).items()
                if name == parameter
            }
        )
        try:
            hints = typing.get_type_hints(one, function.__globals__, include_extras=True)
        except (NameError, AttributeError) as error:
            raise PipelineInvalid(
                f"the annotation of '{parameter}' in node '{self.name}' cannot be resolved "
                f"({error}); import the name at run time, not only under TYPE_CHECKING",
                path=self.path,
                line=self.line,
            ) from error
        return hints.get(parameter, object)


def read_node(function: Callable[..., object], each: Mapping[str, str]) -> Node:
    """What a function's signature says about its place in a pipeline.

    Args:
        function: Plain or async, written with `def`.
        each: For each mapped parameter, the node or input whose items it receives.

    Raises:
        PipelineInvalid: It is no such function, its signature cannot be a node's, or `each` names
            no parameter of it.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise PipelineInvalid(
            f"{function!r} cannot be a node, since it has no signature to read names from; wrap it "
            "in a function written with def"
        )
    name, path, line = function.__name__, Path(code.co_filename), code.co_firstlineno
    if name == RUN_PARAMETER:
        raise PipelineInvalid(
            f"a node cannot be called '{name}', since a parameter of that name receives the run; "
            "rename the function",
            path=path,
            line=line,
        )
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise PipelineInvalid(
                f"node '{name}' takes {parameter}; an edge is a parameter name, so name them all",
                path=path,
                line=line,
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise PipelineInvalid(
                f"parameter '{parameter.name}' of node '{name}' is positional-only; values are "
                "given by name, so remove the '/'",
                path=path,
                line=line,
            )
    takes = [p for p in parameters if p != RUN_PARAMETER]
    for mapped in each:
        if mapped not in takes:
            raise PipelineInvalid(
                f"each= of node '{name}' maps '{mapped}', which is not a parameter that takes a "
                "value; " + did_you_mean(mapped, takes),
                path=path,
                line=line,
            )
    return Node(
        name=name,
        function=function,
        parameters=tuple(
            Parameter(
                name=p.name,
                source=each.get(p.name, p.name),
                is_mapped=p.name in each,
                default=p.default,
            )
            for p in parameters.values()
            if p.name != RUN_PARAMETER
        ),
        takes_run=RUN_PARAMETER in parameters,
        path=path,
        line=line,
    )
