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
"""Told what is being done, how much of it is done, and how much there is."""

Numbers = NDArray[np.int64]

T = TypeVar("T")

_WAIT_S = 10.0
_ROWS_AT_A_TIME = 256

_TURN = ""

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
        place: Where the passages are.
        directory: Where the indexes of this machine lie.
        language: The language whose words the lexical index stems.
    """

    def __init__(self, database: Database, *, language: str) -> None:
        self._database = database
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
        """Opens the store at a place, or makes one there.

        Args:
            place: A directory, or a url.
            language: None: English for a new store, else the store's own.
            wait_s: How long a write waits for writes of other processes.
            cache: Where stores with a url have their indexes; `harness/memory` in the user's
                cache directory if None.
            make: Whether to make a store where there is none.

        Raises:
            MemoryStoreFailed: It cannot be made or written, is damaged, or of another version.
            InvalidInput: It was made with another language, or there is none to open.
            ConfigurationInvalid: psycopg is not installed.
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
            return cls(database, language=_settled(database, language))
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Closes the database; every later call raises."""
        self._database.close()

    def follow(self, notify: Callable[[], None]) -> None:
        """Calls `notify`, in another thread, soon after another machine has written."""
        self._database.follow(notify)

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
        # Before the database is locked.
        numbers = [passage.words_number for passage, _ in passages]
        tried: dict[str, int] = {}

        def write(changes: _Changes) -> Added:
            new: dict[str, int] = {}
            present: list[str] = []
            merged: list[Merge] = []
            vectors: list[tuple[int, Vectors]] = []
            # 1. What is stored, with one question for all.
            stored = _sequences(changes.db, [passage for passage, _ in passages])
            alike = _oldest(changes.db, numbers) if merge else {}
            # 2. What becomes of each.
            for (passage, vector), number in zip(passages, numbers, strict=True):
                dated = passage if passage.created else replace(passage, created=now)
                sequence = stored.get(passage.id)
                if sequence is not None:
                    # This write itself may have stored it, if its end was not heard of.
                    if tried.get(passage.id) == sequence and passage.id not in new:
                        new[passage.id] = sequence
                    else:
                        present.append(passage.id)
                # Other words may have the same number.
                elif (original := alike.get(number)) and original.words == dated.words:
                    merged.append(Merge(id=passage.id, into=original.id))
                else:
                    sequence = changes.insert(dated, number)
                    stored[passage.id] = new[passage.id] = sequence
                    if vector is not None:
                        vectors.append((sequence, vector[np.newaxis]))
                    if merge:
                        # For the rest of these passages: its row is written at the end.
                        alike.setdefault(number, dated)
            # 3. Into the tables.
            changes.store()
            if vectors and embedder is not None:
                sequences, rows = zip(*vectors, strict=True)
                _put_vectors(changes.db, embedder, sequences, np.concatenate(rows))
            tried.update(new)
            return Added(new=tuple(new), known=tuple(present), merged=tuple(merged))

        return self._written(write)

    def delete(self, ids: Sequence[str]) -> int:
        """Removes passages; returns how many of the ids it knew."""
        known: set[str] = set()

        def write(changes: _Changes) -> None:
            for id_ in ids:
                row = _find(changes.db, id_)
                if row is not None:
                    changes.remove(row[0], _passage_of(row))
                    known.add(id_)

        self._written(write)
        return len(known)

    def put_vectors(
        self, embedder: Embedder, sequences: Sequence[int] | Numbers, vectors: Vectors
    ) -> None:
        """Keeps (n, d) vectors of the passages with these numbers, if they still exist."""
        self._written(lambda changes: _put_vectors(changes.db, embedder, sequences, vectors))

    def compact(self, embedder: Embedder) -> None:
        """Frees the space of removed passages, and of the vectors of all other embedders."""

        def write(changes: _Changes) -> None:
            db = changes.db
            current = _table_of(db, embedder)
            for number, table in _vector_tables(db).items():
                if table != current:
                    db.execute(f"DROP TABLE {table}")
                    db.execute("DELETE FROM embedder WHERE number = ?", (number,))

        self._written(write)
        self._database.free()

    def _written(self, write: Callable[[_Changes], T]) -> T:
        """Makes a write in a transaction, and up to twice more if the connection was lost in it."""
        for tries_left in (2, 1, 0):
            try:
                with self._database.writing() as db:
                    changes = _Changes(db)
                    result = write(changes)
                    changes.finish()
            except MemoryStoreFailed as error:
                # Whether a lost write was stored is not known: `write` sees it if it was.
                if error.code != LOST or not tries_left:
                    raise
            else:
                return result
        raise AssertionError

    # --- reading passages --------------------------------------------------------------------

    def known(self, passages: Sequence[Passage]) -> dict[str, int]:
        """The ids of those of these passages that are stored, and their numbers."""
        with self._database.reading() as db:
            return _sequences(db, passages)

    def get(self, id: str) -> Passage | None:  # noqa: A002 - the word that passages have for it
        """The passage with this id, None if there is none; raises if it is damaged."""
        with self._database.reading() as db:
            row = _find(db, id)
        return None if row is None else self.whole(row)

    def fetch(self, sequences: Iterable[int]) -> dict[int, Passage]:
        """The passages with these numbers that still exist; raises if one is damaged."""
        return {sequence: self.whole(row) for sequence, row in self.rows(sequences).items()}

    def rows(self, sequences: Iterable[int]) -> dict[int, StoredRow]:
        """The same as they are stored, for `judgement` and `whole`."""
        query = f"{_SELECT} WHERE sequence {self._database.among}"
        with self._database.reading() as db:
            listed = self._database.listed(int(sequence) for sequence in sequences)
            return {row[0]: row for row in db.execute(query, (listed,)).fetchall()}

    def whole(self, row: StoredRow) -> Passage:
        """The passage of a row; raises if it is damaged."""
        if (passage := _passage_of(row)) is None:
            store = f"--store {quote(str(self._database.place))}"
            raise self._database.failed(
                f"passage '{row[1]}' is damaged; the others are as they were: 'harness memory "
                f"check {store}' names all that are damaged, and 'harness memory delete {store} "
                "ID' removes one",
                code="memory.passage-damaged",
            )
        return passage

    def damaged(self) -> list[str]:
        """The ids of all passages that are not as they were stored."""
        ids: list[str] = []
        last = -(1 << 63)  # the number may be what is damaged
        while rows := self._rows_after(last):
            # A damaged id may be of any type.
            ids += [str(row[1]) for row in rows if _passage_of(row) is None]
            last = rows[-1][0]
        return ids

    def _rows_after(self, last: int) -> list[StoredRow]:
        query = f"{_SELECT} WHERE sequence > ? ORDER BY sequence LIMIT ?"
        with self._database.reading() as db:
            rows: list[StoredRow] = db.execute(query, (last, _ROWS_AT_A_TIME)).fetchall()
        return rows

    def passages_between(self, low: int, high: int) -> Iterator[tuple[int, Passage]]:
        """Passages with low < sequence number <= high, in this order.

        Read in parts. A passage that is removed meanwhile may be missing, and a damaged one is;
        what is written meanwhile has a number beyond `high`, if that was the last.
        """
        # Not one long read: SQLite's log of new writes grows as long as a read lasts.
        while low < high and (rows := self._rows_after(low)):
            for row in rows:
                if row[0] > high:
                    break
                if (passage := _passage_of(row)) is not None:
                    yield row[0], passage
                    continue
                log_warning(
                    "a damaged passage is left out",
                    code="memory.passage-damaged",
                    passage=str(row[1]),
                    path=str(self.place),
                )
            low = rows[-1][0]

    def removed_between(self, low: int, high: int) -> list[int]:
        """The numbers that the writes from low (exclusive) to high (inclusive) removed."""
        with self._database.reading() as db:
            rows = db.execute(
                "SELECT sequence FROM removed WHERE at > ? AND at <= ? ORDER BY at", (low, high)
            )
            return [sequence for (sequence,) in rows]

    def tagged(self, where: WantedTags) -> Numbers:
        """The numbers of the passages that satisfy a filter (n,), ascending."""
        # Not one statement for all: SQLite limits the number of names and values.
        query = f"SELECT sequence FROM tag WHERE tag {self._database.among}"  # noqa: S608  # constants
        listed = self._database.listed
        with self._database.reading() as db:
            results = [db.execute(query, (listed(tags),)).fetchall() for tags in where]
            if not results:
                results = [db.execute("SELECT sequence FROM passage").fetchall()]
        groups = [
            np.fromiter((sequence for (sequence,) in rows), dtype=np.int64) for rows in results
        ]
        return reduce(np.intersect1d, groups[1:], np.unique(groups[0]))

    def tags_within(self, name: str, bounds: Bounds) -> list[str]:
        """The tags of the stored numbers of a name, which is a tag, that satisfy all bounds."""
        compared = "".join(f" AND value {comparison} ?" for comparison, _ in bounds)
        query = f"SELECT tag FROM amount WHERE name = ?{compared}"  # noqa: S608  # constants
        with self._database.reading() as db:
            rows = db.execute(query, (name, *(value for _, value in bounds))).fetchall()
        return [tag for (tag,) in rows]

    # --- reading vectors ---------------------------------------------------------------------

    def vectors_between(self, embedder: Embedder, low: int, high: int) -> tuple[Numbers, Vectors]:
        """Numbers (n,), ascending, and vectors (n, d) with low < number <= high."""
        rows: list[tuple[int, bytes]] = []
        with self._database.reading() as db:
            if table := _table_of(db, embedder):
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
        with self._database.reading() as db:
            table = _table_of(db, embedder)
            unembedded = f" AND sequence NOT IN (SELECT sequence FROM {table})" if table else ""  # noqa: S608  # constants
            query = f"{_SELECT} WHERE sequence > ?{unembedded} ORDER BY sequence LIMIT ?"
            # In parts: damaged ones must not hide those behind them.
            while len(lacking) < limit and (rows := db.execute(query, (after, limit)).fetchall()):
                passages = ((row[0], _passage_of(row)) for row in rows)
                lacking += [(number, p) for number, p in passages if p is not None]
                after = rows[-1][0]
        return lacking[:limit]

    def count_without_vector(self, embedder: Embedder) -> int:
        """How many passages have no vector of this embedder; every vector is a passage's."""
        with self._database.reading() as db:
            table = _table_of(db, embedder)
            vectors = f"(SELECT count(*) FROM {table})" if table else "0"  # noqa: S608  # constants
            return _number(db, f"SELECT count(*) - {vectors} FROM passage")  # noqa: S608  # constants

    def embedders(self) -> list[Any]:
        """The embedders whose vectors are kept: names and dimensions, which cannot embed."""
        with self._database.reading() as db:
            rows = db.execute("SELECT name, dimensions FROM embedder ORDER BY number").fetchall()
        return [SimpleNamespace(name=name, dimensions=dimensions) for name, dimensions in rows]

    # --- its state ---------------------------------------------------------------------------

    def seen_sequence(self) -> int:
        """The number of the last write that is known here; of a file, the last there is."""
        sequence = self.heard_sequence()
        return self.last_sequence() if sequence is None else sequence

    def heard_sequence(self) -> int | None:
        """The same, without asking a server: None while it tells nothing."""
        return self._database.seen()

    def last_sequence(self) -> int:
        """The number of the last write; 0 before the first."""
        with self._database.reading() as db:
            return _number(db, "SELECT sequence FROM state")

    def extent(self) -> tuple[int, int]:
        """The number of the last write, and how many passages there were after it."""
        with self._database.reading() as db:
            row = db.execute(f"SELECT sequence, ({_COUNT}) FROM state").fetchone()  # noqa: S608  # constants
            return int(row[0]), int(row[1])

    def size_bytes(self) -> int:
        """The size of the tables that are not in `directory`."""
        return self._database.size_bytes()

    def __len__(self) -> int:
        with self._database.reading() as db:
            return _number(db, _COUNT)


