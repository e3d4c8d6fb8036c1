"""Where the command prints."""

from __future__ import annotations

import logging
import os
import sys

import structlog
from rich.console import Console

_PIPED_WIDTH = 120
"""Characters. For a pipe rich takes 80, at which tables lose their numbers."""


def results() -> Console:
    """Standard output, for what was asked for."""
    chosen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if chosen else _PIPED_WIDTH)


def log_to_stderr() -> None:
    """Warnings are for people: standard output is for what was asked for."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[
            structlog.processors.add_log_level,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
