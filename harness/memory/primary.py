"""The primary store: every passage and its vectors, in an SQLite file or a PostgreSQL schema.

Both databases get the same statements; their differences are behind `Database`.

Committed passages are stored; both indexes are derived from them and can be deleted at any time.
Every write takes the next sequence number, so one integer says how far an index has read: from p to
q it drops `removed_between(p, q)` and reads `passages_between(p, q)`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce
from itertools import islice
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.files import cache_folder
from harness.log import log_warning
from harness.memory.database import LOST, Database, Place, Statements, StoreKind, is_store_kind
from harness.memory.embedder import Embedder, Vectors
from harness.memory.passage import (
    Added,
    Bounds,
    Merge,
    Passage,
    Turn,
    WantedTags,
    amounts_of,
    tags_of,
)
from harness.memory.sqlite import ADD_AMOUNT, FILE_NAME, SqliteDatabase, checksum_of, no_store
from harness.memory.terms import check_language
from harness.plugins import load_plugin

Progress = Callable[[str, int, int], None]
"""Called with a step in words, the amount that is done, and the total."""

Numbers = NDArray[np.int64]

T = TypeVar("T")

_WAIT_S = 10.0
_ROWS_AT_A_TIME = 256

_TURN_FIELD = ""  # the field of a turn among the metadata, whose names are never empty

StoredRow = tuple[int, str, str, str, str, float | None, str, str, int]
_COLUMNS = "sequence, id, text, title, source, quality, created, metadata, checksum"
_SELECT = f"SELECT {_COLUMNS} FROM passage"  # noqa: S608  # constants
_VALUES = f"({_COLUMNS}, reading) VALUES (?{', ?' * 9})"


class PrimaryStore:
    """The passages at a place. May be used from any thread, and by several processes.

    Every method raises `MemoryStoreFailed` if the database is damaged, closed or out of reach.
    Writes raise it also if it may not be written, the disk is full, or another process holds the
    write lock too long.

    Attributes:
        database: Its tables.
        place: Where the passages are.
        directory: Where the indexes of this machine lie.
        language: The language whose words the lexical index stems.
    """

    def __init__(self, database: Database, *, language: str) -> None:
        self.database = database
        self.place = database.place
        self.directory = database.directory
        self.language = language

    @classmethod
    def open(
        cls,
        place: Place,
        *,
        language: str | None = None,
        wait_s: float = _WAIT_S,
        cache: Path | None = None,
        make: bool = True,
    ) -> Self:
        """Opens the store at a place, or makes one there, as `MemoryStore.open` does.

        A write waits `wait_s` for writes of other processes.
        """
        if language is not None:
            check_language(language)
        database: Database
        if not isinstance(place, Path):
            kind: StoreKind = load_plugin("stores", str(place).partition(":")[0], is_store_kind)
            cache = cache or cache_folder(os.environ) / "memory"
            database = kind.open(place, indexes=cache, wait_s=wait_s, make=make)
        elif not make and not (place / FILE_NAME).is_file():
            raise no_store(place)
        else:
            database = SqliteDatabase(place, wait_s=wait_s)
        try:
            return cls(database, language=_settle_language(database, language))
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Closes the database; every later call raises."""
        self.database.close()

    # --- writing -----------------------------------------------------------------------------

    def add(
        self,
        passages: Sequence[tuple[Passage, Vectors | None]],
        *,
        embedder: Embedder | None,
        merge: bool = True,
    ) -> Added:
        """Stores passages, each with its vector by `embedder` if it has one.

        A known id changes nothing. With `merge`, a passage with the words of a stored one is not
        stored. All are durable when this returns; none is stored if it raises.
        """
        now = datetime.now(UTC)
        # Computed before the database is locked.
        words_numbers = [passage.words_number for passage, _ in passages]
        # id → sequence number, of passages inserted in an attempt that may have been lost.
        attempted: dict[str, int] = {}

        def write(changes: _Changes) -> Added:
            new: dict[str, int] = {}
            known: list[str] = []
            merged: list[Merge] = []
            vectors: list[tuple[int, Vectors]] = []
            # 1. Look up the stored passages, with one question for all.
            stored = _sequences(changes.db, [passage for passage, _ in passages])
            oldest = _oldest(changes.db, words_numbers) if merge else {}
            # 2. Decide about each passage.
            for (passage, vector), words_number in zip(passages, words_numbers, strict=True):
                dated = passage if passage.created else replace(passage, created=now)
                sequence = stored.get(passage.id)
                original = oldest.get(words_number)
                if sequence is not None:
                    # An earlier attempt may have stored it, if the connection was lost after it.
                    if attempted.get(passage.id) == sequence and passage.id not in new:
                        new[passage.id] = sequence
                    else:
                        known.append(passage.id)
                # Compared by their words, since other words may have the same number.
                elif original is not None and original.words == dated.words:
                    merged.append(Merge(id=passage.id, into=original.id))
                else:
                    sequence = changes.insert(dated, words_number)
                    stored[passage.id] = new[passage.id] = sequence
                    if vector is not None:
                        vectors.append((sequence, vector[np.newaxis]))
                    if merge:
                        # Later passages may be merged into it. `_oldest` did not have it, since its
                        # row is written only in step 3.
                        oldest.setdefault(words_number, dated)
            # 3. Write the rows.
            changes.store()
            if vectors and embedder is not None:
                sequences, rows = zip(*vectors, strict=True)
                _put_vectors(changes.db, embedder, sequences, np.concatenate(rows))
            attempted.update(new)
            return Added(new=tuple(new), known=tuple(known), merged=tuple(merged))

        return self._write(write)

    def delete(self, ids: Sequence[str]) -> int:
        """Removes passages; returns how many of the ids it knew."""
        known: set[str] = set()

        def write(changes: _Changes) -> None:
            for passage_id in ids:
                row = _find(changes.db, passage_id)
                if row is not None:
                    changes.remove(row[0], _passage_of(row))
                    known.add(passage_id)

        self._write(write)
        return len(known)

    def put_vectors(
        self, embedder: Embedder, sequences: Sequence[int] | Numbers, vectors: Vectors
    ) -> None:
        """Stores (n, d) vectors of the passages with these numbers that still exist."""
        self._write(lambda changes: _put_vectors(changes.db, embedder, sequences, vectors))

    def compact(self, embedder: Embedder) -> None:
        """Frees the space of removed passages, and of the vectors of all other embedders."""

        def write(changes: _Changes) -> None:
            db = changes.db
            current = _table_of(db, embedder)
            for number, table in _vector_tables(db).items():
                if table != current:
                    db.execute(f"DROP TABLE {table}")
                    db.execute("DELETE FROM embedder WHERE number = ?", (number,))

        self._write(write)
        self.database.free()

    def _write(self, write: Callable[[_Changes], T]) -> T:
        """Makes a write in a transaction, and up to twice more if the connection was lost in it."""
        for tries_left in (2, 1, 0):
            try:
                with self.database.writing() as db:
                    changes = _Changes(db)
                    result = write(changes)
                    changes.finish()
            except MemoryStoreFailed as error:
                # It is unknown whether a lost write was stored, so `write` must notice if it was.
                if error.code != LOST or not tries_left:
                    raise
            else:
                return result
        raise AssertionError

    # --- reading passages --------------------------------------------------------------------

    def known(self, passages: Sequence[Passage]) -> dict[str, int]:
        """The sequence numbers of the stored ones among these passages, by id."""
        with self.database.reading() as db:
            return _sequences(db, passages)

    def get(self, id: str) -> Passage | None:  # noqa: A002 - the word that passages have for it
        """The passage with this id, None if there is none; raises if it is damaged."""
        with self.database.reading() as db:
            row = _find(db, id)
        return None if row is None else self.whole(row)

    def fetch(self, sequences: Iterable[int]) -> dict[int, Passage]:
        """The passages with these numbers that still exist; raises if one is damaged."""
        return {sequence: self.whole(row) for sequence, row in self.rows(sequences).items()}

    def rows(self, sequences: Iterable[int]) -> dict[int, StoredRow]:
        """The rows of the passages with these numbers that still exist, damaged ones included."""
        query = f"{_SELECT} WHERE sequence {self.database.among}"
        with self.database.reading() as db:
            listed = self.database.listed(int(sequence) for sequence in sequences)
            return {row[0]: row for row in db.execute(query, (listed,)).fetchall()}

    def whole(self, row: StoredRow) -> Passage:
        """The passage of a row; raises if the row is damaged."""
        passage = _passage_of(row)
        if passage is None:
            store = f"--store {quote(str(self.database.place))}"
            raise self.database.failed(
                f"passage '{row[1]}' is damaged; the others are as they were: 'harness memory "
                f"check {store}' names all that are damaged, and 'harness memory delete {store} "
                "ID' removes one",
                code="memory.passage-damaged",
            )
        return passage

    def damaged(self) -> list[str]:
        """The ids of all passages that are not as they were stored."""
        ids: list[str] = []
        last = -(1 << 63)  # not 0, since a damaged number may be negative
        while rows := self._rows_after(last):
            # A damaged id may be of any type.
            ids += [str(row[1]) for row in rows if _passage_of(row) is None]
            last = rows[-1][0]
        return ids

    def _rows_after(self, last: int) -> list[StoredRow]:
        query = f"{_SELECT} WHERE sequence > ? ORDER BY sequence LIMIT ?"
        with self.database.reading() as db:
            rows: list[StoredRow] = db.execute(query, (last, _ROWS_AT_A_TIME)).fetchall()
        return rows

    def passages_between(self, low: int, high: int) -> Iterator[tuple[int, Passage]]:
        """Passages with low < sequence number <= high, in this order, with their numbers.

        They are read in parts. Damaged passages are left out, and passages that are removed
        meanwhile may be. If `high` is the last number, passages written meanwhile have higher ones.
        """
        # Not one long read: SQLite's log of new writes grows as long as a read lasts.
        while low < high and (rows := self._rows_after(low)):
            for row in rows:
                if row[0] > high:
                    break
                passage = _passage_of(row)
                if passage is not None:
                    yield row[0], passage
                else:
                    log_warning(
                        "a damaged passage is left out",
                        code="memory.passage-damaged",
                        passage=str(row[1]),
                        path=str(self.place),
                    )
            low = rows[-1][0]

    def removed_between(self, low: int, high: int) -> list[int]:
        """The numbers that the writes from low (exclusive) to high (inclusive) removed."""
        with self.database.reading() as db:
            rows = db.execute(
                "SELECT sequence FROM removed WHERE at > ? AND at <= ? ORDER BY at", (low, high)
            )
            return [sequence for (sequence,) in rows]

    def tagged(self, where: WantedTags) -> Numbers:
        """The numbers of the passages that satisfy a filter (n,), ascending."""
        # Not one statement for all: SQLite limits the number of names and values.
        query = f"SELECT sequence FROM tag WHERE tag {self.database.among}"  # noqa: S608  # constants
        listed = self.database.listed
        with self.database.reading() as db:
            results = [db.execute(query, (listed(tags),)).fetchall() for tags in where]
            if not results:
                results = [db.execute("SELECT sequence FROM passage").fetchall()]
        groups = [
            np.fromiter((sequence for (sequence,) in rows), dtype=np.int64) for rows in results
        ]
        return reduce(np.intersect1d, groups[1:], np.unique(groups[0]))

    def tags_within(self, name: str, bounds: Bounds) -> list[str]:
        """The tags of the stored numbers with a name's tag `name` that satisfy all bounds."""
        conditions = "".join(f" AND value {comparison} ?" for comparison, _ in bounds)
        query = f"SELECT tag FROM amount WHERE name = ?{conditions}"  # noqa: S608  # constants
        with self.database.reading() as db:
            rows = db.execute(query, (name, *(value for _, value in bounds))).fetchall()
        return [tag for (tag,) in rows]

    # --- reading vectors ---------------------------------------------------------------------

    def vectors_between(self, embedder: Embedder, low: int, high: int) -> tuple[Numbers, Vectors]:
        """Sequence numbers (n,), ascending, with low < number <= high, and their vectors (n, d)."""
        rows: list[tuple[int, bytes]] = []
        with self.database.reading() as db:
            table = _table_of(db, embedder)
            if table is not None:
                between = "WHERE sequence > ? AND sequence <= ? ORDER BY sequence"
                query = f"SELECT sequence, vector FROM {table} {between}"  # noqa: S608  # constants
                rows = db.execute(query, (low, high)).fetchall()
        sequences = np.fromiter((sequence for sequence, _ in rows), dtype=np.int64, count=len(rows))
        # A bytearray, so that numpy lets the matrix be written to.
        joined = bytearray().join([vector for _, vector in rows])
        vectors = np.frombuffer(joined, dtype="<f4").reshape(len(rows), embedder.dimensions)
        return sequences, vectors.astype(np.float32, copy=False)

    def without_vector(
        self, embedder: Embedder, limit: int, *, after: int = 0
    ) -> list[tuple[int, Passage]]:
        """The first `limit` passages beyond `after` without a vector of this embedder."""
        lacking: list[tuple[int, Passage]] = []
        with self.database.reading() as db:
            table = _table_of(db, embedder)
            unembedded = f" AND sequence NOT IN (SELECT sequence FROM {table})" if table else ""  # noqa: S608  # constants
            query = f"{_SELECT} WHERE sequence > ?{unembedded} ORDER BY sequence LIMIT ?"
            # More than once if some are damaged, which must not hide the passages after them.
            while len(lacking) < limit and (rows := db.execute(query, (after, limit)).fetchall()):
                for row in rows:
                    passage = _passage_of(row)
                    if passage is not None:
                        lacking.append((row[0], passage))
                after = rows[-1][0]
        return lacking[:limit]

    def count_without_vector(self, embedder: Embedder) -> int:
        """How many passages have no vector of this embedder."""
        with self.database.reading() as db:
            table = _table_of(db, embedder)
            # A subtraction, since no vector is without its passage.
            vectors = f"(SELECT count(*) FROM {table})" if table else "0"  # noqa: S608  # constants
            return _number(db, f"SELECT count(*) - {vectors} FROM passage")  # noqa: S608  # constants

    def embedders(self) -> list[Any]:
        """Name and dimensions of each embedder with stored vectors; these objects cannot embed."""
        with self.database.reading() as db:
            rows = db.execute("SELECT name, dimensions FROM embedder ORDER BY number").fetchall()
        return [SimpleNamespace(name=name, dimensions=dimensions) for name, dimensions in rows]

    # --- its state ---------------------------------------------------------------------------

    def seen_sequence(self) -> int:
        """The number of the last write that is known here; in a file, the number of the last."""
        sequence = self.database.seen()
        return self.last_sequence() if sequence is None else sequence

    def last_sequence(self) -> int:
        """The number of the last write; 0 before the first."""
        with self.database.reading() as db:
            return _number(db, "SELECT sequence FROM state")

    def extent(self) -> tuple[int, int]:
        """The number of the last write, and how many passages there were after it."""
        with self.database.reading() as db:
            row = db.execute(f"SELECT sequence, ({_COUNT}) FROM state").fetchone()  # noqa: S608  # constants
            return int(row[0]), int(row[1])

    def __len__(self) -> int:
        with self.database.reading() as db:
            return _number(db, _COUNT)


