"""`harness endpoints`: the configured models, and what each can do."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from harness.cli.arguments import config_option, json_option
from harness.cli.consoles import (
    Shown,
    failures_told,
    json_object,
    log_to_stderr,
    results,
    write_json,
)
from harness.cli.process import FAILED
from harness.cli.project_files import endpoints_of, settings_for_calls
from harness.cli.tables import cell, print_columns
from harness.session import run_to_its_end
from harness.session.endpoint_check import EndpointCheck, check_endpoints


@click.group()
def endpoints() -> None:
    """Check the configured endpoints."""


@endpoints.command()
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@config_option
@json_option
def check(tags: tuple[str, ...], config: Path | None, *, as_json: bool) -> None:
    """Check all endpoints, or the named ones, with a dozen short calls each.

    Shows what each can do, and how it could report more. Exit codes: 0 all work, 1 one does not, 2
    invalid input, 130 interrupted.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        settings = settings_for_calls(config)
        with Shown(stderr=True).status("") as status:
            checking = check_endpoints(
                settings,
                endpoints_of(settings),
                environment=os.environ,
                tags=tags,
                progress=lambda doing: status.update(Text(doing)),
            )
            checks = run_to_its_end(checking)
    if as_json:
        write_json(json_object(checks))
    else:
        print_checks(checks, results())
    if any(result.error for result in checks):
        sys.exit(FAILED)


def print_checks(checks: Sequence[EndpointCheck], console: Console) -> None:
    """Prints a column for each endpoint, and its errors and advice below."""
    rows = {title: partial(_row, name) for name, title in _ROWS.items()}
    print_columns({result.tag: result for result in checks}, rows, console)
    for result in checks:
        if result.error is not None:
            problem = Text.assemble((result.tag, "bold red"), f": {result.error}")
            console.print(problem, soft_wrap=True)
        for line in result.advice:
            console.print(Text.assemble((result.tag, "bold"), f": {line}"), soft_wrap=True)


def _row(name: str, check: EndpointCheck) -> Text:
    value = getattr(check, name)
    return cell(value, "yellow" if value in {"advisory", "ignored"} else "")


_ROWS = {
    "reachable": "reachable",
    "backend": "backend",
    "model_id": "model",
    "models": "models there",
    "context_tokens": "context, tokens",
    "slots": "slots",
    "structured": "schemas",
    "timings": "timings",
    "cached_tokens": "cached tokens",
    "embeds": "embeds",
    "metrics": "counters",
    "dropped": "refused fields",
    "ttft_ms": "first token, ms",
    "tokens_per_s": "tokens a second",
}
