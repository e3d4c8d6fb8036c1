"""What becomes of the truth when the disk, other processes or other versions are in its way."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from stored import EMBEDDER, change, failing, put

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.schema import SCHEMA_VERSION
from harness.memory.truth import FILE_NAME, Truth
from harness.memory.where import Where


@pytest.fixture
def made(tmp_path) -> Path:
    """A store of one passage."""
    return stored(tmp_path / "memory", "one")


def stored(directory: Path, *texts: str) -> Path:
    """A directory with a store that has these texts, too, and that nobody has open."""
    truth = Truth.open(directory)
    put(truth, *texts)
    truth.close()
    return directory


# --- where nothing may be written --------------------------------------------------------------


@contextmanager
def nobody(directory: Path) -> Iterator[None]:
    """As a user who owns nothing; root may write whatever permissions say."""
    for parent in directory.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    was_root = os.getuid() == 0
    if was_root:
        os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        if was_root:
            os.setresuid(0, 0, 0)


@pytest.fixture
def closed_off(made):
    """The store, whose files and directory nobody may write."""
    (made / FILE_NAME).chmod(0o444)
    made.chmod(0o555)
    yield made
    made.chmod(0o755)


def test_what_may_not_be_written_is_opened_for_reading(closed_off):
    with nobody(closed_off):
        truth = Truth.open(closed_off)
        assert truth.read_only
        assert truth.get("one").text == "one"
        assert truth.vectors_between(EMBEDDER, 0, 1)[1].tolist() == [[3, 1]]
        for write in (
            lambda: put(truth, "two"),
            lambda: truth.delete(["one"]),
            lambda: truth.update(Passage(text="x", id="one"), None, None),
            lambda: truth.set_unrelated(EMBEDDER, 1.0),
            lambda: truth.compact(EMBEDDER),
        ):
            with failing(MemoryStoreFailed, "memory.store-read-only"):
                write()
        assert [file.name for file in closed_off.iterdir()] == [FILE_NAME]
        with failing(MemoryStoreFailed, "memory.no-directory"):
            Truth.open(closed_off / "none")

    # What is written later by someone who may is seen.
    closed_off.chmod(0o755)
    (closed_off / FILE_NAME).chmod(0o644)
    stored(closed_off, "two")
    closed_off.chmod(0o555)
    with nobody(closed_off):
        assert truth.get("two").text == "two"
    truth.close()


def test_a_log_that_nothing_may_be_done_about_is_said_and_not_passed_over(made, tmp_path):
    truth = Truth.open(made)
    put(truth, "in the log")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        shutil.copy(made / name, copy / name)
        (copy / name).chmod(0o444)
    truth.close()
    copy.chmod(0o555)

    with nobody(copy), failing(MemoryStoreFailed, "memory.log-unreadable"):
        Truth.open(copy)
    copy.chmod(0o755)
    truth = Truth.open(copy)
    assert truth.get("in the log")
    truth.close()


def test_reading_only_can_be_asked_for(made, tmp_path):
    reader = Truth.open(made, read_only=True)
    stored(made, "two")

    assert reader.get("two").text == "two"
    with failing(MemoryStoreFailed, "memory.store-read-only"):
        put(reader, "three")
    reader.close()
    with failing(MemoryStoreFailed, "memory.store-absent"):
        Truth.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


# --- a full disk, another writer ---------------------------------------------------------------


def test_a_full_disk_stores_nothing_and_loses_nothing(made):
    truth = Truth.open(made)
    with truth._connections.writer() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 4}")

    with failing(MemoryStoreFailed, "memory.disk-full"):
        put(truth, "two", "x" * 50_000)
    assert truth.extent() == (1, 1)
    assert truth.get("two") is None

    with truth._connections.writer() as db:
        db.execute("PRAGMA max_page_count = 1000000")
    put(truth, "two", "x" * 50_000)
    assert truth.extent() == (3, 3)
    truth.close()


def test_a_process_that_does_not_stop_writing_is_said(made):
    other = sqlite3.connect(made / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    truth = Truth.open(made, wait_s=0.05)

    with failing(MemoryStoreFailed, "memory.store-busy"):
        put(truth, "two")
    # Who only reads is not in its way.
    assert len(truth) == 1
    other.execute("ROLLBACK")
    put(truth, "two")
    assert len(truth) == 2
    other.close()
    truth.close()


# --- copies and damage -------------------------------------------------------------------------


LACKING = {
    "tags": "DELETE FROM tag WHERE sequence = 2",
    "a passage": "DELETE FROM passage WHERE sequence = 2",
    "a vector too many": "INSERT INTO vector_1 VALUES (999, x'00')",
    "the counter": "UPDATE state SET sequence = 2",
    "the state": "DELETE FROM state",
}


@pytest.mark.parametrize("script", LACKING.values(), ids=LACKING)
def test_a_copy_with_rows_of_another_moment_is_called_damaged(made, tmp_path, script):
    stored(made, "two", "three", "four")
    copy = shutil.copytree(made, tmp_path / "copy")
    change(copy, script)

    with failing(MemoryStoreFailed, "memory.store-damaged"):
        Truth.open(copy)


NO_DATABASE = {
    "a text": b"this is no database, " * 500,
    "a mere header": b"SQLite format 3\0" + b"\xff" * 9000,
}


@pytest.mark.parametrize("content", NO_DATABASE.values(), ids=NO_DATABASE)
def test_a_file_that_is_no_database_is_left_alone(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)

    with pytest.raises(MemoryStoreFailed) as caught:
        Truth.open(tmp_path)
    assert (caught.value.code, caught.value.path) == ("memory.store-damaged", tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == content


FOREIGN = {
    "no version": ("", "memory.foreign-database"),
    "our version": (f"PRAGMA user_version = {SCHEMA_VERSION}", "memory.store-damaged"),
    "a newer one": (f"PRAGMA user_version = {SCHEMA_VERSION + 1}", "memory.schema-newer"),
}


@pytest.mark.parametrize(("version", "code"), FOREIGN.values(), ids=FOREIGN)
def test_a_database_of_another_program_or_version_is_no_store(tmp_path, version, code):
    change(tmp_path, f"CREATE TABLE theirs (x); {version}")

    with failing(MemoryStoreFailed, code):
        Truth.open(tmp_path)


def test_pages_that_are_overwritten_are_said_by_whoever_reads_them(made):
    stored(made, *(f"text {n} " * 50 for n in range(200)))
    content = bytearray((made / FILE_NAME).read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    (made / FILE_NAME).write_bytes(content)

    def read_all():
        truth = Truth.open(made)
        try:
            list(truth.passages_between(0, truth.last_sequence()))
        finally:
            truth.close()

    with failing(MemoryStoreFailed, "memory.store-damaged"):
        read_all()


# --- other versions, other languages -----------------------------------------------------------


# As version 1 made them.
VERSION_1 = """
PRAGMA journal_mode = WAL;
CREATE TABLE passage (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id       TEXT NOT NULL UNIQUE,
    text     TEXT NOT NULL,
    title    TEXT NOT NULL,
    source   TEXT NOT NULL,
    quality  REAL,
    metadata TEXT NOT NULL
);
CREATE TABLE embedding (
    sequence INTEGER PRIMARY KEY REFERENCES passage (sequence),
    embedder TEXT NOT NULL,
    vector   BLOB NOT NULL
);
PRAGMA user_version = 1;
"""
OLD_METADATA = {
    "topic": "otters",
    "id": "their own",
    "": "no name",
    "half": "a\ud800b",
    "list": [1, 2],
    "none": None,
    "year": 2024,
}


@pytest.fixture
def old(tmp_path) -> Path:
    """A store of version 1, whose second passage was deleted by hand."""
    change(tmp_path, VERSION_1)
    database = sqlite3.connect(tmp_path / FILE_NAME)
    insert = "INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?, ?)"
    database.execute(insert, (1, "a", "one two three", "T", "s", 7.5, json.dumps(OLD_METADATA)))
    database.execute(insert, (3, "b", "One, two, three!", "T", "", None, "{}"))
    blob = np.array([1, 1], "<f4").tobytes()
    database.execute("INSERT INTO embedding VALUES (1, 'e', ?)", (blob,))
    database.commit()
    database.close()
    return tmp_path


def test_a_store_of_version_1_is_brought_up_with_all_it_holds(old):
    for _ in range(2):  # the second time it is of this version
        truth = Truth.open(old)
        kept, other = (passage for _, passage in truth.passages_between(0, 9))
        assert (kept.id, kept.text, kept.title, kept.source) == ("a", "one two three", "T", "s")
        assert (kept.quality, other.id, other.quality) == (7.5, "b", None)
        assert kept.metadata == {
            "topic": "otters",
            "metadata.id": "their own",
            "metadata.": "no name",
            "half": "a?b",
            "list": "[1, 2]",
            "none": "null",
            "year": 2024,
        }
        assert truth.tagged(Where.parse({"topic": "otters"})).tolist() == [1]
        assert [number for number, _ in truth.without_vector(EMBEDDER, 9)] == [2]
        truth.close()
    stored(old, "new")
    copy = Truth.open(shutil.copytree(old, old / "copy"))  # whole, as far as can be checked
    assert copy.extent() == (3, 3)
    copy.close()


VERSION_2 = """
DROP TABLE merged;
DROP INDEX passage_reading;
ALTER TABLE passage DROP COLUMN reading;
CREATE TABLE band (band INTEGER, sequence INTEGER, PRIMARY KEY (band, sequence)) WITHOUT ROWID;
INSERT INTO band VALUES (7, 1);
PRAGMA user_version = 2;
"""


def test_a_store_of_version_2_is_brought_up_and_knows_what_comes_again(tmp_path):
    stored(tmp_path, "one two")
    change(tmp_path, VERSION_2)
    truth = Truth.open(tmp_path)
    added = truth.add([(Passage(text="one  two", id="again"), None)], embedder=None)
    assert [(one.id, one.into) for one in added.merged] == [("again", "one two")]
    truth.close()
    copy = Truth.open(shutil.copytree(tmp_path, tmp_path / "copy"))  # whole, as it is checked
    assert [one.passage.text for one in copy.merges()] == ["one  two"]
    copy.close()


def test_a_store_of_version_1_that_cannot_be_brought_up_says_so(old):
    with failing(MemoryStoreFailed, "memory.schema-older"):
        Truth.open(old, read_only=True)


def test_a_store_keeps_its_language_once_it_holds_a_passage(tmp_path):
    Truth.open(tmp_path, language="french").close()
    for asked in ("german", None, "german"):
        truth = Truth.open(tmp_path, language=asked)
        assert truth.language == "german"
        put(truth, f"{asked}")
        truth.close()

    with failing(InvalidInput, "memory.other-language"):
        Truth.open(tmp_path, language="french")
