"""The tables of the truth: made, brought up from older ones, and checked after a copy."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.changes import Changes
from harness.memory.connections import Connections
from harness.memory.passage import RESERVED, Passage, Scalar, is_finite
from harness.memory.reading import number_of
from harness.memory.stored_vectors import make_table, tables
from harness.memory.words import check_language

SCHEMA_VERSION = 3

# A passage that became one with the passage `kept`, by a rule.
_MERGED = (
    """CREATE TABLE merged (
        sequence INTEGER PRIMARY KEY,
        id       TEXT NOT NULL UNIQUE,
        text     TEXT NOT NULL,
        title    TEXT NOT NULL,
        source   TEXT NOT NULL,
        quality  REAL,
        created  TEXT NOT NULL,
        metadata TEXT NOT NULL,
        kept     TEXT NOT NULL,
        rule     TEXT NOT NULL
    )""",
    "CREATE INDEX merged_kept ON merged (kept)",
    "CREATE INDEX passage_reading ON passage (reading)",
)

_TABLES = (
    # One row. `sequence` counts writes; up to `compacted`, `removed` is forgotten. `place` is
    # which file this is: another one is a copy.
    """CREATE TABLE state (
        sequence  INTEGER NOT NULL,
        compacted INTEGER NOT NULL,
        language  TEXT NOT NULL,
        written   TEXT,
        place     TEXT NOT NULL
    )""",
    """CREATE TABLE passage (
        sequence INTEGER PRIMARY KEY,
        id       TEXT NOT NULL UNIQUE,
        text     TEXT NOT NULL,
        title    TEXT NOT NULL,
        source   TEXT NOT NULL,
        quality  REAL,
        created  TEXT NOT NULL,
        metadata TEXT NOT NULL,
        reading  INTEGER NOT NULL  -- the number of its reading
    )""",
    # The write `at` left no passage with this sequence number.
    """CREATE TABLE removed (
        at       INTEGER PRIMARY KEY,
        sequence INTEGER NOT NULL
    )""",
    """CREATE TABLE tag (
        tag      TEXT NOT NULL,
        sequence INTEGER NOT NULL,
        PRIMARY KEY (tag, sequence)
    ) WITHOUT ROWID""",
    # Each has a table `vector_<number>` beside it. `unrelated`: see `memory.unrelated`.
    """CREATE TABLE embedder (
        number     INTEGER PRIMARY KEY,
        name       TEXT NOT NULL,
        dimensions INTEGER NOT NULL,
        unrelated  REAL,
        UNIQUE (name, dimensions)
    )""",
    *_MERGED,
)

# From version 2, which compared words in runs of three.
_FROM_VERSION_2 = (
    "DROP TABLE band",
    "ALTER TABLE passage ADD COLUMN reading INTEGER NOT NULL DEFAULT 0",
    "UPDATE passage SET reading = number_of(title, text)",
    *_MERGED,
)

_DEFAULT_LANGUAGE = "english"


def prepare(connections: Connections, language: str | None) -> str:
    """Makes the tables fit for use; returns the store's language.

    Raises:
        MemoryStoreFailed: It is damaged, or of another version and cannot be brought to this.
        InvalidInput: The language is unknown, or not that it was made with.
    """
    directory = connections.path.parent
    if language is not None:
        check_language(language)
    # 1. Its tables, as this version has them.
    with connections.reading() as db:
        version = _version(db)
        foreign = version == 0 and db.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if foreign:
        raise MemoryStoreFailed(
            "passages.sqlite is a database of another program; open another directory",
            path=directory,
            code="memory.foreign-database",
        )
    if version > SCHEMA_VERSION:
        raise MemoryStoreFailed(
            f"written by a newer harness (schema {version}, this one reads up to "
            f"{SCHEMA_VERSION}); upgrade harness, or open another directory",
            path=directory,
            code="memory.schema-newer",
        )
    if version < SCHEMA_VERSION:
        _bring_up(connections, version, language or _DEFAULT_LANGUAGE)
    # 2. Whole, which only a copy has to show.
    with connections.reading() as db:
        made_with, place = db.execute("SELECT language, place FROM state").fetchone() or ("", "")
        here = _place(connections.path)
        fault = None if place == here else _fault(db)
        empty = db.execute("SELECT 1 FROM passage LIMIT 1").fetchone() is None
    if fault:
        raise MemoryStoreFailed(
            f"passages.sqlite is damaged, as a copy is that was made while it was written to: "
            f"{fault} (copy it again while nothing writes, or delete the directory)",
            path=directory,
            code="memory.store-damaged",
        )
    # 3. In the language that was asked for.
    chosen: str = (language if empty else None) or made_with
    if language not in (None, chosen):
        raise InvalidInput(
            f"{directory}: the store was made with language '{made_with}', not '{language}'; leave "
            "the language out, or open another directory",
            code="memory.other-language",
        )
    if (place, made_with) != (here, chosen) and not connections.read_only:
        with connections.writing() as db:
            db.execute("UPDATE state SET language = ?, place = ?", (chosen, here))
    return chosen


def _bring_up(connections: Connections, version: int, language: str) -> None:
    """From no tables, or those of an older version."""
    if connections.read_only:
        if version == 0:
            raise MemoryStoreFailed(
                "there is no memory store here, and none may be made",
                path=connections.path.parent,
                code="memory.store-absent",
            )
        raise MemoryStoreFailed(
            f"written by an older harness (schema {version}); open it once where its files may be "
            "written",
            path=connections.path.parent,
            code="memory.schema-older",
        )
    with connections.writing() as db:
        version = _version(db)
        if version == SCHEMA_VERSION:
            return  # another process was quicker
        if version == 1:
            db.execute("ALTER TABLE passage RENAME TO old_passage")
        if version == 2:
            db.create_function("number_of", 2, _number_of, deterministic=True)
        for statement in _FROM_VERSION_2 if version == 2 else _TABLES:
            db.execute(statement)
        if version < 2:
            place = _place(connections.path)
            db.execute("INSERT INTO state VALUES (0, 0, ?, NULL, ?)", (language, place))
        if version == 1:
            _take_over(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _take_over(db: sqlite3.Connection) -> None:
    """Passages of version 1, which knew no time and allowed any name in the metadata."""
    now = datetime.now(UTC)
    rows = db.execute(
        "SELECT id, text, title, source, quality, metadata, embedder, vector FROM old_passage"
        " LEFT JOIN embedding USING (sequence) ORDER BY sequence"
    )
    changes = Changes(db)
    for id_, text, title, source, quality, metadata, embedder, vector in rows:
        passage = Passage(
            id=id_,
            text=text,
            title=title,
            source=source,
            quality=quality,
            created=now,
            metadata={_name(name): _value(value) for name, value in json.loads(metadata).items()},
        )
        sequence = changes.insert(passage, number_of(passage))
        if vector is not None:
            table = make_table(db, embedder, len(vector) // np.dtype(np.float32).itemsize)
            db.execute(f"INSERT INTO {table} VALUES (?, ?)", (sequence, vector))  # noqa: S608  # a number of ours
    changes.finish()
    db.execute("DROP TABLE embedding")
    db.execute("DROP TABLE old_passage")


def _number_of(title: str, text: str) -> int:
    return number_of(Passage(title=title, text=text))


def _name(name: str) -> str:
    return _text(f"metadata.{name}" if not name or name in RESERVED else name)


def _value(value: object) -> Scalar:
    """As it was, or as text: nobody looked what it was."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Scalar) and is_finite(value):
        return value
    return json.dumps(value)


