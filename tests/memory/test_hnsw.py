"""The graph of a large store: its file, and what it finds together with what came later."""

import fcntl

import numpy as np
import pytest
from plain_vectors import Named, add, clustered, naive
from stored import failing, files_up_to

from harness.errors import MemoryStoreFailed
from harness.memory import hnsw
from harness.memory.primary import PrimaryStore
from harness.memory.vector_index import Approximate

FLAT, OTHER = Named(dimensions=16), Named("other", dimensions=16)
VECTORS = clustered(1500)
QUERIES = clustered(8, seed=2)


def write(directory, embedder=FLAT, *, position=1500, vectors=VECTORS, went_on=lambda _: True):
    numbered = (np.arange(1, len(vectors) + 1), vectors)
    return hnsw.write(directory, embedder, position=position, vectors=[numbered], went_on=went_on)


def graph_file(directory):
    (path,) = directory.glob("*.hnsw")
    return path


# --- its file ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The content of a graph's file, and its name."""
    directory = tmp_path_factory.mktemp("graph") / "vector"
    assert write(directory)
    return graph_file(directory)


def test_what_was_written_finds_nearly_all_of_the_nearest(written):
    graph = hnsw.Graph.load(written.parent, FLAT)
    right = sum(
        len(set(graph.nearest(query, 10).tolist()) & naive(VECTORS, query, limit=10).keys())
        for query in QUERIES
    )

    assert (graph.position, graph.count) == (1500, 1500)
    assert right >= 0.97 * 10 * len(QUERIES)
    assert graph.nearest(QUERIES[0], 0).tolist() == []


def flipped(file, place):
    return file[:place] + bytes([file[place] ^ 1]) + file[place + 1 :]


