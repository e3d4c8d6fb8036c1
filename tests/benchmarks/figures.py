"""What a benchmark prints: figures, line by line as they are measured, or all as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple


class Figure(NamedTuple):
    """One line of the table."""

    figure: str
    value: float
    aim: str = ""
    """What was aimed at, and whether it was reached."""


def print_figures(figures: Iterable[Figure], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps([figure._asdict() for figure in figures], indent=2))
        return
    for figure in figures:
        print(f"{figure.figure:<66}{figure.value:>12,.2f}  {figure.aim}", flush=True)
