"""Values that are their own JSON: None, truth values, numbers, texts, lists, mappings of texts.

A value of exactly these types, however nested, comes back equal and of the same types, without a
schema. What strict JSON has no form for (NaN and infinities, integers beyond 64 bits, half of a
surrogate pair) is kept as a text of the JSON that Python's own `json` writes, which has one:
`{"$json": "[NaN]"}`.
"""

from __future__ import annotations

import json
import math
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union

import orjson

from harness.graph.annotations import without_names

_WRAPPED = "$json"
_SCALARS: frozenset[type] = frozenset({str, int, bool, NoneType})
_TEXT: frozenset[type] = frozenset({str})
_NUMBERS: frozenset[type] = frozenset({float})
_WHOLE: frozenset[type] = frozenset({int, bool})
_TYPES: dict[object, frozenset[type]] = {
    str: _TEXT,
    bool: frozenset({bool}),
    int: _WHOLE,
    float: _WHOLE | _NUMBERS,  # PEP 484: an int will do for a float
    NoneType: frozenset({NoneType}),
}
_DEEPEST = 200
"""Levels of nesting; orjson writes 253, and the journal's line has some of its own."""

Check = Callable[[object], bool]


def dump_plain(value: object) -> bytes:
    """A value as strict JSON, which `load_plain` brings back as it was.

    Raises:
        TypeError: It is not made of such values, or contains itself.
    """
    if type(value) in _SCALARS or _is_strict(value, _DEEPEST):
        try:
            return orjson.dumps(value)
        except orjson.JSONEncodeError:
            pass  # an integer too large, or half of a surrogate pair
    _refuse_other(value, "", _DEEPEST)
    try:
        return orjson.dumps({_WRAPPED: json.dumps(value)})
    except ValueError as error:  # more digits than Python writes
        raise TypeError(str(error)) from error


def load_plain(data: object) -> object:
    """The value of what `dump_plain` wrote.

    Args:
        data: The bytes, or what they are once parsed.
    """
    value = orjson.loads(data) if isinstance(data, bytes) else data
    return json.loads(value[_WRAPPED]) if _is_wrapped(value) else value


def text_of(data: object) -> bytes | str:
    """The same as JSON for a parser that knows NaN and large integers."""
    value = orjson.loads(data) if isinstance(data, bytes) else data
    if _is_wrapped(value):
        return str(value[_WRAPPED])
    return data if isinstance(data, bytes) else orjson.dumps(value)


def plain_check(annotation: object) -> Check | None:
    """Whether a value is of an annotation that means plain values alone; None of any other.

    Types are compared exactly: what is a subclass would come back as its base.
    """
    try:
        return _check_of(without_names(annotation))
    except RecursionError:
        return None  # an alias that contains itself, as that of any JSON does


def kind_of(value: object) -> str:
    """Its type in words: `a str`, `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# --- writing ------------------------------------------------------------------------------------


def _is_wrapped(value: object) -> typing.TypeGuard[dict[str, str]]:
    return type(value) is dict and len(value) == 1 and _WRAPPED in value


def _is_strict(value: object, room: int) -> bool:
    """Whether strict JSON has a form for it, but for its longest integers and oddest texts."""
    kind: type = type(value)
    items: Any = value
    if kind is float:
        return math.isfinite(items)
    if kind is dict:
        if not _TEXT.issuperset(map(type, items)) or (_WRAPPED in items and len(items) == 1):
            return False
        items = items.values()
    elif kind is not list:
        return kind in _SCALARS
    kinds = set(map(type, items))
    if kinds <= _SCALARS:
        return True
    if kinds <= _NUMBERS:  # a vector, which may be long
        return all(map(math.isfinite, items))
    return room > 0 and all(_is_strict(item, room - 1) for item in items)


def _refuse_other(value: object, place: str, room: int) -> None:
    """Raises a TypeError that says what is not plain, and where."""
    if room < 0:
        raise TypeError(f"it contains itself, or is more than {_DEEPEST} levels deep")
    kind: type = type(value)
    items: Any = value
    if kind is list:
        for index, item in enumerate(items):
            _refuse_other(item, f"{place}[{index}]", room - 1)
    elif kind is dict:
        for key, item in items.items():
            if type(key) is not str:
                raise TypeError(
                    f"a mapping{_at(place)} has a key that is no str ({key!r}); "
                    "annotate the return type with what it is"
                )
            _refuse_other(item, f"{place}[{key!r}]", room - 1)
    elif isinstance(value, Iterator | AsyncIterator):
        raise TypeError(f"{kind_of(value)}{_at(place)} can be read only once; return a list")
    elif kind not in _SCALARS | _NUMBERS:
        raise TypeError(
            f"{kind_of(value)}{_at(place)} would not come back as one; "
            "annotate the return type with what it is"
        )


def _at(place: str) -> str:
    return f" at {place}" if place else ""


# --- what annotations mean ----------------------------------------------------------------------


def _check_of(annotation: object) -> Check | None:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is object or annotation is Any:
        return lambda _value: True
    types = _scalar_types(annotation)
    if types is not None:
        return lambda value: type(value) in types
    if origin is Literal:
        return _literal_check(arguments)
    if annotation is list or origin is list:
        return _list_check(*(arguments or (object,)))
    if annotation is dict or origin is dict:
        return _dict_check(*(arguments or (str, object)))
    return _union_check(arguments) if origin in {Union, UnionType} else None


def _scalar_types(annotation: object) -> frozenset[type] | None:
    """The types of its values, if none of them has parts."""
    if typing.get_origin(annotation) in {Union, UnionType}:
        members = [_scalar_types(without_names(m)) for m in typing.get_args(annotation)]
        known = [member for member in members if member is not None]
        return frozenset().union(*known) if len(known) == len(members) else None
    return _TYPES.get(annotation) if isinstance(annotation, type) else None


def _union_check(members: tuple[object, ...]) -> Check | None:
    checks = [check for check in map(plain_check, members) if check is not None]
    if len(checks) < len(members):
        return None
    return lambda value: any(check(value) for check in checks)


def _literal_check(values: tuple[object, ...]) -> Check | None:
    allowed = {(type(value), value) for value in values}
    if not _SCALARS.issuperset(kind for kind, _ in allowed):
        return None
    return lambda value: type(value) in _SCALARS and (type(value), value) in allowed


def _list_check(item: object) -> Check | None:
    types = _scalar_types(without_names(item))
    if types is not None:
        return lambda value: type(value) is list and types.issuperset(map(type, value))
    check = plain_check(item)
    return check and (lambda value: type(value) is list and all(map(check, value)))


def _dict_check(key: object, item: object) -> Check | None:
    check = plain_check(item)
    if without_names(key) is not str or check is None:
        return None
    return lambda value: (
        type(value) is dict
        and _TEXT.issuperset(map(type, value))
        and all(map(check, value.values()))
    )
