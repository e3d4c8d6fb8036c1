"""Spans, instants and counters, as code meets them while it runs.

A `Tracer` turns what happens into records and hands each to its sink at once. It keeps nothing
itself. The current span follows asyncio tasks: a task started inside a span is inside it.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import math
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from harness.trace.clock import Clock, monotonic
from harness.trace.records import (
    Attributes,
    Content,
    CounterSet,
    Instant,
    NodeOutput,
    Record,
    SpanEnded,
    SpanStarted,
    SpanStatus,
)

Sink = Callable[[Record], None]
"""Takes each record as it happens; must not raise."""

_Place = tuple["Tracer", int] | None
"""A span and the tracer that made it: a run inside another run's node has spans of its own."""

_current_span: ContextVar[_Place] = ContextVar("harness_current_span", default=None)


def discard(_record: Record) -> None:
    """The sink of a tracer that records nothing."""


class Tracer:
    """Makes records of what happens.

    Args:
        sink: Where records go; by default nowhere, so that code may trace unconditionally.
        clock: The time.
    """

    def __init__(self, sink: Sink = discard, *, clock: Clock = monotonic) -> None:
        self._sink = sink
        self._ids = itertools.count(1)
        self._contents: set[str] = set()
        self.now_ns = clock

    def span(self, name: str, /, **attributes: object) -> Span:
        """A span that begins on entering the `with` block and ends on leaving it.

        Args:
            name: A fixed phrase.
            attributes: What varies. `track` starts a track of that name in the exported trace,
                which the spans inside inherit.
        """
        return Span(self, name, attributes)

    def completed_span(
        self, name: str, /, *, start_ns: int, end_ns: int, **attributes: object
    ) -> None:
        """A span known only afterwards, such as a phase that a server reports with its reply."""
        span_id = next(self._ids)
        self._sink(
            SpanStarted(
                id=span_id,
                parent=self._current_id(),
                name=name,
                time_ns=start_ns,
                attributes=attributes,
            )
        )
        self._sink(SpanEnded(id=span_id, time_ns=max(start_ns, end_ns)))

    def instant(self, name: str, /, *, at_ns: int | None = None, **attributes: object) -> None:
        """Something that happened now, or at `at_ns`, inside the current span."""
        time_ns = self.now_ns() if at_ns is None else at_ns
        self._sink(
            Instant(span=self._current_id(), name=name, time_ns=time_ns, attributes=attributes)
        )

    def counter(self, name: str, value: float, *, unit: str) -> None:
        """A quantity's new value. NaN and infinities are none, so they are left out."""
        if not math.isfinite(value):
            return
        self._sink(CounterSet(name=name, unit=unit, time_ns=self.now_ns(), value=value))

    def content(self, text: str) -> str:
        """Records a text, once a run, and returns the hash that spans refer to it by."""
        sha256 = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
        if sha256 not in self._contents:
            self._contents.add(sha256)
            self._sink(Content(sha256=sha256, text=text))
        return sha256

    def output(self, node: str, value: object, *, item: int | None = None) -> None:
        """Records what a node returned: a JSON value."""
        self._sink(NodeOutput(node=node, item=item, value=value))

    def _current_id(self) -> int | None:
        current = _current_span.get()
        return current[1] if current is not None and current[0] is self else None

    def _begin(self, name: str, attributes: Attributes) -> tuple[int, _Place]:
        span_id, outer = next(self._ids), _current_span.get()
        self._sink(
            SpanStarted(
                id=span_id,
                parent=self._current_id(),
                name=name,
                time_ns=self.now_ns(),
                attributes=attributes,
            )
        )
        _current_span.set((self, span_id))
        return span_id, outer

    def _end(
        self, span_id: int, outer: _Place, error: BaseException | None, attributes: Attributes
    ) -> None:
        # Set rather than reset: a token is only valid in the context it was made in, and an async
        # generator may be closed from another.
        _current_span.set(outer)
        self._sink(
            SpanEnded(
                id=span_id,
                time_ns=self.now_ns(),
                status=status_of(error),
                error=describe(error),
                attributes=attributes,
            )
        )


class Span:
    """One `with` block's worth of time; made by `Tracer.span`."""

    __slots__ = ("_attributes", "_id", "_late", "_name", "_outer", "_tracer")

    def __init__(self, tracer: Tracer, name: str, attributes: Attributes) -> None:
        self._tracer = tracer
        self._name = name
        self._attributes = attributes
        self._late: dict[str, object] = {}
        self._id = 0
        self._outer: _Place = None

    def set(self, **attributes: object) -> None:
        """Adds attributes that became known on the way; they are written when the span ends."""
        self._late.update(attributes)

    def __enter__(self) -> Self:
        self._id, self._outer = self._tracer._begin(self._name, self._attributes)  # noqa: SLF001
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tracer._end(self._id, self._outer, exc, self._late)  # noqa: SLF001


def status_of(error: BaseException | None) -> SpanStatus:
    """How a span ends that this exception leaves; None is a normal end."""
    if error is None:
        return "ok"
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | GeneratorExit):
        return "cancelled"
    return "error"


def describe(error: BaseException | None) -> str | None:
    """Class and message of an exception, as records keep it."""
    return None if error is None else f"{type(error).__name__}: {error}".removesuffix(": ")
