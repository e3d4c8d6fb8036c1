"""Nodes: the functions of a pipeline, and where their parameters come from."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Literal, TypedDict, Unpack, get_args

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.policies import (
    NO_POLICIES,
    Cache,
    Concurrency,
    OnError,
    Policies,
    Resources,
    Retry,
    Timeout,
)

Combine = Literal["zip", "product"]
"""How several mapped parameters combine: item by item, or all combinations."""

RUN_PARAMETER = "run"
"""A parameter of this name receives the run; it is neither an edge nor an input."""

EMPTY = inspect.Parameter.empty


class PolicyOptions(TypedDict, total=False):
    """The policies of a node that a graph may have for all; see `Graph.node`."""

    retry: Retry | None
    timeout: Timeout | None
    cache: Cache | None
    concurrency: Concurrency | None
    on_error: OnError | None


class NodeOptions(PolicyOptions, total=False):
    """All arguments of `Graph.node`; see there."""

    name: str | None
    each: Mapping[str, str] | None
    combine: Combine
    takes: Mapping[str, str] | None
    when: Callable[..., object] | None
    models: Sequence[str] | None
    on: Resources | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A value that a node takes."""

    name: str
    source: str
    """The node or input whose value it receives: its own name, unless `each` or `takes` says
    otherwise."""
    is_mapped: bool
    """Whether it receives one item of the source at a time."""
    default: object
    """`inspect.Parameter.empty` if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Decides whether a node runs."""

    function: Callable[..., object]
    """Plain; its result counts as true or false."""
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A function, and the source of each of its parameters."""

    name: str
    """The function's name, unless it was given another."""
    function: Callable[..., object]
    parameters: tuple[Parameter, ...]
    """In the order of the signature, without the run."""
    takes_run: bool
    path: Path
    line: int
    combine: Combine = "zip"
    when: When | None = None
    """Whether it runs; always if None."""
    policies: Policies = NO_POLICIES
    track: str | None = None
    """The track of its calls; None for a track of its own."""

    @property
    def is_mapped(self) -> bool:
        """Whether it runs once per item."""
        return any(parameter.is_mapped for parameter in self.parameters)

    @property
    def is_interactive(self) -> bool:
        """Whether it was defined in a notebook or at a prompt, and not in a file."""
        # A notebook's cells have files of their own, and its main module has none.
        is_in_main = self.function.__module__ == "__main__"
        return is_in_main and (
            str(self.path).startswith("<") or not hasattr(sys.modules["__main__"], "__file__")
        )

    @property
    def is_generator(self) -> bool:
        """Whether it yields the items of its output one by one."""
        return inspect.isasyncgenfunction(inspect.unwrap(self.function))

    @property
    def everything_taken(self) -> tuple[Parameter, ...]:
        """Its parameters, then the parameters that only its `when` has."""
        names = {parameter.name for parameter in self.parameters}
        conditions = self.when.parameters if self.when else ()
        return (
            *self.parameters,
            *(parameter for parameter in conditions if parameter.name not in names),
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """The nodes and inputs that it needs, those of its `when` included."""
        return tuple(dict.fromkeys(parameter.source for parameter in self.everything_taken))

    def mistake(self, message: str, *, code: str) -> PipelineInvalid:
        """An error that names its file and line."""
        return PipelineInvalid(message, code=code, path=self.path, line=self.line)

    def annotation(self, name: str) -> object:
        """The type of a parameter of the function or of its `when`, or of `return`.

        `object` without annotation. Raises `PipelineInvalid` if the annotation names something that
        does not exist.
        """
        function = self.function
        # The function's own parameter counts before one of `when` with the same name.
        own_names = {"return", *(parameter.name for parameter in self.parameters)}
        if self.when is not None and name not in own_names:
            function = self.when.function
        try:
            return annotation_of(inspect.unwrap(function), name)
        except (NameError, AttributeError) as error:
            subject = "what is returned" if name == "return" else f"'{name}'"
            raise self.mistake(
                f"the annotation of {subject} in node '{self.name}' cannot be resolved "
                f"({error}); import the name at run time, not only under TYPE_CHECKING",
                code="pipeline.annotation-unresolved",
            ) from error

    def moved(self, name: str, sources: Mapping[str, str], policies: Policies) -> Node:
        """The same node in another graph.

        `sources` maps each of its sources to the name there, if the names differ.
        """

        def moved_parameters(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
            return tuple(replace(p, source=sources.get(p.source, p.source)) for p in parameters)

        when = self.when
        if when is not None:
            when = replace(when, parameters=moved_parameters(when.parameters))
        parameters = moved_parameters(self.parameters)
        return replace(self, name=name, parameters=parameters, when=when, policies=policies)


def annotation_of(function: Callable[..., object], name: str) -> object:
    """The type of one parameter, or of `return`; `object` without annotation.

    Raises:
        NameError: The annotation names something that does not exist.
        AttributeError: The same, for `module.name`.
    """
    # Caching would keep alive what a closure or an object holds, a whole run perhaps.
    if isinstance(function, FunctionType) and not function.__closure__:
        return _cached_annotation(function, name)
    return _read_annotation(function, name)


def _read_annotation(function: Callable[..., object], name: str) -> object:
    annotations = inspect.get_annotations(function)
    if name not in annotations:
        return object
    # Only this annotation is resolved: the other types need not exist at run time.
    holder = SimpleNamespace(__annotations__={name: annotations[name]})
    return typing.get_type_hints(holder, function.__globals__, include_extras=True)[name]


# Many nodes of a large graph share a function.
_cached_annotation = lru_cache(maxsize=1024)(_read_annotation)


def check_options(options: PolicyOptions, known: Iterable[str]) -> None:
    """Raises `TypeError` for an option that is no policy; the message names the nearest option."""
    for name in options.keys() - PolicyOptions.__optional_keys__:
        raise TypeError(f"there is no option '{name}'; {did_you_mean(name, known)}")


# --- a function as a node -----------------------------------------------------------------------


def read_node(
    function: Callable[..., object],
    *,
    name: str | None = None,
    each: Mapping[str, str] | None = None,
    combine: Combine = "zip",
    takes: Mapping[str, str] | None = None,
    when: Callable[..., object] | None = None,
    models: Sequence[str] | None = None,
    on: Resources | None = None,
    **options: Unpack[PolicyOptions],
) -> Node:
    """Makes a node of a function, by its signature; the arguments are those of `Graph.node`.

    Raises:
        PipelineInvalid: It is not written with `def`, its signature cannot be a node's, or `each`
            or `takes` names a parameter that it does not have.
    """
    # The function that decorators wrap has the file and line that mistakes have to name.
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise PipelineInvalid(
            f"{function!r} cannot be a node, since it has no signature to read names from; wrap it "
            "in a function written with def",
            code="pipeline.node-without-signature",
        )
    # A text alone is the name of one role: as a sequence, it would be one of letters.
    roles = (models,) if isinstance(models, str) else models
    check_options(options, NodeOptions.__optional_keys__)
    node = Node(
        name=function.__name__ if name is None else name,
        function=function,
        parameters=(),
        takes_run=False,
        path=Path(code.co_filename),
        line=code.co_firstlineno,
        combine=combine,
        policies=Policies(**options, on=on, models=None if roles is None else tuple(roles)),
    )
    _check_name(node)
    _check_options(node, each, takes)
    if on is not None and node.is_generator:
        raise node.mistake(
            f"node '{node.name}' yields its items one by one, and so runs with the pipeline; leave "
            "out on=, or return a list",
            code="pipeline.on-a-stream",
        )
    signature = _signature(node, function, f"node '{node.name}'")
    mapped_sources = dict(each or {})
    renamed_sources = dict(takes or {})
    parameter_names = [name for name in signature if name != RUN_PARAMETER]
    _check_sources(node, mapped_sources, renamed_sources, parameter_names)
    sources = mapped_sources | renamed_sources
    parameters = {
        name: Parameter(
            name=name,
            source=sources.get(name, name),
            is_mapped=name in mapped_sources,
            default=signature[name].default,
        )
        for name in parameter_names
    }
    return replace(
        node,
        parameters=tuple(parameters.values()),
        takes_run=RUN_PARAMETER in signature,
        when=None if when is None else _when(node, when, parameters),
    )


def _check_name(node: Node) -> None:
    if node.name == RUN_PARAMETER:
        raise node.mistake(
            f"a node cannot be called '{node.name}', since a parameter of that name receives the "
            "run; rename the function",
            code="pipeline.node-name-reserved",
        )
    if not node.name.isidentifier():
        raise node.mistake(
            f"a node cannot be called {node.name!r}, since a parameter could not have that name; "
            "give it another: name=…",
            code="pipeline.node-name-invalid",
        )


def _check_options(node: Node, each: object, takes: object) -> None:
    """Raises for values of the wrong type, which Python lets callers give."""
    problem = node.policies.mistake()
    if node.combine not in get_args(Combine):
        problem = f'combine={node.combine!r} is unknown; write "zip" or "product"'
    for option, value in (("each", each), ("takes", takes)):
        if not isinstance(value, Mapping | None):
            problem = f'{option}={value!r} names no parameter; write {{"parameter": "source"}}'
    if problem is not None:
        raise node.mistake(f"node '{node.name}': {problem}", code="pipeline.option-invalid")


def _check_sources(
    node: Node, each: Mapping[str, str], takes: Mapping[str, str], parameter_names: list[str]
) -> None:
    """Raises unless `each` and `takes` name different parameters that the node has."""
    for option, names in (("each", each), ("takes", takes)):
        for name in names:
            if name not in parameter_names:
                raise node.mistake(
                    f"{option}= of node '{node.name}' names '{name}', which is not a "
                    f"parameter that takes a value; {did_you_mean(name, parameter_names)}",
                    code="pipeline.unknown-parameter",
                )
    if both := each.keys() & takes.keys():
        raise node.mistake(
            f"each= and takes= of node '{node.name}' both name '{min(both)}'; leave one",
            code="pipeline.parameter-taken-twice",
        )


def _when(node: Node, function: Callable[..., object], parameters: Mapping[str, Parameter]) -> When:
    signature = _signature(node, function, f"when= of node '{node.name}'")
    if inspect.iscoroutinefunction(function) or RUN_PARAMETER in signature:
        raise node.mistake(
            f"when= of node '{node.name}' must be a plain function of nodes and inputs; to ask a "
            "model, use a node",
            code="pipeline.when-not-plain",
        )
    return When(
        function=function,
        parameters=tuple(
            # The same value as the node's own parameter of this name: one item, for example.
            parameters.get(p.name)
            or Parameter(name=p.name, source=p.name, is_mapped=False, default=p.default)
            for p in signature.values()
        ),
    )


def _signature(
    node: Node, function: Callable[..., object], subject: str
) -> Mapping[str, inspect.Parameter]:
    """A function's parameters; raises unless all of them can be given by name."""
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise node.mistake(
                f"{subject} takes {parameter}; an edge is a parameter name, so name them all",
                code="pipeline.parameter-without-name",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise node.mistake(
                f"parameter '{parameter.name}' of {subject} is positional-only; values are "
                "given by name, so remove the '/'",
                code="pipeline.parameter-positional-only",
            )
    return parameters
