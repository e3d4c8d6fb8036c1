"""The interfaces of databases and kinds of stores, and the places where stores are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, Self

from harness.errors import InvalidInput, MemoryStoreFailed, did_you_mean
from harness.plugins import load_plugin, plugin_names

Statements = Any
"""A connection with sqlite3's `execute` and `executemany`, and `each`; values stand as `?`.

`each(query, rows)` runs a query for each row of values, and returns the results of each."""

LOST = "memory.server-lost"
"""The code of an error after which it is unknown whether a write was stored; the whole write may be
made again."""


class Database(Protocol):
    """The tables of `harness.memory.sqlite` in a database. May be used from any thread.

    Every method raises `MemoryStoreFailed`, made by `failed`, in place of the database's errors.

    Attributes:
        directory: Where the indexes of this machine are.
        among: The condition, behind a column, that its value is among those of `listed`.
    """

    directory: Path
    among: str

    @property
    def place(self) -> Place:
        """The directory or url that it was opened at."""

    def listed(self, values: Iterable[int] | Iterable[str]) -> object:
        """Any number of values as the one value of `among`."""

    def reading(self) -> AbstractContextManager[Statements]:
        """A connection for reading; threads may read side by side."""

    def writing(self) -> AbstractContextManager[Statements]:
        """A transaction of the only writer: durable after the block, undone if the block raises."""

    def failed(self, message: str, *, code: str) -> MemoryStoreFailed:
        """Makes the error to raise about this store."""

    def seen(self) -> int | None:
        """The number of the last write; None if only a question to a server would show it."""

    def follow(self, notify: Callable[[], None]) -> None:
        """Calls `notify`, in another thread, soon after another machine has written."""

    def free(self) -> None:
        """Gives the room of removed rows back to the disk or the server."""

    def size_bytes(self) -> int:
        """The size of the tables that are not in `directory`."""

    def close(self) -> None:
        """Closes it; every later call raises."""


class StoreKind(Protocol):
    """The object of an entry point in `harness.stores`, by the scheme of its urls."""

    def parse(self, text: str) -> StoreUrl:
        """Reads a url; raises `InvalidInput`, whose message must not hold a password of the url."""

    def open(self, url: Any, *, indexes: Path, wait_s: float, make: bool) -> Database:  # noqa: ANN401 - of its own class
        """Opens the database, and makes its tables if they are missing and `make`.

        Args:
            url: As `parse` made it.
            indexes: A folder of this user's for indexes; each store needs one of its own in it.
            wait_s: How long a write waits for writes of other processes.
            make: Whether to make missing tables; otherwise `no_store(url)` is raised.

        Raises:
            MemoryStoreFailed: It cannot be opened.
            ConfigurationInvalid: A package is missing.
        """


# --- places ----------------------------------------------------------------------------------


class StoreUrl(ABC):
    """A place that is no directory. It must not hold a password, since it is shown and recorded."""

    @property
    def credential(self) -> str:
        """The variable whose value is sent to the server; empty for a place on this machine."""
        return ""

    @property
    def hosts(self) -> Sequence[str]:
        """The server's address in all spellings, such as `db:5432` and `db`, the one to print last.

        Empty for a place on this machine.
        """
        return ()

    def absolute(self) -> Self:
        """The url itself, which means the same from every directory; see `Path.absolute`."""
        return self

    @abstractmethod
    def __str__(self) -> str:
        """The url."""


Place = Path | StoreUrl
"""Where a store is."""


def is_url(text: str) -> bool:
    """Whether a text is meant to be a url, and no directory."""
    return "://" in text


def place_of(place: Place | str) -> Place:
    """A place, read from its text if it is a text.

    Raises:
        InvalidInput: No store of the url's scheme is installed, or the url is not usable.
        ConfigurationInvalid: The store's package is broken.
    """
    if not isinstance(place, str):
        return place
    if not is_url(place):
        return Path(place)
    scheme = place.partition(":")[0].lower()
    schemes = plugin_names("stores")
    if scheme not in schemes:
        # Without the rest of the url, which may hold a password.
        raise InvalidInput(
            f"no store for urls '{scheme}://' is installed; {did_you_mean(scheme, schemes)}",
            code="memory.url-invalid",
        )
    url: StoreUrl = load_plugin("stores", scheme, is_store_kind).parse(place)
    return url


def is_store_kind(plugin: object) -> bool:
    """Whether a plugin has the methods of a `StoreKind`."""
    return callable(getattr(plugin, "parse", None)) and callable(getattr(plugin, "open", None))
