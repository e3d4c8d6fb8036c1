"""Compares two runs of a pipeline: node by node, loop by loop, and in total.

Also their settings, where their time went, how quickly models answered, and whether the diagnosis
finds another bottleneck.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from harness.analysis.diagnosis import findings_of
from harness.analysis.finding import RunFinding
from harness.analysis.observed import Observed
from harness.analysis.run_report import RunReport, Targets, report_of_observed
from harness.analysis.time_budget import TimeKind
from harness.trace import events
from harness.trace.calls import PHASES, Call, percentiles_of
from harness.trace.journal_reader import Journal
from harness.trace.node_records import NodeRecord, RecordedNodes, models_by_role
from harness.wiggum import RecordedLoop

K = TypeVar("K")
T = TypeVar("T")

Difference = Literal[
    "only in a", "only in b", "status", "output", "code", "inputs", "models", "work", "time"
]
"""How two calls of one node differ, most important first. `work`: in calls of models, tokens or
cost. `time`: by a notable time."""

FigureUnit = Literal["ns", "share", "tokens/s"]
FindingChange = Literal["gone", "new", "moved", "same"]
"""`moved`: its severity is another one, or its lost time differs notably."""

_FigureKey = tuple[str | None, str, FigureUnit]  # model, name and unit

# A difference in time is notable from this share of the longer run, and from this time on.
_NOTABLE_SHARE = 0.05
_NOTABLE_NS = 100_000_000
_ITEM = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDifference:
    """A call of a node in each run; None in a run that has none."""

    node: str  # its label, such as `findings[2]`; of a row that has an id, `rows['of-2024']`
    differs_in: tuple[Difference, ...]  # empty when it is the same in both
    changed_inputs: tuple[str, ...]  # parameters with another value, or in one run alone
    a: NodeRecord | None
    b: NodeRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopDifference:
    """A revise loop in each run; None in a run that has none."""

    node: str | None
    number: int  # which of that node's loops, counted from 1
    is_equal: bool  # whether the scores, the returned round and the stop reason are the same
    a: RecordedLoop | None
    b: RecordedLoop | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference:
    """A figure of each run; None if unknown."""

    name: str
    unit: FigureUnit
    a: float | None
    b: float | None
    model: str | None = None  # None for the whole run


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingDifference:
    """The finding of a rule in each run; None without one."""

    rule: str
    model: str | None
    change: FindingChange
    a: RunFinding | None
    b: RunFinding | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two runs side by side."""

    a: RunReport
    b: RunReport
    # The largest cause of time on each critical path; None for an empty path.
    bottlenecks: tuple[TimeKind | None, TimeKind | None]
    time: Mapping[TimeKind, tuple[int, int]]  # nanoseconds in each run; largest difference first
    # Differing settings, such as `small.slots` of an endpoint or `max_parallel`; None if unset.
    settings: Mapping[str, tuple[object, object]]
    figures: tuple[FigureDifference, ...]  # for all calls, then for each model
    findings: tuple[FindingDifference, ...]  # of the first run, then of the second alone
    changed_inputs: tuple[str, ...]  # inputs with another value, as far as recorded
    nodes: tuple[NodeDifference, ...]  # largest differences first, equal nodes last
    loops: tuple[LoopDifference, ...]  # of the first run, then of the second alone
    # By role, the models that played it in each run.
    roles: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]


