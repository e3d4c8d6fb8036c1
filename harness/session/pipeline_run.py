"""One part of a pipeline's run: from inputs, and what earlier parts did, to its result."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.errors import NodeFailed, Notice
from harness.graph import (
    Answers,
    Asker,
    Execution,
    Graph,
    NodeCall,
    Question,
    bind_inputs,
    doubtful_inputs,
    execute,
)
from harness.inference import Backend
from harness.session.cast import Cast
from harness.session.forecasting import Forecaster
from harness.session.output_cache import OUTPUT_CACHE, StoredOutputs
from harness.session.rehearsal import inputs_now, result_if_nothing_to_do
from harness.session.result import RunFiles, RunResult, result_notices, result_of
from harness.session.resume import (
    Beginning,
    EarlierRun,
    Origin,
    match_answers,
    read_earlier_run,
    record_beginning,
    record_outcome,
    remember_again,
    remembered_in,
)
from harness.session.run import Run
from harness.session.session import Session, open_session
from harness.session.settings import Settings
from harness.session.uses import uses_of
from harness.session.usual_rounds import usual_rounds
from harness.trace import AUDIT_LOG, Instant, Record, Sink, describe, monotonic
from harness.trace.run_name import find_journal
from harness.wiggum import NOTHING, Limits, merged

_WRAP_UP_S = 1.0
"""When the run's time is over, calls to models end at once; nodes have so long to make something of
what there is, as a revise loop does with its best draft."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What a part of a run is made of."""

    inputs: Mapping[str, object]
    """The value of every input."""
    given: frozenset[str]
    """Those that were given, by now or in an earlier part."""
    limits: Limits
    """Those that were given, likewise."""
    origin: Origin | None
    """Where the pipeline is from."""
    answers: Answers
    """What people answered until now."""
    earlier: EarlierRun | None
    """What there was before; None in a run's first part."""


