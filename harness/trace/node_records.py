"""The nodes of a run: how each call ended, its inputs and output, and the critical path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.trace.calls import PHASES, Call, calls_of, charges_of, charges_of_replies
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
    # Calls of models, without those of a nested pipeline's nodes. Tokens are of the calls that a
    # model answered.
    calls: int
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

    Reads a journal twice, and keeps no output of it. With `latest`, figures are those of making a
    call the last time, in place of all times. Raises `JournalInvalid` for a line in the middle that
    is not a record.
    """
    nodes = RecordedNodes()
    for item in journal.items(SpanRecord, Instant, NodeOutput):
        nodes.note(item)
    return nodes.records(calls_of(journal.spans()), latest=latest)


class RecordedNodes:
    """Collects the calls of nodes from a journal's items, for `node_records`."""

    def __init__(self) -> None:
        self._nodes: dict[_Key, _NodeParts] = {}
        self._inside: dict[int, _Key] = {}  # by span: the node call that it is a part of
        self._endpoints: list[EndpointEvent] = []
        self._again: list[ReplyAgain] = []

    def note(self, item: Item) -> None:
        """Adds an item, in the order of the journal."""
        nodes, inside = self._nodes, self._inside
        if attempt := NodeAttempt.of(item):
            key = inside[attempt.id] = attempt.node or attempt.caption, attempt.item
            nodes.setdefault(key, _NodeParts()).begin(attempt)
        elif type(item) is SpanRecord:
            # Phases are most of the spans, and no call lies in them.
            if item.parent in inside and item.name not in PHASES:
                inside[item.id] = inside[item.parent]
        elif type(item) is NodeOutput:
            nodes.setdefault((item.node, item.item), _NodeParts()).keep(item)
        elif skip := Skip.of(item):
            nodes.setdefault((skip.node, skip.item), _NodeParts()).skipped = str(skip.detail)
        elif endpoint := EndpointEvent.of(item):
            self._endpoints.append(endpoint)
        elif reply := ReplyAgain.of(item):
            self._again.append(reply)

    def label_around(self, span: int) -> str | None:
        """The label of the innermost node call that a span is in."""
        return label_of(*self._inside[span]) if span in self._inside else None

    def records(self, calls: Iterable[Call], *, latest: bool = False) -> tuple[NodeRecord, ...]:
        """What `node_records` returns; `calls` are all of the run."""
        nodes, calls = self._nodes, [*calls]
        for call in calls:
            if call.id in self._inside:
                nodes[self._inside[call.id]].calls.append(call)
        for reply in self._again:
            if reply.span in self._inside:
                nodes[self._inside[reply.span]].again.append(reply)
        endpoints = self._endpoints
        charges = charges_of(calls, endpoints)
        return tuple(
            _record(key, parts, charges, endpoints, since=parts.made_before_ns if latest else 0)
            for key, parts in nodes.items()
            if not _is_part(key, nodes)
        )


@dataclass(slots=True)
class _NodeParts:
    spans: list[NodeAttempt] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    again: list[ReplyAgain] = field(default_factory=list)
    output: NodeOutput | None = None
    skipped: str | None = None

    def begin(self, span: NodeAttempt) -> None:
        self.spans.append(span)
        # The items of the attempt before do not count any more.
        self.output = self.skipped = None

    def keep(self, output: NodeOutput) -> None:
        # The value is left out: there may be many, and large ones.
        self.output = output._replace(value=None)
        self.skipped = output.skipped

    @property
    def made_before_ns(self) -> int:
        """When it had been made, before the last time; 0 if it was made once."""
        ends_ns = [span.end_ns for span in self.spans if span.status == "ok"]
        return ends_ns[-2] if len(ends_ns) > 1 else 0

    @property
    def status(self) -> NodeStatus:
        last = self.spans[-1] if self.spans else None
        if self.output is not None and self.skipped is None:
            # Be it by its default, when it had failed.
            return "done" if last else "reused"
        if last is None or self.output is not None:
            return "skipped"
        return attempt_status(last)


def attempt_status(span: NodeAttempt | SpanRecord | SpanEnded) -> NodeStatus:
    """How one attempt at a call of a node ended, by its span."""
    return _BY_ERROR.get(error_class(span.error), _BY_SPAN[span.status])


def _is_part(key: _Key, nodes: Mapping[_Key, _NodeParts]) -> bool:
    """Whether it is one item of what a single call generates, item by item."""
    node, item = key
    # An item of a mapped node has attempts of its own.
    return item is not None and not nodes[key].spans and (node, None) in nodes


