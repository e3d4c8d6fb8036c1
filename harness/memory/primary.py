"""The primary store: every passage and its vectors, in one SQLite file.

What is committed here is stored; both indexes are made from it and can be deleted at any time.
Every write takes the next sequence number, so one integer says how far an index has read: from p
to q it drops `removed_between(p, q)` and reads `passages_between(p, q)`. If p is less than
`compacted()` it begins again, since earlier removals are forgotten.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput
from harness.memory.embedder import Embedder, Vectors
from harness.memory.passage import Added, Merge, Passage, Rule, WantedTags, tags_of
from harness.memory.reading import number_of, reading
from harness.memory.sqlite import Connections, prepare, vector_tables

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is."""

Merging = bool | Literal["near"]
"""Which passages become one: those that are the same (True), also those that are near it, or none
(False). See `harness.memory.reading`."""

Numbers = NDArray[np.int64]

FILE_NAME = "passages.sqlite"

_WAIT_S = 10.0
_ROWS_AT_A_TIME = 256

# Passages with one reading number that are compared: adding many must not become quadratic.
_COMPARED = 64

_Row = tuple[int | None, str, str, str, str, float | None, str, str]
_COLUMNS = "sequence, id, text, title, source, quality, created, metadata"
_SELECT = f"SELECT {_COLUMNS} FROM passage"  # noqa: S608  # constants
_VALUES = f"({_COLUMNS}, reading) VALUES (?{', ?' * 8})"
_SAME_ID = "id = CAST(? AS TEXT)"


