"""Texts by key in SQLite: replies of models, and outputs of nodes."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
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
    """Texts by key, in one SQLite file that several processes may share; without a path in memory.

    It grows until the file is deleted. Raises `ConfigurationInvalid` for a file that cannot be
    opened; `unusable`, if given, is told that error instead, when the file is first needed.
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
        # One, and not the caller's: no call waits for the disk, nor for another's text.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="text store")
        self._has_warned = False

    async def find(self, key: str) -> str | None:
        """The text of this key; None when there is none."""
        return await asyncio.wrap_future(self._soon(self._find, key))

    def keep(self, key: str, text: str) -> None:
        """Stores a text, soon: found from now on, written at the latest on closing."""
        self._soon(self._keep, key, text)

    async def aclose(self) -> None:
        """Writes what is still to be written, and closes the file."""
        if self._is_used:
            await to_its_end(self._close, thread=self._thread)
        # `_close` was the thread's last work: there is nothing to wait for.
        self._thread.shutdown(wait=False)

    def _soon(self, work: Callable[..., T], *arguments: object) -> Future[T]:
        """Does it in the store's thread, which first opens the file."""
        if not self._is_used:
            self._is_used = True
            self._thread.submit(self._open)
        return self._thread.submit(work, *arguments)

    def _open(self) -> None:
        try:
            self._db = _open(self._path)
        except ConfigurationInvalid as error:
            assert self._unusable is not None
            # Once: without a database nothing is found or kept from here on, and nothing fails.
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
        # A text with its secret taken out is another text, and no reply to the same call.
        if self._db is None or self._clean(text) != text:
            return
        try:
            self._db.execute("INSERT OR REPLACE INTO reply VALUES (?, ?)", (key, text))
        except sqlite3.Error as error:
            self._warn("a reply cannot be kept in the call cache", error, code="cache.not-written")

    def _warn(self, what: str, error: sqlite3.Error, *, code: str) -> None:
        # Once: an error after the file was opened fails no call, since the model is asked then.
        if not self._has_warned:
            self._has_warned = True
            log_warning(what, code=code, path=str(self._path), error=str(error))


def _open(path: Path | None) -> sqlite3.Connection:
    with _translated(path):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            make_private(path)
        db = sqlite3.connect(
            path or ":memory:",
            timeout=_BUSY_S,
            # Every statement is its own transaction.
            isolation_level=None,
            # Opened here, used in the cache's thread alone.
            check_same_thread=False,
        )
    try:
        with _translated(path):
            _prepare(db, path)
    except BaseException:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection, path: Path | None) -> None:
    # Another process may be making the same file at this moment.
    db.execute("BEGIN IMMEDIATE")
    queries = ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    application_id, version, tables = (db.execute(query).fetchone()[0] for query in queries)
    # An empty file, as `make_private` leaves it.
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
    db.execute("PRAGMA journal_mode = WAL")
    # The last replies may be lost when the power fails; nothing else.
    db.execute("PRAGMA synchronous = NORMAL")


@contextmanager
def _translated(path: Path | None) -> Iterator[None]:
    """What keeps the file from being opened, as this package's error."""
    try:
        yield
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
