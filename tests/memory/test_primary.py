"""What the primary keeps, and how those that follow it by numbers learn of every change."""

import random
from datetime import UTC, datetime, timedelta, timezone
from http import HTTPMethod  # an enum of texts
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored import EMBEDDER, failing, put

from harness.errors import MemoryStoreFailed
from harness.memory.database import place_of
from harness.memory.passage import RESERVED, Passage, wanted_tags
from harness.memory.primary import PrimaryStore

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OTHER = SimpleNamespace(name="e", dimensions=3)


def vector(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float32)


# --- what goes in comes out ------------------------------------------------------------------

names = st.text(min_size=1).filter(lambda name: name not in RESERVED)
numbers = st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
passages = st.builds(
    Passage,
    text=st.text(min_size=1).filter(str.strip),
    title=st.text(),
    source=st.text() | st.sampled_from(HTTPMethod),
    quality=st.none()
    | st.floats(0, 10)
    | st.sampled_from([7, True, np.float64(7.5), np.float32(7)]),
    created=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3.5))])),
    metadata=st.dictionaries(names, st.text() | numbers),
    id=st.text(),
)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def shared_store(request, tmp_path_factory):
    place = cache = tmp_path_factory.mktemp("primary")
    if request.param == "postgres":
        place = place_of(request.getfixturevalue("postgres_server").url())
    primary = PrimaryStore.open(place, cache=cache)
    yield primary
    primary.close()


@given(passage=passages)
def test_any_passage_comes_back_as_it_went_in(shared_store, passage):
    known = shared_store.known([passage])
    added = shared_store.add([(passage, None)], embedder=None, merge=False)

    assert (added.known, added.new) == (((passage.id,), ()) if known else ((), (passage.id,)))
    if not known:
        assert shared_store.get(passage.id) == passage
        last = shared_store.last_sequence()
        assert shared_store.fetch([last, last + 1]) == {last: passage}
        for name, value in passage.metadata.items():
            assert last in shared_store.tagged(wanted_tags({name: value}, lambda *_: ()))


def test_any_text_may_be_asked_for_as_an_id(primary):
    put(primary, "one", "?")
    for id_ in ("\ud800", "\0", ""):
        assert primary.get(id_) is None
        assert primary.delete([id_]) == 0
    assert len(primary) == 2


def test_a_delete_takes_all_that_hangs_on_a_passage(primary):
    put(primary, "one", "two")

    assert primary.delete(["one", "one", "unknown"]) == 1

    assert primary.get("one") is None
    assert [p.text for _, p in primary.passages_between(0, 9)] == ["two"]
    assert primary.vectors_between(EMBEDDER, 0, 9)[0].tolist() == [2]
    assert primary.tagged(wanted_tags({}, lambda *_: ())).tolist() == [2]
    assert primary.tagged(wanted_tags({"source": ""}, lambda *_: ())).tolist() == [2]
    assert primary.removed_between(0, 9) == [1]


def test_an_add_that_fails_half_way_stores_nothing(primary):
    put(primary, "before")
    with pytest.raises(TypeError):
        primary.add(
            [(Passage(text="one"), vector(1, 2)), (Passage(text="two"), "no vector")],
            embedder=EMBEDDER,
        )
    assert primary.extent() == (1, 1)
    put(primary, "after")
    assert primary.extent() == (2, 2)


def test_after_close_every_call_fails(primary):
    primary.close()

    for call in (
        lambda: len(primary),
        lambda: put(primary, "one"),
        lambda: primary.compact(EMBEDDER),
    ):
        with failing(MemoryStoreFailed, "memory.store-closed"):
            call()
    primary.close()


# --- vectors ---------------------------------------------------------------------------------


