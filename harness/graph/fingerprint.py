"""Fingerprints of functions: a digest of a function's code and of all that it refers to.

A resumed run reuses the output of a function while its fingerprint is the same. So the fingerprint
covers what a person may edit: the function's statements and defaults, and the constants, helpers,
classes and modules that it refers to, except those of Python, libraries and this package. It is the
same under every version of Python if the source is available.

It does not cover files that the function reads, libraries, anything reached by `getattr`, and what
objects hold beside public attributes. Lists, mappings, dataclasses and models count as they are
when the fingerprint is taken, so take it before a run fills them.

An object can have a method `code_parts()` that returns the functions and values that count: a
pipeline returns its nodes' functions.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import importlib.util
import inspect
import re
import string
import sys
import sysconfig
import types
import typing
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib.machinery import PathFinder
from pathlib import Path, PurePath
from types import CellType, CodeType, FunctionType, ModuleType

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.graph.code_text import code_text, global_names

_MISSING = object()
_MOST_NAMED = 3  # changed parts in one message
# These names say where a module is, and not what it does.
_OF_THE_MODULE = frozenset({"__builtins__", "__file__", "__name__", "__package__", "__spec__"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """A digest of a function's code and of all that it refers to."""

    digest: str
    """The digest of all parts: 32 hexadecimal digits."""
    parts: Mapping[str, str]
    """The name of each function, class and constant in it → the digest of that part."""
    places: Mapping[str, str]
    """The name of each function in it → where it is: `nodes.py:12`."""
    lookups: Sequence[tuple[Callable[[], object], object]]
    """Reads of all names and cells that it was made from, each with the value at that time."""

    def holds(self) -> bool:
        """Whether every name and cell still has the same value."""
        return all(read() is value for read, value in self.lookups)

    def changes_since(self, earlier_parts: Mapping[str, str]) -> str:
        """The parts that differ from earlier ones, in words; empty if those are unknown."""
        if not earlier_parts:
            return ""
        changes = [
            f"'{name}' ({self.places[name]})" if name in self.places else f"'{name}'"
            for name, digest in self.parts.items()
            if earlier_parts.get(name) != digest
        ]
        changes += [f"'{name}', which is gone" for name in earlier_parts if name not in self.parts]
        text = ", ".join(changes[:_MOST_NAMED])
        if len(changes) > _MOST_NAMED:
            text += f" and {len(changes) - _MOST_NAMED} more"
        return text


def code_of(function: object, *, with_state: bool = True) -> Fingerprint:
    """The fingerprint of a function, with its parts; the same in every process.

    The digest does not depend on comments, docstrings, annotations, a decorator's arguments, lines
    and the file's name; it does depend on constants, defaults and helpers, however far down. The
    docstrings and annotations of classes count, since a model may be shown them.

    Without `with_state`, a list or an object that the function closes over or is bound to, and that
    a call may change, counts by its class alone: after the change it is still the same call.
    """
    # Caching would keep alive what a closure holds, a whole run perhaps.
    if not isinstance(function, FunctionType) or function.__closure__:
        return _taken(function, with_state=with_state)
    code = _cached(function)
    if not code.holds():
        _cached.cache_clear()  # a name was bound again, as the cells of a notebook do
        code = _cached(function)
    return code


def digest_of_parts(value: object) -> str | None:
    """The digest of an object by its `code_parts()`.

    None if something in it would count by its class alone: then all objects of the class would have
    the same digest.
    """
    writer = _FingerprintWriter()
    writer.add(value)
    code = writer.finished()
    return code.digest if writer.is_whole else None


def _taken(function: object, *, with_state: bool = True) -> Fingerprint:
    writer = _FingerprintWriter(with_state=with_state)
    if isinstance(function, FunctionType):
        writer.mention(function)  # not `add`, which writes only the name of a library's function
    else:
        writer.add(function)
    return writer.finished()


_cached = functools.lru_cache(maxsize=1024)(_taken)


