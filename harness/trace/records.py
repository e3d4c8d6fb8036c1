"""What a journal is made of: one record per line, in the order things happened.

Times are integer nanoseconds of the run's own clock; `RunStarted` ties that clock to the wall.
A record is one JSON object whose `kind` says which class it is; fields at their defaults are left
out. A span that was over when its line was written is one record; one that was open has a record
for each end, so that a killed run still shows what it was doing.

Named tuples rather than dataclasses: making a frozen dataclass takes three times as long, and a
long run has millions of records.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import orjson

from harness.trace.lenient_json import dump_json

SCHEMA_VERSION = 1
"""Raised when a reader of the last version could misread a new journal."""

Attributes = Mapping[str, object]
"""What varies about a span or instant: JSON values under short names, units in the name."""

SpanStatus = Literal["ok", "error", "cancelled", "unfinished"]
"""`cancelled` covers Ctrl-C and a sibling's failure: the span itself did nothing wrong.
`unfinished`: the process was killed first, or a thread outlived the run."""

_NONE: Attributes = {}


class RunStarted(NamedTuple):
    """The first record of every journal."""

    schema: int
    """`SCHEMA_VERSION` of the writer."""
    run_id: str
    """`YYYYMMDDTHHMMSSZ-` and 12 hexadecimal digits."""
    name: str
    """What was run: the pipeline's name."""
    wall_ns: int
    """Unix time, in nanoseconds, at the moment the process's clock showed `time_ns`."""
    time_ns: int
    """The process's clock at its start."""
    process_id: int
    """The process that wrote the journal."""
    parent: int | None = None
    """For a process that joined a run: the span of the main process that it works for."""
    joined_ns: int | None = None
    """And what the main process's clock showed when it was asked to join."""


class SpanStarted(NamedTuple):
    """Something began that takes time."""

    id: int
    """Unique in its process, counted from 1."""
    parent: int | None
    """The span it happens inside of."""
    name: str
    """A fixed phrase; what varies is an attribute."""
    time_ns: int
    """When it began."""
    attributes: Attributes = _NONE
    """What was known at the start."""


class SpanEnded(NamedTuple):
    """A span is over."""

    id: int
    """The span that ended."""
    time_ns: int
    """When it ended."""
    status: SpanStatus = "ok"
    """How it ended."""
    error: str | None = None
    """Class and message of the exception that left the span."""
    attributes: Attributes = _NONE
    """What became known on the way; joined with those of the start."""


class SpanRecord(NamedTuple):
    """A span with both its ends."""

    id: int
    """Unique in the run."""
    parent: int | None
    """The span it happened inside of."""
    name: str
    """A fixed phrase."""
    start_ns: int
    """When it began, on the run's clock."""
    end_ns: int
    """When it ended; the run's last moment for a span that never did."""
    status: SpanStatus = "ok"
    """How it ended."""
    error: str | None = None
    """What left it, if an exception did."""
    attributes: Attributes = _NONE
    """Those of its start and its end, joined."""

    @property
    def duration_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns


class Instant(NamedTuple):
    """Something happened at one moment."""

    span: int | None
    """The span it happened in."""
    name: str
    """A fixed phrase."""
    time_ns: int
    """When."""
    attributes: Attributes = _NONE
    """What varies about it."""


class CounterSet(NamedTuple):
    """A quantity took a value, which holds until the next record of the same name and place."""

    name: str
    """Fixed for the quantity."""
    unit: str
    """What the value counts: `points`, `tokens`, `bytes`."""
    time_ns: int
    """When."""
    value: float
    """The new value."""
    span: int | None = None
    """The span that set it; it is drawn on that span's track."""
    track: str | None = None
    """The track it is drawn on instead."""


class Flow(NamedTuple):
    """One span led to another: a draft to its verdict, a node to the node that waited for it."""

    name: str
    """What went along: a fixed phrase."""
    source: int
    """The span it came from."""
    target: int
    """The span it went to."""


