"""The SQLite file of a primary store: its connections, its tables, and the check of a copy.

Writers take turns, within this process by a lock and among processes by SQLite's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Any

from harness.errors import HarnessError, InvalidInput, MemoryStoreFailed
from harness.files import make_private
from harness.memory.database import Place, Statements
from harness.memory.passage import Passage, amounts_of
from harness.text_store import switch_to_wal

FILE_NAME = "passages.sqlite"

SCHEMA_VERSION = 6
_OLDEST_VERSION = 4

DEFAULT_LANGUAGE = "english"

# Idle connections that are kept; more are opened when more threads read at once.
_IDLE_CONNECTIONS = 16

# Rows of the tables of tags and words go to random places, so a writer works on many pages at once.
_WRITER_CACHE_KIB = 65_536

# The most of the write-ahead log that stays on the disk once its pages are in the file.
_LOG_BYTES = 67_108_864

BUSY = ("memory.store-busy", "another process is writing to it: try again when that is done")
_DAMAGED = (
    "memory.store-damaged",
    "passages.sqlite is damaged: restore it from a copy, or delete the directory",
)
_REMEDIES = {
    sqlite3.SQLITE_BUSY: BUSY,
    sqlite3.SQLITE_LOCKED: BUSY,
    sqlite3.SQLITE_FULL: (
        "memory.disk-full",
        "nothing was stored: make room on the disk and try again",
    ),
    sqlite3.SQLITE_READONLY: (
        "memory.store-read-only",
        "its files may not be written: see who owns them",
    ),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_ERROR: _DAMAGED,  # the statements here are right, so a table is missing
    sqlite3.SQLITE_CANTOPEN: (
        "memory.store-unreadable",
        "see that its disk is whole, and that the files may be read",
    ),
    sqlite3.SQLITE_IOERR: (
        "memory.disk-failed",
        "see that the disk has room and is whole, then open the store again",
    ),
}
OTHERWISE = ("memory.failed", "close the store and open it again")


def no_store(place: Place) -> InvalidInput:
    """The error to raise where there is no store and none may be made."""
    return InvalidInput(
        f"{place}: there is no store; 'harness memory add FILE --store {quote(str(place))}' makes "
        "one",
        code="memory.no-store",
    )


class SqliteDatabase:
    """The file of a directory: any number of connections read it, one writes.

    A `Database`. The file is created if it is missing and may be written. May be used from any
    thread.

    Attributes:
        path: The file.
    """

    among = "IN (SELECT value FROM json_each(?))"

    def __init__(self, directory: Path, *, wait_s: float) -> None:
        self.place = self.directory = directory
        self.path = path = directory / FILE_NAME
        self._wait_s = wait_s
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False
        self._turn = threading.Lock()
        with self._translated():
            path.parent.mkdir(parents=True, exist_ok=True)
            make_private(path)
            if not (os.access(path.parent, os.W_OK | os.X_OK) and os.access(path, os.W_OK)):
                raise self.failed(
                    "its files are read-only, and even a search writes to them; copy the "
                    "directory elsewhere and open the copy",
                    code="memory.store-read-only",
                )
            self._writer = self._connect()
            try:
                _set_up(self._writer)
                _prepare(self)
            except BaseException:
                self.close()
                raise

    def listed(self, values: Iterable[int] | Iterable[str]) -> str:
        """Any number of values as one JSON text, for `among`."""
        return json.dumps(list(values))

    def seen(self) -> int:
        """The number of the last write."""
        with self.reading() as db:
            return int(db.execute("SELECT sequence FROM state").fetchone()[0])

    def follow(self, notify: Callable[[], None]) -> None:
        """Does nothing, since `seen` asks the file, which takes no time."""

    def free(self) -> None:
        """Writes the file again without the room of removed rows; needs as much disk meanwhile."""
        with self.writer() as db:
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()

    def size_bytes(self) -> int:
        """0, since all tables are in `directory`."""
        return 0

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the file, whatever is written meanwhile."""
        with self._translated():
            self._check_open()
            try:
                db = self._idle.pop()
            except IndexError:
                db = self._connect()
            try:
                db.execute("BEGIN")
                yield db
            finally:
                try:
                    if db.in_transaction:
                        db.execute("COMMIT")
                except BaseException:  # in a damaged file, for example
                    db.close()
                    raise
                if len(self._idle) < _IDLE_CONNECTIONS:
                    self._idle.append(db)
                else:
                    db.close()
                # `close` may have run meanwhile.
                if self._closed:
                    self._close_idle()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: durable after the block, undone if the block raises."""
        with self.writer() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself after some errors, such as a full disk.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def writer(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes, for statements that cannot be part of a transaction."""
        with self._translated(), self._turn:
            self._check_open()
            yield self._writer

    def close(self) -> None:
        """Closes the file, once a write that is under way is done."""
        with self._turn:
            self._closed = True
            self._close_idle()
            # Closed last, since the last connection moves the log into the file and deletes it.
            self._writer.close()

    def failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        """The error to raise about this store."""
        return MemoryStoreFailed(message, path=self.directory, code=code)

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.path,
            timeout=self._wait_s,
            isolation_level=None,  # explicit statements begin transactions of the kind they need
            check_same_thread=False,  # threads take connections by turns
            factory=_Connection,
        )
        db.text_factory = _decoded
        return db

    def _check_open(self) -> None:
        if self._closed:
            raise self.failed("the store is closed; open it again", code="memory.store-closed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates SQLite's errors into `MemoryStoreFailed`."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            if isinstance(error, UnicodeDecodeError):
                # Python cannot decode an error message of SQLite that quotes a damaged name.
                code, remedy = _DAMAGED
            else:
                # The primary code of SQLite's result; an error of Python's module has none.
                result = getattr(error, "sqlite_errorcode", 0) & 0xFF
                code, remedy = _REMEDIES.get(result, OTHERWISE)
            raise self.failed(f"{error} ({remedy})", code=code) from error
        except OSError as error:
            raise self.failed(
                f"{error} (see that it is a directory, or can be made, or open another)",
                code="memory.no-directory",
            ) from error


class _Connection(sqlite3.Connection):
    def each(self, query: str, rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Runs a query for each row of values, and returns the results of each."""
        return [self.execute(query, row).fetchall() for row in rows]


# A damaged text must not make the rows beside it unreadable.
_decoded = partial(str, encoding="utf-8", errors="replace")


def _set_up(writer: sqlite3.Connection) -> None:
    switch_to_wal(writer)
    # FULL, since in WAL mode NORMAL may lose the last commits when the power fails.
    writer.execute("PRAGMA synchronous = FULL")
    writer.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
    writer.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


# --- tables ----------------------------------------------------------------------------------

_AMOUNTS = """CREATE TABLE amount (
        name  TEXT NOT NULL,
        value REAL NOT NULL,
        tag   TEXT NOT NULL,
        PRIMARY KEY (name, value, tag)
    ) WITHOUT ROWID"""

ADD_AMOUNT = "INSERT INTO amount VALUES (?, ?, ?) ON CONFLICT DO NOTHING"

TABLES = (
    # One row. `sequence` counts writes. `place` says which file this is: another one is a copy.
    """CREATE TABLE state (
        sequence  INTEGER NOT NULL,
        language  TEXT NOT NULL,
        place     TEXT NOT NULL
    )""",
    # `reading` is `Passage.words_number`.
    """CREATE TABLE passage (
        sequence INTEGER PRIMARY KEY,
        id       TEXT NOT NULL UNIQUE,
        text     TEXT NOT NULL,
        title    TEXT NOT NULL,
        source   TEXT NOT NULL,
        quality  REAL,
        created  TEXT NOT NULL,
        metadata TEXT NOT NULL,
        reading  INTEGER NOT NULL,
        checksum INTEGER NOT NULL
    )""",
    # The write with the number `at` removed the passage with the number `sequence`.
    """CREATE TABLE removed (
        at       INTEGER PRIMARY KEY,
        sequence INTEGER NOT NULL
    )""",
    """CREATE TABLE tag (
        tag      TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (tag, sequence)
    ) WITHOUT ROWID""",
    # All numbers by whose range passages can be filtered: the tag of the name, the value, and the
    # tag of both. A filter for a range becomes the tags of the numbers in it. Numbers of removed
    # passages stay.
    _AMOUNTS,
    # The vectors of each embedder are in a table `vector_<number>`.
    """CREATE TABLE embedder (
        number     INTEGER PRIMARY KEY,
        name       TEXT NOT NULL,
        dimensions INTEGER NOT NULL,
        UNIQUE (name, dimensions)
    )""",
    "CREATE INDEX passage_reading ON passage (reading)",
)


def make_tables(db: Statements, place: str) -> None:
    """Makes the tables of an empty store; `place` says which store it is."""
    for statement in TABLES:
        db.execute(statement)
    db.execute("INSERT INTO state VALUES (0, ?, ?)", (DEFAULT_LANGUAGE, place))


def checksum_of(row: Sequence[Any]) -> int:
    """A checksum of 64 bits of a passage's row, of its columns up to `metadata`."""
    # A quality may be written as 8 and is read as 8.0. A damaged value may be of any type.
    values = [float(value) if type(value) is int else value for value in row[1:]]
    digest = hashlib.blake2b(repr([row[0], *values]).encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def upgrade(db: Statements, version: int) -> None:
    """Changes the tables of a store of an earlier version to those of this version."""
    # Version 5 kept passages that were merged into others, which nothing reads any more.
    db.execute("DROP TABLE IF EXISTS merged")
    if version >= 5:
        return
    # Version 4 had no numbers for ranges.
    db.execute(_AMOUNTS)
    query = "SELECT sequence, metadata FROM passage WHERE sequence > ? ORDER BY sequence LIMIT 1000"
    last = -1
    while rows := db.execute(query, (last,)).fetchall():
        db.executemany(ADD_AMOUNT, [amount for row in rows for amount in _amounts_in(row[1])])
        last = rows[-1][0]


def _amounts_in(metadata: str) -> list[tuple[str, float, str]]:
    """The numbers in the metadata of a passage; empty if it is damaged."""
    with suppress(ValueError, HarnessError):
        fields = json.loads(metadata)
        if isinstance(fields, dict):
            return amounts_of(Passage(text="any", metadata=fields))
    return []


def _prepare(database: SqliteDatabase) -> None:
    """Makes the tables, and checks them after a copy.

    Raises:
        MemoryStoreFailed: It is damaged, or of another version.
    """
    # 1. Make or upgrade the tables.
    with database.reading() as db:
        version = _version(db)
        has_tables = db.execute("SELECT 1 FROM sqlite_schema").fetchone() is not None
    if version == 0 and has_tables:
        raise database.failed(
            "passages.sqlite is a database of another program; open another directory",
            code="memory.foreign-database",
        )
    check_version(version, database.failed)
    place = _place(database.path)
    if version < SCHEMA_VERSION:
        with database.writing() as writer:
            if _version(writer) == version:  # no other process was quicker
                if version:
                    upgrade(writer, version)
                else:
                    make_tables(writer, place)
                writer.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    # 2. Check the file if it is a copy, which may have been made during a write.
    damage = None
    with database.reading() as db:
        state = db.execute("SELECT place FROM state").fetchone()
        is_copy = state is not None and state[0] != place
        if state is None:
            damage = "its state is missing"
        elif is_copy:
            damage = _damage(db)
    if damage:
        raise database.failed(
            f"passages.sqlite is damaged, perhaps because it was copied during a write: {damage} "
            "(copy it again while nothing writes, or delete the directory)",
            code="memory.store-damaged",
        )
    if is_copy:
        with database.writing() as db:
            db.execute("UPDATE state SET place = ?", (place,))


def check_version(version: int, failed: Callable[..., MemoryStoreFailed]) -> None:
    """Raises the error that `failed` makes if tables of this version cannot be used.

    The version is 0 if there are no tables.
    """
    if version > SCHEMA_VERSION:
        raise failed(
            f"written by a newer harness (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade harness, or open another place",
            code="memory.schema-newer",
        )
    if 0 < version < _OLDEST_VERSION:
        raise failed(
            f"written by a first draft of harness (schema {version}), which cannot be read any "
            "more; open another place",
            code="memory.schema-older",
        )


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _place(path: Path) -> str:
    """A text that is different for every copy of a file."""
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"


def _damage(db: sqlite3.Connection) -> str | None:
    """Why parts of the file cannot be from the same moment; None if it looks whole."""
    try:
        (verdict,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if verdict == "ok" else str(verdict)
