"""Outputs in the journal: written as JSON, and read back unchanged.

pydantic checks, writes and reads them. A resumed run must see the value that the first run made, so
each value is read back as soon as it is written, and refused if another value comes back. Some come
back equal, but not identical: within models, dataclasses and tuples, an int in a float's place
becomes a float; a fixed time zone becomes its offset; a time without a zone loses its `fold`.

Values outside strict JSON (NaN, infinities, integers beyond 64 bits, half a surrogate pair) are
kept as text in the JSON of Python's `json`: `{"$json": "[NaN]"}`.
"""

from __future__ import annotations

import dataclasses
import datetime
import inspect
import json
import marshal
import typing
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from hashlib import blake2b
from types import UnionType
from typing import Any, Union

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from harness.graph.annotations import cached_by_annotation, described
from harness.text.value_text import sets_in_order
from harness.trace import dump_json

# Kinds of schema that pydantic checks in Python, and cannot make from JSON.
_NOT_FROM_JSON = frozenset(
    {"callable", "generator", "is-instance", "is-subclass", "enum of other values"}
)
# Values that no member of an enum may have: pydantic finds a member by its value in the JSON.
_NOT_IN_JSON = (tuple, bytes, set, frozenset)
# Attributes of deques and defaultdicts that JSON does not have.
_UNWRITTEN = ("maxlen", "default_factory")
# Parts of a schema that are values, or do not concern reading.
_NOT_SCHEMAS = frozenset(
    {"computed_fields", "default", "expected", "members", "metadata", "serialization"}
)
# The key of a value that is kept as text, and how its JSON begins.
_TEXT_KEY, _TEXT_OPENING = "$json", b'{"$json":'
_LONGEST = 100  # characters of a value in a message


class ValueForm:
    """How values of one return annotation are checked, written and restored.

    Args:
        annotation: From `typing.get_type_hints`. For `object`, nothing is checked, and only what
            JSON means can be written: None, booleans, numbers, texts, lists, and mappings with
            texts as keys.

    Raises:
        TypeError: Its values cannot be written to a journal and restored.
    """

    __slots__ = ("_adapter", "_has_models", "_has_sets", "annotation")

    def __init__(self, annotation: object) -> None:
        self.annotation = object if annotation is inspect.Signature.empty else annotation
        self._adapter = _adapter(self.annotation)
        kinds = _kinds_in(self._adapter.core_schema)
        if kinds & _NOT_FROM_JSON:
            raise TypeError(_no_form(self.annotation, kinds))
        self._has_models = "model" in kinds
        self._has_sets = not kinds.isdisjoint({"set", "frozenset"})

    def encode(self, value: object) -> bytes:
        """A value as strict JSON in one line, the same in every process.

        Raises:
            TypeError: It is not of the annotation, has no form in JSON, or would be read back as
                something else.
        """
        try:
            # pydantic would read it to its end, which may never come.
            if isinstance(value, Iterator):
                raise TypeError(f"{_kind_of(value)} can be read only once")
            return self._encoded(value)
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error).partition("\n")[0]
            mismatch = self._mismatch(value)
            raise TypeError(
                mismatch or f"its output cannot be written to the journal: {reason}"
            ) from error

    def restore(self, data: object) -> object:
        """The value that `encode` wrote, from its bytes or from the result of `orjson.loads`.

        Raises:
            TypeError: It is not of the annotation, which may have changed.
        """
        text = _text_of(data)
        try:
            # By name, as `_encoded` dumps: an alias may differ between reading and writing.
            return self._adapter.validate_json(text, strict=True, by_alias=False, by_name=True)
        except ValidationError as error:
            if _is_surrogate(error):
                # Python's parser reads half a surrogate pair, and pydantic's does not.
                with suppress(ValidationError):
                    return self._adapter.validate_python(json.loads(text), strict=True)
            annotation = described(self.annotation)
            raise TypeError(
                f"what is written is not read as {annotation}: {_first_mistake(error)}"
            ) from error

    def unset(self, value: object) -> list[list[str]] | None:
        """For each model in a value, the fields left to their defaults; None if none were."""
        models = _models_in(value) if self._has_models else ()
        unset = [sorted(type(m).model_fields.keys() - m.model_fields_set) for m in models]
        return unset if any(unset) else None

    def _mismatch(self, value: object) -> str | None:
        """Says in a message how a value differs from the annotation; None if it is of it."""
        detail = ""
        try:
            # The result must be the same value: pydantic accepts an instance of a subclass, which
            # would come back as its base, and makes models of mappings even if it is strict.
            if _is_same(value, self._adapter.validate_python(value, strict=True)):
                return None
        except ValidationError as error:
            if error.errors()[0]["loc"]:
                detail = f": {_first_mistake(error)}"
        if inspect.isawaitable(value):
            detail = "; is an await missing?"
        elif isinstance(value, Iterator | AsyncIterator):
            detail = "; it can be read only once, so return a list"
        elif dataclasses.is_dataclass(value) and hasattr(value, "result"):
            detail = "; return its .result"  # of `run.call`
        return (
            f"returned {_kind_of(value)} ({_excerpt(value)}), "
            f"where its annotation says {described(self.annotation)}{detail}"
        )

    def _encoded(self, value: object) -> bytes:
        plain = self._adapter.dump_python(
            value,
            mode="json",
            by_alias=False,
            round_trip=True,
            warnings="error",
            # An object without a form in JSON comes back as a text, and so is found as a change.
            fallback=_shown,
        )
        if self._has_sets:
            plain = sets_in_order(plain, value)
        # An integer too large, or half of a surrogate pair, is an error; NaN becomes null.
        with suppress(TypeError, ValueError):
            data = orjson.dumps(plain)
            if _is_same(value, self.restore(data)):
                return data
        data = orjson.dumps({_TEXT_KEY: json.dumps(plain)})
        restored = self.restore(data)
        if _is_same(value, restored):
            return data
        raise TypeError(_why_not_same(value, restored))