class _FingerprintWriter:
    """Walks from one function over all that it reaches, and writes it as text.

    A value that may lead back to itself gets a number when it is first mentioned, and is written
    once, after everything mentioned before it. Each word belongs to the part that is being written:
    a function or class, or a constant by the name that leads to it.
    """

    def __init__(self, *, with_state: bool = True) -> None:
        self._with_state = with_state
        # Whether no value counts by its class alone, except values that functions refer to.
        self.is_whole = True
        # Of the value that is being written: whether it is a function or class, whether a closure
        # or a bound method holds it, and the name of its part.
        self._is_in_code = False
        self._is_held = False
        self._part = "its code"
        self._words: list[str] = []
        self._words_by_part: dict[str, list[str]] = {}
        # The mentioned values, each with the part that mentions it first. They stay alive here and
        # so keep their ids. A value's number is its index.
        self._values: list[tuple[object, str]] = []
        self._numbers: dict[int, int] = {}  # `id` of a value → its number
        # (`id` of a scope, name), or `id` of a cell → as in `Fingerprint.lookups`
        self._lookups: dict[object, tuple[Callable[[], object], object]] = {}
        self._places: dict[str, str] = {}

    def mention(self, value: object) -> None:
        """Writes the number of a value, so that `finished` writes the value itself."""
        number = self._numbers.setdefault(id(value), len(self._values))
        if number == len(self._values):
            self._values.append((value, self._part))
        self._write(f"#{number}")

    def add(self, value: object) -> None:
        """Writes a value at this place, or only its number if it may lead back to itself."""
        kind = type(value)
        if kind in PLAIN:
            self._write(f"{kind.__name__} {value!r}")
        elif isinstance(value, FunctionType):
            if is_own(value.__code__.co_filename):
                self.mention(value)
            else:
                # By the name in its code: a decorator gives a wrapper the name of what it wraps.
                module_name = value.__globals__.get("__name__")
                self._write(f"function {library_name(module_name, value.__code__.co_qualname)}")
                self._add_wrapped(value)
        elif isinstance(value, type):
            module = sys.modules.get(value.__module__)
            # A pipeline's file may have been loaded without a place among the modules.
            if module is None or is_own_module(module):
                self.mention(value)
            else:
                self._write(f"class {library_name(value.__module__, value.__qualname__)}")
        elif isinstance(value, ModuleType):
            path = Path(value.__file__ or "") if is_own_module(value) else None
            if path is not None and path.is_file():
                self._add_file(path)  # the whole module, since any of it may be used
            else:
                self._write(f"module {value.__name__}")
        else:
            self._add_object(value)

    def _add_object(self, value: object) -> None:
        """As `add`, for a value that is neither plain, a function, a class nor a module."""
        leaves_state_out = self._is_held and not self._with_state
        if leaves_state_out and _may_change(value):
            self._write("state")
            self.add(type(value))
            return
        parts = parts_of(value)
        if parts is None:
            self.is_whole &= self._is_in_code
            if not leaves_state_out and _attributes(value):
                self.mention(value)
                return
            self._write("object")
            self.add(type(value))
        elif parts.may_recur:
            self.mention(value)
        else:
            was_held = self._is_held
            self._is_held = was_held or isinstance(value, types.MethodType)
            self._write_parts(parts)
            self._is_held = was_held

    def finished(self) -> Fingerprint:
        """Writes every value that was mentioned, and all that these values refer to."""
        for value, first_part in self._values:  # `_values` grows meanwhile
            self._is_in_code = isinstance(value, FunctionType | type)
            # Other objects are not asked for an attribute: they may raise anything.
            qualified_name = getattr(value, "__qualname__", None) if self._is_in_code else None
            self._part = qualified_name or first_part
            if isinstance(value, FunctionType):
                self._write_function(value)
                code = value.__code__
                # For messages alone: neither file nor line is part of a digest.
                place = f"{Path(code.co_filename).name}:{code.co_firstlineno}"
                self._places.setdefault(value.__qualname__, place)
            else:
                parts = parts_of_class(value) if isinstance(value, type) else parts_of(value)
                self._write_parts(parts or Parts("object", (type(value), *_attributes(value))))
        text = "\n".join(self._words).encode()
        return Fingerprint(
            digest=blake2b(text, digest_size=16).hexdigest(),
            parts={
                # Short, since they only name a change in a message; the whole digest decides.
                name: blake2b("\n".join(words).encode(), digest_size=4).hexdigest()
                for name, words in self._words_by_part.items()
            },
            places=self._places,
            lookups=[*self._lookups.values()],
        )

    def _write_parts(self, parts: Parts) -> None:
        self._write(f"{parts.label} {len(parts.parts)}")
        for part in parts.parts:
            self.add(part)

    def _write_function(self, function: FunctionType) -> None:
        code = code_text(function.__code__)
        self._write(code.text)
        self.add(function.__defaults__)
        self.add(tuple(sorted((function.__kwdefaults__ or {}).items())))
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        for name, cell in closure:
            contents = _contents(cell)
            self._lookups[id(cell)] = (functools.partial(_contents, cell), contents)
            if not self._with_state and _assigns(function.__code__, name):
                self._write(f"state {name}")
                continue
            self._is_held = True
            self._add_named(name, contents)
            self._is_held = False
        for path in code.reads:
            self._follow(function.__globals__, path)
        package = str(function.__globals__.get("__package__") or "")
        for name in code.imports:
            file = imported_file(name, package)
            if file is not None:
                self._add_file(file)
        self._add_wrapped(function)

    def _add_wrapped(self, function: FunctionType) -> None:
        """Writes the function under a decorator, and the implementations of a `singledispatch`."""
        wrapped = getattr(function, "__wrapped__", None)
        self.add(wrapped)
        registry = getattr(function, "registry", None)
        # An implementation may lead back to the function: each registry is written once.
        if not isinstance(registry, types.MappingProxyType) or id(registry) in self._lookups:
            return
        self._lookups[id(registry)] = (functools.partial(len, registry), len(registry))
        is_own_all = _is_own_code(wrapped)
        for cls, implementation in sorted(registry.items(), key=_sort_key):
            self._lookups[id(registry), cls] = functools.partial(registry.get, cls), implementation
            # Of a library's function, only the implementations that the user added.
            if implementation is not wrapped and (is_own_all or _is_own_code(implementation)):
                self.add((cls, implementation))

    def _follow(self, scope: Mapping[str, object], path: tuple[str, ...]) -> None:
        """Writes the value of a global name, with the attributes that are read from it."""
        if path[0] in _OF_THE_MODULE:
            return
        # Goes through the user's own modules, up to the first value that is not one of these.
        last_module: object = _MISSING
        for name in path:
            value = scope.get(name, _MISSING)
            self._lookups[id(scope), name] = (functools.partial(scope.get, name, _MISSING), value)
            if not isinstance(value, ModuleType) or not is_own_module(value):
                break
            last_module = value
            scope = vars(value)
        if value is _MISSING:
            # The module's `__getattr__` may make the attribute, so the whole module counts.
            value = last_module
        if value is not _MISSING:
            self._add_named(".".join(path), value)

    def _add_named(self, name: str, value: object) -> None:
        """Writes the value of a name, as a part of its own."""
        self._write(f"name {name}")
        outer_part = self._part
        self._part = name
        self.add(value)
        self._part = outer_part

    def _write(self, word: str) -> None:
        self._words.append(word)
        # A number depends on everything that was mentioned before, so it is no part's own.
        if not word.startswith("#"):
            self._words_by_part.setdefault(self._part, []).append(word)

    def _add_file(self, path: Path) -> None:
        self._write(f"file {blake2b(path.read_bytes()).hexdigest()}")


