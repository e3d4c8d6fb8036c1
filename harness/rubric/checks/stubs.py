"""Placeholders in place of code: empty functions, TODO comments, calls of what nobody wrote."""

from __future__ import annotations

import ast
import builtins
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from harness.rubric.checks.check import Check, Grade, quoted
from harness.rubric.checks.python import NO_PYTHON, PythonBlock, python_blocks
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

_MARK = re.compile(r"#\W*(?:\b(?:TODO|FIXME|XXX)\b|\.\.\.|\u2026)|\b(?:TODO|FIXME|XXX)\b")
# Functions under these decorators are declarations, whose text is elsewhere or nowhere.
_DECLARES = {
    *("abstractmethod", "abstractproperty", "overload"),
    *("singledispatch", "singledispatchmethod"),
    *("group", "hookspec"),
}
_ALWAYS_THERE = {*dir(builtins), "__name__", "__file__", "__doc__"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class NoStubs(Check):
    """No function in a fence labelled `python` or `py` is left to be written.

    Stubs are functions whose text is only `pass`, `...`, `raise NotImplementedError`, a docstring,
    or several of these: not abstract methods, protocols, overloads. So are comments that say TODO,
    FIXME, XXX or `...`, and several calls, in one block, of functions that neither the draft nor
    Python defines. Code that does not parse is the business of the check `python`, and not judged.
    """

    check: Literal["no_stubs"] = "no_stubs"
    undefined_calls: int = Field(default=2, ge=1)
    """From how many statements in one block that only call an unknown function
    (`do_something()`) these count; fewer may rest on what the text around them says."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return "All code is written out: no stubs, placeholders or TODO comments."

    def grade(self, draft: Draft) -> Grade:
        """The share of blocks of Python without any."""
        blocks = [
            (block, list(ast.walk(block.tree)))
            for block in python_blocks(draft)
            if block.tree is not None
        ]
        if not blocks:
            return NO_PYTHON
        known = _names_bound(node for _, nodes in blocks for node in nodes)
        findings = []
        faulty = 0
        for block, nodes in blocks:
            faults = [*_stubs(nodes), *_marks(block), *self._undefined_calls(nodes, known)]
            faulty += bool(faults)
            title, index = block.section.title, block.index
            findings += [replace(fault, section=title, section_index=index) for fault in faults]
        return Grade(1 - faulty / len(blocks), tuple(findings))

    def _undefined_calls(self, nodes: Sequence[ast.AST], known: set[str] | None) -> list[Finding]:
        if known is None:
            return []
        called = [
            node.value.func.id
            for node in nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id not in known
        ]
        if len(called) < self.undefined_calls:
            return []
        return [
            Finding(f"define `{name}`, which is only called", code="check.undefined-call")
            for name in dict.fromkeys(called)
        ]


def _stubs(nodes: Sequence[ast.AST]) -> Iterator[Finding]:
    # A class's functions are met twice, and only the class knows what it is.
    exempt: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.ClassDef) and any(_last_name(b) == "Protocol" for b in node.bases):
            exempt.update(node.body)
        if isinstance(node, _Function) and node not in exempt and _is_stub(node):
            yield Finding(
                f"write out the function `{node.name}`, which is a stub", code="check.stub"
            )


def _is_stub(function: _Function) -> bool:
    declared = any(_last_name(decorator) in _DECLARES for decorator in function.decorator_list)
    return not declared and all(_says_nothing(statement) for statement in function.body)


def _says_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant(value=str() | builtins.Ellipsis)):
            return True
        case ast.Raise(exc=ast.expr() as raised):
            return _last_name(raised) == "NotImplementedError"
    return False


def _last_name(node: ast.expr) -> str:
    """`overload` of `typing.overload`, `Protocol` of `Protocol[T]`, `group` of `click.group()`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_name(inner)
    return ""


def _marks(block: PythonBlock) -> Iterator[Finding]:
    for comment in _comments(block.code):
        if _MARK.search(comment):
            yield Finding(
                f"do what the comment {quoted(comment)} leaves to be done, and remove it",
                code="check.placeholder",
            )


def _comments(code: str) -> Iterator[str]:
    if not _MARK.search(code):  # to cut it into tokens takes longer than all the rest
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                yield token.string
    except (tokenize.TokenError, SyntaxError):
        # Some code that parses, such as one that ends in a backslash, has no end to tokenize.
        return


def _names_bound(nodes: Iterable[ast.AST]) -> set[str] | None:
    """Every name that some block binds, and Python's own; None when a `*` was imported."""
    bound = set(_ALWAYS_THERE)
    for node in nodes:
        match node:
            case ast.alias(name="*"):
                return None
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                bound.add(name)
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                bound.add(name)
    return bound