_COUNT = "SELECT count(*) FROM passage"


def _settled(database: Database, language: str | None) -> str:
    """The store's language; an empty store takes `language`."""
    with database.reading() as db:
        (made_with,) = db.execute("SELECT language FROM state").fetchone()
        empty = db.execute("SELECT 1 FROM passage LIMIT 1").fetchone() is None
    chosen: str = (language if empty else None) or made_with
    if language not in (None, chosen):
        raise InvalidInput(
            f"{database.place}: the store was made with language '{made_with}', not '{language}'; "
            "leave the language out, or open another place",
            code="memory.other-language",
        )
    if made_with != chosen:
        with database.writing() as db:
            db.execute("UPDATE state SET language = ?", (chosen,))
    return chosen


def copy(source: PrimaryStore, target: PrimaryStore, progress: Progress) -> int:
    """Copies passages and vectors, oldest first; returns how many passages were new."""
    last = source.last_sequence()
    new = 0
    rows = source.passages_between(0, last)
    while part := list(islice(rows, _ROWS_AT_A_TIME)):
        passages = [passage for _, passage in part]
        # What the target has stays as it is, so that an interrupted copy can be made again.
        added = target.add([(passage, None) for passage in passages], embedder=None, merge=False)
        new += len(added.new)
        # Vectors are copied for new passages only: a known id may belong to another text.
        ids = set(added.new)
        fresh = target.known([passage for passage in passages if passage.id in ids])
        copies = {number: fresh.get(passage.id, 0) for number, passage in part}
        for embedder in source.embedders():
            numbers, vectors = source.vectors_between(embedder, part[0][0] - 1, part[-1][0])
            targets = [copies.get(int(number), 0) for number in numbers]
            target.put_vectors(embedder, targets, vectors)
        progress("copying passages", part[-1][0], last)
    return new


