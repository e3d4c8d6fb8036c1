"""Where the time of a run's critical path went: each moment has one cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from harness.trace import events
from harness.trace.calls import Call, answered_by_model, grouped
from harness.trace.intervals import common, length_ns, parts_within, without
from harness.trace.node_records import CriticalPath, sources_of
from harness.trace.records import Flow, Interval

TimeKind = Literal[
    "client lag", "decode", "prefill", "load", "queue", "turn", "room", "failed", "retry", "probe",
    "overhead", "node retry", "embed", "memory", "tool", "code", "place",
    "between nodes", "start", "end",
]  # fmt: skip

TIME_KINDS: Mapping[TimeKind, str] = {
    "client lag": "the event loop of this process stood still",
    "decode": "models wrote replies",
    "prefill": "until the first token: prompts were read, and whatever else servers did first",
    "load": "models were loaded or unloaded",
    "queue": "calls queued in their servers",
    "turn": "calls waited here for their turn at an endpoint",
    "room": "calls waited here for room in memory, or within a limit of the run",
    "failed": "calls that failed, or were cut off",
    "retry": "pauses before calls were tried again, and waits for a server that was out of reach",
    "probe": "a server was asked what it does with schemas and tools",
    "overhead": "around the engines: client, network, front ends",
    "node retry": "pauses before nodes were tried again",
    "embed": "texts were embedded, or passages ranked",
    "memory": "passages were remembered or recalled",
    "tool": "tools that an agent's model asked for, and the start of their servers",
    "code": "the nodes' own code, and what it waited for",
    "place": "nodes waited for a place, the pipeline's or their own",
    "between nodes": "between two nodes: outputs were written to the journal, harness's own work",
    "start": "before the first node",
    "end": "after the last node",
}
"""What each kind means. If several kinds go on at one moment in a node on the path, the first in
this order counts. What nodes beside the path do at that moment does not count."""

# The spans that are neither calls nor phases of calls.
_EVENTS: Mapping[TimeKind, tuple[type, ...]] = {
    "client lag": (events.ClientLag,),
    "load": (events.UnloadEvent,),
    "room": (events.WaitForRoom,),
    "retry": (events.Hold,),
    "probe": (events.SchemaProbe, events.ToolProbe),
    "overhead": (events.AskSlots,),
    "embed": (events.Embed, events.Rerank),
    "memory": (events.Remember, events.Recall, events.Novelty, events.OpenMemory),
    "tool": (events.ToolEvent, events.McpStart),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """One cause of time."""

    kind: TimeKind
    duration_ns: int
    share: float  # its part of the run's time, from 0 to 1
    # For `code` the node that took most of it, for `tool` the tool, for phases one of the models.
    most_of: str | None = None


def time_shares(
    path: CriticalPath, calls: Sequence[Call], recorded: events.Events, *, run: Interval
) -> tuple[TimeShare, ...]:
    """The causes of the run's time, the largest first; their durations add up to it.

    The path of a run without nodes has no steps. `run` is from its first record to its last.
    """
    stretches = [*_stretches(path, calls, run)]
    # 1. How long each kind took in each stretch.
    ns_by_kind: Counter[TimeKind] = Counter()
    code_ns: Counter[str] = Counter()
    durations = _ns_in_stretches(stretches, _spans_by_kind(recorded))
    for stretch, durations_ns in zip(stretches, durations, strict=True):
        ns_by_kind.update(durations_ns)
        if stretch.node is not None:
            code_ns[stretch.node] += durations_ns["code"]

    # 2. Which node, tool or model took most of a kind.
    steps = [stretch for stretch in stretches if stretch.rest == "code"]
    windows = [step.window for step in steps]
    calls_by_tool = grouped(recorded[events.ToolEvent], by=lambda call: call.tool)
    tool_ns = {tool: length_ns(common(windows, times)) for tool, times in calls_by_tool.items()}
    calls_on_path = [call for step in steps for call in step.calls]
    most_of: dict[TimeKind, str | None] = {
        "code": _key_of_most(code_ns),
        "tool": _key_of_most(tool_ns),
        "prefill": _model_of_most("prefill", calls_on_path),
        "decode": _model_of_most("decode", calls_on_path),
    }

    shares = [
        TimeShare(
            kind=kind,
            duration_ns=ns_by_kind[kind],
            share=ns_by_kind[kind] / max(1, run.duration_ns),
            most_of=most_of.get(kind),
        )
        for kind in TIME_KINDS
        if ns_by_kind[kind] > 0
    ]
    return tuple(sorted(shares, key=lambda share: -share.duration_ns))


_Spans = Mapping[TimeKind, Sequence[Interval]]


def _spans_by_kind(recorded: events.Events) -> _Spans:
    """The spans of `_EVENTS`, and the pauses before retries."""
    spans: dict[TimeKind, list[Interval]] = {
        kind: [time for event in kinds for time in recorded.times_of(event)]
        for kind, kinds in _EVENTS.items()
    }
    for retry in recorded[events.RetryEvent]:
        spans.setdefault("node retry" if retry.node else "retry", []).append(retry.pause)
    return spans


class _Stretch(NamedTuple):
    """A part of the run's time: a step of the critical path, or the wait before it or after all."""

    window: Interval
    rest: TimeKind  # the cause of the time that nothing recorded explains; `code` in a step
    node: str | None = None
    calls: Sequence[Call] = ()


