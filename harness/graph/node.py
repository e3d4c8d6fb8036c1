"""Nodes: the functions of a pipeline, and where what they take comes from."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Literal, get_args

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.policies import NO_POLICIES, Policies

Combine = Literal["zip", "product"]
"""How several mapped parameters go together: side by side, or each with each."""

RUN_PARAMETER = "run"
"""A parameter of this name receives the run; it is neither an edge nor an input."""

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """Something that a node takes."""

    name: str
    """As in the signature."""
    source: str
    """The node or input whose value it receives: its own name, unless `each` or `takes` says
    otherwise."""
    is_mapped: bool
    """Whether it receives one item of the source at a time."""
    default: object
    """`inspect.Parameter.empty` when there is none."""

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is _EMPTY


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """What decides whether a node is run."""

    function: Callable[..., object]
    """Plain; whatever it returns is taken as true or false."""
    parameters: tuple[Parameter, ...]
    """As those of a node."""

    @property
    def names(self) -> frozenset[str]:
        """What they are called."""
        return frozenset(one.name for one in self.parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A function, and where each of its parameters comes from."""

    name: str
    """What other nodes call it: the function's name, unless it was given another."""
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
    combine: Combine = "zip"
    """How its mapped parameters go together."""
    when: When | None = None
    """Whether it is run; always when None."""
    policies: Policies = NO_POLICIES
    """How its calls are made."""

    @property
    def is_mapped(self) -> bool:
        """Whether it runs once per item."""
        return any(parameter.is_mapped for parameter in self.parameters)

    @property
    def is_streaming(self) -> bool:
        """Whether it yields the items of its output one by one."""
        return inspect.isasyncgenfunction(inspect.unwrap(self.function))

    @property
    def sources(self) -> tuple[str, ...]:
        """The nodes and inputs that it needs, those of its `when` included."""
        return tuple(dict.fromkeys(one.source for one in self.everything_taken))

    @property
    def everything_taken(self) -> tuple[Parameter, ...]:
        """Its parameters, and those that its `when` has beside them."""
        own = {one.name: one for one in self.parameters}
        asked = {one.name: one for one in self.when.parameters} if self.when else {}
        return tuple((own | asked).values())

    def annotation(self, name: str) -> object:
        """The type that a parameter, or `return`, is annotated with; `object` when it is not.

        Of a parameter that its `when` alone has, that one's.

        Raises:
            PipelineInvalid: The annotation names something that does not exist.
        """
        function = inspect.unwrap(self.function)
        if self.when is not None and name in self.when.names - {p.name for p in self.parameters}:
            function = inspect.unwrap(self.when.function)
        try:
            return _annotation(function, name)
        except (NameError, AttributeError) as error:
            what = "what is returned" if name == "return" else f"'{name}'"
            raise PipelineInvalid(
                f"the annotation of {what} in node '{self.name}' cannot be resolved "
                f"({error}); import the name at run time, not only under TYPE_CHECKING",
                code="pipeline.annotation-unresolved",
                path=self.path,
                line=self.line,
            ) from error

    def moved(self, name: str, sources: Mapping[str, str], policies: Policies) -> Node:
        """The same in another graph.

        Args:
            name: What it is called there.
            sources: What its sources are called there, where it is not the same.
            policies: How its calls are made there.
        """

        def there(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
            return tuple(replace(p, source=sources.get(p.source, p.source)) for p in parameters)

        return replace(
            self,
            name=name,
            parameters=there(self.parameters),
            when=self.when
            and When(function=self.when.function, parameters=there(self.when.parameters)),
            policies=policies,
        )


def _annotation(function: Callable[..., object], name: str) -> object:
    # What a closure or an object holds, a whole run perhaps, is not ours to keep.
    if isinstance(function, FunctionType) and not function.__closure__:
        return _known_annotation(function, name)
    return _read_annotation(function, name)


def _read_annotation(function: Callable[..., object], name: str) -> object:
    annotations = inspect.get_annotations(function)
    if name not in annotations:
        return object
    # Of this one alone: nobody needs the others' types at run time.
    one = SimpleNamespace(__annotations__={name: annotations[name]})
    return typing.get_type_hints(one, function.__globals__, include_extras=True)[name]


# Many nodes of a large graph share a function.
_known_annotation = lru_cache(maxsize=1024)(_read_annotation)


def read_node(
    function: Callable[..., object],
    *,
    name: str | None = None,
    each: Mapping[str, str] | None = None,
    combine: Combine = "zip",
    takes: Mapping[str, str] | None = None,
    when: Callable[..., object] | None = None,
    policies: Policies | None = None,
) -> Node:
    """What a function's signature says about its place in a pipeline.

    Args:
        function: Plain or async, written with `def`.
        name: What the node is called; as the function when left out.
        each: For each mapped parameter, the node or input whose items it receives.
        combine: How mapped parameters go together.
        takes: For other parameters, the node or input whose value they receive.
        when: Decides whether the node is run, from parameters of its own.
        policies: How its calls are made.

    Raises:
        PipelineInvalid: It is no such function, its signature cannot be a node's, or `each` or
            `takes` names no parameter of it.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        raise PipelineInvalid(
            f"{function!r} cannot be a node, since it has no signature to read names from; wrap it "
            "in a function written with def",
            code="pipeline.node-without-signature",
        )
    chosen = function.__name__ if name is None else name
    path, line = Path(code.co_filename), code.co_firstlineno
    if chosen == RUN_PARAMETER:
        raise PipelineInvalid(
            f"a node cannot be called '{chosen}', since a parameter of that name receives the run; "
            "rename the function",
            code="pipeline.node-name-reserved",
            path=path,
            line=line,
        )
    if not chosen.isidentifier():
        raise PipelineInvalid(
            f"a node cannot be called {chosen!r}, since a parameter could not bear that name; give "
            "it another: name=…",
            code="pipeline.node-name-invalid",
            path=path,
            line=line,
        )
    policies = policies or NO_POLICIES
    if (mistake := _mistake(each, takes, combine) or policies.mistake()) is not None:
        raise PipelineInvalid(
            f"node '{chosen}': {mistake}", code="pipeline.option-invalid", path=path, line=line
        )
    signature = _named_parameters(function, f"node '{chosen}'", path, line)
    mapped, taken = dict(each or {}), dict(takes or {})
    own = [p for p in signature if p != RUN_PARAMETER]
    for option, names in (("each", mapped), ("takes", taken)):
        for parameter in names:
            if parameter not in own:
                raise PipelineInvalid(
                    f"{option}= of node '{chosen}' names '{parameter}', which is not a parameter "
                    f"that takes a value; {did_you_mean(parameter, own)}",
                    code="pipeline.unknown-parameter",
                    path=path,
                    line=line,
                )
    if both := mapped.keys() & taken.keys():
        raise PipelineInvalid(
            f"each= and takes= of node '{chosen}' both say where '{min(both)}' is from; leave one",
            code="pipeline.parameter-taken-twice",
            path=path,
            line=line,
        )
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
        path=path,
        line=line,
        combine=combine,
        when=None if when is None else _read_when(when, chosen, parameters, path, line),
        policies=policies,
    )


def _mistake(each: object, takes: object, combine: object) -> str | None:
    for option, value in (("each", each), ("takes", takes)):
        if not isinstance(value, Mapping | None):
            return f'{option}={value!r} names no parameter; write {{"parameter": "source"}}'
    if combine not in get_args(Combine):
        return f'combine={combine!r} is no way to combine lists; write "zip" or "product"'
    return None


def _read_when(
    function: Callable[..., object],
    node: str,
    parameters: Mapping[str, Parameter],
    path: Path,
    line: int,
) -> When:
    signature = _named_parameters(function, f"when= of node '{node}'", path, line)
    if inspect.iscoroutinefunction(function) or RUN_PARAMETER in signature:
        raise PipelineInvalid(
            f"when= of node '{node}' must be a plain function of nodes and inputs; what has to ask "
            "a model is a node of its own",
            code="pipeline.when-not-plain",
            path=path,
            line=line,
        )
    return When(
        function=function,
        parameters=tuple(
            # A name that the node has too means there what it means to the node: one item, say.
            parameters.get(p.name)
            or Parameter(name=p.name, source=p.name, is_mapped=False, default=p.default)
            for p in signature.values()
        ),
    )


def _named_parameters(
    function: Callable[..., object], what: str, path: Path, line: int
) -> Mapping[str, inspect.Parameter]:
    """A signature's parameters, all of which can be given by name."""
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise PipelineInvalid(
                f"{what} takes {parameter}; an edge is a parameter name, so name them all",
                code="pipeline.parameter-without-name",
                path=path,
                line=line,
            )
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise PipelineInvalid(
                f"parameter '{parameter.name}' of {what} is positional-only; values are given by "
                "name, so remove the '/'",
                code="pipeline.parameter-positional-only",
                path=path,
                line=line,
            )
    return parameters
