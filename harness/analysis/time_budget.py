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
    "embed": "texts were embedded",
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
    "embed": (events.Embed,),
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
    spans_by_kind = _spans_by_kind(recorded)
    steps = _steps_of(path, calls, run)
    # 1. How long each kind took: before each step, in each step, and after the last one.
    ns_in_steps = _ns_in_steps(steps, spans_by_kind)
    ns_by_kind: Counter[TimeKind] = Counter()
    for durations_ns in (*_ns_before_steps(steps, spans_by_kind), *ns_in_steps):
        ns_by_kind.update(durations_ns)
    if steps:
        ns_by_kind["end"] = max(0, run.end_ns - steps[-1].window.end_ns)
    else:
        ns_by_kind.update(_ns_in(run, calls, spans_by_kind))

    # 2. Which node, tool or model took most of a kind.
    code_ns: Counter[str] = Counter()
    for step, durations_ns in zip(steps, ns_in_steps, strict=True):
        code_ns[step.node] += durations_ns["code"]
    windows = [step.window for step in steps] or [run]
    calls_by_tool = grouped(recorded[events.ToolEvent], by=lambda call: call.tool)
    tool_ns = {tool: length_ns(common(windows, times)) for tool, times in calls_by_tool.items()}
    calls_on_path = [call for step in steps for call in step.calls] or calls
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


class _StepTime(NamedTuple):
    """A step of the critical path, with its part of the run's time."""

    node: str
    wait: Interval  # from the end of the step before it, or the run's start, until it began
    place_wait_ns: int
    window: Interval  # its time, without the moments that belong to an earlier step
    calls: Sequence[Call]


def _steps_of(path: CriticalPath, calls: Iterable[Call], run: Interval) -> list[_StepTime]:
    calls_by_node_span = grouped(calls, by=lambda call: call.node_span)
    steps = []
    last_end_ns = run.start_ns
    for step in path.steps:
        # Steps of a stream overlap: a moment in two steps belongs to the earlier one.
        start_ns = max(last_end_ns, run.start_ns + step.start_ns)
        end_ns = max(start_ns, run.start_ns + step.start_ns + step.duration_ns)
        wait = Interval(start_ns=last_end_ns, end_ns=start_ns)
        window = Interval(start_ns=start_ns, end_ns=end_ns)
        step_calls = calls_by_node_span.get(step.span, ())
        steps.append(_StepTime(step.node, wait, step.place_wait_ns, window, step_calls))
        last_end_ns = end_ns
    return steps


def _ns_before_steps(steps: Sequence[_StepTime], spans: _Spans) -> Iterator[Mapping[TimeKind, int]]:
    """For each step, how long each cause of the wait before it took."""
    waits = [step.wait for step in steps]
    lags_by_step = parts_within(waits, spans["client lag"])
    pauses_by_step = parts_within(waits, spans.get("node retry", ()))
    for number, step in enumerate(steps):
        lags = lags_by_step[number]
        lag_ns = length_ns(lags)
        # A moment counts once: as a lag, else as a pause, else as a wait for a place.
        pause_ns = length_ns(without(pauses_by_step[number], lags))
        unexplained_ns = step.wait.duration_ns - lag_ns - pause_ns
        place_ns = min(unexplained_ns, step.place_wait_ns)
        yield {
            "client lag": lag_ns,
            "node retry": pause_ns,
            "place": place_ns,
            "between nodes" if number else "start": unexplained_ns - place_ns,
        }


def _ns_in_steps(steps: Sequence[_StepTime], spans: _Spans) -> list[Mapping[TimeKind, int]]:
    """For each step, how long each kind took in it."""
    windows = [step.window for step in steps]
    # Kind → for each step, the parts of this kind's spans that lie in it.
    parts = {kind: parts_within(windows, times) for kind, times in spans.items()}
    return [
        _ns_in(step.window, step.calls, {kind: parts[kind][number] for kind in parts})
        for number, step in enumerate(steps)
    ]


def _key_of_most(durations_ns: Mapping[str, int]) -> str | None:
    return max(durations_ns, key=lambda key: durations_ns[key], default=None)


def _model_of_most(phase: str, calls: Iterable[Call]) -> str | None:
    """The model that was in the phase for most of the time; None unless there are several."""
    calls_by_model = answered_by_model(calls)
    if len(calls_by_model) < 2:
        return None
    return _key_of_most(
        {tag: length_ns(times_in(phase, replies)) for tag, replies in calls_by_model.items()}
    )


def times_in(phase: str, calls: Iterable[Call]) -> list[Interval]:
    """When the calls were in a phase; in `decode` each was being answered."""
    return [part for call in calls for part in call.phases.get(phase, ())]


def _ns_in(window: Interval, calls: Sequence[Call], spans: _Spans) -> Mapping[TimeKind, int]:
    """How long each kind went on in the window while no earlier kind of `TIME_KINDS` did."""
    durations_ns: dict[TimeKind, int] = {}
    unexplained = [window]
    for kind in TIME_KINDS:
        if times := [*spans.get(kind, ()), *_times_of(kind, calls)]:
            durations_ns[kind] = length_ns(common(unexplained, times))
            unexplained = without(unexplained, times)
    # No kind before it explains this time, so the node's own code took it.
    durations_ns["code"] = length_ns(unexplained)
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
        if needed := sources.get(node.id):
            # Below 0 if the node takes items of a stream that had not ended.
            other_wait_ns = start_ns - max(source.end_ns for source in needed)
            start_ns = max(ends_ns[source.id] for source in needed) + other_wait_ns
        ends_ns[node.id] = start_ns + node.duration_ns
    return max((node.end_ns for node in outermost), default=0) - max(ends_ns.values(), default=0)
