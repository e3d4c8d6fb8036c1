"""The tracer of what several runs share: models, their servers, the memory budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from harness.trace.clock import Clock, monotonic
from harness.trace.events import Happening
from harness.trace.tracer import Entry, Span, Tracer, span_under_way


class SharedTracer(Tracer):
    """Records events in the trace of the run whose span is under way.

    Events outside of all runs' spans, such as a new value of a server's counter, go to each run
    that is open. A span there is recorded by the runs that ask for its id, each in a copy.
    """

    def __init__(self, *, clock: Clock = monotonic) -> None:
        super().__init__(clock=clock)
        self._take = self._update_copies
        self._runs: dict[Tracer, int] = {}  # open run → when it was opened
        self._has_runs = asyncio.Event()
        # (track, name) → the latest value of the counter, and its unit.
        self._counters: dict[tuple[str, str], tuple[float, str]] = {}
        # Open span of this tracer → its copies in the tracers of runs.
        self._copies: dict[Span, dict[Tracer, Span]] = {}

    @contextmanager
    def heard_by(self, run: Tracer) -> Iterator[None]:
        """Inside the block, the run is open; first it gets the current values of all counters."""
        run.stalls = self.stalls
        self._runs[run] = self.now_ns()
        self._has_runs.set()
        for (track, name), (value, unit) in tuple(self._counters.items()):
            run.counter(name, value, unit=unit, track=track)
        try:
            yield
        finally:
            for copies in tuple(self._copies.values()):
                copy = copies.pop(run, None)
                if copy is not None and copy.end_ns is None:
                    # The span goes on, but the run is over and no longer waits for it.
                    copy.end(at_ns=self.now_ns(), status="cancelled")
            del self._runs[run]
            if not self._runs:
                self._has_runs.clear()

    @property
    def is_recorded(self) -> bool:
        """See `Tracer.is_recorded`."""
        return True

    @property
    def has_runs(self) -> bool:
        """Whether a run is open."""
        return self._has_runs.is_set()

    async def listened_to(self) -> None:
        """See `Tracer.listened_to`."""
        await self._has_runs.wait()

    def span(self, event: Happening, /, **attributes: object) -> Span:
        """See `Tracer.span`."""
        run = self._run
        return super().span(event, **attributes) if run is None else run.span(event, **attributes)

    def id_of(self, span: Span) -> int:
        """See `Tracer.id_of`."""
        run = self._run
        if run is None or span.tracer is not self:
            return span.id
        # A run asks for the id if it waits for the span, such as the load of a model.
        copies = self._copies.setdefault(span, {})
        if run not in copies:
            copy = copies[run] = span.copied(run, start_ns=max(span.start_ns, self._runs[run]))
            if span.end_ns is not None:
                copy.end(at_ns=span.end_ns, status=span.status, error=span.error)
        return copies[run].id

    def completed_span(
        self, event: Happening, /, *, start_ns: int, end_ns: int, **attributes: object
    ) -> None:
        """See `Tracer.completed_span`."""
        for run in self._receivers:
            run.completed_span(event, start_ns=start_ns, end_ns=end_ns, **attributes)

    def instant(
        self, event: Happening, /, *, at_ns: int | None = None, **attributes: object
    ) -> None:
        """See `Tracer.instant`."""
        for run in self._receivers:
            run.instant(event, at_ns=at_ns, **attributes)

    def counter(self, name: str, value: float, *, unit: str, track: str | None = None) -> None:
        """See `Tracer.counter`; with a track, it goes to all runs that are open, now or later."""
        receivers = self._receivers
        if track is not None:
            self._counters[track, name] = value, unit
            receivers = tuple(self._runs)
        for run in receivers:
            run.counter(name, value, unit=unit, track=track)

    @property
    def current_node(self) -> str | None:
        """See `Tracer.current_node`."""
        run = self._run
        return None if run is None else run.current_node

    @property
    def current_run(self) -> str:
        """See `Tracer.current_run`."""
        run = self._run
        return "" if run is None else run.run_id

    @property
    def _run(self) -> Tracer | None:
        span = span_under_way()
        return None if span is None or span.tracer not in self._runs else span.tracer

    @property
    def _receivers(self) -> tuple[Tracer, ...]:
        run = self._run
        return tuple(self._runs) if run is None else (run,)

    def _update_copies(self, entry: Entry) -> None:
        """Takes the beginnings and ends of this tracer's own spans."""
        if not isinstance(entry, Span):
            return
        if entry.end_ns is None:
            # Runs may ask for a span that has ended until the next one begins. Another thread may
            # just be ending one, so those with open copies stay.
            for span, copies in tuple(self._copies.items()):
                if None not in {each.end_ns for each in (span, *tuple(copies.values()))}:
                    self._copies.pop(span, None)
            self._copies[entry] = {}
            return
        for copy in tuple(self._copies.get(entry, {}).values()):
            copy.late = entry.late
            copy.end(at_ns=entry.end_ns, status=entry.status, error=entry.error)
