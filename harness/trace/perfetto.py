"""The Perfetto export: TrackEvent protocol buffers, exact to the nanosecond.

A third of the size of the Chrome trace, with names and groups for tracks. The file is a sequence of
packets, so a file that is cut off keeps every whole packet. Field numbers are from
`protos/perfetto/trace/**` in google/perfetto.

A slice is two packets: its beginning with all its attributes, and its end. Names and texts that
recur are written once and referred to by number.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from harness.files import whole_file
from harness.trace.journal_reader import Journal
from harness.trace.records import Attributes, CounterSet, Instant, SpanRecord
from harness.trace.timeline import (
    Lane,
    TimelineDrawing,
    on_lane,
    slice_title,
    track_around,
    track_rank,
)

# --- Protocol buffers, as far as writing needs them --------------------------------------------
# https://protobuf.dev/programming-guides/encoding/: a message is a sequence of fields, each a tag
# (field number and wire type) and a value. The library for it builds an object for every packet,
# which takes several times as long as the packet itself.

_DIGIT = 1 << 14
# The varints of the integers below 2**14, by integer: to look one up is faster than to call.
_SHORT_VARINTS = [bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in range(_DIGIT)]
_MORE = [bytes([n & 127 | 128, n >> 7 | 128]) for n in range(_DIGIT)]
_UINT64 = (1 << 64) - 1


def _varint(number: int) -> bytes:
    """An integer, seven bits a byte; negative ones as 64 bits of two's complement."""
    if 0 <= number < _DIGIT:
        return _SHORT_VARINTS[number]
    number &= _UINT64
    digits = b""
    while number >= _DIGIT:
        digits += _MORE[number & _DIGIT - 1]
        number >>= 14
    return digits + _SHORT_VARINTS[number]


def _tag(field: int, wire_type: int) -> bytes:
    return _SHORT_VARINTS[field << 3 | wire_type]


def _integer(field: int, number: int) -> bytes:
    """A field of type int64, uint64, bool or enum."""
    return _tag(field, 0) + _varint(number)


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode("utf-8", "replace"))


def _message(field: int, body: bytes) -> bytes:
    """A field that holds a message, or bytes."""
    # Most of a file is made here: `_tag` and `_varint` without their calls.
    size = len(body)
    digits = _SHORT_VARINTS[size] if size < _DIGIT else _varint(size)
    return _SHORT_VARINTS[field << 3 | 2] + digits + body


def _fixed64(field: int, number: int) -> bytes:
    return _tag(field, 1) + struct.pack("<Q", number)


