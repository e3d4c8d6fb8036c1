"""A run from the command line: its progress, its questions, its report and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console

from harness.cli.asking import TerminalAsker
from harness.cli.consoles import log_to_stderr
from harness.cli.exit_codes import STOPPED, WAITING
from harness.cli.interrupts import Interrupts
from harness.cli.progress import Progress
from harness.cli.report import (
    error_as_json,
    exit_code_of,
    interrupted_as_json,
    print_result,
    result_as_json,
)
from harness.cli.run_end import print_failure, print_to_do, resume_command
from harness.errors import HarnessError, NodeFailed
from harness.session import Origin, Pipeline, RunResult, Settings, run_to_its_end
from harness.trace import Record, RunStarted
from harness.wiggum import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is to be run."""

    pipeline: Pipeline
    """Which pipeline."""
    inputs: Mapping[str, object]
    """Its inputs, as far as they are given."""
    settings: Settings
    """With which models."""
    limits: Limits
    """What it may take."""
    origin: Origin
    """Where all that is from."""
    resume: Path | None = None
    """The journal of the run to go on with; None for a new run."""
    answers: Mapping[str, object] | None = None
    """To that run's questions."""


def carry_out(order: Callable[[], Order], *, as_json: bool) -> None:
    """Runs, reports, and ends the process with its exit code unless that is 0.

    Args:
        order: Reads what was given; may raise for what is not usable.
        as_json: Whether the report is for scripts: one JSON object, however the run ended.
    """
    log_to_stderr()
    begun: list[RunStarted] = []
    interrupts = Interrupts()
    try:
        result = _run(order(), begun, is_attended=not as_json and _is_terminal())
    except KeyboardInterrupt:
        click.echo(f"interrupted{_way_on(begun)}", err=True)
        if as_json:
            _write(interrupted_as_json(run_id=_run_id(begun)))
        sys.exit(interrupts.exit_code)
    except HarnessError as error:
        failed = error.result if isinstance(error, NodeFailed) else None
        click.echo(f"harness: {error}{_way_on(begun)}", err=True)
        if as_json:
            _write(error_as_json(error, run_id=_run_id(begun), result=failed))
        elif failed is not None:
            print_failure(failed, Console(stderr=True))
        sys.exit(exit_code_of(error))
    if as_json:
        _write(result_as_json(result))
    else:
        print_result(result, Console())
        print_to_do(result, Console(stderr=True))
    if result.status != "finished":
        sys.exit(STOPPED if result.status == "stopped" else WAITING)


def _run(order: Order, begun: list[RunStarted], *, is_attended: bool) -> RunResult:
    """Runs the pipeline; `begun` receives the run's first record, whatever becomes of it."""

    def note_start(record: Record) -> None:
        if isinstance(record, RunStarted):
            begun.append(record)

    with Progress(Console(stderr=True), order.pipeline.nodes) as progress:
        return run_to_its_end(
            order.pipeline.run_async(
                order.inputs,
                resume=order.resume,
                answers=order.answers,
                asker=TerminalAsker(progress) if is_attended else None,
                limits=order.limits,
                settings=order.settings,
                observers=[note_start, progress.observe],
                origin=order.origin,
            )
        )


def _is_terminal() -> bool:
    """Whether somebody is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _run_id(begun: list[RunStarted]) -> str | None:
    return begun[0].run_id if begun else None


def _way_on(begun: list[RunStarted]) -> str:
    """Where what was done is, and how to go on, if a run had begun; the end of a message."""
    if not begun:
        return ""
    run_id = begun[0].run_id
    return f" (what was done is in the journal of run {run_id}; go on: {resume_command(run_id)})"


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
