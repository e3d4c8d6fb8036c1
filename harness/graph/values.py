"""Outputs in the journal: written as JSON, and read back unchanged.

A resumed run must see the value that the first run made. So a value that would be read back as
another is refused when it is written, with the reason. Two kinds are read back equal, but not
identical: within models, dataclasses and tuples, an int in a float's place becomes a float; and a
time zone becomes its offset.

Plain values are their own JSON: None, booleans, numbers, texts, lists, and mappings with texts as
keys, of exactly these types and nested in any way. They need no schema. Values outside strict JSON
(NaN, infinities, integers beyond 64 bits, half a surrogate pair) are kept as text in the JSON of
Python's `json`: `{"$json": "[NaN]"}`.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import reprlib
import typing
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping
from enum import Enum
from hashlib import blake2b
from types import NoneType, UnionType
from typing import Any, Literal, Union

import orjson
from pydantic import BaseModel, ConfigDict, RootModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from harness.graph.annotations import described, remembered, without_names

_EXACT = (str, int, float, bool, type(None))
_NOT_FROM_JSON = frozenset(
    {"callable", "generator", "is-instance", "is-subclass", "literal of an enum"}
)
_UNWRITTEN = ("maxlen", "default_factory")
_COLLECTIONS = (list, tuple, set, frozenset, deque)
_NOT_SCHEMAS = frozenset(
    {"computed_fields", "default", "expected", "members", "metadata", "serialization"}
)
"""Parts of a schema that are values, or do not concern reading."""

_LONGEST = 200
"""Characters of a value in a message, where its excerpt does not show the difference."""
_EXCERPT = reprlib.Repr()
_EXCERPT.maxstring = _EXCERPT.maxother = 50


class ValueForm:
    """How values of one return annotation are checked, written and restored.

    Args:
        annotation: From `typing.get_type_hints`. For `object`, nothing is checked, and only plain
            values can be written.

    Raises:
        TypeError: Its values cannot be written to a journal and restored.
    """

    __slots__ = ("_adapter", "_check", "_exact", "_has_sets", "annotation")

    def __init__(self, annotation: object) -> None:
        self.annotation = object if annotation is inspect.Signature.empty else annotation
        self._exact = annotation if annotation in _EXACT else None
        self._adapter: TypeAdapter[Any] | None = None
        self._has_sets = False
        check = plain_check(self.annotation)
        if check is None:
            self._adapter = _adapter(self.annotation)
            kinds = _kinds_in(self._adapter.core_schema)
            if kinds & _NOT_FROM_JSON:
                raise TypeError(_no_form(self.annotation))
            self._has_sets = not kinds.isdisjoint({"set", "frozenset"})
            check = self._is_valid
        self._check = check

    def check(self, value: object) -> object:
        """The value itself, if it is of the annotation.

        Raises:
            TypeError: It is not.
        """
        if type(value) is self._exact or self._check(value):
            return value
        missing = "; is an await missing?" if inspect.isawaitable(value) else ""
        raise TypeError(f"returned {self._mismatch(value)}{missing}")

    def encode(self, value: object) -> bytes:
        """A checked value as strict JSON in one line, the same in every process.

        Raises:
            TypeError: It has no form in JSON, or would be read back as something else.
        """
        try:
            return dump_plain(value) if self._adapter is None else self._verified(value)
        except (TypeError, ValueError) as error:
            why = str(error).partition("\n")[0]
            raise TypeError(f"its output cannot be written to the journal: {why}") from error

    def restore(self, data: object) -> object:
        """The value that `encode` wrote, from its bytes or from the result of `orjson.loads`.

        Raises:
            TypeError: It is not of the annotation, which may have changed.
        """
        if self._adapter is None:
            value = load_plain(data)
            if self._check(value):
                return value
            raise TypeError(f"the journal has {self._mismatch(value)}")
        try:
            return self._adapter.validate_json(
                text_of(data), strict=True, by_alias=False, by_name=True
            )
        except ValidationError as error:
            wanted = described(self.annotation)
            raise TypeError(f"what is written is not read as {wanted}: {_first(error)}") from error

    def _is_valid(self, value: object) -> bool:
        try:
            # However strict, pydantic makes models of mappings.
            return _is_same(value, self._validated(value))
        except ValidationError:
            return False

    def _validated(self, value: object) -> object:
        assert self._adapter is not None
        return self._adapter.validate_python(value, strict=True)

    def _mismatch(self, value: object) -> str:
        text = (
            f"{kind_of(value)} ({_EXCERPT.repr(value)}), "
            f"where its annotation says {described(self.annotation)}"
        )
        if isinstance(value, Iterator | AsyncIterator):
            return f"{text}; it can be read only once, so return a list"
        if self._adapter is not None:
            try:
                self._validated(value)
            except ValidationError as error:
                if error.errors()[0]["loc"]:
                    return f"{text}: {_first(error)}"
        return text

    def _verified(self, value: object) -> bytes:
        assert self._adapter is not None
        plain = self._adapter.dump_python(
            value, mode="json", by_alias=False, round_trip=True, warnings="error"
        )
        data = dump_plain(sets_in_order(plain, value) if self._has_sets else plain)
        restored = self.restore(data)
        if not _is_same(value, restored):
            place, was, back = _difference(value, restored)
            shown = [_EXCERPT.repr(was), _EXCERPT.repr(back)]
            if shown[0] == shown[1]:
                shown = [repr(was)[:_LONGEST], repr(back)[:_LONGEST]]
            if shown[0] == shown[1]:
                shown[1] = "another that looks the same"
            raise TypeError(
                f"{kind_of(was)} ({shown[0]}){_at(place)} would come back as {shown[1]}; annotate "
                "the return type with what it is, or return a value that JSON can hold whole"
            )
        return data


@remembered
def value_form(annotation: object) -> ValueForm:
    """The form of an annotation, made once; many nodes share one.

    Raises:
        TypeError: As `ValueForm`.
    """
    return ValueForm(annotation)


def digest(data: bytes) -> str:
    """The digest of a written value: 32 hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def digest_of_all(digests: Iterable[str]) -> str:
    """The digest of the list of the values with these digests."""
    # No value is written like this, so a list never has the name of a value.
    return digest(f"[{' '.join(digests)}".encode())


