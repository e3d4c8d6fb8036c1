"""One model writes, another judges, and a draft is revised until a rubric is met.

The names below are the library's promise. They are imported when first used, so that
`import harness` costs next to nothing and a program pays only for what it touches.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from harness.version import __version__

if TYPE_CHECKING:
    from harness.errors import HarnessError, NodeFailed, Notice, ReplyCut
    from harness.graph import (
        Cache,
        Concurrency,
        Default,
        Question,
        Resources,
        Retry,
        Skipped,
        Timeout,
    )
    from harness.inference import (
        ChatOptions,
        ChatRequest,
        Completion,
        Embeddings,
        EmbedRequest,
        Endpoint,
        Image,
        Limits,
        Message,
        OnCut,
        ScriptedBackend,
        ScriptedReply,
        TextStream,
        ToolCall,
        ToolSpec,
        Usage,
    )
    from harness.memory import Hit, MemoryStore, Passage, Turn
    from harness.metrics import Metrics
    from harness.rubric import Draft, Finding, Rubric, Verdict, load_rubric
    from harness.rubric.checks import Check, Grade, Match
    from harness.session import (
        AgentResult,
        BatchResult,
        Evaluation,
        EvaluationResult,
        MeanFigure,
        Pipeline,
        RowFailure,
        Run,
        RunEvent,
        RunEvents,
        RunResult,
        ScoreSummary,
        Session,
        Settings,
        SyncSession,
        Tool,
        ToolResult,
        chat,
        chat_sync,
        embed,
        load_settings,
        mcp,
        open,  # noqa: A004 - harness.open, as gzip.open is
        open_shim,
        open_sync,
        stream,
    )
    from harness.trace import (
        Exporter,
        ExportTarget,
        Journal,
        RunTrace,
        TraceOptions,
        add_run_context,
    )
    from harness.wiggum import Round, Tried, WiggumResult, rounds_from

__all__ = [
    "AgentResult",
    "BatchResult",
    "Cache",
    "ChatOptions",
    "ChatRequest",
    "Check",
    "Completion",
    "Concurrency",
    "Default",
    "Draft",
    "EmbedRequest",
    "Embeddings",
    "Endpoint",
    "Evaluation",
    "EvaluationResult",
    "ExportTarget",
    "Exporter",
    "Finding",
    "Grade",
    "HarnessError",
    "Hit",
    "Image",
    "Journal",
    "Limits",
    "Match",
    "MeanFigure",
    "MemoryStore",
    "Message",
    "Metrics",
    "NodeFailed",
    "Notice",
    "OnCut",
    "Passage",
    "Pipeline",
    "Question",
    "ReplyCut",
    "Resources",
    "Retry",
    "Round",
    "RowFailure",
    "Rubric",
    "Run",
    "RunEvent",
    "RunEvents",
    "RunResult",
    "RunTrace",
    "ScoreSummary",
    "ScriptedBackend",
    "ScriptedReply",
    "Session",
    "Settings",
    "Skipped",
    "SyncSession",
    "TextStream",
    "Timeout",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "TraceOptions",
    "Tried",
    "Turn",
    "Usage",
    "Verdict",
    "WiggumResult",
    "__version__",
    "add_run_context",
    "chat",
    "chat_sync",
    "embed",
    "load_rubric",
    "load_settings",
    "mcp",
    "open",
    "open_shim",
    "open_sync",
    "rounds_from",
    "stream",
]

_HOMES = {
    "errors": "HarnessError NodeFailed Notice ReplyCut",
    "graph": "Cache Concurrency Default Question Resources Retry Skipped Timeout",
    "inference": (
        "ChatOptions ChatRequest Completion EmbedRequest Embeddings Endpoint Image Limits "
        "Message OnCut ScriptedBackend ScriptedReply TextStream ToolCall ToolSpec Usage"
    ),
    "memory": "Hit MemoryStore Passage Turn",
    "metrics": "Metrics",
    "rubric": "Draft Finding Rubric Verdict load_rubric",
    "rubric.checks": "Check Grade Match",
    "session": (
        "AgentResult BatchResult Evaluation EvaluationResult MeanFigure Pipeline RowFailure Run "
        "RunEvent RunEvents RunResult ScoreSummary Session Settings SyncSession Tool ToolResult "
        "chat chat_sync embed load_settings mcp open open_shim open_sync stream"
    ),
    "trace": "ExportTarget Exporter Journal RunTrace TraceOptions add_run_context",
    "wiggum": "Round Tried WiggumResult rounds_from",
}
_HOME_OF = {name: f"harness.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    """Imports a public name from its home (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    value = getattr(import_module(_HOME_OF[name]), name)
    # From now on Python finds it there, and does not ask here again.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
