"""What a function does, as far as its code says it, in 32 hexadecimal digits.

A resumed run may reuse what a function returned as long as this is the same. So it counts whatever
the function names and a person may edit: its own statements and defaults, and the constants,
helpers, classes and modules that it refers to, as far as they are not Python's, a library's or
ours. It is the same under each version of Python, as long as the source is at hand.

It does not see: files that are read, attributes that are set at run time, what a library does, and
what is reached by `getattr` or held by an object that is no dataclass or pydantic model. Lists and
mappings count as they are when they are asked for, so ask before a run fills them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import CellType, FunctionType, ModuleType

from harness.graph.code_parts import PLAIN, Parts, parts_of, parts_of_class
from harness.graph.code_text import Import, code_text
from harness.graph.own_files import (
    imported_files,
    is_own,
    is_own_class,
    is_own_module,
    library_name,
)

_MISSING = object()
_MOST = 3
"""Parts that changed, named in one message."""
_OF_THE_MODULE = frozenset({"__builtins__", "__file__", "__name__", "__package__", "__spec__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a function does, as far as its code says it."""

    digest: str
    """Of all of it: 32 hexadecimal digits."""
    parts: Mapping[str, str]
    """By the name of each function, class, constant and file in it, the digest of that alone."""
    places: Mapping[str, str]
    """Where some of them are: `nodes.py:12`."""

    def changes_since(self, parts: Mapping[str, str]) -> str:
        """Which of its parts are others than they were, in words; empty if that is not known."""
        names = [name for name, digest in self.parts.items() if parts.get(name) != digest]
        said = [f"'{n}' ({self.places[n]})" if n in self.places else f"'{n}'" for n in names]
        said += [f"'{name}', which is gone" for name in parts if name not in self.parts]
        more = f" and {len(said) - _MOST} more" if len(said) > _MOST else ""
        return ", ".join(said[:_MOST]) + more if parts else ""


def code_digest(function: Callable[..., object]) -> str:
    """The digest of `code_of`."""
    return code_of(function).digest