class PrimaryStore:
    """The passages in `directory`. May be used from any thread, and by several processes.

    Every method raises `MemoryStoreFailed` if the file is damaged, closed or unreadable. Writes
    raise it also if the file may not be written, the disk is full, or another process holds the
    write lock too long.

    Attributes:
        directory: Where the file is.
        language: The language whose words the lexical index stems.
    """

    def __init__(self, connections: Connections, *, language: str) -> None:
        self._connections = connections
        self.directory = connections.path.parent
        self.language = language

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        language: str | None = None,
        wait_s: float = _WAIT_S,
    ) -> Self:
        """Opens the file in `directory`, or makes both.

        Args:
            directory: Where the file is.
            language: None: English for a new store, else the store's own.
            wait_s: How long a write waits for writes of other processes.

        Raises:
            MemoryStoreFailed: It cannot be made or written, is damaged, or of another version.
            InvalidInput: It was made with another language.
        """
        connections = Connections(directory / FILE_NAME, wait_s=wait_s)
        try:
            return cls(connections, language=prepare(connections, language))
        except BaseException:
            connections.close()
            raise

    def close(self) -> None:
        """Closes the file; every later call raises."""
        self._connections.close()

    # --- writing -----------------------------------------------------------------------------

    def add(
        self,
        passages: Sequence[tuple[Passage, Vectors | None]],
        *,
        embedder: Embedder | None,
        merge: Merging = True,
    ) -> Added:
        """Stores passages, each with its vector by `embedder` if it has one.

        A known id changes nothing. A passage that says the same as a stored one, by `merge`, is
        kept beside it, and the stored one stays as it is. All are durable when this returns; none
        is stored if it raises.
        """
        now = datetime.now(UTC)
        new: list[str] = []
        known: list[str] = []
        merged: list[Merge] = []
        # Before the file is locked.
        readings = [number_of(passage) for passage, _ in passages]
        rule: Rule = "near" if merge == "near" else "same"
        with self._changing() as changes:
            for (passage, vector), number in zip(passages, readings, strict=True):
                dated = passage if passage.created else replace(passage, created=now)
                if _sequence_of(changes.db, passage.id) is not None:
                    known.append(passage.id)
                elif merge and (found := _merge_of(changes.db, dated, number, rule)):
                    _keep(changes.db, found)
                    merged.append(found)
                else:
                    sequence = changes.insert(dated, number)
                    changes.put_vector(sequence, vector, embedder)
                    new.append(passage.id)
        return Added(new=tuple(new), known=tuple(known), merged=tuple(merged))

    def delete(self, ids: Sequence[str]) -> int:
        """Removes passages and those merged into them; returns how many of the ids it knew."""
        deleted = 0
        with self._changing() as changes:
            for id_ in ids:
                found = _find(changes.db, id_)
                if found is not None:
                    changes.remove(*found)
                if _forget_merges(changes.db, id_) or found is not None:
                    deleted += 1
        return deleted

    def split(
        self,
        id: str,  # noqa: A002 - as for `get`
        vector: Vectors | None,
        embedder: Embedder | None,
    ) -> Passage:
        """Stores a merged passage by itself; the one it was merged into stays as it is.

        Raises `InvalidInput` if no passage with this id was merged, or a stored one has the id now.
        """
        with self._changing() as changes:
            found = _merges(changes.db, id)
            if not found or _find(changes.db, id):
                raise InvalidInput(
                    f"{self.directory}: no passage '{id}' that became one with another",
                    code="memory.not-merged",
                )
            passage = found[0].passage
            _forget_merges(changes.db, id)
            sequence = changes.insert(passage, number_of(passage))
            changes.put_vector(sequence, vector, embedder)
        return passage

    def put_vectors(
        self, embedder: Embedder, sequences: Sequence[int] | Numbers, vectors: Vectors
    ) -> None:
        """Keeps (n, d) vectors of the passages with these numbers, if they still exist."""
        with self._connections.writing() as db:
            _put_vectors(db, embedder, sequences, vectors)

    def set_unrelated(self, embedder: Embedder, value: float) -> None:
        """Keeps the cosine above which two texts are related, by this embedder."""
        with self._connections.writing() as db:
            _make_table(db, embedder)
            db.execute(
                "UPDATE embedder SET unrelated = ? WHERE name = ? AND dimensions = ?",
                (value, embedder.name, embedder.dimensions),
            )

    def compact(self, embedder: Embedder) -> None:
        """Frees the space of removed passages, and of the vectors of all other embedders.

        An index that has not read all removals has to begin again.
        """
        with self._connections.writing() as db:
            kept = _table_of(db, embedder)
            for table in vector_tables(db):
                if table != kept:
                    db.execute(f"DROP TABLE {table}")
                    db.execute("DELETE FROM embedder WHERE 'vector_' || number = ?", (table,))
            if db.execute("SELECT 1 FROM removed LIMIT 1").fetchone():
                db.execute("DELETE FROM removed")
                db.execute("UPDATE state SET compacted = sequence")
        with self._connections.writer() as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    @contextmanager
    def _changing(self) -> Iterator[_Changes]:
        with self._connections.writing() as db:
            changes = _Changes(db)
            yield changes
            changes.finish()

    # --- reading passages --------------------------------------------------------------------

    def known(self, passages: Iterable[Passage]) -> set[str]:
        """Which of these passages' ids are stored."""
        with self._connections.reading() as db:
            return {passage.id for passage in passages if _sequence_of(db, passage.id) is not None}

    def merges(self, id: str | None = None) -> list[Merge]:  # noqa: A002 - as for `get`
        """All merged passages in the order they came, or the one with this id."""
        with self._connections.reading() as db:
            return _merges(db, id)

    def get(self, id: str) -> Passage | None:  # noqa: A002 - the word that passages have for it
        """The passage with this id."""
        with self._connections.reading() as db:
            found = _find(db, id)
        return None if found is None else found[1]

    def fetch(self, sequences: Iterable[int]) -> dict[int, Passage]:
        """The passages with these numbers that still exist."""
        query = f"{_SELECT} WHERE sequence IN (SELECT value FROM json_each(?))"  # noqa: S608  # constants
        with self._connections.reading() as db:
            rows = db.execute(query, (_json(sequences),)).fetchall()
        return {row[0]: _passage_of(row) for row in rows}

    def passages_between(self, low: int, high: int) -> Iterator[tuple[int, Passage]]:
        """Passages with low < sequence number <= high, in this order.

        Read in parts. A passage that is removed meanwhile may be missing; what is
        written meanwhile has a number beyond `high`, if that was the last.
        """
        query = f"{_SELECT} WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?"
        while low < high:
            # Not one long read: SQLite's log of new writes grows as long as a read lasts.
            with self._connections.reading() as db:
                rows = db.execute(query, (low, high, _ROWS_AT_A_TIME)).fetchall()
            if not rows:
                return
            for row in rows:
                yield row[0], _passage_of(row)
            low = rows[-1][0]

    def removed_between(self, low: int, high: int) -> list[int]:
        """The numbers that the writes from low (exclusive) to high (inclusive) removed."""
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT sequence FROM removed WHERE at > ? AND at <= ? ORDER BY at", (low, high)
            )
            return [sequence for (sequence,) in rows]

    def tagged(self, where: WantedTags) -> Numbers:
        """The numbers of the passages that satisfy a filter (n,), ascending."""
        # Not one statement for all: SQLite limits the number of names and values.
        query = "SELECT sequence FROM tag WHERE tag IN (SELECT value FROM json_each(?))"
        with self._connections.reading() as db:
            found = [db.execute(query, (json.dumps(tags),)).fetchall() for tags in where]
            if not found:
                found = [db.execute("SELECT sequence FROM passage").fetchall()]
        each = [np.fromiter((sequence for (sequence,) in rows), dtype=np.int64) for rows in found]
        return reduce(np.intersect1d, each[1:], np.unique(each[0]))

    # --- reading vectors ---------------------------------------------------------------------

    def vectors_between(self, embedder: Embedder, low: int, high: int) -> tuple[Numbers, Vectors]:
        """Numbers (n,), ascending, and vectors (n, d) with low < number <= high."""
        rows: list[tuple[int, bytes]] = []
        with self._connections.reading() as db:
            if table := _table_of(db, embedder):
                between = "WHERE sequence > ? AND sequence <= ? ORDER BY sequence"
                query = f"SELECT sequence, vector FROM {table} {between}"  # noqa: S608  # constants
                rows = db.execute(query, (low, high)).fetchall()
        sequences = np.fromiter((sequence for sequence, _ in rows), dtype=np.int64, count=len(rows))
        # A bytearray, so that numpy lets the matrix be written to.
        joined = bytearray().join([vector for _, vector in rows])
        vectors = np.frombuffer(joined, dtype="<f4").reshape(len(rows), embedder.dimensions)
        return sequences, vectors.astype(np.float32, copy=False)

    def without_vector(
        self, embedder: Embedder, limit: int, *, after: int = 0
    ) -> list[tuple[int, Passage]]:
        """The first `limit` passages beyond `after` without a vector of this embedder."""
        with self._connections.reading() as db:
            table = _table_of(db, embedder)
            lacking = f" AND sequence NOT IN (SELECT sequence FROM {table})" if table else ""  # noqa: S608  # constants
            query = f"{_SELECT} WHERE sequence > ?{lacking} ORDER BY sequence LIMIT ?"
            return [(row[0], _passage_of(row)) for row in db.execute(query, (after, limit))]

    def count_without_vector(self, embedder: Embedder) -> int:
        """How many passages have no vector of this embedder; every vector is a passage's."""
        with self._connections.reading() as db:
            table = _table_of(db, embedder)
            vectors = f"(SELECT count(*) FROM {table})" if table else "0"  # noqa: S608  # constants
            return _number(db, f"SELECT count(*) - {vectors} FROM passage")  # noqa: S608  # constants

    def unrelated(self, embedder: Embedder) -> float | None:
        """The value that `set_unrelated` kept."""
        with self._connections.reading() as db:
            row = db.execute(
                "SELECT unrelated FROM embedder WHERE name = ? AND dimensions = ?",
                (embedder.name, embedder.dimensions),
            ).fetchone()
        return None if row is None else row[0]

    # --- its state ---------------------------------------------------------------------------

    def last_sequence(self) -> int:
        """The number of the last write."""
        with self._connections.reading() as db:
            return _number(db, "SELECT sequence FROM state")

    def extent(self) -> tuple[int, int]:
        """The number of the last write, and how many passages there were after it."""
        with self._connections.reading() as db:
            return _number(db, "SELECT sequence FROM state"), _number(db, _COUNT)

    def compacted(self) -> int:
        """The write up to which removals are forgotten."""
        with self._connections.reading() as db:
            return _number(db, "SELECT compacted FROM state")

    def last_written(self) -> str | None:
        """The time of the last write, as ISO 8601; None before the first."""
        with self._connections.reading() as db:
            written: str | None = db.execute("SELECT written FROM state").fetchone()[0]
        return written

    def __len__(self) -> int:
        with self._connections.reading() as db:
            return _number(db, _COUNT)


