"""A PostgreSQL schema as the database of a primary store, for several machines.

It has the tables of `harness.memory.sqlite`. Its indexes are on each machine, in a folder named
after the store. Each commit sends a notification, and one connection listens for these, so that the
last write is known without asking.

psycopg is an extra: this module is imported when a url is opened.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.types.string import StrDumperUnknown

from harness.errors import MemoryStoreFailed
from harness.log import log_warning
from harness.memory.database import LOST
from harness.memory.postgres_url import PostgresUrl
from harness.memory.sqlite import (
    BUSY,
    OTHERWISE,
    SCHEMA_VERSION,
    check_version,
    make_tables,
    no_store,
    upgrade,
)

Connection: TypeAlias = Any
T = TypeVar("T")

_IDLE_CONNECTIONS = 8

_STATEMENT_S = 60

# How long the listening connection waits before it looks whether the store was closed, and how long
# it pauses after a failure.
_POLL_S = 0.2
_PAUSE_S = 1.0

RESTART_S = 30.0
"""How long an open store waits for a server that is away, as while it restarts."""
_RECONNECT_S = 0.25

# A connection over a network that is gone is noticed within 20 s, however much was sent.
_LIBPQ: dict[str, Any] = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
    "connect_timeout": 10,
    "application_name": "harness",
}

_FORBIDDEN = (
    "memory.store-read-only",
    "the user needs the right to write, and to create tables in the schema",
)
_LOST = (
    LOST,
    "the connection is lost; whether a write was stored is unknown, and making it again is safe",
)
_REMEDIES = {
    "IdleInTransactionSessionTimeout": _LOST,
    "LockNotAvailable": BUSY,
    "DeadlockDetected": BUSY,
    "QueryCanceled": (
        "memory.server-slow",
        f"it took longer than {_STATEMENT_S} s: see what keeps the server busy, and try again",
    ),
    "DiskFull": ("memory.disk-full", "nothing was stored: make room on the server and try again"),
    "InsufficientPrivilege": _FORBIDDEN,
    "ReadOnlySqlTransaction": _FORBIDDEN,
    "ProgramLimitExceeded": ("memory.id-too-long", "an id is too long for an index: shorten it"),
    "UndefinedTable": (
        "memory.store-changed",
        "its tables were changed meanwhile: try again, or open it again",
    ),
}


class PostgresDatabase:
    """Connections to one schema, which is made if it is missing and `make`. A `Database`.

    May be used from any thread.
    """

    among = "= ANY(?)"

    def __init__(self, url: PostgresUrl, *, indexes: Path, wait_s: float, make: bool) -> None:
        self.place = url
        self._schema = f'"{url.schema}"'
        named = {"host": url.host, "port": url.port, "user": url.user, "dbname": url.database}
        settings = {
            "search_path": url.schema,
            "statement_timeout": f"{_STATEMENT_S}s",
            "lock_timeout": f"{round(wait_s * 1000)}ms",
            # A process that hangs must not keep all others from writing.
            "idle_in_transaction_session_timeout": f"{_STATEMENT_S}s",
            # An acknowledged write is on disk, even if the server's own setting is laxer.
            "synchronous_commit": "on",
        }
        self._libpq = _LIBPQ | {name: value for name, value in named.items() if value is not None}
        self._libpq["options"] = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._idle: deque[Connection] = deque()
        self._closed = threading.Event()
        self._is_open = False
        self._is_away = False
        self._seen = 0
        self._lock = threading.Lock()  # of `_seen`
        self._listener: threading.Thread | None = None
        self._is_listening = False
        try:
            self._prepare(make=make)
            with self.reading() as db:
                (identity,) = db.execute("SELECT place FROM state").fetchone()
            # Checked, since others may write the row, and it becomes the name of a folder and a
            # part of statements.
            if not re.fullmatch("[0-9a-f]{32}", identity):
                raise self._foreign()
            self._channel = f"harness_{identity}"
            self.directory = indexes / identity
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._is_open = True
        except OSError as error:
            self.close()
            raise self.failed(
                f"its indexes cannot be kept here ({error}); give another [memory] cache",
                code="memory.no-directory",
            ) from error
        except BaseException:
            self.close()
            raise

    def listed(self, values: Iterable[int] | Iterable[str]) -> list[Any]:
        """An array of any number of values."""
        return list(values)

    @contextmanager
    def reading(self) -> Iterator[_Statements]:
        """A connection. Each statement is a transaction, which takes one round trip."""
        with self._translated():
            self._check_open()
            idle = None
            with suppress(IndexError):
                idle = self._idle.pop()
            # An idle connection may have been lost meanwhile: `_Statements` then makes a new one.
            db = _Statements(idle or self._connect_patiently(), self._connect_patiently)
            try:
                yield db
            finally:
                self._give_back(db.connection)

    @contextmanager
    def writing(self) -> Iterator[_Statements]:
        """A transaction of the only writer: committed after the block, undone if it raises."""
        with self.reading() as db:
            db.execute("BEGIN")
            # Every writer locks this row first, so that writes are committed in the order of their
            # numbers: if a number is seen, all writes before it are there. By `FOR UPDATE` a writer
            # that waited for the row sees the writes of the one before, which a snapshot would not.
            (before,) = db.execute("SELECT sequence FROM state FOR UPDATE").fetchone()
            yield db
            (after,) = db.execute("SELECT sequence FROM state").fetchone()
            if after != before:
                db.execute("SELECT pg_notify(?, ?)", (self._channel, str(after)))
            db.execute("COMMIT")
            self._record_seen(after)

    def free(self) -> None:
        """Does nothing, since PostgreSQL's autovacuum frees the room."""

    def size_bytes(self) -> int:
        """The size of the tables and their indexes, on the server."""
        query = (
            "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class "
            "WHERE relkind = 'r' AND relnamespace = to_regnamespace(?)"
        )
        with self.reading() as db:
            return int(db.execute(query, (self.place.schema,)).fetchone()[0])

    def failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        """The error to raise about this store."""
        return MemoryStoreFailed(message, path=str(self.place), code=code)

    def close(self) -> None:
        """Closes connections and ends the thread that listens."""
        self._closed.set()
        if self._listener is not None:
            self._listener.join(_PAUSE_S)
        self._close_idle()

    # --- following ---------------------------------------------------------------------------

    def seen(self) -> int | None:
        """The number of the last write of which a notification came; None while none can come."""
        return self._seen if self._is_listening else None

    def follow(self, notify: Callable[[], None]) -> None:
        """Listens in a thread; calls `notify` after each notification, and now and then."""
        self._listener = threading.Thread(
            target=self._listen, args=(notify,), name="memory listener", daemon=True
        )
        self._listener.start()

    def _listen(self, notify: Callable[[], None]) -> None:
        while not self._closed.is_set():
            try:
                with self._connect() as connection:
                    connection.execute(f"LISTEN {self._channel}")
                    # After `LISTEN`, so that no commit falls in between.
                    self._record_seen(*connection.execute("SELECT sequence FROM state").fetchone())
                    self._is_listening = True
                    while not self._closed.is_set():
                        # At most one packet's, so that `notify` follows each.
                        for notification in connection.notifies(timeout=_POLL_S, stop_after=1):
                            # Checked, since any user of the database may notify.
                            if re.fullmatch("[0-9]{1,18}", notification.payload):
                                self._record_seen(int(notification.payload))
                        notify()
            except (psycopg.Error, MemoryStoreFailed):
                self._closed.wait(_PAUSE_S)
            finally:
                self._is_listening = False

    def _record_seen(self, sequence: int) -> None:
        with self._lock:
            self._seen = max(self._seen, sequence)

    # --- connections -------------------------------------------------------------------------

    def _give_back(self, connection: Connection) -> None:
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE
        if is_idle and len(self._idle) < _IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            # Closing undoes a transaction that is under way.
            connection.close()
        # `close` may have run meanwhile.
        if self._closed.is_set():
            self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().close()

    def _connect_patiently(self) -> Connection:
        """Makes a connection; an open store waits up to `RESTART_S` for a server that is away."""
        end_s = time.monotonic() + RESTART_S
        while True:
            try:
                connection = self._connect()
                self._is_away = False
                return connection
            except MemoryStoreFailed as error:
                if not self._is_open or time.monotonic() > end_s:
                    raise
                # Many threads may wait at once, of which only the first logs it.
                if not self._is_away:
                    self._is_away = True
                    log_warning(
                        f"the memory store's server is away; waiting up to {RESTART_S:g} s for it",
                        code="memory.server-away",
                        place=str(self.place),
                        reason=str(error),
                    )
                self._closed.wait(_RECONNECT_S)
                self._check_open()

    def _connect(self) -> Connection:
        try:
            connection = psycopg.connect(**self._libpq, row_factory=lambda _: _row, autocommit=True)
        except psycopg.OperationalError as error:
            raise self.failed(
                f"{_line(error)} (see that the server is up and has the database, and that the "
                "user may connect; a password stands in ~/.pgpass or PGPASSWORD)",
                code="memory.server-unreachable",
            ) from error
        connection.adapters.register_dumper(str, _AnyText)
        return connection

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self.failed("the store is closed; open it again", code="memory.store-closed")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates psycopg's errors into `MemoryStoreFailed`."""
        try:
            yield
        except psycopg.Error as error:
            otherwise = _LOST if isinstance(error, psycopg.OperationalError) else OTHERWISE
            code, remedy = _REMEDIES.get(type(error).__name__, otherwise)
            raise self.failed(f"{_line(error)} ({remedy})", code=code) from error

    # --- tables ------------------------------------------------------------------------------

    def _prepare(self, *, make: bool) -> None:
        """Makes schema and tables, or checks and raises their version."""
        version = self._version()
        if version == 0 and not make:
            raise no_store(self.place)
        check_version(version, self.failed)
        if version == SCHEMA_VERSION:
            return
        with self.reading() as db:
            db.execute("BEGIN")
            # Other processes that prepare the schema wait for this.
            db.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (self._schema,))
            if version:
                # Keeps others from writing meanwhile, since their rows would be of the old version.
                db.execute("SELECT sequence FROM state FOR UPDATE")
            else:
                db.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}")
            if self._version() == version:  # no other process was quicker
                if version:
                    upgrade(db, version)
                else:
                    make_tables(db, uuid4().hex)
                db.execute(f"COMMENT ON TABLE state IS '{SCHEMA_VERSION}'")
            db.execute("COMMIT")

    def _version(self) -> int:
        """The version of the tables; 0 if there are none."""
        with self.reading() as db:
            (table, version) = db.execute(
                "SELECT to_regclass('state'), obj_description(to_regclass('state'), 'pg_class')"
            ).fetchone()
        if table is not None and not (version or "").isdecimal():
            raise self._foreign()
        return int(version or 0)

    def _foreign(self) -> MemoryStoreFailed:
        return self.failed(
            "the schema has tables of another program; give the url another ?schema=",
            code="memory.foreign-database",
        )


