"""Where the command prints, without secrets, and without what a terminal would obey.

What people and models wrote, and what servers answer, is only shown: an escape sequence in it could
write to the clipboard, or over what stands above.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import click
import orjson
import structlog
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from structlog.typing import EventDict

from harness.trace.secrets import Redactor, secret_values

LogFormat = Literal["text", "json"]

_PIPED_WIDTH = 120
"""Characters. For a pipe rich takes 80, at which tables lose their numbers."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All but tabs and line ends."""

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Has these values printed nowhere, beside those of variables whose names say so."""
    _hidden.update(secrets)


def clean(text: str) -> str:
    """The text without secrets; for what is cut before it is printed, and might cut one in two."""
    return _redactor().clean(text)


def say(what: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints a text; see `click.echo`."""
    text = clean(str(what))
    is_terminal = (sys.stderr if err else sys.stdout).isatty()
    click.echo(_harmless(text) if is_terminal else text, err=err, nl=nl)


def write_json(data: bytes) -> None:
    """Prints one JSON document on standard output."""
    redactor = _redactor()
    if redactor.finds_any(data):
        cleaned = redactor.clean_values(orjson.loads(data))
        indent = orjson.OPT_INDENT_2 if b"\n" in data[:-1] else 0
        data = orjson.dumps(cleaned, option=indent | orjson.OPT_APPEND_NEWLINE)
    sys.stdout.buffer.write(data)


class Shown(Console):
    """A console for what others wrote."""

    def __init__(self, **how: Any) -> None:  # noqa: ANN401 - see `Console`
        super().__init__(**how)
        self._redactor = _redactor()

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """See `Console.render`: every text passes here before it is folded, or cut to its cell."""
        if isinstance(renderable, str):
            how = options or self.options
            renderable = self.render_str(renderable, highlight=how.highlight, markup=how.markup)
        if isinstance(renderable, Text):
            cleaned = self._redactor.clean(renderable.plain)
            if cleaned != renderable.plain:
                renderable = renderable.blank_copy(cleaned)
        for text, style, control in super().render(renderable, options):
            harmful = self.is_terminal and control is None
            yield Segment(_harmless(text) if harmful else text, style, control)


def _harmless(text: str) -> str:
    return _CONTROLS.sub("?", text)  # as ls shows names


def _redactor() -> Redactor:
    return Redactor(secret_values(os.environ, named=()) | _hidden)


def results() -> Console:
    """Standard output, for what was asked for."""
    chosen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Shown(width=None if chosen else _PIPED_WIDTH)


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
        processors=[structlog.processors.add_log_level, _shown_event, *render],
        # As it is then: above the progress of a run, while that is drawn.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _shown_event(_logger: object, _method: str, event: EventDict) -> EventDict:
    redactor = _redactor()
    return {
        name: _harmless(redactor.clean(one)) if isinstance(one, str) else one
        for name, one in event.items()
    }