def _why_not_same(value: object, restored: object) -> str:
    """Says in a message where a restored value differs from the written one."""
    place, written_part, restored_part = _difference(value, restored) or ("", value, restored)
    written, back = _excerpt(written_part), _excerpt(restored_part)
    if written == back:
        back = "another that looks the same"
    where = f" at {place.removeprefix('.')}" if place else ""
    remedy = "return a value that JSON can hold whole"
    name, cls = type(written_part).__name__, type(written_part)
    if cls is not type(restored_part):
        with suppress(TypeError):  # not every class has a form
            value_form(cls)
            # Alone, since in a union with texts, JSON does not say which of the two a value is.
            remedy = f"annotate it as {name} alone, or return a dataclass with a field per type"
    elif isinstance(written_part, datetime.datetime | datetime.time):
        remedy = "return a datetime in UTC, and the name of its zone as a text beside it"
    return f"{_kind_of(written_part)} ({written}){where} would come back as {back}; {remedy}"


@cached_by_annotation
def value_form(annotation: object) -> ValueForm:
    """The form of an annotation; nodes with the same annotation share it.

    Raises:
        TypeError: As `ValueForm`.
    """
    return ValueForm(annotation)


def digest(data: bytes) -> str:
    """The digest of a written value: 32 hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def digest_of_all(digests: Iterable[str]) -> str:
    """The digest of the list of the values with these digests."""
    # No value's JSON looks like this, so the digest is never that of a value.
    return digest(f"[{' '.join(digests)}".encode())


# --- annotations --------------------------------------------------------------------------------


def _adapter(annotation: object) -> TypeAdapter[Any]:
    try:
        adapter = _configured(_promoted(annotation))
    except PydanticSchemaGenerationError as error:
        raise TypeError(_no_form(annotation)) from error
    except PydanticUserError as error:
        raise TypeError(f"{described(annotation)} cannot be checked: {error.message}") from error
    if not adapter.pydantic_complete:
        raise TypeError(f"{described(annotation)} names something that is not defined")
    return adapter


def _promoted(annotation: Any) -> Any:  # noqa: ANN401 - whatever the author wrote
    """An annotation that takes ints for floats and bools for both, as PEP 484 does."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (list, dict):
        *keys, item = arguments
        return origin[*keys, _promoted(item)]
    if origin in (Union, UnionType):
        return Union[tuple(map(_promoted, arguments))]  # noqa: UP007 - not known here
    if annotation is float:
        return float | int | bool
    if annotation is int:
        return int | bool
    return annotation