_COUNT = "SELECT count(*) FROM passage"


def _settle_language(database: Database, language: str | None) -> str:
    """Returns the store's language, which in an empty store becomes `language`."""
    with database.reading() as db:
        (made_with,) = db.execute("SELECT language FROM state").fetchone()
        is_empty = db.execute("SELECT 1 FROM passage LIMIT 1").fetchone() is None
    stored: str = made_with
    if language is None or language == stored:
        return stored
    if not is_empty:
        raise InvalidInput(
            f"{database.place}: the store was made with language '{made_with}', not '{language}'; "
            "leave the language out, or open another place",
            code="memory.other-language",
        )
    with database.writing() as db:
        db.execute("UPDATE state SET language = ?", (language,))
    return language


def copy(source: PrimaryStore, target: PrimaryStore, progress: Progress) -> int:
    """Copies passages and vectors, oldest first; returns how many passages were new."""
    last = source.last_sequence()
    copied = 0
    numbered_passages = source.passages_between(0, last)
    while part := list(islice(numbered_passages, _ROWS_AT_A_TIME)):
        # Passages that the target has stay as they are, so that an interrupted copy can go on.
        passages = [(passage, None) for _, passage in part]
        added = target.add(passages, embedder=None, merge=False)
        copied += len(added.new)
        # Vectors are copied for new passages only: a known id may belong to another text.
        new_ids = set(added.new)
        new_numbers = target.known([passage for _, passage in part if passage.id in new_ids])
        # Number in the source → number in the target, or 0, which no passage has.
        targets = {number: new_numbers.get(passage.id, 0) for number, passage in part}
        first_number, last_number = part[0][0], part[-1][0]
        for embedder in source.embedders():
            numbers, vectors = source.vectors_between(embedder, first_number - 1, last_number)
            sequences = [targets.get(int(number), 0) for number in numbers]
            target.put_vectors(embedder, sequences, vectors)
        progress("copying passages", last_number, last)
    return copied