def _stretches(path: CriticalPath, calls: Sequence[Call], run: Interval) -> Iterator[_Stretch]:
    """The stretches that make up the run, in order."""
    if not path.steps:
        yield _Stretch(run, "code", calls=calls)
        return
    calls_by_node_span = grouped(calls, by=lambda call: call.node_span)
    last_end_ns = run.start_ns
    for number, step in enumerate(path.steps):
        # Steps of a stream overlap: a moment in two steps belongs to the earlier one.
        start_ns = max(last_end_ns, run.start_ns + step.start_ns)
        end_ns = max(start_ns, run.start_ns + step.start_ns + step.duration_ns)
        place_ns = max(last_end_ns, start_ns - step.place_wait_ns)
        rest: TimeKind = "between nodes" if number else "start"
        # Between two steps, a part of the run may end, and another begin.
        parts_ns = [t for t in path.resumed_ns if last_end_ns <= run.start_ns + t <= place_ns]
        if number and parts_ns:
            part_ns = run.start_ns + parts_ns[0]
            yield _Stretch(Interval(start_ns=last_end_ns, end_ns=part_ns), "end")
            last_end_ns, rest = part_ns, "start"
        yield _Stretch(Interval(start_ns=last_end_ns, end_ns=place_ns), rest)
        yield _Stretch(Interval(start_ns=place_ns, end_ns=start_ns), "place")
        window = Interval(start_ns=start_ns, end_ns=end_ns)
        yield _Stretch(window, "code", step.node, calls_by_node_span.get(step.span, ()))
        last_end_ns = end_ns
    yield _Stretch(Interval(start_ns=last_end_ns, end_ns=max(last_end_ns, run.end_ns)), "end")


def _ns_in_stretches(
    stretches: Sequence[_Stretch], spans: _Spans
) -> Iterator[Mapping[TimeKind, int]]:
    """For each stretch, how long each kind took in it."""
    windows = [stretch.window for stretch in stretches]
    # Kind → for each stretch, the parts of this kind's spans that lie in it.
    parts = {kind: parts_within(windows, times) for kind, times in spans.items()}
    for number, stretch in enumerate(stretches):
        # Between steps, all else is of nodes beside the path.
        kinds = parts if stretch.rest == "code" else parts.keys() & {"client lag", "node retry"}
        yield _ns_in(stretch, {kind: parts[kind][number] for kind in kinds})


def _key_of_most(durations_ns: Mapping[str, int]) -> str | None:
    return max(durations_ns, key=lambda key: durations_ns[key], default=None)


def _model_of_most(phase: str, calls: Iterable[Call]) -> str | None:
    """The model that was in the phase for most of the time; None unless there are several."""
    calls_by_model = answered_by_model(calls)
    if len(calls_by_model) < 2:
        return None
    times = {tag: length_ns(times_in(phase, replies)) for tag, replies in calls_by_model.items()}
    return _key_of_most(times)


def times_in(phase: str, calls: Iterable[Call]) -> list[Interval]:
    """When the calls were in a phase; in `decode` each was being answered."""
    return [part for call in calls for part in call.phases.get(phase, ())]


def _ns_in(stretch: _Stretch, spans: _Spans) -> Mapping[TimeKind, int]:
    """How long each kind went on in a stretch while no earlier kind of `TIME_KINDS` did."""
    durations_ns: Counter[TimeKind] = Counter()
    unexplained = [stretch.window]
    for kind in TIME_KINDS:
        if times := [*spans.get(kind, ()), *_times_of(kind, stretch.calls)]:
            durations_ns[kind] = length_ns(common(unexplained, times))
            unexplained = without(unexplained, times)
    durations_ns[stretch.rest] += length_ns(unexplained)
    return durations_ns


def _times_of(kind: TimeKind, calls: Sequence[Call]) -> Iterator[Interval]:
    """When this kind of time went on in the calls."""
    for call in calls:
        match kind:
            case "decode" | "prefill" | "load":
                yield from call.phases.get(kind, ())
            case "queue":
                # Waits in this process are of the kinds `turn` and `room`.
                waits_here = {*call.turns, *call.room}
                yield from (wait for wait in call.phases.get(kind, ()) if wait not in waits_here)
            case "turn":
                yield from call.turns
            case "room":
                yield from call.room
            case "failed" if call.status != "ok":
                yield call
            case "overhead":
                # The whole call: `_ns_in` has taken the kinds before this one out of it.
                yield call


def lost_to_places_ns(nodes: Sequence[events.NodeAttempt], flows: Iterable[Flow]) -> int:
    """How much earlier the last node would have ended if none had waited for a place."""
    # Nested nodes are left out, since their time is part of the node that called them.
    outermost = [node for node in nodes if "/" not in node.node]
    outermost.sort(key=lambda node: (node.start_ns, node.id))
    sources = sources_of(outermost, flows)
    # Span → when the node would have ended. Its duration and its other waits stay as they were.
    ends_ns: dict[int, int] = {}
    for node in outermost:
        start_ns = node.start_ns - node.waited_ns
        if needed := [source for source in sources.get(node.id, ()) if source.id in ends_ns]:
            # Below 0 if the node takes items of a stream that had not ended.
            other_wait_ns = start_ns - max(source.end_ns for source in needed)
            start_ns = max(ends_ns[source.id] for source in needed) + other_wait_ns
        ends_ns[node.id] = start_ns + node.duration_ns
    return max((node.end_ns for node in outermost), default=0) - max(ends_ns.values(), default=0)
