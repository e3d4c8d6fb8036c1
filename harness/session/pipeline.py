"""Pipelines as users meet them: a graph with a door to run it through."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence

from harness.errors import InvalidInput
from harness.graph import Graph, bind_inputs, execute
from harness.inference import Backend
from harness.session.result import RunFiles, RunResult
from harness.session.run import Run
from harness.session.session import open_session
from harness.session.settings import Settings, load_settings
from harness.trace import AUDIT_LOG, Sink, monotonic


class Pipeline(Graph):
    """Functions joined by the names of their parameters, and runnable.

    Args:
        name: What its runs are called.
    """

    def run(self, **inputs: object) -> RunResult:
        """Runs the pipeline with the settings of this directory; see `run_async`.

        Raises:
            InvalidInput: Called where an event loop runs already, as in a notebook.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.run_async(inputs))
        raise InvalidInput(
            "an event loop is running here already, as in a notebook; write "
            "await pipeline.run_async({...}) instead"
        )

    async def run_async(
        self,
        inputs: Mapping[str, object],
        *,
        settings: Settings | None = None,
        backends: Mapping[str, Backend] | None = None,
        observers: Sequence[Sink] = (),
    ) -> RunResult:
        """Runs the pipeline.

        However it ends, its journal, its timelines and its line in the audit log are written.

        Args:
            inputs: By name.
            settings: In place of those of the directory and the environment.
            backends: Ready-made backends by tag, beside those of the settings.
            observers: See each of the run's records as it happens.

        Raises:
            InvalidInput: The settings, the inputs or a rubric are not usable.
            NodeFailed: A node raised; the cause is chained.
        """
        chosen = load_settings(environment=os.environ) if settings is None else settings
        values = bind_inputs(self, inputs)
        started_ns = monotonic()
        async with open_session(
            chosen,
            name=self.name,
            task=str(values.get("task", "")),
            environment=os.environ,
            backends=backends,
            observers=observers,
        ) as session:
            with session.trace.span("run", label=self.name):
                outputs = await execute(self, values, run=Run(session), tracer=session.trace)
        trace = session.trace
        return RunResult(
            run_id=trace.run_id,
            pipeline=self.name,
            outputs=outputs,
            result=next(reversed(outputs.values()), None),
            loops=tuple(session.loops),
            models=tuple(session.models),
            duration_s=(monotonic() - started_ns) / 1e9,
            files=RunFiles(
                journal=trace.journal_path,
                chrome_trace=trace.timeline_paths.get("chrome"),
                perfetto_trace=trace.timeline_paths.get("perfetto"),
                audit_log=chosen.traces / AUDIT_LOG,
            ),
            separation=session.casting.separation,
            evaluator_draw=session.casting.draw,
            evaluator_panel=session.casting.panel,
            warnings=tuple(session.casting.warnings),
        )
