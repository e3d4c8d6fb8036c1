"""Pipelines as users meet them: a graph with a door to run it through."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.errors import InvalidInput, PipelineInvalid
from harness.graph import Asker, Cache, Concurrency, Graph, OnError, Retry, Timeout, graph_inputs
from harness.inference import Backend
from harness.session.event_loop import run_to_its_end
from harness.session.pipeline_run import PipelineRun
from harness.session.result import RunResult
from harness.session.resume import Origin
from harness.session.run import Run
from harness.session.settings import Settings, load_settings
from harness.trace import Sink
from harness.wiggum import Limits


class Pipeline(Graph):
    """Functions joined by the names of their parameters, and runnable.

    Args:
        name: What its runs are called.
        retry: Whether a node that raised is called again, where the node does not say; so are the
            next four.
        timeout: How long a call of a node may take.
        cache: Whether outputs of earlier runs will do.
        concurrency: How many calls of one node at once.
        on_error: What becomes of a node whose last attempt raised: `"fail"`, `"skip"`, or
            `Default(value)`.
        fail_fast: Whether the first failure ends the run, and not only what depends on it.
        result: The node whose output is the result; the last one when None.
        limits: What a whole run may take; before those of the settings.
        parallel_calls: How many calls of all nodes may be under way at once; as many as there are
            when None.
    """

    def __init__(
        self,
        name: str,
        *,
        retry: Retry | None = None,
        timeout: Timeout | None = None,
        cache: Cache | None = None,
        concurrency: Concurrency | None = None,
        on_error: OnError | None = None,
        fail_fast: bool = False,
        result: str | None = None,
        limits: Limits | None = None,
        parallel_calls: int | None = 16,
    ) -> None:
        super().__init__(
            name,
            retry=retry,
            timeout=timeout,
            cache=cache,
            concurrency=concurrency,
            on_error=on_error,
            fail_fast=fail_fast,
            result=result,
        )
        _check_limits(limits)
        if parallel_calls is not None and parallel_calls < 1:
            raise InvalidInput(
                f"parallel_calls={parallel_calls} would let no call begin; give 1 or more",
                code="pipeline.parallel-calls-not-positive",
            )
        self.limits = limits
        self.parallel_calls = parallel_calls

    def check(self) -> None:
        """Looks at what can only be seen of the whole: done before every run.

        Raises:
            PipelineInvalid: See `Graph.check`; or it has no nodes, or one calls its `Run` otherwise
                than `run`.
        """
        super().check()
        if not self.nodes:
            raise PipelineInvalid(
                f"pipeline '{self.name}' has no nodes; add one: @pipeline.node",
                code="pipeline.empty",
            )
        for name, item in graph_inputs(self).items():
            if item.annotation is Run:
                raise PipelineInvalid(
                    f"node '{item.node.name}' takes the run as '{name}', which would be an input; "
                    "the parameter that receives it is called 'run'",
                    path=item.node.path,
                    line=item.node.line,
                    code="pipeline.run-parameter-misnamed",
                )

    def run(
        self,
        inputs: Mapping[str, object] | None = None,
        /,
        *,
        resume: str | Path | None = None,
        answers: Mapping[str, object] | None = None,
        asker: Asker | None = None,
        limits: Limits | None = None,
        settings: Settings | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
        origin: Origin | None = None,
        **named: object,
    ) -> RunResult:
        """Runs the pipeline, as `run_async` does, which says what it takes.

        Raises:
            InvalidInput: Called where an event loop runs already, as in a notebook.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise InvalidInput(
                "an event loop is running here already, as in a notebook; write "
                "await pipeline.run_async(…) instead",
                code="pipeline.event-loop-running",
            )
        return run_to_its_end(
            self.run_async(
                inputs,
                resume=resume,
                answers=answers,
                asker=asker,
                limits=limits,
                settings=settings,
                backends=backends,
                observers=observers,
                origin=origin,
                **named,
            )
        )

    async def run_async(
        self,
        inputs: Mapping[str, object] | None = None,
        /,
        *,
        resume: str | Path | None = None,
        answers: Mapping[str, object] | None = None,
        asker: Asker | None = None,
        limits: Limits | None = None,
        settings: Settings | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
        origin: Origin | None = None,
        **named: object,
    ) -> RunResult:
        """Runs the pipeline: `await pipeline.run_async(task="…")`, or `run_async({"task": "…"})`.

        However it ends, its journal, its timelines and its line in the audit log are written.

        A run that was resumed makes no call of a node again whose code and inputs are what they
        were, and goes on with revise loops where they were. One that had finished is not begun
        again if that goes for all of its calls: its result is read from the journal.

        Args:
            inputs: By name, those too that are called like an option here. Of a run that is
                resumed, those not given are as they were.
            resume: A run to go on with: its id or a part of it, `latest`, or one of its files.
            answers: To what the run to resume asked: by the question's key, or by the node that
                asked if it asked but one question.
            asker: Puts a question to a person at once; without one, the run ends as waiting.
            limits: What the whole run may take, over all its parts; each goes before what the run
                to resume was given, before those of the pipeline, and those of the settings.
            settings: In place of those of the directory and the environment.
            backends: Ready-made backends by tag, beside those of the settings.
            observers: See each of the run's records as it happens.
            origin: Where the pipeline is from, for `harness resume`.
            named: Inputs.

        Returns:
            What it gave: all of it, or what there is when it was stopped at a limit or waits for an
            answer; `status` says which.

        Raises:
            InvalidInput: The pipeline, the settings, the inputs or a rubric are not usable, or the
                run cannot be resumed.
            NodeFailed: A node raised, the first of those that did; the cause is chained, and
                `result` has what was done all the same.
        """
        options = {
            "resume": resume,
            "answers": answers,
            "asker": asker,
            "limits": limits,
            "settings": settings,
            "backends": backends,
            "observers": observers or None,
            "origin": origin,
        }
        given = {**(inputs or {}), **named}
        if inputs is None:
            self._refuse_inputs_among(options)
        elif twice := inputs.keys() & named.keys():
            raise InvalidInput(
                f"input '{min(twice)}' is given twice, in the mapping and by name",
                code="pipeline.input-given-twice",
            )
        if resume is not None and not isinstance(resume, str | Path):
            raise InvalidInput(
                f"resume is {type(resume).__name__}; give a run's id, 'latest', or its file",
                code="resume.not-a-run",
            )
        _check_limits(limits)
        run = PipelineRun(
            self,
            settings=load_settings(environment=os.environ) if settings is None else settings,
            limits=limits,
            own_limits=self.limits,
            parallel_calls=self.parallel_calls,
            backends=backends,
            observers=observers,
            asker=asker,
            origin=origin,
        )
        if resume is None:
            if answers:
                raise InvalidInput(
                    "answers are for a run that asked; say which one to resume",
                    code="answer.without-run",
                )
            return await run.begin(given)
        return await run.resume(resume, given, answers=answers or {})

    def _refuse_inputs_among(self, options: Mapping[str, object]) -> None:
        """An option that is called like an input of this pipeline may be meant for either."""
        known = graph_inputs(self)
        for name, value in options.items():
            if value is not None and name in known:
                raise InvalidInput(
                    f"'{name}' is an input of '{self.name}' and an option of run; give inputs as a "
                    f'mapping, run({{"{name}": …}}), beside which {name}= is the option',
                    code="pipeline.input-is-option",
                )


def _check_limits(limits: object) -> None:
    if not isinstance(limits, Limits | None):
        raise InvalidInput(
            f"limits={limits!r} is none; write one, such as Limits(max_calls=9)",
            code="pipeline.limits-invalid",
        )
