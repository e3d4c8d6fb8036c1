"""`harness run`: a pipeline file, from its inputs to its report."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click
from rich.console import Console

from harness.cli.consoles import log_to_stderr
from harness.cli.interrupts import Interrupts
from harness.cli.pipeline_file import load_pipeline
from harness.cli.progress import Progress
from harness.cli.report import error_as_json, exit_code_of, print_result, result_as_json
from harness.cli.values import read_inputs, read_pairs
from harness.errors import HarnessError
from harness.session import RunResult, load_settings
from harness.trace import Record, RunStarted


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
    130 interrupted, 143 terminated.
    """
    log_to_stderr()
    begun: list[RunStarted] = []
    interrupts = Interrupts()
    try:
        result = _run(target, task, assignments, config, roles, begun=begun)
    except KeyboardInterrupt:
        click.echo(f"interrupted{_journal_of(begun)}", err=True)
        sys.exit(interrupts.exit_code)
    except HarnessError as error:
        click.echo(f"harness: {error}{_journal_of(begun)}", err=True)
        if as_json:
            sys.stdout.buffer.write(error_as_json(error, run_id=begun[0].run_id if begun else None))
        sys.exit(exit_code_of(error))
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
    *,
    begun: list[RunStarted],
) -> RunResult:
    """Runs the pipeline; `begun` receives the run's first record, whatever becomes of it."""
    inputs = read_inputs([*([f"task={task}"] if task is not None else []), *assignments])
    settings = load_settings(
        config,
        environment=os.environ,
        roles=read_pairs(roles, option="--role", form="role=tag"),
    )
    pipeline = load_pipeline(target)

    def note_start(record: Record) -> None:
        if isinstance(record, RunStarted):
            begun.append(record)

    with Progress(Console(stderr=True), pipeline.nodes) as progress:
        return asyncio.run(
            pipeline.run_async(inputs, settings=settings, observers=[note_start, progress.observe])
        )


def _journal_of(begun: list[RunStarted]) -> str:
    """Where to look for what was done, if a run had begun; the end of a message."""
    return f" (what was done is in the journal of run {begun[0].run_id})" if begun else ""
