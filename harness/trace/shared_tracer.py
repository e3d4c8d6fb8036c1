"""The tracer of what several runs share: models, their servers, the memory budget."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from harness.trace.clock import Clock, monotonic
from harness.trace.events import Happening
from harness.trace.tracer import Entry, Span, Tracer, span_under_way


class SharedTracer(Tracer):
    """Takes down in the trace of the run whose span is under way.

    What happens outside of all runs' spans, such as a new value of a server's counter, goes to each
    run that is open. Of a span there, runs have a copy if they asked for its id.
    """

    def __init__(self, *, clock: Clock = monotonic) -> None:
        super().__init__(clock=clock)
        self._take = self._note
        self._runs: dict[Tracer, int] = {}
        """When each was opened."""
        self._has_runs = asyncio.Event()
        self._counters: dict[tuple[str, str], tuple[float, str]] = {}
        """(track, name) → the latest value of the counter, and its unit."""
        self._copies: dict[Span, dict[Tracer, Span]] = {}
        """Each open span of this tracer → its copies in the other tracers."""

    @contextmanager
    def heard_by(self, run: Tracer) -> Iterator[None]:
        """Inside the block, the run is open; it is told first what the counters stand at."""
        run.stalls = self.stalls
        self._runs[run] = self.now_ns()
        self._has_runs.set()
        for (track, name), (value, unit) in self._counters.items():
            run.counter(name, value, unit=unit, track=track)
        try:
            yield
        finally:
            for copies in self._copies.values():
                copy = copies.pop(run, None)
                if copy is not None and copy.end_ns is None:
                    # The run is over, and no longer waits for what goes on.
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
        # A run asks only if something of its own waits for the span, such as the load of a model.
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
        for run in self._hearers:
            run.completed_span(event, start_ns=start_ns, end_ns=end_ns, **attributes)

    def instant(
        self, event: Happening, /, *, at_ns: int | None = None, **attributes: object
    ) -> None:
        """See `Tracer.instant`."""
        for run in self._hearers:
            run.instant(event, at_ns=at_ns, **attributes)

    def counter(self, name: str, value: float, *, unit: str, track: str | None = None) -> None:
        """See `Tracer.counter`; one with a track goes to all runs that are open, now or later."""
        hearers = self._hearers
        if track is not None:
            self._counters[track, name] = value, unit
            hearers = tuple(self._runs)
        for run in hearers:
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
    def _hearers(self) -> tuple[Tracer, ...]:
        run = self._run
        return tuple(self._runs) if run is None else (run,)

    def _note(self, entry: Entry) -> None:
        """Hears of its own spans: when one begins, and when it ends."""
        if not isinstance(entry, Span):
            return
        if entry.end_ns is None:
            # The copies of a span that has ended may be asked for until the next span begins.
            self._copies = {span: of for span, of in self._copies.items() if span.end_ns is None}
            self._copies[entry] = {}
            return
        for copy in self._copies[entry].values():
            copy.late = entry.late
            copy.end(at_ns=entry.end_ns, status=entry.status, error=entry.error)
