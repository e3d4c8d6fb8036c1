"""What becomes of the primary when the disk, other processes or other versions are in its way."""

import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stored import Letters, change, failing, put
from structlog.testing import capture_logs

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory import MemoryStore, Passage
from harness.memory.primary import PrimaryStore
from harness.memory.sqlite import FILE_NAME, SCHEMA_VERSION


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


def test_what_may_not_be_written_is_refused(closed_off):
    with nobody(closed_off):
        with failing(MemoryStoreFailed, "memory.store-read-only"):
            PrimaryStore.open(closed_off)
        with failing(MemoryStoreFailed, "memory.no-directory"):
            PrimaryStore.open(closed_off / "none")
    assert [file.name for file in closed_off.iterdir()] == [FILE_NAME]


# --- a full disk, another writer ---------------------------------------------------------------


def test_a_full_disk_stores_nothing_and_loses_nothing(made):
    primary = PrimaryStore.open(made)
    with primary.database.writer() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 4}")

    with failing(MemoryStoreFailed, "memory.disk-full"):
        put(primary, "two", "x" * 50_000)
    assert primary.extent() == (1, 1)
    assert primary.get("two") is None

    with primary.database.writer() as db:
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
    "an index without its rows": "PRAGMA writable_schema = ON; "
    "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'state') "
    "WHERE name = 'passage_reading'",
    "the state": "DELETE FROM state",
}


@pytest.mark.parametrize("script", LACKING.values(), ids=LACKING)
def test_a_copy_whose_parts_do_not_fit_is_called_damaged(made, tmp_path, script):
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


@pytest.mark.parametrize(
    "flips", [pytest.param(120, id="120"), pytest.param(1000, id="1000", marks=pytest.mark.slow)]
)
def test_whatever_bit_is_flipped_no_text_is_another_and_what_is_gone_is_named(tmp_path, flips):
    chance, file = random.Random(flips), tmp_path / FILE_NAME
    stored(tmp_path, *(f"text {n}: " + chance.randbytes(80).hex() for n in range(60)))
    primary = PrimaryStore.open(tmp_path)
    before = {passage.id: passage for _, passage in primary.passages_between(0, 60)}
    primary.close()
    whole = file.read_bytes()
    named = mended = unread = 0
    for _ in range(flips):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        file.write_bytes(flipped)  # in place: a copy is looked through when it is opened
        try:
            primary = PrimaryStore.open(tmp_path)
        except MemoryStoreFailed:
            unread += 1
        else:
            read, errors = {}, set()
            for id_ in before:
                try:
                    read[id_] = primary.get(id_)
                except MemoryStoreFailed as error:
                    errors.add(error.code)
            assert all(found in (None, before[id_]) for id_, found in read.items())
            try:
                damaged = primary.damaged()
                named += bool(damaged)
                assert "memory.passage-damaged" not in errors or damaged
                if primary.delete(damaged) == len(damaged):
                    assert primary.damaged() == []
                    mended += bool(damaged)
            except MemoryStoreFailed:
                unread += 1
            primary.close()
        for more in tmp_path.glob(f"{FILE_NAME}-*"):
            more.unlink()
    assert named > flips // 8
    assert mended > named // 2
    assert unread > 0


def test_a_damaged_passage_is_named_and_left_out(tmp_path):
    stored(tmp_path, "one", "two")
    change(tmp_path, "UPDATE passage SET source = 'another' WHERE text = 'one'")

    primary = PrimaryStore.open(tmp_path)
    (damaged,) = primary.damaged()
    with failing(MemoryStoreFailed, "memory.passage-damaged"):
        primary.get(damaged)
    with capture_logs() as logs:
        assert [passage.text for _, passage in primary.passages_between(0, 2)] == ["two"]
    assert [(log["code"], log["passage"]) for log in logs] == [("memory.passage-damaged", damaged)]
    primary.close()


def test_a_damaged_passage_keeps_no_others_from_their_vectors(tmp_path):
    class Numbers(Letters):
        name = "another"

    with MemoryStore.open(tmp_path, embedder=Letters()) as store:
        store.add(Passage(text=f"apple {n}", id=str(n)) for n in range(300))
    change(tmp_path, "UPDATE passage SET text = 'pear' WHERE sequence < 270")
    with MemoryStore.open(tmp_path, embedder=Numbers()) as store:
        assert store.wait(timeout_s=60)
        assert store.stats().unembedded == 269
        assert store.search("apple 280", mode="vector", limit=1)[0].id == "280"


VERSION_5 = (
    "ALTER TABLE state ADD COLUMN compacted INTEGER NOT NULL DEFAULT 7;"
    "ALTER TABLE embedder ADD COLUMN mean REAL; CREATE TABLE merged (id TEXT);"
    "PRAGMA user_version = 5"
)
VERSION_4 = (
    f"{VERSION_5}; ALTER TABLE embedder DROP COLUMN mean; DROP TABLE amount;PRAGMA user_version = 4"
)


@pytest.mark.parametrize("version", [VERSION_4, VERSION_5], ids=["4", "5"])
def test_passages_of_a_version_before_are_found_by_range(tmp_path, version):
    with MemoryStore.open(tmp_path, embedder=Letters()) as store:
        store.add(
            Passage(text=f"apples, {n}", metadata={"year": n, "of": "n"}) for n in range(2020, 2026)
        )
        assert store.search("apples")
    change(tmp_path, version)
    with MemoryStore.open(tmp_path, embedder=Letters()) as store:
        hits = store.search("apples", limit=9, where={"year": {">": 2023}})
        assert {hit.passage.metadata["year"] for hit in hits} == {2024, 2025}
        assert store.search("apples", mode="vector", where={"year": {">": 2030}}) == []
        assert store.damaged() == []
        assert store.add([Passage(text="plums", metadata={"year": 2030})]).new
        assert len(store.search("plums", where={"year": {">": 2029}})) == 1


# --- other versions, other languages -----------------------------------------------------------


@pytest.mark.parametrize("version", [1, 3])
def test_a_store_from_before_the_first_release_says_so(tmp_path, version):
    stored(tmp_path, "one two")
    change(tmp_path, f"PRAGMA user_version = {version}")
    with failing(MemoryStoreFailed, "memory.schema-older"):
        PrimaryStore.open(tmp_path)


def test_a_store_keeps_its_language_once_it_holds_a_passage(tmp_path):
    PrimaryStore.open(tmp_path, language="french").close()
    for asked in ("german", None, "german"):
        primary = PrimaryStore.open(tmp_path, language=asked)
        assert primary.language == "german"
        put(primary, f"{asked}")
        primary.close()

    with failing(InvalidInput, "memory.other-language"):
        PrimaryStore.open(tmp_path, language="french")