class _Changes:
    """The changes of one transaction. Make it when the transaction has begun; end with `finish`.

    Each change takes the next sequence number. A passage has the number of the change that stored
    it; when it is deleted, `removed` notes that number and the number of the deletion.
    """

    def __init__(self, db: Statements) -> None:
        self.db = db
        self._before = self._sequence = _number(db, "SELECT sequence FROM state")
        self._rows: list[tuple[Any, ...]] = []
        self._tags: list[tuple[str, int]] = []
        self._amounts: set[tuple[str, float, str]] = set()

    def insert(self, passage: Passage, number: int) -> int:
        """A new passage, with the number of its words, for `store`; returns its sequence."""
        sequence = self._next()
        self._rows.append((*_row_of(sequence, passage), number))
        self._tags += [(tag, sequence) for tag in dict.fromkeys(tags_of(passage))]
        self._amounts.update(amounts_of(passage))
        return sequence

    def store(self) -> None:
        self.db.executemany(f"INSERT INTO passage {_VALUES}", self._rows)
        self.db.executemany("INSERT INTO tag VALUES (?, ?)", self._tags)
        self.db.executemany(ADD_AMOUNT, list(self._amounts))

    def remove(self, sequence: int, passage: Passage | None) -> None:
        """Removes a passage; None for one that is damaged."""
        self.db.execute("INSERT INTO removed VALUES (?, ?)", (self._next(), sequence))
        self.db.execute("DELETE FROM passage WHERE sequence = ?", (sequence,))
        # Its tags are unknown, and all are looked through: they are sorted by tag.
        if passage is None:
            self.db.execute("DELETE FROM tag WHERE sequence = ?", (sequence,))
        else:
            tags = [(tag, sequence) for tag in tags_of(passage)]
            self.db.executemany("DELETE FROM tag WHERE tag = ? AND sequence = ?", tags)
        # From the vectors of every embedder: none may be without its passage.
        for table in _vector_tables(self.db).values():
            self.db.execute(f"DELETE FROM {table} WHERE sequence = ?", (sequence,))  # noqa: S608  # constants

    def finish(self) -> None:
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
        passage.quality,
        passage.created.isoformat(),
        json.dumps(_fields_of(passage)),
    )
    return (*row, checksum_of(row))


