"""The slack of a run's nodes, and what their waits for places cost the run.

Durations and waits are the run's own. Only calls of the pipeline's own nodes count; nested calls
are part of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.trace import events
from harness.trace.node_records import sources_of
from harness.trace.records import Flow


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSlack:
    """All calls of one node."""

    node: str
    calls: int
    total_ns: int
    longest_ns: int
    slack_ns: int
    """By how much each of its calls could have ended later, without the run ending later; 0 on the
    critical path."""


def slack_of(nodes: Sequence[events.NodeAttempt], flows: Iterable[Flow]) -> tuple[NodeSlack, ...]:
    """Of each node, in the order they began; takes arguments of `critical_path`."""
    calls, sources = _calls(nodes, flows)
    last_ns = max((call.end_ns for call in calls), default=0)
    # Without anything that waits for it, a call could last to the end.
    slack_ns = {call.id: last_ns - call.end_ns for call in calls}
    # A call began after those that it needs.
    for call in reversed(calls):
        for need in sources.get(call.id, ()):
            # The wait between them: a call may end so much later and hold nothing up.
            gap_ns = max(0, call.start_ns - need.end_ns)
            slack_ns[need.id] = min(slack_ns[need.id], slack_ns[call.id] + gap_ns)
    of_node: dict[str, list[events.NodeAttempt]] = {}
    for call in calls:
        of_node.setdefault(call.node, []).append(call)
    return tuple(
        NodeSlack(
            node=node,
            calls=len(its),
            total_ns=sum(call.duration_ns for call in its),
            longest_ns=max(call.duration_ns for call in its),
            slack_ns=min(slack_ns[call.id] for call in its),
        )
        for node, its in of_node.items()
    )


def lost_to_places_ns(nodes: Sequence[events.NodeAttempt], flows: Iterable[Flow]) -> int:
    """How much earlier the last call would have ended, had none waited for a place.

    The longest path of the graph without these waits. Other waits and durations stay as they were.
    """
    calls, sources = _calls(nodes, flows)
    ends_ns: dict[int, int] = {}
    for call in calls:
        free_ns = call.start_ns - call.waited_ns
        if needs := sources.get(call.id):
            # Below 0 for a call that takes items of a stream that had not ended.
            waited_ns = free_ns - max(need.end_ns for need in needs)
            free_ns = max(ends_ns[need.id] for need in needs) + waited_ns
        ends_ns[call.id] = free_ns + call.duration_ns
    return max((call.end_ns for call in calls), default=0) - max(ends_ns.values(), default=0)


def _calls(
    nodes: Sequence[events.NodeAttempt], flows: Iterable[Flow]
) -> tuple[list[events.NodeAttempt], dict[int, list[events.NodeAttempt]]]:
    """The calls in the order they began, and by their spans the calls that each needs."""
    outermost = [span for span in nodes if "/" not in span.node]
    outermost.sort(key=lambda span: (span.start_ns, span.id))
    return outermost, sources_of(outermost, flows)
