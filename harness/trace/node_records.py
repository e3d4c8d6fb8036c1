"""The nodes of a run: how each call ended, its inputs and output, and the critical path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.trace.calls import PHASES, Call, calls_of, known_sum, pricing
from harness.trace.events import EndpointEvent, NodeAttempt, ReplyAgain, Skip
from harness.trace.journal_reader import Item, Journal
from harness.trace.records import (
    Flow,
    Instant,
    Interval,
    NodeOutput,
    SpanEnded,
    SpanRecord,
    SpanStatus,
    error_class,
    label_of,
)

NodeStatus = Literal[
    "done", "reused", "skipped", "failed", "stopped", "waiting", "cancelled", "unfinished"
]
"""`reused`: its output is from another run. `stopped`: a limit of the run was reached. `waiting`: a
person has to answer. `cancelled`: something outside stopped it. `unfinished`: the process was
killed first."""

_BY_ERROR: Mapping[str, NodeStatus] = {"RunLimitReached": "stopped", "Suspended": "waiting"}

_BY_SPAN: Mapping[SpanStatus, NodeStatus] = {
    "ok": "done",
    "error": "failed",
    "cancelled": "cancelled",
    "unfinished": "unfinished",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """A call of a node, with every attempt at it and every part of the run that made it again."""

    # Its path: `answer`, or `answer/brief/findings` for one of a pipeline called in `answer`.
    node: str
    item: int | None  # which item of a mapped node, counted from 0
    status: NodeStatus
    error: str | None  # its error, or the reason why it was skipped
    times: tuple[Interval, ...]  # its times of execution; empty if it never began in this run
    calls: int  # of models; without those of nested nodes. Tokens are of answered calls.
    input_tokens: int
    output_tokens: int
    cost_usd: float | None  # of the calls whose price is known; None when there is none
    # Role → the models that were asked, as `tag` or `tag (the server's name of it)`.
    models: Mapping[str, tuple[str, ...]]
    digest: str | None  # of what it returned, as the graph has it; None when not recorded
    inputs: Mapping[str, str]  # the digest of each argument, by parameter; empty if not recorded
    code: str | None  # the digest of its code; None when not recorded

    @property
    def label(self) -> str:
        """Its label, such as `findings[2]`."""
        return label_of(self.node, self.item)

    @property
    def duration_ns(self) -> int:
        """Its time of execution."""
        return sum(time.duration_ns for time in self.times)


_Key = tuple[str, int | None]


def node_records(journal: Journal, *, latest: bool = False) -> tuple[NodeRecord, ...]:
    """One record for each call of a node, in the order in which they are first heard of.

    Reads a journal once, and keeps no output of it. With `latest`, times and costs are only of the
    last time that each call was made, else of all times together. Raises `JournalInvalid` for a
    line in the middle that is not a record.
    """
    nodes = RecordedNodes()
    # `calls` is drawn by `records`: then the items pass through `noted`, which fills `nodes`.
    items = nodes.noted(journal.items(SpanRecord, Instant, NodeOutput))
    calls = calls_of(item for item in items if type(item) is SpanRecord)
    return nodes.records(calls, latest=latest)


class RecordedNodes:
    """Collects the calls of nodes from a journal's items, for `node_records`."""

    def __init__(self) -> None:
        self._nodes: dict[_Key, _NodeParts] = {}
        self._node_around: dict[int, _Key] = {}  # span → the innermost node call that it is in
        self._endpoints: list[EndpointEvent] = []
        self._reused_replies: list[ReplyAgain] = []

    def noted(self, items: Iterable[Item]) -> Iterator[Item]:
        """Passes the items of a journal on, and keeps what they say of nodes."""
        for item in items:
            self.note(item)
            yield item

    def note(self, item: Item) -> None:
        """Adds an item, in the order of the journal."""
        nodes, node_around = self._nodes, self._node_around
        if attempt := NodeAttempt.of(item):
            key = node_around[attempt.id] = attempt.node or attempt.caption, attempt.item
            nodes.setdefault(key, _NodeParts()).add_attempt(attempt)
        elif type(item) is SpanRecord:
            # Phases are most of the spans, and no call lies in them.
            if item.parent in node_around and item.name not in PHASES:
                node_around[item.id] = node_around[item.parent]
        elif type(item) is NodeOutput:
            nodes.setdefault((item.node, item.item), _NodeParts()).add_output(item)
        elif skip := Skip.of(item):
            nodes.setdefault((skip.node, skip.item), _NodeParts()).skipped = str(skip.detail)
        elif endpoint := EndpointEvent.of(item):
            self._endpoints.append(endpoint)
        elif reply := ReplyAgain.of(item):
            self._reused_replies.append(reply)

    def label_around(self, span: int) -> str | None:
        """The label of the innermost node call that a span is in."""
        return label_of(*self._node_around[span]) if span in self._node_around else None

    def records(self, calls: Iterable[Call], *, latest: bool = False) -> tuple[NodeRecord, ...]:
        """What `node_records` returns; `calls` are all of the run."""
        nodes, calls = self._nodes, [*calls]
        for call in calls:
            if call.id in self._node_around:
                nodes[self._node_around[call.id]].calls.append(call)
        for reply in self._reused_replies:
            if reply.span in self._node_around:
                nodes[self._node_around[reply.span]].reused_replies.append(reply)
        usd_of = pricing(self._endpoints)
        return tuple(
            _record(key, parts, usd_of, since_ns=parts.made_before_ns if latest else 0)
            for key, parts in nodes.items()
            if not _is_generated(key, nodes)
        )