# --- what objects hold ----------------------------------------------------------------------------

# `id` of an object → the object, and its attributes when it was first looked at.
_FIRST_ATTRIBUTES: dict[int, tuple[weakref.ref[object], Mapping[str, object]]] = {}


def _attributes(value: object) -> list[tuple[str, object]]:
    """The public attributes of an object of the user's own class; empty for other objects.

    Lists and other containers, which the run may fill, are left out. Texts and numbers are those
    that the object had at the first call for it, mostly as a run began: the run may set others, but
    a person who edits them makes another object.
    """
    cls = type(value)
    key = id(value)
    # Objects of libraries are not read: a proxy may be bound to nothing yet, and raise.
    is_own_class = cls.__module__ not in sys.modules or is_own_module(sys.modules[cls.__module__])
    # A class with slots may have no `__dict__`, or take no weak reference.
    if not (is_own_class and cls.__dictoffset__ and cls.__weakrefoffset__):
        return []
    current = {**value.__dict__}
    reference, first = _FIRST_ATTRIBUTES.get(key, (None, {}))
    if reference is None or reference() is not value:
        # Only plain values are stored: others may lead back to the object, and keep it alive. In
        # the place of others stands `_MISSING`.
        first = {
            name: attribute if type(attribute) in PLAIN else _MISSING
            for name, attribute in sorted(current.items())
            if not name.startswith("_") and not _may_change(attribute)
        }
        reference = weakref.ref(value, lambda _: _FIRST_ATTRIBUTES.pop(key, None))
        _FIRST_ATTRIBUTES[key] = reference, first
    return [
        (name, current.get(name) if attribute is _MISSING else attribute)
        for name, attribute in first.items()
    ]


