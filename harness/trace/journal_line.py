"""The lines of a journal: records as JSON, written and parsed.

`kind` names a line's class; fields at their defaults are left out. Disks and editors damage files,
and everything made from a journal relies on its types: each line has a checksum, and one without is
no record.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any
from zlib import crc32

import orjson

from harness.trace.records import (
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    NodeOutput,
    Record,
    RunEnded,
    RunStarted,
    SpanEnded,
    SpanRecord,
    SpanStarted,
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
    Flows: "flows",
    Content: "content",
    NodeOutput: "output",
    RunEnded: "run end",
}
_CLASSES = {kind: record for record, kind in _KINDS.items()}
_LINE, _CRC = b',"line":', b',"crc":'
_SEAL = re.compile(rb"%b(\d+)%b(\d+)\}\n?\Z" % (_LINE, _CRC))
_NO_DEFAULT = object()
_FIELDS = {record: itemgetter(*record._fields) for record in _KINDS}
_DEFAULTS: dict[type[Record], tuple[object, ...]] = {
    record: tuple(record._field_defaults.get(name, _NO_DEFAULT) for name in record._fields)
    for record in _KINDS
}


def line_start(record: type[Record]) -> bytes:
    """The beginning of every line of a class."""
    return b'{"kind":"%b",' % _KINDS[record].encode()


def encode(record: Record) -> bytes:
    """One line of a journal, with its newline. `dump_json` says what becomes of odd values."""
    values = _VALUES.get(type(record), _values)
    return dump_json(values(record)) + b"\n"


def _values(record: Record) -> dict[str, object]:
    cls = type(record)
    return {
        "kind": _KINDS[cls],
        **{
            name: value
            for name, value, default in zip(cls._fields, record, _DEFAULTS[cls], strict=True)
            if default is _NO_DEFAULT or value != default
        },
    }


# Nearly all lines of a long journal have a function of their own, which takes half the time.
def _span_values(span: SpanRecord) -> dict[str, object]:
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


_VALUES: dict[type[Record], Callable[[Any], dict[str, object]]] = {
    SpanRecord: _span_values,
    Flow: lambda flow: {"kind": "flow", **flow._asdict()},
    Flows: lambda flows: {"kind": "flows", **flows._asdict()},
}


def seal(line: bytes, number: int) -> bytes:
    """A line of `encode` with its number in the file, from 1, and a checksum."""
    # Without the closing brace and the newline.
    numbered = b"%b%b%d" % (line[:-2], _LINE, number)
    return b"%b%b%d}\n" % (numbered, _CRC, crc32(numbered))


def sealed_number(line: bytes) -> int | None:
    """The number of a line; None if its checksum does not hold."""
    match = _SEAL.match(line, max(0, line.rfind(_LINE)))
    if match is None or crc32(line[: match.end(1)]) != int(match[2]):
        return None
    return int(match[1])


def decode(line: bytes, *, number: int | None = None) -> Record:
    """The record on a line that `seal` made; `number`, from 1, is its place in the file, if known.

    Fields that a later version added are left out. Raises ValueError if the line is no record, or
    was changed or moved since it was written.
    """
    try:
        values = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from error
    try:
        cls = _CLASSES[values["kind"]]
        if crc32(line[: line.rfind(_CRC)]) != values["crc"]:
            raise ValueError("its checksum does not hold: it was changed after it was written")
        if number not in (None, values["line"]):
            raise ValueError(f"it was line {values['line']} when it was written")
        # Unknown fields are left out; a missing one without a default raises KeyError.
        record = tuple.__new__(cls, _FIELDS[cls](cls._field_defaults | values))
    except (KeyError, TypeError) as error:
        raise ValueError("not a journal record") from error
    return record._replace(sources=tuple(record.sources)) if type(record) is Flows else record


_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
# Levels of nesting that are kept when a value has to be cleaned; orjson refuses 255.
_DEEPEST = 100


def dump_json(value: object) -> bytes:
    """A value as JSON on one line, without a newline. Never raises.

    Falls back to `repr`. NaN and infinities become null, lone surrogates `?`, integers beyond 64
    bits text; a value that contains itself is cut off there. An `orjson.Fragment` is kept as it is.
    """
    try:
        return orjson.dumps(value, default=_described, option=_OPTIONS)
    except orjson.JSONEncodeError:
        # Rare, and slower: only what orjson refuses outright comes here.
        return orjson.dumps(_cleaned(value, ()), option=_OPTIONS)


def _cleaned(value: object, containers: tuple[int, ...]) -> object:  # noqa: PLR0911 - a table of kinds
    """A copy that orjson accepts; `containers` has the `id` of every container around the value."""
    inside = (*containers, id(value))
    match value:
        case bool() | None | orjson.Fragment():
            return value
        case float():
            return float(value)
        case int() if -(2**63) <= value < 2**64:
            return int(value)
        # The value contains itself, or is nested too deeply for a person to read.
        case Mapping() | list() | tuple() if id(value) in containers or len(inside) > _DEEPEST:
            return "…"
        case Mapping():
            return {_text(name): _cleaned(item, inside) for name, item in value.items()}
        case list() | tuple():
            return [_cleaned(item, inside) for item in value]
        case _:
            return _text(value)


def _text(value: object) -> str:
    return _described(value).encode("utf-8", "replace").decode("utf-8")


def _described(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - its author's mistake; it must not end the run
        return f"<{type(value).__name__}>"
