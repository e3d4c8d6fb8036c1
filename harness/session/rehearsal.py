"""Rehearses the resume of a run: which calls would be repeated, or the result if there is none.

The graph is executed as in a resumed run, by an executor that makes no calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from harness.graph import Execution, Graph, NodeCall, Work, execute
from harness.graph.node_call import Suspended
from harness.graph.reuse import MisledCall, Shared
from harness.session.result import (
    CallResult,
    RunFiles,
    RunResult,
    call_result,
    result_notices,
    result_of,
)
from harness.session.resume import (
    EarlierRun,
    inputs_now,
    labels_before,
    rename_notices,
    renamed_nodes,
)
from harness.session.settings import Settings
from harness.session.surroundings import Surroundings
from harness.trace import Tracer, calls_of, group_calls
from harness.trace.calls import grouped
from harness.trace.node_records import NodeRecord, node_records


async def result_if_nothing_to_do(
    graph: Graph, inputs: Mapping[str, object], earlier: EarlierRun, surroundings: Surroundings
) -> RunResult | None:
    """The result of a run with nothing left to do; None if a call would have to be made."""
    no_calls = _NoCalls()
    ended = await _rehearsed(graph, inputs, earlier, surroundings, no_calls)
    if no_calls.was_asked or ended.status != "finished":
        return None
    journal = earlier.journal
    return RunResult(
        run_id=journal.started.run_id,
        pipeline=graph.name,
        status="finished",
        outputs=ended.outputs,
        result=result_of(graph, ended),
        skips=ended.skips,
        reused=ended.reused,
        parts=journal.parts,
        had_finished=True,
        loops=(),
        earlier_loops=earlier.loops.within(labels_before(ended)),
        models=tuple(group_calls(calls_of(journal.spans()), by=lambda call: call.model)),
        spent=earlier.spent,
        duration_s=0.0,
        files=RunFiles.beside(journal.path),
        warnings=(*earlier.notices, *result_notices(graph, ended), *rename_notices(ended)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Remake:
    """A call of a node that a resumed run would repeat; the figures are from its last call."""

    node: str  # a label such as `findings[2]`
    reason: str
    steps: tuple[str, ...]  # labels of the calls of nested nodes that it would repeat
    calls: int  # calls to models, including nested nodes, like the figures below
    input_tokens: int
    output_tokens: int
    cost_usd: float | None  # None if no price is known
    failed: bool = False  # whether it is made again since it failed, as its user expects


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The calls that a resumed run would make, as far as foreseeable."""

    kept: tuple[str, ...]  # labels of the calls whose outputs the run would reuse
    made_again: tuple[Remake, ...]
    unfinished: tuple[str, ...]
    """Labels of calls that were begun and have no output: they failed, or were interrupted."""
    new: tuple[str, ...]
    """Nodes that were never called: new ones, and nodes that a killed run had not reached."""
    renamed: Mapping[str, str]  # the names that reused nodes had before, by their names now


async def rehearse(
    graph: Graph,
    inputs: Mapping[str, object],
    earlier: EarlierRun,
    *,
    settings: Settings,
    through: str | None = None,
) -> Rehearsal:
    """Finds the calls that a resumed run would make, without making them.

    `through` is a mapped node that only calls a pipeline. Its calls are made, to find those of the
    pipeline's nodes. Raises `InvalidInput` as the run itself.
    """
    values, _ = inputs_now(graph, inputs, earlier)
    surroundings = await Surroundings(settings).beside(earlier.outputs)
    no_calls = _NoCalls(through)
    ended = await _rehearsed(graph, values, earlier, surroundings, no_calls)
    reasons = {rerun.node: rerun.reason for rerun in ended.reruns}
    reused = frozenset(ended.reused)
    latest = list(node_records(earlier.journal, latest=True))
    called = {record.node for record in latest}

    def asks_for_others(label: str, call: MisledCall) -> bool:
        tried = no_calls.variations.get(label)
        # None: a nested call, which no rehearsal reaches, is taken to have the code that it had.
        return tried is None or tried > call.variation

    asking = {label for label, call in earlier.misled.items() if asks_for_others(label, call)}
    misled = _by_outermost(record for record in latest if record.label in asking)
    again, unfinished = [], []
    for label, records in _by_outermost(latest).items():
        outermost = next((record for record in records if record.label == label), None)
        if outermost is None or label in reused:
            continue
        if earlier.outputs.goes_on(earlier.outputs.last(outermost.node, outermost.item)):
            unfinished.append(label)  # its replies are kept, and its loop goes on
        elif outermost.status in {"done", "reused"} and outermost.node in graph.nodes:
            # Nor is a call within a reused one made again, such as that of an agent's tool.
            calls = [
                record
                for record in records
                if reused.isdisjoint(accumulate(record.label.split("/"), "{}/{}".format))
            ]
            reason = reasons.get(label, "what it takes is made again")
            again.append(_remake(label, calls, reason=reason))
        elif outermost.times:  # it was called at least once
            unfinished.append(label)
            if label in misled:
                reason = "the replies that it had would fail it again, so it asks for others"
                remake = _remake(label, misled[label], reason=reason)
                again.append(replace(remake, failed=True))
    return Rehearsal(
        kept=tuple(label for label in ended.reused if "/" not in label),
        made_again=tuple(again),
        unfinished=tuple(unfinished),
        new=tuple(name for name in graph.nodes if name not in called and name not in ended.outputs),
        renamed=renamed_nodes(ended),
    )


def _by_outermost(records: Iterable[NodeRecord]) -> dict[str, list[NodeRecord]]:
    """Label of a call that is not nested → the records of the call and of those nested in it."""
    return grouped(records, by=lambda record: record.label.partition("/")[0])


def _remake(node: str, calls: Sequence[NodeRecord], *, reason: str) -> Remake:
    costs = [call.cost_usd for call in calls if call.cost_usd is not None]
    return Remake(
        node=node,
        reason=reason,
        steps=tuple(call.label for call in calls if call.label != node),
        calls=sum(call.calls for call in calls),
        input_tokens=sum(call.input_tokens for call in calls),
        output_tokens=sum(call.output_tokens for call in calls),
        cost_usd=sum(costs) if costs else None,
    )


async def _rehearsed(
    graph: Graph,
    inputs: Mapping[str, object],
    earlier: EarlierRun,
    surroundings: Surroundings,
    no_calls: _NoCalls,
) -> Execution:
    """How a resumed run would begin: the calls to reuse, and the calls to repeat."""
    return await execute(
        graph,
        inputs,
        Shared(
            run_of=_Through,
            tracer=Tracer(),
            executor=no_calls,
            earlier=earlier.outputs,
            misled=earlier.misled,
            changes=surroundings.change_since,
        ),
    )


class _Through:
    """The run for a node that only calls a pipeline."""

    def __init__(self, call: NodeCall) -> None:
        self._call = call

    async def call(self, pipeline: Graph, /, **inputs: object) -> CallResult:
        return call_result(pipeline, await self._call.call(pipeline, inputs))


class _NoCalls:
    """Calls only the items of the node `through`; `was_asked` says if it was asked for others."""

    def __init__(self, through: str | None = None) -> None:
        self.was_asked = False
        self.variations: dict[str, int] = {}  # label of a call → the number of its replies
        self._through = f"{through}["

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        if work.label.startswith(self._through) and "/" not in work.label:
            value: Any = work.function(**work.arguments)
            return await value
        if isinstance(work.handle, NodeCall):
            self.variations[work.label] = work.handle.variation
        self.was_asked = True
        # Not an error, for which a policy could retry, take a default, or end the run.
        raise Suspended
