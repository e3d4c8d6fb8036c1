"""Where the rubrics and patterns are that come with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parent


def shipped_directory(room: Literal["rubrics", "patterns"]) -> Path:
    """The folder of shipped rubrics or patterns.

    A wheel carries them inside the package; in a checkout they are the rooms beside it.
    """
    inside = _PACKAGE / "_rooms" / room
    return inside if inside.is_dir() else _PACKAGE.parent / room