def compare(first: Journal, second: Journal) -> RunComparison:
    """Compares two runs; keeps some two kilobytes for each of their calls.

    Raises:
        JournalInvalid: A line in the middle of one is not a record.
    """
    a, b = _Side(first), _Side(second)
    if a.ids and b.ids:
        # The number of a row in its batch depends on the rows before it.
        a.name_by_ids()
        b.name_by_ids()
    longer_ns = max(a.report.duration_ns, b.report.duration_ns)
    notable_ns = max(_NOTABLE_NS, _NOTABLE_SHARE * longer_ns)
    nodes = [
        NodeDifference(
            node=label,
            differs_in=tuple(_differences(left, right, notable_ns=notable_ns)),
            changed_inputs=_changed_inputs(left, right),
            a=left,
            b=right,
        )
        for label, left, right in _paired(a.nodes, b.nodes)
    ]
    time = {kind: (left or 0, right or 0) for kind, left, right in _paired(a.time, b.time)}
    return RunComparison(
        a=a.report,
        b=b.report,
        # `time` has the largest share first.
        bottlenecks=(next(iter(a.time), None), next(iter(b.time), None)),
        time=dict(sorted(time.items(), key=lambda change: -abs(change[1][0] - change[1][1]))),
        settings={
            name: (left, right)
            for name, left, right in _paired(a.settings, b.settings)
            if left != right
        },
        figures=tuple(
            FigureDifference(name=name, model=model, unit=unit, a=left, b=right)
            for (model, name, unit), left, right in _paired(a.figures, b.figures)
            if left is not None or right is not None
        ),
        findings=tuple(
            FindingDifference(
                rule=rule,
                model=model,
                change=_finding_change(left, right, notable_ns=notable_ns),
                a=left,
                b=right,
            )
            for (rule, model), left, right in _paired(a.findings, b.findings)
        ),
        changed_inputs=tuple(
            name
            for name, left, right in _paired(a.inputs, b.inputs)
            # Whether a value has changed is unknown if its digest is empty: not recorded.
            if left != right and (None in (left, right) or "" not in (left, right))
        ),
        nodes=tuple(sorted(nodes, key=_rank)),
        loops=tuple(
            LoopDifference(
                node=node,
                number=number,
                is_equal=left is not None and right is not None and _ending(left) == _ending(right),
                a=left,
                b=right,
            )
            for (node, number), left, right in _paired(a.loops, b.loops)
        ),
        roles={
            role: (left or (), right or ()) for role, left, right in _paired(a.models, b.models)
        },
    )


class _Side:
    """What is compared of one run. The keys of dictionaries pair the values of both runs."""

    def __init__(self, journal: Journal) -> None:
        nodes = RecordedNodes()
        observed = Observed(journal, nodes=nodes)
        recorded, calls = observed.recorded, observed.every_call
        self.report = report = report_of_observed(observed, Targets())
        begun = recorded[events.PipelineEvent][-1:]
        # The one input of a batch is the list of its rows' digests.
        rows = "rows" if any(pipeline.is_batch for pipeline in begun) else None
        inputs = recorded[events.InputEvent]
        self.inputs = {rows or entry.input: entry.digest or "" for entry in inputs}
        self.nodes = {node.label: node for node in nodes.records(calls)}
        self.loops = _numbered(report.loops)
        # `[3]` in the label of a batch's row → its id.
        ids = enumerate(begun[0].row_ids if begun else ())
        self.ids = {f"[{number}]": f"[{id_!r}]" for number, id_ in ids if id_}
        self.models = models_by_role(calls)
        self.settings = dict(_settings(recorded))
        self.time = {share.kind: share.duration_ns for share in report.time}
        self.figures = dict(_figures(report, calls))
        self.findings = {
            (finding.rule, finding.model): finding for finding in findings_of(observed)
        }

    def name_by_ids(self) -> None:
        """Pairs nodes and loops by the ids of rows, as far as they have any."""

        def named(label: str) -> str:
            return _ITEM.sub(lambda number: self.ids.get(number[0], number[0]), label, count=1)

        self.nodes = {named(label): node for label, node in self.nodes.items()}
        loops = self.loops.items()
        self.loops = {(node and named(node), number): loop for (node, number), loop in loops}


def _settings(journaled: events.Events) -> Iterator[tuple[str, object]]:
    for endpoint in journaled[events.EndpointEvent]:
        attributes = endpoint.attributes
        yield from ((f"{endpoint.model}.{key}", value) for key, value in attributes.items())
    for run in journaled[events.RunSpanEvent]:
        yield "max_parallel", run.max_parallel
    for pipeline in journaled[events.PipelineEvent]:
        yield from ((f"roles.{role}", model) for role, model in pipeline.roles.items())
        yield from ((f"limits.{name}", value) for name, value in pipeline.limits.items())
        yield "seed", pipeline.seed
        yield "memory", pipeline.memory
        yield "content", pipeline.content


