"""What a run gives back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import shorten

from harness.errors import Notice
from harness.graph import (
    Execution,
    Graph,
    NodeFailure,
    NodeSkip,
    Question,
    Rerun,
    RunStatus,
    Skipped,
)
from harness.session.evaluator_pool import EvaluatorDraw, EvaluatorPanel
from harness.session.separation import Separation
from harness.trace import CallGroup
from harness.wiggum import NOTHING, RecordedLoop, Spent, WiggumResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What a run leaves on disk."""

    journal: Path
    """Every record, one per line; of a run that was resumed, those of its first part."""
    chrome_trace: Path | None
    """The timeline as Chrome Trace JSON; None when the settings want none."""
    perfetto_trace: Path | None
    """The timeline as Perfetto's own format; None when the settings want none."""
    audit_log: Path
    """One line per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run that came to its end: finished, failed, stopped at a limit, or waiting for a person."""

    run_id: str
    """Its name."""
    pipeline: str
    """What was run."""
    status: RunStatus = "finished"
    """How it ended."""
    outputs: Mapping[str, object]
    """What every node gave that gave something; `Skipped` where one was skipped."""
    result: object
    """What the pipeline's result node returned: the last one, or the one that `Pipeline(result=…)`
    names. None when that gave nothing; when it was skipped, a warning says so."""
    failures: tuple[NodeFailure, ...] = ()
    """What failed, in the order it did."""
    skips: tuple[NodeSkip, ...] = ()
    """What was left out, and why."""
    questions: tuple[Question, ...] = ()
    """What waits for an answer."""
    stopped_by: str | None = None
    """The limit that ended it, in words."""
    reused: tuple[str, ...] = ()
    """Calls of nodes that were not made, since an earlier part of the run, or another run where the
    node has a `Cache`, has what they gave."""
    reruns: tuple[Rerun, ...] = ()
    """Calls that were made again although an earlier part of the run has what they gave, and why.
    """
    retries: Mapping[str, int] = field(default_factory=dict)
    """How often a call of a node, or calls of a model, were tried again in the last part, by name.
    """
    replies_used_again: int = 0
    """Replies of models that were kept from earlier parts, for nodes that had not ended then."""
    parts: int = 1
    """How often it was begun: once, and once more whenever it was resumed."""
    had_finished: bool = False
    """Whether there was nothing left to do, so that it was not begun again."""
    loops: tuple[WiggumResult, ...]
    """Every revise loop, in the order they ended; when the run was resumed, those since then."""
    earlier_loops: tuple[RecordedLoop, ...] = ()
    """Those that had ended before the run was resumed, in nodes that were not called again."""
    models: tuple[CallGroup, ...]
    """What each model was used for, and how fast it was, over all parts of the run."""
    spent: Spent = NOTHING
    """What all parts of the run took together, of models and of time."""
    duration_s: float
    """From start to end, loading included, of the last part."""
    files: RunFiles
    """What it left on disk."""
    separation: Separation | None = None
    """How far producer and evaluators were apart; None when nobody evaluates."""
    evaluator_draw: EvaluatorDraw | None = None
    """How the evaluator was drawn; None when none was."""
    evaluator_panel: EvaluatorPanel | None = None
    """Who judged together; None when one judged alone, or nobody."""
    warnings: tuple[Notice, ...] = ()
    """What is to be kept in mind about the run."""

    def __repr__(self) -> str:
        """What a person wants to see of it."""
        result = shorten(repr(self.result), 80, placeholder=" …")
        return (
            f"RunResult({self.pipeline!r}, {self.status!r}, run_id={self.run_id!r}, "
            f"result={result}, calls={self.spent.calls}, duration_s={self.duration_s:.1f})"
        )

    @property
    def passed(self) -> bool | None:
        """Whether the run finished and every loop met its rubric.

        None if it finished without a loop, so that nothing was judged.
        """
        if self.status != "finished":
            return False
        return all_passed([*self.earlier_loops, *self.loops])


def all_passed(loops: Sequence[WiggumResult | RecordedLoop]) -> bool | None:
    """Whether every loop met its rubric; None if there are no loops."""
    return all(loop.passed for loop in loops) if loops else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What a pipeline gave that a node called."""

    outputs: Mapping[str, object]
    """What every node returned."""
    result: object
    """What its result node returned; see `RunResult.result`."""


def result_of(graph: Graph, ended: Execution) -> object:
    """What the result node returned; None when it gave nothing."""
    given = ended.outputs.get(graph.result_node)
    return None if isinstance(given, Skipped) else given


def result_notices(graph: Graph, ended: Execution) -> Iterator[Notice]:
    """That there is no result since its node was skipped, if so."""
    given = ended.outputs.get(graph.result_node)
    if isinstance(given, Skipped):
        yield Notice(
            code="run.result-skipped",
            message=f"there is no result: its node '{graph.result_node}' was skipped "
            f'({given.reason}); if another gives it, write Pipeline(…, result="…")',
        )
