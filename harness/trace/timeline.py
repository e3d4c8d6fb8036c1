"""What both timeline formats share: where each span is drawn, its labels and its arrows.

A timeline draws nested slices, and slices that overlap without nesting cannot share a line
(Perfetto drops the second). So a track has as many lanes as it needs. A span is drawn in its
parent's slice if it lies inside and overlaps no slice drawn there before; else on the first lane of
its track that is free from its start on. On every lane any two spans are therefore disjoint or
nested, and a span is nested only in its ancestors.

Spans come roughly in the order they began. A span that comes late, such as a phase known only
afterwards, may get a lane of its own without need, but never a wrong one.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import NamedTuple

from harness.trace.events import NodeAttempt
from harness.trace.journal_reader import Journal
from harness.trace.records import Content, CounterSet, Flow, Instant, SpanRecord, title

_NOWHERE = -1

_ITEM = re.compile(r"\[\d+\]\Z")
# Most slices end no other slice: their lanes share this one list.
_NO_ENDS: list[int] = []
# Unit of a counter → the unit that is shown, and the factor.
_SHOWN_UNITS = {"share": ("%", 100), "bytes": ("MB", 1e-6)}
# The order of tracks by the first word of their names. Nodes take many screens if there are many
# rows, so what is of interest in every run comes before them.
_KINDS = ("run", "model", "server", "node", "worker", "machine", "process")


@dataclass(slots=True, eq=False)
class Lane:
    """One line of the timeline."""

    number: int  # counted from 0 over all lanes, in the order they were needed
    track: str  # the name people read
    index: int  # 0 for a track's first lane, counted up for spans that overlap
    # The ends of the slices that were closed to place the last one, innermost first: for a format
    # that draws a slice by its two ends.
    ended: list[int] = field(default_factory=lambda: _NO_ENDS)
    free_ns: int | None = None  # no slice drawn so far ends later
    # The slices in which another may still be nested, outermost first.
    open: list[_Slice] = field(default_factory=list)


class _Slice:
    """What the places of later slices need to know of a slice that is drawn."""

    __slots__ = ("end_ns", "free_ns", "id", "until_ns")

    def __init__(self, number: int, start_ns: int, end_ns: int) -> None:
        self.id = number
        self.end_ns = end_ns
        # A span without length covers one moment, at which viewers nest slices, too.
        self.until_ns = end_ns if end_ns > start_ns else start_ns + 1
        self.free_ns = start_ns  # no slice inside it ends later


class Lanes:
    """Gives each span its lane. Keeps four bytes a span, and the open slices.

    Spans are on the `root_track` if neither they nor a span around them name a track.
    """

    def __init__(self, root_track: str) -> None:
        self._root_track = root_track
        self._lanes: list[Lane] = []
        self._tracks: dict[str, list[Lane]] = {}
        self._lane_of = array("i")

    def place(self, span: SpanRecord) -> Lane:
        """The lane of the next span: on its `track`, else its parent's, else the root's."""
        number, parent, _, start_ns, end_ns, _, _, attributes = span
        own_track = attributes.get("track")
        placed = _Slice(number, start_ns, end_ns)
        lane = None if parent is None else self.lane_of(parent)
        is_nested = False
        if lane is not None and (own_track is None or own_track == lane.track):
            # A span without a track of its own is drawn in its parent's slice, or beside it.
            track = lane.track
            is_nested = _nest(lane, placed, start_ns, parent)
        else:
            track = self._root_track if own_track is None else str(own_track)
        if lane is None or not is_nested:
            lane = self._free_lane(track, start_ns)
            # The lane is free from here on, so all slices that were open on it have ended.
            lane.ended = [s.end_ns for s in reversed(lane.open)] if lane.open else _NO_ENDS
            lane.open = [placed]
            lane.free_ns = placed.until_ns
        if number >= len(self._lane_of):
            # Doubled, so that a long run does not extend it for every span.
            self._lane_of.extend([_NOWHERE] * (2 * number + 64 - len(self._lane_of)))
        self._lane_of[number] = lane.number
        return lane

    def lane_of(self, span: int) -> Lane | None:
        """The lane of the span with this id; None if it was not placed."""
        number = self._lane_of[span] if span < len(self._lane_of) else _NOWHERE
        return None if number == _NOWHERE else self._lanes[number]

    def of(self, span: int | None, track: str | None = None) -> Lane:
        """The lane of a span, or else of a track; by default the root's."""
        placed = None if span is None else self.lane_of(span)
        return placed or self.track(track)

    def track(self, name: str | None) -> Lane:
        """A track's first lane; the root track's by default."""
        track = name or self._root_track
        return self._tracks[track][0] if track in self._tracks else self._add(track)

    def close(self) -> Iterator[Lane]:
        """Every lane, with its open slices as `ended`."""
        for lane in self._lanes:
            lane.ended = [s.end_ns for s in reversed(lane.open)]
            lane.open = []
            yield lane

    def _free_lane(self, track: str, start_ns: int) -> Lane:
        for lane in self._tracks.get(track, ()):
            if lane.free_ns is None or lane.free_ns <= start_ns:
                return lane
        return self._add(track)

    def _add(self, track: str) -> Lane:
        lanes_of_track = self._tracks.setdefault(track, [])
        lane = Lane(len(self._lanes), track, len(lanes_of_track))
        self._lanes.append(lane)
        lanes_of_track.append(lane)
        return lane


