"""Where each span is drawn: on which track, and on which lane of it.

A timeline draws nested slices, and slices that overlap without nesting cannot share a line
(Perfetto drops the second). So a track has as many lanes as it needs, and a span is drawn under
its parent only where it truly lies inside it and no sibling is in its way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.trace.run_record import SpanRecord


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Lane:
    """One line of the timeline."""

    track: str
    """The name people read."""
    index: int
    """0 for a track's first lane, counted up for spans that overlap."""


def assign_lanes(spans: Sequence[SpanRecord], *, root_track: str) -> dict[int, Lane]:
    """The lane of every span, by span id.

    A span is on the track of its `track` attribute, else on its parent's, else on `root_track`.
    On every lane any two spans are disjoint or nested, and a span is nested only in its ancestors.

    Args:
        spans: As a run has them, parents before their children.
        root_track: What the track of spans without one is called.
    """
    # 1. Tracks, in the order of the records: there a parent always stands before its children.
    tracks: dict[int | None, str] = {None: root_track}
    for span in spans:
        tracks[span.id] = str(span.attributes.get("track", tracks.get(span.parent, root_track)))

    # 2. Lanes, in the order of time; longest first where two begin together, as viewers nest them.
    lanes: dict[int, Lane] = {}
    # Per lane, the spans that are open at the moment under consideration, outermost first.
    open_spans: dict[Lane, list[SpanRecord]] = {}
    for span in sorted(spans, key=lambda s: (s.start_ns, -s.end_ns, s.id)):
        parent_lane = lanes.get(span.parent) if span.parent is not None else None
        lane = _free_lane(span, tracks[span.id], parent_lane, open_spans)
        lanes[span.id] = lane
        open_spans.setdefault(lane, []).append(span)
    return lanes


def _free_lane(
    span: SpanRecord,
    track: str,
    parent_lane: Lane | None,
    open_spans: dict[Lane, list[SpanRecord]],
) -> Lane:
    if parent_lane is not None and parent_lane.track == track:
        innermost = _innermost(open_spans[parent_lane], span.start_ns)
        if innermost is None or (innermost.id == span.parent and span.end_ns <= innermost.end_ns):
            return parent_lane
    index = 0
    while _innermost(open_spans.get(Lane(track=track, index=index), []), span.start_ns) is not None:
        index += 1
    return Lane(track=track, index=index)


def _innermost(stack: list[SpanRecord], now_ns: int) -> SpanRecord | None:
    """The innermost span that is still open; those that have ended are taken off the stack."""
    # A span without length still covers the moment it happened at: viewers nest there too.
    while stack and max(stack[-1].end_ns, stack[-1].start_ns + 1) <= now_ns:
        stack.pop()
    return stack[-1] if stack else None
