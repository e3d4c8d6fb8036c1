"""Figures and tables as people read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

T = TypeVar("T")

UNKNOWN = "-"

_MOST_LISTED = 5


def known(value: T | None, form: Callable[[T], str]) -> str:
    """A value in the given form; a dash if it is unknown."""
    return UNKNOWN if value is None else form(value)


def seconds(time_ns: int) -> str:
    """A time in seconds as `digits`, without the unit."""
    return digits(time_ns / 1e9)


def digits(value: float) -> str:
    """A number with three significant digits, but at most two decimals: 0.01, 9.99, 10.1, 1,234."""
    # From 9.995 on, rounding to two places would show 10.00.
    if abs(value) < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if abs(value) < 99.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share from 0 to 1, in percent with three digits."""
    return f"{100 * share:.3g}%"


def dollars(usd: float) -> str:
    """An amount with two decimals from a dollar on, four from a cent on, and six below."""
    if usd >= 1:
        return f"{usd:,.2f}"
    return f"{usd:.4f}" if usd >= 0.01 else f"{usd:.6f}"


def table(title: str, first: str, *figures: str, **style: Any) -> Table:  # noqa: ANN401 - see `Table`
    """A table with a title, a column of names and columns of figures."""
    result = Table(title=title, title_justify="left", **style)
    result.add_column(first, overflow="fold")
    for name in figures:
        result.add_column(name, justify="right")
    return result


def plain_table(title: str, first: str, figures: Iterable[str]) -> Table:
    """A `table` without rules, whose figures are never cut."""
    result = table(title, first, *figures, box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in result.columns[1:]:
        column.no_wrap = True
    return result


def listed(names: Iterable[str]) -> str:
    """The first few names, and how many more there are."""
    items = [*names]
    more = f" and {len(items) - _MOST_LISTED} more" if len(items) > _MOST_LISTED else ""
    return ", ".join(items[:_MOST_LISTED]) + more


def first_of(lines: Sequence[str], most: int, *, more: str) -> Iterator[str]:
    """The first lines, and after them `more`, with the number of those left out as `{}`."""
    yield from lines[:most]
    if len(lines) > most:
        yield more.format(f"{len(lines) - most:,}")


def print_line(line: str, console: Console, style: str = "") -> None:
    """Prints a line that is never folded."""
    console.print(line, style=style, soft_wrap=True)
