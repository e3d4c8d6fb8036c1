"""The place of a store: a directory, or a url whose scheme an installed kind of store knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from harness.errors import InvalidInput, did_you_mean
from harness.plugins import load_plugin, plugin_names


class StoreUrl(ABC):
    """A place that is no directory. It never holds a password: it is shown and recorded."""

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
        """Itself, as `Path.absolute` is the path from anywhere."""
        return self

    @abstractmethod
    def __str__(self) -> str:
        """The url."""


Place = Path | StoreUrl
"""Where a store is."""


def is_url(text: str) -> bool:
    """Whether a text is meant to be a url, and no directory."""
    return "://" in text


def place_of(given: Place | str) -> Place:
    """The directory or the url that is given.

    Raises:
        InvalidInput: No store of the url's scheme is installed, or the url is not usable.
        ConfigurationInvalid: The store's package is broken.
    """
    if not isinstance(given, str):
        return given
    if not is_url(given):
        return Path(given)
    scheme, names = given.partition(":")[0].lower(), plugin_names("stores")
    if scheme not in names:
        # Without the rest of the url, which may hold a password.
        raise InvalidInput(
            f"no store for urls '{scheme}://' is installed; {did_you_mean(scheme, names)}",
            code="memory.url-invalid",
        )
    place: StoreUrl = load_plugin("stores", scheme, is_store_kind).parse(given)
    return place


def is_store_kind(added: object) -> bool:
    """Whether a plugin may be a `StoreKind`."""
    return callable(getattr(added, "parse", None)) and callable(getattr(added, "open", None))
