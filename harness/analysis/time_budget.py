"""Where the time of a run's critical path went: each moment has one cause."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.trace import events
from harness.trace.calls import Call, answered_by_model
from harness.trace.intervals import common, length_ns, parts_within, without
from harness.trace.node_records import CriticalPath, sources_of
from harness.trace.records import Flow, Instant, Interval, SpanRecord

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
"""What each kind means. If several go on at one moment in a node on the path, the first in this
order counts; what other nodes do at that moment does not count."""

_KINDS: Mapping[TimeKind, tuple[type, ...]] = {
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
_KIND_OF_SPAN = {events.name_of(event): kind for kind, spans in _KINDS.items() for event in spans}
"""The kinds of spans that are neither calls nor phases of calls, by the span's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeShare:
    """One cause of time."""

    kind: TimeKind
    duration_ns: int
    share: float
    """Its part of the run's time, from 0 to 1."""
    most_of: str | None = None
    """What took most of it: for `code` the node on the path, for `tool` the tool, for `prefill` and
    `decode` the model, if there are several."""


class TimeSpent:
    """Divides a run's time into shares, by its calls and by the records that `note` collects."""

    def __init__(self) -> None:
        # Spans that are neither calls nor phases of calls, and pauses before retries.
        self._spans_by_kind: dict[TimeKind, list[Interval]] = {}
        self._calls_by_tool: dict[str, list[Interval]] = {}

    def note(self, item: SpanRecord | Instant) -> None:
        """Adds a record; records without times are skipped."""
        if isinstance(item, SpanRecord):
            if kind := _KIND_OF_SPAN.get(item.name):
                self._put(kind, item.start_ns, item.end_ns)
            if tool := events.ToolEvent.of(item):
                self._calls_by_tool.setdefault(tool.tool, []).append(tool)
        elif retry := events.RetryEvent.of(item):
            self._put(
                "node retry" if retry.node else "retry", retry.pause.start_ns, retry.pause.end_ns
            )

    def shares(
        self, path: CriticalPath, calls: Sequence[Call], *, run: Interval
    ) -> tuple[TimeShare, ...]:
        """The causes of the run's time, the largest first; their durations add up to it.

        The path of a run without nodes has no steps. `run` is from its first record to its last.
        """
        # 1. How long each kind took: in the waits before the steps, in the steps, and at the end.
        spent_ns = dict.fromkeys(TIME_KINDS, 0)
        code_ns_by_node: dict[str, int] = {}
        calls_by_step: dict[int | None, list[Call]] = {}
        for call in calls:
            calls_by_step.setdefault(call.node_span, []).append(call)
        waits, windows = _divided(path, run)
        for kind, duration_ns in self._before_steps(path, waits):
            spent_ns[kind] += duration_ns
        # Kind → for each step, the parts of this kind's spans that lie in it.
        parts_by_kind = {
            kind: parts_within(windows, spans) for kind, spans in self._spans_by_kind.items()
        }
        for number, step in enumerate(path.steps):
            beside = {kind: parts[number] for kind, parts in parts_by_kind.items()}
            step_calls = calls_by_step.get(step.span, ())
            for kind, duration_ns in _inside(windows[number], step_calls, beside):
                spent_ns[kind] += duration_ns
                if kind == "code":
                    code_ns_by_node[step.node] = code_ns_by_node.get(step.node, 0) + duration_ns
        if windows:
            spent_ns["end"] += max(0, run.end_ns - windows[-1].end_ns)
        else:
            spent_ns |= dict(_inside(run, calls, self._spans_by_kind))

        # 2. Which node, tool or model took most of a kind.
        calls_on_path = [call for step in path.steps for call in calls_by_step.get(step.span, ())]
        ns_by_name: dict[TimeKind, Mapping[str, int]] = {
            "code": code_ns_by_node,
            "tool": {
                tool: length_ns(common(windows or [run], spans))
                for tool, spans in self._calls_by_tool.items()
            },
        }
        calls_by_model = answered_by_model(calls_on_path or calls)
        for phase in ("prefill", "decode") if len(calls_by_model) > 1 else ():
            ns_by_name[phase] = {
                tag: length_ns(times_in(phase, replies)) for tag, replies in calls_by_model.items()
            }
        shares = [
            TimeShare(
                kind=kind,
                duration_ns=duration_ns,
                share=duration_ns / max(1, run.duration_ns),
                most_of=_name_of_most(ns_by_name.get(kind, {})),
            )
            for kind, duration_ns in spent_ns.items()
            if duration_ns > 0
        ]
        return tuple(sorted(shares, key=lambda share: -share.duration_ns))

    def _before_steps(
        self, path: CriticalPath, waits: Sequence[Interval]
    ) -> Iterator[tuple[TimeKind, int]]:
        """The causes of the wait before each step: first lags, then pauses, then places."""
        lags = parts_within(waits, self._spans_by_kind.get("client lag", ()))
        pauses = parts_within(waits, self._spans_by_kind.get("node retry", ()))
        for number, step in enumerate(path.steps):
            lag_ns = length_ns(lags[number])
            pause_ns = length_ns(without(pauses[number], lags[number]))
            rest_ns = waits[number].duration_ns - lag_ns - pause_ns
            place_ns = min(rest_ns, step.place_wait_ns)
            yield "client lag", lag_ns
            yield "node retry", pause_ns
            yield "place", place_ns
            yield "between nodes" if number else "start", rest_ns - place_ns

    def _put(self, kind: TimeKind, start_ns: int, end_ns: int) -> None:
        self._spans_by_kind.setdefault(kind, []).append(Interval(start_ns=start_ns, end_ns=end_ns))


