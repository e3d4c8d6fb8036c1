"""Passages as rows of SQLite, and back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import datetime

from harness.memory.passage import Passage

COLUMNS = "sequence, id, text, title, source, quality, created, metadata"
"""What a row holds, in the order of the functions below."""

Row = tuple[int | None, str, str, str, str, float | None, str, str]


def row_of(sequence: int | None, passage: Passage) -> Row:
    """What is stored of a passage; `created` must be known. Without a number it gets the next."""
    assert passage.created is not None
    return (
        sequence,
        passage.id,
        passage.text,
        passage.title,
        passage.source,
        passage.quality,
        passage.created.isoformat(),
        json.dumps(dict(passage.metadata)),
    )


def passage_of(row: Row) -> Passage:
    """The passage that was stored."""
    _, id_, text, title, source, quality, created, metadata = row
    return Passage(
        id=id_,
        text=text,
        title=title,
        source=source,
        quality=quality,
        created=datetime.fromisoformat(created),
        metadata=json.loads(metadata),
    )


def fetch(db: sqlite3.Connection, sequences: Iterable[int]) -> dict[int, Passage]:
    """Those of these that are there, by sequence number."""
    query = f"SELECT {COLUMNS} FROM passage WHERE sequence IN (SELECT value FROM json_each(?))"  # noqa: S608  # constants
    rows = db.execute(query, (numbers(sequences),))
    return {row[0]: passage_of(row) for row in rows}


def find(db: sqlite3.Connection, id_: str) -> tuple[int, Passage] | None:
    """The passage with this id, and its sequence number."""
    query = f"SELECT {COLUMNS} FROM passage WHERE id = CAST(? AS TEXT)"  # noqa: S608  # constants
    # As bytes: any text may be asked for, also one that no passage's id can be.
    row = db.execute(query, (id_.encode(errors="surrogatepass"),)).fetchone()
    return None if row is None else (row[0], passage_of(row))


def sequence_of(db: sqlite3.Connection, id_: str) -> int | None:
    """The sequence number of the passage with this id."""
    row = db.execute("SELECT sequence FROM passage WHERE id = ?", (id_,)).fetchone()
    return None if row is None else int(row[0])


def numbers(sequences: Iterable[int]) -> str:
    """For `json_each(?)`: one statement, however many there are."""
    return json.dumps([int(sequence) for sequence in sequences])