def _may_change(value: object) -> bool:
    """Whether a value is a container or an object with fields that a call may change."""
    if dataclasses.is_dataclass(value) and not hasattr(type(value), "code_parts"):
        options: typing.Any = getattr(type(value), "__dataclass_params__")  # noqa: B009
        return not options.frozen
    return isinstance(value, list | dict | set | types.SimpleNamespace | BaseModel)


def _assigns(code: CodeType, name: str) -> bool:
    """Whether a function sets a variable of the function around it, with `nonlocal`."""
    return any(
        step.opname == "STORE_DEREF" and step.argval == name for step in dis.get_instructions(code)
    )


def variables_of(function: Callable[..., object]) -> dict[str, typing.Any]:
    """The values that a function refers to, by name with its scope: `the global 'LOCK'`.

    Variables without a value are left out, where `inspect.getclosurevars` raises.
    """
    inner: typing.Any = inspect.unwrap(function)
    if not hasattr(inner, "__globals__"):
        return {}  # it is compiled
    code, scope = inner.__code__, inner.__globals__
    closure = zip(code.co_freevars, inner.__closure__ or (), strict=True)
    variables = {f"the closure's '{name}'": _contents(cell) for name, cell in closure}
    names = sorted(global_names(code))
    variables |= {f"the global '{name}'": scope.get(name, _MISSING) for name in names}
    return {name: value for name, value in variables.items() if value is not _MISSING}


