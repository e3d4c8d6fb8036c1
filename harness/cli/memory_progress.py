"""How far work on a store is, on a terminal; nothing anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from harness.cli.consoles import Shown
from harness.memory import Progress as Told


@contextmanager
def doing() -> Iterator[Told]:
    """What to tell how far things are: a bar for each, while the block runs."""
    console = Shown(stderr=True)
    bars: dict[str, TaskID] = {}
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:

        def told(what: str, done: int, total: int) -> None:
            if what not in bars:
                bars[what] = progress.add_task(what, total=total)
            progress.update(bars[what], completed=done, total=total)

        yield told
