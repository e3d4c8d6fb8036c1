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
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeVar

import click
import orjson
import structlog
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
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
from harness.trace import add_run_context
from harness.trace.journal_line import dump_json
from harness.trace.secrets import Redactor, secrets_of

LogFormat = Literal["text", "json"]
T = TypeVar("T")

# Characters. Rich takes 80 for a pipe, where tables lose their numbers.
_PIPED_WIDTH = 120

# Embeddings, overrides and isolates reorder what stands around them (CVE-2021-42574); the marks
# of Arabic and Hebrew texts do not.
_DIRECTIONS = "\u202a-\u202e\u2066-\u2069"
# All controls but tabs and line ends: escape sequences in texts of people, models and servers could
# write to the clipboard or over earlier lines. `tee` and `cat` bring messages to a terminal too.
_HARMFUL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_DIRECTIONS}]")
# JSON itself has escaped the others.
_HARMFUL_IN_JSON = re.compile(rf"[\x7f-\x9f{_DIRECTIONS}]")

# A traceback is printed line by line. After it another may follow, of which it was the cause.
_TRACEBACK = re.compile(r"\s*(\+ Exception Group )?(Traceback \(most recent|Exception in thread )")
_MORE = re.compile(r"\s*$|\s+(\||\+-)|\s*(During handling of the above|The above exception was) ")
_GROUP_END = re.compile(r"\s*\+-+")

_hidden: set[str] = set()


def hide(secrets: Iterable[str]) -> None:
    """Keeps these values out of all output, beside those of variables with telling names."""
    _hidden.update(secrets)


def clean(text: str) -> str:
    """The text without secrets; call it before cutting a text, which could cut a secret in two."""
    return cleaner()(text)


def cleaner() -> Callable[[str], str]:
    """`clean` for many texts: the secrets are looked up once."""
    return _redactor().clean


