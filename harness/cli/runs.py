"""`harness runs`: the audit log as a table."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path

import click
import orjson
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import log_to_stderr, results
from harness.cli.exit_codes import UNUSABLE
from harness.cli.run_name import traces_directory
from harness.errors import InvalidInput
from harness.trace import AUDIT_LOG, AuditLine, read_audit_log


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of the latest; 0 for all.",
)
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    help="Where runs land; as harness.toml says, or traces/, when left out.",
)
@click.option("--json", "as_json", is_flag=True, help="Print each as a line of JSON.")
def runs(limit: int, traces: Path | None, *, as_json: bool) -> None:
    """List the runs that ended, the latest last."""
    log_to_stderr()
    try:
        path = traces_directory(traces) / AUDIT_LOG
        lines = deque(read_audit_log(path), maxlen=limit or None)
    except InvalidInput as error:
        click.echo(f"harness: {error}", err=True)
        sys.exit(UNUSABLE)
    if as_json:
        for line in lines:
            sys.stdout.buffer.write(orjson.dumps(line.model_dump()) + b"\n")
    elif not lines:
        click.echo(f"no run has ended yet that is in {path}", err=True)
    else:
        results().print(_table(lines))


def _table(lines: deque[AuditLine]) -> Table:
    table = Table()
    table.add_column("run", no_wrap=True)
    for column in ("pipeline", "end", "scores", "producer / evaluator"):
        table.add_column(column)
    for column in ("seconds", "tokens in", "out"):
        table.add_column(column, justify="right")
    for line in lines:
        table.add_row(
            Text(line.run_id or "-"),
            Text(line.pipeline or "-"),
            Text(line.final or "-", style=_STYLES.get(line.final or "", "")),
            " ".join(f"{score:.1f}" for score in line.wiggum_scores)
            + (f" {line.stop_reason}" if line.stop_reason else ""),
            Text(f"{line.producer_model or '-'} / {line.evaluator_model or 'checks'}"),
            "-" if line.run_duration_s is None else f"{line.run_duration_s:.1f}",
            _count(line.input_tokens),
            _count(line.output_tokens),
        )
    return table


_STYLES = {"PASS": "green", "FAIL": "yellow", "ERROR": "red"}


def _count(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
