"""Where the command prints, without secrets, and without what a terminal would obey.

What people and models wrote, and what servers answer, is only shown: an escape sequence in it could
write to the clipboard, or over what stands above.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import click
import orjson
import structlog
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text
from structlog.typing import EventDict

from harness.cli.process import FAILED, UNUSABLE, Interrupts
from harness.errors import (
    DoesNotFit,
    HarnessError,
    InvalidInput,
    JournalInvalid,
    ModelFileInvalid,
    NodeFailed,
)
from harness.trace.lenient_json import dump_json
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


def log_to_stderr(log_format: LogFormat = "text", *, held: list[str] | None = None) -> None:
    """Warnings are for people: standard output is for what was asked for.

    Args:
        log_format: `json` is for programs, one object a line, with the time in UTC.
        held: Receives the warnings that a run's report prints too, and they are not logged.
    """

    def hold(_logger: object, _method: str, event: EventDict) -> EventDict:
        if event.pop("in_result", False) and held is not None:
            held.append(event["event"])
            raise structlog.DropEvent
        return event

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
        processors=[hold, structlog.processors.add_log_level, _shown_event, *render],
        # As it is then: above the progress of a run, while that is drawn.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _shown_event(_logger: object, _method: str, event: EventDict) -> EventDict:
    redactor = _redactor()
    return {
        name: _harmless(redactor.clean(one)) if isinstance(one, str) else one
        for name, one in event.items()
    }


@contextmanager
def failures_told(
    *,
    as_json: bool = False,
    of_journals: bool = False,
    more: Mapping[str, object] | None = None,
) -> Iterator[Interrupts]:
    """Turns an error or Ctrl-C in the block into the command's message and exit code.

    Args:
        as_json: Whether to print the error as JSON on standard output too.
        of_journals: Whether the command's arguments are journals: one that cannot be read is then
            a mistake of whoever typed it.
        more: What was done before the error, for the JSON; read when there is one.
    """
    interrupts = Interrupts()
    try:
        yield interrupts
    except KeyboardInterrupt:
        say("interrupted", err=True)
        sys.exit(interrupts.exit_code)
    except HarnessError as error:
        say(f"harness: {error}", err=True)
        if as_json:
            write_json(error_as_json(error, more=more))
        is_given = of_journals and isinstance(error, JournalInvalid)
        sys.exit(UNUSABLE if is_given else exit_code_of(error))


def exit_code_of(error: HarnessError) -> int:
    """`UNUSABLE` where what the user gave is to blame, also if a node found that; else `FAILED`."""
    cause: BaseException | None = error
    while isinstance(cause, NodeFailed):  # of a nested pipeline's node, one within the other
        cause = cause.__cause__
    given = isinstance(cause, InvalidInput | ModelFileInvalid | DoesNotFit)
    return UNUSABLE if given else FAILED


def error_as_json(
    error: HarnessError, *, run_id: str | None = None, more: Mapping[str, object] | None = None
) -> bytes:
    """Why a command failed, as one JSON object.

    Args:
        error: What ended it.
        run_id: None when no run had begun.
        more: What was done before it.
    """
    said = {"type": type(error).__name__, "code": error.code, "message": str(error)}
    return json_object({"error": said, "run_id": run_id, "status": "failed", **(more or {})})


def interrupted_as_json(*, run_id: str | None) -> bytes:
    """The same for a run that somebody ended."""
    error = {"type": "KeyboardInterrupt", "code": "run.interrupted", "message": "interrupted"}
    return json_object({"error": error, "run_id": run_id, "status": "cancelled"})


def left_as_json(error: SystemExit, *, run_id: str | None) -> bytes:
    """The same for a run whose node called `sys.exit`."""
    said = {"type": "SystemExit", "code": "run.left", "message": str(error)}
    return json_object({"error": said, "run_id": run_id, "status": "failed"})


def json_object(value: Mapping[str, object]) -> bytes:
    """One JSON object, indented, with a newline."""
    # By way of the lenient form: whatever a node returned, the report of its run can be written.
    return orjson.dumps(
        orjson.loads(dump_json(value)), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