def _configured(annotation: Any) -> TypeAdapter[Any]:  # noqa: ANN401 - whatever the author wrote
    try:
        # Bytes are written as Base64, since they need not be UTF-8.
        return TypeAdapter(
            annotation,
            config=ConfigDict(
                ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
            ),
        )
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(annotation)  # a model, with a configuration of its own


def _no_form(annotation: object, kinds: Collection[str] = ()) -> str:
    """Says in a message that an annotation, of these kinds of schema, has no form."""
    cls = typing.get_origin(annotation) or annotation
    remedy = "return a text, a list, a dataclass or a pydantic model instead"
    if "enum of other values" in kinds:
        remedy = "give its members texts or numbers as values"
    elif isinstance(cls, type) and issubclass(cls, Iterable | AsyncIterable):
        remedy = "return a list instead"
    return f"{described(annotation)} cannot be written to a journal and read back; {remedy}"


def _kinds_in(schema: object) -> set[str]:
    """The types of all schemas in a pydantic schema that count when JSON is read strictly."""
    kinds: set[str] = set()
    unvisited = [schema]
    while unvisited:
        part = unvisited.pop()
        if isinstance(part, list | tuple):
            unvisited += part
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind == "json-or-python":
                unvisited.append(part["json_schema"])
            elif kind == "lax-or-strict":
                unvisited.append(part["strict_schema"])
            elif kind == "enum" and any(type(m.value) in _NOT_IN_JSON for m in part["members"]):
                kinds.add("enum of other values")
            elif isinstance(kind, str):
                kinds.add(kind)
                unvisited += [inner for name, inner in part.items() if name not in _NOT_SCHEMAS]
            else:  # a mapping from the names of fields to their schemas
                unvisited += part.values()
    return kinds


def _first_mistake(error: ValidationError) -> str:
    """The first mistake in words, with its place."""
    if _is_surrogate(error):
        return (
            "a text in it has half of a surrogate pair, which is no character; "
            "text.encode('utf-8', 'replace').decode() leaves it out"
        )
    first = error.errors()[0]
    loc = first["loc"]
    if loc[-1:] in (("int",), ("float",)):
        loc = loc[:-1]  # the name of a union's member, and no place in the value
    place = "".join(f"[{key!r}]" for key in loc)
    return f"{place}: {first['msg']}" if place else first["msg"]


def _is_surrogate(error: ValidationError) -> bool:
    """Whether pydantic refused half of a surrogate pair."""
    # By the message, since pydantic gives all mistakes in JSON one type.
    return "hex escape" in error.errors()[0]["msg"]


# --- values -------------------------------------------------------------------------------------


def _text_of(data: object) -> bytes | str:
    """The JSON of a journal's value, for a parser that accepts NaN and large integers."""
    if isinstance(data, bytes) and not data.startswith(_TEXT_OPENING):
        return data
    value = orjson.loads(data) if isinstance(data, bytes) else data
    if type(value) is dict and value.keys() == {_TEXT_KEY}:
        return str(value[_TEXT_KEY])
    return data if isinstance(data, bytes) else orjson.dumps(value)


