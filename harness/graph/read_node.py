"""What a function's signature says about its place in a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

from harness.errors import PipelineInvalid, did_you_mean
from harness.graph.node import RUN_PARAMETER, Combine, Node, Parameter, When
from harness.graph.policies import NO_POLICIES, Policies


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
