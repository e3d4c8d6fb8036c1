"""Reads one GGUF file: its keys, and the bytes of its tensors.

The file is mapped and stepped through. No tensor is touched, so that this takes milliseconds.

Layout and limits are those of llama.cpp b11434 (ggml/src/gguf.cpp).
"""

from __future__ import annotations

import math
import mmap
import time
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from struct import Struct
from typing import Any, Final

from harness.errors import ModelFileInvalid
from harness.hardware.quantization import TENSOR_FORMATS

# More than any model has (llama.cpp stops at 512). Longer arrays are not kept, and a damaged layer
# count cannot become a tuple of 2^32 elements.
MAX_LAYERS: Final = 4096

# The longest key that the format allows; longer texts are not kept as values.
_MAX_TEXT_BYTES: Final = 65535
# ggml's `GGML_MAX_DIMS`.
_MAX_DIMENSIONS: Final = 4
# A key or a tensor takes more memory than space in the file. No model has so many.
_MAX_KEYS: Final = 10_000
_MAX_TENSORS: Final = 100_000

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
# The format's types of values, those of numbers by the codes of `struct`.
_NUMBER_CODES: Final = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING: Final = 8
_ARRAY: Final = 9

_DAMAGED: Final = "the file is cut or damaged, download it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufValue:
    """The value of one key."""

    offset: int | None  # byte at which it begins; None if it comes from a server
    content: object  # a number, a text, a tuple of numbers, or None for a value that was skipped
    length: int  # elements of an array; 1 for anything else, 0 for an array of unknown length


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """A model's only file, one part of a split model, or the keys that a server reports.

    A key that begins with a dot is one of the model's own architecture: `.block_count` stands for
    `llama.block_count`. Impossible values raise `ModelFileInvalid`.
    """

    path: Path  # the model's name if a server reports it
    values: dict[str, GgufValue]
    values_end: int | None  # byte after the last value; None if they come from a server
    tensors: dict[str, int]
    """Bytes of each tensor by its own type, without the padding between them."""
    elements: int  # the sum over all tensors; 0 if a server reports the model

    @cached_property
    def architecture(self) -> str:
        """The beginning of the model's own keys, such as `llama`."""
        return self.text("general.architecture")

    @cached_property
    def layers(self) -> int:
        """How many layers the model has."""
        layers = self.count(".block_count")
        if not 0 < layers <= MAX_LAYERS:
            raise self.unusable(
                ".block_count",
                f"is {layers:,}, not 1 to {MAX_LAYERS:,}; the file is damaged, download it again",
            )
        return layers

    def text(self, key: str, *, default: str | None = None) -> str:
        """A text, or `default` if there is one and the key is missing."""
        if default is not None and self.value(key) is None:
            return default
        content = self._required(key).content
        if not isinstance(content, str):
            raise self.unusable(key, f"is not a text; {_DAMAGED}")
        return content

    def count(self, key: str, *, default: int | None = None) -> int:
        """A whole number from 0, or `default` if there is one and the key is missing."""
        if default is not None and self.value(key) is None:
            return default
        return self._numbers(key, 1)[0]

    def counts(self, key: str, *, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """One whole number for each layer; a single number stands for all of them."""
        # The default also replaces an array that a server left out.
        if default is not None and (self.value(key) is None or self.is_left_out(key)):
            return default
        return self._numbers(key, self.layers)

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """Whether each layer is of a kind; None if the key has no array, or a too long one."""
        value = self.value(key)
        if value is None or not isinstance(value.content, tuple):
            return None
        # The array may be longer or shorter than the layers, as in llama.cpp.
        missing = (False,) * (self.layers - value.length)
        return tuple(map(bool, value.content[: self.layers])) + missing

    def is_left_out(self, key: str) -> bool:
        """Whether a server gave the key without its array."""
        value = self.value(key)
        return value is not None and value.offset is None and value.content is None

    def any_begins(self, *beginnings: str) -> bool:
        """Whether any key has one of these beginnings and a value other than 0."""
        # Converters write 0 for "none".
        set_keys = [key for key, value in self.values.items() if value.content != 0]
        return any(key.startswith(tuple(map(self._whole, beginnings))) for key in set_keys)

    def unusable(self, key: str, problem: str) -> ModelFileInvalid:
        """The error for an impossible value of a key."""
        key = self._whole(key)
        offset = self.values[key].offset
        return ModelFileInvalid(f"'{key}' {problem}", path=self.path, offset=offset)

    def value(self, key: str) -> GgufValue | None:
        """The value of a key; None if it is missing."""
        return self.values.get(self._whole(key))

    def _whole(self, key: str) -> str:
        return self.architecture + key if key.startswith(".") else key

    def _numbers(self, key: str, count: int) -> tuple[int, ...]:
        content = self._required(key).content
        numbers: tuple[Any, ...] = content if isinstance(content, tuple) else (content,) * count
        # Not `isinstance`, since a bool, which is no count, is an int too.
        if len(numbers) != count or any(type(n) is not int or n < 0 for n in numbers):
            raise self.unusable(key, f"is not a count, or not one for each layer; {_DAMAGED}")
        return numbers

    def _required(self, key: str) -> GgufValue:
        value, key = self.value(key), self._whole(key)
        if value is None:
            raise ModelFileInvalid(
                f"'{key}' is missing; name the file of a language model "
                "(adapters and image projectors are GGUF files too)",
                path=self.path,
                offset=self.values_end,
            )
        return value


def read_gguf_file(path: Path) -> GgufFile:
    """Reads one file's keys and its tensors' sizes, again only once the file has changed."""
    try:
        # Opening a pipe would wait, and an empty file cannot be mapped.
        if path.is_fifo():
            raise ModelFileInvalid("is a pipe; give the path of a .gguf file", path=path)
        status = path.stat()
        if not status.st_size:
            raise ModelFileInvalid(f"is empty; {_DAMAGED}", path=path, offset=0)
        # Not cached: a file that was just written may change again within a tick of its clock.
        is_settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
        read = _read if is_settled else _read.__wrapped__
        return read(path, status.st_ino, status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise ModelFileInvalid(
            f"cannot be opened ({error.strerror}); give the path of a .gguf file, and keep all "
            "parts of a split model in one folder",
            path=path,
        ) from error


_SETTLED_NS = 2_000_000_000


# Cached, since a run asks some five times, at 16 ms each for a vocabulary of 50,000.
@lru_cache(maxsize=16)
def _read(path: Path, *_state: int) -> GgufFile:
    # A file that is truncated at this moment, as when a download starts again, ends the process
    # with SIGBUS.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _parse(_Cursor(data, path))


class _Cursor:
    """A position in the mapped file, which never moves past the file's end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def take(self, size: int) -> int:
        """Moves past the next `size` bytes; returns where they begin."""
        start = self.at
        remaining = len(self.data) - start
        # Checked before a length is used, so that a damaged header is an error and nothing worse.
        if size > remaining:
            raise self.invalid(f"{size:,} bytes should follow, {remaining:,} do; {_DAMAGED}")
        self.at += size
        return start

    def number(self, kind: Struct) -> Any:  # noqa: ANN401 - as struct has it
        return kind.unpack_from(self.data, self.take(kind.size))[0]

    def text(self) -> str:
        size: int = self.number(_U64)
        if size > _MAX_TEXT_BYTES:
            raise self.invalid(f"a name of {size:,} bytes is too long; {_DAMAGED}")
        start = self.take(size)
        return self.data[start : start + size].decode(errors="replace")

    def invalid(self, problem: str) -> ModelFileInvalid:
        return ModelFileInvalid(problem, path=self.path, offset=self.at)


def _parse(cursor: _Cursor) -> GgufFile:
    # 1. Format and version.
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise cursor.invalid(
            f"it begins with {magic!r}, not b'GGUF'; download the model itself "
            "(a web page or a Git LFS pointer may have been saved in its place)"
        )
    cursor.take(len(magic))
    version: int = cursor.number(_U32)
    # Lengths had 32 bits in version 1. A big-endian file's 3 is read here as 50,331,648.
    if version not in (2, 3):
        raise cursor.invalid(
            f"GGUF version {version} is not 2 or 3 in little-endian order; convert the model again"
        )
    tensor_count: int = cursor.number(_U64)
    value_count: int = cursor.number(_U64)
    if tensor_count > _MAX_TENSORS or value_count > _MAX_KEYS:
        raise cursor.invalid(f"{tensor_count:,} tensors and {value_count:,} keys; {_DAMAGED}")

    # 2. The keys.
    values: dict[str, GgufValue] = {}
    for _ in range(value_count):
        key = cursor.text()
        if key in values:
            raise cursor.invalid(f"the key '{key}' comes a second time; {_DAMAGED}")
        values[key] = _read_value(cursor)
    values_end = cursor.at

    # 3. The tensors, which must fit into the rest of the file.
    tensors: dict[str, int] = {}
    elements = 0
    for _ in range(tensor_count):
        name, size, count = _read_tensor(cursor)
        if name in tensors:
            raise cursor.invalid(f"the tensor '{name}' comes a second time; {_DAMAGED}")
        tensors[name] = size
        elements += count
    tensor_bytes = sum(tensors.values())
    remaining = len(cursor.data) - cursor.at
    if tensor_bytes > remaining:
        raise cursor.invalid(
            f"{tensor_bytes:,} bytes of tensors should follow, {remaining:,} do; {_DAMAGED}"
        )
    return GgufFile(
        path=cursor.path, values=values, values_end=values_end, tensors=tensors, elements=elements
    )


def _read_value(cursor: _Cursor) -> GgufValue:
    kind: int = cursor.number(_U32)
    offset = cursor.at
    content: object = None
    length = 1
    if kind in _NUMBER_CODES:
        content = cursor.number(Struct("<" + _NUMBER_CODES[kind]))
    elif kind == _STRING:
        content = _read_string(cursor)
    elif kind == _ARRAY:
        item: int = cursor.number(_U32)
        length = cursor.number(_U64)
        if item in _NUMBER_CODES:
            content = _read_numbers(cursor, _NUMBER_CODES[item], length)
        elif item == _STRING:
            # Not kept: the vocabulary is most of a header.
            _skip_strings(cursor, length)
        else:
            raise cursor.invalid(f"an array of value type {item} is unknown; {_DAMAGED}")
    else:
        raise cursor.invalid(f"value type {kind} is unknown; {_DAMAGED}")
    return GgufValue(offset=offset, content=content, length=length)


def _read_string(cursor: _Cursor) -> str | None:
    """A text, or None if it is too long to be a name."""
    size: int = cursor.number(_U64)
    start = cursor.take(size)
    if size > _MAX_TEXT_BYTES:
        return None
    return cursor.data[start : start + size].decode(errors="replace")


def _read_numbers(cursor: _Cursor, code: str, length: int) -> tuple[object, ...] | None:
    """The numbers of an array, or None if it has more than `MAX_LAYERS`."""
    start = cursor.take(length * Struct("<" + code).size)
    if length > MAX_LAYERS:
        return None
    return Struct(f"<{length}{code}").unpack_from(cursor.data, start)


def _skip_strings(cursor: _Cursor, length: int) -> None:
    """Steps over texts. Each has its size in eight bytes, and then so many bytes."""
    # Local names and no `cursor.take`: a vocabulary has some 100,000 texts, at 0.1 µs each.
    data, at, unpack_from = cursor.data, cursor.at, _U64.unpack_from
    last = len(data) - _U64.size
    for _ in range(length):
        if at > last:
            break
        at += _U64.size + unpack_from(data, at)[0]
    else:
        if at <= len(data):
            cursor.at = at
            return
    raise cursor.invalid(f"{length:,} texts should follow, the file ends first; {_DAMAGED}")


def _read_tensor(cursor: _Cursor) -> tuple[str, int, int]:
    """The tensor's name, bytes and elements."""
    name = cursor.text()
    dimensions: int = cursor.number(_U32)
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.invalid(f"tensor '{name}' has {dimensions:,} dimensions; {_DAMAGED}")
    # A tensor without dimensions is one number.
    shape = [cursor.number(_U64) for _ in range(dimensions)] or [1]
    kind: int = cursor.number(_U32)
    if kind not in TENSOR_FORMATS:
        raise cursor.invalid(
            f"tensor '{name}' is of type {kind}, which is unknown here; "
            "convert the model again if it is old, update harness if it is new"
        )
    try:
        row_bytes = TENSOR_FORMATS[kind].row_bytes(shape[0])
    except ValueError as error:
        raise cursor.invalid(f"tensor '{name}': {error}; {_DAMAGED}") from error
    cursor.number(_U64)  # where it lies among the tensors
    return name, row_bytes * math.prod(shape[1:]), math.prod(shape)