def _record(
    key: _Key,
    parts: _NodeParts,
    charges: Mapping[int, float],
    endpoints: Sequence[EndpointEvent],
    *,
    since: int,
) -> NodeRecord:
    """The figures of a call of a node since a time: 0, or when it was made before."""
    output, last = parts.output, parts.spans[-1] if parts.spans else None
    calls = [call for call in parts.calls if call.start_ns >= since]
    # A stored reply may be of the time before, and then nothing else here says what it took.
    paid = [call for call in calls if since or not call.from_cache]
    answered = [call for call in paid if call.status == "ok"]
    # Likewise of a reply that an earlier part of the run got.
    again = [reply for reply in parts.again if since and reply.time_ns >= since]
    charged = [charges[call.id] for call in paid if call.id in charges]
    charged += charges_of_replies(again, endpoints)
    took: list[Call | ReplyAgain] = [*answered, *again]
    return NodeRecord(
        node=key[0],
        item=key[1],
        status=parts.status,
        error=parts.skipped or (last.error if last else None),
        times=tuple(Interval(start_ns=span.start_ns, end_ns=span.end_ns) for span in parts.spans),
        calls=sum(not call.was_refused for call in calls) + len(again),
        input_tokens=sum(call.input_tokens or 0 for call in took),
        output_tokens=sum(call.output_tokens or 0 for call in took),
        cost_usd=sum(charged) if charged else None,
        models=models_by_role(parts.calls),
        digest=output.digest if output else None,
        inputs=output.inputs if output else {},
        code=output.code if output else None,
    )


def models_by_role(calls: Iterable[Call]) -> dict[str, tuple[str, ...]]:
    """The models that were asked, by role, as `NodeRecord.models` has them."""
    roles: dict[str, dict[str, None]] = {}
    # Failed attempts come last: who would have answered is known by the others.
    for call in sorted(calls, key=lambda call: call.model_id is None):
        served, names = call.model_id, roles.setdefault(call.role or "no role", {})
        named = f"{call.model} ({served})" if served and served != call.model else call.model
        if served or not any(name.startswith(f"{named} (") for name in names):
            names[named] = None
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
    last. The waits, the steps and what came after them add up to the run.
    """

    steps: tuple[PathStep, ...]  # in order; none when no node began
    after_ns: int  # from the end of the last step to the end of the run


def critical_path(
    nodes: Sequence[NodeAttempt], flows: Iterable[Flow], *, run: Interval
) -> CriticalPath:
    """Finds the path from its end."""
    steps = []
    free_ns = run.start_ns
    for span in _chain(nodes, flows):
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
    return CriticalPath(steps=tuple(steps), after_ns=run.end_ns - free_ns)


def sources_of(nodes: Sequence[NodeAttempt], flows: Iterable[Flow]) -> dict[int, list[NodeAttempt]]:
    """Span → the calls whose outputs it took, and its own attempt before."""
    by_id = {span.id: span for span in nodes}
    sources: dict[int, list[NodeAttempt]] = {}
    # 1. What this part of the run made.
    for flow in flows:
        # An `output`, or the `condition` of a `when=`, shows which node waited for which. Spans are
        # numbered as they begin, so a source has the smaller number.
        is_edge = flow.name in {"output", "condition"} and flow.source in by_id
        if is_edge and flow.source < flow.target:
            sources.setdefault(flow.target, []).append(by_id[flow.source])
    calls: dict[str, list[NodeAttempt]] = {}  # by label, and by node for those of all its items
    for span in nodes:
        for name in {span.caption, span.node}:
            calls.setdefault(name, []).append(span)
    for span in nodes:
        # 2. Its own attempt before.
        if span.attempt:
            before = [earlier for earlier in calls[span.caption] if earlier.end_ns <= span.start_ns]
            sources.setdefault(span.id, []).extend(before[-1:])
        # 3. What an earlier part of the run made, which has a label here, and no flow.
        for name in span.needs:
            earlier = (call for call in calls.get(name, ()) if call.end_ns <= span.start_ns)
            sources.setdefault(span.id, []).extend(earlier)
    return sources


def _chain(nodes: Sequence[NodeAttempt], flows: Iterable[Flow]) -> list[NodeAttempt]:
    """The path, from its first node to its last."""
    sources = sources_of(nodes, flows)
    chain: dict[int, NodeAttempt] = {}
    last = _last(nodes)
    while last is not None and last.id not in chain:  # as in a journal that was tampered with
        chain[last.id] = last
        last = _last(sources.get(last.id, ()))
    return [*chain.values()][::-1]


def _last(spans: Iterable[NodeAttempt]) -> NodeAttempt | None:
    """The record that ended last; among several cut off together, the one that ran longest."""
    return max(spans, key=lambda span: (span.end_ns, -span.start_ns, -span.id), default=None)
