"""Standard output and error, for a process whose reader may have gone."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from errno import EPIPE
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDIN, _STDOUT, _STDERR = range(3)


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
