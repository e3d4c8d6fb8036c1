"""Whether there is anything left to do for a run that is resumed; if not, its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from harness.errors import InvalidInput
from harness.graph import Execution, Graph, Work, execute
from harness.session.result import RunFiles, RunResult, result_notices, result_of
from harness.session.resume import EarlierRun
from harness.trace import AUDIT_LOG, TIMELINES, Tracer, calls_of, group_calls


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
    ended = await execute(
        graph,
        inputs,
        run_of=lambda _call: None,
        tracer=Tracer(),
        executor=nobody,
        earlier=earlier.outputs,
    )
    if nobody.was_asked or ended.status != "finished":
        return None
    return _from_journal(graph, ended, earlier)


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
        earlier_loops=earlier.loops.within(frozenset(ended.reused).union(ended.renamed.values())),
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