_COUNT = "SELECT count(*) FROM passage"


class _Changes:
    """The changes of one transaction. Make it when the transaction has begun; end with `finish`.

    Each change takes the next sequence number. A passage has the number of the change that stored
    it; when it is deleted, `removed` notes that number and the number of the deletion.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._before = self._sequence = _number(db, "SELECT sequence FROM state")

    def insert(self, passage: Passage, number: int) -> int:
        """Stores a new passage, with the number of its reading; returns its sequence number."""
        sequence = self._next()
        self.db.execute(f"INSERT INTO passage {_VALUES}", (*_row_of(sequence, passage), number))
        self._tag(sequence, passage)
        return sequence

    def remove(self, sequence: int, passage: Passage) -> None:
        self.db.execute("INSERT INTO removed VALUES (?, ?)", (self._next(), sequence))
        self.db.execute("DELETE FROM passage WHERE sequence = ?", (sequence,))
        self._untag(sequence, passage)
        self._drop_vectors(sequence)

    def put_vector(self, sequence: int, vector: Vectors | None, embedder: Embedder | None) -> None:
        """Keeps a passage's vector, if it has one."""
        if vector is not None and embedder is not None:
            _put_vectors(self.db, embedder, [sequence], vector[np.newaxis])

    def finish(self) -> None:
        if self._sequence != self._before:
            self.db.execute(
                "UPDATE state SET sequence = ?, written = ?",
                (self._sequence, datetime.now(UTC).isoformat()),
            )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _tag(self, sequence: int, passage: Passage) -> None:
        rows = [(tag, sequence) for tag in tags_of(passage)]
        self.db.executemany("INSERT INTO tag VALUES (?, ?)", rows)

    def _untag(self, sequence: int, passage: Passage) -> None:
        rows = [(tag, sequence) for tag in tags_of(passage)]
        self.db.executemany("DELETE FROM tag WHERE tag = ? AND sequence = ?", rows)

    def _drop_vectors(self, sequence: int) -> None:
        for table in vector_tables(self.db):
            self.db.execute(f"DELETE FROM {table} WHERE sequence = ?", (sequence,))  # noqa: S608  # constants


