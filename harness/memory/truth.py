"""The truth: every passage and its embedding, in one SQLite file.

What is committed here is stored; the lanes are derived from it and can be thrown away at any
time. Each passage has a sequence number that only grows, so a lane says how far it has read with
one integer. Not thread-safe by itself: the store holds a lock around every call.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import MemoryStoreFailed
from harness.memory.passage import Passage

SCHEMA_VERSION = 1

# AUTOINCREMENT: without it SQLite gives the number of a deleted last row out again, and a lane
# that has read past it would never see the new passage.
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS passage (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    text     TEXT NOT NULL,
    title    TEXT NOT NULL,
    source   TEXT NOT NULL,
    quality  REAL,
    metadata TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS embedding (
    sequence INTEGER PRIMARY KEY REFERENCES passage (sequence),
    embedder TEXT NOT NULL,
    vector   BLOB NOT NULL
);
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""

_COLUMNS = "sequence, text, title, source, quality, metadata"
_Row = tuple[int, str, str, str, float | None, str]


class Truth:
    """The table of passages in `directory`. Every method raises `MemoryStoreFailed`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with self._translated():
            directory.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(directory / "passages.sqlite", check_same_thread=False)
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def add(self, passages: Iterable[tuple[Passage, bytes]], *, embedder: str) -> int:
        """Store each passage with its vector (little-endian float32); those known stay as they are.

        Returns how many were new. They are durable when this returns, all of them or none.
        """
        new = 0
        with self._translated(), self._db:
            for passage, vector in passages:
                inserted = self._db.execute(
                    "INSERT INTO passage (id, text, title, source, quality, metadata)"
                    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                    (
                        passage.id,
                        passage.text,
                        passage.title,
                        passage.source,
                        passage.quality,
                        json.dumps(dict(passage.metadata)),
                    ),
                )
                if inserted.rowcount:
                    self._db.execute(
                        "INSERT INTO embedding VALUES (?, ?, ?)",
                        (inserted.lastrowid, embedder, vector),
                    )
                    new += 1
        return new

    def holds(self, passage: Passage) -> bool:
        """Whether a passage with this id is stored."""
        with self._translated():
            found = self._db.execute("SELECT 1 FROM passage WHERE id = ?", (passage.id,))
            return found.fetchone() is not None

    def passage(self, sequence: int) -> Passage:
        """The passage with this sequence number, which a lane has read here."""
        with self._translated():
            query = f"SELECT {_COLUMNS} FROM passage WHERE sequence = ?"  # noqa: S608  # constants
            return _passage(self._db.execute(query, (sequence,)).fetchone())

    def passages_after(self, sequence: int) -> Iterator[tuple[int, Passage]]:
        """Passages with a greater sequence number, in its order."""
        with self._translated():
            query = f"SELECT {_COLUMNS} FROM passage WHERE sequence > ? ORDER BY sequence"  # noqa: S608  # constants
            for row in self._db.execute(query, (sequence,)):
                yield row[0], _passage(row)

    def vectors_after(self, sequence: int) -> list[tuple[int, str, bytes]]:
        """Sequence number, embedder's name and vector of later passages, in order."""
        with self._translated():
            return self._db.execute(
                "SELECT sequence, embedder, vector FROM embedding"
                " WHERE sequence > ? ORDER BY sequence",
                (sequence,),
            ).fetchall()

    def last_sequence(self) -> int:
        """The greatest sequence number; 0 when there is none."""
        with self._translated():
            row: tuple[int] = self._db.execute(
                "SELECT coalesce(max(sequence), 0) FROM passage"
            ).fetchone()
            return row[0]

    def __len__(self) -> int:
        with self._translated():
            row: tuple[int] = self._db.execute("SELECT count(*) FROM passage").fetchone()
            return row[0]

    def close(self) -> None:
        """Give the file back; every later call raises."""
        self._db.close()

    def _prepare(self) -> None:
        with self._translated():
            self._db.execute("PRAGMA journal_mode = WAL")
            # FULL, since in WAL mode NORMAL may lose the last commits when the power fails.
            self._db.execute("PRAGMA synchronous = FULL")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA_VERSION:
                raise MemoryStoreFailed(
                    f"written by a newer harness (schema {version}, this one reads up to "
                    f"{SCHEMA_VERSION}); upgrade harness, or open another directory",
                    path=self.directory,
                )
            if version == 0:
                self._db.executescript(_SCHEMA)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where SQLite's errors become ours."""
        try:
            yield
        except sqlite3.ProgrammingError as error:
            raise self._failed(error, "the store is closed; open it again") from error
        except (sqlite3.OperationalError, OSError) as error:
            remedy = "see that the disk has room, the files may be written, no process holds them"
            raise self._failed(error, remedy) from error
        except sqlite3.Error as error:
            remedy = "passages.sqlite is damaged: restore it from a copy, or delete the directory"
            raise self._failed(error, remedy) from error

    def _failed(self, error: Exception, remedy: str) -> MemoryStoreFailed:
        return MemoryStoreFailed(f"{error} ({remedy})", path=self.directory)


def _passage(row: _Row) -> Passage:
    _, text, title, source, quality, metadata = row
    return Passage(
        text=text, title=title, source=source, quality=quality, metadata=json.loads(metadata)
    )
