"""Functions as text that stays the same wherever they are written, and under every Python.

The text is written from the source's syntax tree, without lines, comments, docstrings and
annotations. If the source is missing, or differs from the compiled code (a file edited since, a
cell of a closed notebook), the text is the bytecode, which depends on the version of Python and
has docstrings too.
"""

from __future__ import annotations

import ast
import dis
import functools
import linecache
import threading
import tokenize
import warnings
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from itertools import chain
from types import CodeType

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
# Fields of syntax nodes that do not change what code does, or follow from the place (`ctx`).
_IGNORED_FIELDS = frozenset({"ctx", "kind", "type_comment", "type_params", "simple"})
_READ_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeText:
    """A function as text, functions inside it included."""

    text: str
    """Its statements, or its bytecode."""
    reads: tuple[tuple[str, ...], ...]
    """The global names that it reads, each with the attributes read from it:
    `("prompts", "SYSTEM")`. In bytecode, all names that may be global."""
    imports: tuple[str, ...]
    """The modules that it imports, and the names that it imports from them, which may be modules
    too: `("prompts", "prompts.SYSTEM")`. A relative import begins with dots."""


@functools.lru_cache(maxsize=4096)
def code_text(code: CodeType) -> CodeText:
    """The text of a compiled function, with the names that it reads and its imports."""
    try:
        # Not `linecache` first, which may have an older text of a file that was edited.
        with tokenize.open(code.co_filename) as file:
            source = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        # Only `linecache` has the cells of a notebook.
        source = "".join(linecache.getlines(code.co_filename))
    nodes_by_place, compiled = _parsed(source)
    if code not in compiled:
        return _bytecode_text(code)
    writer = _Writer(global_names=global_names(code))
    try:
        # Several lambdas on one line cannot be distinguished, so all of them count.
        for node in nodes_by_place[code.co_firstlineno, code.co_name]:
            writer.add_function(node)
    except RecursionError:
        return _bytecode_text(code)
    return CodeText(
        text="\n".join(writer.words),
        reads=tuple(writer.reads),
        imports=tuple(chain.from_iterable(writer.imports)),
    )


_PARSER_LOCK = threading.Lock()


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> tuple[Mapping[tuple[int, str], list[_Function]], Set[CodeType]]:
    """A file's functions: their syntax nodes by first line and name, and their compiled code."""
    nodes_by_place: dict[tuple[int, str], list[_Function]] = {}
    compiled: set[CodeType] = set()
    try:
        # Two threads that make trees at once disturb each other in CPython 3.11 (a SystemError).
        with _PARSER_LOCK, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
            # Code objects are equal whatever file they name. Without `dont_inherit`, this module's
            # `from __future__ import` would set a flag in this code that the user's code has not.
            unvisited = [compile(source, "", "exec", dont_inherit=True)]
    except (SyntaxError, ValueError, RecursionError):
        return nodes_by_place, compiled
    for node in ast.walk(tree):
        if isinstance(node, _Function):
            name = getattr(node, "name", "<lambda>")
            # `co_firstlineno` of a decorated function is the line of its first decorator.
            first = (*getattr(node, "decorator_list", ()), node)[0]
            nodes_by_place.setdefault((first.lineno, name), []).append(node)
    while unvisited:
        for code in unvisited.pop().co_consts:
            if isinstance(code, CodeType):
                unvisited.append(code)
                if (code.co_firstlineno, code.co_name) in nodes_by_place:
                    compiled.add(code)
    return nodes_by_place, compiled


