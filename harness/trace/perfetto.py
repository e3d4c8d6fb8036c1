"""The Perfetto export: TrackEvent protocol buffers, exact to the nanosecond.

A third of the size of the Chrome trace, and tracks have names and groups of their own. The file is
a sequence of packets: one that is cut off keeps every whole packet, and files can be joined end to
end. Field numbers are those of `protos/perfetto/trace/**` in google/perfetto.

A slice is two packets, its beginning with all its attributes and its end. The end is written when
the next slice on its lane shows that nothing more can lie in it, so that on every lane the packets
nest even where times are equal. Names, attribute names and texts that recur are written once and
referred to by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from harness.trace.journal_reader import Journal
from harness.trace.lanes import Lane, Lanes
from harness.trace.protobuf import double, fixed64, integer, message, tag, text, varint
from harness.trace.records import Attributes, CounterSet, Instant, SpanRecord
from harness.trace.timeline import flow_ends, lane_title, span_arguments, title, track_rank
from harness.trace.whole_file import whole_file

_BATCH_BYTES = 1 << 18
_MOST = 10_000
"""Texts of one kind that are referred to by number: a viewer holds all of them."""
_SHORT = 40
"""Characters. Longer texts in attributes are mostly hashes, and do not recur."""

_PACKET = tag(1, 2)
# TracePacket: trusted_packet_sequence_id 1, and sequence_flags that say whether numbers of texts
# start afresh or go on.
_TIMESTAMP, _TRACK_EVENT, _INTERNED_DATA = tag(8, 0), tag(11, 2), tag(12, 2)
_SEQUENCE, _STATE_BEGINS, _STATE_GOES_ON = integer(10, 1), integer(13, 3), integer(13, 2)
_IN_SEQUENCE = _SEQUENCE + _STATE_GOES_ON
# TrackEvent: its type, then fields that are written often.
_BEGIN, _END, _INSTANT, _COUNTER = (integer(9, kind) for kind in (1, 2, 3, 4))
_TRACK, _CATEGORY, _NAME, _ANNOTATION = tag(11, 0), tag(3, 0), tag(10, 0), tag(4, 2)
_FLOW, _LAST_FLOW = 47, 48
# TrackDescriptor
_IN_GIVEN_ORDER, _NOT_MERGED = integer(11, 3), integer(15, 2)
# DebugAnnotation
_KEY, _INTEGER, _TEXT_NUMBER = tag(1, 0), tag(4, 0), tag(17, 0)


def write_perfetto_trace(journal: Journal, path: Path) -> None:
    """Writes a run as Perfetto TrackEvents, in memory that hardly grows with the run.

    Raises:
        JournalInvalid: A line in the middle of the journal is not a record.
        OSError: The file cannot be written.
    """
    with whole_file(path) as file:
        batch: list[bytes] = []
        size = 0
        for packet in perfetto_packets(journal):
            batch.append(packet)
            size += len(packet)
            if size > _BATCH_BYTES:
                file.write(b"".join(batch))
                batch.clear()
                size = 0
        file.write(b"".join(batch))


def perfetto_packets(journal: Journal) -> Iterator[bytes]:
    """The packets of a run."""
    return _Packets(journal).all()


class _Packets:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._origin_ns = journal.started.time_ns
        self._lanes = Lanes(f"run {journal.started.name}")
        self._flows = flow_ends(journal.flows)
        self._tracks = _Tracks()
        self._counters: dict[tuple[int, str, str], bytes] = {}
        # In the order of InternedData's fields.
        self._categories, self._names = _Interned(1), _Interned(2)
        self._keys, self._texts = _Interned(3), _Interned(29)

    def all(self) -> Iterator[bytes]:
        yield message(1, _SEQUENCE + _STATE_BEGINS)
        yield from self._tracks.describe(self._lanes.track(None))
        for item in self._journal.items():
            match item:
                case SpanRecord():
                    lane = self._lanes.place(item)
                    yield from self._tracks.describe(lane)
                    for end_ns in lane.ended:
                        yield self._end(lane, end_ns)
                    yield self._begin(item, lane)
                case Instant():
                    lane = self._lane(item.span)
                    event = self._named(item.name) + self._annotations(item.attributes)
                    yield self._event(item.time_ns, _INSTANT + self._tracks.on(lane) + event)
                case CounterSet():
                    yield from self._count(item)
        for lane in self._lanes.close():
            for end_ns in lane.ended:
                yield self._end(lane, end_ns)

    def _begin(self, span: SpanRecord, lane: Lane) -> bytes:
        event = _BEGIN + self._tracks.on(lane) + self._named(title(span))
        category = self._categories.number(span.name)
        event += _CATEGORY + category if category else text(22, span.name)
        for end in self._flows.get(span.id, ()):
            event += fixed64(_FLOW if end.is_source else _LAST_FLOW, end.number)
        return self._event(span.start_ns, event + self._annotations(span_arguments(span)))

    def _end(self, lane: Lane, end_ns: int) -> bytes:
        body = _TIMESTAMP + varint(end_ns - self._origin_ns) + self._tracks.ends[lane.number]
        return _PACKET + varint(len(body)) + body

    def _count(self, counter: CounterSet) -> Iterator[bytes]:
        lane = self._lane(counter.span, counter.track)
        yield from self._tracks.describe(lane)
        key = (lane.number, counter.name, counter.unit)
        if key not in self._counters:
            name = f"{counter.name} ({lane.index + 1})" if lane.index else counter.name
            uuid, packet = self._tracks.add(
                f"{name} {counter.unit}", lane.track, message(8, text(6, counter.unit))
            )
            self._counters[key] = _TRACK + varint(uuid)
            yield packet
        value = counter.value
        number = integer(30, value) if isinstance(value, int) else double(44, value)
        yield self._event(counter.time_ns, _COUNTER + self._counters[key] + number)

    def _lane(self, span: int | None, track: str | None = None) -> Lane:
        placed = None if span is None else self._lanes.lane_of(span)
        return placed or self._lanes.track(track)

    def _event(self, time_ns: int, event: bytes) -> bytes:
        fresh = b"".join(
            one.take_fresh() for one in (self._categories, self._names, self._keys, self._texts)
        )
        body = _TIMESTAMP + varint(time_ns - self._origin_ns) + _IN_SEQUENCE
        if fresh:
            body += _INTERNED_DATA + varint(len(fresh)) + fresh
        body += _TRACK_EVENT + varint(len(event)) + event
        return _PACKET + varint(len(body)) + body

    def _named(self, name: str) -> bytes:
        number = self._names.number(name)
        return _NAME + number if number else text(23, name)

    def _annotations(self, attributes: Attributes) -> bytes:
        """Every attribute as a DebugAnnotation; what has no value has no annotation."""
        parts = []
        for key, value in attributes.items():
            if value is not None:
                body = self._annotation(key, value)
                parts.append(_ANNOTATION + varint(len(body)) + body)
        return b"".join(parts)

    def _annotation(self, key: str, value: object) -> bytes:
        number = self._keys.number(key)
        name = _KEY + number if number else text(10, key)
        return name + self._value(value)

    def _value(self, value: object) -> bytes:
        match value:
            case bool():
                return integer(2, value)
            case int() if -(2**63) <= value < 2**63:
                return _INTEGER + varint(value)
            case float():
                return double(5, value)
            case dict():
                entries = [(str(key), one) for key, one in value.items() if one is not None]
                return b"".join(message(11, self._annotation(key, one)) for key, one in entries)
            case list():
                return b"".join(message(12, self._value(one)) for one in value if one is not None)
            case _:
                said = str(value)
                number = self._texts.number(said) if len(said) <= _SHORT else None
                return _TEXT_NUMBER + number if number else text(6, said)


class _Tracks:
    """Tracks as groups, lanes as the tracks in them."""

    def __init__(self) -> None:
        self._uuids = count(1)
        self._groups: dict[str, int] = {}
        self._on: list[bytes] = []
        self.ends: list[bytes] = []
        """By lane: all of a slice's end but its time."""

    def describe(self, lane: Lane) -> Iterator[bytes]:
        """The packets that describe a lane, when it is new: lanes are numbered as they appear."""
        if lane.number < len(self._on):
            return
        if lane.track not in self._groups:
            self._groups[lane.track] = uuid = next(self._uuids)
            rank = track_rank(lane.track) * 1000 + uuid
            yield _descriptor(uuid, lane.track, _IN_GIVEN_ORDER + integer(12, rank))
        uuid, packet = self.add(lane_title(lane), lane.track, integer(12, lane.index) + _NOT_MERGED)
        yield packet
        self._on.append(_TRACK + varint(uuid))
        self.ends.append(_IN_SEQUENCE + message(11, _END + self._on[-1]))

    def on(self, lane: Lane) -> bytes:
        """What says that an event is on a lane."""
        return self._on[lane.number]

    def add(self, name: str, group: str, more: bytes) -> tuple[int, bytes]:
        """A new track in a group: its uuid, and the packet that describes it."""
        uuid = next(self._uuids)
        return uuid, _descriptor(uuid, name, integer(5, self._groups[group]) + more)


class _Interned:
    """Texts of one kind that are written once and then referred to by number.

    Args:
        field: InternedData's field for them.
    """

    def __init__(self, field: int) -> None:
        self._field = field
        self._numbers: dict[str, bytes] = {}
        self._fresh: list[bytes] = []

    def number(self, said: str) -> bytes | None:
        """The text's number; None if it has none, for there are too many."""
        known = self._numbers.get(said)
        if known is None and len(self._numbers) < _MOST:
            number = len(self._numbers) + 1
            known = self._numbers[said] = varint(number)
            self._fresh.append(message(self._field, integer(1, number) + text(2, said)))
        return known

    def take_fresh(self) -> bytes:
        """What must be written before, or with, the first use of what is new."""
        if not self._fresh:
            return b""
        fresh = b"".join(self._fresh)
        self._fresh.clear()
        return fresh


def _descriptor(uuid: int, name: str, more: bytes) -> bytes:
    return message(1, _IN_SEQUENCE + message(60, integer(1, uuid) + text(2, name) + more))
