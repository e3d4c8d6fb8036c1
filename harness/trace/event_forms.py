"""The form of events: from their fields to the attributes of a record, and back.

An event's name is the name of its class, in small words and without `Event`; its fields are its
attributes, in order. A field that has its default is not written. A field that a span learns later
has the default None, and is added by `Span.set`. If an attribute is missing or has another type, as
in a damaged journal, its field has the default, else None or an empty value; a field of type `str`
has the value as a text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from sys import intern
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Self,
    Union,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from harness.trace.records import (
    Attributes,
    Instant,
    Interval,
    SpanRecord,
    SpanStarted,
    SpanStatus,
    describe,
    error_class,
)

# The default of a field that some writers leave out, and that others write even if it is None.
UNSAID: Any = object()
NO_ATTRIBUTES: Attributes = {}

NAMES: set[str] = set()  # the names of all events
# Longer texts are not interned: hashes have more characters, and differ in every call.
_LONGEST_WORD = 40


class Text:
    """A text that an attribute refers to by hash; read, or made, only with the record."""

    __slots__ = ("_source",)

    def __init__(self, source: str | Callable[[], str]) -> None:
        self._source = source

    def read(self) -> str:
        """The text; if its source raises, the error, since tracing never raises into the run."""
        try:
            return self._source if isinstance(self._source, str) else self._source()
        except Exception as error:  # noqa: BLE001 - whatever its source raises
            return f"<{describe(error)}>"


def words_of(cls: type) -> str:
    """A class's name in small words."""
    # Some classes have this ending because another class has the name without it.
    name = cls.__name__.removesuffix("Event")
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Event:
    """An event, in the words of the journal."""

    NAME: ClassVar[str]
    RECORDS: ClassVar[tuple[type, ...]] = ()
    attributes: Attributes = NO_ATTRIBUTES  # as they were read, with those that have no field

    def __init_subclass__(cls, *, name: str = "") -> None:
        cls.NAME = name or words_of(cls)
        NAMES.add(cls.NAME)
        dataclass(frozen=True, kw_only=True)(cls)

    @classmethod
    def of(cls, record: object) -> Self | None:
        """The event of a span or an instant; None if it is another event's."""
        is_own = isinstance(record, cls.RECORDS) and cast("Instant", record).name == cls.NAME
        return cls.read(cast("Instant", record)) if is_own else None

    @classmethod
    def read(cls, record: SpanRecord | SpanStarted | Instant, **known: object) -> Self:
        """The event of a record of any name; fields in `known` win over its attributes."""
        event = object.__new__(cls)
        form = _form(cast("Any", cls))
        # 1. The fields of the record itself.
        values = record._asdict() | known
        # 2. The attributes that have a field of their type.
        for name, value in record.attributes.items():
            if name not in form.types or name in known:
                continue
            if isinstance(value, form.types[name]):
                values[name] = value if type(value) is not list else tuple(value)
            # A value of another type counts as its text, or as missing where that is None.
            elif form.types[name] == (str,) and form.missing[name] is not None:
                values[name] = str(value)
        event.learn(**values)
        return event

    def with_fields(self, **values: object) -> Self:
        """A copy with these fields."""
        event = copy(self)
        event.learn(**values)
        return event

    def learn(self, **values: object) -> None:
        """Sets fields while the event is being read; `_form` has set the others on the class."""
        missing = _form(cast("Any", type(self))).missing
        for name, value in values.items():
            if name in missing and value is not missing[name]:
                # One object for all equal short texts, such as a model's tag.
                if isinstance(value, str) and len(value) <= _LONGEST_WORD:
                    value = intern(value)  # noqa: PLW2901 - the same text
                # One by one, since objects whose `__dict__` is not used share its keys, and take a
                # third of the memory.
                object.__setattr__(self, name, value)


class SpanEvent(Event, Interval):
    """An event that takes time; its times, by the run's clock, are set where it was read."""

    RECORDS = (SpanRecord, SpanStarted)
    id: int = field(init=False, default=0)
    parent: int | None = field(init=False, default=None)
    start_ns: int = field(init=False, default=0)
    end_ns: int = field(init=False, default=0)
    status: SpanStatus = field(init=False, default="ok")
    error: str | None = field(init=False, default=None)

    @property
    def caption(self) -> str:
        """The display name: its label, or else its name."""
        return str(self.attributes.get("label") or self.NAME)

    @property
    def error_class(self) -> str:
        """The class of the error that ended it; empty without one."""
        return error_class(self.error)


class InstantEvent(Event):
    """An event at a moment, in the span that it happened in."""

    RECORDS = (Instant,)
    span: int | None = field(init=False, default=None)
    time_ns: int = field(init=False, default=0)


_JSON: Mapping[object, tuple[type, ...]] = {
    Any: (object,), Literal: (str,), Mapping: (dict,), Text: (), float: (int, float),
    tuple: (list, tuple),
}  # fmt: skip


def _types(hint: object) -> tuple[type, ...]:
    """The types that JSON has for an annotation."""
    origin = get_origin(hint) or hint
    if origin in {Union, UnionType}:
        return tuple(kind for part in get_args(hint) for kind in _types(part))
    return _JSON.get(origin, (cast("type", origin),))


class _Form(NamedTuple):
    """The fields of a class of events, by name."""

    defaults: dict[str, object]  # field → the value that is not written
    missing: dict[str, object]  # field → its value if the record has none
    types: dict[str, tuple[type, ...]]  # field → the types of attributes that it is read from


@cache
def _form(cls: type[Event]) -> _Form:
    form = _Form(defaults={}, missing={"attributes": NO_ATTRIBUTES}, types={})
    hints = get_type_hints(cls)
    for part in fields(cast("Any", cls)):
        types = _types(hints[part.name])
        if part.init:
            form.defaults[part.name], form.types[part.name] = part.default, types
        if part.default is not MISSING:
            missing = None if part.default is UNSAID else part.default
        elif NoneType in types or object in types:
            missing = None
        elif list in types:
            missing = ()
        else:
            missing = "None" if str in types else types[0]()
        form.missing[part.name] = missing
        # On the class, not on each event: there may be 100,000.
        setattr(cls, part.name, missing)
    return form


def written(event: Event | tuple[Any, ...]) -> tuple[str, dict[str, object]]:
    """The name and the attributes of an event."""
    if not isinstance(event, Event):
        return words_of(type(event)), cast("Any", event)._asdict()
    values = {
        name: value
        for name, default in _form(cast("Any", type(event))).defaults.items()
        if (value := getattr(event, name)) is not default
    }
    more = values.pop("more", {})
    return event.NAME, values | more


def without_fields(kind: type[Event], attributes: Attributes) -> Attributes:
    """The attributes that have no field of this kind of event."""
    types = _form(cast("Any", kind)).types
    return {name: value for name, value in attributes.items() if name not in types} or NO_ATTRIBUTES


def attributes_of(event: Event) -> dict[str, object]:
    """The attributes of an event that was read, without those that its record did not have."""
    form = _form(cast("Any", type(event)))
    values = {name: getattr(event, name) for name in form.types}
    values = {name: value for name, value in values.items() if value is not form.missing[name]}
    return values | {**event.attributes}
