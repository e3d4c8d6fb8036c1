"""Figures and tables as people read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

T = TypeVar("T")

UNKNOWN = "-"

# Characters, with which a model's name can still be read.
_COLUMN_WIDTH = 20
_TITLES_WIDTH = 16
_FEW = 5


def known(value: T | None, form: Callable[[T], str]) -> str:
    """A value for people; a dash if it is unknown."""
    return UNKNOWN if value is None else form(value)


def seconds(time_ns: int) -> str:
    """Three digits that count, without the unit."""
    return digits(time_ns / 1e9)


def digits(value: float) -> str:
    """Three digits that count, no more than two of them after the point."""
    # From 9.995 on, rounding to two places would show 10.00.
    return f"{value:,.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def percent(share: float) -> str:
    """A share from 0 to 1, in percent with three digits."""
    return f"{100 * share:.3g}%"


def dollars(usd: float) -> str:
    """Cents and more; where there is less than a dollar, down to its millionth."""
    return f"{usd:,.2f}" if usd >= 1 else f"{usd:.4f}" if usd >= 0.01 else f"{usd:.6f}"


def table(title: str, first: str, *figures: str) -> Table:
    """A table with a title, a column of names and columns of figures."""
    result = Table(title=title, title_justify="left")
    result.add_column(first, overflow="fold")
    for name in figures:
        result.add_column(name, justify="right")
    return result


def plain_table(title: str, first: str, figures: Iterable[str]) -> Table:
    """A table without rules, whose names are folded so that no figure is cut."""
    style: dict[str, Any] = {"box": None, "padding": (0, 2, 0, 0), "header_style": "dim"}
    result = Table(title=title, title_justify="left", **style)
    result.add_column(first, overflow="fold")
    for name in figures:
        result.add_column(name, justify="right", no_wrap=True)
    return result


def listed(names: Iterable[str]) -> str:
    """The first few, and how many more there are."""
    items = [*names]
    return ", ".join(items[:_FEW]) + f" and {len(items) - _FEW} more" * (len(items) > _FEW)


def cell(value: object, style: str = "") -> Text:
    """A cell of `print_columns`; a dash if there is nothing in it."""
    match value:
        case None | "" | ():
            return Text(UNKNOWN, style="dim")
        case bool():
            return Text("yes", style=style) if value else Text("no", style="yellow")
        case int() | float():
            return Text(f"{round(value, 1):,}", style=style)
        case tuple():
            return Text(listed(map(str, value)), style=style)
        case _:
            return Text(str(value), style=style)


def print_line(line: str, console: Console, style: str = "") -> None:
    """Prints a line as it is: names in it may hold brackets."""
    console.print(Text(line, style=style), soft_wrap=True)


def print_columns(
    things: Mapping[str, T], rows: Mapping[str, Callable[[T], Text]], console: Console
) -> None:
    """Prints tables below each other, each as wide as the console; rows of dashes are left out."""
    columns = max(1, (console.width - _TITLES_WIDTH) // _COLUMN_WIDTH)
    cells = {title: [of(thing) for thing in things.values()] for title, of in rows.items()}
    full = {title: row for title, row in cells.items() if any(c.plain != UNKNOWN for c in row)}
    titles: Sequence[str] = [*things]
    for start in range(0, len(titles), columns):
        table = Table()
        table.add_column("", no_wrap=True)
        for title in titles[start : start + columns]:
            table.add_column(Text(title), overflow="fold")
        for title, row in full.items():
            table.add_row(title, *row[start : start + columns])
        console.print(table)
