"""`harness run`: a pipeline file, from its inputs to its report."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.consoles import LogFormat
from harness.cli.pipeline_file import absolute_target, load_pipeline
from harness.cli.run_options import (
    limit_options,
    limits_of,
    log_option,
    memory_option,
    traceback_option,
)
from harness.cli.running import Order, carry_out
from harness.cli.trusting import remember_run, settings_for_calls
from harness.cli.values import read_inputs, read_pairs
from harness.session import Origin
from harness.session.trust import SETTINGS_FILE


@click.command()
@click.argument("target", metavar="FILE.py")
@click.option("--task", help="Short for --set task=…")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="NAME=VALUE",
    help="An input, as text or as JSON; NAME=@FILE reads it from a file. May be repeated.",
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
@memory_option
@limit_options
@log_option
@traceback_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def run(
    *,
    target: str,
    task: str | None,
    assignments: tuple[str, ...],
    config: Path | None,
    roles: tuple[str, ...],
    memory: Path | None,
    max_tokens: int | None,
    max_cost_usd: float | None,
    max_seconds: float | None,
    max_calls: int | None,
    log_format: LogFormat,
    with_traceback: bool,
    as_json: bool,
) -> None:
    """Run the pipeline in FILE.py, or a shipped pattern by its name.

    FILE.py:NAME says which, where a file has several. A question that a node asks is asked here, if
    this is a terminal; else the run ends, and harness resume goes on with the answer.

    Exit codes: 0 the run finished (whether or not its rubric was met: --json says "passed"), 1 it
    failed, 2 something given is not usable, 3 it was stopped at a limit, 4 it waits for an answer,
    130 interrupted, 143 terminated. After any of them but 0 and 2, harness resume goes on.
    """

    def order() -> Order:
        inputs = read_inputs([*([f"task={task}"] if task is not None else []), *assignments])
        given_roles = read_pairs(roles, option="--role", form="role=tag")
        kept_in = memory and memory.absolute()
        settings = settings_for_calls(config, roles=given_roles, memory=kept_in)
        settings_file = _settings_file(config)
        remember_run(target, settings_file)
        return Order(
            pipeline=load_pipeline(target),
            inputs=inputs,
            settings=settings,
            limits=limits_of(max_tokens, max_cost_usd, max_seconds, max_calls),
            origin=Origin(
                target=absolute_target(target),
                config=settings_file,
                roles=given_roles,
                memory=kept_in,
            ),
        )

    carry_out(order, as_json=as_json, log_format=log_format, with_traceback=with_traceback)


def _settings_file(config: Path | None) -> Path | None:
    """The file that settings are read from, wherever the run is resumed; None if there is none."""
    path = Path(SETTINGS_FILE) if config is None else config
    return path.absolute() if path.exists() else None
