"""Where shipped rubrics and patterns are, and how files are made that only their user may read."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parent


def private(name: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates has mode 0600."""
    return os.open(name, flags, 0o600)


def make_private(path: Path) -> None:
    """Creates an empty file of mode 0600, if there is none, for a library that would use 0644.

    If that fails, the library will report it.
    """
    with suppress(OSError):
        os.close(private(str(path), os.O_CREAT))


def shipped_directory(room: Literal["rubrics", "patterns"]) -> Path:
    """The folder of shipped rubrics or patterns.

    A wheel carries them inside the package; in a checkout they are beside it.
    """
    inside = _PACKAGE / "_rooms" / room
    return inside if inside.is_dir() else _PACKAGE.parent / room
