"""`harness`: the command and its subcommands.

Exit codes: 0 the run finished; 1 it failed; 2 invalid input; 3 it was stopped at a limit; 4 it
waits for an answer; 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise

import click

from harness.cli.process import FAILED, INTERRUPTED, LazyGroup, steady_streams
from harness.files import shipped_directory
from harness.version import __version__

_COMMANDS = {
    "advise": ("harness.advise.advise_command:advise", "Say what fits, and how quick it is."),
    "batch": ("harness.cli.batch_command:batch", "Run a pipeline over the rows of a table."),
    "endpoints": ("harness.cli.endpoints:endpoints", "Check the configured endpoints."),
    "evaluate": ("harness.cli.batch_command:evaluate", "Score outputs on a data set."),
    "graph": ("harness.cli.graph_command:graph", "Draw a pipeline as a flowchart."),
    "init": ("harness.cli.new_project:init", "Make a project: a pipeline, its rubric, its test."),
    "memory": ("harness.cli.memory:memory", "Store passages, and search them."),
    "models": ("harness.cli.endpoints:models", "Plan, list and unload models."),
    "new": ("harness.cli.new_project:new", "Begin a pipeline, a pattern or a rubric."),
    "resume": ("harness.cli.resume_command:resume", "Resume a run from where it ended."),
    "rubric": ("harness.cli.rubric_command:rubric", "Check rubrics, and score drafts by them."),
    "run": ("harness.cli.run_command:run", "Run a pipeline file."),
    "runs": ("harness.cli.runs:runs", "List the runs that ended, or compare two."),
    "trace": ("harness.cli.trace:trace", "Inspect a run: timeline, report, diagnosis."),
    "view": ("harness.cli.view:view", "Read a run in the browser: its loops, calls and texts."),
}
"""Where each subcommand lives, and its help."""


def main() -> None:
    """The `harness` command."""
    # A long journal's million objects have no cycles: by the usual threshold, looking for some took
    # a quarter of the time of a report; by this one, 0 to 4 % (20,000 calls).
    gc.set_threshold(100_000)
    output_error = steady_streams() if sys.stdout is sys.__stdout__ else lambda: None
    if "--log-format=json" in sys.argv or ("--log-format", "json") in pairwise(sys.argv):
        # Before click reads the arguments, whose mistakes are to be JSON too.
        import_module("harness.cli.consoles").log_to_stderr("json")
    try:
        _call()
    except SystemExit as ended:
        error = output_error()
        if error is None:
            raise
        message = f"harness: standard output cannot be written: {error.strerror}"
        _tell(message, code="cli.output-unwritable")
        sys.exit(ended.code or FAILED)


def _call() -> None:
    try:
        sys.exit(command(prog_name="harness", standalone_mode=False))
    except click.ClickException as error:
        _tell(error.format_message(), code="cli.usage", show=error.show)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        # Interrupted before a run began; click's own exit code would be 1.
        _tell("interrupted", code="run.interrupted")
        sys.exit(INTERRUPTED)


def _tell(message: str, *, code: str, show: Callable[[], None] | None = None) -> None:
    """Prints why the command ends; `show` does so for people, if the message is not all."""
    # By its attribute, since `consoles`, which has `JsonLines`, may not be imported yet.
    if emit := getattr(sys.stderr, "emit", None):
        emit(message, {"code": code}, level="error")
    elif show:
        show()
    else:
        click.echo(message, err=True)


@click.group(
    cls=LazyGroup,
    lazy=_COMMANDS,
    takes_plugins=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"The guides, Markdown, are in {shipped_directory('docs')}",
)
@click.version_option(__version__, prog_name="harness")
def command() -> None:
    """A draft is revised until a rubric is met, and each run opens as a timeline in Perfetto."""