# --- rows ------------------------------------------------------------------------------------


def _row_of(sequence: int | None, passage: Passage) -> _Row:
    assert passage.created is not None
    return (
        sequence,
        passage.id,
        passage.text,
        passage.title,
        passage.source,
        passage.quality,
        passage.created.isoformat(),
        json.dumps(dict(passage.metadata)),
    )


def _passage_of(row: _Row) -> Passage:
    _, id_, text, title, source, quality, created, metadata = row
    return Passage(
        id=id_,
        text=text,
        title=title,
        source=source,
        quality=quality,
        created=datetime.fromisoformat(created),
        metadata=json.loads(metadata),
    )


def _find(db: sqlite3.Connection, id_: str) -> tuple[int, Passage] | None:
    row = db.execute(f"{_SELECT} WHERE {_SAME_ID}", (_any_id(id_),)).fetchone()
    return None if row is None else (row[0], _passage_of(row))


def _sequence_of(db: sqlite3.Connection, id_: str) -> int | None:
    row = db.execute("SELECT sequence FROM passage WHERE id = ?", (id_,)).fetchone()
    return None if row is None else int(row[0])


def _any_id(id_: str) -> bytes:
    """As bytes: any text may be asked for, even one that cannot be the id of a passage."""
    return id_.encode(errors="surrogatepass")


