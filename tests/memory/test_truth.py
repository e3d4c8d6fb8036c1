import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.truth import SCHEMA_VERSION, Truth

VECTOR = b"\0\0\0\0"

passages = st.builds(
    Passage,
    text=st.text(min_size=1).filter(str.strip),
    title=st.text(),
    source=st.text(),
    quality=st.none() | st.floats(0, 10),
    metadata=st.dictionaries(st.text(), st.text()),
)


def test_each_passage_gets_a_greater_number_than_all_before(tmp_path):
    truth = Truth(tmp_path)
    truth.add([(Passage(text="one"), VECTOR), (Passage(text="two"), VECTOR)], embedder="e")
    truth.add([(Passage(text="one"), VECTOR), (Passage(text="three"), VECTOR)], embedder="e")

    numbers, texts = zip(*((n, p.text) for n, p in truth.passages_after(0)), strict=True)
    assert texts == ("one", "two", "three")
    assert list(numbers) == sorted(set(numbers))
    assert truth.last_sequence() == numbers[-1]
    assert [p.text for _, p in truth.passages_after(numbers[0])] == ["two", "three"]
    truth.close()


@pytest.fixture(scope="module")
def shared_truth(tmp_path_factory):
    truth = Truth(tmp_path_factory.mktemp("truth"))
    yield truth
    truth.close()


@settings(deadline=None)  # it reads a disk
@given(passage=passages)
def test_any_passage_comes_back_as_it_went_in(shared_truth, passage):
    known = shared_truth.holds(passage)
    added = shared_truth.add([(passage, VECTOR)], embedder="e")

    assert added == (not known)
    if added:
        assert shared_truth.passage(shared_truth.last_sequence()) == passage


def test_an_add_that_fails_half_way_stores_nothing(tmp_path):
    def two_then_trouble():
        yield Passage(text="one"), VECTOR
        yield Passage(text="two"), VECTOR
        raise RuntimeError

    truth = Truth(tmp_path)
    with pytest.raises(RuntimeError):
        truth.add(two_then_trouble(), embedder="e")
    assert len(truth) == 0
    truth.close()


def test_a_store_of_a_newer_harness_is_left_alone(tmp_path):
    Truth(tmp_path).close()
    database = sqlite3.connect(tmp_path / "passages.sqlite")
    database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()

    with pytest.raises(MemoryStoreFailed, match="upgrade harness") as caught:
        Truth(tmp_path)
    assert caught.value.path == tmp_path


def test_a_file_that_is_no_database_is_called_damaged(tmp_path):
    (tmp_path / "passages.sqlite").write_text("this is not a database, " * 100)

    with pytest.raises(MemoryStoreFailed, match=r"damaged: restore it"):
        Truth(tmp_path)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "memory").write_text("")

    with pytest.raises(MemoryStoreFailed, match="File exists"):
        Truth(tmp_path / "memory")


def test_after_close_the_error_says_so(tmp_path):
    truth = Truth(tmp_path)
    truth.close()

    with pytest.raises(MemoryStoreFailed, match="closed; open it again"):
        len(truth)
