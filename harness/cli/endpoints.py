"""`harness endpoints`: the configured models, and what each can do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.arguments import config_option
from harness.cli.consoles import Shown, failures_told, log_to_stderr, results, write_json
from harness.cli.process import FAILED
from harness.cli.project_files import settings_for_calls
from harness.errors import InvalidInput
from harness.session.endpoint_check import EndpointCheck, check_endpoints
from harness.session.models import known_endpoints


@click.group()
def endpoints() -> None:
    """The configured models, and what each can do."""


@endpoints.command()
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def check(tags: tuple[str, ...], config: Path | None, *, as_json: bool) -> None:
    """Try endpoints, all or those named, with a dozen short calls each.

    Says what each can do, and how it could report more. Exit codes: 0 all can be used, 1 one of
    them cannot, 2 something given is not usable, 130 interrupted.
    """
    log_to_stderr()
    with failures_told(as_json=as_json):
        checks = _check(tags, config)
    if as_json:
        said = orjson.dumps([asdict(one) for one in checks], option=orjson.OPT_INDENT_2)
        write_json(said + b"\n")
    else:
        print_checks(checks, results())
    if any(one.error for one in checks):
        sys.exit(FAILED)


def _check(tags: tuple[str, ...], config: Path | None) -> list[EndpointCheck]:
    settings = settings_for_calls(config)
    known = known_endpoints(settings)
    if not known:
        raise InvalidInput(
            "there are no endpoints; write [endpoints.<tag>] into harness.toml, "
            "or set HARNESS_ENDPOINTS",
            code="config.no-endpoints",
        )
    with Shown(stderr=True).status("") as status:
        return asyncio.run(
            check_endpoints(
                settings,
                known,
                environment=os.environ,
                tags=tags,
                progress=lambda doing: status.update(Text(doing)),
            )
        )


def print_checks(checks: Sequence[EndpointCheck], console: Console) -> None:
    """Prints a column for each endpoint, and its errors and advice below."""
    columns = max(1, console.width // _COLUMN_WIDTH - 1)  # one is for the titles
    for start in range(0, len(checks), columns):
        console.print(_table(checks[start : start + columns]))
    for one in checks:
        if one.error is not None:
            said = Text.assemble((one.tag, "bold red"), f": {one.error}")
            console.print(said, soft_wrap=True)
        for line in one.advice:
            console.print(Text.assemble((one.tag, "bold"), f": {line}"), soft_wrap=True)


def _table(checks: Sequence[EndpointCheck]) -> Table:
    table = Table()
    table.add_column("", no_wrap=True)
    for one in checks:
        table.add_column(Text(one.tag), overflow="fold")
    for name, title in _ROWS.items():
        seen = [getattr(one, name) for one in checks]
        if any(value not in (None, ()) for value in seen):
            table.add_row(title, *map(_cell, seen))
    return table


_COLUMN_WIDTH = 20
"""Characters, with which a model's name can still be read."""
_MOST_NAMES = 3
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
    "logprobs": "log probabilities",
    "embeds": "embeds",
    "metrics": "counters",
    "dropped": "refused fields",
    "ttft_ms": "first token, ms",
    "tokens_per_s": "tokens a second",
}


def _cell(value: object) -> Text:
    match value:
        case None | ():
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no", style="" if value else "yellow")
        case "enforced" | "advisory" | "ignored":
            return Text(value, style="" if value == "enforced" else "yellow")
        case int() | float():
            return Text(f"{round(value, 1):,}")
        case tuple():
            more = [f"and {len(value) - _MOST_NAMES} more"] if len(value) > _MOST_NAMES else []
            return Text(", ".join([*map(str, value[:_MOST_NAMES]), *more]))
        case _:
            return Text(str(value))
