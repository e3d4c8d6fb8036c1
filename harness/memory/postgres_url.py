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
    """`postgresql://user@host:port/database?schema=name`, where all but the scheme may be left out.

    libpq takes the password and the missing parts from its own variables and files.
    """

    host: str | None = None
    """A name, an address, or the directory of a socket."""
    port: int | None = None
    user: str | None = None
    database: str | None = None
    schema: str = _SCHEMA

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads a url; raises `InvalidInput`, whose message must not hold a password of the url."""
        try:
            parts = urlsplit(text)
            host = parts.hostname
            port = parts.port
            # A password with a `/` or `#` ends the host early, and its rest is in path or fragment.
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
        if parts.password is not None or "password" in options:
            raise InvalidInput(
                "the url holds a password, which would end in files and lists of processes; put it "
                "into ~/.pgpass or the variable PGPASSWORD",
                code="memory.url-password",
            )
        schema = options.pop("schema", _SCHEMA)
        # No other parameters, since some of libpq's would send the password to another host.
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
        """The variable of the password; libpq may find one elsewhere too, as in `~/.pgpass`."""
        return "PGPASSWORD"

    @property
    def hosts(self) -> list[str]:
        """See `StoreUrl.hosts`; `localhost` if the url has no host, whatever libpq then uses."""
        host = (self.host or "localhost").lower()
        port = self.port or _PORT
        spellings = [f"{host}:{port}"]
        if port == _PORT:
            spellings.append(host)
        return spellings

    def __str__(self) -> str:
        host = self.host or ""
        host = f"[{host}]" if ":" in host else quote(host, safe="")  # an IPv6 address has colons
        user = "" if self.user is None else f"{quote(self.user, safe='')}@"
        port = "" if self.port is None else f":{self.port}"
        database = quote(self.database or "", safe="")
        query = "" if self.schema == _SCHEMA else f"?schema={self.schema}"
        return f"postgresql://{user}{host}{port}/{database}{query}"