def say(what: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints a message; see `click.echo`."""
    click.echo(_harmless(clean(str(what))), err=err, nl=nl)


def write_json(*documents: bytes) -> None:
    """Prints JSON documents on standard output."""
    redactor = _redactor()
    sys.stdout.buffer.writelines(_cleaned(document, redactor) for document in documents)


def clean_json(data: bytes) -> bytes:
    """A JSON document without secrets."""
    return _cleaned(data, _redactor())


def _cleaned(data: bytes, redactor: Redactor) -> bytes:
    if redactor.finds_any(data):
        cleaned = redactor.clean_values(orjson.loads(data))
        indent = orjson.OPT_INDENT_2 if b"\n" in data[:-1] else 0
        data = orjson.dumps(cleaned, option=indent | orjson.OPT_APPEND_NEWLINE)
    return _HARMFUL_IN_JSON.sub(_escaped, data.decode()).encode()


class Shown(Console):
    """A console for texts of others: no secrets, no control characters, no markup.

    `of_result` is for a result, which keeps its characters where it is piped on.
    """

    def __init__(self, *, of_result: bool = False, **how: Any) -> None:  # noqa: ANN401 - see `Console`
        super().__init__(**{"markup": False, "highlight": False, **how})
        self._redactor = _redactor()
        self._stays = of_result and not self.is_terminal

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """See `Console.render`."""
        # Every text passes here before it is folded or cut to its cell, which could cut a secret.
        if isinstance(renderable, str):
            how = options or self.options
            renderable = self.render_str(renderable, highlight=how.highlight, markup=how.markup)
        if isinstance(renderable, Text):
            cleaned = self._redactor.clean(renderable.plain)
            if cleaned != renderable.plain:
                renderable = renderable.blank_copy(cleaned)
        for text, style, control in super().render(renderable, options):
            stays = self._stays or control is not None
            yield Segment(text if stays else _harmless(text), style, control)


def _harmless(text: str) -> str:
    # As ls shows names, and as JSON does.
    return _HARMFUL.sub(lambda match: "?" if match[0] < "\u00a0" else _escaped(match), text)


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _redactor() -> Redactor:
    return Redactor({*secrets_of(os.environ, named=()).values(), *_hidden})


def is_attended() -> bool:
    """Whether there is a person at a terminal to ask."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def results() -> Console:
    """A console on standard output."""
    chosen = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Shown(width=None if chosen else _PIPED_WIDTH)


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
    """Standard error for programs: one JSON object a line, of whatever is printed there.

    Whatever else a text stream has is that of the file, its `buffer` for bytes too.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.RLock()
        self._begun: dict[threading.Thread, str] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - see `TextIOWrapper`
        return getattr(self._file, name)

    def writable(self) -> bool:  # noqa: D102 - see `TextIOBase`
        return True

    def fileno(self) -> int:  # noqa: D102 - see `TextIOBase`
        return self._file.fileno()  # for the programs that a node starts

    def write(self, text: str) -> int:  # noqa: D102 - see `TextIOBase`
        thread, frame = threading.current_thread(), inspect.currentframe()
        caller = frame and frame.f_back
        with self._lock:
            if _is_whole(self._begun.get(thread, "")) and not _MORE.match(text):
                self.flush()
            begun = self._begun.get(thread, "")
            # A line of the log is an object already.
            if _is_object(text.strip()):
                self._file.write(f"{text.strip()}\n")
            elif caller and caller.f_code is logging.StreamHandler.emit.__code__:
                # Only there is the level still known, whatever handlers a node has set up.
                self.emit(text.strip(), {}, level=caller.f_locals["record"].levelname.lower())
            else:
                # What is printed at once, a traceback too, becomes one line.
                self._begun[thread] = begun + text
                if text.endswith("\n") and not _TRACEBACK.match(begun + text):
                    self.flush()
        return len(text)

    def flush(self, *, of_all: bool = False) -> None:
        """Writes what this thread has begun, tracebacks, what ended threads left; or `of_all`."""
        own = threading.current_thread()
        with self._lock:
            for thread in [*self._begun]:
                is_left = thread is own or not thread.is_alive() or _is_whole(self._begun[thread])
                if (of_all or is_left) and (text := self._begun.pop(thread).strip()):
                    self.emit(text, {})
            # As a program ends, Python closes streams in any order, and this one flushes then.
            if not self._file.closed:
                self._file.flush()

    def emit(self, event: str, fields: Mapping[str, object], *, level: str = "info") -> None:
        """Writes a line; texts are cleaned as all output is."""
        about = {"event": _harmless(event), "level": level}
        about["timestamp"] = datetime.now(UTC).isoformat()
        with self._lock:
            self._file.write(clean_json(dump_json({**about, **fields})).decode().strip() + "\n")
            self._file.flush()


def _is_whole(traceback: str) -> bool:
    """Whether it has come to the exception, or to the end of a group of them."""
    last = traceback.rstrip().rpartition("\n")[2]
    is_within = last[:1].isspace() or _TRACEBACK.match(last) or _MORE.match(last)
    return traceback.endswith("\n") and (not is_within or _GROUP_END.fullmatch(last) is not None)


def _is_object(text: str) -> bool:
    with suppress(orjson.JSONDecodeError):
        return text.startswith("{") and "\n" not in text and bool(orjson.loads(text))
    return False


def say_failure(message: str, *, code: str) -> None:
    """Prints why a command ends, on standard error."""
    note_end(message, code=code)
    if not isinstance(sys.stderr, JsonLines):
        say(message, err=True)


def note_end(message: str, *, code: str, level: Literal["warning", "error"] = "error") -> None:
    """Tells a program why a command ends; people read it in the command's result."""
    if isinstance(sys.stderr, JsonLines):
        sys.stderr.emit(message, {"code": code}, level=level)


def log_to_stderr(log_format: LogFormat = "text", *, held: list[str] | None = None) -> None:
    """Sends warnings to standard error.

    `json` is for programs: from now on, all that is printed there is one object a line, with the
    time in UTC. `held` receives the warnings that a run's report prints too, in place of the log.
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
        processors=[hold, structlog.processors.add_log_level, _shown_event, *render],
        # `sys.stderr` at that time: while a run's progress is drawn, that prints above it.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _shown_event(_logger: object, _method: str, event: EventDict) -> EventDict:
    redactor = _redactor()
    return {
        name: _harmless(redactor.clean(value)) if isinstance(value, str) else value
        for name, value in event.items()
    }


class Command(click.Command):
    """A command that logs to standard error, and ends as `failures_told` says.

    Its parameters `as_json` and `log_format`, if it has them, are those of its failures too.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - see `click.Command`
        arguments_are_journals: bool = False,
        **how: Any,  # noqa: ANN401 - as above
    ) -> None:
        super().__init__(*args, **how)
        self._arguments_are_journals = arguments_are_journals

    def invoke(self, ctx: click.Context) -> None:
        """See `click.Command.invoke`."""
        log_to_stderr(ctx.params.get("log_format", "text"))
        as_json = ctx.params.get("as_json", False)
        with failures_told(as_json=as_json, arguments_are_journals=self._arguments_are_journals):
            super().invoke(ctx)


