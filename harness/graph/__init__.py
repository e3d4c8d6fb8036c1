"""Pipelines as graphs of functions: definition, checks, execution. Knows no models.

A function on its way to a call, and what each class adds:

- `Node` (`node.py`): its name, the sources of its parameters, its policies.
- `Step` (`plan.py`): its code's digest, the forms of its outputs, the steps that take them.
- `StepState` (`state.py`): in one run of a graph, its outputs so far.
- `StepCall` (`state.py`): for the node or one item, the inputs, the place, what the call used.
- `NodeCall` (`node_call.py`): the attempts, and what a node may do by its `run`.
- `Work` (`executor.py`): function and arguments of one attempt, for an executor.
- `PackedCall` (`worker_calls.py`): the same, pickled for a worker.
"""

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
    "Answers", "Asker", "Cache", "Concurrency", "Default", "Earlier", "Execution", "Graph",
    "InProcess", "NodeCall", "NodeFailure", "NodeSkip", "OnError", "Question", "Rerun", "Resources",
    "Retry", "RunStatus", "Skipped", "Timeout", "Work", "bind_inputs", "execute", "graph_inputs",
]  # fmt: skip
