"""Functions as text that stays the same wherever they are written, and under every Python.

The text is written from the source's syntax tree, without lines, comments, docstrings and
annotations. If the source is missing, or differs from the compiled code (a
file edited since, a cell of a closed notebook), the text is the bytecode, which depends on the
version of Python and counts docstrings too.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import threading
import tokenize
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from types import CodeType

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# Fields that do not change what code does, or follow from where the node is (`ctx`).
_NOT_SAID = frozenset({"ctx", "kind", "type_comment", "type_params", "simple"})
_READ_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """An import statement inside a function."""

    module: str
    """Empty in `from . import x`."""
    level: int
    """The number of leading dots."""
    names: tuple[str, ...]
    """Imported from there; they may be modules too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeText:
    """A function as text, functions inside it included."""

    text: str
    """Its statements, or its bytecode."""
    reads: tuple[tuple[str, ...], ...]
    """The global names that it reads, each with the attributes read from it:
    `("prompts", "SYSTEM")`. In bytecode, all names that may be global."""
    imports: tuple[Import, ...]


@functools.lru_cache(maxsize=4096)
def code_text(code: CodeType) -> CodeText:
    """A function as text, and what it refers to."""
    try:
        # Before `linecache`, which may have an older text; but only that has notebooks' cells.
        with tokenize.open(code.co_filename) as file:
            source = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        source = "".join(linecache.getlines(code.co_filename))
    functions, compiled = _parsed(source)
    if code not in compiled:
        return _compiled_text(code)
    # Several lambdas on one line cannot be distinguished, so all of them count.
    nodes = functions[code.co_firstlineno, code.co_name]
    writer = _Writer(outer=_global_names(code))
    try:
        for node in nodes:
            writer.add_function(node)
    except RecursionError:
        return _compiled_text(code)
    return CodeText(
        text="\n".join(writer.words), reads=tuple(writer.reads), imports=tuple(writer.imports)
    )


_MAKING_TREES = threading.Lock()


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> tuple[Mapping[tuple[int, str], list[_Function]], Set[CodeType]]:
    """A file's functions, as source by line and name, and as compiled code."""
    functions: dict[tuple[int, str], list[_Function]] = {}
    compiled: set[CodeType] = set()
    try:
        # Two threads that make trees at once disturb each other in CPython 3.11 (a SystemError).
        with _MAKING_TREES, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
            # Code is equal whatever its file is called; this module's `from __future__`, inherited,
            # would leave a flag in it that the user's has not.
            waiting = [compile(source, "", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return functions, compiled
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            name = getattr(node, "name", "<lambda>")
            # Code begins, by its `co_firstlineno`, at its first decorator.
            first = (*getattr(node, "decorator_list", ()), node)[0]
            functions.setdefault((first.lineno, name), []).append(node)
    while waiting:
        inner = [constant for constant in waiting.pop().co_consts if isinstance(constant, CodeType)]
        waiting += inner
        compiled.update(code for code in inner if (code.co_firstlineno, code.co_name) in functions)
    return functions, compiled


class _Writer:
    """Walks a function's syntax tree and writes its text.

    `outer` has the global names that it reads.
    """

    def __init__(self, *, outer: Set[str]) -> None:
        self.words: list[str] = []
        self.reads: dict[tuple[str, ...], None] = {}
        self.imports: dict[Import, None] = {}
        self._outer = outer

    def add_function(self, node: _Function) -> None:
        """A function, without its name, decorators and defaults."""
        self.words.append(type(node).__name__)
        for kind in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            parameters = getattr(node.args, kind)
            names = [
                parameter.arg
                for parameter in (parameters if isinstance(parameters, list) else [parameters])
                if parameter
            ]
            self.words.append(f"{kind} {names}")
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())), *body]:  # a docstring
                self._add(body)
            case _:
                self._add(node.body)

    def _add(self, value: object, *, in_class: bool = False) -> None:
        match value:
            case ast.Name() | ast.Attribute() if path := self._path(value):
                self.words.append(f"name {'.'.join(path)}")
                self.reads[path] = None
            case ast.Constant():
                self.words.append(f"{type(value.value).__name__} {value.value!r}")
            case ast.JoinedStr(values=values):  # in which Python 3.12 has empty texts too
                self.words.append("JoinedStr")
                self._add([value for value in values if getattr(value, "value", None) != ""])
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                self.words.append(getattr(value, "name", ""))
                self._add(getattr(value, "decorator_list", []))
                self._add([*value.args.defaults, "*", *value.args.kw_defaults])
                self.add_function(value)
            case ast.ClassDef():
                self._add([value.name, value.decorator_list, value.bases, value.keywords])
                for statement in value.body:
                    self._add(statement, in_class=True)
            # In a class, annotations are its fields; elsewhere only the value does something.
            case ast.AnnAssign() if not in_class:
                if value.value is not None:
                    self._add(ast.Assign(targets=[value.target], value=value.value))
            case ast.AST():
                self._add_node(value)
            case list():
                self.words.append(f"list {len(value)}")
                for item in value:
                    self._add(item)
            case _:
                self.words.append(repr(value))

    def _add_node(self, node: ast.AST) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    self.imports[Import(module=alias.name, level=0, names=())] = None
            case ast.ImportFrom(module=module, level=level):
                names = tuple(alias.name for alias in node.names)
                self.imports[Import(module=module or "", level=level, names=names)] = None
        self.words.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if value not in (None, []) and name not in _NOT_SAID:
                self.words.append(name)
                self._add(value)

    def _path(self, node: ast.expr) -> tuple[str, ...]:
        """A global name that is read, with the attributes read from it; empty for other nodes."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in self._outer:
                return (name,)
            case ast.Attribute(value=inner, attr=attribute) if path := self._path(inner):
                return *path, attribute
            case _:
                return ()


def _global_names(code: CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _READ_GLOBALS}
    return names.union(*(_global_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _compiled_text(code: CodeType) -> CodeText:
    codes, words = [code], ["bytecode"]
    reads: list[tuple[str, ...]] = []
    imports: dict[Import, None] = {}
    for part in codes:  # which grows meanwhile
        constants = [c for c in part.co_consts if not isinstance(c, CodeType)]
        codes += [c for c in part.co_consts if isinstance(c, CodeType)]
        # Every second of them: `co_argcount` includes the positional-only parameters.
        counts = part.co_argcount, part.co_posonlyargcount, part.co_kwonlyargcount, part.co_flags
        words += [
            repr((counts, part.co_varnames[: sum(counts[::2])], part.co_freevars, part.co_names)),
            f"{part.co_code.hex()} {part.co_exceptiontable.hex()}",
            *map(_constant, constants),
        ]
        reads += [(name,) for name in part.co_names]
        instructions = [*dis.get_instructions(part)]
        for index, instruction in enumerate(instructions):
            if instruction.opname == "IMPORT_NAME":
                # `IMPORT_NAME` takes the two values that the instructions before it load.
                level, names = (before.argval for before in instructions[index - 2 : index])
                imports[Import(module=instruction.argval, level=level, names=names or ())] = None
    return CodeText(text="\n".join(words), reads=tuple(reads), imports=tuple(imports))


def _constant(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, frozenset):  # in no order that the next process would repeat
        return f"{{{', '.join(sorted(map(_constant, value)))}}}"
    return repr(value)