DAMAGE = {
    "cut by a byte": lambda file: file[:-1],
    "a bit of the header": lambda file: flipped(file, 30),
    "a bit of the graph": lambda file: flipped(file, 2000),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_one_is_not_opened(tmp_path, written, damage):
    (tmp_path / written.name).write_bytes(damage(written.read_bytes()))

    assert hnsw.Graph.load(tmp_path, FLAT) is None


def test_the_newest_that_is_whole_is_opened(tmp_path, written):
    older = tmp_path / written.name
    older.write_bytes(written.read_bytes())
    write(tmp_path, position=12_000, vectors=VECTORS[:9])
    newer = graph_file(tmp_path)  # the older is gone
    older.write_bytes(written.read_bytes())

    assert hnsw.Graph.load(tmp_path, FLAT).position == 12_000
    assert hnsw.newest(tmp_path, FLAT) == 12_000
    newer.write_bytes(b"")
    assert hnsw.Graph.load(tmp_path, FLAT).position == 1500


@pytest.mark.parametrize(
    "reader", [Named("round", 16), Named("flat", 3)], ids=["name", "dimensions"]
)
def test_that_of_another_embedder_is_not_opened(tmp_path, written, reader):
    # Not even under a name that says otherwise.
    write(tmp_path, reader, vectors=clustered(10, dimensions=reader.dimensions))
    graph_file(tmp_path).write_bytes(written.read_bytes())

    assert hnsw.Graph.load(tmp_path, reader) is None


def test_one_process_makes_one_at_a_time_and_clears_what_a_killed_one_left(tmp_path):
    (tmp_path / "0-1.unfinished").write_bytes(b"half")
    with (tmp_path / "lock").open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert not write(tmp_path, vectors=VECTORS[:9])

    assert write(tmp_path, vectors=VECTORS[:9])
    assert list(tmp_path.glob("*.unfinished")) == []


def test_one_that_is_ended_leaves_nothing(tmp_path):
    told = []

    assert not write(tmp_path, went_on=lambda done: told.append(done) or done < 1500)
    assert told == [1000, 1500]
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_the_others_can_be_forgotten(tmp_path):
    write(tmp_path, vectors=VECTORS[:9])
    write(tmp_path, OTHER, vectors=VECTORS[:9])

    hnsw.forget(tmp_path, but=OTHER)
    assert hnsw.Graph.load(tmp_path, FLAT) is None
    assert hnsw.Graph.load(tmp_path, OTHER) is not None
    hnsw.forget(tmp_path, but=None)
    assert hnsw.newest(tmp_path, OTHER) == 0
    (tmp_path / "a directory.hnsw").mkdir()
    with failing(MemoryStoreFailed, "memory.graph-not-deleted"):
        hnsw.forget(tmp_path, but=None)


def test_vectors_of_zeros_are_left_out(tmp_path):
    vectors = VECTORS[:500].copy()
    vectors[::2] = 0
    write(tmp_path, vectors=vectors)

    graph = hnsw.Graph.load(tmp_path, FLAT)
    assert graph.count == 250
    assert set(graph.nearest(VECTORS[1], 250) % 2) == {0}


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path):
    with files_up_to(1 << 16), failing(MemoryStoreFailed, "memory.graph-not-written"):
        write(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


# --- what it finds -----------------------------------------------------------------------------

MANY = clustered(3500)
GONE = set(range(2900, 3100))
COSINES = [naive(MANY, query) for query in QUERIES]


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """3,000 in the graph, 500 after it; 200 of both gone. Never changed itself."""
    directory = tmp_path_factory.mktemp("index")
    primary = PrimaryStore.open(directory)
    add(primary, MANY, FLAT)
    before = primary.vectors_between(FLAT, 0, 3000)
    hnsw.write(directory / "vector", FLAT, position=3000, vectors=[before], went_on=lambda _: True)
    graph = hnsw.Graph.load(directory / "vector", FLAT)
    whole = Approximate.of(primary, FLAT, graph).with_more(
        *primary.vectors_between(FLAT, 3000, 3500)
    )
    yield whole.without(GONE)
    primary.close()


def expected(query, *, limit=None, within=None):
    """Of the query of this number."""
    allowed = {
        number: cosine
        for number, cosine in COSINES[query].items()
        if number not in GONE and (within is None or number in within)
    }
    return dict(list(allowed.items())[:limit])


def recall(found, wanted):
    return len(found.keys() & wanted.keys()) / max(1, len(wanted))


def test_it_finds_nearly_all_that_an_exact_search_finds_with_the_same_scores(index):
    assert len(index) == 3300
    assert index.changed == 500 + 101  # of those gone, 101 are in the graph
    recalls = []
    for number, query in enumerate(QUERIES):
        found = index.search(query, limit=100)
        exact = expected(number)
        assert len(found) == 100
        assert found == {n: pytest.approx(exact[n], abs=1e-6) for n in found}
        assert list(found.values()) == sorted(found.values(), reverse=True)
        recalls.append(recall(found, expected(number, limit=100)))
    assert np.mean(recalls) > 0.97


def test_those_that_are_asked_for_are_scored_wherever_they_stand(index):
    exact = expected(0)
    including = [*list(exact)[-20:], 2950, 7000]  # the last two are not there

    found = index.search(QUERIES[0], limit=3, including=including)
    assert set(found) == {*list(exact)[:3], *including[:20]}
    assert [found[n] for n in including[:20]] == pytest.approx([exact[n] for n in including[:20]])


WITHIN = {
    "few: compared each": (range(1, 3501, 100), 1),
    "many: proposed": ([*range(1, 2800), 3400], 0.9),
    "only after the graph": (range(3001, 3501), 1),
    "none": ([], 0),
}


@pytest.mark.parametrize(("within", "least"), WITHIN.values(), ids=WITHIN)
def test_a_filter_leaves_the_best_of_those_that_satisfy_it(index, within, least):
    for number, query in enumerate(QUERIES):
        wanted = expected(number, limit=50, within=set(within))
        found = index.search(query, limit=50, within=np.array(within, dtype=np.int64))
        assert len(found) == len(wanted)
        assert found.keys() <= set(within) - GONE
        assert recall(found, wanted) >= least


def test_many_that_are_all_far_away_are_compared_each(index):
    furthest = np.array(sorted(list(expected(0))[-2800:]), dtype=np.int64)

    found = index.search(QUERIES[0], limit=4, within=furthest)
    assert list(found) == list(expected(0, limit=4, within=set(furthest.tolist())))


def test_when_nearly_all_are_gone_it_finds_the_others(index):
    left = index.without(set(range(1, 3501)) - {17, 3499})

    assert left.search(MANY[16], limit=4).keys() == {17, 3499}
    assert len(left) == 2
