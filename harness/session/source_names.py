"""What names in a function's source stand for, as far as that is the same in every call."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Final

UNKNOWN: Final = object()
"""Stands for a value that cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a function's parameters are, as far as can be told before it is called."""

    runs: frozenset[str]
    """Those that are the run."""
    constants: Mapping[str, object] = field(default_factory=dict)
    """The values of others."""
    inputs: frozenset[str] = frozenset()
    """Those of `constants` that are defaults, in place of which something else may be given."""


class Names:
    """Those of one function.

    Args:
        function: Whose source is read.
        bound: What its parameters are.
    """

    def __init__(self, function: FunctionType, bound: Bound) -> None:
        self._bound = bound
        code = function.__code__
        self._locals = {*code.co_varnames, *code.co_cellvars}
        self._outer = {**function.__globals__, **_closure(function)}

    def is_run(self, part: ast.AST) -> bool:
        """Whether it is the run's name, and no more."""
        return isinstance(part, ast.Name) and part.id in self._bound.runs

    def is_input(self, part: ast.AST | None) -> bool:
        """Whether it is a parameter's name, of which no more than the default is known."""
        return isinstance(part, ast.Name) and part.id in self._bound.inputs

    def takes_run(self, definition: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a function inside this one calls a parameter as the run is called here."""
        given = definition.args
        names = {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
        return not names.isdisjoint(self._bound.runs)

    def constant(self, part: ast.expr | None) -> object:
        """The value of a literal, of a parameter, or of a name of the module."""
        if isinstance(part, ast.Constant):
            return part.value
        if isinstance(part, ast.Name) and part.id in self._bound.constants:
            return self._bound.constants[part.id]
        return self.value(part)

    def value(self, part: ast.expr | None) -> object:
        """What a name of the module stands for, or an attribute of a module that is imported."""
        if isinstance(part, ast.Name) and part.id not in self._locals:
            return self._outer.get(part.id, UNKNOWN)
        if isinstance(part, ast.Attribute):
            module = self.value(part.value)
            if isinstance(module, ModuleType):
                return vars(module).get(part.attr, UNKNOWN)
        return UNKNOWN

    def bound_by(self, call: ast.Call, function: FunctionType) -> Bound | None:
        """What a call makes of a function's parameters; None where that cannot be told.

        Args:
            call: In this function, with the run among its arguments.
            function: What it calls.
        """
        if any(isinstance(one, ast.Starred) for one in call.args):
            return None
        signature = inspect.signature(function)
        named = {one.arg: one.value for one in call.keywords if one.arg}
        try:
            given = signature.bind_partial(*call.args, **named).arguments
        except TypeError:
            return None
        # What `*args` and `**others` take up is no single expression.
        single = {name: one for name, one in given.items() if isinstance(one, ast.expr)}
        runs = frozenset(name for name, one in single.items() if self.is_run(one))
        defaults = {
            name: one.default for name, one in signature.parameters.items() if name not in given
        }
        constants = {name: self.constant(one) for name, one in single.items()}
        return Bound(runs=runs, constants=defaults | constants) if runs else None


def argument(call: ast.Call, name: str, *, place: int | None = None) -> ast.expr | None:
    """An argument by its name or place; None where it is not given, or in a `*` or `**`."""
    if place is not None and place < len(call.args):
        return None if isinstance(call.args[place], ast.Starred) else call.args[place]
    return next((one.value for one in call.keywords if one.arg == name), None)


def _closure(function: FunctionType) -> dict[str, object]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    found = {}
    for name, cell in cells:
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing yet
            found[name] = UNKNOWN
    return found
