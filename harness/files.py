"""Files: reads texts, writes whole or private files, and finds the files that ship."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO, Literal

from harness.errors import InvalidInput

_PACKAGE = Path(__file__).parent


def private(name: str, flags: int) -> int:
    """An `opener` for `open`: a file that it creates has mode 0600."""
    return os.open(name, flags, 0o600)


def make_private(path: Path) -> None:
    """Creates an empty file of mode 0600, if there is none, for a library that would use 0644."""
    # The library will report what is wrong with the path.
    with suppress(OSError):
        os.close(private(str(path), os.O_CREAT))


def path_text(path: Path | str) -> str:
    """A path for a file in UTF-8, also if the locale (ASCII) lacks its letters."""
    return str(path).encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def path_in_locale(text: str) -> str:
    """A path from a file in UTF-8, as the system has it; undoes `path_text`."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return os.fsdecode(text.encode("utf-8", "surrogateescape"))
    return text


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Where files lie that can be made again: `XDG_CACHE_HOME`, else `~/.cache`."""
    if not (cache := environment.get("XDG_CACHE_HOME")):
        return Path(environment.get("HOME") or Path.home(), ".cache", "harness")
    return Path(cache, "harness")


def shipped_directory(room: Literal["docs", "rubrics", "patterns", "examples/starter"]) -> Path:
    """The folder of guides, of shipped rubrics, of patterns, or of what `harness init` copies."""
    # A wheel carries them inside the package; in a checkout they are beside it.
    inside = _PACKAGE / "_rooms" / room
    return inside if inside.is_dir() else _PACKAGE.parent / room


def behind_link(path: Path) -> Path:
    """The file to replace: a link stays, and what it names is replaced."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name once it is whole: when the block ends without an error."""
    try:
        # Renaming onto a device, such as `/dev/stdout`, would put a file in its place.
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                yield file
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        target = behind_link(path)
        # A name of its own: two may write the same file at once.
        partial = target.with_name(f".{target.name}.{token_hex(4)}.partial")
        try:
            with open(partial, "wb", opener=private) as file:
                yield file
            partial.replace(target)
        finally:
            with suppress(OSError):
                partial.unlink()
    except OSError as error:
        # By the name that the caller knows, not by that of the partial file.
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file of the user's, whole or not at all; raises `InvalidInput`."""
    with writing(path), whole_file(path) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises `InvalidInput` in place of the block's `OSError` about a file of the user's."""
    try:
        yield
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
        raise InvalidInput(problem, code="file.unwritable", path=path) from error


def read_bytes(path: Path, *, max_bytes: int = -1) -> bytes:
    """What a file holds, `max_bytes` of it at most unless that is below 0; as `opened`."""
    with opened(path) as file:
        return file.read(max_bytes)


def opened(path: Path) -> BinaryIO:
    """A file, or a pipe, to be read; raises `OSError`. A pipe that nobody writes to is empty."""
    # Opening such a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    # Now that it is open: readers are to wait for what a writer still has.
    os.set_blocking(descriptor, True)
    return os.fdopen(descriptor, "rb")


def read_text(what: str, path: Path) -> str:
    """A file's text; `what` begins the message of an `InvalidInput`: `input 'task'`."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InvalidInput(
            f"{what} cannot be read ({error.strerror})", code="file.unreadable", path=path
        ) from error
    return text_of(what, data, path=path)


def text_of(what: str, data: bytes, *, path: Path | None) -> str:
    """The text that bytes are; raises as `read_text` does."""
    # A NUL is valid UTF-8, but only a binary file has one.
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