def plain_json(value: object) -> object:
    """A journal's value for readers that know strict JSON alone, as `dump_json` writes it."""
    if type(value) is dict and value.keys() == {_TEXT_KEY}:
        with suppress(ValueError):  # a secret in it was masked
            return orjson.loads(dump_json(json.loads(value[_TEXT_KEY])))
    return value


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - `__repr__` of some objects raises, whatever it is
        return f"<{type(value).__name__}>"


def _excerpt(value: object) -> str:
    text = _shown(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _kind_of(value: object) -> str:
    """A value's type with its article: `a str`, `an int`."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _is_same(value: Any, back: Any) -> bool:  # noqa: ANN401 - whatever a node returns
    """Whether two values are equal and of the same types; NaN equals NaN."""
    with suppress(ValueError):  # marshal writes only plain values
        # Many times faster for large plain values. Without the references of later versions, equal
        # values have equal bytes.
        if value is back or marshal.dumps(value, 2) == marshal.dumps(back, 2):
            return True
    return _difference(value, back) is None


def _difference(value: Any, back: Any) -> tuple[str, object, object] | None:  # noqa: ANN401
    """The place where two values differ, and the two parts there; None if they are the same.

    The place is that of the innermost parts: `.findings[2].title`.
    """
    if value is back or type(value) is not type(back):
        is_same = value is back or ({type(value), type(back)} == {int, float} and value == back)
        return None if is_same else ("", value, back)
    value_parts, back_parts = _parts(value), _parts(back)
    if value_parts is None or back_parts is None:
        is_same = value == back or (value != value and back != back)  # noqa: PLR0124 - NaN
        if is_same and isinstance(value, set | frozenset):
            counterparts = {item: item for item in back}
            return _difference([*value], [counterparts[item] for item in value])
        hidden = _HIDDEN.get(type(value))
        is_same = is_same and (hidden is None or hidden(value) == hidden(back))
        return None if is_same else ("", value, back)
    is_altered = any(getattr(value, n, None) != getattr(back, n, None) for n in _UNWRITTEN)
    if is_altered or len(value_parts) != len(back_parts):
        return "", value, back
    for (place, part), (_, back_part) in zip(value_parts, back_parts, strict=True):
        if difference := _difference(part, back_part):
            return f"{place}{difference[0]}", *difference[1:]
    return None


def _zone(value: datetime.datetime | datetime.time) -> object:
    zone = value.tzinfo
    # Without a moment, only a zone that never changes its clocks has an offset.
    offset = zone and zone.utcoffset(None)
    return (zone, zone and value.fold) if offset is None else offset


# What of a value `==` does not compare: the sign of zero, zeros behind the point, the zone.
_HIDDEN: dict[type, Any] = dict.fromkeys((float, complex, Decimal), str)
_HIDDEN |= dict.fromkeys((datetime.datetime, datetime.time), _zone)


def leave_unset(value: object, unset: Iterable[Iterable[str]] | None) -> None:
    """Restores what `ValueForm.unset` says of a value that was read back."""
    for model, fields in zip(_models_in(value) if unset else (), unset or (), strict=False):
        model.model_fields_set.difference_update(fields)


def _models_in(value: object) -> Iterator[BaseModel]:
    if isinstance(value, BaseModel):
        yield value
    for _, part in _parts(value) or ():
        if not isinstance(part, str | int | float | None):
            yield from _models_in(part)


def _parts(value: object) -> list[tuple[str, object]] | None:
    """The items or fields of a value, each with its place in it; None if it cannot have any."""
    if isinstance(value, Mapping):
        return [*(("", key) for key in value), *((f"[{key!r}]", value[key]) for key in value)]
    if isinstance(value, list | tuple | deque):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name, None) for name in type(value).model_fields}
        fields |= {**(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    elif dataclasses.is_dataclass(value):
        fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    else:
        return None
    return [(f".{name}", part) for name, part in fields.items()]
