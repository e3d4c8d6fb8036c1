"""The session: configuration, and the one place that joins the parts and closes them."""

from harness.rubric.calibration.score_figures import MeanFigure, ScoreSummary
from harness.session.agent import AgentResult
from harness.session.batch_files import BatchResult
from harness.session.batch_rows import RowFailure
from harness.session.chat import chat, chat_sync, embed, open_shim, stream
from harness.session.evaluation_run import Evaluation, EvaluationResult
from harness.session.mcp_tools import mcp
from harness.session.own_loop import refuse_running_loop, run_to_its_end
from harness.session.pipeline import Pipeline
from harness.session.rehearsal import Rehearsal, Remake, rehearse
from harness.session.result import RunEvent, RunEvents, RunResult
from harness.session.resume import EarlierRun, Origin, question_named, read_earlier_run
from harness.session.run import Run
from harness.session.session import Session, SyncSession, open, open_sync  # noqa: A004
from harness.session.settings import Settings, load_settings
from harness.session.tools import Tool, ToolResult

__all__ = [
    "AgentResult",
    "BatchResult",
    "EarlierRun",
    "Evaluation",
    "EvaluationResult",
    "MeanFigure",
    "Origin",
    "Pipeline",
    "Rehearsal",
    "Remake",
    "RowFailure",
    "Run",
    "RunEvent",
    "RunEvents",
    "RunResult",
    "ScoreSummary",
    "Session",
    "Settings",
    "SyncSession",
    "Tool",
    "ToolResult",
    "chat",
    "chat_sync",
    "embed",
    "load_settings",
    "mcp",
    "open",
    "open_shim",
    "open_sync",
    "question_named",
    "read_earlier_run",
    "refuse_running_loop",
    "rehearse",
    "run_to_its_end",
    "stream",
]
