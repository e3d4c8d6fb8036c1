"""The truth: every passage and its vectors, in one SQLite file.

What is committed here is stored; the lanes are derived from it and can be thrown away at any
time. Every write takes the next sequence number, so a lane says how far it has read with one
integer: from p to q it drops `removed_between(p, q)` and reads `passages_between(p, q)`. When p is
less than `compacted()`, it has to begin again, since what was removed before is forgotten.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput
from harness.memory.changes import Changes
from harness.memory.connections import Connections
from harness.memory.embedder import Embedder
from harness.memory.found import Added, Merge
from harness.memory.merges import forget, keep, merge_of, merges
from harness.memory.passage import Passage
from harness.memory.reading import Rule, number_of
from harness.memory.rows import COLUMNS, fetch, find, passage_of, sequence_of
from harness.memory.schema import prepare
from harness.memory.stored_vectors import (
    Numbered,
    count_without_vector,
    drop_other_vectors,
    make_table,
    numbered,
    put_vectors,
    vectors_between,
    vectors_of,
    without_vector,
)
from harness.memory.where import Where

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is, and how much there is."""

Merging = bool | Literal["near"]
"""Which passages become one: those that are the same (True), also those that are near it, or none
(False). See `harness.memory.reading`."""

FILE_NAME = "passages.sqlite"

_WAIT_S = 10.0
_ROWS_AT_A_TIME = 256