class _Changes:
    """The changes of one transaction, from its beginning to `finish`.

    Each change takes the next sequence number. A passage has the number of the change that stored
    it. When it is deleted, the table `removed` gets that number and the number of the deletion.
    """

    def __init__(self, db: Statements) -> None:
        self.db = db
        self._before = self._sequence = _number(db, "SELECT sequence FROM state")
        self._rows: list[tuple[Any, ...]] = []
        self._tags: list[tuple[str, int]] = []
        self._amounts: set[tuple[str, float, str]] = set()

    def insert(self, passage: Passage, words_number: int) -> int:
        """Prepares a new passage for `store`; returns its sequence number."""
        sequence = self._next()
        self._rows.append((*_row_of(sequence, passage), words_number))
        self._tags += [(tag, sequence) for tag in dict.fromkeys(tags_of(passage))]
        self._amounts.update(amounts_of(passage))
        return sequence

    def store(self) -> None:
        """Writes the rows of all inserted passages."""
        self.db.executemany(f"INSERT INTO passage {_VALUES}", self._rows)
        self.db.executemany("INSERT INTO tag VALUES (?, ?)", self._tags)
        self.db.executemany(ADD_AMOUNT, list(self._amounts))

    def remove(self, sequence: int, passage: Passage | None) -> None:
        """Removes a passage; None for one that is damaged."""
        self.db.execute("INSERT INTO removed VALUES (?, ?)", (self._next(), sequence))
        self.db.execute("DELETE FROM passage WHERE sequence = ?", (sequence,))
        if passage is not None:
            tags = [(tag, sequence) for tag in tags_of(passage)]
            self.db.executemany("DELETE FROM tag WHERE tag = ? AND sequence = ?", tags)
        else:
            # Its tags are unknown. This is slow, since the table is sorted by tag.
            self.db.execute("DELETE FROM tag WHERE sequence = ?", (sequence,))
        # Of every embedder, since no vector may be without its passage.
        for table in _vector_tables(self.db).values():
            self.db.execute(f"DELETE FROM {table} WHERE sequence = ?", (sequence,))  # noqa: S608  # constants

    def finish(self) -> None:
        """Writes the sequence number of the last change."""
        if self._sequence != self._before:
            self.db.execute("UPDATE state SET sequence = ?", (self._sequence,))

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


