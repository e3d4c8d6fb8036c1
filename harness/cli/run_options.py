"""Options that `harness run` and `harness resume` share: a run's limits, and its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, get_args

import click

from harness.cli.consoles import LogFormat
from harness.wiggum import Limits

F = TypeVar("F", bound=Callable[..., None])

_COUNT = click.IntRange(min=1)
_AMOUNT = click.FloatRange(min=0, min_open=True)


memory_option = click.option(
    "--memory",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where passages are kept for further runs, in place of [memory] path.",
)


log_option = click.option(
    "--log-format",
    type=click.Choice(get_args(LogFormat)),
    default="text",
    help="How warnings are written on standard error.",
)


traceback_option = click.option(
    "--traceback", "with_traceback", is_flag=True, help="Of a node that raised, say where."
)


def limit_options(command: F) -> F:
    """Adds the options; a command receives them as `limits_of` takes them."""
    for option in reversed(
        (
            click.option("--max-tokens", type=_COUNT, help="Of all calls of the run, in and out."),
            click.option("--max-cost-usd", type=_AMOUNT, help="Of all calls with a known price."),
            click.option(
                "--max-seconds", type=_AMOUNT, help="How long it may take, and 1 s to wrap up."
            ),
            click.option("--max-calls", type=_COUNT, help="How many calls to models."),
        )
    ):
        command = option(command)
    return command


def limits_of(
    max_tokens: int | None,
    max_cost_usd: float | None,
    max_seconds: float | None,
    max_calls: int | None,
) -> Limits:
    """The limits that the options gave."""
    return Limits(
        max_tokens=max_tokens,
        max_cost_usd=max_cost_usd,
        max_seconds=max_seconds,
        max_calls=max_calls,
    )
