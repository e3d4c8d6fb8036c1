"""Short ways to fill a primary, to spoil its file, and to expect an error by its code."""

import resource
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from harness.errors import HarnessError
from harness.memory.passage import Passage
from harness.memory.primary import PrimaryStore
from harness.memory.sqlite import FILE_NAME

EMBEDDER = SimpleNamespace(name="e", dimensions=2)


class Letters:
    """An embedder by chance alone: as good as any, and there at once."""

    name = "by chance"
    dimensions = 64

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        rows = [np.random.default_rng(list(t.encode())).standard_normal(64) for t in texts]
        return np.array(rows, dtype=np.float32).reshape(len(rows), 64)


@contextmanager
def failing(error: type[HarnessError], code: str) -> Iterator[None]:
    """Expects an error of this class and with this code."""
    with pytest.raises(error) as caught:
        yield
    assert caught.value.code == code


def put(primary: PrimaryStore, *texts: str) -> None:
    """Stores texts as passages with their own text as id, and their length in the vector."""
    vectors = np.array([[len(text), 1] for text in texts], dtype=np.float32)
    passages = [Passage(text=text, id=text) for text in texts]
    primary.add(list(zip(passages, vectors, strict=True)), embedder=EMBEDDER, merge=False)


def add(primary: PrimaryStore, *texts: str, **fields: object) -> None:
    """Stores texts without vectors, as a lexical index reads them."""
    passages = [(Passage(text=text, **fields), None) for text in texts]
    primary.add(passages, embedder=None, merge=False)


def change(directory: Path, script: str) -> None:
    """Does something to the file behind everyone's back."""
    database = sqlite3.connect(directory / FILE_NAME)
    database.executescript(script)
    database.close()


def words(count: int, *, seed: int) -> list[str]:
    """Six letters each, by chance."""
    chance = Random(seed)
    return ["".join(chance.choices("abcdefghij", k=6)) for _ in range(count)]


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """A disk that is full for larger ones."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
