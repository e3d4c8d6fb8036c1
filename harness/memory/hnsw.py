"""A graph of vectors for approximate search, in a file that is written once and never changed.

HNSW: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", TPAMI 2020 (arXiv 1603.09320); the graph is usearch's.
It keeps one byte per dimension, and only proposes: what it finds is scored by the vectors of the
primary store.

A file is a header, one line of JSON in 1,024 bytes, then usearch's bytes, then the CRC-32 of both.
It is searched in memory, and only if the checksum is right: a damaged graph crashes the process.
Writing and deleting raise `MemoryStoreFailed` if the file system refuses.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import MemoryStoreFailed
from harness.memory.embedder import Embedder, Vectors
from harness.memory.matrix import Rows

_HEADER_BYTES = 1024
_CRC_BYTES = 4
_SUFFIX = ".hnsw"
_UNFINISHED = ".unfinished"

_CONNECTIVITY = 16
_EXPANSION_ADD = 128
EXPANSION_SEARCH = 512
"""How many vectors a search keeps in view: more find more, and take longer."""


class _Header(BaseModel):
    model_config = ConfigDict(frozen=True)

    made_by: str
    embedder: str
    dimensions: int
    position: int
    count: int


class Graph:
    """The vectors of one embedder as they were after one write.

    Attributes:
        position: The number of that write.
        count: How many vectors there were.
        nbytes: Memory it takes.
    """

    def __init__(self, header: _Header, content: memoryview) -> None:
        self.position = header.position
        self.count = header.count
        self.nbytes = len(content)
        self._content = content  # usearch reads it in place, and keeps no reference
        self._index = _index(header.dimensions)
        self._index.view(content)

    @classmethod
    def load(cls, directory: Path, embedder: Embedder) -> Self | None:
        """The newest of an embedder; None if there is no undamaged one."""
        for path in sorted(_paths(directory, embedder), key=_position_of, reverse=True):
            try:
                file = memoryview(path.read_bytes())
                if crc32(file[:-_CRC_BYTES]).to_bytes(_CRC_BYTES) != file[-_CRC_BYTES:]:
                    continue
                header = _Header.model_validate_json(bytes(file[:_HEADER_BYTES]))
                mine = (_made_by(), embedder.name, embedder.dimensions)
                if (header.made_by, header.embedder, header.dimensions) == mine:
                    return cls(header, file[_HEADER_BYTES:-_CRC_BYTES])
            # An unreadable graph is made again from the primary store.
            except (OSError, ValidationError, RuntimeError):
                continue
        return None

    def nearest(self, query: Vectors, limit: int) -> Rows:
        """The numbers of about the nearest `limit` vectors to a query (d,), nearest first."""
        if not limit:
            return np.empty(0, dtype=np.int64)
        keys: NDArray[np.uint64] = self._index.search(_as_bytes(query), limit, threads=1).keys
        return keys.astype(np.int64)


def write(
    directory: Path,
    embedder: Embedder,
    *,
    position: int,
    vectors: Iterable[tuple[Rows, Vectors]],
    went_on: Callable[[int], bool],
) -> bool:
    """Makes a graph in `directory`, and deletes the embedder's older ones.

    Args:
        directory: Made if it is missing.
        embedder: Made the vectors.
        position: The write after which the store had exactly these vectors.
        vectors: Numbers (m,) and vectors (m, d), in parts.
        went_on: Told every 1,000 vectors how many are in; false stops it.

    Returns:
        Whether it was made; not if it was stopped, or another process is making one.
    """
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        with _alone(directory) as alone:
            if not alone:
                return False
            for unfinished in directory.glob(f"*{_UNFINISHED}"):
                unfinished.unlink()
            index = _index(embedder.dimensions)
            if not _fill(index, vectors, went_on):
                return False
            older = list(_paths(directory, embedder))
            path = directory / f"{_stem(embedder)}-{position}{_SUFFIX}"
            _save(index, path, embedder, position)
            for old in older:
                if old != path:
                    old.unlink(missing_ok=True)
            return True
    except OSError as error:
        raise MemoryStoreFailed(
            f"the vectors' index cannot be written: {error.strerror or error}",
            path=directory,
            code="memory.graph-not-written",
        ) from error


def newest(directory: Path, embedder: Embedder) -> int:
    """The position of an embedder's newest graph, damaged or not; 0 if there is no graph."""
    return max(map(_position_of, _paths(directory, embedder)), default=0)


