"""Where the command prints."""

from __future__ import annotations

import os
import sys

from rich.console import Console

_PIPED_WIDTH = 120
"""Characters. For a pipe rich takes 80, at which tables lose their numbers."""


def results() -> Console:
    """Standard output, for what was asked for."""
    chosen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if chosen else _PIPED_WIDTH)
