"""What the timelines have in common: the words on them, and where their arrows begin and end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from harness.trace.records import Flow, SpanRecord, SpanStarted
from harness.trace.timelines.lanes import Lane

_KINDS = ("run", "node", "model", "server")


class FlowEnd(NamedTuple):
    """One end of an arrow."""

    number: int
    """The arrow's, counted from 1."""
    name: str
    """What went along."""
    is_source: bool
    """Whether the arrow begins here."""


def title(span: SpanRecord | SpanStarted) -> str:
    """What people call a span: its label, or else its name."""
    label = span.attributes.get("label")
    return str(label) if label else span.name


def slice_title(span: SpanRecord) -> str:
    """What people read on a slice: the title, and how it ended if not well."""
    return title(span) if span.status == "ok" else f"{title(span)}: {span.status}"


def lane_title(lane: Lane) -> str:
    """What people read on a lane."""
    return on_lane(lane.track, lane)


def on_lane(name: str, lane: Lane) -> str:
    """A name, and which of its track's lanes it is on when there are several."""
    return f"{name} ({lane.index + 1})" if lane.index else name


def track_rank(track: str) -> int:
    """Where a track stands among the others, by the first word of its name."""
    kind = track.partition(" ")[0]
    return _KINDS.index(kind) if kind in _KINDS else len(_KINDS)


def flow_ends(flows: Iterable[Flow]) -> dict[int, list[FlowEnd]]:
    """The ends of arrows at each span, by its id."""
    ends: dict[int, list[FlowEnd]] = {}
    for number, flow in enumerate(flows, start=1):
        ends.setdefault(flow.source, []).append(FlowEnd(number, flow.name, is_source=True))
        ends.setdefault(flow.target, []).append(FlowEnd(number, flow.name, is_source=False))
    return ends


def span_arguments(span: SpanRecord, lane: Lane) -> dict[str, object]:
    """What a click on a slice shows: its id, its attributes, how it ended.

    Its parent's id only where it is not drawn in its parent; and not `track` and `label`, which are
    to be seen where it is.

    Args:
        span: The last that was placed on the lane.
        lane: Where it is drawn.
    """
    arguments: dict[str, object] = {"span": span.id, **span.attributes}
    if span.parent is not None and len(lane.open) == 1:
        arguments["parent"] = span.parent
    arguments.pop("track", None)
    arguments.pop("label", None)
    if span.status != "ok":
        arguments["status"] = span.status
    if span.error:
        arguments["error"] = span.error
    return arguments