def _number(db: sqlite3.Connection, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


def _json(sequences: Iterable[int]) -> str:
    """For `json_each(?)`: one statement for any number of values."""
    return json.dumps([int(sequence) for sequence in sequences])


# --- merged passages -------------------------------------------------------------------------


def _merge_of(db: sqlite3.Connection, passage: Passage, number: int, rule: Rule) -> Merge | None:
    """The merge with the oldest passage that says the same by this rule."""
    wanted = reading(passage, rule)
    alike = f"{_SELECT} WHERE reading = ? ORDER BY sequence LIMIT {_COMPARED}"
    for row in db.execute(alike, (number,)):
        there = _passage_of(row)
        if reading(there, rule) == wanted:
            same = reading(there, "same") == reading(passage, "same")
            return Merge(passage=passage, into=there.id, rule="same" if same else "near")
    return None


def _keep(db: sqlite3.Connection, merge: Merge) -> None:
    """Keeps the new passage, whole, beside the one that is there."""
    statement = f"INSERT OR REPLACE INTO merged ({_COLUMNS}, kept, rule) VALUES (?{', ?' * 9})"  # noqa: S608  # constants
    db.execute(statement, (*_row_of(None, merge.passage), merge.into, merge.rule))


def _merges(db: sqlite3.Connection, id_: str | None = None) -> list[Merge]:
    query = f"SELECT {_COLUMNS}, kept, rule FROM merged"  # noqa: S608  # constants
    if id_ is None:
        rows = db.execute(f"{query} ORDER BY sequence")
    else:
        rows = db.execute(f"{query} WHERE {_SAME_ID}", (_any_id(id_),))
    return [Merge(passage=_passage_of(row), into=kept, rule=rule) for *row, kept, rule in rows]


def _forget_merges(db: sqlite3.Connection, id_: str) -> int:
    """Drops the merge of this passage, and of all merged into it; returns how many."""
    statement = f"DELETE FROM merged WHERE {_SAME_ID} OR kept = CAST(? AS TEXT)"  # noqa: S608  # constants
    return db.execute(statement, (_any_id(id_), _any_id(id_))).rowcount


# --- vectors: a table for each embedder, little-endian float32 -------------------------------


def _table_of(db: sqlite3.Connection, embedder: Embedder) -> str | None:
    row = db.execute(
        "SELECT number FROM embedder WHERE name = ? AND dimensions = ?",
        (embedder.name, embedder.dimensions),
    ).fetchone()
    return None if row is None else f"vector_{row[0]}"


def _make_table(db: sqlite3.Connection, embedder: Embedder) -> str:
    if table := _table_of(db, embedder):
        return table
    made = db.execute(
        "INSERT INTO embedder (name, dimensions) VALUES (?, ?)",
        (embedder.name, embedder.dimensions),
    )
    table = f"vector_{made.lastrowid}"
    db.execute(f"CREATE TABLE {table} (sequence INTEGER PRIMARY KEY, vector BLOB NOT NULL)")
    return table


def _put_vectors(
    db: sqlite3.Connection,
    embedder: Embedder,
    sequences: Sequence[int] | Numbers,
    vectors: Vectors,
) -> None:
    """Keeps the vectors of those passages that are there, in place of older ones."""
    db.executemany(
        f"INSERT OR REPLACE INTO {_make_table(db, embedder)}"  # noqa: S608  # constants
        " SELECT sequence, ? FROM passage WHERE sequence = ?",
        [
            (np.ascontiguousarray(vector, dtype="<f4").tobytes(), int(sequence))
            for sequence, vector in zip(sequences, vectors, strict=True)
        ],
    )
