"""The calls of a run's nodes: how each ended, what it took, what it returned."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import orjson

from harness.trace.calls import Call, Interval, calls_of
from harness.trace.costs import charges_of
from harness.trace.journal_reader import Journal
from harness.trace.records import Attributes, Instant, NodeOutput, SpanEnded, SpanRecord, SpanStatus
from harness.trace.timelines.timeline import title

NodeStatus = Literal[
    "done", "reused", "skipped", "failed", "stopped", "waiting", "cancelled", "unfinished"
]
"""`reused`: its output is of another run. `stopped`: a limit of the run was reached. `waiting`: a
person has to answer. `cancelled`: what stopped it was not its doing. `unfinished`: the process was
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
    """How it ended at last."""
    error: str | None
    """What it ended in, if in an error; why it was skipped, if it was."""
    times: tuple[Interval, ...]
    """When it was under way; empty if it never began in this run."""
    calls: int
    """Calls of models, those of nested pipelines' nodes not counted: they have their own."""
    input_tokens: int
    """Of the calls that a model answered."""
    output_tokens: int
    """Of the calls that a model answered."""
    cost_usd: float | None
    """Of the calls whose price is known; None when there is none."""
    models: Mapping[str, tuple[str, ...]]
    """By role, the models that were asked, as `tag` or `tag (what the server calls it)`."""
    digest: str | None
    """Of what it returned, as the graph has it; None when not recorded."""
    value_sha256: str | None
    """Of what is recorded of it, for journals that have no digests; None when nothing is."""
    inputs: Mapping[str, str]
    """By parameter, the digest of what it was given; empty when not recorded."""
    code: str | None
    """The digest of its code; None when not recorded."""

    @property
    def label(self) -> str:
        """What people call it: `findings[2]`."""
        return self.node if self.item is None else f"{self.node}[{self.item}]"

    @property
    def duration_ns(self) -> int:
        """How long it was under way."""
        return sum(one.duration_ns for one in self.times)


def _digest(value: object) -> str:
    """The same for the same value, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


_NOTHING = _digest(None)

_Key = tuple[str, int | None]


class _Found:
    """What a journal holds of one node call."""

    __slots__ = ("calls", "output", "skipped", "spans", "value_sha256")

    def __init__(self) -> None:
        self.spans: list[SpanRecord] = []
        self.calls: list[Call] = []
        self.output: NodeOutput | None = None
        self.value_sha256: str | None = None
        self.skipped: str | None = None

    def begin(self, span: SpanRecord) -> None:
        """Takes in another attempt: what there was before does not hold any more."""
        self.spans.append(span)
        self.output = self.value_sha256 = self.skipped = None

    def keep(self, output: NodeOutput) -> None:
        """Takes in what it gave, without the value itself: there may be many, and large ones."""
        self.output = output._replace(value=None)
        self.value_sha256 = _digest(output.value)
        self.skipped = output.skipped

    @property
    def status(self) -> NodeStatus:
        """How it ended at last."""
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


def node_records(journal: Journal) -> tuple[NodeRecord, ...]:
    """Reads a journal twice, and keeps no output of it, only its digest.

    Args:
        journal: Of a run that ended, was killed, or is still going.

    Returns:
        One for each call of a node, in the order in which they are first heard of.

    Raises:
        JournalInvalid: A line in the middle is not a record.
    """
    found: dict[_Key, _Found] = {}
    inside: dict[int, _Key] = {}  # by span: the node call that it is a part of
    endpoints: list[Instant] = []
    for item in journal.items():
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
    # A run that records no texts has None for every output, which says nothing of any.
    if all(one.value_sha256 in (None, _NOTHING) for one in found.values()):
        for one in found.values():
            one.value_sha256 = None
    return tuple(
        _record(key, one, charges) for key, one in found.items() if not _is_part(key, found)
    )


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
        value_sha256=found.value_sha256,
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
