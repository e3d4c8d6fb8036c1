"""The vector index: it follows the primary store, and finds what a full sort finds."""

from threading import Barrier, Event, Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_vectors import Named, add, clustered, naive, unit

from harness.memory.passage import Passage
from harness.memory.primary import PrimaryStore
from harness.memory.vector_index import Matrix, VectorIndex, main_axes

X, Y, Z = unit([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
NEVER = Event()
FLAT, OTHER, WIDE = Named(), Named("other"), Named("wide", dimensions=16)


@pytest.fixture
def open_index(primary):
    opened = []

    def open_(embedder=FLAT, *, of=primary):
        index = VectorIndex(of, embedder)
        index.catch_up()
        opened.append(index)
        return index

    yield open_
    for index in opened:
        index.close()


def nearest(index, query, *, limit=1):
    found = index.matrix.search(query, limit=limit)
    return None if found is None else list(found)


# --- reading the primary -----------------------------------------------------------------------


def test_it_catches_up_from_where_it_was(primary, open_index):
    unread = VectorIndex(primary, FLAT)
    assert (unread.unavailable, unread.matrix.search(X, limit=1)) == (None, {})
    index = open_index()
    assert (index.unavailable, index.matrix.search(X, limit=4)) == (None, {})
    add(primary, [X], FLAT)
    index.catch_up()
    add(primary, [Y, Z, X], FLAT)
    assert nearest(index, Y) == [1]
    index.catch_up()
    index.catch_up()

    assert len(index) == 4
    assert index.matrix.search(Y, limit=1) == {2: 1.0}
    assert index.matrix.search(X, limit=4, within=np.array([2, 4])) == {4: 1.0, 2: 0.0}


def test_stored_vectors_are_compared_by_their_direction(primary, open_index):
    # An earlier harness stored them as they came. The last is damaged.
    long, damaged = np.float32([9, 1, 0]), np.float32([np.inf, 0, 0])
    add(primary, [long, Y, 1e30 * X, damaged], FLAT)

    assert nearest(open_index(), Y, limit=3) == [2, 1, 3]
    assert open_index().matrix.search(X, limit=1) == {3: 1.0}


def test_what_is_deleted_is_not_found_any_more(primary, open_index):
    add(primary, [X, Y, Z], FLAT)
    index = open_index()

    primary.delete(["p1", "p2"])
    (last,) = add(primary, [Z], FLAT)
    index.catch_up()
    assert index.matrix.search(X, limit=9).keys() == {3, last}
    assert index.matrix.search(X, limit=9, including=[1, 2, 3]).keys() == {3, last}
    assert nearest(index, Z, limit=2) == [3, last]


# --- passages without a vector ---------------------------------------------------------------


def test_a_changed_embedder_embeds_anew_and_is_away_meanwhile(primary, open_index):
    add(primary, [X, Y, Z], FLAT)
    index, theirs = open_index(OTHER), open_index(OTHER)
    assert index.unavailable == "3 passages are still to be embedded"
    assert index.matrix is None

    # What is stopped goes on where it was.
    stop, told = Event(), []
    index.embed_missing(stop=stop, batch=2, progress=lambda *_: stop.set())
    assert index.unavailable == "1 passage is still to be embedded"
    index.embed_missing(stop=NEVER, progress=lambda *one: told.append(one))
    assert (index.unavailable, index.missing) == (None, 0)
    assert told == [("embedding passages", 1, 1)]
    assert nearest(index, Y) == [2]
    assert nearest(open_index(), Y) == [2]  # the first one's vectors are still there
    theirs.catch_up()  # what another one embedded is noticed
    assert nearest(theirs, Z) == [3]
    # One that comes without a vector takes a ready index away.
    primary.add([(Passage(text="4 1 1 0"), None)], embedder=None)
    theirs.catch_up()
    assert theirs.unavailable == "1 passage is still to be embedded"


def test_vectors_that_another_embedders_compaction_took_are_missed_and_made(primary, open_index):
    add(primary, [X, Y, Z], FLAT)
    index = open_index()
    primary.delete(["p3"])
    primary.compact(OTHER)
    index.catch_up()
    assert nearest(index, Y) == [2]

    another = open_index()
    assert another.unavailable == "2 passages are still to be embedded"
    another.embed_missing(stop=NEVER)
    assert nearest(another, Y) == [2]


# --- closing ---------------------------------------------------------------------------------


def test_closing_waits_neither_for_a_search_nor_for_reading(primary, place):
    add(primary, [X, Y], FLAT)
    reading, closed = Barrier(2, timeout=30), Event()

    class Slow(PrimaryStore):
        def vectors_between(self, *arguments):
            reading.wait()
            assert closed.wait(30)
            return super().vectors_between(*arguments)

    slow = Slow.open(place)
    index = VectorIndex(slow, FLAT)
    thread = Thread(target=index.catch_up)
    thread.start()
    reading.wait()
    index.close()
    closed.set()
    thread.join()

    assert (index.unavailable, index.resident_bytes) == ("it is closed", 0)
    slow.close()


# --- cosines to all vectors of a matrix --------------------------------------------------------


def matrix_of(vectors):
    """Numbered from 1."""
    return Matrix.empty(vectors.shape[1]).with_more(np.arange(1, len(vectors) + 1), vectors)


def coarse(seed, n):
    """Of small integers, so that equal cosines do occur, and opposite ones."""
    random = np.random.default_rng(seed)
    return unit(random.integers(-2, 3, (n, 3)) + np.array([0, 0, 0.5]))


QUERY = unit([1, 2, 3])
SEEDS = st.integers(0, 2**32 - 1)


@given(seed=SEEDS, n=st.integers(1, 30), limit=st.integers(1, 40), data=st.data())
def test_it_finds_what_a_full_sort_finds(seed, n, limit, data):
    vectors = coarse(seed, n)
    numbers = st.sets(st.integers(1, n + 3))
    gone, including = data.draw(numbers), data.draw(numbers)
    allowed = data.draw(st.none() | numbers)
    within = None if allowed is None else np.array(sorted(allowed), dtype=np.int64)

    matrix = matrix_of(vectors).without(gone)
    found = matrix.search(QUERY, limit=limit, including=including, within=within)

    alive = {number: c for number, c in naive(vectors, QUERY).items() if number not in gone}
    may = [c for number, c in alive.items() if allowed is None or number in allowed]
    worst = may[:limit][-1] if may else 2.0
    best = {n for n, c in alive.items() if c > worst + 1e-6 and (not allowed or n in allowed)}
    extra = including & alive.keys()
    assert found == {number: pytest.approx(alive[number], abs=1e-6) for number in found}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert best | extra <= set(found)
    assert all(alive[n] >= worst - 1e-6 for n in set(found) - extra)
    assert len(set(found) - extra) <= limit
    assert len(found) >= min(limit, len(may))


@given(
    seed=SEEDS, parts=st.lists(st.integers(0, 400), max_size=6), gone=st.sets(st.integers(1, 90))
)
def test_in_parts_it_becomes_the_same_as_at_once(seed, parts, gone):
    vectors = coarse(seed, sum(parts))
    grown = matrix_of(vectors[:0])
    start = 0
    for count in parts:
        numbers = np.arange(start + 1, start + count + 1)
        grown = grown.with_more(numbers, vectors[start : start + count]).without(gone)
        start += count

    gone = {number for number in gone if number <= len(vectors)}
    at_once = matrix_of(vectors).without(gone)
    assert len(grown) == len(at_once) == len(vectors) - len(gone)
    assert grown.search(QUERY, limit=50) == at_once.search(QUERY, limit=50)


def test_who_searches_an_older_one_does_not_see_what_came_or_went():
    vectors = clustered(2000)
    older = matrix_of(vectors[:1000]).with_room(4000)
    before = older.search(vectors[0], limit=2000)

    newer = older.with_more(np.arange(1001, 2001), vectors[1000:])
    fewer = newer.without(range(1, 1501))  # so many that it is copied without them

    assert older.search(vectors[0], limit=2000) == before
    everything = newer.search(vectors[0], limit=2000)
    assert len(everything) == 2000
    assert fewer.search(vectors[0], limit=2000) == {
        number: pytest.approx(cosine) for number, cosine in everything.items() if number > 1500
    }
    assert fewer.nbytes < 0.5 * newer.nbytes


def test_of_equals_the_older_comes_first():
    assert matrix_of(np.empty((0, 3), dtype=np.float32)).search(QUERY, limit=4) == {}
    matrix = matrix_of(unit([[0, 1, 0], [1, 0, 0]] * 100))

    found = list(matrix.search(unit([1, 0, 0]), limit=200))
    assert found == [*range(2, 201, 2), *range(1, 201, 2)]


def test_a_score_does_not_hang_on_the_company():
    vectors = clustered(3000, dimensions=256)
    matrix = matrix_of(vectors)
    query = clustered(1, dimensions=256, seed=2)[0]

    all_of_them = matrix.search(query, limit=3000)
    for some in ([1], [7, 8, 9], range(1, 2000)):
        within = np.array(some, dtype=np.int64)
        found = matrix.search(query, limit=3000, within=within)
        assert found == {number: all_of_them[number] for number in found}


@pytest.mark.parametrize("dimensions", [128, 300])
def test_two_passes_over_many_vectors_find_the_nearest(dimensions):
    # Of the effective dimension that vectors of texts have: their shares fall off.
    random = np.random.default_rng(dimensions)
    shares = 1 / np.sqrt(np.arange(1, dimensions + 1))
    turned = np.linalg.qr(random.standard_normal((dimensions, dimensions)))[0]
    vectors = unit(random.standard_normal((12_000, dimensions)) * shares @ turned)
    numbers = np.arange(1, 12_001)
    held = Matrix.empty(dimensions).with_room(12_000)
    held = held.with_more(numbers[:11_000], vectors[:11_000]).with_axes()
    assert held.axes is not None
    held = held.with_more(numbers[11_000:], vectors[11_000:]).without([7, 8])
    matched = 0
    for query in vectors[::1200]:
        found = held.search(query, limit=10, including=[5])
        cosines = vectors @ query
        cosines[[6, 7]] = -1
        nearest = (np.argsort(-cosines)[:10] + 1).tolist()
        matched += len(set(nearest) & set(found))
        assert found[5] == pytest.approx(float(cosines[4]), abs=1e-5)
        assert not {7, 8} & found.keys()
    assert matched >= 98
    # With most of them gone, one pass is enough again.
    assert held.without(range(1, 11_000)).axes is None


def test_the_main_axes_hold_nearly_as_much_as_the_exact_ones():
    random = np.random.default_rng(0)
    scales = 0.97 ** np.arange(128)
    vectors = (random.standard_normal((1000, 128)) * scales).astype(np.float32)

    axes = main_axes(vectors, 64)

    assert np.allclose(axes @ axes.T, np.eye(64), atol=1e-5)
    exact = np.linalg.eigh(vectors.T @ vectors)[1][:, -64:]
    assert np.square(vectors @ axes.T).sum() > 0.99 * np.square(vectors @ exact).sum()


def test_vectors_that_differ_in_all_directions_alike_are_compared_whole():
    vectors = unit(np.random.default_rng(1).standard_normal((10_000, 128)))
    held = Matrix.empty(128).with_more(np.arange(1, 10_001), vectors).with_axes().with_axes()
    for query in vectors[::2500]:
        assert list(held.search(query, limit=5)) == list(naive(vectors, query, limit=5))