def _figures(report: RunReport, calls: Sequence[Call]) -> Iterator[tuple[_FigureKey, float | None]]:
    for model, group in [(None, report.calls), *((group.name, group) for group in report.models)]:
        for name, times in (("TTFT", group.ttft), ("ITL", group.itl_mean)):
            for percent in ("p50", "p95", "p99"):
                yield (model, f"{name} {percent}", "ns"), getattr(times, f"{percent}_ns", None)
        done = [call for call in calls if call.status == "ok" and model in {None, call.model}]
        for phase in PHASES:
            times = percentiles_of(call.phase_ns(phase) for call in done if phase in call.phases)
            yield (model, f"{phase} p50", "ns"), times.p50_ns if times else None
        yield (model, "decoding", "tokens/s"), group.decode_tokens_per_s
        yield (model, "prompts cached", "share"), group.cached_share
    yield (None, "calls within targets", "share"), report.goodput.attained
    yield (None, "goodput", "tokens/s"), report.goodput.tokens_per_s


def _finding_change(
    a: RunFinding | None, b: RunFinding | None, *, notable_ns: float
) -> FindingChange:
    if a is None or b is None:
        return "gone" if b is None else "new"
    moved = a.severity != b.severity or abs((b.lost_ns or 0) - (a.lost_ns or 0)) > notable_ns
    return "moved" if moved else "same"


def _numbered(loops: Iterable[RecordedLoop]) -> dict[tuple[str | None, int], RecordedLoop]:
    counts: Counter[str | None] = Counter()
    numbered = {}
    for loop in loops:
        counts[loop.node] += 1
        numbered[loop.node, counts[loop.node]] = loop
    return numbered


def _paired(a: Mapping[K, T], b: Mapping[K, T]) -> Iterator[tuple[K, T | None, T | None]]:
    """Pairs with the same key, in the order of the first; then the rest of the second."""
    for key in dict.fromkeys((*a, *b)):
        yield key, a.get(key), b.get(key)


def _differences(
    a: NodeRecord | None, b: NodeRecord | None, *, notable_ns: float
) -> Iterator[Difference]:
    if a is None or b is None:
        yield "only in a" if b is None else "only in b"
        return
    # In the order of `Difference`: `_rank` sorts by the first of them.
    if a.status != b.status:
        yield "status"
    if _differ(a.digest, b.digest):
        yield "output"
    if _differ(a.code, b.code):
        yield "code"
    if _changed_inputs(a, b):
        yield "inputs"
    # A role that one of the runs did not ask has no other model.
    if any(_differ(a.models.get(role), b.models.get(role)) for role in a.models):
        yield "models"
    if _work(a) != _work(b):
        yield "work"
    if abs(a.duration_ns - b.duration_ns) > notable_ns:
        yield "time"


def _changed_inputs(a: NodeRecord | None, b: NodeRecord | None) -> tuple[str, ...]:
    # Without a digest of the code, an earlier version wrote the journal: it has no inputs either.
    if a is None or b is None or a.code is None or b.code is None:
        return ()
    return tuple(name for name, left, right in _paired(a.inputs, b.inputs) if left != right)


def _differ(a: object, b: object) -> bool:
    # None was not recorded, so whether it differs is unknown.
    return a is not None and b is not None and a != b


def _work(node: NodeRecord) -> tuple[int, int, int, float | None]:
    return node.calls, node.input_tokens, node.output_tokens, node.cost_usd


def _ending(loop: RecordedLoop) -> tuple[object, ...]:
    return loop.composites, loop.best_round, loop.passed, loop.stop_reason


def _rank(node: NodeDifference) -> tuple[int, int]:
    """The key to sort nodes by: the most important difference, then the difference in time."""
    a_ns = node.a.duration_ns if node.a else 0
    b_ns = node.b.duration_ns if node.b else 0
    kinds: tuple[Difference, ...] = get_args(Difference)
    first = kinds.index(node.differs_in[0]) if node.differs_in else len(kinds)
    # The first two kinds, nodes that only one of the runs has, are sorted together.
    return max(1, first), -abs(a_ns - b_ns)
