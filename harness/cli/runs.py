"""`harness runs`: the audit log as a table, and two runs side by side."""

from __future__ import annotations

from pathlib import Path

import click
import orjson
from click.core import ParameterSource
from rich import box
from rich.table import Table
from rich.text import Text

from harness.cli.arguments import find_journal, traces_directory, traces_option
from harness.cli.consoles import failures_told, json_object, log_to_stderr, results, say, write_json
from harness.cli.process import LazyGroup
from harness.trace import AUDIT_LOG, AuditLine, Journal, list_runs

_OTHERS = {
    "export": ("harness.cli.runs_export:export", "Make training data of the scored drafts."),
    "prune": ("harness.cli.runs_prune:prune", "Remove old runs, and pack what stays."),
}


@click.group(cls=LazyGroup, lazy=_OTHERS, invoke_without_command=True)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Show this many of the latest runs; 0 for all.",
)
@traces_option
@click.option("--json", "as_json", is_flag=True, help="Print each as a line of JSON.")
@click.pass_context
def runs(context: click.Context, limit: int, traces: Path | None, *, as_json: bool) -> None:
    """List the runs, the latest last; compare two, make training data, or remove old ones.

    "Files gone" is said of runs that the audit log has, and whose journal is no longer there.
    """
    log_to_stderr()
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    with failures_told(as_json=as_json):
        directory = traces_directory(traces)
        lines = list_runs(directory, latest=limit or None)
    if as_json:
        write_json(*(orjson.dumps(line.model_dump()) + b"\n" for line in lines))
    elif not lines:
        say(f"there is no run yet, by {directory / AUDIT_LOG}", err=True)
    else:
        results().print(_table(lines))


@runs.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@traces_option
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
def diff(a: str, b: str, traces: Path | None, *, as_json: bool) -> None:
    """Show what differs between the runs A and B of a pipeline, and why.

    Each is a run's id, a part of it, one of its files, or "latest". Exit codes: 0 compared, whether
    or not they differ, 2 invalid input.
    """
    # Not at the top: the list of runs needs neither.
    from harness.analysis.comparison import compare  # noqa: PLC0415
    from harness.cli.runs_diff import print_comparison  # noqa: PLC0415

    with failures_told(as_json=as_json, of_journals=True):
        comparison = compare(Journal(find_journal(a, traces)), Journal(find_journal(b, traces)))
    if as_json:
        write_json(json_object(comparison))
    else:
        print_comparison(comparison, results())


def _refuse_options(context: click.Context) -> None:
    """Options before `diff` would be the list's, and be ignored."""
    for name in context.params:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"options go after '{context.invoked_subcommand}', not before")


def _table(lines: list[AuditLine]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("run", "end"):
        table.add_column(column, no_wrap=True)
    for column in ("seconds", "in", "out"):
        table.add_column(column, justify="right", no_wrap=True)
    for column in ("pipeline", "scores"):
        table.add_column(column, overflow="fold")
    for line in lines:
        table.add_row(
            Text(line.run_id or "-"),
            Text(line.final or "-", style=_STYLES.get(line.final, "yellow")),
            "-" if line.run_duration_s is None else f"{line.run_duration_s:.1f}",
            _count(line.input_tokens),
            _count(line.output_tokens),
            Text(line.pipeline or "-"),
            " ".join(
                [
                    *(f"{name} {mean:.3g}" for name, mean in line.evaluation.items()),
                    *(str(round(score, 3)) for score in line.wiggum_scores),
                    *([line.stop_reason] if line.stop_reason else []),
                    *(["(files gone)"] if line.is_gone else []),
                ]
            ),
            style="dim" if line.is_gone else None,
        )
    return table


_STYLES = {None: "", "PASS": "green", "ERROR": "red", "KILLED": "red", "WAITING": "cyan"}


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