def forget(directory: Path, *, but: Embedder | None) -> None:
    """Deletes the graphs of all embedders but one."""
    kept = set() if but is None else set(_paths(directory, but))
    try:
        for path in set(directory.glob(f"*{_SUFFIX}")) - kept:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise MemoryStoreFailed(
            f"the vectors' index cannot be deleted: {error.strerror or error}",
            path=directory,
            code="memory.graph-not-deleted",
        ) from error


def _fill(
    index: Any,  # noqa: ANN401  # usearch has no types
    vectors: Iterable[tuple[Rows, Vectors]],
    went_on: Callable[[int], bool],
) -> bool:
    for sequences, part in vectors:
        for start in range(0, len(part), 1000):
            some = slice(start, start + 1000)
            # A text without content has a vector of zeros, which is near nothing.
            full = part[some].any(axis=1)
            # One thread: searches go on meanwhile.
            index.add(
                sequences[some][full].astype(np.uint64), _as_bytes(part[some][full]), threads=1
            )
            if not went_on(len(index)):
                return False
    return True


def _save(
    index: Any,  # noqa: ANN401  # usearch has no types
    path: Path,
    embedder: Embedder,
    position: int,
) -> None:
    content = index.save()
    header = _Header(
        made_by=_made_by(),
        embedder=embedder.name,
        dimensions=embedder.dimensions,
        position=position,
        count=len(index),
    )
    head = header.model_dump_json().encode().ljust(_HEADER_BYTES)
    unfinished = path.with_suffix(_UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            for part in (head, content, crc32(content, crc32(head)).to_bytes(_CRC_BYTES)):
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)  # part of one, on a full disk


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether no other process makes a graph here; inside, none can begin."""
    with (directory / "lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _usearch() -> Any:  # noqa: ANN401  # it has no types
    """The package, imported only when needed: it takes 0.1 s, and few stores are so large."""
    import usearch.index  # noqa: PLC0415

    return usearch


def _index(dimensions: int) -> Any:  # noqa: ANN401  # as above
    return _usearch().index.Index(
        ndim=dimensions,
        metric="cos",
        dtype="i8",
        connectivity=_CONNECTIVITY,
        expansion_add=_EXPANSION_ADD,
        expansion_search=EXPANSION_SEARCH,
        enable_key_lookups=False,
    )


def _as_bytes(vectors: Vectors) -> NDArray[np.int8]:
    """Each vector scaled by its own greatest number, which a cosine ignores.

    usearch's own scale assumes a vector with all its length in one number, and loses precision.
    """
    greatest = np.abs(vectors).max(axis=-1, keepdims=True)
    scale = np.float32(127) / np.maximum(greatest, np.float32(1e-6))  # of a query of zeros
    scaled: NDArray[np.int8] = np.rint(vectors * scale).astype(np.int8)
    return scaled


def _made_by() -> str:
    return json.dumps(["i8", _CONNECTIVITY, _EXPANSION_ADD, "usearch", _usearch().__version__])


def _paths(directory: Path, embedder: Embedder) -> Iterator[Path]:
    return directory.glob(f"{_stem(embedder)}-*{_SUFFIX}")


def _stem(embedder: Embedder) -> str:
    content = json.dumps([embedder.name, embedder.dimensions]).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def _position_of(path: Path) -> int:
    number = path.stem.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
