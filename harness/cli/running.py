"""A run from the command line: its progress, its questions, its report and its exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from harness.cli.asking import TerminalAsker
from harness.cli.consoles import LogFormat, Shown, log_to_stderr, say, write_json
from harness.cli.exit_codes import FAILED, STOPPED, WAITING
from harness.cli.failures import (
    error_as_json,
    exit_code_of,
    interrupted_as_json,
    left_as_json,
)
from harness.cli.interrupts import Interrupts
from harness.cli.progress import Progress
from harness.cli.report import print_result, result_as_json, result_fields
from harness.cli.run_end import print_failure, print_to_do, resume_command
from harness.errors import HarnessError, NodeFailed
from harness.session import Origin, Pipeline, RunResult, Settings, run_to_its_end
from harness.trace import Record, RunStarted
from harness.trace.run_files import JOURNAL_SUFFIX
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


def carry_out(
    order: Callable[[], Order], *, as_json: bool, log_format: LogFormat, with_traceback: bool
) -> None:
    """Runs, reports, and ends the process with its exit code unless that is 0.

    Args:
        order: Reads what was given; may raise for what is not usable.
        as_json: Whether the report is for scripts: one JSON object, however the run ended.
        log_format: How warnings are written.
        with_traceback: Whether to say where an error was raised.
    """
    log_to_stderr(log_format)
    begun: list[Path] = []
    interrupts = Interrupts()
    try:
        result = _run(order(), begun, is_attended=not as_json and _is_terminal())
    except KeyboardInterrupt:
        say("interrupted", err=True)
        _say_way_on(begun)
        if as_json:
            _write(interrupted_as_json(run_id=_run_id(begun)))
        sys.exit(interrupts.exit_code)
    except SystemExit as error:
        # Its code would pass for one of this command's own.
        say(f"harness: {_who_left(error)}", err=True)
        _say_way_on(begun)
        if as_json:
            _write(left_as_json(error, run_id=_run_id(begun)))
        sys.exit(FAILED)
    except HarnessError as error:
        failed = error.result if isinstance(error, NodeFailed) else None
        if with_traceback:
            say("".join(traceback.format_exception(error.__cause__ or error)), err=True)
        say(f"harness: {error}", err=True)
        if as_json:
            more = result_fields(failed) if failed is not None else None
            _write(error_as_json(error, run_id=_run_id(begun), more=more))
        elif failed is not None:
            print_failure(failed, Shown(stderr=True))
        _say_way_on(begun)
        sys.exit(exit_code_of(error))
    if as_json:
        _write(result_as_json(result))
    else:
        aside = Shown(stderr=True)
        print_result(result, Shown(), aside)
        print_to_do(result, aside)
    if result.status != "finished":
        sys.exit(STOPPED if result.status == "stopped" else WAITING)


def _run(order: Order, begun: list[Path], *, is_attended: bool) -> RunResult:
    """Runs the pipeline; `begun` receives the run's journal, whatever becomes of it."""
    traces = order.resume.parent if order.resume else order.settings.traces

    def note_start(record: Record) -> None:
        if isinstance(record, RunStarted):
            begun.append(traces / f"{record.run_id}{JOURNAL_SUFFIX}")

    with (
        redirect_stdout(sys.stderr),  # what nodes print is no result
        Progress(Shown(stderr=True), order.pipeline.nodes) as progress,
    ):
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


def _who_left(error: SystemExit) -> str:
    """What to say of a node that ended the process."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return (
        f"{os.path.relpath(last.filename)}:{last.lineno}: {last.name} ended the run with "
        f"sys.exit({error.code!r}); let a node that cannot go on raise an error instead"
    )


def _run_id(begun: list[Path]) -> str | None:
    return begun[0].stem if begun else None


def _say_way_on(begun: list[Path]) -> None:
    """What to type to go on, if a run had begun."""
    if begun:
        say(f"To go on with what was done: {resume_command(begun[0])}", err=True)


def _write(data: bytes) -> None:
    write_json(data)
