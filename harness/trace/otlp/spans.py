"""A run's spans in OpenTelemetry's form.

Ids are derived from the run's, so that a run that is sent twice is one trace; times are exact. What
happens in a span, and texts that it refers to, stand in the journal after its beginning: a span is
held until the journal is past its end. In memory are the spans that are open, the flows, and as
many of the last texts as fit: a span that repeats an old text may have its hash alone.

Counters are left out, since a trace has none, as are instants outside any span.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import sha256

from harness.trace.journal_reader import Journal
from harness.trace.otlp.message import attributes, event, link
from harness.trace.otlp.names import (
    evaluation_results,
    own_attributes,
    span_attributes,
    span_name,
)
from harness.trace.otlp.served_model import IN_PROCESS, ServedModel
from harness.trace.protobuf import fixed64, integer, message, text
from harness.trace.records import Attributes, Content, Flow, Instant, SpanRecord

_TEXT_CHARS = 16_000_000
"""How much text is kept for spans to refer to."""
_LATE_NS = 1_000_000_000
"""How long after a span's end its last records may come: threads write side by side."""
_MOST = 128
"""Events that one span may have, and links: as in OpenTelemetry's own libraries."""

_OF_A_MODEL = frozenset({"chat", "embed", "count tokens", "schema probe"})
"""Spans of what a model was asked."""
_INTERNAL, _CLIENT = 1, 3
_STATUS_CODES = {"ok": 1, "error": 2}


def otlp_spans(journal: Journal, *, content: bool = False) -> Iterator[bytes]:
    """A run's spans as OTLP's `Span` messages, more or less in the order they ended."""
    return _Spans(journal, content=content).all()


class _Held:
    """A span that may not be whole yet.

    Args:
        record: Ours.

    Attributes:
        events: Of OTLP, as far as there is room.
        left_out: How many there was no room for.
        found: Attributes that other spans knew.
    """

    def __init__(self, record: SpanRecord) -> None:
        self.record = record
        self.events: list[bytes] = []
        self.left_out = 0
        self.found: dict[str, object] = {}

    def add(self, one: bytes) -> None:
        if len(self.events) < _MOST:
            self.events.append(one)
        else:
            self.left_out += 1


