"""The nodes of a run: how each call ended, its inputs and output, and the critical path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.trace.calls import Call, Interval, calls_of, charges_of
from harness.trace.journal_reader import Journal
from harness.trace.records import (
    Attributes,
    Flow,
    Instant,
    NodeOutput,
    SpanEnded,
    SpanRecord,
    SpanStatus,
    title,
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

    node: str
    """Its path: `answer`, or `answer/brief/findings` for one of a pipeline called in `answer`."""
    item: int | None
    """Which item of a mapped node, counted from 0."""
    status: NodeStatus
    error: str | None
    """Its error, or the reason why it was skipped."""
    times: tuple[Interval, ...]
    """Its times of execution; empty if it never began in this run."""
    calls: int
    """Calls of models, without those of a nested pipeline's nodes. Tokens are of the calls that a
    model answered."""
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    """Of the calls whose price is known; None when there is none."""
    models: Mapping[str, tuple[str, ...]]
    """By role, the models that were asked, as `tag` or `tag (what the server calls it)`."""
    digest: str | None
    """Of what it returned, as the graph has it; None when not recorded."""
    inputs: Mapping[str, str]
    """The digest of each argument, by parameter; empty if not recorded."""
    code: str | None
    """The digest of its code; None when not recorded."""

    @property
    def label(self) -> str:
        """Its label, such as `findings[2]`."""
        return self.node if self.item is None else f"{self.node}[{self.item}]"

    @property
    def duration_ns(self) -> int:
        """Its time of execution."""
        return sum(one.duration_ns for one in self.times)


_Key = tuple[str, int | None]


def node_records(journal: Journal) -> tuple[NodeRecord, ...]:
    """Reads a journal twice, and keeps no output of it.

    Returns:
        One for each call of a node, in the order in which they are first heard of.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    found: dict[_Key, _Found] = {}
    inside: dict[int, _Key] = {}  # by span: the node call that it is a part of
    endpoints: list[Instant] = []
    for item in journal.items(SpanRecord, Instant, NodeOutput):
        if type(item) is SpanRecord:
            key = (
                _key(item.attributes, item) if item.name == "node" else inside.get(item.parent or 0)
            )
            if key is not None:
                inside[item.id] = key
                if item.name == "node":
                    found.setdefault(key, _Found()).begin(item)
        elif type(item) is NodeOutput:
            found.setdefault((item.node, item.item), _Found()).keep(item)
        elif type(item) is Instant and item.name == "skip":
            one = found.setdefault(_key(item.attributes), _Found())
            one.skipped = str(item.attributes.get("detail"))
        elif type(item) is Instant and item.name == "endpoint":
            endpoints.append(item)
    calls = calls_of(journal.spans())
    for call in calls:
        if call.id in inside:
            found[inside[call.id]].calls.append(call)
    charges = charges_of((call for call in calls if not call.from_cache), endpoints)
    return tuple(
        _record(key, one, charges) for key, one in found.items() if not _is_part(key, found)
    )


class _Found:
    """What a journal holds of one node call."""

    __slots__ = ("calls", "output", "skipped", "spans")

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.calls: list[Call] = []
        self.output: NodeOutput | None = None
        self.skipped: str | None = None

    def begin(self, span: SpanRecord) -> None:
        """Adds another attempt, which replaces the earlier one."""
        self.spans.append(span)
        self.output = self.skipped = None

    def keep(self, output: NodeOutput) -> None:
        """Adds its output without the value: there may be many, and large ones."""
        self.output = output._replace(value=None)
        self.skipped = output.skipped

    @property
    def status(self) -> NodeStatus:
        last = self.spans[-1] if self.spans else None
        if self.output is not None and self.skipped is None:
            # Be it by its default, when it had failed.
            return "done" if last else "reused"
        if last is None or self.output is not None:
            return "skipped"
        return attempt_status(last)


def attempt_status(span: SpanRecord | SpanEnded) -> NodeStatus:
    """How one attempt at a call of a node ended, by its span."""
    error = (span.error or "").partition(":")[0]
    return _BY_ERROR.get(error, _BY_SPAN[span.status])


def _is_part(key: _Key, found: Mapping[_Key, _Found]) -> bool:
    """Whether it is one item of what a single call generates, item by item."""
    node, item = key
    return item is not None and not found[key].spans and (node, None) in found


def _key(said: Attributes, span: SpanRecord | None = None) -> _Key:
    node, item = said.get("node"), said.get("item")
    return str(node or (span and title(span))), item if isinstance(item, int) else None


def _record(key: _Key, found: _Found, charges: Mapping[int, float]) -> NodeRecord:
    output, last = found.output, found.spans[-1] if found.spans else None
    answered = [call for call in found.calls if call.status == "ok" and not call.from_cache]
    charged = [charges[call.id] for call in found.calls if call.id in charges]
    return NodeRecord(
        node=key[0],
        item=key[1],
        status=found.status,
        error=found.skipped or (last.error if last else None),
        times=tuple(Interval(start_ns=one.start_ns, end_ns=one.end_ns) for one in found.spans),
        calls=sum(not call.was_refused for call in found.calls),
        input_tokens=sum(call.count("input_tokens") or 0 for call in answered),
        output_tokens=sum(call.count("output_tokens") or 0 for call in answered),
        cost_usd=sum(charged) if charged else None,
        models=models_by_role(found.calls),
        digest=output.digest if output else None,
        inputs=output.inputs if output else {},
        code=output.code if output else None,
    )


