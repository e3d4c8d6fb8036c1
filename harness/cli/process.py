"""The command as a process: its exit codes, its signals, and its standard streams."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from errno import EPIPE
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

FAILED = 1
"""What was asked for was tried, and failed."""

UNUSABLE = 2
"""Something given is not usable."""

STOPPED = 3
"""A run was stopped at a limit; what was done is kept."""

WAITING = 4
"""A run waits for somebody's answer; what was done is kept."""

INTERRUPTED = 130
"""Ctrl-C."""

TERMINATED = 143
"""Told to end (SIGTERM), by a supervisor or `timeout`."""

_STDIN, _STDOUT, _STDERR = range(3)


class Interrupts:
    """Has SIGTERM raise `KeyboardInterrupt` too, from when it is made.

    Attributes:
        exit_code: What to exit with after one.
    """

    def __init__(self) -> None:
        self.exit_code = INTERRUPTED
        signal.signal(signal.SIGTERM, self._interrupt)

    def _interrupt(self, _number: int, _frame: object) -> None:
        self.exit_code = TERMINATED
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # As a shell has it for what it starts in the background.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)


def steady_streams() -> Callable[[], OSError | None]:
    """Has writing to standard output and error never raise, whatever they are connected to.

    What a reader such as `head` did not wait for is dropped, and a letter that the encoding lacks
    is written as its number. A stream that was closed when the process began leads nowhere: without
    that, the next file to be opened would be taken for it.

    Returns:
        Tells, when all is written, why standard output could not be; None if it could, or if nobody
        wanted more.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(spare)
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.FileIO(_STDIN, closefd=False), encoding="utf-8")
    written = _Steady(_STDOUT, "wb", closefd=False)
    sys.stdout = _text(written, sys.stdout)
    sys.stderr = _text(_Steady(_STDERR, "wb", closefd=False), sys.stderr)

    def why_not() -> OSError | None:
        sys.stdout.flush()
        return None if written.error is None or written.error.errno == EPIPE else written.error

    return why_not


class _Steady(io.FileIO):
    """A file to which writing never fails; it remembers why it did."""

    error: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes


def _text(raw: _Steady, before: TextIO | None) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else "utf-8",
        errors="backslashreplace",
        line_buffering=raw.isatty() or raw.fileno() == _STDERR,
    )
