"""`harness run`, and what it shares with `harness resume`: options, questions and report."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, get_args

import click

from harness.cli.arguments import (
    config_option,
    json_option,
    parsed_by,
    read_inputs,
    read_pairs,
    role_option,
    together,
)
from harness.cli.consoles import (
    Command,
    LogFormat,
    Shown,
    error_fields,
    exit_code_of,
    is_attended,
    json_object,
    note_end,
    say,
    write_json,
)
from harness.cli.process import STOPPED, UNUSABLE, WAITING
from harness.cli.progress import Progress
from harness.cli.project_files import (
    absolute_target,
    load_pipeline,
    remember_run,
    settings_for_calls,
)
from harness.cli.run_result import (
    print_failure,
    print_result,
    print_to_do,
    result_fields,
    resume_command,
)
from harness.errors import HarnessError, NodeFailed, RunLimitReached, who_left
from harness.graph import Question
from harness.inference import Limits
from harness.memory import Place, place_of
from harness.session import Origin, Pipeline, RunResult, Settings, run_to_its_end
from harness.session.demand import check_roles
from harness.session.settings import check_engine
from harness.session.trust import SETTINGS_FILE
from harness.trace import Record, RunStarted
from harness.trace.journal_reader import JOURNAL_SUFFIX

_STOP_CODES = {
    "failures": "batch.too-many-failures",
    "journal": "run.journal-failed",
    "output": "file.unwritable",
    "outage": "run.endpoint-down",
}
"""Codes by what stopped a run, other than limits that people set."""

_COUNT = click.IntRange(min=1)
_AMOUNT = click.FloatRange(min=0, min_open=True)
run_options = together(
    click.option(
        "--memory",
        # Absolute, as the run may be resumed from another directory.
        callback=parsed_by(lambda text: place_of(text).absolute()),
        metavar="DIR|URL",
        help="Store of passages for later runs, in place of [memory] path.",
    ),
    click.option("--max-tokens", type=_COUNT, help="Limit on tokens of all calls, in and out."),
    click.option("--max-cost-usd", type=_AMOUNT, help="Limit on the cost of all priced calls."),
    click.option("--max-seconds", type=_AMOUNT, help="Limit on seconds, and 1 s to wrap up."),
    click.option("--max-calls", type=_COUNT, help="Limit on calls to models."),
    click.option(
        "--log-format",
        type=click.Choice(get_args(LogFormat)),
        default="text",
        help="Format of standard error; json is one object a line, progress included.",
    ),
    click.option(
        "--traceback", "with_traceback", is_flag=True, help="Show where a node raised its error."
    ),
    click.option(
        "--on",
        "engine",
        metavar="NAME",
        callback=parsed_by(check_engine),
        help="Where nodes that ask for a worker run, in place of [execution] engine: ray, another "
        "executor that is installed, or process.",
    ),
    json_option,
)
"""Adds the options of `RunOptions` to a command."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that commands share which run a pipeline."""

    memory: Place | None
    engine: str | None
    limits: Limits
    log_format: LogFormat
    with_traceback: bool
    as_json: bool

    @classmethod
    def taken_from(cls, arguments: dict[str, Any]) -> Self:
        """Takes the options out of all arguments of a command, by their names."""
        limits = Limits(**{limit.name: arguments.pop(limit.name) for limit in fields(Limits)})
        names = {field.name for field in fields(cls)} - {"limits"}
        return cls(limits=limits, **{name: arguments.pop(name) for name in names})


