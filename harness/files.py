"""Files: reads texts, writes whole or private files, and finds the files that ship."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from errno import EINVAL
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Literal

from harness.errors import InvalidInput

_PACKAGE = Path(__file__).parent


def private(name: str, flags: int) -> int:
    """An `opener` for `open` that creates files with mode 0600."""
    return os.open(name, flags, 0o600)


def make_private(path: Path) -> None:
    """Creates an empty file of mode 0600, if there is none, for a library that would use 0644."""
    # Errors are left to the library, which opens the same path.
    with suppress(OSError):
        os.close(private(str(path), os.O_CREAT))


def path_text(path: Path | str) -> str:
    """A path as text that can be written in UTF-8, even if the locale (ASCII) lacks its letters."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_in_locale(text: str) -> str:
    """The path of which `path_text` made a text, in the form in which the system opens it."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder of files that can be made again: in `XDG_CACHE_HOME`, else in `~/.cache`."""
    cache = environment.get("XDG_CACHE_HOME")
    if cache:
        return Path(cache, "harness")
    return Path(environment.get("HOME") or Path.home(), ".cache", "harness")


def shipped_directory(room: Literal["docs", "rubrics", "patterns", "examples/starter"]) -> Path:
    """The folder of guides, of shipped rubrics, of patterns, or of the files of `harness init`."""
    # In a wheel the folders are inside the package, in a checkout beside it.
    inside = _PACKAGE / "_rooms" / room
    return inside if inside.is_dir() else _PACKAGE.parent / room


def behind_link(path: Path) -> Path:
    """The file to replace in place of a link, so that the link stays."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name only when the block ends without an error."""
    try:
        # A device such as `/dev/stdout` is written to: renaming would put a file in its place.
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        target = behind_link(path)
        # With a random name, since two processes may write the same file at once.
        partial = target.with_name(f".{target.name}.{token_hex(4)}.partial")
        try:
            with open(partial, "wb", opener=private) as file:
                yield file
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink()
    except OSError as error:
        # With the name that the caller knows, not with that of the partial file.
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, data: bytes) -> None:
    """Writes a user's file whole or not at all; raises `InvalidInput` if that is impossible."""
    with writing(path), whole_file(path) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises `InvalidInput` in place of an `OSError` of the block, which writes a user's file."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise InvalidInput(problem, code="file.unwritable", path=path) from error


def read_bytes(path: Path, *, max_bytes: int = -1) -> bytes:
    """The bytes of a file or a pipe, at most `max_bytes` if not below 0. Raises `OSError`."""
    with opened(path) as file:
        return file.read(max_bytes)


def opened(path: Path) -> BinaryIO:
    """Opens a file or a pipe for reading; a pipe without a writer is empty. Raises `OSError`."""

    def without_waiting(name: str, flags: int) -> int:
        # Opening such a pipe must not wait for a writer, and reading must wait for what it writes.
        descriptor = os.open(name, flags | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        return descriptor

    try:
        return open(path, "rb", opener=without_waiting)
    except ValueError as error:  # a NUL in the path
        raise OSError(EINVAL, str(error), str(path)) from error


def read_text(subject: str, path: Path) -> str:
    """A file's text; `subject` begins the message of an `InvalidInput`: `input 'task'`."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InvalidInput(
            f"{subject} cannot be read ({error.strerror})", code="file.unreadable", path=path
        ) from error
    return text_of(subject, data, path=path)


def text_of(subject: str, data: bytes, *, path: Path | None) -> str:
    """Decodes the bytes of a text file; refuses a binary or empty one, as `read_text` does."""
    # A NUL is valid UTF-8, but only a binary file has one.
    if b"\0" in data:
        raise InvalidInput(
            f"{subject} is a binary file; give a text", code="file.binary", path=path
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{subject} is not UTF-8 text (byte {error.start}); convert it, or give a text",
            code="file.not-utf8",
            path=path,
        ) from error
    if not text.strip():
        raise InvalidInput(f"{subject} is empty", code="file.empty", path=path)
    return text
