"""The session: configuration, and the one place where the parts are joined and closed."""

from harness.session.chat import chat, embed, open_shim
from harness.session.pipeline import Pipeline, refuse_running_loop, run_to_its_end
from harness.session.rehearsal import Rehearsal, Remake, rehearse
from harness.session.result import CallResult, RunFiles, RunResult
from harness.session.resume import EarlierRun, Origin, only_question, read_earlier_run
from harness.session.run import Run
from harness.session.separation import EvaluatorDraw, EvaluatorPanel, Separation
from harness.session.session import Session, open_session
from harness.session.settings import Settings, load_settings

__all__ = [
    "CallResult",
    "EarlierRun",
    "EvaluatorDraw",
    "EvaluatorPanel",
    "Origin",
    "Pipeline",
    "Rehearsal",
    "Remake",
    "Run",
    "RunFiles",
    "RunResult",
    "Separation",
    "Session",
    "Settings",
    "chat",
    "embed",
    "load_settings",
    "only_question",
    "open_session",
    "open_shim",
    "read_earlier_run",
    "refuse_running_loop",
    "rehearse",
    "run_to_its_end",
]
