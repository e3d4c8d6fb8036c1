"""What a run gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.session.evaluator_pool import EvaluatorDraw, EvaluatorPanel
from harness.session.separation import Separation
from harness.trace import CallGroup
from harness.wiggum import WiggumResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """What a run leaves on disk."""

    journal: Path
    """Every record, one per line."""
    chrome_trace: Path | None
    """The timeline as Chrome Trace JSON; None when the settings want none."""
    perfetto_trace: Path | None
    """The timeline as Perfetto's own format; None when the settings want none."""
    audit_log: Path
    """One line per run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished run."""

    run_id: str
    """Its name."""
    pipeline: str
    """What was run."""
    outputs: Mapping[str, object]
    """What every node returned."""
    result: object
    """What the last node returned."""
    loops: tuple[WiggumResult, ...]
    """Every revise loop, in the order they ended."""
    models: tuple[CallGroup, ...]
    """What each model was used for, and how fast it was."""
    duration_s: float
    """From start to end, loading included."""
    files: RunFiles
    """What it left on disk."""
    separation: Separation | None = None
    """How far producer and evaluators were apart; None when nobody evaluates."""
    evaluator_draw: EvaluatorDraw | None = None
    """How the evaluator was drawn; None when none was."""
    evaluator_panel: EvaluatorPanel | None = None
    """Who judged together; None when one judged alone, or nobody."""
    warnings: tuple[str, ...] = ()
    """What is to be kept in mind about the run."""

    @property
    def passed(self) -> bool:
        """Whether every loop met its rubric; true when there was none."""
        return all(loop.passed for loop in self.loops)
