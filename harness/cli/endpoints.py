"""`harness endpoints`: the models that can be reached, and what each can do."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from harness.cli.consoles import log_to_stderr, results
from harness.cli.exit_codes import FAILED, UNUSABLE
from harness.errors import InvalidInput
from harness.session.endpoint_check import EndpointCheck, check_endpoints
from harness.session.models import known_endpoints
from harness.session.settings import load_settings


@click.group()
def endpoints() -> None:
    """The models that can be reached, and what each can do."""


@endpoints.command()
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@click.option(
    "--settings",
    "path",
    type=click.Path(path_type=Path),
    help="In place of harness.toml here.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def check(tags: tuple[str, ...], path: Path | None, *, as_json: bool) -> None:
    """Try endpoints out, all or those named, by some ten short calls each.

    Says what each was seen to do, and which flag would turn on what it does not tell. Exit code 1
    when one of them cannot be used.
    """
    log_to_stderr()
    try:
        checks = asyncio.run(_check(tags, path))
    except InvalidInput as error:
        click.echo(f"harness: {error}", err=True)
        sys.exit(UNUSABLE)
    if as_json:
        said = orjson.dumps([asdict(one) for one in checks], option=orjson.OPT_INDENT_2)
        sys.stdout.buffer.write(said + b"\n")
    else:
        print_checks(checks, results())
    if any(one.error for one in checks):
        sys.exit(FAILED)


async def _check(tags: tuple[str, ...], path: Path | None) -> list[EndpointCheck]:
    settings = load_settings(path, environment=os.environ)
    known = known_endpoints(settings)
    if not known:
        raise InvalidInput(
            "there are no endpoints; write some into harness.toml or HARNESS_ENDPOINTS"
        )
    checks = []
    waiting = Console(stderr=True).status("")
    with waiting:
        waiting.update(f"trying {', '.join(tags or known)} …")
        async for one in check_endpoints(settings, known, environment=os.environ, tags=tags):
            checks.append(one)
            waiting.update(f"{one.tag} is done …")
    return checks


def print_checks(checks: Iterable[EndpointCheck], console: Console) -> None:
    """Prints a column for each endpoint that answered, and what stands in the way of the others."""
    usable = [one for one in checks if one.error is None]
    if usable:
        table = Table()
        table.add_column("")
        for one in usable:
            table.add_column(Text(one.tag), overflow="fold")
        for name, title in _ROWS.items():
            table.add_row(title, *(_cell(getattr(one, name)) for one in usable))
        console.print(table)
    for one in checks:
        if one.error is not None:
            console.print(Text(one.error, style="red"), soft_wrap=True)
        for line in one.advice:
            console.print(Text.assemble((one.tag, "bold"), f": {line}"), soft_wrap=True)


_ROWS = {
    "backend": "backend",
    "model_id": "model",
    "models": "server's models",
    "context_tokens": "context, tokens",
    "structured": "schemas",
    "timings": "timings",
    "cached_tokens": "cached tokens",
    "logprobs": "log probabilities",
    "counts_tokens": "counts tokens",
    "embeds": "embeds",
    "metrics": "counters",
    "dropped": "refused fields",
    "side_by_side": "of 4 calls, side by side",
    "ttft_ms": "first token, ms",
    "tokens_per_s": "tokens a second",
}
_MOST_NAMES = 5


def _cell(value: object) -> Text:
    match value:
        case None | ():
            return Text("-", style="dim")
        case bool():
            return Text("yes" if value else "no", style="" if value else "yellow")
        case "enforced" | "advisory" | "ignored":
            return Text(value, style="" if value == "enforced" else "yellow")
        case float():
            return Text(f"{value:,.1f}")
        case int():
            return Text(f"{value:,}")
        case tuple():
            more = f", and {len(value) - _MOST_NAMES} more" if len(value) > _MOST_NAMES else ""
            return Text(", ".join(map(str, value[:_MOST_NAMES])) + more)
        case _:
            return Text(str(value))
