"""Spans, instants, counters and flows: the interface for code that is traced.

A span costs the code two readings of the clock and two appends. A `Tracer` takes events as they
come; a `RecordMaker` turns them into records, later and in another thread if there is a journal, at
once if there is only a sink. The current span follows asyncio tasks and threads that copy their
context: a task started inside a span is inside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Literal, Self, TypeVar

from harness.errors import HarnessError
from harness.trace.clock import Clock, monotonic
from harness.trace.event_forms import Text, written
from harness.trace.events import REQUESTS, Happening, Warned
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Flow,
    Flows,
    Instant,
    NodeOutput,
    Piece,
    Record,
    RunEnded,
    SpanEnded,
    SpanRecord,
    SpanStarted,
    SpanStatus,
    describe,
    error_class,
)
from harness.trace.secrets import Redactor
from harness.trace.stalls import Stalls

Sink = Callable[[Record], None]
"""Takes each record as it is made. It must not raise, and must be quick: one thread writes the
journals of all runs of a process. A sink with a true attribute `hears_text` also gets each piece of
a reply, as a `Piece`. A sink with a method `of_run` serves several runs: it returns a sink for
each."""

ContentPolicy = Literal["full", "hash", "none"]
"""What is recorded of prompts, completions, drafts and outputs: the texts and their hashes, the
hashes alone, or neither."""

T = TypeVar("T")

_NO_ATTRIBUTES: Attributes = {}
_NO_INPUTS: Mapping[str, str] = {}
_RELIEF_EVERY = 4096  # spans between two calls of `_relieve`


class Tracer:
    """Records events in its `sink`. By default there is none, so that code can always trace."""

    run_id: str = ""  # empty if no run is recorded
    hears_text: bool = False  # whether `piece` has listeners

    def __init__(
        self, sink: Sink | None = None, *, clock: Clock = monotonic, content: ContentPolicy = "full"
    ) -> None:
        self.now_ns = clock
        self.calls_under_way = 0  # requests that are with their servers
        self.stalls = Stalls(clock)  # without a heartbeat, it knows of none
        self.redactor = Redactor()  # also for other files about the run
        self._content = content
        self._ids = itertools.count(1)
        self._take: Callable[[Entry], object] = lambda _entry: None
        if sink is not None:
            make = RecordMaker(content=content, redactor=self.redactor)

            def take(entry: Entry) -> None:
                for record in make.records(entry):
                    sink(record)

            self._take = take

    def span(self, event: Happening, /, **attributes: object) -> Span:
        """A span that lasts as long as its `with` block.

        A user's span has a fixed phrase as `event`, and attributes for what varies. Attributes are
        read later, so do not change their values. `label` is the title in the timeline. `track`
        starts a track of that name (`node findings`, `model qwen`), which the spans inside inherit.
        """
        return Span(self, *_name_and_attributes(event, attributes))

    def id_of(self, span: Span) -> int:
        """The id by which spans of the run under way refer to a span of this tracer."""
        return span.id

    def completed_span(
        self, event: Happening, /, *, start_ns: int, end_ns: int, **attributes: object
    ) -> None:
        """A span known only afterwards, such as a phase that a server reports with its reply."""
        start_ns, end_ns = int(start_ns), int(max(start_ns, end_ns))
        number, parent = next(self._ids), self.current_id
        name, values = _name_and_attributes(event, attributes)
        self._take(SpanRecord(number, parent, name, start_ns, end_ns, "ok", None, values))

    def later(self, make: Later) -> None:
        """Adds records that are made only when they are written, so that they cost the caller less.

        `make` is called once, perhaps from another thread, before the current span's end is
        recorded: it may still set attributes of that span.
        """
        self._take(make)

    def new_id(self) -> int:
        """A number for a span record that `later` makes."""
        return next(self._ids)

    def instant(
        self, event: Happening, /, *, at_ns: int | None = None, **attributes: object
    ) -> None:
        """Something that happened now, or at `at_ns`, inside the current span; as for `span`."""
        time_ns = self.now_ns() if at_ns is None else int(at_ns)
        name, values = _name_and_attributes(event, attributes)
        self._take(Instant(self.current_id, name, time_ns, values))
        self._relieve()

    def warned(self, message: str, details: Mapping[str, object]) -> dict[str, object]:
        """Records a warning of the log as an instant; returns its `context_under_way`."""
        self.instant(Warned(message=message, more=details))
        return {} if self.current_id is None else context_under_way()

    def counter(self, name: str, value: float, *, unit: str, track: str | None = None) -> None:
        """A quantity's new value, drawn on `track` or else with the current span."""
        # A value that is no finite number is left out. Others become floats, such as numpy's, and
        # integers beyond 64 bits, which timelines cannot show exactly.
        number = value if type(value) is int and -(2**63) <= value < 2**63 else _finite(value)
        if number is not None:
            span = self.current_id if track is None else None
            self._take(CounterSet(name, unit, self.now_ns(), number, span, track))
            self._relieve()

    def flow(self, name: str, *, source: int | None, target: int | None) -> None:
        """An arrow from one span to a later one, by their ids; none if an id is missing."""
        # A span that was not entered has the id 0.
        if source and target:
            self._take(Flow(name, source, target))
            self._relieve()

    def flows(self, name: str, *, sources: Sequence[int], target: int | None) -> None:
        """Arrows from several spans to one, in one record, which is cheaper."""
        if sources and target:
            self._take(Flows(name, tuple(sources), target))
            self._relieve()

    def piece(self, text: str, *, span: int) -> None:
        """A piece of the reply to a call, for sinks that hear texts."""
        self._take(Piece(span, text))

    def content(self, text: str | Callable[[], str]) -> Text:
        """A text, or a function that makes it later, for an attribute to refer to by its hash."""
        return Text(text)

    def excerpt(self, quotation: T) -> T | None:
        """A quotation for an attribute; None where the run records no texts."""
        return quotation if self._content == "full" else None

    def output(self, record: NodeOutput) -> None:
        """Records what a node returned."""
        self._take(record)

    async def listened_to(self) -> None:
        """Waits until there is a run to record."""

    async def persisted(self) -> None:
        """Waits until all records so far are as durable as the run asks for."""

    def flush(self) -> None:
        """Writes all records so far: safe from a kill of the process, not from a loss of power."""

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Lasts as long as a request, from just before it is sent; raises as `check_written`."""
        # Should the process be killed, the records before the request show what it was for.
        self.flush()
        self.check_written()
        self.calls_under_way += 1
        try:
            yield
        finally:
            self.calls_under_way -= 1

    def check_written(self) -> None:
        """To be called before a request: raises `RunLimitReached` if the run cannot be recorded."""

    @property
    def current_id(self) -> int | None:
        """The id of this tracer's innermost open span; None outside of all."""
        current = _current_span.get()
        return current.id if current is not None and current.tracer is self else None

    @property
    def current_node(self) -> str | None:
        """The label of the node call around the current span; None outside of all."""
        around = _current_span.get()
        return node_under_way() if around is not None and around.tracer is self else None

    @property
    def is_recorded(self) -> bool:
        """Whether there is a run to record, or may be."""
        return bool(self.run_id)

    @property
    def current_run(self) -> str:
        """The id of the run under way."""
        return self.run_id

    def _relieve(self) -> None:
        """Called now and then: writes records if they are made faster than they are written."""


