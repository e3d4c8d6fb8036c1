"""What users may build on, in one file: `python tests/public_api.py --write` makes it anew.

For each name of `harness` and `harness.testing`: the parameters of functions; the fields,
properties and methods of classes with their types, and what they inherit within the package. It is
read from the source, so that every interpreter says the same.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

MODULES = ("harness", "harness.testing")
SNAPSHOT = Path(__file__).with_name("public_api.txt")
SPOKEN = {"__init__", "__call__", "__enter__", "__aenter__", "__iter__", "__aiter__", "__len__"}
"""Special methods that people call, by name or by syntax."""


def public_api() -> str:
    """A paragraph for each public name."""
    return "\n".join(
        "".join(f"{line}\n" for line in _described(f"{module}.{name}", getattr(found, name)))
        for module in MODULES
        for found in [import_module(module)]
        for name in sorted(found.__all__)
    )


def _described(name: str, value: object) -> Iterator[str]:
    if isinstance(value, type):
        made = "".join(f"@{ast.unparse(one)} " for one in _parsed(value).decorator_list)
        yield f"{made}class {name}({', '.join(base.__name__ for base in value.__bases__)})"
        seen: set[str] = set()
        for one in value.__mro__:
            if one.__module__.startswith("harness"):
                members = [*_members(_parsed(one))]
                yield from (f"    {line}" for name, line in members if name not in seen)
                seen.update(name for name, _ in members)
    elif inspect.isroutine(value):
        yield _signature(_parsed(value), name)
    elif isinstance(value, str):
        yield f"{name}: str"
    else:
        yield f"{name} = {value!r}"


def _parsed(value: object) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body  # type: ignore[arg-type]
    assert isinstance(tree, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    return tree


def _members(tree: ast.stmt) -> Iterator[tuple[str, str]]:
    """The name of each public member, and its line."""
    assert isinstance(tree, ast.ClassDef)
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") or name in SPOKEN:
                    yield name, _signature(node, name)
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                if not name.startswith("_") and name != "model_config":
                    yield name, ast.unparse(node)


def _signature(node: ast.stmt, name: str) -> str:
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    how = "".join(f"@{ast.unparse(one)} " for one in node.decorator_list)
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{how}{word} {name}({ast.unparse(node.args)}){returns}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        SNAPSHOT.write_text(public_api(), encoding="utf-8")
    else:
        sys.stdout.write(public_api())
