"""Cosines to all vectors of a matrix."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_vectors import clustered, naive, unit

from harness.memory.matrix import Matrix


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