def _fields_of(passage: Passage) -> dict[str, object]:
    """The metadata, and a turn under the name that no metadata can have."""
    turn = {} if passage.turn is None else {_TURN: passage.turn.fields}
    return {**passage.metadata, **turn}


def _passage_of(row: StoredRow) -> Passage | None:
    """The passage of a row; None if it is damaged, as SQLite notices only damage of its pages."""
    _, id_, text, title, source, quality, created, metadata, checksum = row
    if checksum_of(row[:-1]) != checksum:
        return None
    fields = json.loads(metadata)
    turn = fields.pop(_TURN, None)
    return Passage(
        id=id_,
        text=text,
        title=title,
        source=source,
        quality=quality,
        created=datetime.fromisoformat(created),
        metadata=fields,
        turn=None if turn is None else Turn(**turn),
    )


def judgement(row: StoredRow) -> tuple[float | None, datetime | None]:
    """Quality and time of a row, which may be damaged; None if they are."""
    # No checksum is verified, so the row may hold anything.
    quality: object = row[5]
    created: object = row[6]
    time = None
    with suppress(ValueError):
        time = datetime.fromisoformat(str(created))
    is_judged = isinstance(quality, int | float) and 0 <= quality <= 10
    return (
        float(quality) if is_judged else None,  # type: ignore[arg-type]
        time if time is None or time.tzinfo else None,
    )