def _line(error: BaseException) -> str:
    """The message of an error in one line."""
    return " ".join(str(error).split())


class _Statements:
    """Executes SQLite's statements on a connection to PostgreSQL."""

    def __init__(self, connection: Connection, connect: Callable[[], Connection]) -> None:
        self.connection = connection
        self._connect = connect
        self._has_begun = False  # whether a transaction of several statements is under way

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:  # noqa: ANN401 - a cursor
        translation = _translation(statement)
        cursor = self._reconnecting(
            lambda: self.connection.execute(translation, values, binary=True)
        )
        self._has_begun = self._has_begun or statement == "BEGIN"
        return cursor

    def executemany(self, statement: str, rows: Sequence[Sequence[Any]], /) -> None:
        if rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(_translation(statement), rows)

    def each(self, query: str, rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Runs a query for each row of values, and returns the results of each."""

        def query_all() -> list[list[Any]]:
            # psycopg sends all queries before it reads the first result.
            with self.connection.cursor(binary=True) as cursor:
                cursor.executemany(_translation(query), rows, returning=True)
                results = [cursor.fetchall()]
                while cursor.nextset():
                    results.append(cursor.fetchall())
            return results

        return self._reconnecting(query_all) if rows else []

    def _reconnecting(self, action: Callable[[], T]) -> T:
        """Calls `action`, and up to twice more on a new connection if the connection is lost."""
        for tries_left in (2, 1, 0):
            try:
                return action()
            except psycopg.OperationalError as error:
                # A connection is lost after a restart of the server, for example. An error without
                # a state was not sent by the server, so the exchange with it broke off, even if
                # the connection seems open.
                is_shutdown = isinstance(error, _SHUTDOWNS)
                is_lost = self.connection.closed or error.sqlstate is None or is_shutdown
                # A part of a transaction is not repeated, since the transaction is lost as a whole.
                if self._has_begun or not (is_lost and tries_left):
                    raise
                self.connection.close()
                self.connection = self._connect()
        raise AssertionError


_SHUTDOWNS = (psycopg.errors.AdminShutdown, psycopg.errors.CrashShutdown)


# SQLite's type → PostgreSQL's.
_TYPES = {"INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION", "BLOB": "BYTEA", "WITHOUT ROWID": ""}


@cache
def _translation(statement: str) -> str:
    """SQLite's statement as PostgreSQL and psycopg write it."""
    if statement.startswith("CREATE TABLE"):
        for sqlite_type, postgres_type in _TYPES.items():
            statement = statement.replace(sqlite_type, postgres_type)
    return statement.replace("?", "%s")


# --- texts with the character 0, which PostgreSQL's texts cannot hold -------------------------

_ESCAPE = "\x1a"


class _AnyText(StrDumperUnknown):
    """Writes the character 0 as an escape and "0", and the escape itself as an escape and "1"."""

    def dump(self, obj: str) -> Any:  # noqa: ANN401 - a buffer
        if _ESCAPE in obj or "\0" in obj:
            obj = obj.replace(_ESCAPE, f"{_ESCAPE}1").replace("\0", f"{_ESCAPE}0")
        return super().dump(obj)


def _row(values: Sequence[Any]) -> tuple[Any, ...]:
    """A row whose texts are as they were before `_AnyText` wrote them."""
    # Not by a loader of psycopg, which in Python takes 1 µs a value.
    if any(type(value) is str and _ESCAPE in value for value in values):
        return tuple(_unescaped(value) if type(value) is str else value for value in values)
    return tuple(values)


def _unescaped(text: str) -> str:
    return text.replace(f"{_ESCAPE}0", "\0").replace(f"{_ESCAPE}1", _ESCAPE)
