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
    def is_streaming(self) -> bool:
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
        """The type of a parameter, or of `return`; `object` without annotation.

        Raises:
            PipelineInvalid: The annotation names something that does not exist.
        """
        # A name that both have is the function's own parameter; "return" is always the function's.
        function = self.function
        is_own = any(parameter.name == name for parameter in self.parameters)
        if self.when and not is_own and any(p.name == name for p in self.when.parameters):
            function = self.when.function
        try:
            return annotation_of(inspect.unwrap(function), name)
        except (NameError, AttributeError) as error:
            what = "what is returned" if name == "return" else f"'{name}'"
            raise self.mistake(
                f"the annotation of {what} in node '{self.name}' cannot be resolved "
                f"({error}); import the name at run time, not only under TYPE_CHECKING",
                code="pipeline.annotation-unresolved",
            ) from error

    def moved(self, name: str, sources: Mapping[str, str], policies: Policies) -> Node:
        """The same node in another graph.

        `sources` has the names of its sources there, if they differ.
        """

        def there(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
            return tuple(replace(p, source=sources.get(p.source, p.source)) for p in parameters)

        return replace(
            self,
            name=name,
            parameters=there(self.parameters),
            when=self.when and replace(self.when, parameters=there(self.when.parameters)),
            policies=policies,
        )


def annotation_of(function: Callable[..., object], name: str) -> object:
    """The type of one parameter, or of `return`; `object` without annotation.

    Raises:
        NameError: It names something that does not exist; or `AttributeError`.
    """
    # Caching would keep alive what a closure or an object holds, a whole run perhaps.
    if isinstance(function, FunctionType) and not function.__closure__:
        return _known_annotation(function, name)
    return _read_annotation(function, name)


def _read_annotation(function: Callable[..., object], name: str) -> object:
    annotations = inspect.get_annotations(function)
    if name not in annotations:
        return object
    # Only this annotation is resolved: the other types need not exist at run time.
    holder = SimpleNamespace(__annotations__={name: annotations[name]})
    return typing.get_type_hints(holder, function.__globals__, include_extras=True)[name]


# Many nodes of a large graph share a function.
_known_annotation = lru_cache(maxsize=1024)(_read_annotation)


def check_options(options: PolicyOptions, known: Iterable[str]) -> None:
    """Raises `TypeError` for a misspelled option, with the nearest of those that are known."""
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
    chosen = function.__name__ if name is None else name
    # One role's name is a sequence too, of its letters.
    roles = (models,) if isinstance(models, str) else models
    check_options(options, NodeOptions.__optional_keys__)
    policies = Policies(**options, on=on, models=None if roles is None else tuple(roles))
    reader = _SignatureReader(chosen, Path(code.co_filename), code.co_firstlineno)
    reader.check_name()
    reader.check_options(each, takes, combine, policies)
    if policies.on is not None and inspect.isasyncgenfunction(inspect.unwrap(function)):
        raise reader.mistake(
            f"node '{chosen}' yields its items one by one, and so runs with the pipeline; leave "
            "out on=, or return a list",
            "pipeline.on-a-stream",
        )
    signature = reader.signature(function, f"node '{chosen}'")
    mapped, taken = dict(each or {}), dict(takes or {})
    reader.check_sources(mapped, taken, [p for p in signature if p != RUN_PARAMETER])
    sources = mapped | taken
    parameters = {
        p.name: Parameter(
            name=p.name,
            source=sources.get(p.name, p.name),
            is_mapped=p.name in mapped,
            default=p.default,
        )
        for p in signature.values()
        if p.name != RUN_PARAMETER
    }
    return Node(
        name=chosen,
        function=function,
        parameters=tuple(parameters.values()),
        takes_run=RUN_PARAMETER in signature,
        path=reader.path,
        line=reader.line,
        combine=combine,
        when=None if when is None else reader.when(when, parameters),
        policies=policies,
    )


@dataclass(frozen=True, slots=True)
class _SignatureReader:
    """Reads what belongs to one node; every error names the node's file and line."""

    name: str
    path: Path
    line: int

    def mistake(self, message: str, code: str) -> PipelineInvalid:
        return PipelineInvalid(message, code=code, path=self.path, line=self.line)

    def check_name(self) -> None:
        if self.name == RUN_PARAMETER:
            raise self.mistake(
                f"a node cannot be called '{self.name}', since a parameter of that name receives "
                "the run; rename the function",
                "pipeline.node-name-reserved",
            )
        if not self.name.isidentifier():
            raise self.mistake(
                f"a node cannot be called {self.name!r}, since a parameter could not have that "
                "name; give it another: name=…",
                "pipeline.node-name-invalid",
            )

    def check_options(
        self, each: object, takes: object, combine: object, policies: Policies
    ) -> None:
        wrong = policies.mistake()
        if combine not in get_args(Combine):
            wrong = f'combine={combine!r} is unknown; write "zip" or "product"'
        for option, value in (("each", each), ("takes", takes)):
            if not isinstance(value, Mapping | None):
                wrong = f'{option}={value!r} names no parameter; write {{"parameter": "source"}}'
        if wrong is not None:
            raise self.mistake(f"node '{self.name}': {wrong}", "pipeline.option-invalid")

    def check_sources(
        self, mapped: Mapping[str, str], sources: Mapping[str, str], unused: list[str]
    ) -> None:
        for option, names in (("each", mapped), ("takes", sources)):
            for parameter in names:
                if parameter not in unused:
                    raise self.mistake(
                        f"{option}= of node '{self.name}' names '{parameter}', which is not a "
                        f"parameter that takes a value; {did_you_mean(parameter, unused)}",
                        "pipeline.unknown-parameter",
                    )
        if both := mapped.keys() & sources.keys():
            raise self.mistake(
                f"each= and takes= of node '{self.name}' both name '{min(both)}'; leave one",
                "pipeline.parameter-taken-twice",
            )

    def when(self, function: Callable[..., object], parameters: Mapping[str, Parameter]) -> When:
        signature = self.signature(function, f"when= of node '{self.name}'")
        if inspect.iscoroutinefunction(function) or RUN_PARAMETER in signature:
            raise self.mistake(
                f"when= of node '{self.name}' must be a plain function of nodes and inputs; to ask "
                "a model, use a node",
                "pipeline.when-not-plain",
            )
        return When(
            function=function,
            parameters=tuple(
                # A name that the node has too means here what it means there: one item, say.
                parameters.get(p.name)
                or Parameter(name=p.name, source=p.name, is_mapped=False, default=p.default)
                for p in signature.values()
            ),
        )

    def signature(
        self, function: Callable[..., object], what: str
    ) -> Mapping[str, inspect.Parameter]:
        """The parameters, all of which can be given by name."""
        parameters = inspect.signature(function).parameters
        for parameter in parameters.values():
            if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
                raise self.mistake(
                    f"{what} takes {parameter}; an edge is a parameter name, so name them all",
                    "pipeline.parameter-without-name",
                )
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise self.mistake(
                    f"parameter '{parameter.name}' of {what} is positional-only; values are given "
                    "by name, so remove the '/'",
                    "pipeline.parameter-positional-only",
                )
        return parameters
