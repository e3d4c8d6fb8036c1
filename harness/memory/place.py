"""Where a store is: a directory, or a schema of a PostgreSQL database."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from harness.errors import InvalidInput, Mistake

_SCHEMES = ("postgresql://", "postgres://")
_SCHEMA = "harness"
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")

# No other parameter of libpq: some send the password elsewhere, or read another file of the user's.
_PARAMETERS = ("schema", "sslmode", "sslrootcert")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresUrl:
    """`postgresql://user@host:port/database?schema=name`, each part but the scheme left out or not.

    It never holds a password, so that it can be shown and kept: libpq takes that, and what is left
    out, from `PGPASSWORD`, `~/.pgpass` and its other variables and files.
    """

    host: str | None = None
    """A name, an address, or the directory of a socket."""
    port: int | None = None
    user: str | None = None
    database: str | None = None
    schema: str = _SCHEMA
    sslmode: str | None = None
    sslrootcert: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a url; raises `Mistake` without repeating what may be a password."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise Mistake(
                "the url is none: postgresql://user@host:5432/database, with one host",
                code="memory.url-invalid",
            ) from None
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        if parts.password is not None or "password" in options:
            raise Mistake(
                "the url holds a password, which would end in files and lists of processes; put it "
                "into ~/.pgpass or the variable PGPASSWORD",
                code="memory.url-password",
            )
        if unknown := sorted(options.keys() - set(_PARAMETERS)):
            raise Mistake(
                f"the url has the parameter {unknown[0]!r}; it may have {', '.join(_PARAMETERS)}",
                code="memory.url-parameter",
            )
        if not _SCHEMA_NAME.fullmatch(options.setdefault("schema", _SCHEMA)):
            raise Mistake(
                "the url's schema must be lower-case letters, digits and _, at most 63",
                code="memory.url-schema",
            )
        return cls(
            host=unquote(host) if host else None,
            port=port,
            user=unquote(parts.username) if parts.username else None,
            database=unquote(parts.path.strip("/")) or None,
            **options,
        )

    def absolute(self) -> Self:
        """Itself, as `Path.absolute` is the path from anywhere."""
        return self

    @property
    def libpq(self) -> dict[str, str | int]:
        """The parts that are given, by libpq's names."""
        named = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "dbname": self.database,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert,
        }
        return {name: value for name, value in named.items() if value is not None}

    def __str__(self) -> str:
        host = self.host or ""
        host = f"[{host}]" if ":" in host else quote(host, safe="")
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        port = "" if self.port is None else f":{self.port}"
        given = {name: getattr(self, name) for name in _PARAMETERS}
        given["schema"] = None if self.schema == _SCHEMA else self.schema
        query = urlencode({name: value for name, value in given.items() if value is not None})
        path = quote(self.database or "", safe="")
        return f"postgresql://{user}{host}{port}/{path}{'?' if query else ''}{query}"


Place = Path | PostgresUrl
"""Where a store is."""


def place_of(given: Path | PostgresUrl | str) -> Place:
    """The directory, or the url, that is given; raises `Mistake` for a url that is not usable."""
    if isinstance(given, str):
        return PostgresUrl.parse(given) if is_url(given) else Path(given)
    return given


def is_url(text: str) -> bool:
    """Whether a text is meant to be a PostgreSQL url."""
    return text.startswith(_SCHEMES)


def no_store(place: Place) -> InvalidInput:
    """The error to raise where none may be made."""
    return InvalidInput(
        f"{place}: there is no store; harness memory add makes one", code="memory.no-store"
    )