@click.command(cls=Command)
@click.argument("target", metavar="FILE.py|NAME")
@click.option("--task", help="Short for --set task=…")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input, as text or as JSON; NAME=@FILE reads it from a file. May be repeated.",
)
@config_option
@role_option
@click.option(
    "--seed",
    type=click.IntRange(min=0, max=1_999),
    help="Make the run repeatable: calls get seeds, and an embedded model one call at a time.",
)
@run_options
def run(
    *,
    target: str,
    task: str | None,
    assignments: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
    seed: int | None,
    **arguments: Any,  # noqa: ANN401 - of `RunOptions`
) -> None:
    """Run the pipeline in FILE.py, or one by its NAME: of pipelines/, or a shipped pattern.

    FILE.py:PIPELINE picks one of several in a file. At a terminal, questions of nodes are asked
    here; otherwise the run ends, and harness resume goes on with the answer.

    Exit codes: 0 the run finished (whether or not its rubric was met: --json says "passed"), 1 it
    failed, 2 invalid input, 3 it was stopped at a limit, 4 it waits for an answer, 130 interrupted,
    143 terminated. After any of them but 0 and 2, harness resume goes on; after 2, if a node found
    the input invalid, it goes on once that is mended.
    """
    options = RunOptions.taken_from(arguments)
    with failures_of_run(options) as started:
        settings_file = Path(SETTINGS_FILE)
        origin = Origin(
            target=target,
            # The default file by its name, so that it is read wherever the run is resumed.
            config=config or (settings_file if settings_file.exists() else None),
            roles=read_pairs(roles, option="--role", form="role=tag"),
            memory=options.memory,
            seed=seed,
            engine=options.engine,
            limits=options.limits,
        )
        task_input = [f"task={task}"] if task is not None else []
        order = order_of(origin, [*task_input, *assignments])
        result = perform(order, started, as_json=options.as_json)
    report(result, as_json=options.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A run to be carried out; fields as for `Pipeline.run_async`."""

    pipeline: Pipeline
    inputs: Mapping[str, object]
    settings: Settings
    origin: Origin
    resume: Path | None = None
    """The journal of the run to go on with; None for a new run."""
    answers: Mapping[str, object] | None = None


def order_of(
    origin: Origin,
    assignments: Sequence[str],
    *,
    resume: Path | None = None,
    answers: Mapping[str, object] | None = None,
) -> Order:
    """Reads the inputs, the settings and the pipeline that a command line names."""
    inputs = read_inputs(assignments)
    settings = settings_for_calls(
        origin.config,
        roles=origin.roles,
        memory=origin.memory,
        seed=origin.seed,
        engine=origin.engine,
    )
    # Before the target runs: code that runs is trusted, and would not be remembered.
    remember_run(origin.target, origin.config)
    pipeline = load_pipeline(origin.target)
    check_roles(origin.roles, pipeline)
    return Order(
        pipeline=pipeline,
        inputs=inputs,
        settings=settings,
        origin=replace(
            origin,
            target=absolute_target(origin.target),
            config=origin.config and origin.config.absolute(),
        ),
        resume=resume,
        answers=answers,
    )


@dataclass(slots=True)
class StartedRun:
    """Receives the journal of the run once it has begun."""

    journal: Path | None = None


@contextmanager
def failures_of_run(options: RunOptions) -> Iterator[StartedRun]:
    """Adds what is known of the run to an error in the block, which `Command` tells."""
    started = StartedRun()
    try:
        yield started
    except (HarnessError, KeyboardInterrupt) as error:
        if isinstance(error, HarnessError) and options.with_traceback:
            say("".join(traceback.format_exception(error.__cause__ or error)), err=True)
        if started.journal is not None:
            error_fields()["run_id"] = started.journal.stem
        if isinstance(error, NodeFailed) and error.result is not None:
            error_fields().update(result_fields(error.result))
        # Below the error.
        end = partial(_print_end, error, started.journal, as_json=options.as_json)
        click.get_current_context().call_on_close(end)
        raise


def _print_end(error: BaseException, journal: Path | None, *, as_json: bool) -> None:
    if isinstance(error, NodeFailed) and error.result is not None and not as_json:
        print_failure(error.result, Shown(stderr=True))
    if journal is not None:
        # What cannot be used fails a resumed run in the same way.
        is_input = isinstance(error, HarnessError) and exit_code_of(error) == UNUSABLE
        purpose = "Once that is mended, to" if is_input else "To"
        say(f"{purpose} go on with what was done: {resume_command(journal)}", err=True)


def report(result: RunResult, *, as_json: bool) -> None:
    """Prints a run's result, and ends the process with its exit code unless that is 0."""
    if as_json:
        write_json(json_object(result_fields(result)))
    else:
        aside = Shown(stderr=True)
        print_result(result, Shown(of_result=True), aside)
        print_to_do(result, aside)
    if result.status == "stopped":
        note_stop(result)
        sys.exit(STOPPED)
    if result.status != "finished":
        asked = "; ".join(f"{question.key}: {question.text}" for question in result.questions)
        note_end(f"the run waits for an answer: {asked}", code="run.waiting", level="warning")
        sys.exit(WAITING)


def note_stop(result: RunResult, *, is_wrong: bool = False) -> None:
    """Tells a program what stopped a run: a limit is no error, unless something else is wrong."""
    code = _STOP_CODES.get(str(result.limit), RunLimitReached.code)
    is_error = is_wrong or code != RunLimitReached.code
    level: Literal["warning", "error"] = "error" if is_error else "warning"
    note_end(f"stopped: {result.stopped_by}", code=code, level=level)


def perform(order: Order, started: StartedRun, *, as_json: bool) -> RunResult:
    """Runs the pipeline, shows its progress, and asks questions of nodes at the terminal."""
    traces = order.resume.parent if order.resume else order.settings.traces

    def note_start(record: Record) -> None:
        if isinstance(record, RunStarted):
            started.journal = traces / f"{record.run_id}{JOURNAL_SUFFIX}"

    with Progress(Shown(stderr=True), order.pipeline.nodes) as progress, left_as_error():
        return run_to_its_end(
            order.pipeline.run_async(
                order.inputs,
                resume=order.resume,
                answers=order.answers,
                asker=TerminalAsker(progress) if is_attended() and not as_json else None,
                settings=order.settings,
                observers=[note_start, progress.observe],
                origin=order.origin,
            )
        )


@contextmanager
def left_as_error() -> Iterator[None]:
    """Turns a node's `sys.exit`, whose code would pass for one of the command's, into an error."""
    try:
        yield
    except SystemExit as error:
        raise HarnessError(who_left(error), code="run.left") from error


class TerminalAsker:
    """Puts questions to the person at the terminal, one at a time, with the progress hidden."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._turn = asyncio.Lock()

    async def __call__(self, question: Question) -> str | None:
        """An answer, of whatever form; None when the input has ended (Ctrl-D)."""
        async with self._turn:
            with self._progress.paused():
                # `NodeCall.ask` puts the question again after an answer of the wrong form.
                if question.problem:
                    say(question.problem, err=True)
                say(f"{question.node} asks: {question.text}", err=True)
                say(f"({question.form_with_fields}) ", nl=False, err=True)
                line = await _next_line()
                if not line:
                    say(err=True)
                    return None
                return line.strip()


async def _next_line() -> str:
    # Not in a thread, which could not be stopped while it waits.
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sys.stdin.fileno())
    return sys.stdin.readline()