class Content(NamedTuple):
    """A text that spans refer to by its hash: prompts, completions, drafts. Stored once a run."""

    sha256: str
    """Hexadecimal digest of the UTF-8 text."""
    text: str
    """The text."""


class NodeOutput(NamedTuple):
    """What a node returned; on disk before anything that depends on it starts."""

    node: str
    """The node's name."""
    item: int | None
    """Which item of a mapped node, counted from 0; None for a plain node."""
    value: object
    """The value as JSON; None when the run records no texts."""


class RunEnded(NamedTuple):
    """The last record of a process that was not killed."""

    time_ns: int
    """When."""
    status: SpanStatus
    """How it ended."""
    error: str | None = None
    """Class and message of what ended it."""


Record = (
    RunStarted
    | SpanStarted
    | SpanEnded
    | SpanRecord
    | Instant
    | CounterSet
    | Flow
    | Content
    | NodeOutput
    | RunEnded
)

# The word of each class in a journal. Readers look for some of these lines by how they begin.
_KINDS: dict[type[Record], str] = {
    RunStarted: "run",
    SpanStarted: "begin",
    SpanEnded: "end",
    SpanRecord: "span",
    Instant: "instant",
    CounterSet: "counter",
    Flow: "flow",
    Content: "content",
    NodeOutput: "output",
    RunEnded: "run end",
}
_CLASSES = {kind: record for record, kind in _KINDS.items()}
_NO_DEFAULT = object()
_DEFAULTS: dict[type[Record], tuple[object, ...]] = {
    record: tuple(record._field_defaults.get(name, _NO_DEFAULT) for name in record._fields)
    for record in _KINDS
}


def line_start(record: type[Record]) -> bytes:
    """What every line of a class begins with."""
    return b'{"kind":"%b",' % _KINDS[record].encode()


def encode(record: Record) -> bytes:
    """One line of a journal, with its newline; `dump_json` says what becomes of odd values."""
    cls = type(record)
    if type(record) is SpanRecord:
        return dump_json(_span_values(record)) + b"\n"
    values = {
        name: value
        for name, value, default in zip(cls._fields, record, _DEFAULTS[cls], strict=True)
        if default is _NO_DEFAULT or value != default
    }
    return dump_json({"kind": _KINDS[cls], **values}) + b"\n"


def _span_values(span: SpanRecord) -> dict[str, object]:
    """As for any other record, in half the time: most lines of a long journal are these."""
    number, parent, name, start_ns, end_ns, status, error, attributes = span
    values: dict[str, object] = {
        "kind": "span",
        "id": number,
        "parent": parent,
        "name": name,
        "start_ns": start_ns,
        "end_ns": end_ns,
    }
    if status != "ok":
        values["status"] = status
    if error is not None:
        values["error"] = error
    if attributes:
        values["attributes"] = attributes
    return values


def decode(line: bytes) -> Record:
    """The record on one line. Fields that a later version added are left out.

    Raises:
        ValueError: The line is not a record.
    """
    values = orjson.loads(line)
    try:
        kind = values["kind"]
        if kind == "span":
            # As below, in half the time: most lines of a long journal are these.
            get = values.get
            fields = (
                values["id"],
                values["parent"],
                values["name"],
                values["start_ns"],
                values["end_ns"],
                get("status", "ok"),
                get("error"),
                get("attributes", _NONE),
            )
            return tuple.__new__(SpanRecord, fields)
        cls = _CLASSES[kind]
        return cls(**{name: values[name] for name in cls._fields if name in values})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a journal record") from error


def joined(started: SpanStarted, ended: SpanEnded) -> SpanRecord:
    """A span from the records of its two ends."""
    return SpanRecord(
        started.id,
        started.parent,
        started.name,
        started.time_ns,
        ended.time_ns,
        ended.status,
        ended.error,
        {**started.attributes, **ended.attributes} if ended.attributes else started.attributes,
    )
