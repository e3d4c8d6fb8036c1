"""The same passages and vectors in LanceDB, Chroma and SQLite's FTS5, each as it is fastest.

All embed a question themselves, with the embedder they are given, and return ten passages with
title and text. Words are Porter-stemmed everywhere, and a passage needs any of a question's.

LanceDB: its own full-text index, without positions, stop words left out; reciprocal rank fusion,
its default. Through its async API, which takes up to 2 ms less a search than the other. Twice:
without an index of the vectors, as its documentation advises for fewer than 100,000; and with
IVF_RQ of 8 bits, its fastest index that still found the nearest ten here. On 50,000 of these
passages, two cores and not the quietest of machines, a vector search in ms, and its recall@10:
none 34, 1.00; IVF_FLAT 4.0, 1.00; IVF_RQ of 8 bits 2.0, 0.98; IVF_SQ 2.2, 0.98; IVF_RQ of 4 bits
2.0, 0.91; IVF_HNSW_SQ 1.9, 0.56; IVF_RQ of 1 bit, its default, 1.8, 0.44; IVF_PQ 2.9, 0.30.

Chroma: cosine, and what it comes with for the rest. Its local form has no search by words but for
a part of a text, and none that fuses.

FTS5: rows in one table, `bm25` as its `rank`, segments merged into one by `optimize`. Without
positions (`detail=none`) it is seven times slower, as `bm25` then reads the texts again; `mmap` and
a larger cache change nothing. WAL and synchronous=FULL: an add is on the disk when it returns, as
ours is.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

# It would write a line for each search: that it gives scores, which may change one day.
os.environ.setdefault("LANCEDB_LOG", "error")

import chromadb
import lancedb
import pyarrow
from chromadb.config import Settings
from lancedb.index import FTS, IvfRq

from harness.memory import Embedder, Mode, Passage

LIMIT = 10


# --- LanceDB ------------------------------------------------------------------------------------


class LanceDB:
    """Without an index of the vectors."""

    modes: ClassVar[tuple[Mode, ...]] = ("hybrid", "lexical", "vector")
    vector_index: ClassVar[IvfRq | None] = None

    def __init__(self, directory: Path, embedder: Embedder) -> None:
        self._embedder = embedder
        self._here = threading.local()
        self._runners: list[asyncio.Runner] = []
        self._table = self._run(self._open(directory))

    def load(self, passages: Sequence[Passage]) -> None:
        self._run(self._load(passages))

    def add(self, passage: Passage) -> None:
        self._run(self._table.add(self._rows([passage])))

    def search(self, query: str, mode: Mode) -> list[str]:
        return [row["id"] for row in self._run(self._search(query, mode))]

    def close(self) -> None:
        self._table.close()
        for runner in self._runners:
            runner.close()

    async def _open(self, directory: Path) -> Any:
        database = await lancedb.connect_async(directory)
        text, vector = pyarrow.string(), pyarrow.list_(pyarrow.float32(), self._embedder.dimensions)
        fields = {"id": text, "title": text, "text": text, "searchable": text, "vector": vector}
        return await database.create_table("passages", schema=pyarrow.schema(fields), exist_ok=True)

    async def _load(self, passages: Sequence[Passage]) -> None:
        await self._table.add(self._rows(passages))
        await self._table.create_index("searchable", config=FTS(with_position=False))
        if self.vector_index:
            await self._table.create_index("vector", config=self.vector_index)

    async def _search(self, query: str, mode: Mode) -> list[dict[str, Any]]:
        search = self._table.query()
        if mode != "lexical":
            search = search.nearest_to(self._embedder.embed([query])[0]).distance_type("cosine")
        if mode != "vector":
            search = search.nearest_to_text(query)
        rows: list[dict[str, Any]] = (
            await search.select(["id", "title", "text"]).limit(LIMIT).to_list()
        )
        return rows

    def _rows(self, passages: Sequence[Passage]) -> pyarrow.Table:
        vectors = self._embedder.embed([one.searchable for one in passages])
        numbers = pyarrow.array(vectors.ravel())
        return pyarrow.table(
            {
                "id": [one.id for one in passages],
                "title": [one.title for one in passages],
                "text": [one.text for one in passages],
                "searchable": [one.searchable for one in passages],
                "vector": pyarrow.FixedSizeListArray.from_arrays(numbers, vectors.shape[1]),
            }
        )

    def _run(self, coroutine: Any) -> Any:
        """In an event loop of this thread's own."""
        if not hasattr(self._here, "runner"):
            self._here.runner = asyncio.Runner()
            self._runners.append(self._here.runner)
        return self._here.runner.run(coroutine)


