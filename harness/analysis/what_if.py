"""A run's nodes as a weighted graph: the slack of each, and the effect of changes.

Durations and waits are the run's own. Only calls of the pipeline's own nodes count; nested calls
are part of them.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.errors import InvalidInput, did_you_mean
from harness.trace.calls import Interval
from harness.trace.node_records import place_wait_ns, sources_of
from harness.trace.records import Flow, SpanRecord

_CHANGE = re.compile(r"(?P<node>\w+)\s*(?P<sign>[*+-])\s*(?P<number>\d+(?:\.\d+)?)(?P<unit>ms|s)?")
_PLACES = re.compile(r"max_parallel\s*=\s*(?P<number>\d+|none)")
_NS = {"ms": 1e6, "s": 1e9}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """How long the run would have taken with a change."""

    change: str
    before_ns: int
    """The run as it was."""
    after_ns: int

    @property
    def gain_ns(self) -> int:
        """The time that the change saves; below 0 if it costs time."""
        return self.before_ns - self.after_ns


@dataclass(frozen=True, slots=True)
class _Task:
    """A call of a node."""

    node: str
    start_ns: int
    end_ns: int
    place_wait_ns: int
    needs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """Other durations, or another limit."""

    said: str = ""
    took: Mapping[str, Callable[[int], float]] = field(default_factory=dict)
    """By node, its calls' new duration from the old one."""
    max_parallel: int | None = None
    """The pipeline's limit; None for none."""


class Schedule:
    """The calls of a run's nodes, and which waited for which.

    `max_parallel` is how many calls were under way at most; None for any number.
    """

    def __init__(
        self,
        nodes: Sequence[SpanRecord],
        flows: Iterable[Flow],
        *,
        run: Interval,
        max_parallel: int | None,
    ) -> None:
        own = [span for span in nodes if "/" not in str(span.attributes.get("node"))]
        sources = sources_of(own, flows)
        self._run = run
        self._max_parallel = max_parallel
        self._tasks = {
            span.id: _Task(
                str(span.attributes.get("node")),
                span.start_ns,
                span.end_ns,
                place_wait_ns(span),
                tuple(source.id for source in sources.get(span.id, ())),
            )
            for span in sorted(own, key=lambda span: (span.start_ns, span.id))
        }

    def slack(self) -> tuple[NodeSlack, ...]:
        """Of each node, in the order they began."""
        last_ns = max((task.end_ns for task in self._tasks.values()), default=0)
        slack_ns = {number: last_ns - task.end_ns for number, task in self._tasks.items()}
        # Whoever needs a call began after it.
        for number, task in reversed(self._tasks.items()):
            for need in task.needs:
                gap_ns = max(0, task.start_ns - self._tasks[need].end_ns)
                slack_ns[need] = min(slack_ns[need], slack_ns[number] + gap_ns)
        of_node: dict[str, list[int]] = {}
        for number, task in self._tasks.items():
            of_node.setdefault(task.node, []).append(number)
        return tuple(
            NodeSlack(
                node=node,
                calls=len(numbers),
                total_ns=sum(self._took_ns(number) for number in numbers),
                longest_ns=max(self._took_ns(number) for number in numbers),
                slack_ns=min(slack_ns[number] for number in numbers),
            )
            for node, numbers in of_node.items()
        )

    def what_if(self, change: Change) -> WhatIf:
        """The run with a change, every call begun as soon as what it needs and a place are there.

        Other waits stay as they were, and servers answer each call as quickly as they did. So less
        is gained where they are busy.
        """
        usual = self._simulated_ns(Change(max_parallel=self._max_parallel))
        before_ns = self._run.duration_ns
        after_ns = max(0, before_ns - round(usual - self._simulated_ns(change)))
        return WhatIf(change=change.said, before_ns=before_ns, after_ns=after_ns)

    def parsed(self, text: str) -> Change:
        """Parses a change as users write it: `sections*0.5, judge+1s, max_parallel=none`.

        Raises:
            InvalidInput: It is not written so, or names a node that the run did not call.
        """
        took: dict[str, Callable[[int], float]] = {}
        limit = self._max_parallel
        known = {task.node for task in self._tasks.values()}
        for part in text.split(","):
            if places := _PLACES.fullmatch(part.strip()):
                limit = None if places["number"] == "none" else max(1, int(places["number"]))
                continue
            said = _CHANGE.fullmatch(part.strip())
            if said is None or (said["sign"] == "*") == bool(said["unit"]):
                raise InvalidInput(
                    f"'{part.strip()}' is not a change; write NODE*0.5, NODE+1s, NODE-200ms or "
                    "max_parallel=32",
                    code="what-if.not-a-change",
                )
            if said["node"] not in known:
                raise InvalidInput(
                    f"the run called no node '{said['node']}'; "
                    + did_you_mean(said["node"], sorted(known)),
                    code="what-if.unknown-node",
                )
            took[said["node"]] = _duration(said["sign"], float(said["number"]), said["unit"])
        return Change(text.strip(), took, limit)

    def _took_ns(self, number: int) -> int:
        return self._tasks[number].end_ns - self._tasks[number].start_ns

    def _simulated_ns(self, change: Change) -> float:
        """When the last call would have ended, on the run's clock."""
        ends_ns: dict[int, float] = {}
        waiting = {number: len(task.needs) for number, task in self._tasks.items()}
        followers: dict[int, list[int]] = {}
        ready: list[tuple[float, int]] = []
        for number, task in self._tasks.items():
            for need in task.needs:
                followers.setdefault(need, []).append(number)
            if not task.needs:
                heapq.heappush(ready, (task.start_ns - task.place_wait_ns, number))
        busy_until_ns: list[float] = []
        while ready:
            start_ns, number = heapq.heappop(ready)
            task = self._tasks[number]
            if change.max_parallel is not None and len(busy_until_ns) >= change.max_parallel:
                start_ns = max(start_ns, heapq.heappop(busy_until_ns))
            took_ns = self._took_ns(number)
            change_of = change.took.get(task.node)
            ends_ns[number] = start_ns + (took_ns if change_of is None else change_of(took_ns))
            heapq.heappush(busy_until_ns, ends_ns[number])
            for follower in followers.get(number, ()):
                waiting[follower] -= 1
                if not waiting[follower]:
                    heapq.heappush(ready, (self._ready_ns(follower, ends_ns), follower))
        return max(ends_ns.values(), default=0.0)

    def _ready_ns(self, number: int, ends_ns: Mapping[int, float]) -> float:
        """When a call could begin, if what it needs ended then; other waits as they were."""
        task = self._tasks[number]
        needed = [self._tasks[need].end_ns for need in task.needs]
        # Below 0 for one that takes items of a stream that had not ended.
        waited_ns = task.start_ns - task.place_wait_ns - max(needed)
        return max(ends_ns[need] for need in task.needs) + waited_ns


def _duration(sign: str, number: float, unit: str | None) -> Callable[[int], float]:
    if unit is None:
        return lambda took_ns: took_ns * number
    more_ns = (number if sign == "+" else -number) * _NS[unit]
    return lambda took_ns: max(0.0, took_ns + more_ns)
