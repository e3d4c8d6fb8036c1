"""Passages in a DuckDB file: `[memory] path = "duckdb:///data/passages.duckdb"`.

DuckDB lets one process open a file for writing; in it, any number of threads read and one writes.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import duckdb

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory import StoreUrl
from harness.memory.sqlite import (
    DEFAULT_LANGUAGE,
    SCHEMA_VERSION,
    TABLES,
    check_version,
    no_store,
)

_SCHEME = "duckdb://"
_TYPES = {"INTEGER": "BIGINT", " REAL": " DOUBLE", "WITHOUT ROWID": ""}


@dataclass(frozen=True)
class DuckDbUrl(StoreUrl):
    """`duckdb:///data/passages.duckdb`, a file of this machine."""

    path: Path

    def absolute(self) -> DuckDbUrl:
        """With the path from the root."""
        return DuckDbUrl(self.path.absolute())

    def __str__(self) -> str:
        return f"{_SCHEME}{self.path}"


class _Store:
    def parse(self, text: str) -> DuckDbUrl:
        """See `harness.memory.database.StoreKind`."""
        path = unquote(text.removeprefix(_SCHEME))
        if not path or "?" in path:
            raise InvalidInput(
                "write duckdb:///folder/passages.duckdb, without parameters",
                code="duckdb.url-invalid",
            )
        return DuckDbUrl(Path(path))

    def open(self, url: DuckDbUrl, *, indexes: Path, wait_s: float, make: bool) -> DuckDbDatabase:
        """See `harness.memory.database.StoreKind`."""
        if not make and not url.path.is_file():
            raise no_store(url)
        return DuckDbDatabase(url, indexes=indexes, wait_s=wait_s)


DUCKDB = _Store()


class DuckDbDatabase:
    """One file. See `harness.memory.database.Database` for what is not said here."""

    among = "IN (SELECT unnest(?))"

    def __init__(self, url: DuckDbUrl, *, indexes: Path, wait_s: float) -> None:
        self.place = url
        self._wait_s = wait_s
        self._turn = threading.Lock()
        try:
            url.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = duckdb.connect(str(url.path))
        except (duckdb.Error, OSError) as error:
            raise self.failed(
                f"{error} (DuckDB opens a file in one process alone)", code="duckdb.not-opened"
            ) from error
        self._is_closed = False
        try:
            self._prepare()
            with self.reading() as db:
                (identity,) = db.execute("SELECT place FROM state").fetchone()
            self.directory = indexes / str(identity)
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except BaseException:
            self.close()
            raise

    def listed(self, values: Iterable[int] | Iterable[str]) -> list[Any]:
        return list(values)

    @contextmanager
    def reading(self) -> Iterator[_Statements]:
        with self._translated():
            if self._is_closed:
                raise self.failed("the store is closed; open it again", code="memory.store-closed")
            # Each thread has a connection of its own to the one file.
            connection = self._file.cursor()
            try:
                yield _Statements(connection)
            finally:
                connection.close()

    @contextmanager
    def writing(self) -> Iterator[_Statements]:
        if not self._turn.acquire(timeout=self._wait_s):
            raise self.failed("another thread is writing to it", code="memory.store-busy")
        try:
            with self.reading() as db:
                db.execute("BEGIN")
                try:
                    yield db
                except BaseException:
                    db.execute("ROLLBACK")
                    raise
                db.execute("COMMIT")
        finally:
            self._turn.release()

    def seen(self) -> int:
        with self.reading() as db:
            return int(db.execute("SELECT sequence FROM state").fetchone()[0])

    def follow(self, notify: Callable[[], None]) -> None:
        """Nothing else writes to the file."""

    def free(self) -> None:
        with self.reading() as db:
            db.execute("CHECKPOINT")

    def size_bytes(self) -> int:
        return self.place.path.stat().st_size

    def failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        return MemoryStoreFailed(message, path=str(self.place), code=code)

    def close(self) -> None:
        with self._turn:
            self._is_closed = True
            self._file.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise self.failed(f"{error} (open the store again)", code="memory.failed") from error

    def _prepare(self) -> None:
        with self.writing() as db:
            has_tables = "SELECT 1 FROM information_schema.tables WHERE table_name = 'harness'"
            if db.execute(has_tables).fetchone() is None:
                for statement in TABLES:
                    db.execute(statement)
                db.execute("CREATE TABLE harness (version BIGINT)")
                db.execute("INSERT INTO harness VALUES (?)", (SCHEMA_VERSION,))
                values = (DEFAULT_LANGUAGE, uuid4().hex)
                db.execute("INSERT INTO state VALUES (0, ?, ?)", values)
            (version,) = db.execute("SELECT version FROM harness").fetchone()
        check_version(version, self.failed)


class _Statements:
    """SQLite's statements on a connection to DuckDB."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self.rowcount = -1

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> _Statements:
        self._connection.execute(_translation(statement), list(values))
        if statement.startswith(("DELETE", "UPDATE", "INSERT")):
            (self.rowcount,) = self._connection.fetchone() or (0,)
        return self

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]], /) -> None:
        for row in rows:
            self._connection.execute(_translation(statement), list(row))

    def each(self, query: str, rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        return [self.execute(query, row).fetchall() for row in rows]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())

    def fetchone(self) -> Any:
        return self._connection.fetchone()

    def fetchall(self) -> list[Any]:
        return self._connection.fetchall()


@cache
def _translation(statement: str) -> str:
    """SQLite's statement as DuckDB writes it."""
    if statement.startswith("CREATE TABLE"):
        for theirs, ours in _TYPES.items():
            statement = statement.replace(theirs, ours)
    # A column's name, which is a word of DuckDB's.
    return re.sub(r"\bat\b", '"at"', statement) if "removed" in statement else statement