# --- annotations --------------------------------------------------------------------------------


def _adapter(annotation: object) -> TypeAdapter[Any]:
    try:
        adapter = _configured(annotation)
    except PydanticSchemaGenerationError as error:
        raise TypeError(_no_form(annotation)) from error
    except PydanticUserError as error:
        raise TypeError(f"{described(annotation)} cannot be checked: {error.message}") from error
    if not adapter.pydantic_complete:
        raise TypeError(f"{described(annotation)} names something that is not defined")
    return adapter


def _configured(annotation: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - whatever the author wrote
    try:
        # Bytes need not be UTF-8.
        return TypeAdapter(
            annotation, config=ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        )
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(annotation)  # a model, with a configuration of its own


def _no_form(annotation: object) -> str:
    cls = typing.get_origin(annotation) or annotation
    is_stream = isinstance(cls, type) and issubclass(cls, Iterable | AsyncIterable)
    remedy = "a list" if is_stream else "a text, a list, a dataclass or a pydantic model"
    return (
        f"{described(annotation)} cannot be written to a journal and read back; return {remedy} "
        "instead"
    )


def _kinds_in(schema: object) -> set[str]:
    """Every type of schema that pydantic meets when it reads JSON, strictly."""
    kinds: set[str] = set()
    parts = [schema]
    while parts:
        part = parts.pop()
        if isinstance(part, list | tuple):
            parts += part
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind == "json-or-python":
                parts.append(part["json_schema"])
            elif kind == "lax-or-strict":
                parts.append(part["strict_schema"])
            elif isinstance(kind, str):
                # pydantic finds members of enums by value only if they are texts or integers.
                is_odd = any(
                    isinstance(value, Enum) and not isinstance(value, str | int)
                    for value in part.get("expected", ())
                )
                kinds.add("literal of an enum" if is_odd else kind)
                parts += [inner for name, inner in part.items() if name not in _NOT_SCHEMAS]
            else:  # fields by name
                parts += part.values()
    return kinds


def _first(error: ValidationError) -> str:
    """The first mistake, with its place."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        # The JSON is ours, so this is all that can be wrong with it.
        return (
            "a text in it has half of a surrogate pair, which is no character; "
            "text.encode('utf-8', 'replace').decode() leaves it out"
        )
    place = "".join(f"[{key!r}]" for key in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


# --- values -------------------------------------------------------------------------------------


def sets_in_order(plain: object, value: object) -> object:
    """JSON with the members of sets sorted: their own order differs from process to process."""
    if isinstance(value, RootModel):
        value = value.root
    if type(plain) is list and isinstance(value, _COLLECTIONS) and len(plain) == len(value):
        items = [*map(sets_in_order, plain, value)]
        return sorted(items, key=repr) if isinstance(value, set | frozenset) else items
    if type(plain) is dict:
        values: Iterable[object] = [getattr(value, name, None) for name in plain]
        if isinstance(value, Mapping) and len(plain) == len(value):
            values = value.values()
        return dict(zip(plain, map(sets_in_order, plain.values(), values), strict=True))
    return plain


def _is_same(value: object, back: object) -> bool:
    """Whether two values are equal and of the same types; NaN equals NaN."""
    if value is back:
        return True
    kind: type = type(value)
    if kind is not type(back):
        return {kind, type(back)} == {int, float} and value == back
    # The bound of a deque, and what a defaultdict makes, are in no JSON.
    makes_same = all(getattr(value, one, None) == getattr(back, one, None) for one in _UNWRITTEN)
    if isinstance(value, Mapping):
        assert isinstance(back, Mapping)
        return makes_same and _is_same([*value.items()], [*back.items()])
    if isinstance(value, list | tuple | deque):
        assert isinstance(back, list | tuple | deque)
        return makes_same and len(value) == len(back) and all(map(_is_same, value, back))
    fields = _fields(value)
    if fields is not None:
        return _is_same(fields, _fields(back))
    return bool(value == back) or (value != value and back != back)  # noqa: PLR0124 - NaN


def _difference(value: object, back: object, place: str = "") -> tuple[str, object, object]:
    """The innermost parts of two values that are not the same, and their place."""
    mine, theirs = _fields(value) or {}, _fields(back) or {}
    for name, part in mine.items():
        if name in theirs and not _is_same(part, theirs[name]):
            return _difference(part, theirs[name], f"{place}.{name}" if place else name)
    return place, value, back


def _fields(value: object) -> dict[str, object] | None:
    """The fields of a model or dataclass; None for anything else."""
    if isinstance(value, BaseModel):
        names: Iterable[str] = type(value).model_fields
        more = {**(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    elif dataclasses.is_dataclass(value):
        names, more = [field.name for field in dataclasses.fields(value)], {}
    else:
        return None
    return {name: getattr(value, name, None) for name in names} | more


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
"""Most levels of nesting; orjson writes 253, of which the journal's line needs some."""

Check = Callable[[object], bool]


def dump_plain(value: object) -> bytes:
    """A plain value as strict JSON, for `load_plain`.

    Raises:
        TypeError: It is not plain, or contains itself.
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
    """The value that `dump_plain` wrote, from its bytes or from the result of `orjson.loads`."""
    value = orjson.loads(data) if isinstance(data, bytes) else data
    return json.loads(value[_WRAPPED]) if _is_wrapped(value) else value


def text_of(data: object) -> bytes | str:
    """The same data as JSON for a parser that accepts NaN and large integers."""
    value = orjson.loads(data) if isinstance(data, bytes) else data
    if _is_wrapped(value):
        return str(value[_WRAPPED])
    return data if isinstance(data, bytes) else orjson.dumps(value)


def plain_check(annotation: object) -> Check | None:
    """Checks values of an annotation that means plain values only; None for any other annotation.

    Types are compared exactly, since an instance of a subclass would be read back as its base.
    """
    try:
        return _check_of(without_names(annotation))
    except RecursionError:
        return None  # an alias that contains itself, as one of any JSON does


def kind_of(value: object) -> str:
    """Its type in words: `a str`, `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


# --- writing ------------------------------------------------------------------------------------


def _is_wrapped(value: object) -> typing.TypeGuard[dict[str, str]]:
    return type(value) is dict and len(value) == 1 and _WRAPPED in value


def _is_strict(value: object, room: int) -> bool:
    """Whether strict JSON can hold it, except for long integers and half surrogate pairs."""
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
