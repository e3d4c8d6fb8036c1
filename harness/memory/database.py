"""What a database offers to a primary store, and what a kind of store is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from harness.errors import MemoryStoreFailed
from harness.memory.place import Place, StoreUrl

Statements = Any
"""A connection with sqlite3's `execute` and `executemany`, and `each`; values stand as `?`.

`each(query, rows)` gives what a query finds for each row of values."""

LOST = "memory.server-lost"
"""The code of an error after which a whole write may be made again, stored or not."""


class Database(Protocol):
    """The tables of `harness.memory.sqlite` in a database. May be used from any thread.

    Every method raises `MemoryStoreFailed`, made by `failed`, in place of the database's errors.

    Attributes:
        directory: Where the indexes of this machine lie.
        among: Stands behind a column: whether its value is among those of `listed`.
    """

    directory: Path
    among: str

    @property
    def place(self) -> Place:
        """The directory or url that it was opened at."""

    def listed(self, values: Iterable[int] | Iterable[str]) -> object:
        """Any number of values as one, for `among`."""

    def reading(self) -> AbstractContextManager[Statements]:
        """A connection for reading; threads may read side by side."""

    def writing(self) -> AbstractContextManager[Statements]:
        """A transaction of the only writer: durable once this is left, and nothing if it raises."""

    def failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        """The error to raise about this store."""

    def seen(self) -> int | None:
        """The number of the last write, if it is known without asking a server."""

    def follow(self, notify: Callable[[], None]) -> None:
        """Calls `notify`, in another thread, soon after another machine has written."""

    def free(self) -> None:
        """Gives the room of removed rows back, to the disk or the server."""

    def size_bytes(self) -> int:
        """Of the tables that are not in `directory`."""

    def close(self) -> None:
        """Closes it; every later call raises."""


class StoreKind(Protocol):
    """The object of an entry point in `harness.stores`, by the scheme of its urls."""

    def parse(self, text: str) -> StoreUrl:
        """Reads a url; raises `InvalidInput` without repeating what may be a password."""

    def open(self, url: Any, *, indexes: Path, wait_s: float, make: bool) -> Database:  # noqa: ANN401 - of its own class
        """Opens the database, and makes its tables if they are missing and `make`.

        Args:
            url: As `parse` made it.
            indexes: A folder of this user's for indexes; each store needs one of its own in it.
            wait_s: How long a write waits for writes of other processes.
            make: Otherwise a missing store is `no_store(url)`.

        Raises:
            MemoryStoreFailed: It cannot be opened.
            ConfigurationInvalid: A package is missing.
        """
