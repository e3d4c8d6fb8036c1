"""Inputs as they are given on the command line: `name=value` and `name=@file`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.errors import InvalidInput


def read_inputs(assignments: Iterable[str]) -> dict[str, str]:
    """The inputs that `--set` gave, by name.

    Raises:
        InvalidInput: One has no `=`, stands twice, or names a file that is missing, empty or
            not text.
    """
    return {
        name: read_text(f"input '{name}'", Path(value[1:])) if value.startswith("@") else value
        for name, value in read_pairs(assignments, option="--set", form="name=value").items()
    }


def read_pairs(assignments: Iterable[str], *, option: str, form: str) -> dict[str, str]:
    """The pairs that an option gave, by name.

    Raises:
        InvalidInput: One has no `=`, or stands twice.
    """
    pairs: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name:
            raise InvalidInput(
                f"{option} {assignment!r} is not of the form {form}", code="option.malformed"
            )
        if name in pairs:
            raise InvalidInput(f"{option} gives '{name}' twice", code="option.given-twice")
        pairs[name] = value
    return pairs


def read_text(what: str, path: Path) -> str:
    """A file's text.

    Args:
        what: What it is for, as the beginning of a message: `input 'task'`.
        path: The file.

    Raises:
        InvalidInput: It is missing, empty or not text.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            f"{what} cannot be read ({error.strerror})", code="file.unreadable", path=path
        ) from error
    return text_of(what, data, path=path)


def text_of(what: str, data: bytes, *, path: Path | None) -> str:
    """The text that bytes are; raises as `read_text` does."""
    # A NUL is valid UTF-8 and never in a text: it tells a binary file whose bytes happen to decode.
    if b"\0" in data:
        raise InvalidInput(f"{what} is a binary file; give a text", code="file.binary", path=path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{what} is not UTF-8 text (byte {error.start}); convert it, or give a text",
            code="file.not-utf8",
            path=path,
        ) from error
    if not text.strip():
        raise InvalidInput(f"{what} is empty", code="file.empty", path=path)
    return text