class Span:
    """The time of one `with` block; made by `Tracer.span`."""

    __slots__ = (
        "_outer", "attributes", "begun", "end_ns", "error", "id", "late", "name", "parent",
        "start_ns", "status", "tracer",
    )  # fmt: skip

    def __init__(self, tracer: Tracer, name: str, attributes: Attributes) -> None:
        self.tracer = tracer
        self.name = name
        self.attributes = attributes
        self.id = 0  # until the block is entered; then unique in its tracer
        self.end_ns: int | None = None
        self.late: dict[str, object] | None = None  # attributes that came after its start
        self.status: SpanStatus = "ok"
        self.error: str | None = None
        self.begun = False  # whether `RecordMaker` has made the record of its start

    def set(self, **attributes: object) -> None:
        """Adds attributes that became known on the way; they are written when the span ends."""
        if self.late is None:
            self.late = attributes
        else:
            self.late.update(attributes)

    def __enter__(self) -> Self:
        tracer = self.tracer
        outer = self._outer = _current_span.get()
        # Ids count per tracer, so a span of another tracer, such as an outer run's, is no parent.
        self.parent = outer.id if outer is not None and outer.tracer is tracer else None
        number = self.id = next(tracer._ids)  # noqa: SLF001 - the two are one
        _current_span.set(self)
        if not number % _RELIEF_EVERY:
            tracer._relieve()  # noqa: SLF001
        self.start_ns = tracer.now_ns()
        tracer._take(self)  # noqa: SLF001
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        tracer = self.tracer
        self.end_ns = tracer.now_ns()
        # Set, not reset: a token is valid only in the context that it was made in, and an async
        # generator may be closed in another context.
        if _current_span.get() is self:
            _current_span.set(self._outer)
        else:
            self._leave_late()
        if error is not None:
            self.status, self.error = status_of(error), describe(error)
            if isinstance(error, HarnessError):
                self.set(error_code=error.code)
        # The second time that it is taken; `begun` then tells `RecordMaker` to record the end.
        tracer._take(self)  # noqa: SLF001

    def copied(self, tracer: Tracer, *, start_ns: int) -> Span:
        """A copy of the span in another trace, without a parent, that begins at `start_ns`."""
        copy = Span(tracer, self.name, self.attributes)
        copy.id, copy.parent, copy.start_ns = next(tracer._ids), None, start_ns  # noqa: SLF001
        tracer._take(copy)  # noqa: SLF001
        return copy

    def end(self, *, at_ns: int, status: SpanStatus, error: str | None = None) -> None:
        """Ends a copy."""
        self.end_ns, self.status, self.error = at_ns, status, error
        self.tracer._take(self)  # noqa: SLF001

    def _leave_late(self) -> None:
        """Leaves the span though it is not the current one.

        A generator may leave its span open inside this one, or close its own span too late.
        """
        current = _current_span.get()
        while current is not None and current is not self:
            current = current._outer  # noqa: SLF001 - another span
        if current is self:
            _current_span.set(self._outer)


