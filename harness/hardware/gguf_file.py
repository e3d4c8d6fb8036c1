"""One GGUF file as it lies on disk: its keys, and the bytes of its tensors.

The file is mapped and stepped through: long arrays (the vocabulary is most of a header) are
skipped and no tensor is touched, so that this takes milliseconds. Every length is held against
the end of the file before it is used: a damaged header is an error and nothing worse.

Layout and limits are those of llama.cpp b11434 (ggml/src/gguf.cpp).
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final

import numpy as np

from harness.errors import ModelFileInvalid
from harness.hardware.quantization import TENSOR_FORMATS

MAX_LAYERS: Final = 4096
"""More than any model has (llama.cpp stops at 512). Arrays up to this length are kept, and a
damaged layer count cannot become a tuple of 2^32 elements."""

_MAX_TEXT_BYTES: Final = 65535  # of a key, by the format; longer values are not kept
_MAX_DIMENSIONS: Final = 4
# What is kept of a key or a tensor takes more than it takes in the file. No model has so many.
_MAX_KEYS: Final = 10_000
_MAX_TENSORS: Final = 100_000

_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")
_NUMBER_CODES: Final = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING: Final = 8
_ARRAY: Final = 9

_DAMAGED: Final = "the file is cut or damaged, download it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufValue:
    """What stands behind one key, as far as it is kept."""

    offset: int | None
    """Byte at which it begins; None when a server told it."""
    content: object
    """A number, a text, a tuple of numbers, or None for what was stepped over."""
    length: int
    """Elements of an array; 1 for anything else, 0 for an array whose length was not told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """A model's only file, one part of a split model, or what a server tells of its header."""

    path: Path
    """Where it lies; what a server told goes by the model's name."""
    values: dict[str, GgufValue]
    """By key, in the file's order."""
    values_end: int | None
    """Byte after the last value; None when a server told them."""
    tensors: dict[str, int]
    """Bytes of its tensors, each by its own type, without the padding between them, by name."""
    file_bytes: int
    """Bytes on disk."""

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(self.tensors.values())

    def text(self, key: str, *, default: str | None = None) -> str:
        """A text, or `default` if there is one and the key is missing."""
        if default is not None and key not in self.values:
            return default
        content = self._required(key).content
        if not isinstance(content, str):
            raise self.unusable(key, f"is not a text; {_DAMAGED}")
        return content

    def count(self, key: str, *, default: int | None = None) -> int:
        """A whole number from 0, or `default` if there is one and the key is missing."""
        return self.counts(key, layers=1, default=None if default is None else (default,))[0]

    def counts(
        self, key: str, *, layers: int, default: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """One whole number for each layer; a single number in the file stands for all layers."""
        if default is not None and key not in self.values:
            return default
        content = self._required(key).content
        numbers: tuple[Any, ...] = content if isinstance(content, tuple) else (content,) * layers
        if len(numbers) != layers or any(type(n) is not int or n < 0 for n in numbers):
            raise self.unusable(key, f"is not a count, or not one for each layer; {_DAMAGED}")
        return numbers

    def flags(self, key: str, *, layers: int) -> tuple[bool, ...] | None:
        """Whether each layer is of a kind; None if the key holds no array, or none that is kept.

        As in llama.cpp an array may go on beyond the layers, or end before them: the rest are not.
        """
        value = self.values.get(key)
        if value is None or not isinstance(value.content, tuple):
            return None
        return tuple(map(bool, value.content[:layers])) + (False,) * (layers - value.length)

    def unusable(self, key: str, problem: str) -> ModelFileInvalid:
        """The error for a key whose value makes no sense."""
        return ModelFileInvalid(
            f"'{key}' {problem}", path=self.path, offset=self.values[key].offset
        )

    def _required(self, key: str) -> GgufValue:
        value = self.values.get(key)
        if value is None:
            raise ModelFileInvalid(
                f"'{key}' is missing; name the file of a language model "
                "(adapters and image projectors are GGUF files too)",
                path=self.path,
                offset=self.values_end,
            )
        return value


def read_gguf_file(path: Path) -> GgufFile:
    """Read one file's keys, and its tensors' sizes.

    It is mapped: one that is cut at that very moment, as by a download that begins anew, ends the
    process with SIGBUS.

    Raises:
        ModelFileInvalid: It is missing, is no GGUF, or is cut or damaged.
    """
    try:
        if path.is_fifo():  # which would be waited for
            raise ModelFileInvalid("is a pipe; give the path of a .gguf file", path=path)
        with path.open("rb") as file:
            if not path.stat().st_size:  # which cannot be mapped
                raise ModelFileInvalid(f"is empty; {_DAMAGED}", path=path, offset=0)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(_Cursor(data, path))
    except OSError as error:
        raise ModelFileInvalid(
            f"cannot be opened ({error.strerror}); give the path of a .gguf file, and keep all "
            "parts of a split model in one folder",
            path=path,
        ) from error


class _Cursor:
    """A place in the mapped file. It moves past what it has held against the file's end."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data = data
        self.path = path
        self.at = 0

    def take(self, size: int) -> int:
        """Move past the next `size` bytes, and say where they begin."""
        start = self.at
        left = len(self.data) - start
        if size > left:
            raise self.invalid(f"{size:,} bytes should follow, {left:,} do; {_DAMAGED}")
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
    # 1. What it is.
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise cursor.invalid(
            f"it begins with {magic!r}, not b'GGUF'; download the model itself "
            "(a web page or a Git LFS pointer may have been saved in its place)"
        )
    cursor.take(len(magic))
    version: int = cursor.number(_U32)
    if version not in (2, 3):
        raise cursor.invalid(
            f"GGUF version {version} is not 2 or 3 in little-endian order; convert the model anew"
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

    # 3. The tensors, which must all lie in the rest of the file.
    tensors: dict[str, int] = {}
    for _ in range(tensor_count):
        name, size = _read_tensor(cursor)
        if name in tensors:
            raise cursor.invalid(f"the tensor '{name}' comes a second time; {_DAMAGED}")
        tensors[name] = size
    tensor_bytes = sum(tensors.values())
    left = len(cursor.data) - cursor.at
    if tensor_bytes > left:
        raise cursor.invalid(
            f"{tensor_bytes:,} bytes of tensors should follow, {left:,} do; {_DAMAGED}"
        )
    return GgufFile(
        path=cursor.path,
        values=values,
        values_end=values_end,
        tensors=tensors,
        file_bytes=len(cursor.data),
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
            _skip_strings(cursor, length)
        else:
            raise cursor.invalid(f"an array of value type {item} is unknown; {_DAMAGED}")
    else:
        raise cursor.invalid(f"value type {kind} is unknown; {_DAMAGED}")
    return GgufValue(offset=offset, content=content, length=length)


def _read_string(cursor: _Cursor) -> str | None:
    """A text, or None for one that is too long to be a name."""
    size: int = cursor.number(_U64)
    start = cursor.take(size)
    if size > _MAX_TEXT_BYTES:
        return None
    return cursor.data[start : start + size].decode(errors="replace")


def _read_numbers(cursor: _Cursor, code: str, length: int) -> tuple[object, ...] | None:
    """The numbers of an array, or None for one that is longer than a model has layers."""
    start = cursor.take(length * Struct("<" + code).size)
    if length > MAX_LAYERS:
        return None
    return Struct(f"<{length}{code}").unpack_from(cursor.data, start)


def _skip_strings(cursor: _Cursor, length: int) -> None:
    end = skip_texts(cursor.data, cursor.at, length)
    if end is None:
        raise cursor.invalid(f"{length:,} texts should follow, the file ends first; {_DAMAGED}")
    cursor.take(end - cursor.at)


def _read_tensor(cursor: _Cursor) -> tuple[str, int]:
    """A tensor's name, and its bytes."""
    name = cursor.text()
    dimensions: int = cursor.number(_U32)
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.invalid(f"tensor '{name}' has {dimensions:,} dimensions; {_DAMAGED}")
    shape = [cursor.number(_U64) for _ in range(dimensions)] or [1]
    kind: int = cursor.number(_U32)
    if kind not in TENSOR_FORMATS:
        raise cursor.invalid(
            f"tensor '{name}' is of type {kind}, which is unknown here; "
            "convert the model anew if it is old, update harness if it is new"
        )
    try:
        row_bytes = TENSOR_FORMATS[kind].row_bytes(shape[0])
    except ValueError as error:
        raise cursor.invalid(f"tensor '{name}': {error}; {_DAMAGED}") from error
    cursor.number(_U64)  # where it lies among the tensors
    return name, row_bytes * math.prod(shape[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKeys:
    """What a header says of its model's shape. All methods raise ModelFileInvalid for nonsense."""

    file: GgufFile
    """The header."""
    architecture: str
    """What its keys begin with."""
    layers: int
    """How many there are."""

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number from 0, or `default` if there is one and the key is missing."""
        return self.file.count(f"{self.architecture}.{key}", default=default)

    def counts(self, key: str, default: tuple[int, ...] | None = None) -> tuple[int, ...]:
        """One whole number for each layer; a single number stands for all of them.

        The default, if there is one, stands for what a server left out, too.
        """
        if default is not None and self.is_untold(key):
            return default
        return self.file.counts(f"{self.architecture}.{key}", layers=self.layers, default=default)

    def flags(self, key: str) -> tuple[bool, ...] | None:
        """Whether each layer is of a kind; None if the key holds no array."""
        return self.file.flags(f"{self.architecture}.{key}", layers=self.layers)

    def is_untold(self, key: str) -> bool:
        """Whether the key is there, but a server left out the array it holds."""
        value = self.file.values.get(f"{self.architecture}.{key}")
        return value is not None and value.offset is None and value.content is None

    def any_begins(self, *beginnings: str) -> bool:
        """Whether a key begins so and does not hold 0, which is how a converter says "none"."""
        prefixes = tuple(f"{self.architecture}.{beginning}" for beginning in beginnings)
        return any(
            key.startswith(prefixes) and value.content != 0
            for key, value in self.file.values.items()
        )

    def unusable(self, key: str, problem: str) -> ModelFileInvalid:
        """The error for a key whose value makes no sense."""
        return self.file.unusable(f"{self.architecture}.{key}", problem)


def model_keys(file: GgufFile) -> ModelKeys:
    """The keys of the model in `file`.

    Raises:
        ModelFileInvalid: It does not say what it is, or how many layers it has.
    """
    architecture = file.text("general.architecture")
    key = f"{architecture}.block_count"
    layers = file.count(key)
    if not 0 < layers <= MAX_LAYERS:
        raise file.unusable(
            key, f"is {layers:,}, not 1 to {MAX_LAYERS:,}; the file is damaged, download it again"
        )
    return ModelKeys(file=file, architecture=architecture, layers=layers)


_SIZE: Final = Struct("<Q")
_ONE_BY_ONE: Final = 128
_WINDOW_BYTES: Final = 65_536


def skip_texts(data: mmap.mmap, at: int, count: int) -> int | None:
    """The byte after `count` texts that begin at `at`; None if the file ends first.

    A text is a size of eight bytes, then that many bytes, so that only the way through all of them
    leads to the last. One text after another takes 80 ns. Between such steps numpy guesses where
    the texts of the next 64 KiB begin, and those of its guesses that follow one another by the
    sizes that stand there are passed at once, in 20 ns each.
    """
    last = len(data) - _SIZE.size
    read_size = _SIZE.unpack_from
    while count:
        steps = min(count, _ONE_BY_ONE)
        for _ in range(steps):
            if at > last:
                return None
            (size,) = read_size(data, at)
            at += _SIZE.size + size
        count -= steps
        if count > _ONE_BY_ONE and at <= last:
            passed, at = _pass_window(data, at, count - 1)
            count -= passed
    return at if at <= len(data) else None


def _pass_window(data: mmap.mmap, at: int, limit: int) -> tuple[int, int]:
    """How many texts, `limit` at most, could be passed in one window from `at`, and where that led.

    Where it leads a text begins, and lies within the window.
    """
    # A copy: an array over the map would keep that open. Arrays of guesses take some times as much.
    window = data[at : at + min(_WINDOW_BYTES, len(data) // 16)]
    if len(window) < _SIZE.size:
        return 0, at
    # 1. A size below 256 is one byte and seven zeros, and text has no zeros: a guess, as most are.
    zero = np.frombuffer(window, np.uint8) == 0
    starts = np.flatnonzero(zero[:-1] & ~zero[1:]) - (_SIZE.size - 1)
    starts = starts[starts >= 0]
    if not starts.size or starts[0] != 0:
        return 0, at
    # 2. Where the next text begins by the size that stands there, all eight bytes of it. Signed
    # will do: by the guess its highest byte is 0.
    sizes = np.ndarray((len(window) - _SIZE.size + 1,), "<i8", window, strides=(1,))
    follows = starts[:-1] + _SIZE.size + sizes[starts[:-1]] == starts[1:]
    # 3. The guesses are right up to the first that does not follow.
    right = follows.size if follows.all() else int(np.argmin(follows))
    passed = min(right, limit)
    return passed, at + int(starts[passed])
