"""Every supported Python reads the package's regular expressions alike.

CPython before 3.11.5 matches a possessive repeat of a group wrongly, as `(?:(?!")[^\\n])++`: it
takes one character too many (python/cpython#106052). An atomic group, `(?>(?:...)+)`, means the
same and is right everywhere. CPython 3.14 lets `\\B` match in an empty string.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from re import _constants, _parser  # the standard library's own reading of a pattern

import orjson
from sources import PACKAGE, name_of, nodes_of

_SINGLE = {
    _constants.ANY,
    _constants.IN,
    _constants.LITERAL,
    _constants.NOT_LITERAL,
    _constants.RANGE,
}

# Imports every module while `re` is watched: a pattern may be made of parts.
_COLLECT = """
import importlib, json, os, pkgutil, re, sys
from re import _compiler
package, patterns, compile_ = sys.argv[1], {}, _compiler.compile
def watched(pattern, flags=0):
    frame = sys._getframe(1)
    while frame.f_code.co_filename == re.__file__:
        frame = frame.f_back
    if frame.f_code.co_filename.startswith(package + os.sep) and isinstance(pattern, str):
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        patterns.setdefault(place, []).append((pattern, int(flags)))
    return compile_(pattern, flags)
_compiler.compile = watched
import harness
for module in pkgutil.walk_packages(harness.__path__, "harness."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as missing:
            if missing.name.startswith("harness"):
                raise
json.dump(patterns, sys.stdout)
"""


def of_modules() -> Iterator[tuple[str, str, int]]:
    """Place, pattern and flags of what is compiled when the package is imported."""
    printed = subprocess.run(
        [sys.executable, "-c", _COLLECT, str(PACKAGE)], capture_output=True, check=True
    ).stdout
    for place, patterns in orjson.loads(printed).items():
        yield from ((place, pattern, flags) for pattern, flags in patterns)


def of_functions() -> Iterator[tuple[str, str, int]]:
    """The same of literals that a function gives to `re`."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and name_of(node.func).startswith("re.") and node.args:
                pattern = node.args[0]
                if isinstance(pattern, ast.Constant) and isinstance(pattern.value, str):
                    yield f"{path}:{node.lineno}", pattern.value, 0


def misread(pattern: str, flags: int = 0) -> list[str]:
    """The constructs in a pattern that one supported Python reads otherwise than another."""
    return [*_misread(_parser.parse(pattern, flags))]


def _misread(parts: _parser.SubPattern) -> Iterator[str]:
    for construct, argument in parts:
        if construct is _constants.POSSESSIVE_REPEAT and not _is_single(argument[2]):
            yield "possessive repeat of a group"
        if argument is _constants.AT_NON_BOUNDARY:
            yield r"\B"
        yield from _misread_below(argument)


def _misread_below(argument: object) -> Iterator[str]:
    if isinstance(argument, _parser.SubPattern):
        yield from _misread(argument)
    elif isinstance(argument, tuple | list):
        for part in argument:
            yield from _misread_below(part)


def _is_single(repeated: _parser.SubPattern) -> bool:
    return len(repeated) == 1 and repeated[0][0] in _SINGLE


def test_no_pattern_of_the_package_is_read_differently_by_a_supported_python():
    patterns = [*of_modules(), *of_functions()]

    assert len(patterns) > 100
    assert [(p, why) for p, pattern, flags in patterns if (why := misread(pattern, flags))] == []