def models_by_role(calls: Iterable[Call]) -> dict[str, tuple[str, ...]]:
    """The models that were asked, by role, as `NodeRecord.models` has them."""
    roles: dict[str, dict[str, None]] = {}
    for call in calls:
        served = call.attributes.get("model_id")
        said = f"{call.model} ({served})" if served and served != call.model else call.model
        roles.setdefault(call.role or "no role", {})[said] = None
    return {role: tuple(sorted(models)) for role, models in roles.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStep:
    """One node on the path; each item of a mapped node is a step of its own."""

    node: str
    """As in the timeline: `text`, `sections[1]`."""
    span: int
    status: SpanStatus
    wait_ns: int
    """From the end of the step before it, or the run's start, until it began."""
    place_wait_ns: int
    """Of it, for one of the pipeline's places, or of the node's own."""
    start_ns: int
    duration_ns: int
    run_share: float | None
    """Of the run's time, from 0 to 1; None when it took none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The chain that ends in the node that ended last.

    Each step waited for the one before it: of all whose output it was given, the one that ended
    last. The waits, the steps and what came after them add up to the run.
    """

    steps: tuple[PathStep, ...]
    """In order; none when no node began."""
    after_ns: int
    """From the end of the last step to the end of the run."""


def critical_path(
    nodes: Sequence[SpanRecord], flows: Iterable[Flow], *, run: Interval
) -> CriticalPath:
    """Finds the path from its end.

    `nodes` are the `node` spans. The flows called `output` show which node waited for which.
    """
    steps = []
    free_ns = run.start_ns
    for span in _chain(nodes, flows):
        steps.append(
            PathStep(
                node=title(span),
                span=span.id,
                status=span.status,
                wait_ns=span.start_ns - free_ns,
                place_wait_ns=place_wait_ns(span),
                start_ns=span.start_ns - run.start_ns,
                duration_ns=span.duration_ns,
                run_share=span.duration_ns / run.duration_ns if run.duration_ns else None,
            )
        )
        free_ns = span.end_ns
    return CriticalPath(steps=tuple(steps), after_ns=run.end_ns - free_ns)


def place_wait_ns(node: SpanRecord) -> int:
    """How long a node call waited for a place, among those of its node and those of all."""
    waits_ns = (node.attributes.get(name) for name in ("concurrency_wait_ns", "place_wait_ns"))
    return sum(wait_ns for wait_ns in waits_ns if isinstance(wait_ns, int))


def sources_of(nodes: Sequence[SpanRecord], flows: Iterable[Flow]) -> dict[int, list[SpanRecord]]:
    """By span, the node calls that each had to wait for; takes arguments of `critical_path`.

    Those are the calls whose output it was given, and its own attempt before.
    """
    by_id = {span.id: span for span in nodes}
    sources: dict[int, list[SpanRecord]] = {}
    for flow in flows:
        # Spans are numbered as they begin, so a source has the smaller number.
        if flow.name == "output" and flow.source in by_id and flow.source < flow.target:
            sources.setdefault(flow.target, []).append(by_id[flow.source])
    calls: dict[str, list[SpanRecord]] = {}  # by label, and by node for those of all its items
    for span in nodes:
        for name in {title(span), str(span.attributes.get("node"))}:
            calls.setdefault(name, []).append(span)
    for span in nodes:
        if span.attributes.get("attempt"):
            before = [one for one in calls[title(span)] if one.end_ns <= span.start_ns]
            sources.setdefault(span.id, []).extend(before[-1:])
        # What an earlier part of the run made has a label here, and no flow.
        needs = span.attributes.get("needs")
        for name in needs if isinstance(needs, list) else ():
            earlier = (one for one in calls.get(str(name), ()) if one.end_ns <= span.start_ns)
            sources.setdefault(span.id, []).extend(earlier)
    return sources


def _chain(nodes: Sequence[SpanRecord], flows: Iterable[Flow]) -> list[SpanRecord]:
    """The path, from its first node to its last."""
    sources = sources_of(nodes, flows)
    chain: dict[int, SpanRecord] = {}
    last = _last(nodes)
    while last is not None and last.id not in chain:  # as in a journal that was tampered with
        chain[last.id] = last
        last = _last(sources.get(last.id, ()))
    return [*chain.values()][::-1]


def _last(spans: Iterable[SpanRecord]) -> SpanRecord | None:
    """The one that ended last; of several that were cut off together, the one that ran longest."""
    return max(spans, key=lambda span: (span.end_ns, -span.start_ns, -span.id), default=None)