def _contents(cell: CellType) -> object:
    """The value in a closure's cell; `_MISSING` if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


# --- values, taken apart --------------------------------------------------------------------------

# Types whose `repr` is complete, and the same in every process.
PLAIN = frozenset(
    {
        *(types.NoneType, types.EllipsisType, types.NotImplementedType),
        *(bool, int, float, complex, str, bytes, range),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    }
)

# Attributes of a class that do not belong to its fingerprint.
_NOT_OF_THE_CLASS = frozenset(
    {
        # They say where the class is written.
        *("__module__", "__qualname__", "__firstlineno__", "__static_attributes__"),
        "__classdictcell__",
        # `parts_of_class` writes these in another form.
        *("__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
        *("__annotations_cache__", "__dataclass_fields__", "__dataclass_params__"),
        *("__orig_bases__", "__parameters__", "__signature__"),
        # Python keeps these there for itself, some only once the class is used.
        *("__dict__", "__weakref__", "__abstractmethods__", "_abc_impl", "__slotnames__"),
        *("__protocol_attrs__", "__non_callable_proto_members__"),
        *("__callable_proto_members_only__", "__mutable_keys__", "__readonly_keys__"),
        *("_member_map_", "_value2member_map_", "_hashable_values_", "_unhashable_values_"),
        # Flags have these, made of their members; Python 3.11.2 has no `_singles_mask_` yet.
        *("_unhashable_values_map_", "_singles_mask_", "_all_bits_", "_flag_mask_", "_inverted_"),
    }
)
# `Optional[int]` and `int | None`, which Python 3.14 no longer tells apart.
_UNIONS = (typing.Union, types.UnionType)
_ADDRESS = re.compile("0x[0-9a-fA-F]+")
_FIELD_SETTINGS = tuple(name for name in FieldInfo.__slots__ if not name.startswith("_"))


class Parts(typing.NamedTuple):
    """A value, taken apart."""

    label: str
    parts: tuple[object, ...]  # in an order that is the same in every process
    may_recur: bool = False  # whether the parts may lead back to the value


def parts_of(value: object) -> Parts | None:  # noqa: PLR0911, PLR0912 - one for each kind
    """The parts of a value that is neither plain, a function, a class nor a module.

    None for most objects, which count by their class alone.
    """
    match value:
        case enum.Enum():
            return Parts(f"member {value.name}", (type(value),))
        case str() | bytes() | int() | float():  # of a subclass: `add` writes the plain ones
            return Parts(f"value {_ADDRESS.sub('', repr(value))}", (type(value),))
        case tuple():
            # With the type, which may be a named tuple.
            return Parts("tuple", (type(value), *value))
        case frozenset():
            return Parts("frozenset", (*sorted(value, key=_sort_key),))
        case set():
            return Parts("set", (*sorted(value, key=_sort_key),), may_recur=True)
        case list():
            return Parts("list", (*value,), may_recur=True)
        case dict():
            return Parts("dict", (*value.items(),), may_recur=True)
        case PurePath():
            return Parts(f"path {value!s}", ())
        case string.Template():
            return Parts("template", (type(value), value.template))
        case re.Pattern():
            return Parts("pattern", (value.pattern, value.flags))
        case types.SimpleNamespace():
            return Parts("namespace", (*vars(value).items(),), may_recur=True)
        case functools.partial():
            return Parts("partial", (value.func, value.args, value.keywords))
        case types.MethodType():
            return Parts("method", (value.__func__, value.__self__))
        case staticmethod() | classmethod():
            return Parts(type(value).__name__, (value.__func__,))
        case property():
            return Parts("property", (value.fget, value.fset, value.fdel))
        case functools.cached_property():
            return Parts("property", (value.func,))
        case functools.singledispatchmethod():
            return Parts("dispatch", (value.func, value.dispatcher))
        case types.BuiltinFunctionType():
            return Parts(f"function {library_name(value.__module__, value.__qualname__)}", ())
    if wrapped := inspect.getattr_static(value, "__wrapped__", None):
        return Parts("wrapper", (type(value), wrapped))
    if (origin := typing.get_origin(value)) in _UNIONS:
        return Parts("union", typing.get_args(value))
    if origin is not None:
        return Parts("generic", (origin, *typing.get_args(value)))
    match value:
        case typing.NewType():
            return Parts(f"type {value.__name__}", (value.__supertype__,))
        case typing.TypeVar():
            return Parts(f"type {value.__name__}", (value.__bound__,))
        case typing.ForwardRef():
            return Parts(f"type {value.__forward_arg__}", ())
    if type(value).__name__ == "TypeAliasType":  # PEP 695, from Python 3.12 on
        alias: typing.Any = value
        return Parts(f"type {alias.__name__}", (alias.__value__,), may_recur=True)
    if type(value).__module__ == "typing":  # Any, Literal, Union: they have no parts
        return Parts(f"type {value!r}", ())
    if type(value).__module__ == "jinja2.environment" and hasattr(value, "root_render_func"):
        return Parts("template", (vars(value)["blocks"], value.root_render_func))
    fields = _fields(value)
    return None if fields is None else Parts("record", (type(value), *fields), may_recur=True)


def _fields(value: object) -> Iterable[tuple[object, object]] | None:
    """(name, value) of each field, or (number, part) of `code_parts()`; None for other objects."""
    code_parts = getattr(type(value), "code_parts", None)
    if code_parts is not None:
        return enumerate(code_parts(value))
    if isinstance(value, FieldInfo):
        return [(name, getattr(value, name, None)) for name in _FIELD_SETTINGS]
    if isinstance(value, BaseModel):
        return value.__dict__.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    if type(value).__module__ == "pydantic._internal._fields":
        return sorted(vars(value).items())  # the arguments of Field(), such as a pattern
    return None


def parts_of_class(cls: type) -> Parts:
    """The parts of a class: bases, fields in their order, constants and methods sorted by name."""
    label = f"class {cls.__name__}"
    document = vars(cls).get("__doc__")
    # The docstring that a dataclass generates only repeats the fields.
    if isinstance(document, str) and not document.startswith(f"{cls.__name__}("):
        # Python 3.13 stores docstrings like this.
        label += f" {inspect.cleandoc(document)!r}"
    parts: list[object] = [cls.__bases__, _annotations(cls)]
    members: set[str] = set()
    if issubclass(cls, enum.Enum):
        members = set(cls.__members__)
        parts.append(tuple((name, m.value) for name, m in cls.__members__.items()))
    if issubclass(cls, BaseModel):
        parts.append(tuple(cls.model_fields.items()))
    if dataclasses.is_dataclass(cls):
        options: typing.Any = vars(cls).get("__dataclass_params__")
        parts.append(options and (options.eq, options.order, options.frozen, options.unsafe_hash))
        parts.append(
            tuple(
                (f.name, f.default, f.default_factory, f.init, f.compare, f.kw_only)
                for f in dataclasses.fields(cls)
            )
        )
    parts += [
        (name, value)
        for name, value in sorted(vars(cls).items())
        if name not in _NOT_OF_THE_CLASS | members
        and not name.startswith("__pydantic_")
        and not (name.startswith("_") and _is_generated(value))
    ]
    return Parts(label, tuple(parts))


def _is_generated(member: object) -> bool:
    """Whether Python or a library generated a method, as for dataclasses."""
    function = inspect.unwrap(getattr(member, "__func__", member))  # type: ignore[arg-type]
    if not isinstance(function, FunctionType):
        return False
    return function.__code__.co_filename == "<string>" or not _is_own_code(function)


def _is_own_code(value: typing.Any) -> bool:  # noqa: ANN401 - whatever is registered
    """Whether a value is a function of the user's own, under any decorators."""
    code = getattr(inspect.unwrap(value), "__code__", None)
    return code is not None and is_own(code.co_filename)