@dataclass(slots=True)
class _NodeParts:
    attempts: list[NodeAttempt] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reused_replies: list[ReplyAgain] = field(default_factory=list)
    output: NodeOutput | None = None
    skipped: str | None = None  # why it was skipped

    def add_attempt(self, attempt: NodeAttempt) -> None:
        self.attempts.append(attempt)
        # What the attempt before gave does not count any more.
        self.output = self.skipped = None

    def add_output(self, output: NodeOutput) -> None:
        # The value is left out: there may be many, and large ones.
        self.output = output._replace(value=None)
        self.skipped = output.skipped

    @property
    def made_before_ns(self) -> int:
        """The end of the attempt before the one whose calls would be repeated; 0 without one."""
        if len(self.attempts) > 1 and attempt_status(self.attempts[-1]) == "failed":
            return self.attempts[-2].end_ns
        ends_ns = [attempt.end_ns for attempt in self.attempts if attempt.status == "ok"]
        return ends_ns[-2] if len(ends_ns) > 1 else 0

    @property
    def status(self) -> NodeStatus:
        if self.output is not None and self.skipped is None:
            # A node that failed and has a default is done, too.
            return "done" if self.attempts else "reused"
        if self.output is not None or not self.attempts:
            return "skipped"
        return attempt_status(self.attempts[-1])


def attempt_status(span: NodeAttempt | SpanRecord | SpanEnded) -> NodeStatus:
    """How one attempt at a call of a node ended, by its span."""
    return _BY_ERROR.get(error_class(span.error), _BY_SPAN[span.status])


def _is_generated(key: _Key, nodes: Mapping[_Key, _NodeParts]) -> bool:
    """Whether it is one of the items that a single call generates."""
    node, item = key
    # An item of a mapped node has attempts of its own.
    return item is not None and not nodes[key].attempts and (node, None) in nodes


def _record(
    key: _Key,
    parts: _NodeParts,
    usd_of: Callable[[Call | ReplyAgain], float | None],
    *,
    since_ns: int,
) -> NodeRecord:
    """A call of a node, with the figures of its time from `since_ns` on: 0 is all of it."""
    output, attempts = parts.output, parts.attempts
    calls = [call for call in parts.calls if call.start_ns >= since_ns]
    # Without the time before, only the replies that are used again show what they took then.
    replies = [reply for reply in parts.reused_replies if since_ns and reply.time_ns >= since_ns]
    paid = [call for call in calls if since_ns or not call.from_cache]
    billed: list[Call | ReplyAgain] = [*paid, *replies]
    answered: list[Call | ReplyAgain] = [*(call for call in paid if call.status == "ok"), *replies]
    return NodeRecord(
        node=key[0],
        item=key[1],
        status=parts.status,
        error=parts.skipped or (attempts[-1].error if attempts else None),
        times=tuple(Interval(start_ns=span.start_ns, end_ns=span.end_ns) for span in attempts),
        calls=sum(not call.was_refused for call in calls) + len(replies),
        input_tokens=sum(reply.input_tokens or 0 for reply in answered),
        output_tokens=sum(reply.output_tokens or 0 for reply in answered),
        cost_usd=known_sum(map(usd_of, billed)),
        models=models_by_role(parts.calls),
        digest=output.digest if output else None,
        inputs=output.inputs if output else {},
        code=output.code if output else None,
    )