def test_vectors_are_kept_for_each_embedder_and_those_that_lack_are_known(primary):
    put(primary, "one", "three")
    primary.add([(Passage(text="no vector", id="x"), None)], embedder=EMBEDDER)

    assert primary.count_without_vector(OTHER) == 3
    assert [(n, p.id) for n, p in primary.without_vector(EMBEDDER, 9)] == [(3, "x")]
    assert [n for n, _ in primary.without_vector(OTHER, 2, after=2)] == [3]

    primary.put_vectors(OTHER, [1, 3, 77], np.arange(9, dtype=np.float32).reshape(3, 3))

    sequences, vectors = primary.vectors_between(OTHER, 0, 9)
    assert (sequences.tolist(), vectors.tolist()) == ([1, 3], [[0, 1, 2], [3, 4, 5]])
    assert [n for n, _ in primary.without_vector(OTHER, 9)] == [2]
    assert primary.vectors_between(EMBEDDER, 1, 9)[1].tolist() == [[5, 1]]
    unknown = SimpleNamespace(name="unknown", dimensions=7)
    assert primary.vectors_between(unknown, 0, 9)[1].shape == (0, 7)


# --- following it ----------------------------------------------------------------------------


class Follower:
    """An index at its plainest: what it knows of the primary, by numbers."""

    def __init__(self) -> None:
        self.position = 0
        self.held: dict[int, Passage] = {}
        self.vectors: dict[int, list[float]] = {}

    def catch_up(self, primary: PrimaryStore) -> None:
        last = primary.last_sequence()
        for number in primary.removed_between(self.position, last):
            self.held.pop(number, None)
            self.vectors.pop(number, None)
        self.held.update(primary.passages_between(self.position, last))
        sequences, vectors = primary.vectors_between(EMBEDDER, self.position, last)
        self.vectors.update(zip(sequences.tolist(), vectors.tolist(), strict=True))
        self.position = last


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_who_follows_by_numbers_holds_what_the_primary_store_holds_whenever_it_looks(primary, seed):
    chance = random.Random(seed)
    expected: dict[str, str] = {}
    followers = [Follower() for _ in range(3)]
    for step in range(200):
        id_ = str(chance.randrange(30))
        text = f"{chance.randrange(20)} {id_}"
        passage = Passage(text=text, id=id_, quality=step % 10)
        kind = chance.choices(("add", "delete", "compact"), (7, 4, 0.2))[0]
        if kind == "add":
            primary.add([(passage, vector(step, 0))], embedder=EMBEDDER, merge=False)
            expected.setdefault(id_, text)
        elif kind == "delete":
            assert primary.delete([id_]) == (id_ in expected)
            expected.pop(id_, None)
        elif kind == "compact":
            primary.compact(EMBEDDER)
        for follower in followers:
            if chance.random() < 0.1:
                follower.catch_up(primary)

    for follower in (*followers, Follower()):
        follower.catch_up(primary)
        assert {p.id: p.text for p in follower.held.values()} == expected
        assert follower.held.keys() == follower.vectors.keys()
        assert follower.held == primary.fetch(range(primary.last_sequence() + 1))
    assert primary.extent() == (primary.last_sequence(), len(expected))


def test_numbers_are_never_given_out_again(place, primary):
    put(primary, "one", "two")
    primary.delete(["two"])
    primary.compact(EMBEDDER)
    primary.close()

    primary = PrimaryStore.open(place)
    put(primary, "three")
    assert [number for number, _ in primary.passages_between(0, 9)] == [1, 4]
    primary.close()


def test_compacting_gives_room_back_and_forgets_other_embedders(primary):
    texts = [f"{n}" * 2000 for n in range(200)]
    put(primary, *texts)
    primary.put_vectors(OTHER, [1], vector(1, 2, 3)[np.newaxis])
    primary.delete(texts[:-1])
    file = primary.directory / "passages.sqlite"
    before = file.stat().st_size if file.is_file() else 0

    primary.compact(EMBEDDER)

    assert not before or file.stat().st_size < before / 4
    assert primary.count_without_vector(EMBEDDER) == 0
    assert primary.count_without_vector(OTHER) == 1


def test_passages_are_read_in_order_however_many_there_are_and_whatever_is_written(primary):
    put(primary, *(f"text {n}" for n in range(700)))
    reading = primary.passages_between(10, 690)
    first = next(reading)
    # Nothing holds what is read: a write, and giving room back, go on meanwhile.
    primary.delete(["text 600"])
    primary.compact(EMBEDDER)
    rest = list(reading)

    assert [number for number, _ in [first, *rest]] == [n for n in range(11, 691) if n != 601]
    assert list(primary.passages_between(690, 10)) == []
