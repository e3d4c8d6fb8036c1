"""Checks of the Python in a draft: whether it parses, and whether it is written out."""

from __future__ import annotations

import ast
import builtins
import io
import re
import textwrap
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.rubric.checks.base import Check, Grade, quoted, share_without
from harness.rubric.draft import Draft, Finding

_LABELS = {"py", "python", "python3"}

NO_PYTHON = Grade(1.0, unjudged="there is no Python in it")


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonBlock:
    """One fence labelled as Python."""

    index: int
    """The index of its section in `draft.sections`."""
    code: str
    """Dedented; an interactive session (`>>> `) without the lines that it printed."""
    tree_or_fault: ast.Module | str
    """The tree, or why the code does not parse."""


def python_blocks(draft: Draft) -> Iterator[PythonBlock]:
    """The draft's fences labelled `python` or `py`, in order."""
    for index, _, fence in draft.fences:
        if fence.language in _LABELS:
            code = _typed(textwrap.dedent(fence.code))
            yield PythonBlock(index=index, code=code, tree_or_fault=_parse(code))


class ParsesAsPython(Check):
    """Every fence labelled `python` or `py` holds Python that parses; it is never run.

    A draft without one is not judged.
    """

    check: Literal["python"] = "python"

    asks: ClassVar[str] = "Every fence labelled python holds whole, valid Python."

    def grade(self, draft: Draft) -> Grade:
        """The share of fences that parse."""
        blocks = list(python_blocks(draft))
        if not blocks:
            return NO_PYTHON
        findings = [
            draft.finding(
                f"this Python does not parse: {block.tree_or_fault}",
                block.index,
                code="check.python-invalid",
            )
            for block in blocks
            if isinstance(block.tree_or_fault, str)
        ]
        return Grade(share_without(findings, len(blocks)), tuple(findings))


def _typed(code: str) -> str:
    """The lines that were typed in an interactive session; any other code as it is."""
    lines = code.splitlines()
    first_line = next((line for line in lines if line.strip()), "")
    if not first_line.startswith(">>>"):
        return code
    # What the session printed stands between the lines, and is no Python.
    return "\n".join(line[4:] for line in lines if line.startswith((">>>", "...")))


def _parse(code: str) -> ast.Module | str:
    try:
        with warnings.catch_warnings():
            # A needless backslash in a draft must not warn here.
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except SyntaxError as error:
        lines = code.splitlines()
        line = error.lineno or 0
        excerpt = quoted(lines[line - 1]) if 0 < line <= len(lines) else "its end"
        return f"{error.msg}, at line {line} of the block, {excerpt}"
    # Half a surrogate pair, a null byte, a number of 5,000 digits.
    except ValueError as error:
        return f"it holds what Python cannot read ({error})"
    except (RecursionError, MemoryError):
        return "it is nested too deeply"


_MARK = re.compile(r"#\W*(?:\b(?:TODO|FIXME|XXX)\b|\.\.\.|\u2026)|\b(?:TODO|FIXME|XXX)\b")
# Functions under these decorators are declarations, whose text is elsewhere or nowhere.
_DECLARES = {
    *("abstractmethod", "abstractproperty", "overload"),
    *("singledispatch", "singledispatchmethod"),
    *("group", "hookspec"),
}

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class NoStubs(Check):
    """No function in a fence labelled `python` or `py` is left to be written.

    Stubs are functions whose text is only `pass`, `...`, `raise NotImplementedError`, a docstring,
    or several of these: not abstract methods, protocols, overloads. Comments that say TODO, FIXME,
    XXX or `...` count as stubs too. Code that does not parse is left to the check `python`.
    """

    check: Literal["no_stubs"] = "no_stubs"

    asks: ClassVar[str] = "All code is written out: no stubs, placeholders or TODO comments."

    def grade(self, draft: Draft) -> Grade:
        """The share of the blocks that parse without a stub."""
        findings = []
        faulty = total = 0
        for block in python_blocks(draft):
            if not isinstance(block.tree_or_fault, str):
                faults = [*_stubs(block.tree_or_fault), *_placeholders(block.code)]
                total += 1
                faulty += bool(faults)
                findings += [draft.finding(f.message, block.index, code=f.code) for f in faults]
        return Grade(1 - faulty / total, tuple(findings)) if total else NO_PYTHON


def _stubs(tree: ast.Module) -> Iterator[Finding]:
    # Methods of a `Protocol` may be stubs. `ast.walk` meets a class before its methods.
    exempt: set[ast.AST] = set()
    for node in ast.walk(tree):
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


def _placeholders(code: str) -> Iterator[Finding]:
    # First, since cutting code into tokens takes longer than all the rest.
    if not _MARK.search(code):
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT and _MARK.search(token.string):
                yield Finding(
                    f"do what the comment {quoted(token.string)} asks, and remove it",
                    code="check.placeholder",
                )
    except (tokenize.TokenError, SyntaxError):
        # Some code that parses, such as one that ends in a backslash, has no end to tokenize.
        return