class Group(LazyGroup):
    """A group of `Command`s; those of other modules are only imported when they are called."""

    command_class = Command

    def invoke(self, ctx: click.Context) -> None:
        """See `click.Command.invoke`."""
        log_to_stderr()
        super().invoke(ctx)


@contextmanager
def failures_told(
    *,
    as_json: bool = False,
    arguments_are_journals: bool = False,
    fields: Mapping[str, object] | None = None,
) -> Iterator[Interrupts]:
    """Turns an error or Ctrl-C in the block into the command's message and exit code.

    With `as_json`, standard output gets a `HarnessError` too, with `fields`, which are read only
    then; Ctrl-C and an `OSError` write no JSON. With `arguments_are_journals`, the user has to mend
    a journal that cannot be read and a file that cannot be written: both exit with `UNUSABLE`.
    """
    interrupts = Interrupts()
    try:
        yield interrupts
    except KeyboardInterrupt:
        say_failure("interrupted", code="run.interrupted")
        sys.exit(interrupts.exit_code)
    except HarnessError as error:
        say_failure(f"harness: {error}", code=error.code)
        if as_json:
            write_json(error_as_json(error, fields=fields))
        is_users_mistake = arguments_are_journals and isinstance(error, JournalInvalid)
        sys.exit(UNUSABLE if is_users_mistake else exit_code_of(error))
    except OSError as error:
        if not arguments_are_journals:
            raise
        place = f"{error.filename}: " if error.filename else ""
        say(f"harness: {place}{error.strerror}", err=True)
        sys.exit(UNUSABLE)


def exit_code_of(error: HarnessError) -> int:
    """`UNUSABLE` if the error is in the user's input, also when a node found it; else `FAILED`."""
    cause: BaseException | None = error
    while isinstance(cause, NodeFailed):  # of a nested pipeline's node, one within the other
        cause = cause.__cause__
    is_input = isinstance(cause, InvalidInput | ModelFileInvalid | DoesNotFit)
    return UNUSABLE if is_input else FAILED


def error_as_json(
    error: BaseException, *, run_id: str | None = None, fields: Mapping[str, object] | None = None
) -> bytes:
    """Why a command failed, as one JSON object; `run_id` is None if no run had begun.

    The error is a `KeyboardInterrupt` if a user ended the run, a `SystemExit` if a node did.
    """
    message, status = str(error), "failed"
    if isinstance(error, KeyboardInterrupt):
        message, status = "interrupted", "cancelled"
    about = {"type": type(error).__name__, "code": code_of(error), "message": message}
    return json_object({"error": about, "run_id": run_id, "status": status, **(fields or {})})


def code_of(error: BaseException) -> str:
    """By which a program knows an error."""
    if isinstance(error, HarnessError):
        return error.code
    return "run.interrupted" if isinstance(error, KeyboardInterrupt) else "run.left"


def json_object(value: object) -> bytes:
    """One JSON document, indented, with a newline; an object's fields by their names."""
    # The lenient form takes whatever a node returned.
    return orjson.dumps(
        orjson.loads(dump_json(value)), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    )
