"""The package's modules as syntax trees, parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import harness

PACKAGE = Path(harness.__file__).parent


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file, its module first."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def name_of(node: ast.expr) -> str:
    """A name with its dots; empty for what is none, such as the result of a call."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
