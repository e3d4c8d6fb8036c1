"""What becomes of the truth when the disk, other processes or other versions are in its way."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.duplicates import bands_of
from harness.memory.passage import Passage
from harness.memory.schema import SCHEMA_VERSION
from harness.memory.truth import FILE_NAME, Truth
from harness.memory.where import tags_of

EMBEDDER = SimpleNamespace(name="e", dimensions=2)


def put(truth: Truth, *texts: str) -> None:
    """Stores texts as passages with their own text as id."""
    truth.add(
        [(Passage(text=t, id=t), np.array([len(t), 1], dtype=np.float32)) for t in texts],
        embedder=EMBEDDER,
    )


@pytest.fixture
def made(tmp_path) -> Path:
    """A store of one passage."""
    directory = tmp_path / "memory"
    truth = Truth.open(directory)
    put(truth, "one")
    truth.close()
    return directory


def as_nobody(act: Callable[[], object], directory: Path) -> None:
    """Does something as a user who owns nothing; root may write whatever permissions say."""
    for parent in directory.parents:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o011)
    pid = os.fork()
    if not pid:
        try:
            if os.getuid() == 0:
                os.setuid(65534)
            act()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the process ends with it
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0, "see the child's stderr"


@pytest.fixture
def closed_off(made):
    """The store, whose files and directory nobody may write."""
    (made / FILE_NAME).chmod(0o444)
    made.chmod(0o555)
    yield made
    made.chmod(0o755)


# --- read-only -------------------------------------------------------------------------------


def test_what_may_not_be_written_is_opened_for_reading(closed_off):
    def act():
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
            with pytest.raises(
                MemoryStoreFailed, match=r"for reading only.*open it where they may"
            ):
                write()
        truth.close()
        assert [file.name for file in closed_off.iterdir()] == [FILE_NAME]

    as_nobody(act, closed_off)


def test_a_reader_without_rights_sees_what_a_writer_stores_meanwhile(made):
    truth = Truth.open(made)
    for file in made.iterdir():
        file.chmod(0o644)
    put(truth, "two")

    def act():
        reader = Truth.open(made)
        assert reader.read_only
        assert reader.get("two").text == "two"

    as_nobody(act, made)
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

    def act():
        with pytest.raises(MemoryStoreFailed, match=r"wal still.*copy the directory elsewhere"):
            Truth.open(copy)

    as_nobody(act, copy)
    copy.chmod(0o755)
    truth = Truth.open(copy)
    assert truth.get("in the log")
    truth.close()


def test_reading_only_can_be_asked_for(made):
    with_read_only = Truth.open(made, read_only=True)
    writer = Truth.open(made)
    put(writer, "two")

    assert with_read_only.get("two").text == "two"
    with pytest.raises(MemoryStoreFailed, match="for reading only"):
        put(with_read_only, "three")
    with_read_only.close()
    writer.close()


def test_nothing_is_made_where_nothing_may_be(tmp_path, closed_off):
    with pytest.raises(MemoryStoreFailed, match="no memory store here"):
        Truth.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()

    def act():
        with pytest.raises(MemoryStoreFailed, match="Permission denied"):
            Truth.open(closed_off / "none")

    as_nobody(act, closed_off)


# --- a full disk, another writer -------------------------------------------------------------


def test_a_full_disk_stores_nothing_and_loses_nothing(made):
    truth = Truth.open(made)
    with truth._connections.writer() as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
        db.execute(f"PRAGMA max_page_count = {pages + 4}")

    with pytest.raises(MemoryStoreFailed, match=r"full \(nothing was stored: make room"):
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

    with pytest.raises(MemoryStoreFailed, match="another process is writing"):
        put(truth, "two")
    # Who only reads is not in its way.
    assert len(truth) == 1
    other.execute("ROLLBACK")
    put(truth, "two")
    assert len(truth) == 2
    other.close()
    truth.close()


def open_and_add(directory: Path, name: str, together: object) -> None:
    together.wait()
    truth = Truth.open(directory)
    for number in range(5):
        put(truth, f"{name} {number}")
    truth.close()


@pytest.mark.parametrize("attempt", range(3))
def test_processes_that_make_one_store_at_once_all_find_their_passages(tmp_path, attempt):
    context = multiprocessing.get_context("fork")
    together = context.Barrier(8)
    processes = [
        context.Process(target=open_and_add, args=(tmp_path / "memory", f"p{n}", together))
        for n in range(8)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()

    assert [process.exitcode for process in processes] == [0] * 8
    truth = Truth.open(tmp_path / "memory")
    assert truth.extent() == (40, 40)
    truth.close()


# --- copies and damage -----------------------------------------------------------------------


def assert_whole(truth: Truth) -> None:
    """All that hangs on passages is there, and nothing else."""
    stored = list(truth.passages_between(0, truth.last_sequence()))
    with truth._connections.reading() as db:
        tags = set(db.execute("SELECT * FROM tag"))
        bands = set(db.execute("SELECT * FROM band"))
    assert len(stored) == len(truth)
    assert tags == {(tag, number) for number, passage in stored for tag in tags_of(passage)}
    rows = bands_of([passage.searchable for _, passage in stored]).tolist()
    assert bands == {
        (band, number) for (number, _), row in zip(stored, rows, strict=True) for band in row
    }
    sequences, vectors = truth.vectors_between(EMBEDDER, 0, truth.last_sequence())
    by_number = dict(stored)
    for number, (length, one) in zip(sequences.tolist(), vectors.tolist(), strict=True):
        assert (length, one) == (len(by_number[number].id), 1)


def write_for_ever(directory: Path) -> None:
    chance = random.Random(os.getpid())
    truth = Truth.open(directory)
    for step in range(10**9):
        put(truth, *(f"{chance.random()} " * 40 for _ in range(chance.choice((1, 5, 60)))))
        if step % 3 == 0:
            some = [passage.id for _, passage in zip(range(9), _passages(truth), strict=False)]
            truth.delete(some[:1])
            truth.update(Passage(text=f"{step} {some[1]}", id=some[1]), None, None)


def _passages(truth: Truth):
    return (passage for _, passage in truth.passages_between(0, truth.last_sequence()))


@pytest.mark.slow
def test_a_copy_made_while_it_is_written_to_is_whole_or_says_that_it_is_not(made, tmp_path):
    pid = os.fork()
    if not pid:
        try:
            write_for_ever(made)
        finally:
            os._exit(1)
    chance = random.Random(1)
    copy = tmp_path / "copy"
    opened = 0
    try:
        ends = time.monotonic() + 3
        while time.monotonic() < ends:
            shutil.rmtree(copy, ignore_errors=True)
            copy.mkdir()
            # In any order, and slowly enough for writes to come between.
            for end in chance.sample(["", "-wal", "-shm"], 3):
                source = made / f"{FILE_NAME}{end}"
                if source.exists():
                    with source.open("rb") as old, (copy / source.name).open("wb") as new:
                        while part := old.read(65_536):
                            new.write(part)
            try:
                truth = Truth.open(copy)
            except MemoryStoreFailed as error:
                assert "damaged" in str(error) or "no memory store" in str(error), error  # noqa: PT017
            else:
                assert_whole(truth)
                truth.close()
                opened += 1
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert opened


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        pytest.param(
            "DELETE FROM tag WHERE sequence = 2", "tags are missing .6 instead of 8.", id="tags"
        ),
        pytest.param("DELETE FROM band WHERE sequence = 2", "bands are missing", id="bands"),
        pytest.param(
            "DELETE FROM passage WHERE sequence = 2",
            "writes are missing .3 instead of 4.",
            id="a passage",
        ),
        pytest.param("UPDATE state SET sequence = 2", "writes are missing", id="the counter"),
    ],
)
def test_a_copy_with_rows_of_another_moment_is_called_damaged(made, tmp_path, statement, fault):
    truth = Truth.open(made)
    put(truth, "two", "three", "four")
    truth.close()
    copy = shutil.copytree(made, tmp_path / "copy")
    database = sqlite3.connect(copy / FILE_NAME)
    database.execute(statement)
    database.commit()
    database.close()

    with pytest.raises(MemoryStoreFailed, match=f"damaged, as a copy.*{fault}.*copy it again"):
        Truth.open(copy)


def test_a_copy_is_looked_through_once_and_is_a_store_of_its_own(made, tmp_path):
    copy = shutil.copytree(made, tmp_path / "copy")
    truth = Truth.open(copy)
    put(truth, "two")
    truth.delete(["one"])
    truth.close()
    database = sqlite3.connect(copy / FILE_NAME)
    (place,) = database.execute("SELECT place FROM state").fetchone()
    database.close()

    assert place.endswith(f":{(copy / FILE_NAME).stat().st_ino}")
    original = Truth.open(made)
    assert original.extent() == (1, 1)
    original.close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"this is no database, " * 500, "damaged: restore it", id="a text"),
        pytest.param(b"SQLite format 3\0" + b"\xff" * 9000, "damaged: restore", id="a mere header"),
    ],
)
def test_a_file_that_is_no_database_is_called_damaged(tmp_path, content, message):
    (tmp_path / FILE_NAME).write_bytes(content)

    with pytest.raises(MemoryStoreFailed, match=message) as caught:
        Truth.open(tmp_path)
    assert caught.value.path == tmp_path
    assert (tmp_path / FILE_NAME).read_bytes() == content


def read_all(directory: Path) -> None:
    truth = Truth.open(directory)
    try:
        list(truth.passages_between(0, truth.last_sequence()))
    finally:
        truth.close()


def test_pages_that_are_overwritten_are_said_by_whoever_reads_them(made):
    truth = Truth.open(made)
    put(truth, *(f"text {n} " * 50 for n in range(200)))
    truth.close()
    content = bytearray((made / FILE_NAME).read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    (made / FILE_NAME).write_bytes(content)

    with pytest.raises(MemoryStoreFailed, match="damaged"):
        read_all(made)


def test_a_database_of_another_program_is_left_alone(tmp_path):
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.execute("CREATE TABLE theirs (x)")
    database.close()

    with pytest.raises(MemoryStoreFailed, match="another program; open another directory"):
        Truth.open(tmp_path)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "memory").write_text("")

    with pytest.raises(MemoryStoreFailed, match=r"File exists.*open another"):
        Truth.open(tmp_path / "memory")


# --- other versions, other languages ---------------------------------------------------------


def test_a_store_of_a_newer_harness_is_left_alone(made):
    database = sqlite3.connect(made / FILE_NAME)
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()

    with pytest.raises(MemoryStoreFailed, match="upgrade harness") as caught:
        Truth.open(made)
    assert caught.value.path == made


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


@pytest.fixture
def old(tmp_path) -> Path:
    """A store of version 1, whose third passage was deleted by hand."""
    database = sqlite3.connect(tmp_path / FILE_NAME)
    database.executescript(VERSION_1)
    for number, metadata in ((1, {"topic": "x"}), (2, {"title": "y", "": "z"}), (4, {})):
        passage = Passage(text=f"text {number}", title="t", source="s")
        row = (number, passage.id, passage.text, "t", "s", number, json.dumps(metadata))
        database.execute("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    for number in (1, 2):
        blob = np.array([len(Passage(text=f"text {number}", title="t", source="s").id), 1], "<f4")
        row = (number, EMBEDDER.name, blob.tobytes())
        database.execute("INSERT INTO embedding VALUES (?, ?, ?)", row)
    database.commit()
    database.close()
    return tmp_path


def test_a_store_of_version_1_keeps_its_passages_and_vectors(old):
    truth = Truth.open(old)

    stored = list(truth.passages_between(0, 9))
    assert [(number, p.text, p.quality) for number, p in stored] == [
        (1, "text 1", 1),
        (2, "text 2", 2),
        (3, "text 4", 4),
    ]
    assert dict(stored[0][1].metadata) == {"topic": "x"}
    assert dict(stored[1][1].metadata) == {"metadata.title": "y", "metadata.": "z"}
    assert truth.known([Passage(text="text 4", title="t", source="s")])
    assert [number for number, _ in truth.without_vector(EMBEDDER, 9)] == [3]
    assert_whole(truth)
    put(truth, "new")
    truth.close()
    truth = Truth.open(old)
    assert truth.extent() == (4, 4)
    truth.close()


def test_a_store_of_version_1_that_cannot_be_brought_up_says_so(old):
    with pytest.raises(MemoryStoreFailed, match=r"older harness .schema 1.; open it once where"):
        Truth.open(old, read_only=True)


def test_a_store_keeps_its_language(tmp_path):
    for asked in ("german", None, "german"):
        truth = Truth.open(tmp_path, language=asked)
        assert truth.language == "german"
        put(truth, f"{asked}")
        truth.close()

    with pytest.raises(InvalidInput, match="'german', not 'french'; leave the language out"):
        Truth.open(tmp_path, language="french")


def test_an_empty_store_takes_another_language(tmp_path):
    Truth.open(tmp_path, language="french").close()
    truth = Truth.open(tmp_path, language="german")

    assert truth.language == "german"
    truth.close()
