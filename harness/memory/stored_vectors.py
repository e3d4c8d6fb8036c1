"""The vectors of passages as SQLite keeps them: a table for each embedder.

Vectors are little-endian float32. All functions work within the caller's transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput
from harness.memory.embedder import Embedder
from harness.memory.passage import Passage
from harness.memory.rows import COLUMNS, numbers, passage_of

Numbered = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Sequence numbers (n,), growing, and their vectors (n, d)."""

Row = tuple[int, bytes]
"""A sequence number and a vector."""


def table_of(db: sqlite3.Connection, embedder: Embedder) -> str | None:
    """The name of its table; None when it has embedded nothing here."""
    return _table(db, embedder.name, embedder.dimensions)


def make_table(db: sqlite3.Connection, name: str, dimensions: int) -> str:
    """The name of an embedder's table, which is made if it is not there."""
    if table := _table(db, name, dimensions):
        return table
    made = db.execute("INSERT INTO embedder (name, dimensions) VALUES (?, ?)", (name, dimensions))
    table = f"vector_{made.lastrowid}"
    db.execute(f"CREATE TABLE {table} (sequence INTEGER PRIMARY KEY, vector BLOB NOT NULL)")
    return table


def _table(db: sqlite3.Connection, name: str, dimensions: int) -> str | None:
    row = db.execute(
        "SELECT number FROM embedder WHERE name = ? AND dimensions = ?", (name, dimensions)
    ).fetchone()
    return None if row is None else f"vector_{row[0]}"


def tables(db: sqlite3.Connection) -> list[str]:
    """Those of all embedders."""
    return [f"vector_{number}" for (number,) in db.execute("SELECT number FROM embedder")]


def drop_other_vectors(db: sqlite3.Connection, embedder: Embedder) -> None:
    """Forgets all embedders but this one, and their vectors."""
    kept = table_of(db, embedder)
    for table in tables(db):
        if table != kept:
            db.execute(f"DROP TABLE {table}")
            db.execute("DELETE FROM embedder WHERE 'vector_' || number = ?", (table,))


def vectors_between(db: sqlite3.Connection, embedder: Embedder, low: int, high: int) -> list[Row]:
    """Those with low < sequence number <= high, in its order."""
    table = table_of(db, embedder)
    if table is None:
        return []
    query = (
        f"SELECT sequence, vector FROM {table}"  # noqa: S608  # a number of ours
        " WHERE sequence > ? AND sequence <= ? ORDER BY sequence"
    )
    return db.execute(query, (low, high)).fetchall()


def vectors_of(db: sqlite3.Connection, embedder: Embedder, sequences: Iterable[int]) -> list[Row]:
    """Those of these sequence numbers that have one, in their order."""
    table = table_of(db, embedder)
    if table is None:
        return []
    query = (
        f"SELECT sequence, vector FROM {table}"  # noqa: S608  # a number of ours
        " WHERE sequence IN (SELECT value FROM json_each(?)) ORDER BY sequence"
    )
    return db.execute(query, (numbers(sequences),)).fetchall()


def numbered(rows: list[Row], embedder: Embedder) -> Numbered:
    """The same as arrays."""
    sequences = np.fromiter((sequence for sequence, _ in rows), dtype=np.int64, count=len(rows))
    # A bytearray, so that numpy lets the matrix be written to.
    joined = bytearray().join([vector for _, vector in rows])
    vectors = np.frombuffer(joined, dtype="<f4").reshape(len(rows), embedder.dimensions)
    return sequences, vectors.astype(np.float32, copy=False)


def without_vector(
    db: sqlite3.Connection, embedder: Embedder, limit: int, *, after: int
) -> list[tuple[int, Passage]]:
    """The first passages beyond a number that have no vector of this embedder."""
    table = table_of(db, embedder)
    lacking = f" AND sequence NOT IN (SELECT sequence FROM {table})" if table else ""  # noqa: S608  # a number of ours
    query = (
        f"SELECT {COLUMNS} FROM passage WHERE sequence > ?{lacking}"  # noqa: S608  # constants
        " ORDER BY sequence LIMIT ?"
    )
    return [(row[0], passage_of(row)) for row in db.execute(query, (after, limit))]


def count_without_vector(db: sqlite3.Connection, embedder: Embedder) -> int:
    """How many passages have no vector of this embedder; every vector is a passage's."""
    table = table_of(db, embedder)
    vectors = f"(SELECT count(*) FROM {table})" if table else "0"  # noqa: S608  # a number of ours
    (count,) = db.execute(f"SELECT count(*) - {vectors} FROM passage").fetchone()  # noqa: S608  # a number of ours
    return int(count)


def put_vectors(
    db: sqlite3.Connection,
    embedder: Embedder,
    sequences: Sequence[int] | NDArray[np.int64],
    vectors: NDArray[np.float32],
) -> None:
    """Keeps the vectors of those passages that are there, instead of any they had."""
    if vectors.shape != (len(sequences), embedder.dimensions):
        raise InvalidInput(
            f"vectors of shape {vectors.shape} for {len(sequences)} passages; embedder "
            f"'{embedder.name}' gives {(len(sequences), embedder.dimensions)}",
            code="memory.vectors-wrong-shape",
        )
    table = make_table(db, embedder.name, embedder.dimensions)
    db.executemany(
        f"INSERT OR REPLACE INTO {table} SELECT sequence, ? FROM passage WHERE sequence = ?",  # noqa: S608  # a number of ours
        [
            (blob_of(vector), int(sequence))
            for sequence, vector in zip(sequences, vectors, strict=True)
        ],
    )


def blob_of(vector: NDArray[np.float32]) -> bytes:
    """A vector as it is stored."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()