def models_by_role(calls: Iterable[Call]) -> dict[str, tuple[str, ...]]:
    """The models that were asked, by role, as `NodeRecord.models` has them."""
    roles: dict[str, dict[str, None]] = {}
    # Calls that failed come last: other calls may show the server's name of their model.
    for call in sorted(calls, key=lambda call: call.model_id is None):
        names = roles.setdefault(call.role or "no role", {})
        if call.model_id and call.model_id != call.model:
            names[f"{call.model} ({call.model_id})"] = None
        elif call.model_id or not any(name.startswith(f"{call.model} (") for name in names):
            names[call.model] = None
    return {role: tuple(sorted(models)) for role, models in roles.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One node on the path; each item of a mapped node is a step of its own."""

    node: str  # as in the timeline: `text`, `sections[1]`
    span: int
    status: SpanStatus
    wait_ns: int  # from the end of the step before it, or the run's start, until it began
    place_wait_ns: int  # of it, for one of the pipeline's places, or of the node's own
    start_ns: int
    duration_ns: int
    run_share: float | None  # of the run's time, from 0 to 1; None when it took none


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain that ends in the node that ended last.

    Each step waited for the one before it: of all whose output it was given, the one that ended
    last. The first step of a part of the run that was resumed waited for the part before it, so
    for the node that ended last there. The waits, the steps and what came after them add up to the
    run.
    """

    steps: tuple[PathStep, ...]  # in order; none when no node began
    after_ns: int  # from the end of the last step to the end of the run
    resumed_ns: tuple[int, ...] = ()  # when further parts of the run began, from its start


def critical_path(
    nodes: Sequence[NodeAttempt],
    flows: Iterable[Flow],
    *,
    run: Interval,
    resumed_ns: Sequence[int] = (),
) -> CriticalPath:
    """Finds the path from its end; further parts of the run began at `resumed_ns`."""
    steps = []
    free_ns = run.start_ns
    for span in _chain(nodes, flows, resumed_ns):
        steps.append(
            PathStep(
                node=span.caption,
                span=span.id,
                status=span.status,
                wait_ns=span.start_ns - free_ns,
                place_wait_ns=span.waited_ns,
                start_ns=span.start_ns - run.start_ns,
                duration_ns=span.duration_ns,
                run_share=span.duration_ns / run.duration_ns if run.duration_ns else None,
            )
        )
        free_ns = span.end_ns
    parts_ns = tuple(time_ns - run.start_ns for time_ns in resumed_ns)
    return CriticalPath(steps=tuple(steps), after_ns=run.end_ns - free_ns, resumed_ns=parts_ns)


def sources_of(nodes: Sequence[NodeAttempt], flows: Iterable[Flow]) -> dict[int, list[NodeAttempt]]:
    """Span → the attempts whose outputs it took, and the attempt before it at the same call."""
    by_id = {span.id: span for span in nodes}
    sources: dict[int, list[NodeAttempt]] = {}
    # 1. Outputs of this part of the run.
    for flow in flows:
        # An `output`, or the `condition` of a `when=`, shows which node waited for which. Spans are
        # numbered as they begin, so a source has the smaller number. A salvaged run may lack one.
        is_known = flow.source in by_id and flow.target in by_id
        if flow.name in {"output", "condition"} and is_known and flow.source < flow.target:
            sources.setdefault(flow.target, []).append(by_id[flow.source])
    # Label of a call → its attempts; name of a node → the attempts at all its items.
    attempts: dict[str, list[NodeAttempt]] = {}
    for span in nodes:
        for name in {span.caption, span.node}:
            attempts.setdefault(name, []).append(span)

    def before(span: NodeAttempt, name: str) -> list[NodeAttempt]:
        # A kill may end an attempt at the moment that it begins: it is not before itself.
        return [a for a in attempts.get(name, ()) if a is not span and a.end_ns <= span.start_ns]

    for span in nodes:
        # 2. The attempt before.
        if span.attempt:
            sources.setdefault(span.id, []).extend(before(span, span.caption)[-1:])
        # 3. Outputs of an earlier part of the run, to which no flow leads.
        for name in span.needs:
            sources.setdefault(span.id, []).extend(before(span, name))
    return sources


def _chain(
    nodes: Sequence[NodeAttempt], flows: Iterable[Flow], resumed_ns: Sequence[int]
) -> list[NodeAttempt]:
    """The path, from its first node to its last."""
    sources = sources_of(nodes, flows)
    chain: dict[int, NodeAttempt] = {}
    last = _last(nodes)
    # In a journal that was tampered with, the chain may lead back into itself.
    while last is not None and last.id not in chain:
        chain[last.id] = last
        part_ns = max((time_ns for time_ns in resumed_ns if time_ns <= last.start_ns), default=-1)
        # An output of an earlier part was there from the beginning of this one.
        in_part = [span for span in sources.get(last.id, ()) if span.end_ns > part_ns]
        last = _last(in_part or (span for span in nodes if span.end_ns <= part_ns))
    return [*chain.values()][::-1]


def _last(spans: Iterable[NodeAttempt]) -> NodeAttempt | None:
    """The span that ended last; of several that a kill ended together, the one that ran longest."""
    return max(spans, key=lambda span: (span.end_ns, -span.start_ns, -span.id), default=None)
