"""What a run made of a graph's nodes, from its journal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from harness.trace import Interval, Journal
from harness.trace.critical_path import critical_path
from harness.trace.node_records import NodeRecord, NodeStatus, node_records
from harness.trace.records import RunState

SeenStatus = NodeStatus | Literal["not run"]
"""What became of a node: the worst of its items."""

_WORST_FIRST: tuple[NodeStatus, ...] = (
    "failed",
    "unfinished",
    "stopped",
    "waiting",
    "cancelled",
    "done",
    "reused",
    "skipped",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """What became of a node, with all of its items and of what was nested in it."""

    status: SeenStatus
    """How it ended."""
    items: int
    """Items that it had; 1 for a node that is not mapped, 0 for one that was not run."""
    busy_ns: int
    """For how long at least one of them was under way."""
    calls: int
    """Calls of models."""
    input_tokens: int
    """Of those calls."""
    output_tokens: int
    """Of those calls."""
    is_critical: bool
    """Whether it lies on the critical path."""


NOT_RUN = NodeSeen(
    status="not run",
    items=0,
    busy_ns=0,
    calls=0,
    input_tokens=0,
    output_tokens=0,
    is_critical=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """A run of a graph."""

    run_id: str
    """Its name."""
    status: RunState
    """How it ended; `unfinished` when it was killed, or is not over."""
    duration_ns: int
    """From its first record to its last."""
    nodes: Mapping[str, NodeSeen]
    """By the node's name; those that the run had."""
    critical_path: tuple[str, ...]
    """The nodes that decided how long it took, in order; of a mapped node, one item did."""

    @property
    def critical_steps(self) -> frozenset[tuple[str, str]]:
        """Which node led to which along that path."""
        return frozenset(pairwise(self.critical_path))

    def of(self, node: str) -> NodeSeen:
        """What became of a node."""
        return self.nodes.get(node, NOT_RUN)


def run_seen(journal: Journal) -> RunSeen:
    """Reads a journal, of a run that ended, was killed, or is still going.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    records = node_records(journal)
    outermost: dict[str, list[NodeRecord]] = {}
    for record in records:
        outermost.setdefault(_outermost(record.node), []).append(record)
    path = _critical_path(journal)
    return RunSeen(
        run_id=journal.started.run_id,
        status=journal.ended.status if journal.ended else "unfinished",
        duration_ns=journal.duration_ns,
        nodes={
            name: _seen(members, is_critical=name in path) for name, members in outermost.items()
        },
        critical_path=path,
    )


def _seen(records: list[NodeRecord], *, is_critical: bool) -> NodeSeen:
    own = [record for record in records if "/" not in record.node]
    statuses = {record.status for record in own}
    return NodeSeen(
        status=next((status for status in _WORST_FIRST if status in statuses), "not run"),
        items=len(own),
        busy_ns=_covered_ns(part for record in own for part in record.times),
        calls=sum(record.calls for record in records),
        input_tokens=sum(record.input_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        is_critical=is_critical,
    )


def _critical_path(journal: Journal) -> tuple[str, ...]:
    spans = [
        span
        for span in journal.spans()
        if span.name == "node" and "/" not in str(span.attributes.get("label"))
    ]
    run = Interval(start_ns=journal.started.time_ns, end_ns=journal.last_ns)
    steps = critical_path(spans, journal.flows, run=run).steps
    # Called again, or an item after an item of the same node, it is one box still.
    return tuple(dict.fromkeys(_outermost(step.node) for step in steps))


def _outermost(path: str) -> str:
    """The node of the graph itself that a call was made in: `answer` of `answer[3]/brief/text`."""
    return path.partition("/")[0].partition("[")[0]


def _covered_ns(intervals: Iterable[Interval]) -> int:
    """How much of the clock intervals cover, counted once where they overlap."""
    covered_ns, until_ns = 0, None
    for one in sorted(intervals, key=lambda one: one.start_ns):
        start_ns = one.start_ns if until_ns is None else max(one.start_ns, until_ns)
        covered_ns += max(0, one.end_ns - start_ns)
        until_ns = one.end_ns if until_ns is None else max(until_ns, one.end_ns)
    return covered_ns