def code_of(function: Callable[..., object]) -> Code:
    """What a function does; its digests are the same in every process.

    The digest stays the same when comments, docstrings, annotations, a decorator's arguments, lines
    or the file's name change, and becomes another when a constant, a default or a helper does,
    however far down. Of classes that it names, docstrings and annotations count: a model may be
    shown them.
    """
    # What a closure holds, a whole run perhaps, is not ours to keep.
    if not isinstance(function, FunctionType) or function.__closure__:
        return _read(function).code
    known = _known(function)
    if not known.holds():
        _known.cache_clear()  # a name was bound anew, as the cells of a notebook do
        known = _known(function)
    return known.code


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What a function does, and what that rests on."""

    code: Code
    """Of the function and all that it reaches."""
    names: tuple[tuple[Mapping[str, object], str, object], ...]
    """Every name that was looked up: where, which, and what it stood for."""
    cells: tuple[tuple[CellType, object], ...]
    """The same of closures."""

    def holds(self) -> bool:
        """Whether every name stands for what it stood for."""
        return all(scope.get(name, _MISSING) is value for scope, name, value in self.names) and all(
            _contents(cell) is value for cell, value in self.cells
        )


def _read(function: Callable[..., object]) -> _Known:
    reading = _Reading()
    if isinstance(function, FunctionType):
        reading.mention(function)  # wherever it is written
    else:
        reading.add(function)
    return reading.finished()


_known = functools.lru_cache(maxsize=1024)(_read)


class _Reading:
    """A walk from one function over all that it reaches, which writes down what it finds.

    What may lead back to itself gets a number when it is met first, and is written down once, after
    what was met before it.
    """

    def __init__(self) -> None:
        self._words: list[str] = []
        # By `id`; the list keeps what was met, and with it the `id`, from going away.
        self._numbers: dict[int, int] = {}
        self._met: list[object] = []
        self._names: dict[tuple[int, str], tuple[Mapping[str, object], str, object]] = {}
        self._cells: list[tuple[CellType, object]] = []
        self._parts: dict[str, str] = {}
        self._places: dict[str, str] = {}
        # What things that are met are called, and from which word on constants are told.
        self._called: dict[int, str] = {}
        self._constants: list[tuple[int, int]] = []

    def mention(self, value: object) -> None:
        """The number of a value that is written down by itself."""
        number = self._numbers.setdefault(id(value), len(self._met))
        if number == len(self._met):
            self._met.append(value)
        self._words.append(f"#{number}")

    def add(self, value: object) -> None:
        """One value: what it is, or its number."""
        kind = type(value)
        if kind in PLAIN:
            self._words.append(f"{kind.__name__} {value!r}")
        elif isinstance(value, FunctionType):
            if is_own(value.__code__.co_filename):
                self.mention(value)
            else:  # by its code's name, since decorators give a wrapper the name of what it wraps
                module = value.__globals__.get("__name__")
                called = library_name(module, value.__code__.co_qualname)
                self._words.append(f"function {called}")
                self.add(getattr(value, "__wrapped__", None))
        elif isinstance(value, type):
            if is_own_class(value):
                self.mention(value)
            else:
                self._words.append(f"class {library_name(value.__module__, value.__qualname__)}")
        elif isinstance(value, ModuleType):
            self._add_module(value)
        else:
            parts = parts_of(value)
            if parts is None:
                self._words.append("object")
                self.add(kind)
            elif parts.may_recur:
                self.mention(value)
            else:
                self._write_parts(parts)

    def finished(self) -> _Known:
        """Writes down all that was met, and what that leads to."""
        for number, value in enumerate(self._met):  # which grows meanwhile
            begin = len(self._words)
            self._constants.clear()
            if isinstance(value, FunctionType):
                self._write_function(value)
            else:
                parts = parts_of_class(value) if isinstance(value, type) else parts_of(value)
                assert parts is not None
                self._write_parts(parts)
            self._note(getattr(value, "__qualname__", None) or self._called.get(number), begin)
            if isinstance(value, FunctionType):
                code = value.__code__
                place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
                self._places.setdefault(value.__qualname__, place)
        text = "\n".join(self._words).encode()
        return _Known(
            code=Code(
                digest=blake2b(text, digest_size=16).hexdigest(),
                parts=self._parts,
                places=self._places,
            ),
            names=tuple(self._names.values()),
            cells=tuple(self._cells),
        )

    def _write_parts(self, parts: Parts) -> None:
        self._words.append(f"{parts.label} {len(parts.parts)}")
        for part in parts.parts:
            self.add(part)

    def _write_function(self, function: FunctionType) -> None:
        code = code_text(function.__code__)
        self._words.append(code.text)
        self.add(function.__defaults__)
        self.add(tuple(sorted((function.__kwdefaults__ or {}).items())))
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            contents = _contents(cell)
            self._cells.append((cell, contents))
            self._add_named(name, contents)
        for path in code.reads:
            self._follow(function.__globals__, path)
        package = str(function.__globals__.get("__package__") or "")
        for imported in code.imports:
            self._add_import(imported, package)
        self.add(getattr(function, "__wrapped__", None))

    def _follow(self, scope: Mapping[str, object], path: tuple[str, ...]) -> None:
        """What a global name, with the attributes that are read of it, stands for."""
        if path[0] in _OF_THE_MODULE:
            return
        module = None
        for name in path:
            value = scope.get(name, _MISSING)
            self._names[id(scope), name] = (scope, name, value)
            if not isinstance(value, ModuleType) or not is_own_module(value):
                break
            module, scope = value, vars(value)
        if value is not _MISSING:
            self._add_named(".".join(path), value)
        elif module is not None:  # an attribute that it makes when asked
            self._add_named(".".join(path), module)

    def _add_named(self, name: str, value: object) -> None:
        begin = len(self._words)
        self._words.append(f"name {name}")
        self.add(value)
        if (last := self._words[-1]).startswith("#") and len(self._words) == begin + 2:
            self._called.setdefault(int(last[1:]), name)
        else:
            self._note(name, begin)
            self._constants.append((begin, len(self._words)))

    def _note(self, name: str | None, begin: int) -> None:
        """Takes down a part, of the words from one on that are of no part of their own."""
        told = {n for one in self._constants for n in range(*one)}
        # Not in which order things are met: that hangs on all the others.
        words = ["#" if one.startswith("#") else one for one in self._words[begin:]]
        own = [one for n, one in enumerate(words, begin) if n not in told]
        name = name or "its code"
        before = self._parts.get(name, "")
        self._parts[name] = blake2b("\n".join([before, *own]).encode(), digest_size=4).hexdigest()

    def _add_module(self, module: ModuleType) -> None:
        """A module that is handed on whole: who knows what is used of it."""
        path = Path(module.__file__ or "") if is_own_module(module) else None
        if path is not None and path.is_file():
            self._add_file(path)
        else:
            self._words.append(f"module {module.__name__}")

    def _add_import(self, imported: Import, package: str) -> None:
        for path in imported_files(
            imported.module, level=imported.level, names=imported.names, package=package
        ):
            self._add_file(path)

    def _add_file(self, path: Path) -> None:
        self._words.append(f"file {blake2b(path.read_bytes()).hexdigest()}")


def _contents(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return _MISSING