# --- rows ------------------------------------------------------------------------------------


def _row_of(sequence: int, passage: Passage) -> StoredRow:
    assert passage.created is not None
    row = (
        sequence,
        passage.id,
        passage.text,
        passage.title,
        passage.source,
        # As it is read back: a number of NumPy has another `repr`, and so another checksum.
        None if passage.quality is None else float(passage.quality),
        passage.created.isoformat(),
        json.dumps(_fields_of(passage)),
    )
    return (*row, checksum_of(row))


def _fields_of(passage: Passage) -> dict[str, object]:
    """The metadata of a passage, with its turn."""
    turn = {} if passage.turn is None else {_TURN_FIELD: passage.turn.fields}
    return {**passage.metadata, **turn}


def _passage_of(row: StoredRow) -> Passage | None:
    """The passage of a row; None if the row is damaged."""
    _, passage_id, text, title, source, quality, created, metadata, checksum = row
    # SQLite notices only damage of the structure of its pages.
    if checksum_of(row[:-1]) != checksum:
        return None
    fields = json.loads(metadata)
    turn = fields.pop(_TURN_FIELD, None)
    return Passage(
        id=passage_id,
        text=text,
        title=title,
        source=source,
        quality=quality,
        created=datetime.fromisoformat(created),
        metadata=fields,
        turn=None if turn is None else Turn(**turn),
    )


