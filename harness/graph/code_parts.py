"""What values and classes consist of, as far as it matters to code that names them; one level deep.

An object of which more matters than its class says so by a method `code_parts()`, which gives the
functions and values that it is made of: a pipeline gives its nodes' functions.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import re
import types
import typing
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from harness.graph.own_files import is_own, library_name

PLAIN = frozenset(
    {
        *(types.NoneType, types.EllipsisType, types.NotImplementedType),
        *(bool, int, float, complex, str, bytes, range),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    }
)
"""Types of which `repr` is the value, the same in every process."""

_NOT_OF_THE_CLASS = frozenset(
    {
        # where it is written
        *("__module__", "__qualname__", "__firstlineno__", "__static_attributes__"),
        # what is told of it already
        *("__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
        *("__annotations_cache__", "__dataclass_fields__", "__dataclass_params__"),
        *("__orig_bases__", "__parameters__", "__signature__"),
        # what Python keeps there for itself, or once the class is used
        *("__dict__", "__weakref__", "__abstractmethods__", "_abc_impl", "__slotnames__"),
        *("__protocol_attrs__", "__non_callable_proto_members__"),
        *("__callable_proto_members_only__", "__mutable_keys__", "__readonly_keys__"),
        *("_member_map_", "_value2member_map_", "_hashable_values_", "_unhashable_values_"),
        "_unhashable_values_map_",
    }
)
_ADDRESS = re.compile("0x[0-9a-fA-F]+")
_FIELD_SETTINGS = tuple(name for name in FieldInfo.__slots__ if not name.startswith("_"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A value, taken apart."""

    label: str
    """What it is, and whatever of it is not in its parts."""
    parts: tuple[object, ...]
    """In an order that is the same in every process."""
    may_recur: bool = False
    """Whether it may contain itself, and is the same object wherever it is met."""


def parts_of(value: object) -> Parts | None:
    """What counts of a value that is neither plain, a function, a class nor a module.

    None of what counts by its class alone: most objects.
    """
    return _of_container(value) or _of_callable(value) or _of_annotation(value) or _of_record(value)


def parts_of_class(cls: type) -> Parts:
    """What a class says: its bases, fields, constants and methods, in any order but the fields'."""
    label = f"class {cls.__name__}"
    document = vars(cls).get("__doc__")
    # The one that dataclasses make up repeats the fields.
    if isinstance(document, str) and not document.startswith(f"{cls.__name__}("):
        label += f" {inspect.cleandoc(document)!r}"  # as Python 3.13 keeps it
    parts: list[object] = [cls.__bases__, _annotations(cls)]
    members: set[str] = set()
    if issubclass(cls, enum.Enum):
        members = set(cls.__members__)
        parts.append(tuple((name, m.value) for name, m in cls.__members__.items()))
    if issubclass(cls, BaseModel):
        parts.append(tuple(cls.model_fields.items()))
    if dataclasses.is_dataclass(cls):
        made: typing.Any = vars(cls).get("__dataclass_params__")
        parts.append(made and (made.eq, made.order, made.frozen, made.unsafe_hash))
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
        and not (name.startswith("_") and _is_made(value))
    ]
    return Parts(label=label, parts=tuple(parts))


def _is_made(member: object) -> bool:
    """Whether Python or a library made a method, as dataclasses do: each version makes others."""
    function = inspect.unwrap(getattr(member, "__func__", member))  # type: ignore[arg-type]
    if not isinstance(function, types.FunctionType):
        return False
    filename = function.__code__.co_filename
    return filename == "<string>" or not is_own(filename)


def _annotations(cls: type) -> tuple[object, ...]:
    named = inspect.get_annotations(cls)
    try:
        resolved = typing.get_type_hints(cls, include_extras=True)
    except Exception:  # noqa: BLE001 - whatever a text, taken for an annotation, raises
        resolved = {}
    return tuple((name, resolved.get(name, annotation)) for name, annotation in named.items())