class _Spans:
    def __init__(self, journal: Journal, *, content: bool) -> None:
        self._journal = journal
        self._texts = _Texts() if content else None
        started = journal.started
        self._run_id = started.run_id
        digest = sha256(started.run_id.encode()).digest()
        self._trace_id = digest[:16]
        self._first_id = int.from_bytes(digest[16:24], "big")
        self._shift_ns = started.wall_ns - started.time_ns

        self._flows: dict[int, list[Flow]] = {}
        for flow in journal.flows:
            self._flows.setdefault(flow.target, []).append(flow)
        self._models: dict[str, Attributes] = {}
        self._held: dict[int, _Held] = {}
        self._ends: list[tuple[int, int]] = []  # a heap: when a held span ended, and its id
        # Spans that wrote a draft: held until the verdict on it is known.
        self._authors = {flow.source for flow in journal.flows if flow.name == "draft"}

    def all(self) -> Iterator[bytes]:
        for item in self._journal.items():
            match item:
                case SpanRecord():
                    yield from self._over(item.start_ns - _LATE_NS)
                    self._hold(item)
                case Instant(span=None, name="endpoint", attributes=endpoint):
                    self._models[str(endpoint.get("model"))] = endpoint
                case Instant(span=int(number)) if number in self._held:
                    values = own_attributes(item.attributes, texts=self._texts is not None)
                    self._held[number].add(event(item.name, item.time_ns + self._shift_ns, values))
                case Content() if self._texts is not None:
                    self._texts.add(item)
        self._ends = sorted((held.record.end_ns, number) for number, held in self._held.items())
        yield from self._over(None)

    def _hold(self, record: SpanRecord) -> None:
        held = self._held[record.id] = _Held(record)
        if record.id not in self._authors:
            heapq.heappush(self._ends, (record.end_ns, record.id))
        if record.name == "evaluate":
            self._tell_author(held)

    def _tell_author(self, evaluation: _Held) -> None:
        """Puts a verdict where GenAI and OpenInference want it: on what was evaluated.

        A draft that nobody is known to have written leaves its verdict at the evaluation.
        """
        record = evaluation.record
        drafts = [flow.source for flow in self._flows.get(record.id, ()) if flow.name == "draft"]
        author = self._held.get(drafts[0], evaluation) if drafts else evaluation
        results = evaluation_results(record, texts=self._texts is not None)
        for index, result in enumerate(results):
            author.add(
                event("gen_ai.evaluation.result", record.end_ns + self._shift_ns, result.as_event())
            )
            if author is not evaluation:
                author.found |= result.as_attributes(index)
        if author is not evaluation:
            heapq.heappush(self._ends, (author.record.end_ns, author.record.id))

    def _over(self, before_ns: int | None) -> Iterator[bytes]:
        """The held spans that ended before a time; None is the end of the journal."""
        while self._ends and (before_ns is None or self._ends[0][0] < before_ns):
            held = self._held.pop(heapq.heappop(self._ends)[1], None)
            if held is not None:
                yield self._message(held)

    def _message(self, held: _Held) -> bytes:
        record = held.record
        served = self._served(record)
        is_remote = (
            served is not None
            and served.backend not in IN_PROCESS
            and record.attributes.get("from_cache") is not True
        )
        values = {
            **span_attributes(
                record, served=served, text_of=self._texts.find if self._texts else None
            ),
            **held.found,
            "error.type": _error_type(record),
            "harness.status": None if record.status == "ok" else record.status,
            "session.id": self._run_id,
        }
        links = self._links(record)
        return b"".join(
            [
                message(1, self._trace_id),
                message(2, self._span_id(record.id)),
                b"" if record.parent is None else message(4, self._span_id(record.parent)),
                text(5, span_name(record, served)),
                integer(6, _CLIENT if is_remote else _INTERNAL),
                fixed64(7, record.start_ns + self._shift_ns),
                fixed64(8, record.end_ns + self._shift_ns),
                attributes(9, values),
                *(message(11, one) for one in held.events),
                integer(12, held.left_out),
                *(message(13, one) for one in links[:_MOST]),
                integer(14, len(links[_MOST:])),
                message(15, _status(record, texts=self._texts is not None)),
            ]
        )

    def _served(self, record: SpanRecord) -> ServedModel | None:
        if record.name not in _OF_A_MODEL:
            return None
        tag = str(record.attributes.get("model"))
        return ServedModel(tag, self._models.get(tag, {}))

    def _links(self, record: SpanRecord) -> list[bytes]:
        """To the spans that led to this one; that it is inside of its parent, the parent says."""
        return [
            link(self._trace_id, self._span_id(flow.source), {"harness.flow": flow.name})
            for flow in self._flows.get(record.id, ())
            if flow.source != record.parent
        ]

    def _span_id(self, number: int) -> bytes:
        """Never zero, never twice in a run, and unlikely to be another run's."""
        return ((self._first_id + number) % (2**64 - 1) + 1).to_bytes(8, "big")


class _Texts:
    """The texts that were read or asked for last.

    Args:
        most_chars: How much is kept; one text may be longer.
    """

    def __init__(self, most_chars: int = _TEXT_CHARS) -> None:
        self._most_chars = most_chars
        self._texts: OrderedDict[str, str] = OrderedDict()
        self._chars = 0

    def add(self, content: Content) -> None:
        if content.sha256 not in self._texts:
            self._texts[content.sha256] = content.text
            self._chars += len(content.text)
        while self._chars > self._most_chars and len(self._texts) > 1:
            _, oldest = self._texts.popitem(last=False)
            self._chars -= len(oldest)

    def find(self, sha256: str) -> str | None:
        if sha256 in self._texts:
            self._texts.move_to_end(sha256)
        return self._texts.get(sha256)


def _status(record: SpanRecord, *, texts: bool) -> bytes:
    """`Status`: unset for a span that was cut short, since that is neither."""
    code = integer(3, _STATUS_CODES.get(record.status, 0))
    # What an error says may quote a text; its class does not.
    return code + text(2, (record.error or "") if texts else _error_type(record) or "")


def _error_type(record: SpanRecord) -> str | None:
    return record.error.partition(":")[0] if record.error else None
