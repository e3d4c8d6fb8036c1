"""One .safetensors file as it lies on disk: the bytes of its tensors.

A size of eight bytes, that many bytes of JSON, and the tensors, which fill the rest of the file one
after another. As the safetensors package 0.8 has it, every offset is held against the file's end.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, TypeGuard

import orjson

from harness.errors import ModelFileInvalid

_SIZE_BYTES: Final = 8
_MAX_JSON_BYTES: Final = 100_000_000  # the package's own limit
_MAX_DIMENSIONS: Final = 64

_ELEMENT_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16,
    "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip

_DAMAGED: Final = "the file is cut or damaged, download it again"


def read_safetensors_file(path: Path) -> dict[str, int]:
    """The bytes of each tensor, by name.

    Raises:
        ModelFileInvalid: It is missing, is no safetensors file, or is cut or damaged.
    """
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            size = int.from_bytes(file.read(_SIZE_BYTES), "little")
            left = file_bytes - _SIZE_BYTES
            if left < 0 or size > min(left, _MAX_JSON_BYTES):
                raise _invalid(
                    path,
                    0,
                    f"a header of {size:,} bytes should follow, {max(left, 0):,} bytes do; "
                    f"{_DAMAGED} (a web page or Git LFS pointer may have been saved in its place)",
                )
            text = file.read(size)
    except OSError as error:
        raise ModelFileInvalid(
            f"cannot be opened ({error.strerror}); download all files of the model into one folder",
            path=path,
        ) from error
    header = read_json(text, path=path, offset=_SIZE_BYTES)
    if not isinstance(header, dict):
        raise _invalid(path, _SIZE_BYTES, f"the header is not an object; {_DAMAGED}")
    tensors = {name: about for name, about in header.items() if name != "__metadata__"}
    ranges = [_range(path, text, name, about) for name, about in tensors.items()]
    _check_no_gaps(
        path, ranges, start=_SIZE_BYTES + size, data_bytes=file_bytes - _SIZE_BYTES - size
    )
    return {name: end - begin for name, (begin, end) in zip(tensors, ranges, strict=True)}


def read_json(text: bytes, *, path: Path, offset: int = 0) -> Any:  # noqa: ANN401 - whatever it is
    """What stands in a JSON text that begins at byte `offset` of a file.

    Raises:
        ModelFileInvalid: It is not JSON.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        # It counts letters, of which the rest may be more than one byte.
        read = len(error.doc[: error.pos].encode(errors="replace")) if error.doc else 0
        raise ModelFileInvalid(
            f"it is not JSON ({error.msg}); {_DAMAGED}", path=path, offset=offset + read
        ) from error


def _range(path: Path, text: bytes, name: str, about: object) -> tuple[int, int]:
    """Where a tensor lies among all of them: its first byte, and the one after its last."""

    def invalid(problem: str, remedy: str = _DAMAGED) -> ModelFileInvalid:
        at = max(text.find(orjson.dumps(name)), 0)
        return _invalid(path, _SIZE_BYTES + at, f"tensor '{name}' {problem}; {remedy}")

    if not isinstance(about, dict):
        raise invalid("is not described by an object")
    kind, shape, offsets = (about.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(kind, str) or kind not in _ELEMENT_BITS:
        raise invalid(f"is of type {kind!r}, which is unknown here", "update harness if it is new")
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise invalid("has no shape that a tensor can have")
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise invalid("does not say from where to where it lies")
    size, bits = offsets[1] - offsets[0], math.prod(shape) * _ELEMENT_BITS[kind]
    if bits != 8 * size:
        raise invalid(f"has {size:,} bytes, which is not what its shape needs")
    return offsets[0], offsets[1]


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _check_no_gaps(
    path: Path, ranges: list[tuple[int, int]], *, start: int, data_bytes: int
) -> None:
    at = 0
    for begin, end in sorted(ranges):
        if begin != at:
            raise _invalid(path, start + min(at, data_bytes), f"no tensor begins here; {_DAMAGED}")
        at = end
    if at != data_bytes:
        raise _invalid(
            path,
            start + min(at, data_bytes),
            f"{at:,} bytes of tensors should follow the header, {data_bytes:,} do; {_DAMAGED}",
        )


def _invalid(path: Path, offset: int, problem: str) -> ModelFileInvalid:
    return ModelFileInvalid(problem, path=path, offset=offset)