def judgement(row: StoredRow) -> tuple[float | None, datetime | None]:
    """The quality and the time of a row; None for each that is missing or damaged."""
    # The checksum is not verified here, so the row may hold anything.
    stored_quality: object = row[5]
    quality = None
    if isinstance(stored_quality, int | float) and 0 <= stored_quality <= 10:
        quality = float(stored_quality)
    created = None
    with suppress(ValueError):
        created = datetime.fromisoformat(str(row[6]))
    if created is not None and created.tzinfo is None:
        created = None
    return quality, created


def _find(db: Statements, passage_id: str) -> StoredRow | None:
    """The row of the passage with this id, which may be damaged."""
    # By the number, so that the id is read from the row: with `WHERE id = ?`, SQLite gives the id
    # of its index, which leads to another passage if it is damaged.
    query = f"{_SELECT} WHERE sequence = (SELECT sequence FROM passage WHERE id = ?)"  # noqa: S608
    # No statement can hold half of a surrogate pair, and no passage has it in its id.
    encodable = passage_id.encode(errors="replace").decode()
    row: StoredRow | None = db.execute(query, (encodable,)).fetchone()
    return None if row is None or row[1] != passage_id else row


def _sequences(db: Statements, passages: Sequence[Passage]) -> dict[str, int]:
    """Id → sequence number, of the stored ones among these passages."""
    rows = [(passage.id,) for passage in passages]
    results = db.each("SELECT id, sequence FROM passage WHERE id = ?", rows)
    return dict(row for result in results for row in result)


