"""The command's output: results, warnings and failures, without secrets and control characters.

A failure is shown in words, as JSON for scripts, and by the exit code.
"""

from __future__ import annotations

import inspect
import io
import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO, TypeVar

import click
import orjson
import structlog
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.status import Status
from rich.text import Text
from structlog.typing import EventDict

from harness.cli.process import FAILED, UNUSABLE, Interrupts, LazyGroup
from harness.errors import (
    DoesNotFit,
    HarnessError,
    InvalidInput,
    JournalInvalid,
    ModelFileInvalid,
    NodeFailed,
)
from harness.trace import AUDIT_LOG, add_run_context
from harness.trace.journal_line import dump_json
from harness.trace.run_list import begins_a_run
from harness.trace.secrets import Redactor, secrets_of

LogFormat = Literal["text", "json"]
T = TypeVar("T")

# Columns. Rich's 80 for a pipe would cut the numbers in tables.
_PIPED_WIDTH = 120

# Embeddings, overrides and isolates reorder the text around them (CVE-2021-42574); the marks of
# Arabic and Hebrew texts do not.
_DIRECTIONS = "\u202a-\u202e\u2066-\u2069"
# All controls but tabs and line ends: escape sequences in texts of people, models and servers could
# write to the clipboard or over earlier lines, also later, when `cat` shows a file of the output.
_HARMFUL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTIONS}]")
# JSON escapes the other controls itself.
_HARMFUL_IN_JSON = re.compile(rf"[\x7f-\x9f{_DIRECTIONS}]")

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Keeps these values out of all output, as those of variables such as `…_KEY` are anyway."""
    _hidden.update(secrets)


def clean(text: str) -> str:
    """The text without secrets; call it before cutting a text, which could cut a secret in two."""
    return _redactor().clean(text)


def say(what: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints a message; see `click.echo`."""
    click.echo(_harmless(clean(str(what))), err=err, nl=nl)


def write_json(*documents: bytes) -> None:
    """Prints JSON documents on standard output."""
    redactor = _redactor()
    sys.stdout.buffer.writelines(clean_json(document, redactor) for document in documents)


def clean_json(data: bytes, redactor: Redactor | None = None) -> bytes:
    """A JSON document without secrets."""
    redactor = redactor or _redactor()
    if redactor.finds_any(data):
        cleaned = redactor.clean_values(orjson.loads(data))
        indent = orjson.OPT_INDENT_2 if b"\n" in data[:-1] else 0
        data = orjson.dumps(cleaned, option=indent | orjson.OPT_APPEND_NEWLINE)
    return _HARMFUL_IN_JSON.sub(_escaped, data.decode()).encode()


class Shown(Console):
    """A console for texts of people, models and servers: no secrets, control characters or markup.

    With `of_result`, it prints a result, whose control characters stay where it is piped on.
    """

    def __init__(self, *, of_result: bool = False, **how: Any) -> None:  # noqa: ANN401 - see `Console`
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **how})
        self._redactor = _redactor()
        self._keeps_controls = of_result and not self.is_terminal

    def render_str(self, text: str, **how: Any) -> Text:  # noqa: ANN401 - see `Console`
        """See `Console.render_str`."""
        # Before a table measures its cells: those with control characters would be cut.
        return super().render_str(text if self._keeps_controls else _harmless(text), **how)

    def status(self, status: RenderableType, **how: Any) -> Status:  # noqa: ANN401 - see `Console`
        """See `Console.status`, which takes every text for markup."""
        return super().status(Text(status) if isinstance(status, str) else status, **how)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """See `Console.render`."""
        # Every text passes here before it is folded or cut, which could cut a secret in two.
        if isinstance(renderable, str):
            renderable = self.render_str(renderable)
        if isinstance(renderable, Text):
            cleaned = self._redactor.clean(renderable.plain)
            if cleaned != renderable.plain:
                renderable = renderable.blank_copy(cleaned)
        for text, style, control in super().render(renderable, options):
            # A segment with `control` moves the cursor: Rich made it, and no text.
            keeps = self._keeps_controls or control is not None
            yield Segment(text if keeps else _harmless(text), style, control)