def _nest(lane: Lane, placed: _Slice, start_ns: int, parent: int | None) -> bool:
    """Places a slice in its parent's slice if that is open on the lane and has room; else False."""
    stack = lane.open
    depth = len(stack) - 1
    while depth >= 0 and stack[depth].id != parent:
        depth -= 1
    if depth < 0:
        return False
    around = stack[depth]
    if not around.free_ns <= start_ns < around.until_ns or placed.end_ns > around.end_ns:
        return False
    # The slices that were open in the parent's have ended.
    closed = stack[depth + 1 :]
    lane.ended = [s.end_ns for s in reversed(closed)] if closed else _NO_ENDS
    del stack[depth + 1 :]
    around.free_ns = placed.until_ns
    stack.append(placed)
    return True


# The arrow from a node, or from what the node does, to its call.
_CALL = "call"


class ArrowEnd(NamedTuple):
    """One end of an arrow: at the beginning of the slice that is drawn, or on a mark."""

    number: int  # the number of the arrow, from 1; both of its ends have it
    name: str
    leaves: bool
    mark: Lane | None = None  # the lane of the mark that it leaves from; None for the slice


class TimelineDrawing:
    """A run as timelines show it: each span, instant and counter on its lane, and the arrows."""

    def __init__(self, journal: Journal) -> None:
        self.lanes = Lanes(f"run {journal.started.name}")
        self._journal = journal
        texts = islice(journal.items(Content), _MOST_TEXTS)
        self._excerpts = {c.sha256: _excerpt(c.text) for c in texts if type(c) is Content}
        self._leaving: dict[int, list[ArrowEnd]] = {}  # span → the ends of arrows that leave it
        self._arriving: dict[int, list[tuple[int, Flow]]] = {}  # span → number and flow of arrows
        self._drawn: dict[int, tuple[int, int]] = {}  # span that arrows leave → its start and end
        for number, flow in enumerate(journal.flows, start=1):
            leaving = self._leaving.setdefault(flow.source, [])
            if flow.name != _CALL:
                leaving.append(ArrowEnd(number, flow.name, leaves=True))
            self._arriving.setdefault(flow.target, []).append((number, flow))

    def items(self) -> Iterator[tuple[SpanRecord | Instant | CounterSet, Lane]]:
        """Everything to draw, in the order of the journal; counters of the whole run come last."""
        summary = SummaryTracks()
        items = self._journal.items(SpanRecord, Instant, CounterSet)
        for item in chain(items, summary.counters()):
            if type(item) is SpanRecord:
                summary.add(item)
                yield item, self.lanes.place(item)
            elif type(item) is CounterSet:
                yield shown_counter(item), self.lanes.of(item.span, item.track)
            elif type(item) is Instant:
                yield item, self.lanes.of(item.span)

    def arrows(self, span: SpanRecord) -> Iterable[ArrowEnd]:
        """The ends of arrows at a span, which must be the last one placed."""
        has_any = span.id in self._arriving or span.id in self._leaving
        return self._ends(span) if has_any else ()

    def _ends(self, span: SpanRecord) -> Iterator[ArrowEnd]:
        own_lane = self.lanes.lane_of(span.id)
        for number, (name, source, _) in self._arriving.get(span.id, ()):
            # An arrow must not run backwards in time.
            if source not in self._drawn or self._drawn[source][0] > span.start_ns:
                continue
            lane = self.lanes.lane_of(source)
            goes_on = self._drawn[source][1] > span.start_ns
            # Perfetto draws an arrow from the end of its source's slice. An arrow that leaves while
            # its source goes on, as at every call, leaves from a mark instead.
            if name == _CALL or (goes_on and lane is not own_lane):
                # It gets a new number: the arrow that left with its source leads nowhere.
                number += len(self._journal.flows)  # noqa: PLW2901
                yield ArrowEnd(number, name, leaves=True, mark=lane)
            yield ArrowEnd(number, name, leaves=False)
        if span.id in self._leaving:
            self._drawn[span.id] = span.start_ns, span.end_ns
            yield from self._leaving[span.id]

    def arguments(self, span: SpanRecord, lane: Lane) -> dict[str, object]:
        """What a click on a slice shows: its id, its attributes, how it ended.

        The span must be the last one placed on the lane.
        """
        arguments: dict[str, object] = {"span": span.id, **span.attributes}
        # A slice without others around it does not show its parent.
        if span.parent is not None and len(lane.open) == 1:
            arguments["parent"] = span.parent
        # The timeline shows both by itself.
        arguments.pop("track", None)
        arguments.pop("label", None)
        if span.status != "ok":
            arguments["status"] = span.status
        if span.error:
            arguments["error"] = span.error
        if span.name == "chat":
            for name in _ALSO_IN_MS:
                if isinstance(value := arguments.get(f"{name}_ns"), int):
                    arguments[f"{name}_ms"] = round(value / 1e6, 1)
        if self._excerpts:
            for name, value in span.attributes.items():
                if name.endswith("_sha256") and isinstance(value, str) and value in self._excerpts:
                    del arguments[name]
                    arguments[name.removesuffix("_sha256")] = self._excerpts[value]
                    # The command that prints the whole text; a part of an id names a run.
                    run_id = self._journal.started.run_id
                    arguments["whole"] = f"harness trace show {span.id} {run_id[-12:]}"
        return arguments


