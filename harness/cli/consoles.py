"""Where the command prints."""

from __future__ import annotations

import logging
import os
import sys
from typing import Literal

import structlog
from rich.console import Console

LogFormat = Literal["text", "json"]

_PIPED_WIDTH = 120
"""Characters. For a pipe rich takes 80, at which tables lose their numbers."""


def results() -> Console:
    """Standard output, for what was asked for."""
    chosen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if chosen else _PIPED_WIDTH)


def log_to_stderr(log_format: LogFormat = "text") -> None:
    """Warnings are for people: standard output is for what was asked for.

    Args:
        log_format: `json` is for programs, one object a line, with the time in UTC.
    """
    render: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    ]
    if log_format == "json":
        render = [
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[structlog.processors.add_log_level, *render],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
