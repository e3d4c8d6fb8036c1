"""Compiled functions as text that stays the same wherever they are written.

Instructions with their constants and names in place; without lines, docstrings and the names of
local variables.
"""

from __future__ import annotations

import dis
import functools
import inspect
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

# They do nothing, or stand there because of how far away something else is, or which line it is on.
_NO_INSTRUCTIONS = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME"})
_READ_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READ_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})
_CONSTANTS, _NAMES = frozenset(dis.hasconst), frozenset(dis.hasname)
_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An import statement inside a function."""

    module: str
    """Which it names; empty in `from . import x`."""
    level: int
    """How many dots stand before it."""
    names: tuple[str, ...]
    """What it takes from there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeText:
    """What a compiled function says, functions inside it included."""

    text: str
    """Its instructions."""
    reads: tuple[tuple[str, ...], ...]
    """The global names that it reads, each with the attributes read of it at once:
    `("prompts", "SYSTEM")`."""
    imports: tuple[Import, ...]
    """What it imports itself."""


@functools.lru_cache(maxsize=4096)
def code_text(code: CodeType) -> CodeText:
    """A compiled function as text, and what it refers to."""
    bytecode: Any = dis.Bytecode(code)  # typeshed leaves its exception_entries out
    instructions = [i for i in bytecode if i.opname not in _NO_INSTRUCTIONS]
    place = functools.partial(bisect_left, [instruction.offset for instruction in instructions])
    arguments = code.co_argcount + code.co_kwonlyargcount
    arguments += bool(code.co_flags & inspect.CO_VARARGS)
    arguments += bool(code.co_flags & inspect.CO_VARKEYWORDS)
    counts = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
    names = code.co_varnames[:arguments], code.co_freevars
    lines = [f"code {counts} {code.co_flags & _FLAGS} {names}"]
    lines += [
        f"try {place(entry.start)} {place(entry.end)} {place(entry.target)} {entry.depth}"
        for entry in bytecode.exception_entries
    ]
    reads: dict[tuple[str, ...], None] = {}
    imports: dict[Import, None] = {}
    for index, instruction in enumerate(instructions):
        value = instruction.argval
        if isinstance(value, CodeType):
            inner = code_text(value)
            lines.append(inner.text)
            reads |= dict.fromkeys(inner.reads)
            imports |= dict.fromkeys(inner.imports)
        elif instruction.opcode in _CONSTANTS:
            lines.append(f"{instruction.opname} {_constant(value)}")
        elif instruction.opcode in _JUMPS:
            lines.append(f"{instruction.opname} to {place(value)}")
        elif instruction.opcode in _NAMES:
            if value == "__firstlineno__":  # Python 3.13 keeps it in the body of a class
                lines[-1] = "a line"
            lines.append(f"{instruction.opname} {value}")
        else:
            lines.append(f"{instruction.opname} {instruction.arg}")
        if instruction.opname in _READ_GLOBALS:
            reads[value, *_attributes_after(instructions, index)] = None
        elif instruction.opname == "IMPORT_NAME":
            level, taken = (before.argval for before in instructions[index - 2 : index])
            imports[Import(module=value, level=level, names=taken or ())] = None
    return CodeText(text="\n".join(lines), reads=tuple(reads), imports=tuple(imports))


def _attributes_after(instructions: list[dis.Instruction], index: int) -> Iterator[str]:
    for instruction in instructions[index + 1 :]:
        if instruction.opname not in _READ_ATTRIBUTES:
            return
        yield instruction.argval


def _constant(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):  # in no order that the next process would repeat
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return repr(value)
