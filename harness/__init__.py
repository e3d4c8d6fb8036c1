"""One model writes, another judges, and a draft is revised until a rubric is met.

The names below are the library's promise. They are imported when first used, so that
`import harness` costs next to nothing and a program pays only for what it touches. Type checkers
read them in `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module

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
    "version": "__version__",
    "wiggum": "Round Tried WiggumResult rounds_from",
}
_HOME_OF = {name: f"harness.{home}" for home, names in _HOMES.items() for name in names.split()}
__all__ = sorted(_HOME_OF)  # noqa: PLE0605 - names, by the table


def __getattr__(name: str) -> object:
    """Imports a public name from its home (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'harness' has no attribute '{name}'")
    value = getattr(import_module(_HOME_OF[name]), name)
    # From now on Python finds the name in the module, and does not call this function for it.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