def _harmless(text: str) -> str:
    # Controls as `ls` shows them in names, the others as JSON escapes them.
    return _HARMFUL.sub(lambda match: "?" if match[0] < "\u00a0" else _escaped(match), text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _redactor() -> Redactor:
    return Redactor({*secrets_of(os.environ, named=()).values(), *_hidden})


def is_attended() -> bool:
    """Whether a person at a terminal can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def results() -> Console:
    """A console on standard output."""
    return Shown(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _PIPED_WIDTH)


def show(
    result: T,
    print_result: Callable[[T, Console], object],
    *,
    as_json: bool,
    fields: Callable[[T], object] | None = None,
) -> None:
    """Prints a command's result on standard output: for people, or as JSON for scripts.

    The JSON has the result's own fields, or what `fields` makes of it.
    """
    if as_json:
        write_json(json_object(fields(result) if fields else result))
    else:
        print_result(result, results())


class JsonLines(io.TextIOBase):
    """Standard error for programs: whatever is printed there becomes one JSON object a line.

    Other attributes, such as `buffer`, are those of the file.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.RLock()
        # Thread → what it has printed of a line that has no end yet.
        self._pending: dict[threading.Thread, str] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - see `TextIOWrapper`
        return getattr(self._file, name)

    def writable(self) -> bool:  # noqa: D102 - see `TextIOBase`
        return True

    def fileno(self) -> int:  # noqa: D102 - see `TextIOBase`
        return self._file.fileno()  # for the programs that a node starts

    def write(self, text: str) -> int:  # noqa: D102 - see `TextIOBase`
        thread = threading.current_thread()
        frame = inspect.currentframe()
        caller = frame and frame.f_back
        with self._lock:
            # A line of harness's own log is an object already.
            if _is_object(text.strip()):
                self._file.write(f"{text.strip()}\n")
            elif caller and caller.f_code is logging.StreamHandler.emit.__code__:
                # The level is known only in this frame, whatever handlers a node has set up.
                self.emit(text.strip(), {}, level=caller.f_locals["record"].levelname.lower())
            else:
                self._pending[thread] = self._pending.get(thread, "") + text
                if text.endswith("\n"):
                    self.flush()
        return len(text)

    def flush(self, *, of_all: bool = False) -> None:
        """Writes what this thread and ended threads have printed; or all."""
        own = threading.current_thread()
        with self._lock:
            for thread in [*self._pending]:
                is_over = thread is own or not thread.is_alive()
                if (of_all or is_over) and (text := self._pending.pop(thread).strip()):
                    self.emit(text, {})
            # As a program ends, Python closes streams in any order, and this one flushes then.
            if not self._file.closed:
                self._file.flush()

    def emit(self, event: str, fields: Mapping[str, object], *, level: str = "info") -> None:
        """Writes an object with these fields; texts are cleaned as all output is."""
        timestamp = datetime.now(UTC).isoformat()
        line = {"event": _harmless(event), "level": level, "timestamp": timestamp, **fields}
        with self._lock:
            self._file.write(clean_json(dump_json(line)).decode().strip() + "\n")
            self._file.flush()


def _is_object(text: str) -> bool:
    with suppress(orjson.JSONDecodeError):
        return text.startswith("{") and "\n" not in text and bool(orjson.loads(text))
    return False


def note_end(message: str, *, code: str, level: Literal["warning", "error"] = "error") -> None:
    """Prints why a command ends only for programs; people read it in the command's result."""
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.emit(message, {"code": code}, level=level)


def log_to_stderr(log_format: LogFormat = "text") -> None:
    """Sends warnings to standard error.

    With `json`, for programs, all that is printed there from now on becomes one object a line.
    """
    render: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    ]
    if log_format == "json":
        if not isinstance(sys.stderr, JsonLines):
            sys.stderr = JsonLines(sys.stderr)
        render = [
            structlog.contextvars.merge_contextvars,
            add_run_context,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(ensure_ascii=False),
        ]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        processors=[structlog.processors.add_log_level, _shown_event, *render],
        # Looked up for each warning: while progress is drawn, `sys.stderr` prints above it.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _shown_event(_logger: object, _method: str, event: EventDict) -> EventDict:
    redactor = _redactor()
    return {
        name: _harmless(redactor.clean(value)) if isinstance(value, str) else value
        for name, value in event.items()
    }


