"""What becomes of the primary when the disk, other processes or other versions are in its way."""

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stored import EMBEDDER, change, failing, put

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.primary import FILE_NAME, PrimaryStore
from harness.memory.sqlite import SCHEMA_VERSION


@pytest.fixture
def made(tmp_path) -> Path:
    """A store of one passage."""
    return stored(tmp_path / "memory", "one")


def stored(directory: Path, *texts: str) -> Path:
    """A directory with a store that has these texts, too, and that nobody has open."""
    primary = PrimaryStore.open(directory)
    put(primary, *texts)
    primary.close()
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
        primary = PrimaryStore.open(closed_off)
        assert primary.read_only
        assert primary.get("one").text == "one"
        assert primary.vectors_between(EMBEDDER, 0, 1)[1].tolist() == [[3, 1]]
        for write in (
            lambda: put(primary, "two"),
            lambda: primary.delete(["one"]),
            lambda: primary.update(Passage(text="x", id="one"), None, None),
            lambda: primary.set_unrelated(EMBEDDER, 1.0),
            lambda: primary.compact(EMBEDDER),
        ):
            with failing(MemoryStoreFailed, "memory.store-read-only"):
                write()
        assert [file.name for file in closed_off.iterdir()] == [FILE_NAME]
        with failing(MemoryStoreFailed, "memory.no-directory"):
            PrimaryStore.open(closed_off / "none")

    # What is written later by someone who may is seen.
    closed_off.chmod(0o755)
    (closed_off / FILE_NAME).chmod(0o644)
    stored(closed_off, "two")
    closed_off.chmod(0o555)
    with nobody(closed_off):
        assert primary.get("two").text == "two"
    primary.close()


def test_a_log_that_nothing_may_be_done_about_is_said_and_not_passed_over(made, tmp_path):
    primary = PrimaryStore.open(made)
    put(primary, "in the log")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in (FILE_NAME, f"{FILE_NAME}-wal"):
        shutil.copy(made / name, copy / name)
        (copy / name).chmod(0o444)
    primary.close()
    copy.chmod(0o555)

    with nobody(copy), failing(MemoryStoreFailed, "memory.log-unreadable"):
        PrimaryStore.open(copy)
    copy.chmod(0o755)
    primary = PrimaryStore.open(copy)
    assert primary.get("in the log")
    primary.close()


def test_reading_only_can_be_asked_for(made, tmp_path):
    reader = PrimaryStore.open(made, read_only=True)
    stored(made, "two")

    assert reader.get("two").text == "two"
    with failing(MemoryStoreFailed, "memory.store-read-only"):
        put(reader, "three")
    reader.close()
    with failing(MemoryStoreFailed, "memory.store-absent"):
        PrimaryStore.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


# --- a full disk, another writer ---------------------------------------------------------------


def test_a_full_disk_stores_nothing_and_loses_nothing(made):
    primary = PrimaryStore.open(made)
    with primary._connections.writer() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 4}")

    with failing(MemoryStoreFailed, "memory.disk-full"):
        put(primary, "two", "x" * 50_000)
    assert primary.extent() == (1, 1)
    assert primary.get("two") is None

    with primary._connections.writer() as db:
        db.execute("PRAGMA max_page_count = 1000000")
    put(primary, "two", "x" * 50_000)
    assert primary.extent() == (3, 3)
    primary.close()


def test_a_process_that_does_not_stop_writing_is_said(made):
    other = sqlite3.connect(made / FILE_NAME, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    primary = PrimaryStore.open(made, wait_s=0.05)

    with failing(MemoryStoreFailed, "memory.store-busy"):
        put(primary, "two")
    # Who only reads is not in its way.
    assert len(primary) == 1
    other.execute("ROLLBACK")
    put(primary, "two")
    assert len(primary) == 2
    other.close()
    primary.close()


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
        PrimaryStore.open(copy)


NO_DATABASE = {
    "a text": b"this is no database, " * 500,
    "a mere header": b"SQLite format 3\0" + b"\xff" * 9000,
}


@pytest.mark.parametrize("content", NO_DATABASE.values(), ids=NO_DATABASE)
def test_a_file_that_is_no_database_is_left_alone(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)

    with pytest.raises(MemoryStoreFailed) as caught:
        PrimaryStore.open(tmp_path)
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
        PrimaryStore.open(tmp_path)


def test_pages_that_are_overwritten_are_said_by_whoever_reads_them(made):
    stored(made, *(f"text {n} " * 50 for n in range(200)))
    content = bytearray((made / FILE_NAME).read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    (made / FILE_NAME).write_bytes(content)

    def read_all():
        primary = PrimaryStore.open(made)
        try:
            list(primary.passages_between(0, primary.last_sequence()))
        finally:
            primary.close()

    with failing(MemoryStoreFailed, "memory.store-damaged"):
        read_all()


# --- other versions, other languages -----------------------------------------------------------


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
    primary = PrimaryStore.open(tmp_path)
    added = primary.add([(Passage(text="one  two", id="again"), None)], embedder=None)
    assert [(one.id, one.into) for one in added.merged] == [("again", "one two")]
    primary.close()
    copy = PrimaryStore.open(shutil.copytree(tmp_path, tmp_path / "copy"))  # whole
    assert [one.passage.text for one in copy.merges()] == ["one  two"]
    copy.close()


@pytest.mark.parametrize(("version", "read_only"), [(1, False), (1, True), (2, True)])
def test_a_store_that_cannot_be_brought_up_says_so(tmp_path, version, read_only):
    stored(tmp_path, "one two")
    change(tmp_path, f"PRAGMA user_version = {version}")
    with failing(MemoryStoreFailed, "memory.schema-older"):
        PrimaryStore.open(tmp_path, read_only=read_only)


def test_a_store_keeps_its_language_once_it_holds_a_passage(tmp_path):
    PrimaryStore.open(tmp_path, language="french").close()
    for asked in ("german", None, "german"):
        primary = PrimaryStore.open(tmp_path, language=asked)
        assert primary.language == "german"
        put(primary, f"{asked}")
        primary.close()

    with failing(InvalidInput, "memory.other-language"):
        PrimaryStore.open(tmp_path, language="french")
