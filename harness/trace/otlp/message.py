"""Parts of the messages of OTLP, OpenTelemetry's protocol, as far as a trace needs them.

Written field by field, as for Perfetto. Numbers are those of open-telemetry/opentelemetry-proto 1.x
(`trace/v1/trace.proto` and what it imports), where they are stable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from harness.trace.lenient_json import dump_json
from harness.trace.protobuf import double, fixed64, integer, message, text

_INT64 = range(-(1 << 63), 1 << 63)


def export_request(
    spans: Iterable[bytes], *, resource: Mapping[str, object], version: str
) -> bytes:
    """`ExportTraceServiceRequest`: spans of one process, as one POST carries them.

    Args:
        spans: `Span` messages.
        resource: Attributes of the process.
        version: This library's, which recorded them.
    """
    scope = text(1, "harness") + text(2, version)
    of_scope = message(1, scope) + b"".join([message(2, span) for span in spans])
    return message(1, message(1, attributes(1, resource)) + message(2, of_scope))


def event(name: str, unix_ns: int, values: Mapping[str, object]) -> bytes:
    """`Span.Event`."""
    return fixed64(1, unix_ns) + text(2, name) + attributes(3, values)


def link(trace_id: bytes, span_id: bytes, values: Mapping[str, object]) -> bytes:
    """`Span.Link`."""
    return message(1, trace_id) + message(2, span_id) + attributes(4, values)


def attributes(field: int, values: Mapping[str, object]) -> bytes:
    """Values as so many `KeyValue`; there is none for None.

    A list of texts, of numbers of one kind or of booleans stays one. What else is not a scalar goes
    as JSON, as does an integer that 64 bits do not hold.
    """
    return b"".join(
        message(field, text(1, name) + message(2, _any_value(value)))
        for name, value in values.items()
        if value is not None
    )


def partial_success(response: bytes) -> tuple[int, str]:
    """What an `ExportTraceServiceResponse` says: how many spans were rejected, and why.

    Raises:
        ValueError: It is no such message.
    """
    rejected, said = 0, ""
    for number, value in _fields(response):
        for inner, part in _fields(value) if number == 1 and isinstance(value, bytes) else ():
            if inner == 1 and isinstance(part, int):
                rejected = part
            elif inner == 2 and isinstance(part, bytes):
                said = part.decode("utf-8", "replace")
    return rejected, said


def status_message(response: bytes) -> str:
    """The message of a `google.rpc.Status`, which is what refusals hold.

    Raises:
        ValueError: It is no such message.
    """
    texts = [value for number, value in _fields(response) if number == 2]
    return texts[0].decode("utf-8", "replace") if texts and isinstance(texts[0], bytes) else ""


def _any_value(value: object) -> bytes:
    match value:
        case bool():
            return integer(2, value)
        case int() if value in _INT64:
            return integer(3, value)
        case float():
            return double(4, value)
        case str():
            return text(1, value)
        case list() if {type(one) for one in value} in ({str}, {int}, {float}, {bool}):
            return message(5, b"".join(message(1, _any_value(one)) for one in value))
        case _:
            return text(1, dump_json(value).decode())


def _fields(body: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message: number and value.

    Raises:
        ValueError: It is cut off, or has fields of kinds that no reply has.
    """
    at = 0
    while at < len(body):
        tag, at = _varint(body, at)
        value, at = _varint(body, at)
        match tag & 7:
            case 0:
                yield tag >> 3, value
            case 2 if at + value <= len(body):
                yield tag >> 3, body[at : at + value]
                at += value
            case _:
                raise ValueError("not a message that collectors send")


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """An integer, and where it ends."""
    number = shift = 0
    while at < len(body):
        byte = body[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise ValueError("cut off")
