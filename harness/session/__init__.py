"""The session: configuration, and the one place where the parts are joined and closed."""

from harness.session.chat import chat, count_tokens, embed, open_shim
from harness.session.evaluator_pool import EvaluatorDraw, EvaluatorPanel
from harness.session.pipeline import Pipeline
from harness.session.result import RunFiles, RunResult
from harness.session.run import Run
from harness.session.separation import Separation
from harness.session.session import Session, open_session
from harness.session.settings import Settings, load_settings

__all__ = [
    "EvaluatorDraw",
    "EvaluatorPanel",
    "Pipeline",
    "Run",
    "RunFiles",
    "RunResult",
    "Separation",
    "Session",
    "Settings",
    "chat",
    "count_tokens",
    "embed",
    "load_settings",
    "open_session",
    "open_shim",
]
