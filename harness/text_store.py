"""Texts by key in SQLite: replies of models, and outputs of nodes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from harness.errors import ConfigurationInvalid
from harness.files import make_private
from harness.log import log_warning
from harness.threads import to_its_end

T = TypeVar("T")

# Tells the file from other programs' databases; `file` shows it too.
_APPLICATION_ID = int.from_bytes(b"hrnc")
_VERSION = 1
# The longest wait for another process that is writing; as long as Python's own default.
_BUSY_S = 5.0


class TextStore:
    """Texts by key in one SQLite file, which several processes may share, or in memory if None.

    It grows until the file is deleted. Raises `ConfigurationInvalid` for a file that cannot be
    opened. With `unusable`, the file is opened when it is first needed, and `unusable` is called
    with that error instead.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        clean: Callable[[str], str] = str,
        unusable: Callable[[ConfigurationInvalid], None] | None = None,
    ) -> None:
        self._path = path
        self._clean = clean
        self._unusable = unusable
        self._db = _open(path) if unusable is None else None
        self._is_used = unusable is None
        # A thread of its own, so that no caller waits for the disk.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text store")
        self._has_warned = False

    async def find(self, key: str) -> str | None:
        """The text of this key; None when there is none."""
        return await asyncio.wrap_future(self._submit(self._find, key))

    def keep(self, key: str, text: str) -> None:
        """Stores a text soon: `find` has it from now on, and the file after `aclose` at the latest.

        A text with a secret is not stored.
        """
        self._submit(self._keep, key, text)

    async def aclose(self) -> None:
        """Writes the texts that are not written yet, and closes the file."""
        if self._is_used:
            await to_its_end(self._close, thread=self._thread)
        # Without waiting, since `_close` was the thread's last work.
        self._thread.shutdown(wait=False)

    def _submit(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Calls a function in the store's thread, which opens the file before the first."""
        if not self._is_used:
            self._is_used = True
            self._thread.submit(self._open)
        return self._thread.submit(work, *arguments)

    def _open(self) -> None:
        try:
            self._db = _open(self._path)
        except ConfigurationInvalid as error:
            assert self._unusable is not None
            # Called only once: without a database, `find` and `keep` do nothing from now on.
            self._unusable(error)

    def _close(self) -> None:
        if self._db is not None:
            self._db.close()

    def _find(self, key: str) -> str | None:
        if self._db is None:
            return None
        try:
            row = self._db.execute("SELECT text FROM reply WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            self._warn(
                "a reply cannot be looked up in the call cache", error, code="cache.not-read"
            )
            return None
        return row[0] if row else None

    def _keep(self, key: str, text: str) -> None:
        # With its secret masked, the text would be no reply to the same call, so it is not stored.
        if self._db is None or self._clean(text) != text:
            return
        try:
            self._db.execute("INSERT OR REPLACE INTO reply VALUES (?, ?)", (key, text))
        except sqlite3.Error as error:
            self._warn("a reply cannot be kept in the call cache", error, code="cache.not-written")

    def _warn(self, message: str, error: sqlite3.Error, *, code: str) -> None:
        """Logs only the first error, since without a stored text the model is called."""
        if not self._has_warned:
            self._has_warned = True
            log_warning(message, code=code, path=str(self._path), error=str(error))


def _open(path: Path | None) -> sqlite3.Connection:
    try:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            make_private(path)
        db = sqlite3.connect(
            path or ":memory:",
            timeout=_BUSY_S,
            isolation_level=None,  # every statement is its own transaction
            check_same_thread=False,  # another thread may open it than the one that uses it
        )
        try:
            _prepare(db, path)
        except BaseException:
            db.close()
            raise
    except (sqlite3.OperationalError, OSError) as error:
        raise ConfigurationInvalid(
            f"the call cache cannot be opened ({error}); name a file that can be written to",
            code="cache.not-openable",
            path=path,
        ) from error
    except sqlite3.Error as error:
        raise ConfigurationInvalid(
            f"is not a call cache, or is damaged ({error}); delete it, or name another file",
            code="cache.damaged",
            path=path,
        ) from error
    return db


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    # A transaction, since another process may be making the same file at this moment.
    db.execute("BEGIN IMMEDIATE")
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # `make_private` leaves an empty file.
    if application_id == 0 and tables == 0:
        db.execute("CREATE TABLE reply (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID")
        db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {_VERSION}")
    elif application_id != _APPLICATION_ID:
        raise ConfigurationInvalid(
            "is another program's database; name another file for the call cache",
            code="cache.other-program",
            path=path,
        )
    elif version > _VERSION:
        raise ConfigurationInvalid(
            f"was written by a newer harness (version {version}; this one reads up to {_VERSION}); "
            "upgrade harness, or name another file for the call cache",
            code="cache.newer-version",
            path=path,
        )
    db.execute("COMMIT")
    # Not for network drives, on which SQLite's write-ahead log does not work.
    switch_to_wal(db)
    # The last replies may be lost when the power fails; nothing else.
    db.execute("PRAGMA synchronous = NORMAL")


def switch_to_wal(db: sqlite3.Connection) -> None:
    """Puts a file into WAL mode for good, in which readers never wait."""
    end_s = time.monotonic() + _BUSY_S
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            # SQLite does not wait for other processes here, whatever the connection's timeout.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end_s:
                raise
            time.sleep(0.01)