def _name_and_attributes(
    event: Happening, attributes: dict[str, object]
) -> tuple[str, dict[str, object]]:
    return (event, attributes) if isinstance(event, str) else written(event)


_current_span: ContextVar[Span | None] = ContextVar("harness_current_span", default=None)


def span_under_way() -> Span | None:
    """The innermost open span of any tracer."""
    return _current_span.get()


def node_under_way() -> str | None:
    """The label of the node call around the innermost open span of any tracer."""
    around = _current_span.get()
    while around is not None and "node" not in around.attributes:
        around = around._outer  # noqa: SLF001 - another span
    if around is None:
        return None
    return str(around.attributes.get("label", around.attributes["node"]))


def context_under_way() -> dict[str, object]:
    """The run, node, call, model and span that the running code is in, as far as there are any."""
    span = request = _current_span.get()
    if span is None:
        return {}
    while request is not None and request.name not in REQUESTS:
        request = request._outer  # noqa: SLF001 - another span
    known: dict[str, object] = {
        "run_id": span.tracer.run_id,
        "node": node_under_way(),
        "span": span.id,
    }
    if request is not None:
        known |= {"call": request.id, "model": request.attributes.get("model")}
    return {name: value for name, value in known.items() if value}


def add_run_context(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor for structlog: adds run, node, call, model and span to what a run logs."""
    for name, value in context_under_way().items():
        event.setdefault(name, value)
    return event


def traceparent() -> str | None:
    """The span under way as W3C's trace context, with which other programs' spans join its run."""
    span = _current_span.get()
    if span is None or not span.tracer.run_id:
        return None
    run_id = span.tracer.run_id
    return f"00-{trace_id(run_id).hex()}-{span_id(run_id, span.id).hex()}-01"


def trace_id(run_id: str) -> bytes:
    """A run's id as 16 bytes, as OpenTelemetry has it."""
    return _digest(run_id)[:16]


def span_id(run_id: str, number: int) -> bytes:
    """A span's id as 8 bytes: never zero, unique in its run, and hardly ever in another run."""
    first = int.from_bytes(_digest(run_id)[16:24], "big")
    return ((first + number) % (2**64 - 1) + 1).to_bytes(8, "big")


@lru_cache(maxsize=16)
def _digest(run_id: str) -> bytes:
    return hashlib.sha256(run_id.encode()).digest()


Later = Callable[[], Iterable[Record]]

Entry = Span | Record | Later
"""What a tracer takes: a span when it begins and again when it ends, records, and functions that
make records when these are written."""


class RecordMaker:
    """Makes records of a tracer's entries. The redactor cleans texts before they are hashed."""

    def __init__(self, *, content: ContentPolicy = "full", redactor: Redactor) -> None:
        self._content = content
        self._redactor = redactor
        self._recorded: set[str] = set()

    def records(self, entry: Entry) -> Sequence[Record]:  # noqa: PLR0911 - a table of kinds
        """The record of an entry, after the texts to which it is the first to refer."""
        # Frequent kinds come first, since a long run has millions of entries.
        match entry:
            case Span():
                return self._start_or_end_of(entry)
            case NodeOutput():
                return (entry if self._content == "full" else self._without_texts(entry),)
            case Flows() | Flow() | CounterSet() | Content():
                return (entry,)
            case Instant():
                attributes, texts = self._plain(entry.attributes)
                return (*texts, entry._replace(attributes=attributes))
            case SpanRecord():
                attributes, texts = self._plain(entry.attributes)
                error = self._without_quotation(entry.error)
                return (*texts, entry._replace(attributes=attributes, error=error))
            case RunEnded():
                return (entry._replace(error=self._without_quotation(entry.error)),)
            case _ if callable(entry):
                return [record for later in entry() for record in self.records(later)]
            case _:
                return (entry,)

    def _start_or_end_of(self, span: Span) -> Sequence[Record]:
        """The record of a span's start on the first call, and of its end on the second."""
        if not span.begun:
            span.begun = True
            attributes, texts = self._plain(span.attributes)
            begin = SpanStarted(span.id, span.parent, span.name, span.start_ns, attributes)
            return (*texts, begin) if texts else (begin,)
        assert span.end_ns is not None
        attributes, texts = self._plain(span.late) if span.late else (_NO_ATTRIBUTES, ())
        error = self._without_quotation(span.error)
        end = SpanEnded(span.id, span.end_ns, span.status, error, attributes)
        return (*texts, end) if texts else (end,)

    def _without_texts(self, output: NodeOutput) -> NodeOutput:
        keeps_digests = self._content == "hash"
        return output._replace(
            value=None,
            inputs=output.inputs if keeps_digests else _NO_INPUTS,
            skipped=self._without_quotation(output.skipped),
            digest=output.digest if keeps_digests else None,
            uses=output.uses if keeps_digests else None,
        )

    def _without_quotation(self, error: str | None) -> str | None:
        # The message of an error might quote a text.
        return error if error is None or self._content == "full" else error_class(error)

    def _plain(self, attributes: Attributes) -> tuple[Attributes, Sequence[Content]]:
        """The attributes with hashes in place of texts, and the texts to be recorded now."""
        # Most records refer to no text, so their attributes are not copied.
        if Text not in map(type, attributes.values()):
            return attributes, ()
        plain = dict(attributes)
        texts = []
        for name, value in attributes.items():
            if type(value) is not Text:
                continue
            if self._content == "none":
                del plain[name]
            else:
                text = self._redactor.clean(value.read())
                sha256 = sha256_of(text)
                plain[name] = sha256
                if self._content == "full" and sha256 not in self._recorded:
                    self._recorded.add(sha256)
                    texts.append(Content(sha256, text))
        return plain, texts


def _finite(value: float) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def sha256_of(text: str) -> str:
    """The hash by which records refer to a text: of its UTF-8, hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def status_of(error: BaseException | None) -> Literal["ok", "error", "cancelled"]:
    """How a span or a run ends by this exception; None is a normal end."""
    if error is None:
        return "ok"
    # A generator that is closed early did not fail.
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return "cancelled"
    return "error"
