"""`harness run`: a pipeline file, from its inputs to its report."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click
import structlog
from rich.console import Console

from harness.cli.pipeline_file import load_pipeline
from harness.cli.progress import Progress
from harness.cli.report import print_result, result_as_json
from harness.cli.values import read_values
from harness.errors import HarnessError, InvalidInput, NodeFailed
from harness.graph import bind_inputs
from harness.session import RunResult, load_settings

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


@click.command()
@click.argument("target", metavar="FILE.py")
@click.option("--task", help="Short for --set task=…")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input; NAME=@FILE reads it from a file. May be repeated.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="Settings; harness.toml in this directory when left out.",
)
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="ROLE=TAG",
    help="Which endpoint's model plays a role, in place of [roles]. May be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def run(
    target: str,
    task: str | None,
    assignments: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Run the pipeline in FILE.py, or a shipped pattern by its name.

    FILE.py:NAME says which, where a file has several. Exit codes: 0 the run finished (whether or
    not its rubric was met: --json says "passed"), 1 it failed, 2 something given is not usable,
    130 interrupted.
    """
    _log_to_stderr()
    try:
        result = _run(target, task, assignments, config, roles)
    except KeyboardInterrupt:
        click.echo("interrupted; the journal holds what was done", err=True)
        sys.exit(INTERRUPTED)
    except HarnessError as error:
        click.echo(f"harness: {error}", err=True)
        sys.exit(UNUSABLE if _is_users_mistake(error) else FAILED)
    if as_json:
        sys.stdout.buffer.write(result_as_json(result))
    else:
        print_result(result, Console())


def _run(
    target: str,
    task: str | None,
    assignments: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
) -> RunResult:
    inputs = read_values([*([f"task={task}"] if task is not None else []), *assignments])
    settings = load_settings(config, environment=os.environ, roles=read_values(roles))
    pipeline = load_pipeline(target)
    bind_inputs(pipeline, inputs)
    with Progress(Console(stderr=True), pipeline.nodes) as progress:
        return asyncio.run(
            pipeline.run_async(inputs, settings=settings, observers=[progress.observe])
        )


def _is_users_mistake(error: HarnessError) -> bool:
    """Whether what was given caused it, be it that a node found out."""
    cause = error.__cause__ if isinstance(error, NodeFailed) else error
    return isinstance(cause, InvalidInput)


def _log_to_stderr() -> None:
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
