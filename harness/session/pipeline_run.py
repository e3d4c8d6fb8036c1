"""One part of a pipeline's run: from its inputs and the earlier parts to its result."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from harness.errors import HarnessError, NodeFailed, Notice
from harness.graph import (
    Answers,
    Asker,
    Execution,
    Graph,
    NodeCall,
    bind_inputs,
    doubtful_inputs,
    execute,
)
from harness.graph.on_ray import on_ray
from harness.graph.state import Places
from harness.inference import NOTHING, Backend, Limits, merged
from harness.inference.reply_store import OUTPUT_CACHE, StoredOutputs
from harness.rubric.load import load_rubric_file
from harness.session.demand import Forecaster, Players, demand_of, last_asked
from harness.session.rehearsal import result_if_nothing_to_do
from harness.session.result import RunFiles, RunResult, result_notices, result_of
from harness.session.resume import (
    Beginning,
    EarlierRun,
    Origin,
    inputs_now,
    labels_before,
    match_answers,
    read_earlier_run,
    record_beginning,
    record_outcome,
    remember_again,
    remembered_in,
    rename_notices,
)
from harness.session.roles import EVALUATOR, PRODUCER
from harness.session.run import Run
from harness.session.session import Session, open_session
from harness.session.settings import Settings, cluster_address
from harness.trace import AUDIT_LOG, Instant, Record, Sink, describe, monotonic
from harness.trace.run_list import find_journal

_WRAP_UP_S = 1.0
"""Seconds after the run's time limit in which nodes may still return their results, such as a
revise loop its best draft; model calls end at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The starting point of one part of a run."""

    inputs: Mapping[str, object]
    given: frozenset[str]
    """Inputs that were given, now or in an earlier part; the others have their defaults."""
    limits: Limits
    """Limits that were given, now or in an earlier part."""
    origin: Origin | None
    answers: Answers
    earlier: EarlierRun | None
    """None in a run's first part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRun:
    """Runs a graph with the parts of a session, and records all that a resume needs.

    See `Pipeline.run_async` for most fields.
    """

    graph: Graph
    settings: Settings
    limits: Limits | None
    """As given for this run."""
    own_limits: Limits | None
    """The pipeline's limits."""
    max_parallel: int | None
    backends: Mapping[str, Backend] | None
    observers: Sequence[Sink]
    asker: Asker | None
    origin: Origin | None
    _retries: Counter[str] = field(default_factory=Counter, init=False)

    async def begin(self, inputs: Mapping[str, object]) -> RunResult:
        """A new run."""
        self.graph.check()
        return await self._run(
            _Part(
                inputs=bind_inputs(self.graph, inputs),
                given=frozenset(inputs),
                limits=merged(self.limits),
                origin=self.origin,
                answers={},
                earlier=None,
            )
        )

    async def resume(
        self,
        run: str | Path | EarlierRun,
        inputs: Mapping[str, object],
        *,
        answers: Mapping[str, object],
    ) -> RunResult:
        """Goes on with a run."""
        graph = self.graph
        graph.check()
        earlier = run
        if not isinstance(earlier, EarlierRun):
            earlier = read_earlier_run(find_journal(earlier, lambda: self.settings.traces))
        values, given = inputs_now(graph, inputs, earlier)
        answered = match_answers(answers, earlier.questions)
        if earlier.is_finished:
            result = await result_if_nothing_to_do(graph, values, earlier)
            if result is not None:
                changed = await asyncio.to_thread(_changed_rubrics, earlier, self.settings.rubrics)
                return replace(result, warnings=(*result.warnings, *changed))
        return await self._run(
            _Part(
                inputs=values,
                given=given,
                limits=merged(self.limits, earlier.beginning.limits),
                origin=self.origin or earlier.beginning.origin,
                answers={**earlier.answers, **answered},
                earlier=earlier,
            )
        )

    async def _run(self, part: _Part) -> RunResult:
        started_ns = monotonic()
        ended: Execution | None = None
        session: Session | None = None
        try:
            async with open_session(
                self.settings,
                name=self.graph.name,
                task=str(part.inputs.get("task", "")),
                environment=os.environ,
                backends=self.backends,
                observers=(*self.observers, self._note_retry),
                limits=merged(part.limits, self.own_limits),
                needed_roles=_needed_roles(self.graph),
                resume=part.earlier.journal.path if part.earlier else None,
                spent=part.earlier.spent if part.earlier else NOTHING,
            ) as session:
                if part.earlier is not None:
                    part.earlier.check_unchanged()
                    for notice in part.earlier.notices:
                        session.casting.warn(notice, session.trace)
                    session.replies.ask_anew(part.earlier.misled)
                with session.trace.span(
                    "run", label=self.graph.name, max_parallel=self.max_parallel
                ):
                    await self._record_beginning(session, part)
                    for notice in doubtful_inputs(self.graph, part.given):
                        session.casting.warn(notice, session.trace)
                    if part.earlier is not None:
                        await _remember_again(session, part.earlier)
                    ended = await self._execute(session, part)
                    record_outcome(session.trace, ended)
                    for notice in result_notices(self.graph, ended):
                        session.casting.warn(notice, session.trace)
                    if ended.status == "finished":
                        session.replies.drop()
                    if ended.failures:
                        raise _failure(ended)
                if ended.stopped_by is not None:
                    session.trace.end_as("stopped", describe(ended.stopped_by))
                elif ended.questions:
                    session.trace.end_as("waiting")
        except NodeFailed as error:
            if session is not None and ended is not None:
                error.result = self._result(session, ended, part, started_ns=started_ns)
            raise
        return self._result(session, ended, part, started_ns=started_ns)

    def _note_retry(self, record: Record) -> None:
        if isinstance(record, Instant) and record.name == "retry":
            said = record.attributes
            self._retries[str(said.get("node") or said.get("model"))] += 1

    async def _record_beginning(self, session: Session, part: _Part) -> None:
        trace = session.trace
        record_beginning(
            trace,
            self.graph,
            {name: part.inputs[name] for name in part.inputs if name in part.given},
            beginning=Beginning(
                origin=part.origin, limits=part.limits, content=self.settings.trace.content
            ),
        )
        known = part.earlier.answers if part.earlier else {}
        for (key, text), answer in part.answers.items():
            if (key, text) not in known:
                trace.instant(
                    "answer", key=key, text=trace.excerpt(text), answer=trace.excerpt(answer)
                )
        # From here on the run can be killed and resumed.
        await trace.persisted()

    async def _execute(self, session: Session, part: _Part) -> Execution:
        earlier, trace, deadline_ns = part.earlier, session.trace, session.meter.deadline_ns

        forecaster = await self._forecaster(session)

        def run_of(call: NodeCall) -> Run:
            return Run(
                session,
                call,
                earlier=earlier.loops if earlier else None,
                demand=None if forecaster is None else forecaster.call(call.label),
            )

        async with AsyncExitStack() as stack:
            cache = StoredOutputs(
                self.settings.traces / OUTPUT_CACHE,
                warn=partial(session.casting.warn, tracer=trace),
                clean=trace.redactor.clean,
            )
            stack.push_async_callback(cache.aclose)
            executor = None
            if (address := cluster_address(self.settings.execution, os.environ)) is not None:
                executor = await stack.enter_async_context(
                    on_ray(
                        address,
                        tracer=trace,
                        content=self.settings.trace.content,
                        give_again=session.replies.give_again,
                    )
                )
            places = Places(self.max_parallel)
            if session.budget is not None:
                session.budget.tell_waiting(places.lend, max_parallel=self.max_parallel)
            ended = await execute(
                self.graph,
                part.inputs,
                run_of=run_of,
                tracer=trace,
                executor=executor,
                max_parallel=places,
                earlier=earlier.outputs if earlier else None,
                cache=cache,
                answers=part.answers,
                asker=self.asker,
                deadline_s=None if deadline_ns is None else _deadline_s(deadline_ns),
                watcher=forecaster,
            )
        if earlier is not None:
            session.earlier_loops.extend(earlier.loops.within(labels_before(ended)))
            for notice in rename_notices(ended):
                session.casting.warn(notice, trace)
        return ended

    async def _forecaster(self, session: Session) -> Forecaster | None:
        """Forecasts calls for the budget; None without a budget."""
        budget = session.budget
        if budget is None:
            return None
        # The run's own journal has not ended, and so is passed over.
        seen, _ = await asyncio.to_thread(last_asked, self.settings.traces, self.graph.name)
        players = Players(roles=session.roles, embedder=session.passages.model)
        return Forecaster(
            self.graph, demand_of(self.graph, seen), players=players, expect=budget.expect
        )

    def _result(
        self, session: Session, ended: Execution, part: _Part, *, started_ns: int
    ) -> RunResult:
        trace, casting = session.trace, session.casting
        return RunResult(
            run_id=trace.run_id,
            pipeline=self.graph.name,
            status=ended.status,
            outputs=ended.outputs,
            result=result_of(self.graph, ended),
            failures=ended.failures,
            skips=ended.skips,
            questions=ended.questions,
            stopped_by=None if ended.stopped_by is None else str(ended.stopped_by),
            reused=ended.reused,
            reruns=ended.reruns,
            retries=dict(self._retries),
            replies_used_again=session.replies.used_again,
            parts=part.earlier.journal.parts + 1 if part.earlier else 1,
            loops=tuple(session.loops),
            earlier_loops=tuple(session.earlier_loops),
            models=tuple(session.models),
            spent=session.meter.spent,
            duration_s=(monotonic() - started_ns) / 1e9,
            files=RunFiles(
                journal=trace.journal_path,
                chrome_trace=trace.timeline_paths.get("chrome"),
                perfetto_trace=trace.timeline_paths.get("perfetto"),
                audit_log=trace.journal_path.parent / AUDIT_LOG,
            ),
            separation=casting.separation,
            evaluator_draw=casting.draw,
            evaluator_panel=casting.panel,
            warnings=tuple(casting.warnings),
        )