class LanceDBIndexed(LanceDB):
    """With one."""

    vector_index = IvfRq(distance_type="cosine", num_bits=8)


# --- Chroma -------------------------------------------------------------------------------------


class Chroma:
    """Vectors alone, in an HNSW graph."""

    modes: ClassVar[tuple[Mode, ...]] = ("vector",)

    def __init__(self, directory: Path, embedder: Embedder) -> None:
        self._embedder = embedder
        self._client = chromadb.PersistentClient(
            directory, settings=Settings(anonymized_telemetry=False)
        )
        self._collection = self._client.get_or_create_collection(
            "passages", embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
        )

    def load(self, passages: Sequence[Passage]) -> None:
        most = self._client.get_max_batch_size()
        for start in range(0, len(passages), most):
            self._add(passages[start : start + most])

    def add(self, passage: Passage) -> None:
        self._add([passage])

    def search(self, query: str, mode: Mode) -> list[str]:
        assert mode in self.modes
        found = self._collection.query(
            query_embeddings=self._embedder.embed([query]),
            n_results=LIMIT,
            include=["documents", "metadatas", "distances"],
        )
        return found["ids"][0]

    def close(self) -> None:
        self._client.close()

    def _add(self, passages: Sequence[Passage]) -> None:
        self._collection.add(
            ids=[one.id for one in passages],
            embeddings=self._embedder.embed([one.searchable for one in passages]),
            documents=[one.text for one in passages],
            metadatas=[{"title": one.title} for one in passages],
        )


# --- FTS5 ---------------------------------------------------------------------------------------


class FTS5:
    """Words alone, by the SQLite that comes with Python."""

    modes: ClassVar[tuple[Mode, ...]] = ("lexical",)

    def __init__(self, directory: Path, _embedder: Embedder) -> None:
        directory.mkdir(exist_ok=True)
        self._path = directory / "fts5.sqlite"
        self._here = threading.local()
        self._connections: list[sqlite3.Connection] = []
        self._connection.execute(
            "CREATE VIRTUAL TABLE IF NOT EXISTS passages USING fts5("
            "id UNINDEXED, title, text, tokenize = 'porter unicode61')"
        )

    def load(self, passages: Sequence[Passage]) -> None:
        rows = ((one.id, one.title, one.text) for one in passages)
        with self._connection as connection:
            connection.executemany("INSERT INTO passages VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO passages(passages) VALUES ('optimize')")

    def add(self, passage: Passage) -> None:
        row = (passage.id, passage.title, passage.text)
        with self._connection as connection:
            connection.execute("INSERT INTO passages VALUES (?, ?, ?)", row)

    def search(self, query: str, mode: Mode) -> list[str]:
        assert mode in self.modes
        words = dict.fromkeys(re.findall(r"\w+", query.lower()))
        found = self._connection.execute(
            "SELECT id, title, text FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?",
            (" OR ".join(f'"{word}"' for word in words), LIMIT),
        )
        return [row[0] for row in found]

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    @property
    def _connection(self) -> sqlite3.Connection:
        """This thread's own: they read side by side."""
        if not hasattr(self._here, "connection"):
            self._here.connection = sqlite3.connect(self._path, check_same_thread=False)
            self._here.connection.execute("PRAGMA journal_mode = WAL")
            self._here.connection.execute("PRAGMA synchronous = FULL")
            self._connections.append(self._here.connection)
        connection: sqlite3.Connection = self._here.connection
        return connection


PEERS: dict[str, type[LanceDB | Chroma | FTS5]] = {
    "LanceDB": LanceDB,
    "LanceDB-IVF": LanceDBIndexed,
    "Chroma": Chroma,
    "FTS5": FTS5,
}
