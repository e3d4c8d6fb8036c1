"""Connections to one SQLite file: any number that read, one that writes.

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

from harness.errors import MemoryStoreFailed, Notice
from harness.private import make_private

# Idle ones that are kept; more are opened when more threads read at once.
_IDLE_CONNECTIONS = 16

# Near-duplicates and tags go to random places, so a writer works on many pages at a time.
_WRITER_CACHE_KIB = 65_536

# Of the log that stays behind once its pages are in the file.
_LOG_BYTES = 67_108_864

# As many as may make one file at once.
_TRIES = 100

_BUSY = Notice(
    code="memory.store-busy",
    message="another process is writing to it: try again when that is done",
)
_DAMAGED = Notice(
    code="memory.store-damaged",
    message="passages.sqlite is damaged: restore it from a copy, or delete the directory",
)
_REMEDIES = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_FULL: Notice(
        code="memory.disk-full",
        message="nothing was stored: make room on the disk and try again",
    ),
    sqlite3.SQLITE_READONLY: Notice(
        code="memory.store-read-only",
        message="its files may not be written: see who owns them",
    ),
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_ERROR: _DAMAGED,  # of statements that are right: a table is not there
    sqlite3.SQLITE_CANTOPEN: Notice(
        code="memory.store-unreadable",
        message="see that its disk is whole, and that the files may be read",
    ),
    sqlite3.SQLITE_IOERR: Notice(
        code="memory.disk-failed",
        message="see that the disk has room and is whole, then open the store again",
    ),
}
_ELSE = Notice(code="memory.failed", message="close the store and open it again")
_NO_DIRECTORY = Notice(
    code="memory.no-directory",
    message="see that it is a directory, or can be made, or open another",
)


class Connections:
    """To the file `path`, which is made when it may be written and is not there.

    Everything here raises `MemoryStoreFailed`. May be used from any thread.

    Attributes:
        path: The file.
        read_only: Whether nothing can be written: as was asked for, or as it may not be.
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
                raise self._failed(
                    "there is no memory store here, and none may be made",
                    code="memory.store-absent",
                )

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
                # SQLite takes some back by itself: when the disk is full, for one.
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def writer(self) -> Iterator[sqlite3.Connection]:
        """The same without a transaction, for what cannot be part of one."""
        with self._translated(), self._turn:
            self._check_open()
            if self._writer is None:
                raise self._failed(
                    "the store is open for reading only, as that was asked for or its files may "
                    "not be written; open it where they may",
                    code="memory.store-read-only",
                )
            yield self._writer

    def close(self) -> None:
        """Gives the file back, once a write that is under way is done."""
        with self._turn:
            self._closed = True
            self._close_idle()
            # Last, as what closes last moves the log into the file and deletes it.
            if self._writer is not None:
                self._writer.close()

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
        """A connection that reads, and whether it sees what is written later."""
        if not self.read_only:
            return self._connect("mode=rw"), True
        db = self._connect("mode=ro")
        try:
            db.execute("SELECT 1 FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            db.close()
            # Of a file in WAL mode SQLite wants an index beside it, even to read.
            if _primary(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                raise
            log = self.path.with_name(f"{self.path.name}-wal")
            if log.exists() and log.stat().st_size:
                raise self._failed(
                    f"its last writes are in {log.name} still, and SQLite cannot read that where "
                    "nothing may be written; copy the directory elsewhere and open the copy",
                    code="memory.log-unreadable",
                ) from error
            # For one read only: it would never learn that another user has written since.
            return self._connect("mode=ro&immutable=1"), False
        return db, True

    def _check_open(self) -> None:
        if self._closed:
            raise self._failed("the store is closed; open it again", code="memory.store-closed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The one place where SQLite's errors become ours."""
        try:
            yield
        except sqlite3.Error as error:
            remedy = _REMEDIES.get(_primary(error), _ELSE)
            raise self._failed(f"{error} ({remedy})", code=remedy.code) from error
        except OSError as error:
            raise self._failed(f"{error} ({_NO_DIRECTORY})", code=_NO_DIRECTORY.code) from error

    def _failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        return MemoryStoreFailed(message, path=self.path.parent, code=code)


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
            if _primary(error) != sqlite3.SQLITE_BUSY:
                raise
            # Several make the file at once. SQLite does not wait here, as they would for each
            # other; but it does wait for the one that got through when a transaction begins.
            db.execute("BEGIN IMMEDIATE")
            db.execute("ROLLBACK")
    db.execute("PRAGMA journal_mode = WAL")


def _may_be_written(path: Path) -> bool:
    files = [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
    return os.access(path.parent, os.W_OK | os.X_OK) and all(
        os.access(file, os.W_OK) for file in files if file.exists()
    )


def _primary(error: sqlite3.Error) -> int:
    """SQLite's kind of error, without its finer distinctions; 0 for one of Python's module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