def _double(field: int, number: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", number)


# --- Packets ------------------------------------------------------------------------------------
# The most texts of one kind that get a number: a viewer holds all of them.
_MOST = 10_000
# Texts of more characters get no number: in attributes, they are mostly hashes and do not recur.
_SHORT = 40
_ROOT = 1  # the uuid of the group around all others
# The most tracks of one kind; with so many, ranks still have 32 bits.
_MOST_TRACKS = 10**8
# TracePacket: trusted_packet_sequence_id 1, and sequence_flags that say whether numbers of texts
# start afresh or go on.
_TIMESTAMP = _tag(8, 0)
_SEQUENCE, _STATE_BEGINS, _STATE_GOES_ON = _integer(10, 1), _integer(13, 3), _integer(13, 2)
_IN_SEQUENCE = _SEQUENCE + _STATE_GOES_ON
# TrackEvent: its type, then fields that are written often.
_BEGIN, _END, _INSTANT, _COUNTER = (_integer(9, kind) for kind in (1, 2, 3, 4))
_TRACK, _CATEGORY, _NAME, _ANNOTATION = _tag(11, 0), _tag(3, 0), _tag(10, 0), _tag(4, 2)
# flow_ids, which go on from there, and terminating_flow_ids.
_FLOW, _LAST_FLOW = 47, 48
# TrackDescriptor: child_ordering EXPLICIT; sibling_merge_behavior NONE, since a viewer would make
# one track of several that have one name.
_IN_GIVEN_ORDER, _NOT_MERGED = _integer(11, 3), _integer(15, 2)
# DebugAnnotation
_KEY, _INTEGER, _TEXT_NUMBER = _tag(1, 0), _tag(4, 0), _tag(17, 0)
_OF_A_SCALE = re.compile(r"points of (\d+(?:\.\d+)?)")
_INT64 = range(-(2**63), 2**63)


def write_perfetto_trace(journal: Journal, path: Path) -> None:
    """Writes a run as Perfetto TrackEvents, in memory that hardly grows with the run.

    Raises:
        JournalInvalid: A line in the middle of the journal is not a record.
        OSError: The file cannot be written.
    """
    with whole_file(path) as file:
        file.writelines(perfetto_packets(journal))


def perfetto_packets(journal: Journal) -> Iterator[bytes]:
    """The packets of a run."""
    return _Packets(journal).write()


class _Packets:
    def __init__(self, journal: Journal) -> None:
        self._run_id, self._origin_ns = journal.started.run_id, journal.started.time_ns
        self._drawing = TimelineDrawing(journal)
        self._tracks = _Tracks()
        self._counters: dict[tuple[int, str, str], bytes] = {}
        # Definitions that the next packet must hold before it refers to them by number.
        fresh = self._fresh = list[bytes]()
        self._categories, self._names = _Interned(1, fresh), _Interned(2, fresh)
        self._keys, self._texts = _Interned(3, fresh), _Interned(29, fresh)

    def write(self) -> Iterator[bytes]:
        yield _message(1, _SEQUENCE + _STATE_BEGINS)
        yield self._tracks.root(self._run_id)
        lanes = self._drawing.lanes
        yield from self._tracks.describe(lanes.track(None))
        for item, lane in self._drawing.items():
            if lane.number >= len(self._tracks.uuid_fields):
                yield from self._tracks.describe(lane)
            if type(item) is SpanRecord:
                # Ends are written when the next slice on the lane shows that nothing more can lie
                # before them, so that packets nest even where times are equal.
                yield from self._ends(lane)
                yield from self._begin(item, lane)
            elif type(item) is Instant:
                event = self._name(item.name) + self._annotations(item.attributes)
                uuid_field = self._tracks.uuid_fields[lane.number]
                yield self._packet(item.time_ns, _INSTANT + uuid_field + event)
            elif type(item) is CounterSet:
                yield from self._count(item, lane)
        for lane in lanes.close():
            yield from self._ends(lane)

    def _begin(self, span: SpanRecord, lane: Lane) -> Iterator[bytes]:
        event = (
            _BEGIN
            + self._tracks.uuid_fields[lane.number]
            + self._name(slice_title(span))
            + (self._categories.field(_CATEGORY, span.name) or _text(22, span.name))
            + self._annotations(self._drawing.arguments(span, lane))
        )
        for end in self._drawing.arrows(span):
            arrow = _fixed64(_FLOW if end.leaves else _LAST_FLOW, end.number)
            if end.mark:
                uuid_field = self._tracks.uuid_fields[end.mark.number]
                mark = _INSTANT + uuid_field + self._name(end.name)
                yield self._packet(span.start_ns, mark + arrow)
            else:
                event += arrow
        yield self._packet(span.start_ns, event)

    def _ends(self, lane: Lane) -> Iterator[bytes]:
        for end_ns in lane.ended:
            time = _TIMESTAMP + _varint(end_ns - self._origin_ns)
            event = _message(11, _END + self._tracks.uuid_fields[lane.number])
            # `_SEQUENCE` alone: nothing in it refers to a text by number.
            yield _message(1, time + _SEQUENCE + event)

    def _count(self, counter: CounterSet, lane: Lane) -> Iterator[bytes]:
        key = (lane.number, counter.name, counter.unit)
        if key not in self._counters:
            name = f"{on_lane(counter.name, lane)} {counter.unit}"
            description = _text(6, counter.unit)  # unit_name
            if scale := _OF_A_SCALE.fullmatch(counter.unit):
                # Scores on one track share an axis. A counter with the highest score of the scale
                # makes the axis reach that far.
                description += _text(7, counter.unit)  # y_axis_share_key
                first = self._drawing.lanes.track(lane.track)
                is_drawn = (first.number, "scale", counter.unit) in self._counters
                if counter.name != "scale" and not is_drawn:
                    highest = counter._replace(name="scale", value=float(scale[1]))
                    yield from self._count(highest, first)
            uuid, packet = self._tracks.add(name, lane.track, _message(8, description))
            self._counters[key] = _TRACK + _varint(uuid)
            yield packet
        value = counter.value
        # The fields counter_value and double_counter_value.
        number = _integer(30, value) if isinstance(value, int) else _double(44, value)
        yield self._packet(counter.time_ns, _COUNTER + self._counters[key] + number)

    def _packet(self, time_ns: int, event: bytes) -> bytes:
        body = _TIMESTAMP + _varint(time_ns - self._origin_ns) + _IN_SEQUENCE
        if self._fresh:
            # interned_data: a text is defined by the first packet that refers to it.
            body += _message(12, b"".join(self._fresh))
            self._fresh.clear()
        return _message(1, body + _message(11, event))

    def _name(self, name: str) -> bytes:
        return self._names.field(_NAME, name) or _text(23, name)

    def _annotations(self, attributes: Attributes) -> bytes:
        """Every attribute except None as a DebugAnnotation."""
        entries = attributes.items()
        return b"".join([_message(4, self._annotation(k, v)) for k, v in entries if v is not None])

    def _annotation(self, key: str, value: object) -> bytes:
        return (self._keys.field(_KEY, key) or _text(10, key)) + self._value(value)

    def _value(self, value: object) -> bytes:
        if isinstance(value, str):
            reference = self._texts.field(_TEXT_NUMBER, value) if len(value) <= _SHORT else None
            return reference or _text(6, value)  # no reference: the table of texts is full
        if isinstance(value, dict):
            entries = [(str(key), entry) for key, entry in value.items() if entry is not None]
            return b"".join(_message(11, self._annotation(key, entry)) for key, entry in entries)
        if isinstance(value, list):
            return b"".join(_message(12, self._value(item)) for item in value if item is not None)
        return _scalar(value)


class _Tracks:
    """Tracks as groups, lanes as the tracks in them."""

    def __init__(self) -> None:
        self._uuids = count(_ROOT + 1)
        self._groups: dict[str, int] = {}
        # Number of a lane → the field `track_uuid` of its events.
        self.uuid_fields: list[bytes] = []

    def root(self, name: str) -> bytes:
        """The packet of the group around all others: viewers sort tracks without one by name."""
        return _descriptor(_ROOT, name, _IN_GIVEN_ORDER)

    def describe(self, lane: Lane) -> Iterator[bytes]:
        """The packets that describe a new lane; lanes are numbered as they appear."""
        yield from self._group(lane.track)
        uuid, packet = self.add(
            on_lane(lane.track, lane), lane.track, _integer(12, lane.index) + _NOT_MERGED
        )
        yield packet
        self.uuid_fields.append(_TRACK + _varint(uuid))

    def _group(self, track: str) -> Iterator[bytes]:
        """The packets that describe a track's group, and the groups around it, if new."""
        if track in self._groups:
            return
        around = track_around(track)
        if around:
            yield from self._group(around)
        self._groups[track] = uuid = next(self._uuids)
        parent_uuid = _integer(5, self._groups.get(around, _ROOT))
        # sibling_order_rank: by kind, then in the order in which tracks appear.
        rank = _integer(12, track_rank(track) * _MOST_TRACKS + uuid)
        yield _descriptor(uuid, track, _IN_GIVEN_ORDER + parent_uuid + rank)

    def add(self, name: str, group: str, fields: bytes) -> tuple[int, bytes]:
        """A new track in a group: its uuid, and the packet that describes it."""
        uuid = next(self._uuids)
        return uuid, _descriptor(uuid, name, _integer(5, self._groups[group]) + fields)


class _Interned:
    """Texts that are written once and then referred to by number.

    `kind` is InternedData's field for them; `fresh` receives the definition of each new one.
    """

    def __init__(self, kind: int, fresh: list[bytes]) -> None:
        self._kind = kind
        self._fresh = fresh
        self._fields: dict[str, bytes] = {}

    def field(self, tag: bytes, text: str) -> bytes | None:
        """The field with this `tag` that refers to a text; None if too many texts have a number."""
        reference = self._fields.get(text)
        if reference is None and len(self._fields) < _MOST:
            number = len(self._fields) + 1
            reference = self._fields[text] = tag + _varint(number)
            self._fresh.append(_message(self._kind, _integer(1, number) + _text(2, text)))
        return reference


def _scalar(value: object) -> bytes:
    # Bools come before integers, since a bool is an integer, too.
    if isinstance(value, bool):
        return _integer(2, value)
    if isinstance(value, int) and _INT64.start <= value < _INT64.stop:
        return _INTEGER + _varint(value)
    return _double(5, value) if isinstance(value, float) else _text(6, str(value))


def _descriptor(uuid: int, name: str, fields: bytes) -> bytes:
    return _message(1, _IN_SEQUENCE + _message(60, _integer(1, uuid) + _text(2, name) + fields))