class _Writer:
    """Walks a function's syntax tree and writes its text."""

    def __init__(self, *, global_names: Set[str]) -> None:
        self.words: list[str] = []
        # Ordered sets, as dictionaries without values.
        self.reads: dict[tuple[str, ...], None] = {}
        self.imports: dict[tuple[str, ...], None] = {}
        self._global_names = global_names  # that the function reads

    def add_function(self, node: _Function) -> None:
        """Writes a function, without its name, decorators and defaults."""
        self.words.append(type(node).__name__)
        arguments = node.args
        for kind, parameters in (
            ("posonlyargs", arguments.posonlyargs),
            ("args", arguments.args),
            ("vararg", [arguments.vararg]),
            ("kwonlyargs", arguments.kwonlyargs),
            ("kwarg", [arguments.kwarg]),
        ):
            names = [parameter.arg for parameter in parameters if parameter is not None]
            self.words.append(f"{kind} {names}")
        match node.body:
            case [ast.Expr(value=ast.Constant(value=str())), *body]:  # a docstring
                self._add(body)
            case _:
                self._add(node.body)

    def _add(self, value: object, *, in_class: bool = False) -> None:
        """Writes a syntax node, a list of nodes, or a field's plain value."""
        match value:
            case ast.Name() | ast.Attribute() if path := self._path(value):
                self.words.append(f"name {'.'.join(path)}")
                self.reads[path] = None
            case ast.Constant():
                self.words.append(f"{type(value.value).__name__} {value.value!r}")
            case ast.JoinedStr(values=values):
                self.words.append("JoinedStr")
                # Python 3.12 has empty texts here that other versions do not have.
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
                    self.imports[alias.name,] = None
            case ast.ImportFrom(module=module, level=level):
                names = [alias.name for alias in node.names]
                self.imports[_imported(level, module, names)] = None
        self.words.append(type(node).__name__)
        for name, value in ast.iter_fields(node):
            if value not in (None, []) and name not in _IGNORED_FIELDS:
                self.words.append(name)
                self._add(value)

    def _path(self, node: ast.expr) -> tuple[str, ...]:
        """A global name that is read, with the attributes read from it; empty for other nodes."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in self._global_names:
                return (name,)
            case ast.Attribute(value=inner, attr=attribute) if path := self._path(inner):
                return *path, attribute
            case _:
                return ()


def global_names(code: CodeType) -> set[str]:
    """The global names that a function reads, functions inside it included."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _READ_GLOBALS}
    return names.union(*(global_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _imported(level: int, module: str | None, names: Iterable[str]) -> tuple[str, ...]:
    """The entries of `CodeText.imports` for `from module import names`, with dots by the level."""
    base = "." * level + (module or "")
    separator = "." if module else ""
    return (base, *(f"{base}{separator}{name}" for name in names))


def _bytecode_text(code: CodeType) -> CodeText:
    words = ["bytecode"]
    reads: list[tuple[str, ...]] = []
    imports: list[str] = []
    codes = [code]
    for part in codes:  # `codes` grows meanwhile, by the functions inside
        codes += [constant for constant in part.co_consts if isinstance(constant, CodeType)]
        # `co_argcount` includes the positional-only parameters.
        counts = part.co_argcount, part.co_posonlyargcount, part.co_kwonlyargcount, part.co_flags
        parameters = part.co_varnames[: part.co_argcount + part.co_kwonlyargcount]
        words.append(repr((counts, parameters, part.co_freevars, part.co_names)))
        words.append(f"{part.co_code.hex()} {part.co_exceptiontable.hex()}")
        words += [_constant_text(c) for c in part.co_consts if not isinstance(c, CodeType)]
        reads += [(name,) for name in part.co_names]
        instructions = [*dis.get_instructions(part)]
        for index, instruction in enumerate(instructions):
            if instruction.opname == "IMPORT_NAME":
                # It takes the two values that the instructions before it load.
                level, names = (before.argval for before in instructions[index - 2 : index])
                imports += _imported(level, instruction.argval, names or ())
    return CodeText(text="\n".join(words), reads=tuple(reads), imports=tuple(imports))


def _constant_text(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant_text, value))})"
    if isinstance(value, frozenset):  # sorted, since its own order differs in each process
        return f"{{{', '.join(sorted(map(_constant_text, value)))}}}"
    return repr(value)
