"""Files for the user's own eyes: what holds people's and models' texts is no other account's."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def private(name: str, flags: int) -> int:
    """An `opener` for `open`: a file that is made by it belongs to its user alone."""
    return os.open(name, flags, 0o600)


def make_private(path: Path) -> None:
    """Makes an empty file, if there is none, for a library that would make one for everybody.

    Where it cannot be made, that library says so.
    """
    with suppress(OSError):
        os.close(private(str(path), os.O_CREAT))
