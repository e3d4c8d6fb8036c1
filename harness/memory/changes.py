"""What one transaction does to passages, and to all that hangs on them.

Each change takes the next sequence number. A passage has the number of its last change; when it
moves on to another, or is deleted, `removed` says which number is no more, and since when.
"""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime

from harness.memory.passage import Passage
from harness.memory.reading import number_of
from harness.memory.rows import COLUMNS, row_of
from harness.memory.stored_vectors import tables
from harness.memory.where import tags_of

_COLUMNS = f"{COLUMNS}, reading"
_VALUES = ", ".join("?" for _ in _COLUMNS.split(","))
_INSERT = f"INSERT INTO passage ({_COLUMNS}) VALUES ({_VALUES})"  # noqa: S608  # constants
_REPLACE = f"UPDATE passage SET ({_COLUMNS}) = ({_VALUES}) WHERE sequence = ?"  # noqa: S608  # constants


class Changes:
    """Begin with it after the transaction began, and end with `finish`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._sequence = int(db.execute("SELECT sequence FROM state").fetchone()[0])
        self._before = self._sequence

    def insert(self, passage: Passage, number: int) -> int:
        """Stores a new passage, with the number of its reading; returns its sequence number."""
        sequence = self._next()
        self._db.execute(_INSERT, (*row_of(sequence, passage), number))
        self._tag(sequence, passage)
        return sequence

    def replace(self, sequence: int, old: Passage, new: Passage) -> int:
        """Puts one passage in the place of another; vectors stay if both read the same."""
        moved = self._next()
        self._db.execute("INSERT INTO removed VALUES (?, ?)", (moved, sequence))
        self._db.execute(_REPLACE, (*row_of(moved, new), number_of(new), sequence))
        self._untag(sequence, old)
        self._tag(moved, new)
        if old.searchable == new.searchable:
            for table in tables(self._db):
                statement = f"UPDATE {table} SET sequence = ? WHERE sequence = ?"  # noqa: S608  # a number of ours
                self._db.execute(statement, (moved, sequence))
        else:
            self._without_vectors(sequence)
        return moved

    def remove(self, sequence: int, passage: Passage) -> None:
        """Deletes a passage."""
        self._db.execute("INSERT INTO removed VALUES (?, ?)", (self._next(), sequence))
        self._db.execute("DELETE FROM passage WHERE sequence = ?", (sequence,))
        self._untag(sequence, passage)
        self._without_vectors(sequence)

    def finish(self) -> None:
        """Counts what was done."""
        if self._sequence != self._before:
            self._db.execute(
                "UPDATE state SET sequence = ?, written = ?",
                (self._sequence, datetime.now(UTC).isoformat()),
            )

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _tag(self, sequence: int, passage: Passage) -> None:
        rows = [(tag, sequence) for tag in tags_of(passage)]
        self._db.executemany("INSERT INTO tag VALUES (?, ?)", rows)

    def _untag(self, sequence: int, passage: Passage) -> None:
        rows = [(tag, sequence) for tag in tags_of(passage)]
        self._db.executemany("DELETE FROM tag WHERE tag = ? AND sequence = ?", rows)

    def _without_vectors(self, sequence: int) -> None:
        for table in tables(self._db):
            self._db.execute(f"DELETE FROM {table} WHERE sequence = ?", (sequence,))  # noqa: S608  # a number of ours
