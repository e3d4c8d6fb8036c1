"""What a journal is made of: one record per line, in the order things happened.

Times are integer nanoseconds of the run's own clock; `RunStarted` ties that clock to the wall.
A record is one JSON object whose `kind` says which class it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar, Literal

import orjson

from harness.trace.lenient_json import dump_json

SCHEMA_VERSION = 1
"""Raised when a reader of the last version could misread a new journal."""

Attributes = Mapping[str, object]
"""What varies about a span or instant: JSON values under short names, units in the name."""

SpanStatus = Literal["ok", "error", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first record of every journal."""

    kind: ClassVar[str] = "run"
    schema: int
    """`SCHEMA_VERSION` of the writer."""
    run_id: str
    """`YYYYMMDDTHHMMSSZ-` and 12 hexadecimal digits."""
    name: str
    """What was run: the pipeline's name."""
    wall_ns: int
    """Unix time, in nanoseconds, at the moment the run's clock showed `time_ns`."""
    time_ns: int
    """The run's clock at its start."""
    process_id: int
    """The process that wrote the journal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanStarted:
    """Something began that takes time."""

    kind: ClassVar[str] = "begin"
    id: int
    """Unique in the run, counted from 1."""
    parent: int | None
    """The span it happens inside of."""
    name: str
    """A fixed phrase; what varies is an attribute."""
    time_ns: int
    """When it began."""
    attributes: Attributes = field(default_factory=dict)
    """What was known at the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEnded:
    """A span is over."""

    kind: ClassVar[str] = "end"
    id: int
    """The span that ended."""
    time_ns: int
    """When it ended."""
    status: SpanStatus = "ok"
    """`cancelled` covers Ctrl-C and a sibling's failure: the span itself did nothing wrong."""
    error: str | None = None
    """Class and message of the exception that left the span."""
    attributes: Attributes = field(default_factory=dict)
    """What became known on the way; joined with those of the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """Something happened at one moment."""

    kind: ClassVar[str] = "instant"
    span: int | None
    """The span it happened in."""
    name: str
    """A fixed phrase."""
    time_ns: int
    """When."""
    attributes: Attributes = field(default_factory=dict)
    """What varies about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterSet:
    """A quantity took a value, which holds until the next record of the same name."""

    kind: ClassVar[str] = "counter"
    name: str
    """Fixed for the quantity."""
    unit: str
    """What the value counts: `points`, `tokens`, `bytes`."""
    time_ns: int
    """When."""
    value: float
    """The new value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A text that spans refer to by its hash: prompts, completions, drafts. Stored once a run."""

    kind: ClassVar[str] = "content"
    sha256: str
    """Hexadecimal digest of the UTF-8 text."""
    text: str
    """The text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOutput:
    """What a node returned; in the journal before anything that depends on it starts."""

    kind: ClassVar[str] = "output"
    node: str
    """The node's name."""
    item: int | None
    """Which item of a mapped node, counted from 0; None for a plain node."""
    value: object
    """The value as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    """The last record of a run that was not killed."""

    kind: ClassVar[str] = "run end"
    time_ns: int
    """When."""
    status: SpanStatus
    """How it ended."""
    error: str | None = None
    """Class and message of what ended it."""


Record = (
    RunStarted | SpanStarted | SpanEnded | Instant | CounterSet | Content | NodeOutput | RunEnded
)

_CLASSES: dict[str, type[Record]] = {
    record.kind: record
    for record in (
        RunStarted,
        SpanStarted,
        SpanEnded,
        Instant,
        CounterSet,
        Content,
        NodeOutput,
        RunEnded,
    )
}
_FIELDS = {kind: tuple(f.name for f in fields(record)) for kind, record in _CLASSES.items()}


def encode(record: Record) -> bytes:
    """One line of a journal, with its newline; `dump_json` says what becomes of odd values."""
    values = {"kind": record.kind}
    for name in _FIELDS[record.kind]:
        values[name] = getattr(record, name)
    return dump_json(values) + b"\n"


def decode(line: bytes) -> Record:
    """The record on one line. Fields that a later version added are left out.

    Raises:
        ValueError: The line is not a record.
    """
    values = orjson.loads(line)
    kind = values.get("kind") if isinstance(values, dict) else None
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise ValueError("not a journal record")
    known = {name: values[name] for name in _FIELDS[kind] if name in values}
    try:
        return _CLASSES[kind](**known)
    except TypeError as error:
        raise ValueError(str(error)) from error
