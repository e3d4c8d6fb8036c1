"""What a notebook does to a pipeline: cells are run again, and values are shown."""

from __future__ import annotations

import sys

import pytest

from harness import Pipeline
from harness.errors import PipelineInvalid
from harness.graph.picture import as_mermaid, drawing_of


@pytest.fixture
def cell(monkeypatch):
    """Runs code as a cell of a notebook."""
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    graph = Pipeline("notes")
    names = {"__name__": "__main__", "graph": graph}

    def cell(code):
        exec(code, names)
        return graph

    return cell


def test_a_cell_that_is_run_again_replaces_its_node_in_its_place(cell):
    cell("@graph.node\ndef plan() -> str: return 'old'")
    cell("@graph.node\ndef text(plan: str) -> str: return plan")
    graph = cell("@graph.node\ndef plan() -> str: return 'new'")
    assert list(graph.nodes) == ["plan", "text"]
    assert graph.nodes["plan"].function() == "new"


def test_a_run_after_such_a_cell_calls_the_new_function(cell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outputs = [
        cell(f"@graph.node\nasync def plan() -> str: return {text!r}").run().outputs["plan"]
        for text in ("old", "new")
    ]
    assert outputs == ["old", "new"]


def test_a_change_that_closes_a_cycle_leaves_the_node_as_it_was(cell):
    cell("@graph.node\ndef plan() -> str: return 'old'")
    cell("@graph.node\ndef text(plan: str) -> str: return plan")
    with pytest.raises(PipelineInvalid, match="closes a cycle: plan → text → plan"):
        cell("@graph.node\ndef plan(text: str) -> str: return text")
    assert cell("").nodes["plan"].function() == "old"


def test_at_a_prompt_a_node_that_is_entered_again_is_replaced():
    graph = Pipeline("notes")
    names = {"__name__": "__main__", "graph": graph}
    for text in ("old", "new"):
        code = f"@graph.node\ndef plan() -> str: return {text!r}"
        exec(compile(code, "<console>", "exec"), names)
    assert graph.nodes["plan"].function() == "new"


def test_in_a_file_two_nodes_of_one_name_are_a_mistake():
    graph = Pipeline("notes")
    graph.node(lambda: 1, name="plan")
    with pytest.raises(PipelineInvalid, match="two nodes called 'plan'"):
        graph.node(lambda: 2, name="plan")


def test_the_value_of_a_cell_is_a_flowchart_for_notebooks_that_draw_one_and_text_for_others(cell):
    cell("@graph.node\ndef rows(topic: str) -> list[str]: return [topic]")
    graph = cell("@graph.node(each={'row': 'rows'})\ndef draft(row: str) -> str: return row")
    text = as_mermaid(drawing_of(graph))
    bundle = graph._repr_mimebundle_(include=None, exclude=None)
    assert bundle == {"text/vnd.mermaid": text, "text/plain": text}
