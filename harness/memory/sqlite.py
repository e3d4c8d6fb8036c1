"""The SQLite file of a primary store: its connections, its tables, and the check of a copy.

Readers never wait, since the file is in WAL mode: each sees what was committed when it began.
Writers take turns, within this process by a lock and among processes by SQLite's own.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.files import make_private
from harness.memory.passage import Passage
from harness.memory.reading import number_of
from harness.memory.terms import check_language

SCHEMA_VERSION = 3

_DEFAULT_LANGUAGE = "english"

# Idle connections that are kept; more are opened when more threads read at once.
_IDLE_CONNECTIONS = 16

# Tags and readings go to random places, so a writer works on many pages at a time.
_WRITER_CACHE_KIB = 65_536

# Of the log that stays behind once its pages are in the file.
_LOG_BYTES = 67_108_864

# Processes that may create one file at once.
_TRIES = 100

_BUSY = ("memory.store-busy", "another process is writing to it: try again when that is done")
_DAMAGED = (
    "memory.store-damaged",
    "passages.sqlite is damaged: restore it from a copy, or delete the directory",
)
_REMEDIES = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
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
    sqlite3.SQLITE_ERROR: _DAMAGED,  # our statements are right: a table is missing
    sqlite3.SQLITE_CANTOPEN: (
        "memory.store-unreadable",
        "see that its disk is whole, and that the files may be read",
    ),
    sqlite3.SQLITE_IOERR: (
        "memory.disk-failed",
        "see that the disk has room and is whole, then open the store again",
    ),
}
_OTHERWISE = ("memory.failed", "close the store and open it again")


class Connections:
    """Connections to one SQLite file: any number that read, one that writes.

    The file is created if it is missing and may be written. Everything here raises
    `MemoryStoreFailed`. May be used from any thread.

    Attributes:
        path: The file.
        read_only: Whether nothing can be written, by request or by the files' permissions.
    """

    def __init__(self, path: Path, *, read_only: bool, wait_s: float) -> None:
        self.path = path
        self._wait_s = wait_s
        self._idle: deque[sqlite3.Connection] = deque()
        self._closed = False
        self._turn = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        with self._translated():
            if not read_only:
                path.parent.mkdir(parents=True, exist_ok=True)
                make_private(path)
            self.read_only = read_only or not _may_be_written(path)
            if not self.read_only:
                self._writer = self._connect("mode=rwc")
                try:
                    _set_up(self._writer)
                except BaseException:
                    self._writer.close()
                    raise
            elif not path.exists():
                raise self.absent()

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection that sees one state of the file, whatever is written meanwhile."""
        with self._translated():
            self._check_open()
            try:
                db, lasting = self._idle.pop(), True
            except IndexError:
                db, lasting = self._reader()
            try:
                db.execute("BEGIN")
                yield db
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")
                if lasting and len(self._idle) < _IDLE_CONNECTIONS:
                    self._idle.append(db)
                else:
                    db.close()
                if self._closed:  # meanwhile
                    self._close_idle()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """The connection that writes: durable once this is left, and nothing if it raises."""
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
        """The same without a transaction, for statements that cannot be part of one."""
        with self._translated(), self._turn:
            self._check_open()
            if self._writer is None:
                raise self.failed(
                    "the store is open for reading only, as requested or because its files may "
                    "not be written; open it where they may",
                    code="memory.store-read-only",
                )
            yield self._writer

    def close(self) -> None:
        """Closes the file, once a write that is under way is done."""
        with self._turn:
            self._closed = True
            self._close_idle()
            # Last: the last connection to close moves the log into the file and deletes it.
            if self._writer is not None:
                self._writer.close()

    def failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        """The error to raise about this store."""
        return MemoryStoreFailed(message, path=self.path.parent, code=code)

    def absent(self) -> MemoryStoreFailed:
        """The error to raise if there is no store and none may be made."""
        return self.failed(
            "there is no memory store here, and none may be made", code="memory.store-absent"
        )

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _connect(self, how: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self.path.resolve().as_uri()}?{how}",
            uri=True,
            timeout=self._wait_s,
            isolation_level=None,
            check_same_thread=False,
        )

    def _reader(self) -> tuple[sqlite3.Connection, bool]:
        """A connection that reads, and whether it sees later writes."""
        if not self.read_only:
            return self._connect("mode=rw"), True
        db = self._connect("mode=ro")
        try:
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            db.close()
            # For a file in WAL mode SQLite wants an index beside it, even to read.
            if _kind(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            log = self.path.with_name(f"{self.path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise self.failed(
                    f"its last writes are still in {log.name}, and SQLite cannot read that where "
                    "nothing may be written; copy the directory elsewhere and open the copy",
                    code="memory.log-unreadable",
                ) from error
            # For one read only: it would never learn that another user has written since.
            return self._connect("mode=ro&immutable=1"), False
        return db, True

    def _check_open(self) -> None:
        if self._closed:
            raise self.failed("the store is closed; open it again", code="memory.store-closed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where SQLite's errors become ours."""
        try:
            yield
        except sqlite3.Error as error:
            code, remedy = _REMEDIES.get(_kind(error), _OTHERWISE)
            raise self.failed(f"{error} ({remedy})", code=code) from error
        except OSError as error:
            raise self.failed(
                f"{error} (see that it is a directory, or can be made, or open another)",
                code="memory.no-directory",
            ) from error


def _set_up(writer: sqlite3.Connection) -> None:
    _log_ahead(writer)
    # FULL, since in WAL mode NORMAL may lose the last commits when the power fails.
    writer.execute("PRAGMA synchronous = FULL")
    writer.execute(f"PRAGMA cache_size = -{_WRITER_CACHE_KIB}")
    writer.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def _log_ahead(db: sqlite3.Connection) -> None:
    """Puts the file in WAL mode, which it stays in."""
    for _ in range(_TRIES):
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if _kind(error) != sqlite3.SQLITE_BUSY:
                raise
            # Several processes create the file at once. SQLite does not wait here, since each
            # would wait for the others; but a transaction waits for the one that got through.
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
    db.execute("PRAGMA journal_mode = WAL")


def _may_be_written(path: Path) -> bool:
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    return os.access(path.parent, os.W_OK | os.X_OK) and all(
        os.access(file, os.W_OK) for file in files if file.exists()
    )


def _kind(error: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 for an error of Python's module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


# --- tables ----------------------------------------------------------------------------------

_ROW = """
        sequence INTEGER PRIMARY KEY,
        id       TEXT NOT NULL UNIQUE,
        text     TEXT NOT NULL,
        title    TEXT NOT NULL,
        source   TEXT NOT NULL,
        quality  REAL,
        created  TEXT NOT NULL,
        metadata TEXT NOT NULL"""

# Passages that were merged into the passage `kept`, by a rule.
_MERGED = (
    f"CREATE TABLE merged ({_ROW}, kept TEXT NOT NULL, rule TEXT NOT NULL)",
    "CREATE INDEX merged_kept ON merged (kept)",
    "CREATE INDEX passage_reading ON passage (reading)",
)

_TABLES = (
    # One row. `sequence` counts writes; up to `compacted`, `removed` is forgotten. `place` says
    # which file this is: another one is a copy.
    """CREATE TABLE state (
        sequence  INTEGER NOT NULL,
        compacted INTEGER NOT NULL,
        language  TEXT NOT NULL,
        written   TEXT,
        place     TEXT NOT NULL
    )""",
    # `reading`: see `harness.memory.reading.number_of`.
    f"CREATE TABLE passage ({_ROW}, reading INTEGER NOT NULL)",
    # The write `at` left no passage with this sequence number.
    """CREATE TABLE removed (
        at       INTEGER PRIMARY KEY,
        sequence INTEGER NOT NULL
    )""",
    """CREATE TABLE tag (
        tag      TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (tag, sequence)
    ) WITHOUT ROWID""",
    # Each has a table `vector_<number>` beside it. `unrelated`: see `unrelated_cosine`.
    """CREATE TABLE embedder (
        number     INTEGER PRIMARY KEY,
        name       TEXT NOT NULL,
        dimensions INTEGER NOT NULL,
        unrelated  REAL,
        UNIQUE (name, dimensions)
    )""",
    *_MERGED,
)

# Version 2 compared words in runs of three.
_FROM_VERSION_2 = (
    "DROP TABLE band",
    "ALTER TABLE passage ADD COLUMN reading INTEGER NOT NULL DEFAULT 0",
    "UPDATE passage SET reading = number_of(title, text)",
    *_MERGED,
)


def vector_tables(db: sqlite3.Connection) -> list[str]:
    """The tables of vectors, one for each embedder."""
    return [f"vector_{number}" for (number,) in db.execute("SELECT number FROM embedder")]


def prepare(connections: Connections, language: str | None) -> str:
    """Makes or upgrades the tables, and checks them after a copy; returns the store's language.

    Raises:
        MemoryStoreFailed: It is damaged, or of a version that cannot be upgraded.
        InvalidInput: The language is unknown, or not the store's.
    """
    if language is not None:
        check_language(language)
    # 1. The tables of this version.
    with connections.reading() as db:
        version = _version(db)
        foreign = version == 0 and db.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if foreign:
        raise connections.failed(
            "passages.sqlite is a database of another program; open another directory",
            code="memory.foreign-database",
        )
    if version > SCHEMA_VERSION:
        raise connections.failed(
            f"written by a newer harness (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade harness, or open another directory",
            code="memory.schema-newer",
        )
    if version < SCHEMA_VERSION:
        _bring_up(connections, version, language or _DEFAULT_LANGUAGE)
    # 2. Is all of it there? Only a copy has to be checked.
    with connections.reading() as db:
        made_with, place = db.execute("SELECT language, place FROM state").fetchone() or ("", "")
        here = _place(connections.path)
        fault = None if place == here else _fault(db)
        empty = db.execute("SELECT 1 FROM passage LIMIT 1").fetchone() is None
    if fault:
        raise connections.failed(
            f"passages.sqlite is damaged, as a copy is that was made during a write: "
            f"{fault} (copy it again while nothing writes, or delete the directory)",
            code="memory.store-damaged",
        )
    # 3. The requested language.
    chosen: str = (language if empty else None) or made_with
    if language not in (None, chosen):
        raise InvalidInput(
            f"{connections.path.parent}: the store was made with language '{made_with}', not "
            f"'{language}'; leave the language out, or open another directory",
            code="memory.other-language",
        )
    if (place, made_with) != (here, chosen) and not connections.read_only:
        with connections.writing() as db:
            db.execute("UPDATE state SET language = ?, place = ?", (chosen, here))
    return chosen


def _bring_up(connections: Connections, version: int, language: str) -> None:
    if version == 0 and connections.read_only:
        raise connections.absent()
    if version == 1:
        raise connections.failed(
            "written by a first draft of harness (schema 1), which cannot be read any more; "
            "open another directory",
            code="memory.schema-older",
        )
    if connections.read_only:
        raise connections.failed(
            f"written by an older harness (schema {version}); open it once where its files may be "
            "written",
            code="memory.schema-older",
        )
    with connections.writing() as db:
        version = _version(db)
        if version == SCHEMA_VERSION:
            return  # another process was quicker
        if version == 2:
            db.create_function("number_of", 2, _number_of, deterministic=True)
        for statement in _FROM_VERSION_2 if version == 2 else _TABLES:
            db.execute(statement)
        if version == 0:
            place = _place(connections.path)
            db.execute("INSERT INTO state VALUES (0, 0, ?, NULL, ?)", (language, place))
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _number_of(title: str, text: str) -> int:
    return number_of(Passage(title=title, text=text))


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _place(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"


# --- the check of a copy ---------------------------------------------------------------------


def _fault(db: sqlite3.Connection) -> str | None:
    """A sign that parts of the file are from different moments; None if it looks whole.

    SQLite's own check finds pages that do not fit each other. It cannot find rows that are missing
    without a trace: these are counted.
    """
    try:
        (said,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            return str(said)
        # The passage of a number never changes: a row of any moment is right if it has one.
        strays = [
            (f"'{table}' has rows of no passage", _STRAYS.format(table))
            for table in ("tag", *vector_tables(db))
        ]
        for wrong, query in (*_COUNTS, *strays):
            found, expected = db.execute(query).fetchone()
            if found != expected:
                return f"{wrong} ({found:,} instead of {expected:,})"
    except sqlite3.DatabaseError as error:
        return str(error)
    return None


_STRAYS = "SELECT (SELECT count(*) FROM passage JOIN {0} USING (sequence)), count(*) FROM {0}"

_COUNTS = (
    ("its state is missing", "SELECT count(*), 1 FROM state"),
    (
        "writes are missing",
        # Each write since the last compaction left a passage, or its mark in `removed`.
        """SELECT count(*), (SELECT sequence - compacted FROM state) FROM (
            SELECT sequence FROM passage WHERE sequence > (SELECT compacted FROM state)
            UNION SELECT at FROM removed
            UNION SELECT sequence FROM removed WHERE sequence > (SELECT compacted FROM state)
        )""",
    ),
    (
        "tags are missing",
        """SELECT (SELECT count(*) FROM tag), coalesce(sum(
            2 + (SELECT count(*) FROM json_each(metadata))
        ), 0) FROM passage""",
    ),
)
