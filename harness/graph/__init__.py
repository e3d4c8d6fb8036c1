"""Pipelines as graphs of functions: definition, checks, execution. Knows no models."""

from harness.graph.executor import execute
from harness.graph.graph import Graph
from harness.graph.inputs import Input, bind_inputs, graph_inputs
from harness.graph.node import Node, Parameter

__all__ = ["Graph", "Input", "Node", "Parameter", "bind_inputs", "execute", "graph_inputs"]
