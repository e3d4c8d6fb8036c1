"""What the tests of the memory store share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.memory import MemoryStore, Passage, WordLlamaEmbedder
from harness.memory.primary import PrimaryStore


@pytest.fixture(scope="session")
def embedder() -> WordLlamaEmbedder:
    """One for all tests: it takes 0.3 s to load."""
    return WordLlamaEmbedder()


@pytest.fixture(scope="session")
def animals() -> list[Passage]:
    return [
        Passage(text="It floats on its back and cracks shells.", title="Otters", source="a"),
        Passage(text="It stands still in shallow water and waits.", title="Herons", source="b"),
        Passage(text="They hunt voles under the snow by sound.", title="Foxes", source="c"),
        Passage(text="A log is written before the pages are.", title="Databases", source="d"),
    ]


@pytest.fixture
def store(
    tmp_path: Path, embedder: WordLlamaEmbedder, animals: list[Passage]
) -> Iterator[MemoryStore]:
    """A store of four passages in `tmp_path`."""
    with MemoryStore.open(tmp_path, embedder=embedder) as opened:
        opened.add(animals)
        yield opened


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[PrimaryStore]:
    """An empty one in `tmp_path`."""
    opened = PrimaryStore.open(tmp_path)
    yield opened
    opened.close()
