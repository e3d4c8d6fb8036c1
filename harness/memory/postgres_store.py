"""PostgreSQL as a kind of store, which needs the extra `postgres`."""

from __future__ import annotations

from pathlib import Path

from harness.errors import ConfigurationInvalid
from harness.memory.database import Database
from harness.memory.postgres_url import PostgresUrl


class _PostgresStore:
    def parse(self, text: str) -> PostgresUrl:
        return PostgresUrl.parse(text)

    def open(self, url: PostgresUrl, *, indexes: Path, wait_s: float, make: bool) -> Database:
        try:
            from harness.memory.postgres import PostgresDatabase  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationInvalid(
                f"PostgreSQL's client cannot be imported ({error}); "
                "pip install 'wiggum-harness[postgres]'",
                code="memory.no-psycopg",
            ) from error
        return PostgresDatabase(url, indexes=indexes, wait_s=wait_s, make=make)


POSTGRES = _PostgresStore()
"""See `StoreKind`."""
