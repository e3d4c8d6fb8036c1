"""What commands show, kept in `shown/`: WRITE_SHOWN=1 pytest … writes it anew."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

SHOWN = Path(__file__).with_name("shown")


def assert_shown(name: str, text: str, *, masks: dict[str, str] | None = None) -> None:
    """Compares a text with the one that is kept, but for what no two runs have the same.

    Args:
        name: Of the file that keeps it.
        text: What was shown.
        masks: By a regular expression, what stands in place of all that it matches.
    """
    for pattern, instead in (masks or {}).items():
        text = re.sub(pattern, instead, text)
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    path = SHOWN / f"{name}.txt"
    if os.environ.get("WRITE_SHOWN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def printed(show: Callable[[Console], None], *, width: int = 100) -> str:
    """What is printed on a console of this width."""
    console = Console(file=io.StringIO(), width=width)
    show(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
