import numpy as np
import pytest
from plain_vectors import Named, add, clustered, naive

from harness.memory.vector import hnsw
from harness.memory.vector.approximate import Approximate

VECTORS = clustered(6000)
QUERIES = clustered(8, seed=2)


@pytest.fixture
def flat():
    return Named(dimensions=16)


@pytest.fixture
def index(truth, flat, tmp_path):
    """5,000 in the graph, 1,000 after it; 300 of both gone."""
    add(truth, VECTORS, flat)
    before = truth.vectors_between(flat, 0, 5000)
    hnsw.write(tmp_path / "vector", flat, position=5000, vectors=[before], went_on=lambda _: True)
    graph = hnsw.Graph.load(tmp_path / "vector", flat)
    whole = Approximate.of(truth, flat, graph).with_more(*truth.vectors_between(flat, 5000, 6000))
    return whole.without(GONE)


GONE = set(range(4900, 5200))


def expected(query, *, limit=None, within=None):
    best = naive(VECTORS, query)
    allowed = {
        number: cosine
        for number, cosine in best.items()
        if number not in GONE and (within is None or number in within)
    }
    return dict(list(allowed.items())[:limit])


def recall(found, wanted):
    return len(found.keys() & wanted.keys()) / len(wanted)


def test_it_finds_nearly_all_that_an_exact_search_finds_with_the_same_scores(index):
    assert len(index) == 5700
    recalls = []
    for query in QUERIES:
        found = index.search(query, limit=100)
        exact = expected(query)
        assert len(found) == 100
        assert found == {number: pytest.approx(exact[number], abs=1e-6) for number in found}
        assert list(found.values()) == sorted(found.values(), reverse=True)
        recalls.append(recall(found, expected(query, limit=100)))
    assert np.mean(recalls) > 0.97


def test_those_that_are_asked_for_are_scored_wherever_they_stand(index):
    query = QUERIES[0]
    including = [*list(expected(query))[-20:], 4950, 7000]  # the last two are not there

    found = index.search(query, limit=3, including=including)
    exact = expected(query)
    assert set(found) == {*list(exact)[:3], *including[:20]}
    assert [found[n] for n in including[:20]] == pytest.approx([exact[n] for n in including[:20]])


@pytest.mark.parametrize(
    ("within", "least"),
    [
        pytest.param(range(1, 6001, 100), 1, id="few: compared each"),
        pytest.param(range(1, 6001, 2), 0.97, id="many: proposed"),
        pytest.param(range(5001, 6001), 1, id="only after the graph"),
        pytest.param([], 1, id="none"),
    ],
)
def test_a_filter_leaves_the_best_of_those_that_satisfy_it(index, within, least):
    numbers = np.array(within, dtype=np.int64)
    for query in QUERIES:
        wanted = expected(query, limit=50, within=set(within))
        found = index.search(query, limit=50, within=numbers)
        assert len(found) == len(wanted)
        assert found.keys() <= set(within) - GONE
        assert not wanted or recall(found, wanted) >= least - 0.1


def test_many_that_are_all_far_away_are_compared_each(index):
    query = QUERIES[0]
    furthest = np.array(sorted(list(expected(query))[-2500:]), dtype=np.int64)

    found = index.search(query, limit=4, within=furthest)
    assert list(found) == list(expected(query, limit=4, within=set(furthest.tolist())))


def test_when_nearly_all_are_gone_it_finds_the_others(index):
    left = index.without(set(range(1, 6001)) - {17, 5999})

    assert left.search(VECTORS[16], limit=4).keys() == {17, 5999}
    assert len(left) == 2


def test_what_has_changed_since_is_counted(index):
    assert index.changed == 1000 + 101  # of those gone, 101 are in the graph


def test_a_query_without_content_is_answered(index):
    found = index.search(np.zeros(16, dtype=np.float32), limit=4)

    assert set(found.values()) == {0}


def test_it_takes_less_memory_than_the_vectors(truth, flat, tmp_path):
    wide = Named(dimensions=256)
    numbers = np.arange(1, 2001)
    vectors = clustered(2000, dimensions=256)
    hnsw.write(tmp_path, wide, position=2000, vectors=[(numbers, vectors)], went_on=lambda _: True)

    index = Approximate.of(truth, wide, hnsw.Graph.load(tmp_path, wide))
    assert index.nbytes < vectors.nbytes / 2