class Truth:
    """The passages in `directory`. May be used from any thread, and by several processes.

    Every method raises `MemoryStoreFailed`: the file is damaged, closed, or cannot be read, and
    when it writes: may not be written, the disk is full, another process does not stop writing.

    Attributes:
        directory: Where the file is.
        read_only: Whether nothing can be written, as was asked for or as the files are.
        language: Whose words the lexical lane knows.
    """

    def __init__(self, connections: Connections, *, language: str) -> None:
        self._connections = connections
        self.directory = connections.path.parent
        self.read_only = connections.read_only
        self.language = language

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        language: str | None = None,
        read_only: bool = False,
        wait_s: float = _WAIT_S,
    ) -> Self:
        """Opens the file in `directory`, or makes both.

        Args:
            directory: What cannot be written is opened for reading only, without being asked.
            language: English for a new store, and what an old one was made with, when None.
            read_only: Whether nothing is ever written.
            wait_s: How long a write waits for those of other processes.

        Raises:
            MemoryStoreFailed: It cannot be made or read, is damaged, or of a newer version.
            InvalidInput: It was made with another language.
        """
        connections = Connections(directory / FILE_NAME, read_only=read_only, wait_s=wait_s)
        try:
            return cls(connections, language=prepare(connections, language))
        except BaseException:
            connections.close()
            raise

    # --- writing -----------------------------------------------------------------------------

    def add(
        self,
        passages: Sequence[tuple[Passage, NDArray[np.float32] | None]],
        *,
        embedder: Embedder | None,
        merge: Merging = True,
    ) -> Added:
        """Stores passages, each with its vector by `embedder` if it has one.

        One whose id is known changes nothing. One that says what another says, by `merge`, is kept
        beside that one, which stays as it is. All are durable when this returns; none is stored
        when it raises.
        """
        now = datetime.now(UTC)
        new: list[str] = []
        known: list[str] = []
        merged: list[Merge] = []
        # Before anything is locked.
        readings = [number_of(passage) for passage, _ in passages]
        rule: Rule = "near" if merge == "near" else "same"
        with self._connections.writing() as db:
            changes = Changes(db)
            for (passage, vector), number in zip(passages, readings, strict=True):
                dated = passage if passage.created else replace(passage, created=now)
                if sequence_of(db, passage.id) is not None:
                    known.append(passage.id)
                elif merge and (found := merge_of(db, dated, number, rule)):
                    keep(db, found)
                    merged.append(found)
                else:
                    sequence = changes.insert(dated, number)
                    if vector is not None and embedder is not None:
                        put_vectors(db, embedder, [sequence], vector[np.newaxis])
                    new.append(passage.id)
            changes.finish()
        return Added(new=tuple(new), known=tuple(known), merged=tuple(merged))

    def update(
        self, passage: Passage, vector: NDArray[np.float32] | None, embedder: Embedder | None
    ) -> None:
        """Puts a passage in the place of the one with its id, with its vector if it has one.

        When both read the same, the vectors that are there stay. Without `created`, the old one's
        stays. Raises `InvalidInput` when there is no passage with this id.
        """
        with self._connections.writing() as db:
            found = find(db, passage.id)
            if found is None:
                raise InvalidInput(
                    f"{self.directory}: no passage '{passage.id}' to update; add it instead",
                    code="memory.unknown-passage",
                )
            sequence, old = found
            dated = passage if passage.created else replace(passage, created=old.created)
            changes = Changes(db)
            moved = changes.replace(sequence, old, dated)
            if vector is not None and embedder is not None:
                put_vectors(db, embedder, [moved], vector[np.newaxis])
            changes.finish()

    def delete(self, ids: Sequence[str]) -> int:
        """Removes passages, and those that became one with them; returns how many ids it knew."""
        deleted = 0
        with self._connections.writing() as db:
            changes = Changes(db)
            for id_ in ids:
                found = find(db, id_)
                if found is not None:
                    changes.remove(*found)
                if forget(db, id_) or found is not None:
                    deleted += 1
            changes.finish()
        return deleted

    def split(
        self,
        id: str,  # noqa: A002 - as for `get`
        vector: NDArray[np.float32] | None,
        embedder: Embedder | None,
    ) -> Passage:
        """Stores a passage by itself that became one with another; that one stays as it is.

        Raises `InvalidInput` when none with this id did, or another has this id by now.
        """
        with self._connections.writing() as db:
            found = merges(db, id)
            if not found or find(db, id):
                raise InvalidInput(
                    f"{self.directory}: no passage '{id}' that became one with another",
                    code="memory.not-merged",
                )
            passage = found[0].passage
            forget(db, id)
            changes = Changes(db)
            sequence = changes.insert(passage, number_of(passage))
            if vector is not None and embedder is not None:
                put_vectors(db, embedder, [sequence], vector[np.newaxis])
            changes.finish()
        return passage

    def put_vectors(
        self,
        embedder: Embedder,
        sequences: Sequence[int] | NDArray[np.int64],
        vectors: NDArray[np.float32],
    ) -> None:
        """Keeps (n, d) vectors of the passages with these numbers; of those still there, that is.

        Raises `InvalidInput` for another shape.
        """
        with self._connections.writing() as db:
            put_vectors(db, embedder, sequences, vectors)

    def set_unrelated(self, embedder: Embedder, value: float) -> None:
        """Keeps the cosine above which texts have something to do with each other."""
        with self._connections.writing() as db:
            make_table(db, embedder.name, embedder.dimensions)
            db.execute(
                "UPDATE embedder SET unrelated = ? WHERE name = ? AND dimensions = ?",
                (value, embedder.name, embedder.dimensions),
            )

    def compact(self, embedder: Embedder) -> None:
        """Gives back the room of what was removed, and of all other embedders' vectors.

        A lane that has not read all that was removed has to begin again.
        """
        with self._connections.writing() as db:
            drop_other_vectors(db, embedder)
            if db.execute("SELECT 1 FROM removed LIMIT 1").fetchone():
                db.execute("DELETE FROM removed")
                db.execute("UPDATE state SET compacted = sequence")
        with self._connections.writer() as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    # --- reading passages --------------------------------------------------------------------

    def known(self, passages: Iterable[Passage]) -> set[str]:
        """The ids among those of these passages that are stored."""
        with self._connections.reading() as db:
            return {passage.id for passage in passages if sequence_of(db, passage.id) is not None}

    def merges(self, id: str | None = None) -> list[Merge]:  # noqa: A002 - as for `get`
        """The passages that became one with others, or that with an id; as they came."""
        with self._connections.reading() as db:
            return merges(db, id)

    def get(self, id: str) -> Passage | None:  # noqa: A002 - the word that passages have for it
        """The passage that is known by an id."""
        with self._connections.reading() as db:
            found = find(db, id)
        return None if found is None else found[1]

    def fetch(self, sequences: Iterable[int]) -> dict[int, Passage]:
        """The passages with these numbers, those that are still there."""
        with self._connections.reading() as db:
            return fetch(db, sequences)

    def passages_between(self, low: int, high: int) -> Iterator[tuple[int, Passage]]:
        """Those with low < sequence number <= high, in its order.

        Read a few at a time: one that is changed or removed meanwhile may be missing, and what is
        written meanwhile has a number beyond `high`, if that was the last.
        """
        query = (
            f"SELECT {COLUMNS} FROM passage"  # noqa: S608  # constants
            " WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?"
        )
        while low < high:
            # Not one long read: as long as one lasts, the log of all that is written grows.
            with self._connections.reading() as db:
                rows = db.execute(query, (low, high, _ROWS_AT_A_TIME)).fetchall()
            if not rows:
                return
            for row in rows:
                yield row[0], passage_of(row)
            low = rows[-1][0]

    def removed_between(self, low: int, high: int) -> list[int]:
        """The numbers that the writes from low (without it) to high (with it) took away."""
        with self._connections.reading() as db:
            rows = db.execute(
                "SELECT sequence FROM removed WHERE at > ? AND at <= ? ORDER BY at", (low, high)
            )
            return [sequence for (sequence,) in rows]

    def tagged(self, where: Where) -> NDArray[np.int64]:
        """The numbers of the passages that satisfy a filter (n,), growing."""
        # Not one statement for all: SQLite allows only so many names, and so many values.
        query = "SELECT sequence FROM tag WHERE tag IN (SELECT value FROM json_each(?))"
        with self._connections.reading() as db:
            found = [db.execute(query, (json.dumps(tags),)).fetchall() for tags in where.tags]
            if not found:
                found = [db.execute("SELECT sequence FROM passage").fetchall()]
        each = [np.fromiter((sequence for (sequence,) in rows), dtype=np.int64) for rows in found]
        return reduce(np.intersect1d, each[1:], np.unique(each[0]))

    # --- reading vectors ---------------------------------------------------------------------

    def vectors_between(self, embedder: Embedder, low: int, high: int) -> Numbered:
        """Numbers (n,), growing, and vectors (n, d): low < number <= high, those that have one."""
        with self._connections.reading() as db:
            rows = vectors_between(db, embedder, low, high)
        return numbered(rows, embedder)

    def vectors_of(self, embedder: Embedder, sequences: Iterable[int]) -> Numbered:
        """The same of the passages with these numbers."""
        with self._connections.reading() as db:
            rows = vectors_of(db, embedder, sequences)
        return numbered(rows, embedder)

    def without_vector(
        self, embedder: Embedder, limit: int, *, after: int = 0
    ) -> list[tuple[int, Passage]]:
        """The first `limit` passages beyond the number `after` that this embedder has to embed."""
        with self._connections.reading() as db:
            return without_vector(db, embedder, limit, after=after)

    def count_without_vector(self, embedder: Embedder) -> int:
        """How many passages this embedder has to embed."""
        with self._connections.reading() as db:
            return count_without_vector(db, embedder)

    def unrelated(self, embedder: Embedder) -> float | None:
        """What `set_unrelated` kept."""
        with self._connections.reading() as db:
            row = db.execute(
                "SELECT unrelated FROM embedder WHERE name = ? AND dimensions = ?",
                (embedder.name, embedder.dimensions),
            ).fetchone()
        return None if row is None else row[0]

    # --- what it knows of itself -------------------------------------------------------------

    def last_sequence(self) -> int:
        """How many writes there have been: the number of the last."""
        with self._connections.reading() as db:
            (sequence,) = db.execute("SELECT sequence FROM state").fetchone()
        return int(sequence)

    def extent(self) -> tuple[int, int]:
        """The number of the last write, and how many passages there were after it."""
        with self._connections.reading() as db:
            last, count = db.execute(
                "SELECT sequence, (SELECT count(*) FROM passage) FROM state"
            ).fetchone()
        return int(last), int(count)

    def compacted(self) -> int:
        """The write up to which it is forgotten what was removed."""
        with self._connections.reading() as db:
            (sequence,) = db.execute("SELECT compacted FROM state").fetchone()
        return int(sequence)

    def last_written(self) -> str | None:
        """When the last write was, as ISO 8601; None when there was none."""
        with self._connections.reading() as db:
            written: str | None = db.execute("SELECT written FROM state").fetchone()[0]
        return written

    def __len__(self) -> int:
        with self._connections.reading() as db:
            (count,) = db.execute("SELECT count(*) FROM passage").fetchone()
        return int(count)

    def close(self) -> None:
        """Gives the file back; every later call raises."""
        self._connections.close()