def _of_container(value: object) -> Parts | None:  # noqa: PLR0911 - one for each kind
    match value:
        case enum.Enum():
            return Parts(label=f"member {value.name}", parts=(type(value),))
        case tuple():
            return Parts(label="tuple", parts=(type(value), *value))
        case frozenset():
            return Parts(label="frozenset", parts=_in_order(value))
        case set():
            return Parts(label="set", parts=_in_order(value), may_recur=True)
        case list():
            return Parts(label="list", parts=(*value,), may_recur=True)
        case dict():
            return Parts(label="dict", parts=(*value.items(),), may_recur=True)
        case PurePath():
            return Parts(label=f"path {value!s}", parts=())
        case re.Pattern():
            return Parts(label="pattern", parts=(value.pattern, value.flags))
        case types.SimpleNamespace():
            return Parts(label="namespace", parts=(*vars(value).items(),), may_recur=True)
        case _:
            return None


def _of_callable(value: object) -> Parts | None:  # noqa: PLR0911 - one for each kind
    match value:
        case functools.partial():
            return Parts(label="partial", parts=(value.func, value.args, value.keywords))
        case types.MethodType():
            return Parts(label="method", parts=(value.__func__, value.__self__))
        case staticmethod() | classmethod():
            return Parts(label=type(value).__name__, parts=(value.__func__,))
        case property():
            return Parts(label="property", parts=(value.fget, value.fset, value.fdel))
        case functools.cached_property():
            return Parts(label="property", parts=(value.func,))
        case types.BuiltinFunctionType():
            return Parts(
                label=f"function {library_name(value.__module__, value.__qualname__)}", parts=()
            )
        case _:
            wrapped = inspect.getattr_static(value, "__wrapped__", None)
            return Parts(label="wrapper", parts=(type(value), wrapped)) if wrapped else None


def _of_annotation(value: object) -> Parts | None:  # noqa: PLR0911 - one for each kind
    origin = typing.get_origin(value)
    if origin is not None:
        return Parts(label="generic", parts=(origin, *typing.get_args(value)))
    match value:
        case typing.NewType():
            return Parts(label=f"type {value.__name__}", parts=(value.__supertype__,))
        case typing.TypeVar():
            return Parts(label=f"type {value.__name__}", parts=(value.__bound__,))
        case typing.ForwardRef():
            return Parts(label=f"type {value.__forward_arg__}", parts=())
        case _ if type(value).__name__ == "TypeAliasType":  # PEP 695, from Python 3.12 on
            alias: typing.Any = value
            return Parts(label=f"type {alias.__name__}", parts=(alias.__value__,), may_recur=True)
        case _ if type(value).__module__ == "typing":  # Any, Literal, Union: they have no parts
            return Parts(label=f"type {value!r}", parts=())
        case _:
            return None


def _of_record(value: object) -> Parts | None:
    """Of what its author gave fields, or says itself what it is made of."""
    fields: Iterable[tuple[object, object]]
    made_of = getattr(type(value), "code_parts", None)
    if made_of is not None:
        fields = enumerate(made_of(value))
    elif isinstance(value, FieldInfo):
        fields = [(name, getattr(value, name, None)) for name in _FIELD_SETTINGS]
    elif isinstance(value, BaseModel):
        fields = value.__dict__.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)]
    elif type(value).__module__ == "pydantic._internal._fields":
        fields = sorted(vars(value).items())  # what Field() was told, such as a pattern
    else:
        return None
    return Parts(label="record", parts=(type(value), *fields), may_recur=True)


def _in_order(values: Iterable[object]) -> tuple[object, ...]:
    return tuple(sorted(values, key=_place))


def _place(member: object) -> str:
    """Where a member of a set belongs, in every process: a set's own order is another in each."""
    if isinstance(member, frozenset):
        return repr(sorted(map(_place, member)))
    if isinstance(member, tuple):
        return repr([*map(_place, member)])
    return f"{type(member).__qualname__} {_ADDRESS.sub('', repr(member))}"