def _name_of_most(ns_by_name: Mapping[str, int]) -> str | None:
    return max(ns_by_name, key=lambda name: ns_by_name[name], default=None)


def times_in(phase: str, calls: Iterable[Call]) -> list[Interval]:
    """When the calls were in a phase; in `decode` each was being answered."""
    return [part for call in calls for part in call.phases.get(phase, ())]


def _divided(path: CriticalPath, run: Interval) -> tuple[list[Interval], list[Interval]]:
    """The wait before each step, and the steps themselves, cut so that none overlap."""
    waits, windows = [], []
    free_ns = run.start_ns
    for step in path.steps:
        # Steps of a stream overlap: a moment in two steps belongs to the earlier one.
        start_ns = max(free_ns, run.start_ns + step.start_ns)
        end_ns = max(start_ns, run.start_ns + step.start_ns + step.duration_ns)
        waits.append(Interval(start_ns=free_ns, end_ns=start_ns))
        windows.append(Interval(start_ns=start_ns, end_ns=end_ns))
        free_ns = end_ns
    return waits, windows


def _inside(
    window: Interval, calls: Sequence[Call], beside: Mapping[TimeKind, Sequence[Interval]]
) -> Iterator[tuple[TimeKind, int]]:
    """How long each kind went on in the window while no earlier kind did; own code has the rest."""
    rest = [window]
    for kind in TIME_KINDS:
        if spans := [*beside.get(kind, ()), *_in_calls(kind, calls)]:
            yield kind, length_ns(common(rest, spans))
            rest = without(rest, spans)
    yield "code", length_ns(rest)


def _in_calls(kind: TimeKind, calls: Sequence[Call]) -> Iterator[Interval]:
    match kind:
        case "decode" | "prefill" | "load" | "overhead":
            yield from times_in(kind, calls)
        case "queue":
            for call in calls:
                # Waits in this process have kinds of their own.
                waits = {*call.turns, *call.room}
                yield from (part for part in call.phases.get("queue", ()) if part not in waits)
        case "turn":
            for call in calls:
                yield from call.turns
        case "room":
            for call in calls:
                yield from call.room
        case "failed":
            yield from (call for call in calls if call.status != "ok")
    if kind == "overhead":
        yield from calls  # What is left of them when all kinds before are taken out.


def lost_to_places_ns(nodes: Sequence[events.NodeAttempt], flows: Iterable[Flow]) -> int:
    """How much earlier the last call would have ended, had none waited for a place."""
    # Computes when each call would have ended without these waits; other waits and durations stay.
    # Nested calls are left out, as they are part of the pipeline's own calls.
    calls = sorted(
        (call for call in nodes if "/" not in call.node), key=lambda call: (call.start_ns, call.id)
    )
    sources = sources_of(calls, flows)
    ends_ns: dict[int, int] = {}
    for call in calls:
        free_ns = call.start_ns - call.waited_ns
        if needs := sources.get(call.id):
            # It is below 0 for a call that takes items of a stream that had not ended.
            waited_ns = free_ns - max(need.end_ns for need in needs)
            free_ns = max(ends_ns[need.id] for need in needs) + waited_ns
        ends_ns[call.id] = free_ns + call.duration_ns
    return max((call.end_ns for call in calls), default=0) - max(ends_ns.values(), default=0)
