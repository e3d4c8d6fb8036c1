"""The wording of every coded message, in one file: `python tests/wording.py --write` makes it anew.

Messages are read from the source, so none is missed because no test makes it happen. A message
with a code is an error that is raised, a call with `code="area.name"`, what a rule of a diagnosis
has found, or a row of their table. What the program puts into it stands in braces.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from sources import PACKAGE, name_of, nodes_of

from harness import errors

WORDED = {"message", "what", "remedy", "seen", "meaning", "reason"}
SNAPSHOT = Path(__file__).with_name("wording.txt")
CLASSES = {
    name: one.code
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, errors.HarnessError)
}
OF_A_FILE = dict.fromkeys(("invalid", "_invalid", "unusable"), errors.ModelFileInvalid.code)
"""What makes an error of a model file: what is wrong is said last, behind the place."""


@cache
def wording() -> str:
    """A line for each message: its code, and its text."""
    found = {line for path in sorted(PACKAGE.rglob("*.py")) for line in _messages(path)}
    return "".join(f"{line}\n" for line in sorted(found))


def _messages(path: Path) -> Iterator[str]:
    nodes = nodes_of(path)
    called = {_last_name(node) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if isinstance(node, ast.Call) and (code := _code(node)) and (text := _text(node)):
            yield f"{code}: {text}"
        elif isinstance(node, ast.FunctionDef) and "Observation" in called:
            found = filter(_text, _calls(node, "Observation"))
            yield from (f"{_rule(node.name)}: {_text(one)}" for one in found)
        elif isinstance(node, ast.Call) and _last_name(node) == "rule" and len(node.args) > 1:
            said = [node.args[1], *(one.args[0] for one in _calls(node, "Remedy"))]
            if isinstance(code := node.args[0], ast.Constant):
                texts = (_template(one) for one in said if not isinstance(one, ast.Starred))
                yield from (f"{_rule(code.value)}: {text}" for text in texts)


def _rule(name: str) -> str:
    return f"diagnosis.{name.strip('_').replace('_', '-')}"


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node) == name:
            yield node


def _code(call: ast.Call) -> str | None:
    name = call.func.id if isinstance(call.func, ast.Name) else ""
    for keyword in call.keywords:
        if keyword.arg == "code":
            value = keyword.value
            return value.value if isinstance(value, ast.Constant) and value.value else None
    return CLASSES.get(name) or OF_A_FILE.get(_last_name(call))


def _text(call: ast.Call) -> str:
    named = [one.value for one in call.keywords if one.arg in WORDED]
    said = call.args[-1:] if _last_name(call) in OF_A_FILE else call.args[:1]
    return " | ".join(_template(one) for one in (*said, *named))


def _last_name(call: ast.Call) -> str:
    return name_of(call.func).rpartition(".")[2]


def _template(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value).replace("\n", "\\n")
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_template, node.values))
    if isinstance(node, ast.FormattedValue):
        return f"{{{_unparsed(node.value)}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left) + _template(node.right)
    return f"{{{_unparsed(node)}}}"


def _unparsed(node: ast.expr) -> str:
    # Since Python 3.12, quotes within an f-string are its own.
    return ast.unparse(node).replace('"', "'")


if __name__ == "__main__":
    if "--write" in sys.argv:
        SNAPSHOT.write_text(wording(), encoding="utf-8")
    else:
        sys.stdout.write(wording())