async def _remember_again(session: Session, earlier: EarlierRun) -> None:
    """Restores lost documents of nodes that are not called again."""
    if not session.passages.is_kept:
        lost = await remember_again(remembered_in(earlier.journal), session.passages)
        if lost:
            notice = Notice(
                code="resume.documents-lost",
                message=f"{lost} document{'s' if lost > 1 else ''} that earlier parts of the run "
                "remembered cannot be recalled now: their texts hold secrets, which the journal "
                "leaves out",
            )
            session.casting.warn(notice, session.trace)


def _changed_rubrics(earlier: EarlierRun, rubrics: Path) -> list[Notice]:
    """Changed rubrics of the user; a node's code does not show their changes."""
    judged = {loop.rubric: loop.rubric_sha256 for loop in earlier.loops.ended}
    notices = []
    for name, sha256 in judged.items():
        try:
            path = rubrics / f"{name}.yaml"
            changed = load_rubric_file(path, directory=rubrics).sha256 != sha256
        except HarnessError:
            continue  # given as a path, or shipped; or it has a mistake now
        if changed:
            notices.append(
                Notice(
                    code="resume.rubric-changed",
                    message=f"rubric '{name}' has changed; texts that it already judged are kept "
                    "as they are. To judge them again, begin a new run: harness run",
                )
            )
    return notices


def _deadline_s(deadline_ns: int) -> float:
    """Seconds from now until everything still going is stopped."""
    left_s = (deadline_ns - monotonic()) / 1e9
    # A run whose time was over before it was resumed has nothing to wrap up.
    return left_s + _WRAP_UP_S if left_s > 0 else 0.0


def _needed_roles(graph: Graph) -> dict[str, str]:
    """The roles that nodes declare, and which node does.

    A node that declares producer and evaluator revises: without an evaluator, code alone checks.
    """
    needed = {}
    for node in graph.nodes.values():
        roles = node.policies.over(graph.policies).models or ()
        for role in roles:
            if role != EVALUATOR or PRODUCER not in roles:
                needed[role] = f"node '{node.name}' ({node.path}:{node.line})"
    return needed


def _failure(ended: Execution) -> NodeFailed:
    first, *others = ended.failures
    failure = NodeFailed(first.node, first.error, attempts=first.attempts, others=len(others))
    failure.__cause__ = first.error
    return failure
