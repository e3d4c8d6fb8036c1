"""What is left to do, or to be made again, for a run that is resumed; if nothing, its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

from harness.errors import InvalidInput
from harness.graph import Execution, Graph, Work, execute
from harness.session.result import RunFiles, RunResult, result_notices, result_of
from harness.session.resume import EarlierRun, inputs_now
from harness.trace import AUDIT_LOG, TIMELINES, Tracer, calls_of, group_calls
from harness.trace.node_records import NodeRecord, node_records


async def result_if_nothing_to_do(
    graph: Graph, inputs: Mapping[str, object], earlier: EarlierRun
) -> RunResult | None:
    """The result of a run whose every call was made before; None if one would have to be made.

    Nothing is called and nothing recorded.

    Args:
        graph: What was run.
        inputs: The value of every input, as it is now.
        earlier: What was done.
    """
    nobody = _Nobody()
    ended = await _rehearsed(graph, inputs, earlier, nobody)
    if nobody.was_asked or ended.status != "finished":
        return None
    return _from_journal(graph, ended, earlier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remake:
    """A call of a node that a resumed run makes again, with what it took, nested ones included."""

    node: str
    """Its label: `findings[2]`."""
    reason: str
    calls: int
    input_tokens: int
    output_tokens: int
    cost_usd: float | None


async def to_make_again(
    graph: Graph, inputs: Mapping[str, object], earlier: EarlierRun
) -> tuple[Remake, ...]:
    """What a resumed run makes again although it was done; nothing is called.

    Args:
        graph: What was run.
        inputs: Those that are given now.
        earlier: What was done.

    Raises:
        InvalidInput: As the run itself would raise it.
    """
    values, _ = inputs_now(graph, inputs, earlier)
    ended = await _rehearsed(graph, values, earlier, _Nobody())
    reasons = {one.node: one.reason for one in ended.reruns}
    kept = {*ended.reused}
    took: dict[str, list[NodeRecord]] = {}
    for record in node_records(earlier.journal):
        took.setdefault(record.label.partition("/")[0], []).append(record)
    again = []
    for label, records in took.items():
        own = next((one for one in records if one.label == label), None)
        is_done = own is not None and own.status in {"done", "reused"} and own.node in graph.nodes
        if not is_done or label in kept:
            continue
        costs = [one.cost_usd for one in records if one.cost_usd is not None]
        again.append(
            Remake(
                node=label,
                reason=reasons.get(label, "what it takes is made again"),
                calls=sum(one.calls for one in records),
                input_tokens=sum(one.input_tokens for one in records),
                output_tokens=sum(one.output_tokens for one in records),
                cost_usd=sum(costs) if costs else None,
            )
        )
    return tuple(again)


async def _rehearsed(
    graph: Graph, inputs: Mapping[str, object], earlier: EarlierRun, nobody: _Nobody
) -> Execution:
    return await execute(
        graph,
        inputs,
        run_of=lambda _call: None,
        tracer=Tracer(),
        executor=nobody,
        earlier=earlier.outputs,
    )


class _Nobody:
    """An executor that makes no call.

    Attributes:
        was_asked: Whether one was to be made.
    """

    def __init__(self) -> None:
        self.was_asked = False

    async def call(self, work: Work) -> object:
        """See `Executor.call`."""
        self.was_asked = True
        # What a person did wrong is not tried again.
        raise InvalidInput(f"'{work.label}' was not called", code="resume.not-called")

    async def stream(self, work: Work) -> AsyncGenerator[object, None]:
        """See `Executor.stream`."""
        yield await self.call(work)


def _from_journal(graph: Graph, ended: Execution, earlier: EarlierRun) -> RunResult:
    journal, path = earlier.journal, earlier.journal.path
    timelines = {form: path.with_suffix(TIMELINES[form][0]) for form in TIMELINES}
    there = {form: one if one.is_file() else None for form, one in timelines.items()}
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
        earlier_loops=earlier.loops.within(frozenset(ended.reused)),
        models=tuple(group_calls(calls_of(journal.spans()), by=lambda call: call.model)),
        spent=earlier.spent,
        duration_s=0.0,
        files=RunFiles(
            journal=path,
            chrome_trace=there["chrome"],
            perfetto_trace=there["perfetto"],
            audit_log=path.parent / AUDIT_LOG,
        ),
        warnings=(*earlier.notices, *result_notices(graph, ended)),
    )