def _annotations(cls: type) -> tuple[object, ...]:
    """(name, annotation) of each annotated field of a class, base classes left out."""
    annotations = inspect.get_annotations(cls)
    try:
        resolved = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - whatever a text, taken for an annotation, raises
        resolved = {}
    return tuple((name, resolved.get(name, unread)) for name, unread in annotations.items())


def _sort_key(member: object) -> str:
    """A key that sorts the members of a set, whose own order differs in each process."""
    if isinstance(member, frozenset):
        return repr(sorted(map(_sort_key, member)))
    if isinstance(member, tuple):
        return repr([*map(_sort_key, member)])
    return f"{type(member).__qualname__} {_ADDRESS.sub('', repr(member))}"


# --- which code is the user's own -----------------------------------------------------------------

_LIBRARIES = frozenset(
    {
        Path(__file__).resolve().parents[1],
        *(Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")),
    }
)
# By name, since a project may have its environment beside its files, or more than one.
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@functools.lru_cache(maxsize=4096)
def is_own(filename: str) -> bool:
    """Whether a file is neither Python's, nor installed, nor of this package."""
    # Code that was typed in, such as `<stdin>`, is the user's own.
    if filename.startswith("<"):
        return not filename.startswith("<frozen ")
    path = Path(filename).resolve()
    return _INSTALLED.isdisjoint(path.parts) and _LIBRARIES.isdisjoint(path.parents)


def is_own_module(module: ModuleType) -> bool:
    """As `is_own`; a module without a file is built in, unless it is the main module."""
    filename = getattr(module, "__file__", None)
    return is_own(filename) if filename else module.__name__ == "__main__"


def library_name(module: str | None, name: str) -> str:
    """The name of a library's function or class, with its module."""
    package = (module or "").partition(".")[0].lstrip("_")
    # Between versions of Python, its functions move between modules of one package.
    return f"{package if package in sys.stdlib_module_names else module}.{name}"


def imported_file(name: str, package: str) -> Path | None:
    """The user's own file of a module; None if it has none.

    `name` may begin with dots, for a module of `package`.
    """
    try:
        top, *inner = importlib.util.resolve_name(name, package).split(".")
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module that was not imported in the usual way
        return None
    for part in inner:
        folders = None if spec is None else spec.submodule_search_locations
        if folders is None:
            return None  # no package
        # For `a.b`, `importlib.util.find_spec` would import `a`.
        spec = PathFinder.find_spec(part, folders)
    if spec is None or not spec.has_location or not is_own(spec.origin or ""):
        return None
    file = Path(spec.origin or "")
    # It may lie in a zip archive, or have been removed since it was imported.
    return file if file.is_file() else None
