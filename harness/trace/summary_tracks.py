"""Counters of a whole run's activity, at the top of its timeline."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import zip_longest

from harness.trace.events import NodeAttempt
from harness.trace.records import CounterSet, SpanRecord

SUMMED = frozenset({"chat", "decode", "node"})
"""Names of the spans that count."""

_IN_FLIGHT, _RATE, _WAITING = "calls", "decoding", "nodes"
_UNITS = {_IN_FLIGHT: "in flight", _RATE: "tokens/s", _WAITING: "waiting for a place"}
"""Timelines show both in one: `calls in flight`."""


class SummaryTracks:
    """Adds up spans. Keeps 16 bytes for each beginning and end of one that counts."""

    def __init__(self) -> None:
        self._times = {name: array("q") for name in _UNITS}
        self._steps = {name: array("d") for name in _UNITS}
        self._tokens: dict[int, int] = {}

    def add(self, span: SpanRecord) -> None:
        """A span whose name is in `SUMMED`; a call before its phases."""
        match span.name:
            case "chat" if span.attributes.get("from_cache") is not True:
                self._put(_IN_FLIGHT, span.start_ns, span.end_ns, 1.0)
                tokens = span.attributes.get("output_tokens")
                if isinstance(tokens, int) and tokens > 1:
                    self._tokens[span.id] = tokens
            case "decode" if span.duration_ns > 0 and span.parent in self._tokens:
                # The first token is there when decoding begins.
                rate = (self._tokens[span.parent] - 1) * 1e9 / span.duration_ns
                self._put(_RATE, span.start_ns, span.end_ns, rate)
            case "node":
                if waited_ns := NodeAttempt.read(span).waited_ns:
                    self._put(_WAITING, span.start_ns - waited_ns, span.start_ns, 1.0)

    def counters(self) -> Iterator[CounterSet]:
        """Each quantity whenever it changes, on the run's own track."""
        for name, unit in _UNITS.items():
            value = drawn = 0.0
            edges = sorted(zip(self._times[name], self._steps[name], strict=True))
            following = [time_ns for time_ns, _ in edges[1:]]
            for (time_ns, step), next_ns in zip_longest(edges, following):
                value += step
                # Only the last value at one moment, and only if it shows: viewers draw every
                # change.
                if time_ns != next_ns and (level := round(value, 1)) != drawn:
                    drawn = level
                    yield CounterSet(name, unit, time_ns, drawn, None, None)

    def _put(self, name: str, start_ns: int, end_ns: int, step: float) -> None:
        self._times[name].extend((start_ns, end_ns))
        self._steps[name].extend((step, -step))
