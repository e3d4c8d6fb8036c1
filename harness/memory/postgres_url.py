"""The url of a store in PostgreSQL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from harness.errors import InvalidInput
from harness.memory.database import StoreUrl

_SCHEMES = ("postgresql", "postgres")
_SCHEMA = "harness"
# PostgreSQL cuts longer names, and folds capitals.
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_PORT = 5432


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresUrl(StoreUrl):
    """`postgresql://user@host:port/database?schema=name`, each part but the scheme left out or not.

    libpq takes the password, and what is left out, from its variables and files.
    """

    host: str | None = None
    """A name, an address, or the directory of a socket."""
    port: int | None = None
    user: str | None = None
    database: str | None = None
    schema: str = _SCHEMA

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a url; raises `InvalidInput` without repeating what may be a password."""
        try:
            parts = urlsplit(text)
            host, port = parts.hostname, parts.port
            # A password with a / or # in it ends the host early.
            is_usable = parts.scheme in _SCHEMES and "@" not in parts.path and not parts.fragment
        except ValueError:
            is_usable = False
        if not is_usable:
            raise InvalidInput(
                "this is no PostgreSQL url; write postgresql://user@host:5432/database, with one "
                "host, and %40 and %23 for @ and # in a name",
                code="memory.url-invalid",
            )
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        # A url is shown and kept.
        if parts.password is not None or "password" in options:
            raise InvalidInput(
                "the url holds a password, which would end in files and lists of processes; put it "
                "into ~/.pgpass or the variable PGPASSWORD",
                code="memory.url-password",
            )
        schema = options.pop("schema", _SCHEMA)
        # Some of libpq's parameters send the password elsewhere.
        if options or not _SCHEMA_NAME.fullmatch(schema):
            raise InvalidInput(
                "the url may have one parameter, ?schema=, of lower-case letters, digits and _; "
                "for others, such as sslmode, PostgreSQL has variables: PGSSLMODE",
                code="memory.url-parameter",
            )
        return cls(
            host=unquote(host) if host else None,
            port=port,
            user=unquote(parts.username) if parts.username else None,
            database=unquote(parts.path.strip("/")) or None,
            schema=schema,
        )

    @property
    def credential(self) -> str:
        """Stands for all that libpq finds, as in `~/.pgpass`."""
        return "PGPASSWORD"

    @property
    def hosts(self) -> list[str]:
        """`localhost` for a url without a host, wherever the user's own variables lead it."""
        host, port = (self.host or "localhost").lower(), self.port or _PORT
        return [f"{host}:{port}"] + [host] * (port == _PORT)

    def __str__(self) -> str:
        host = self.host or ""
        host = f"[{host}]" if ":" in host else quote(host, safe="")
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        port = "" if self.port is None else f":{self.port}"
        query = "" if self.schema == _SCHEMA else f"?schema={self.schema}"
        return f"postgresql://{user}{host}{port}/{quote(self.database or '', safe='')}{query}"