class PipelineRun:
    """Runs a graph with everything a session has, and records what a resume needs.

    Args:
        graph: What is run.
        settings: The session's.
        limits: Of the whole run, as given for it.
        own_limits: The pipeline's.
        parallel_calls: How many calls at once.
        backends: Ready-made backends by tag, beside those of the settings.
        observers: See each of the run's records as it happens.
        asker: Puts a question to a person at once.
        origin: Where the pipeline is from.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        settings: Settings,
        limits: Limits | None,
        own_limits: Limits | None,
        parallel_calls: int | None,
        backends: Mapping[str, Backend] | None,
        observers: Sequence[Sink],
        asker: Asker | None,
        origin: Origin | None,
    ) -> None:
        self._graph = graph
        self._settings = settings
        self._limits = limits
        self._own_limits = own_limits
        self._parallel_calls = parallel_calls
        self._backends = backends
        self._observers = observers
        self._asker = asker
        self._origin = origin
        self._retries: Counter[str] = Counter()

    async def begin(self, inputs: Mapping[str, object]) -> RunResult:
        """Runs the graph from its beginning; see `Pipeline.run_async`."""
        self._graph.check()
        return await self._run(
            _Part(
                inputs=bind_inputs(self._graph, inputs),
                given=frozenset(inputs),
                limits=merged(self._limits),
                origin=self._origin,
                answers={},
                earlier=None,
            )
        )

    async def resume(
        self, run: str | Path, inputs: Mapping[str, object], *, answers: Mapping[str, object]
    ) -> RunResult:
        """Goes on with a run; see `Pipeline.run_async`."""
        graph = self._graph
        graph.check()
        path = find_journal(run, lambda: self._settings.traces)
        earlier = read_earlier_run(path)
        values, given = inputs_now(graph, inputs, earlier)
        answered = match_answers(answers, earlier.questions)
        if earlier.is_finished:
            result = await result_if_nothing_to_do(graph, values, earlier)
            if result is not None:
                return result
        return await self._run(
            _Part(
                inputs=values,
                given=given,
                limits=merged(self._limits, earlier.beginning.limits),
                origin=self._origin or earlier.beginning.origin,
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
                self._settings,
                name=self._graph.name,
                task=str(part.inputs.get("task", "")),
                environment=os.environ,
                backends=self._backends,
                observers=(*self._observers, self._note_retry),
                limits=merged(part.limits, self._own_limits),
                needed_roles=_needed_roles(self._graph),
                resume=part.earlier.journal.path if part.earlier else None,
                spent=part.earlier.spent if part.earlier else NOTHING,
            ) as session:
                if part.earlier is not None:
                    part.earlier.check_unchanged()
                    for notice in part.earlier.notices:
                        session.casting.warn(notice, session.trace)
                    session.replies.ask_anew(part.earlier.misled)
                with session.trace.span("run", label=self._graph.name):
                    await self._record_beginning(session, part)
                    for notice in doubtful_inputs(self._graph, part.given):
                        session.casting.warn(notice, session.trace)
                    if part.earlier is not None:
                        await _remember_again(session, part.earlier)
                    ended = await self._execute(session, part)
                    record_outcome(session.trace, ended)
                    for notice in result_notices(self._graph, ended):
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
            self._graph,
            {name: part.inputs[name] for name in part.inputs if name in part.given},
            beginning=Beginning(
                origin=part.origin, limits=part.limits, content=self._settings.trace.content
            ),
        )
        known = part.earlier.answers if part.earlier else {}
        for (key, text), answer in part.answers.items():
            if (key, text) not in known:
                trace.instant(
                    "answer", key=key, text=trace.excerpt(text), answer=trace.excerpt(answer)
                )
        # From here on the run can be killed, and resumed.
        await trace.persisted()

    async def _execute(self, session: Session, part: _Part) -> Execution:
        earlier, trace, deadline_ns = part.earlier, session.trace, session.spending.deadline_ns

        answers = dict(part.answers)

        async def ask(question: Question) -> object | None:
            # For a second attempt of the node, which asks again.
            answer = await self._asker(question) if self._asker is not None else None
            if answer is not None:
                answers[question.key, question.text] = answer
            return answer

        forecaster = await self._forecaster(session)

        def run_of(call: NodeCall) -> Run:
            return Run(
                session,
                call,
                earlier=earlier.loops if earlier else None,
                foresight=None if forecaster is None else forecaster.foresight(call.label),
            )

        async with AsyncExitStack() as stack:
            cache = StoredOutputs(
                self._settings.traces / OUTPUT_CACHE,
                warn=partial(session.casting.warn, tracer=trace),
                clean=trace.redactor.clean,
            )
            stack.push_async_callback(cache.aclose)
            ended = await execute(
                self._graph,
                part.inputs,
                run_of=run_of,
                tracer=trace,
                parallel_calls=self._parallel_calls,
                earlier=earlier.outputs if earlier else None,
                cache=cache,
                answers=answers,
                asker=ask,
                deadline_s=None if deadline_ns is None else _deadline_s(deadline_ns),
                watcher=forecaster,
            )
        if earlier is not None:
            reused = frozenset(ended.reused).union(ended.renamed.values())
            session.earlier_loops.extend(earlier.loops.within(reused))
        for now, before in ended.renamed.items():
            said = f"'{now}' is what '{before}' was: it is not made again under its new name"
            session.casting.warn(Notice(code="resume.node-renamed", message=said), trace)
        return ended

    async def _forecaster(self, session: Session) -> Forecaster | None:
        """What tells the budget of what comes; None where there is no budget."""
        budget = session.budget
        if budget is None:
            return None
        cast = Cast(
            roles=session.roles,
            summariser=session.casting.summariser,
            embedder=session.passages.model,
            usual=await asyncio.to_thread(
                usual_rounds, session.trace.journal_path.parent / AUDIT_LOG, self._graph.name
            ),
        )
        uses = await asyncio.to_thread(uses_of, self._graph)
        return Forecaster(self._graph, uses, cast=cast, expect=budget.expect)

    def _result(
        self, session: Session, ended: Execution, part: _Part, *, started_ns: int
    ) -> RunResult:
        trace, casting = session.trace, session.casting
        return RunResult(
            run_id=trace.run_id,
            pipeline=self._graph.name,
            status=ended.status,
            outputs=ended.outputs,
            result=result_of(self._graph, ended),
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
            spent=session.spending.spent,
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
    """Keeps what nodes remembered that are not called again, where it went with the process."""
    if not session.passages.is_kept:
        lost = await remember_again(remembered_in(earlier.journal), session.passages)
        if lost:
            notice = Notice(
                code="resume.documents-lost",
                message=f"{lost} document{'s' if lost > 1 else ''} that earlier parts of the run "
                "remembered cannot be recalled now: the journal leaves secrets out, and so has no "
                "whole text",
            )
            session.casting.warn(notice, session.trace)


def _deadline_s(deadline_ns: int) -> float:
    """From now on, in seconds, until all that is still going is stopped."""
    left_s = (deadline_ns - monotonic()) / 1e9
    # A run whose time was over before it was resumed has nothing to wrap up.
    return left_s + _WRAP_UP_S if left_s > 0 else 0.0


def _needed_roles(graph: Graph) -> dict[str, str]:
    """The roles that nodes say they use, and which node says so."""
    return {
        role: f"node '{node.name}' ({node.path}:{node.line})"
        for node in graph.nodes.values()
        for role in node.policies.over(graph.policies).models or ()
    }


def _failure(ended: Execution) -> NodeFailed:
    first, *others = ended.failures
    failure = NodeFailed(first.node, first.error, attempts=first.attempts, others=len(others))
    failure.__cause__ = first.error
    return failure