# The titles of phases. Perfetto takes a slice's color from a hash of its title: with their names as
# titles, queue and prefill would be one blue, overhead and load one olive.
_PHASE_TITLES = {
    "overhead": "overhead",
    "queue": "queue",
    "load": "loading",
    "prefill": "read (prefill)",
    "decode": "decode",
}


def slice_title(span: SpanRecord) -> str:
    """The title of a slice, with the status of a span that did not end well; of a phase its own."""
    name = title(span)
    if name in _PHASE_TITLES and name == span.name:
        return _PHASE_TITLES[name]
    return name if span.status == "ok" else f"{name}: {span.status}"


def on_lane(name: str, lane: Lane) -> str:
    """A name, with the number of its lane if that is not the track's first."""
    return f"{name} ({lane.index + 1})" if lane.index else name


def shown_counter(counter: CounterSet) -> CounterSet:
    """The value as people read it: percent in place of a share, MB in place of bytes."""
    if counter.unit not in _SHOWN_UNITS:
        return counter
    unit, factor = _SHOWN_UNITS[counter.unit]
    return counter._replace(unit=unit, value=round(counter.value * factor, 2))


def track_rank(track: str) -> int:
    """The place of a track among the others, by the first word of its name."""
    # Nodes of nested pipelines come last, for formats that cannot draw them in `track_around`.
    kind = track.partition(" ")[0]
    return _KINDS.index(kind) if kind in _KINDS and not track_around(track) else len(_KINDS)


def track_around(track: str) -> str:
    """The track that another is drawn in, folded; empty for most.

    `node rows[3]/words/draft` of a nested pipeline is drawn in `node rows[3]`, which is drawn in
    `node rows`.
    """
    # Other tracks may look alike: the tag of a model may have a slash.
    if not track.startswith("node "):
        return ""
    call, slash, _ = track.partition("/")
    if slash:
        return call
    node = _ITEM.sub("", track)
    return "" if node == track else node


# Figures of a call that people read first; they are shown in milliseconds, too.
_ALSO_IN_MS = ("ttft", "itl_mean")
_MOST_TEXTS = 100_000
# Characters of a text that a slice shows: with so few, the files of 10,000 calls grow by a fifth.
# Only a third is of the text's beginning, since prompts begin alike and differ at their ends.
_EXCERPT_CHARS = 110
_HEAD_CHARS = 35


def _excerpt(text: str) -> str:
    if len(text) <= _EXCERPT_CHARS:
        return text
    # The mark and its spaces take 5 characters.
    return f"{text[:_HEAD_CHARS]} […] {text[_HEAD_CHARS + 5 - _EXCERPT_CHARS :]}"


# --- counters of a whole run's activity, at the top of its timeline -------------------------------

_IN_FLIGHT, _RATE, _WAITING = "calls", "decoding", "nodes"
_UNITS = {_IN_FLIGHT: "in flight", _RATE: "tokens/s", _WAITING: "waiting for a place"}
"""Counter → its unit; timelines show both in one, such as `calls in flight`."""


class SummaryTracks:
    """Counts the spans under way. Keeps 16 bytes for each start and end of a span that counts."""

    def __init__(self) -> None:
        self._times = {name: array("q") for name in _UNITS}
        self._steps = {name: array("d") for name in _UNITS}
        self._tokens: dict[int, int] = {}

    def add(self, span: SpanRecord) -> None:
        """Adds a span; a call comes before its phases. Calls, their decoding and nodes count."""
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
                # Viewers draw every value: only the last one at a moment, and visible changes.
                level = round(value, 1)
                if time_ns != next_ns and level != drawn:
                    drawn = level
                    yield CounterSet(name, unit, time_ns, drawn, None, None)

    def _put(self, name: str, start_ns: int, end_ns: int, step: float) -> None:
        self._times[name].extend((start_ns, end_ns))
        self._steps[name].extend((step, -step))
