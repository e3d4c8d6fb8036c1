"""Pipelines as graphs of functions: definition, checks, execution. Knows no models."""

from harness.graph.execution import execute
from harness.graph.executor import InProcess, Work
from harness.graph.graph import Graph, bind_inputs, graph_inputs
from harness.graph.node_call import Answers, NodeCall
from harness.graph.outcome import (
    Asker,
    Execution,
    NodeFailure,
    NodeSkip,
    Question,
    Rerun,
    RunStatus,
    Skipped,
)
from harness.graph.policies import Cache, Concurrency, Default, OnError, Resources, Retry, Timeout
from harness.graph.reuse import Earlier

__all__ = [
    "Answers",
    "Asker",
    "Cache",
    "Concurrency",
    "Default",
    "Earlier",
    "Execution",
    "Graph",
    "InProcess",
    "NodeCall",
    "NodeFailure",
    "NodeSkip",
    "OnError",
    "Question",
    "Rerun",
    "Resources",
    "Retry",
    "RunStatus",
    "Skipped",
    "Timeout",
    "Work",
    "bind_inputs",
    "execute",
    "graph_inputs",
]
