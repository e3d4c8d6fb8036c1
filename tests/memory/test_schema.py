"""What is taken over from older stores, and what copies are refused."""

import json
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.schema import SCHEMA_VERSION
from harness.memory.truth import FILE_NAME, Truth
from harness.memory.where import Where

EMBEDDER = SimpleNamespace(name="e", dimensions=4)

# As version 1 made them.
VERSION_1 = """
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


def change(directory: Path, script: str) -> None:
    """Does something to the file behind everyone's back."""
    db = sqlite3.connect(directory / FILE_NAME)
    db.executescript(script)
    db.close()


def vectors(count: int) -> np.ndarray:
    return np.arange(count * 4, dtype=np.float32).reshape(count, 4)


def fill(directory: Path, count: int = 300) -> None:
    truth = Truth.open(directory)
    passages = [Passage(text=f"{n} " * 50, id=str(n), metadata={"n": n}) for n in range(count)]
    rows = list(zip(passages, vectors(count), strict=True))
    truth.add(rows, embedder=EMBEDDER, merge=False)
    truth.close()


def content(truth: Truth) -> tuple[object, ...]:
    last = truth.last_sequence()
    passages = list(truth.passages_between(0, last))
    numbers, rows = truth.vectors_between(EMBEDDER, 0, last)
    tagged = [truth.tagged(Where.parse(p.metadata)).tolist() for _, p in passages]
    return passages, truth.removed_between(0, last), numbers.tolist(), rows.tolist(), tagged


# --- versions --------------------------------------------------------------------------------


def test_a_store_of_version_1_is_brought_up_with_all_it_holds(tmp_path):
    metadata = {
        "topic": "otters",
        "id": "their own",
        "": "no name",
        "half": "a\ud800b",
        "list": [1, 2],
        "none": None,
        "year": 2024,
    }
    change(tmp_path, VERSION_1)
    db = sqlite3.connect(tmp_path / FILE_NAME)
    insert = "INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?, ?)"
    db.execute(insert, (3, "a", "one two three", "T", "s", 7.5, json.dumps(metadata)))
    # What version 1 knew nothing of: that this is a near-duplicate.
    db.execute(insert, (5, "b", "One, two, three!", "T", "", None, "{}"))
    db.execute("INSERT INTO embedding VALUES (3, 'e', ?)", (vectors(1).tobytes(),))
    db.commit()
    db.close()

    for _ in range(2):  # the second time it is of this version
        truth = Truth.open(tmp_path)
        assert [p.id for _, p in truth.passages_between(0, truth.last_sequence())] == ["a", "b"]
        kept = truth.get("a")
        assert (kept.text, kept.title, kept.source, kept.quality) == (
            "one two three",
            "T",
            "s",
            7.5,
        )
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
        assert truth.vectors_between(EMBEDDER, 0, 9)[1].tolist() == vectors(1).tolist()
        assert truth.count_without_vector(EMBEDDER) == 1
        truth.close()
    shutil.copytree(tmp_path, tmp_path / "copy")
    Truth.open(tmp_path / "copy").close()  # and whole, as far as can be checked


def test_someone_elses_database_is_no_store(tmp_path):
    change(tmp_path, f"CREATE TABLE mine (x); PRAGMA user_version = {SCHEMA_VERSION}")

    with pytest.raises(MemoryStoreFailed, match=r"no such table.*passages\.sqlite is damaged"):
        Truth.open(tmp_path)


# --- languages -------------------------------------------------------------------------------


def test_a_language_that_nobody_knows_leaves_nothing_behind(tmp_path):
    with pytest.raises(InvalidInput, match="no language 'germn'; did you mean 'german'"):
        Truth.open(tmp_path, language="germn")

    truth = Truth.open(tmp_path)
    assert truth.language == "english"
    truth.close()


# --- copies ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("DELETE FROM state", "state is missing", id="state"),
        pytest.param(
            "INSERT INTO vector_1 VALUES (999, x'00')", "has rows of no passage", id="vector"
        ),
    ],
)
def test_a_copy_in_which_something_is_missing_is_called_damaged(tmp_path, script, message):
    fill(tmp_path / "store")
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    change(tmp_path / "copy", script)

    with pytest.raises(MemoryStoreFailed, match=f"damaged, as a copy is.*{message}.*copy it again"):
        Truth.open(tmp_path / "copy")


def test_a_page_of_another_moment_is_harmless_or_called_damaged(tmp_path):
    fill(tmp_path / "store")
    before = (tmp_path / "store" / FILE_NAME).read_bytes()
    truth = Truth.open(tmp_path / "store")
    truth.delete([str(n) for n in range(0, 300, 2)])
    expected = content(truth)
    truth.close()
    after = (tmp_path / "store" / FILE_NAME).read_bytes()
    assert len(before) == len(after)
    pages = range(0, len(before), 4096)
    changed = [page for page in pages if before[page : page + 4096] != after[page : page + 4096]]

    # One page at a time is as it was: what a copy holds that was at it in the wrong moment.
    copy = tmp_path / "copy"
    copy.mkdir()
    damaged: list[str] = []
    for page in changed:
        mixed = bytearray(after)
        mixed[page : page + 4096] = before[page : page + 4096]
        (copy / FILE_NAME).write_bytes(mixed)
        try:
            truth = Truth.open(copy)
        except MemoryStoreFailed as error:
            damaged.append(str(error))
        else:  # nothing is on that page any more
            assert content(truth) == expected
            truth.close()
        shutil.rmtree(copy)
        copy.mkdir()
    assert len(damaged) > len(changed) / 2 > 10
    assert all("passages.sqlite is damaged" in said for said in damaged)