def _text(value: str) -> str:
    return value.encode(errors="replace").decode()


def _version(db: sqlite3.Connection) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _place(path: Path) -> str:
    status = path.stat()
    return f"{status.st_dev}:{status.st_ino}"


def _fault(db: sqlite3.Connection) -> str | None:
    """What shows that not all of the file is of one moment; None when nothing does.

    SQLite's own check finds pages that do not fit each other. What it cannot find is rows that
    are missing without a trace: these are counted.
    """
    try:
        (said,) = db.execute("PRAGMA integrity_check(1)").fetchone()
        if said != "ok":
            return str(said)
        # What a number stands for never changes: a row of any moment is right, if its passage is.
        strays = [
            (f"'{table}' has rows of no passage", _STRAYS.format(table))
            for table in ("tag", *tables(db))
        ]
        for wrong, query in (*_COUNTS, *strays):
            found, expected = db.execute(query).fetchone()
            if found != expected:
                return f"{wrong} ({found:,} instead of {expected:,})"
    except sqlite3.DatabaseError as error:
        return str(error)
    return None


_STRAYS = "SELECT (SELECT count(*) FROM passage JOIN {0} USING (sequence)), count(*) FROM {0}"

_COUNTS = (
    ("its state is missing", "SELECT count(*), 1 FROM state"),
    (
        "writes are missing",
        # Each write since the last compaction left a passage, or its mark in `removed`.
        """SELECT count(*), (SELECT sequence - compacted FROM state) FROM (
            SELECT sequence FROM passage WHERE sequence > (SELECT compacted FROM state)
            UNION SELECT at FROM removed
            UNION SELECT sequence FROM removed WHERE sequence > (SELECT compacted FROM state)
        )""",
    ),
    (
        "tags are missing",
        """SELECT (SELECT count(*) FROM tag), coalesce(sum(
            2 + (SELECT count(*) FROM json_each(metadata))
        ), 0) FROM passage""",
    ),
)
