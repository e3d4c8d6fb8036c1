"""How a command that fails says so: in words, as JSON for scripts, and by its exit code."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import orjson

from harness.cli.consoles import say, write_json
from harness.cli.exit_codes import FAILED, UNUSABLE
from harness.cli.interrupts import Interrupts
from harness.errors import (
    DoesNotFit,
    HarnessError,
    InvalidInput,
    JournalInvalid,
    ModelFileInvalid,
    NodeFailed,
)
from harness.trace.lenient_json import dump_json


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