def _find(db: Statements, id_: str) -> StoredRow | None:
    # By the number, so that the id is read from the row: with `WHERE id = ?`, SQLite gives the id
    # of its index, which leads to another passage if it is damaged.
    query = f"{_SELECT} WHERE sequence = (SELECT sequence FROM passage WHERE id = ?)"  # noqa: S608
    # Half of a surrogate pair cannot be asked for, and no passage has it in its id.
    row: StoredRow | None = db.execute(query, (id_.encode(errors="replace").decode(),)).fetchone()
    return None if row is None or row[1] != id_ else row


def _sequences(db: Statements, passages: Sequence[Passage]) -> dict[str, int]:
    rows = [(passage.id,) for passage in passages]
    results = db.each("SELECT id, sequence FROM passage WHERE id = ?", rows)
    return dict(row for group in results for row in group)


def _oldest(db: Statements, words_numbers: Sequence[int]) -> dict[int, Passage]:
    """Words number → the oldest passage with it."""
    query = f"{_SELECT} WHERE reading = ? ORDER BY sequence LIMIT 1"
    results = db.each(query, [(number,) for number in words_numbers])
    return {
        number: passage
        for number, rows in zip(words_numbers, results, strict=True)
        for passage in map(_passage_of, rows)
        if passage is not None
    }


def _number(db: Statements, query: str) -> int:
    return int(db.execute(query).fetchone()[0])


# --- vectors: a table for each embedder, little-endian float32 -------------------------------


def _vector_tables(db: Statements) -> dict[int, str]:
    """Embedder's number → its table of vectors."""
    rows = db.execute("SELECT number FROM embedder").fetchall()
    return {number: f"vector_{number}" for (number,) in rows}


def _table_of(db: Statements, embedder: Embedder) -> str | None:
    row = db.execute(
        "SELECT number FROM embedder WHERE name = ? AND dimensions = ?",
        (embedder.name, embedder.dimensions),
    ).fetchone()
    return None if row is None else f"vector_{row[0]}"


def _make_table(db: Statements, embedder: Embedder) -> str:
    if table := _table_of(db, embedder):
        return table
    number = _number(db, "SELECT coalesce(max(number), 0) + 1 FROM embedder")
    db.execute(
        "INSERT INTO embedder (number, name, dimensions) VALUES (?, ?, ?)",
        (number, embedder.name, embedder.dimensions),
    )
    table = f"vector_{number}"
    db.execute(f"CREATE TABLE {table} (sequence INTEGER PRIMARY KEY, vector BLOB NOT NULL)")
    return table


def _put_vectors(
    db: Statements,
    embedder: Embedder,
    sequences: Sequence[int] | Numbers,
    vectors: Vectors,
) -> None:
    """Keeps the vectors of those passages that are there, in place of older ones."""
    db.executemany(
        f"INSERT INTO {_make_table(db, embedder)}"  # noqa: S608  # constants
        " SELECT sequence, ? FROM passage WHERE sequence = ?"
        " ON CONFLICT (sequence) DO UPDATE SET vector = excluded.vector",
        [
            (np.ascontiguousarray(vector, dtype="<f4").tobytes(), int(sequence))
            for sequence, vector in zip(sequences, vectors, strict=True)
        ],
    )
