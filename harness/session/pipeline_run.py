"""One part of a pipeline's run: from its inputs and the earlier parts to its result."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.errors import NodeFailed, Notice
from harness.files import path_text
from harness.graph import Execution, NodeCall, bind_inputs, execute, graph_inputs
from harness.graph.executor import Executor, InProcess, OnDemand, OpenExecutor
from harness.graph.graph import asks_for_workers
from harness.graph.reuse import OUTPUT_CACHE, Shared
from harness.graph.state import Places
from harness.graph.values import digest, value_form
from harness.inference import Meter
from harness.inference.limits import FIELD_OF, merged
from harness.plugins import load_plugin
from harness.session.demand import Forecaster
from harness.session.models import with_backends
from harness.session.open_run import OpenRun, RunPlan, open_run
from harness.session.rehearsal import result_if_nothing_to_do
from harness.session.result import RunFiles, RunResult, result_notices, result_of
from harness.session.resume import (
    EarlierRun,
    inputs_now,
    labels_before,
    match_answers,
    origin_fields,
    read_earlier_run,
    remembered_in,
    rename_notices,
)
from harness.session.run import Run
from harness.session.settings import IN_PROCESS, check_workers
from harness.session.surroundings import Surroundings
from harness.text_store import TextStore
from harness.trace import Record, describe, events, monotonic
from harness.trace.run_list import find_journal

# Seconds after the run's time limit in which nodes may still return their results, such as a revise
# loop its best draft; model calls end at once.
_WRAP_UP_S = 1.0
# Most failures that a record names; the spans of the calls have the others.
_MOST_NAMES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun(RunPlan):
    """Runs a graph, and records all that a resume needs."""

    # Node or model → how often its calls were tried again.
    _retries: Counter[str] = field(default_factory=Counter, init=False)

    def begin(self, inputs: Mapping[str, object]) -> Coroutine[Any, Any, RunResult]:
        """Begins a new run."""
        self.graph.check()
        values = bind_inputs(self.graph, inputs)
        # Returned and not awaited, for one frame less in the tracebacks of nodes' errors.
        return replace(self, inputs=values, given_inputs=frozenset(inputs)).run()

    async def resume(
        self,
        run: str | Path | EarlierRun,
        inputs: Mapping[str, object],
        *,
        answers: Mapping[str, object],
    ) -> RunResult:
        """Continues a run; if nothing is left to do, the result is read from its journal."""
        graph = self.graph
        graph.check()
        if isinstance(run, EarlierRun):
            earlier = run
        else:
            earlier = read_earlier_run(find_journal(run, lambda: self.settings.traces))
        values, given_inputs = inputs_now(graph, inputs, earlier)
        new_answers = match_answers(answers, earlier.questions)
        tenant = self.tenant or earlier.beginning.tenant
        # Without limits of its own, a run that is finished stays as it is.
        if self.is_batch or self.limits is not None or (self.origin and self.origin.limits):
            earlier.outputs.continues = "limit", "failure"
        settings = with_backends(self.settings, self.backends)
        surroundings = await Surroundings(settings).beside(earlier.outputs)
        if earlier.is_finished:
            result = await result_if_nothing_to_do(graph, values, earlier, surroundings)
            if result is not None:
                return result
        if self.shared is not None:
            self.shared.meter_of(tenant)  # refuses a tenant that this session does not know
        part = replace(
            self,
            inputs=values,
            given_inputs=given_inputs,
            limits=merged(self.limits, earlier.limits),
            origin=self.origin or earlier.origin,
            tenant=tenant,
            answers={**earlier.answers, **new_answers},
            earlier=earlier,
            surroundings=surroundings,
        )
        return await part.run()

    async def run(self) -> RunResult:
        """Runs the part of the run that `begin` or `resume` planned."""
        started_ns = monotonic()
        earlier = self.earlier
        opened: OpenRun | None = None
        ended: Execution | None = None
        await _turn_to_open()
        try:
            # 1. All that the run needs is open inside this block.
            # `_note_retry` is bound to this object: the copy's own `_retries` stays empty.
            plan = replace(self, observers=(*self.observers, self._note_retry))
            async with open_run(plan, environment=os.environ) as opened:
                # 2. This part holds the journal now, so that no other process writes to it.
                if earlier is not None:
                    earlier.check_unchanged()
                    for notice in earlier.notices:
                        opened.warn(notice)
                run_span = events.RunSpanEvent(
                    label=self.graph.name, max_parallel=self.max_parallel, tenant=self.tenant
                )
                with opened.trace.span(run_span):
                    # 3. What a resume needs goes before the first node.
                    await self._record_beginning(opened)
                    if earlier is not None:
                        await _remember_again(opened, earlier)
                    # 4. The nodes.
                    ended = await self._execute(opened)
                    opened.trace.flush()  # observers, who count scores, have all records then
                    opened.scored.extend(self.scored())
                    opened.figures.update(self.figures())
                    # 5. How it ended. A failure is raised inside the span, which then records it.
                    opened.trace.instant(_outcome(ended))
                    for notice in result_notices(self.graph, ended):
                        opened.warn(notice)
                    if ended.cut:
                        opened.warn(_loops_cut(ended.cut, is_batch=self.is_batch))
                    elif ended.status == "finished" and not self.is_batch:
                        opened.replies.drop()
                    if ended.failures:
                        raise ended.error
                if ended.stopped_by is not None:
                    opened.trace.end_as("stopped", describe(ended.stopped_by))
                elif ended.questions:
                    opened.trace.end_as("waiting")
        except NodeFailed as error:
            if opened is not None and ended is not None:
                error.result = self._result(opened, ended, started_ns=started_ns)
            raise
        # 6. The use of each model and the files are known only now that all is closed.
        return self._result(opened, ended, started_ns=started_ns)

    def _note_retry(self, record: Record) -> None:
        if retry := events.RetryEvent.of(record):
            self._retries[str(retry.node or retry.model)] += 1

    async def _record_beginning(self, opened: OpenRun) -> None:
        """Records what `read_earlier_run` reads; only given inputs and limits, without defaults."""
        trace = opened.trace
        graph = self.graph
        inputs = {name: self.inputs[name] for name in self.inputs if name in self.given_inputs}
        limits = asdict(merged(self.limits))
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        trace.instant(
            events.PipelineEvent(
                pipeline=graph.name,
                content=self.settings.trace.content,
                **origin_fields(self.origin),
                inputs=tuple(inputs),
                limits=limits,
                is_batch=self.is_batch,
                batch_state=path_text(self.batch_state.absolute()) if self.batch_state else "",
                row_ids=tuple(self.row_ids),
                result=graph.result,
                tenant=self.tenant,
            )
        )
        parameters = graph_inputs(graph)
        for name, value in inputs.items():
            recorded = events.InputEvent(input=name)
            with suppress(TypeError):  # a value that has no JSON is recorded by its name alone
                form = value_form(parameters[name].annotation)
                data = form.encode(value)
                recorded = events.InputEvent(
                    input=name,
                    value_sha256=trace.content(data.decode()),
                    digest=trace.excerpt(digest(data)),
                    unset=form.unset(value),
                )
            trace.instant(recorded)
        if self.refused is not None:
            trace.instant(self.refused)
        recorded_answers = self.earlier.answers if self.earlier else {}
        for asked, answer in self.answers.items():
            excerpt = trace.excerpt(answer)
            # An answer of the wrong form was recorded too, and now another is given.
            if recorded_answers.get(asked) != excerpt:
                event = events.AnswerEvent(
                    key=asked.key,
                    text=trace.excerpt(asked.text),
                    answer=excerpt,
                    about=trace.excerpt(asked.about),
                )
                trace.instant(event)
        # From here on the run can be killed and resumed.
        await trace.persisted()

    async def _execute(self, opened: OpenRun) -> Execution:
        """Calls the nodes; warns of those that an earlier part had under another name."""
        earlier = self.earlier
        places = Places(self.max_parallel)
        async with AsyncExitStack() as stack:
            cache = self._output_cache(opened)
            stack.push_async_callback(cache.aclose)
            executor = await self._executor(opened, stack)
            forecaster = self._forecaster(opened, places, stack)

            def run_of(call: NodeCall) -> Run:
                return Run(
                    opened,
                    call,
                    earlier=earlier.loops if earlier else None,
                    demand=None if forecaster is None else forecaster.call(call.label),
                )

            def repeats(label: str) -> None:
                opened.ended_loops.repeats(label)
                opened.replies.give_again(label)

            ended = await execute(
                self.graph,
                self.inputs,
                Shared(
                    run_of=run_of,
                    on_repeat=repeats,
                    on_kept=opened.ended_loops.keeps,
                    tracer=opened.trace,
                    executor=executor,
                    places=places,
                    earlier=earlier.outputs if earlier else None,
                    misled=earlier.misled if earlier else {},
                    cache=cache if self.caches else None,
                    changes=opened.surroundings.change_since,
                    answers=dict(self.answers),
                    asker=self.asker,
                ),
                deadline_s=_deadline_s(opened.meter),
                watcher=forecaster,
            )
        if earlier is not None:
            opened.earlier_loops.extend(earlier.loops.within(labels_before(ended)))
            for notice in rename_notices(ended):
                opened.warn(notice)
        return ended

    def _output_cache(self, opened: OpenRun) -> TextStore:
        """The outputs of all runs; if its file cannot be used, the run warns and goes on."""

        def warn(error: Exception) -> None:
            notice = Notice(
                code="cache.outputs-not-kept",
                message=f"outputs are not kept for other runs: {error}",
            )
            opened.warn(notice)

        path = self.settings.traces / OUTPUT_CACHE
        return TextStore(path, unusable=warn, clean=opened.trace.redactor.clean)

    def _forecaster(
        self, opened: OpenRun, places: Places, stack: AsyncExitStack
    ) -> Forecaster | None:
        """Tells the budget which models the run will ask, until the stack closes; None without."""
        budget = opened.budget
        if budget is None:
            return None
        run_id = opened.trace.run_id
        serving = budget.serving(run_id, lend=places.lend, max_parallel=self.max_parallel)
        stack.enter_context(serving)
        return Forecaster(
            self.graph,
            roles=opened.casting.roles,
            asks_in_background=bool(opened.settings.memory.models),
            expect=partial(budget.expect, run=run_id),
        )

    async def _executor(self, opened: OpenRun, stack: AsyncExitStack) -> Executor:
        """Calls nodes here, or on workers if they ask for one; the stack closes the workers."""
        execution = self.settings.execution
        if execution.engine == IN_PROCESS:
            return InProcess()
        check_workers(execution, os.environ)
        open_executor: OpenExecutor = load_plugin("executors", execution.engine, callable)
        workers = open_executor(
            execution.address,
            tracer=opened.trace,
            content=self.settings.trace.content,
            give_again=opened.replies.give_again,
        )
        on_demand = OnDemand(workers)
        stack.push_async_callback(on_demand.aclose)
        if asks_for_workers(self.graph):
            await on_demand.opened()  # raises what is wrong with it before the first call
        return on_demand

    def _result(self, opened: OpenRun, ended: Execution, *, started_ns: int) -> RunResult:
        stopped = ended.stopped_by
        # Of the reasons to stop, only these limits have a meter, which may be the command's.
        limit = next((name for name in FIELD_OF if stopped and stopped.limit == name), None)
        left = opened.meter.left(limit) if limit else None
        return RunResult(
            run_id=opened.trace.run_id,
            pipeline=self.graph.name,
            status=ended.status,
            outputs=ended.outputs,
            result=result_of(self.graph, ended),
            failures=ended.failures,
            skips=ended.skips,
            questions=ended.questions,
            stopped_by=None if stopped is None else str(stopped),
            limit=None if stopped is None else stopped.limit,
            command_limit=limit if left and left.scope.whose == "command" else None,
            reused=ended.reused,
            reruns=ended.reruns,
            retries=dict(self._retries),
            replies_used_again=opened.replies.used_again,
            parts=self.earlier.journal.parts + 1 if self.earlier else 1,
            loops=opened.ended_loops.of_last_attempts,
            earlier_loops=tuple(opened.earlier_loops),
            models=tuple(opened.models),
            spent=opened.meter.of_run.spent,
            duration_s=(monotonic() - started_ns) / 1e9,
            files=RunFiles.beside(opened.trace.journal_path),
            separation=opened.casting.separation,
            evaluator_pool=opened.casting.pool,
            warnings=tuple(opened.warnings),
        )


def _loops_cut(calls: int, *, is_batch: bool) -> Notice:
    unit, remedy = "node calls", "a resumed run goes on with them, after a limit with a higher one"
    if is_batch:
        unit, remedy = "rows", "the same command goes on with them"
    return Notice(
        code="loop.cut",
        message="a limit or a failed model call ended revise loops before their drafts passed "
        f"({unit}: {calls:,}); {remedy}",
    )


def _outcome(ended: Execution) -> events.Outcome:
    return events.Outcome(
        status=ended.status,
        failed=tuple(failure.node for failure in ended.failures[:_MOST_NAMES]),
        failures=len(ended.failures),
        skips=len(ended.skips),
        reused=len(ended.reused),
        made_again=len(ended.reruns),
        questions=tuple(question.key for question in ended.questions),
    )


async def _remember_again(opened: OpenRun, earlier: EarlierRun) -> None:
    """Restores the documents of earlier parts, unless a store that outlives runs has them."""
    if opened.settings.memory.is_kept:
        return
    documents, lost = remembered_in(earlier.journal)
    for document in documents:
        await opened.passages.remember(**document)
    if lost:
        notice = Notice(
            code="resume.documents-lost",
            message=f"{lost} document{'s' if lost > 1 else ''} that earlier parts of the run "
            "remembered cannot be recalled now: their texts hold secrets, which the journal "
            "leaves out",
        )
        opened.warn(notice)


def _deadline_s(meter: Meter) -> float | None:
    """Seconds until nodes that still run are stopped; None without a limit on time."""
    left = meter.left("time")
    if left is None:
        return None
    # A run whose time was over before it was resumed has nothing to wrap up.
    return left.amount + _WRAP_UP_S if left.amount > 0 else 0.0


@dataclass(slots=True)
class _Opening:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0  # runs that wait for the lock or open


_OPENING: dict[asyncio.AbstractEventLoop, _Opening] = {}


async def _turn_to_open() -> None:
    """Waits until this run may open, since only one opens in each turn of the event loop."""
    # Opening a run holds the event loop for some milliseconds: fifty runs that begin together
    # would hold it for a quarter of a second.
    loop = asyncio.get_running_loop()
    turn = _OPENING.setdefault(loop, _Opening())
    turn.waiting += 1
    try:
        async with turn.lock:
            await asyncio.sleep(0)
    finally:
        turn.waiting -= 1
        # A lock that was waited for refers to its loop: an entry that stays keeps the loop alive.
        if not turn.waiting:
            del _OPENING[loop]
