"""Files that appear whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

from harness.files import private


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its name when the block is left without an error.

    What is there and is no regular file, such as `/dev/stdout`, is written to as it is.

    Raises:
        OSError: The file cannot be written; it is named as it was given.
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        # A name of its own: two may write the same timeline at once.
        partial = path.with_name(f".{path.name}.{token_hex(4)}.partial")
        try:
            with open(partial, "wb", opener=private) as file:
                yield file
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
