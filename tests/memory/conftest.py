"""What the tests of the memory store share."""

from collections.abc import Iterator
from pathlib import Path

import postgres
import pytest

from harness.memory import (
    Embedder,
    MemoryStore,
    MiniLmEmbedder,
    Passage,
    Place,
    WordLlamaEmbedder,
    place_of,
)
from harness.memory.embedder import has_wordllama
from harness.memory.primary import PrimaryStore


@pytest.fixture(scope="session")
def embedder() -> Embedder:
    """The included one, once for all tests: it takes 0.3 s to load."""
    return WordLlamaEmbedder() if has_wordllama() else MiniLmEmbedder()


@pytest.fixture(scope="session")
def animals() -> list[Passage]:
    return [
        Passage(text="It floats on its back and cracks shells.", title="Otters", source="a"),
        Passage(text="It stands still in shallow water and waits.", title="Herons", source="b"),
        Passage(text="They hunt voles under the snow by sound.", title="Foxes", source="c"),
        Passage(text="A log is written before the pages are.", title="Databases", source="d"),
    ]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.Server]:
    if reason := postgres.missing():
        pytest.skip(reason)
    with postgres.server() as running:
        yield running


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def place(request, tmp_path: Path, monkeypatch) -> Place:
    """Where no store is yet: of each kind of primary store."""
    if request.param == "sqlite":
        return tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))  # where indexes lie
    return place_of(request.getfixturevalue("postgres_server").url())


@pytest.fixture
def store(place: Place, embedder: Embedder, animals: list[Passage]) -> Iterator[MemoryStore]:
    """A store of four passages."""
    with MemoryStore.open(place, embedder=embedder) as opened:
        opened.add(animals)
        yield opened


@pytest.fixture
def primary(place: Place) -> Iterator[PrimaryStore]:
    """An empty one."""
    opened = PrimaryStore.open(place)
    yield opened
    opened.close()
