"""`harness graph`: a pipeline's nodes and edges, as Mermaid or JSON."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.arguments import find_journal, json_option, traces_option
from harness.cli.consoles import failures_told, json_object, log_to_stderr, say, write_json
from harness.cli.project_files import load_pipeline_to_read
from harness.errors import InvalidInput
from harness.graph import Graph
from harness.graph.picture import RunSeen, as_mermaid, drawing_of, run_seen
from harness.trace import Journal


@click.command()
@click.argument("target", metavar="FILE.py")
@click.option("--run", metavar="RUN", help="Show a run's times and its critical path.")
@traces_option
@json_option
def graph(target: str, run: str | None, traces: Path | None, *, as_json: bool) -> None:
    """Draw the pipeline in FILE.py, or a shipped pattern by its name, as a Mermaid flowchart.

    FILE.py:NAME picks one of several in a file; RUN is a run's id, a part of it, one of its files,
    or "latest". Exit codes: 0 it is drawn, 2 invalid input, such as a pipeline with a mistake.
    """
    log_to_stderr()
    with failures_told(as_json=as_json, of_journals=True):
        pipeline = load_pipeline_to_read(target)
        pipeline.check()
        drawing = drawing_of(pipeline, _seen(run, traces, pipeline) if run else None)
    if as_json:
        write_json(json_object(drawing))
    else:
        say(as_mermaid(drawing), nl=False)


def _seen(run: str, traces: Path | None, pipeline: Graph) -> RunSeen:
    """What a run made of the pipeline.

    Raises:
        InvalidInput: There is no such run, or it was of another pipeline.
        JournalInvalid: Its journal cannot be read.
    """
    path = find_journal(run, traces)
    journal = Journal(path)
    if journal.started.name != pipeline.name:
        raise InvalidInput(
            f"a run of the pipeline '{journal.started.name}', and not of '{pipeline.name}'; "
            "harness runs lists the others",
            code="run.other-pipeline",
            path=path,
        )
    return run_seen(journal)