class Command(click.Command):
    """A command that logs to standard error, and turns errors and Ctrl-C into words and exit codes.

    Its parameters `as_json` and `log_format`, if it has them, are those of the report.
    """

    arguments_are_journals = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See `click.Command.parse_args`; refuses NaN, which click takes for any range."""
        rest = super().parse_args(ctx, args)
        for option in self.params:
            if isinstance(amount := ctx.params.get(option.name or ""), float) and not isfinite(
                amount
            ):
                raise click.BadParameter(f"{amount} is not a finite number", ctx, option)
        return rest

    def invoke(self, ctx: click.Context) -> None:
        """See `click.Command.invoke`."""
        log_to_stderr(ctx.params.get("log_format", "text"))
        interrupts = Interrupts()
        try:
            output = ctx.params.get("output") if self.arguments_are_journals else None
            # A device, such as /dev/stdout, is not read: that would wait for ever.
            if output and (output.name == AUDIT_LOG or (output.is_file() and begins_a_run(output))):
                raise InvalidInput(
                    "a file of a run, which would be lost; name the file to write, then any runs",
                    code="export.over-a-run",
                    path=output,
                )
            super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            self._end("interrupted", interrupt, interrupts.exit_code, ctx)
        except HarnessError as error:
            is_users_mistake = self.arguments_are_journals and isinstance(error, JournalInvalid)
            exit_code = UNUSABLE if is_users_mistake else exit_code_of(error)
            self._end(f"harness: {error}", error, exit_code, ctx)
        except OSError as error:
            # One with a path is about a file that the user named, such as a name that is too long.
            if error.filename is None and not self.arguments_are_journals:
                raise
            path = None if error.filename is None else Path(str(error.filename))
            mistake = InvalidInput(str(error.strerror), code="file.unusable", path=path)
            self._end(f"harness: {mistake}", mistake, UNUSABLE, ctx)

    def _end(
        self, message: str, error: BaseException, exit_code: int, ctx: click.Context
    ) -> NoReturn:
        note_end(message, code=code_of(error))
        if not isinstance(sys.stderr, JsonLines):
            say(message, err=True)
        if ctx.params.get("as_json", False):
            write_json(_error_as_json(error, error_fields(ctx)))
        sys.exit(exit_code)


class JournalCommand(Command):
    """A command whose arguments name journals, or runs; it writes no `output` over one.

    The user has to mend a journal that cannot be read and a file that cannot be written: both exit
    with `UNUSABLE`.
    """

    arguments_are_journals = True


# A command too, since a group may do something itself, without a subcommand.
class Group(Command, LazyGroup):
    """A group of `Command`s."""

    command_class = Command


def error_fields(ctx: click.Context | None = None) -> dict[str, object]:
    """What the JSON of a command's error has beside it: the command adds what it knows by then."""
    fields: dict[str, object] = (ctx or click.get_current_context()).meta.setdefault(__name__, {})
    return fields


def exit_code_of(error: HarnessError) -> int:
    """`UNUSABLE` if the error is in the user's input, also when a node raised it; else `FAILED`."""
    cause: BaseException | None = error
    # Nested pipelines wrap the error of a node once each.
    while isinstance(cause, NodeFailed):
        cause = cause.__cause__
    is_input = isinstance(cause, InvalidInput | ModelFileInvalid | DoesNotFit)
    return UNUSABLE if is_input else FAILED


def _error_as_json(error: BaseException, fields: Mapping[str, object]) -> bytes:
    """Why a command failed, as one JSON object; `run_id` is None if no run had begun."""
    message, status = str(error), "failed"
    if isinstance(error, KeyboardInterrupt):
        message, status = "interrupted", "cancelled"
    about = {"type": type(error).__name__, "code": code_of(error), "message": message}
    return json_object({"error": about, "run_id": None, "status": status, **fields})


def code_of(error: BaseException) -> str:
    """The stable code of an error, or of Ctrl-C."""
    return error.code if isinstance(error, HarnessError) else "run.interrupted"


def json_object(value: object) -> bytes:
    """An indented JSON document with a newline at its end; objects have their fields by name."""
    # `dump_json` takes whatever a node returned.
    return orjson.dumps(
        orjson.loads(dump_json(value)), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
