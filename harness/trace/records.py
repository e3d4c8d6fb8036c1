"""What a journal is made of: one record per line, in the order things happened.

Times are integer nanoseconds of the run's own clock; `RunStarted` ties that clock to the wall.
A record is one JSON object whose `kind` says which class it is; fields at their defaults are left
out. A span that was over when its line was written is one record; one that was open has a record
for each end, so that a killed run still shows what it was doing.

Named tuples rather than dataclasses: making a frozen dataclass takes three times as long, and a
long run has millions of records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, get_args

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
    boot_id: str | None = None
    """`harness.trace.clock.boot_id`: processes with the same one share their clock."""


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
_STATUSES: tuple[str, ...] = get_args(SpanStatus)
_MOST_ID = 2**48
_MOST_NS = 2**63 - 1
_WITH_ID = (SpanStarted, SpanEnded, SpanRecord)
_IDS_AHEAD = 1_000_000
"""By how much an id may exceed the number of its line. Ids count from 1 and every span has a line,
so that only threads and records lost on the way let ids run ahead; what is kept by id, in a table,
must not be at the mercy of a damaged one."""


def _is_id(value: object) -> bool:
    return type(value) is int and 0 < value <= _MOST_ID


def _is_time(value: object) -> bool:
    # What is below 64 bits, orjson reads as a float.
    return type(value) is int and value <= _MOST_NS


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST_ID


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _is_text(value: object) -> bool:
    return type(value) is str


def _is_status(value: object) -> bool:
    return value in _STATUSES


def _is_attributes(value: object) -> bool:
    return isinstance(value, Mapping)


def _is_anything(_value: object) -> bool:
    return True


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


_MAYBE_ID, _MAYBE_TIME, _MAYBE_TEXT = _or_none(_is_id), _or_none(_is_time), _or_none(_is_text)

# What each field may be, in the order of the class's fields.
_FITS: dict[type[Record], tuple[Callable[[object], bool], ...]] = {
    RunStarted: (
        _is_whole, _is_text, _is_text, _is_time, _is_time, _is_whole, _MAYBE_ID, _MAYBE_TIME,
        _MAYBE_TEXT,
    ),
    SpanStarted: (_is_id, _MAYBE_ID, _is_text, _is_time, _is_attributes),
    SpanEnded: (_is_id, _is_time, _is_status, _MAYBE_TEXT, _is_attributes),
    SpanRecord: (
        _is_id, _MAYBE_ID, _is_text, _is_time, _is_time, _is_status, _MAYBE_TEXT, _is_attributes,
    ),
    Instant: (_MAYBE_ID, _is_text, _is_time, _is_attributes),
    CounterSet: (_is_text, _is_text, _is_time, _is_number, _MAYBE_ID, _MAYBE_TEXT),
    Flow: (_is_text, _is_id, _is_id),
    Content: (_is_text, _is_text),
    NodeOutput: (_is_text, _or_none(_is_whole), _is_anything),
    RunEnded: (_is_time, _is_status, _MAYBE_TEXT),
}  # fmt: skip
_LONGEST_EXCERPT = 40
_NO_DEFAULT = object()
_DEFAULTS: dict[type[Record], tuple[object, ...]] = {
    record: tuple(record._field_defaults.get(name, _NO_DEFAULT) for name in record._fields)
    for record in _KINDS
}


def kind_of(record: Record) -> str:
    """The word of a record's class in a journal."""
    return _KINDS[type(record)]


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


def decode(line: bytes, *, number: int = _MOST_ID) -> Record:
    """The record on one line. Fields that a later version added are left out.

    Args:
        line: With its newline or without.
        number: Which line of its file it is, counted from 1, if that is known.

    Raises:
        ValueError: The line is not a record, a field is not of its type, or a span's id is far
            beyond what there can be by this line.
    """
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from error
    try:
        kind = values["kind"]
        if kind == "span":
            # As below, in half the time: most lines of a long journal are these.
            get = values.get
            fields = span, parent, name, start_ns, end_ns, status, left_by, attributes = (
                values["id"],
                values["parent"],
                values["name"],
                values["start_ns"],
                values["end_ns"],
                get("status", "ok"),
                get("error"),
                get("attributes", _NONE),
            )
            if (
                type(span) is type(start_ns) is type(end_ns) is int
                and type(name) is str
                and 0 < span <= number + _IDS_AHEAD
                and (parent is None or (type(parent) is int and 0 < parent <= _MOST_ID))
                and start_ns <= _MOST_NS
                and end_ns <= _MOST_NS
                and status in _STATUSES
                and (left_by is None or type(left_by) is str)
                and (attributes is _NONE or type(attributes) is dict)
            ):
                return tuple.__new__(SpanRecord, fields)
        cls = _CLASSES[kind]
        record = cls(**{name: values[name] for name in cls._fields if name in values})
        for name, value, fits in zip(cls._fields, record, _FITS[cls], strict=True):
            if not fits(value):
                raise ValueError(f"{name} of a '{kind}' cannot be {_excerpt(value)}")
        if isinstance(record, _WITH_ID) and record.id > number + _IDS_AHEAD:
            raise ValueError(f"there cannot be a span {record.id} by line {number}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a journal record") from error
    return record


def _excerpt(value: object) -> str:
    text = dump_json(value).decode()
    return text if len(text) <= _LONGEST_EXCERPT else text[:_LONGEST_EXCERPT] + "…"


def last_moment(record: Record) -> int:
    """The latest time a record speaks of, in nanoseconds; 0 if of none."""
    match record:
        case SpanRecord(end_ns=time_ns):
            return time_ns
        case Content() | NodeOutput() | Flow():
            return 0
        case _:
            return record.time_ns


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
