"""`harness graph`: a pipeline's nodes and edges, as Mermaid or JSON."""

from __future__ import annotations

import click

from harness.cli.arguments import json_option
from harness.cli.consoles import Command, say, show
from harness.cli.project_files import load_pipeline_to_read
from harness.graph.picture import as_mermaid, drawing_of


@click.command(cls=Command)
@click.argument("target", metavar="FILE.py")
@json_option
def graph(target: str, *, as_json: bool) -> None:
    """Draw the pipeline in FILE.py, or a shipped pattern by its name, as a Mermaid flowchart.

    FILE.py:NAME picks one of several in a file; harness view draws a run's graph, with its times.
    Exit codes: 0 it is drawn, 2 invalid input, such as a pipeline with a mistake.
    """
    pipeline = load_pipeline_to_read(target)
    pipeline.check()
    drawing = drawing_of(pipeline)
    show(drawing, lambda drawing, _: say(as_mermaid(drawing), nl=False), as_json=as_json)