def _oldest(db: Statements, words_numbers: Sequence[int]) -> dict[int, Passage]:
    """Words number → the oldest passage with it."""
    query = f"{_SELECT} WHERE reading = ? ORDER BY sequence LIMIT 1"
    results = db.each(query, [(number,) for number in words_numbers])
    oldest: dict[int, Passage] = {}
    for number, rows in zip(words_numbers, results, strict=True):
        passage = _passage_of(rows[0]) if rows else None
        if passage is not None:
            oldest[number] = passage
    return oldest


def _number(db: Statements, query: str) -> int:
    """The number that a query returns."""
    return int(db.execute(query).fetchone()[0])


# --- vectors: a table for each embedder, little-endian float32 -------------------------------


def _vector_tables(db: Statements) -> dict[int, str]:
    """Embedder's number → its table of vectors."""
    rows = db.execute("SELECT number FROM embedder").fetchall()
    return {number: f"vector_{number}" for (number,) in rows}


def _table_of(db: Statements, embedder: Embedder) -> str | None:
    """The table of an embedder's vectors; None if it has none yet."""
    row = db.execute(
        "SELECT number FROM embedder WHERE name = ? AND dimensions = ?",
        (embedder.name, embedder.dimensions),
    ).fetchone()
    return None if row is None else f"vector_{row[0]}"


def _make_table(db: Statements, embedder: Embedder) -> str:
    """The table of an embedder's vectors, made if it is missing."""
    existing = _table_of(db, embedder)
    if existing is not None:
        return existing
    number = _number(db, "SELECT coalesce(max(number), 0) + 1 FROM embedder")
    db.execute(
        "INSERT INTO embedder (number, name, dimensions) VALUES (?, ?, ?)",
        (number, embedder.name, embedder.dimensions),
    )
    table = f"vector_{number}"
    db.execute(f"CREATE TABLE {table} (sequence INTEGER PRIMARY KEY, vector BLOB NOT NULL)")
    return table


def _put_vectors(
    db: Statements, embedder: Embedder, sequences: Sequence[int] | Numbers, vectors: Vectors
) -> None:
    """Stores the vectors of the passages that exist, in place of older ones."""
    db.executemany(
        f"INSERT INTO {_make_table(db, embedder)}"  # noqa: S608  # constants
        " SELECT sequence, ? FROM passage WHERE sequence = ?"
        " ON CONFLICT (sequence) DO UPDATE SET vector = excluded.vector",
        [
            (np.ascontiguousarray(vector, dtype="<f4").tobytes(), int(sequence))
            for sequence, vector in zip(sequences, vectors, strict=True)
        ],
    )
