"""The vector index: it follows the primary, makes its graph, and gives way to models."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import numpy as np
import pytest
from plain_vectors import Named, add, clustered, naive, unit

from harness.errors import MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.primary import PrimaryStore
from harness.memory.vector_index import VectorIndex

X, Y, Z = unit([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
NEVER = Event()
FLAT, OTHER, WIDE = Named(), Named("other"), Named("wide", dimensions=16)


@pytest.fixture
def open_index(primary, tmp_path):
    opened = []

    def open_(embedder=FLAT, *, exact_up_to=1000, of=primary):
        index = VectorIndex(of, embedder, directory=tmp_path / "vector", exact_up_to=exact_up_to)
        index.catch_up()
        opened.append(index)
        return index

    yield open_
    for index in opened:
        index.close()


def nearest(index, query, *, limit=1):
    found = index.search(query, limit=limit)
    return None if found is None else list(found)


# --- reading the primary -----------------------------------------------------------------------


def test_it_catches_up_from_where_it_was(primary, open_index, tmp_path):
    unread = VectorIndex(primary, FLAT, directory=tmp_path / "vector")
    assert (unread.unavailable, unread.search(X, limit=1)) == ("its vectors are not read yet", None)
    index = open_index()
    assert (index.unavailable, index.search(X, limit=4)) == (None, {})
    add(primary, [X], FLAT)
    index.catch_up()
    add(primary, [Y, Z, X], FLAT)
    assert nearest(index, Y) == [1]
    index.catch_up()
    index.catch_up()

    assert len(index) == 4
    assert index.search(Y, limit=1) == {2: 1.0}
    assert index.search(X, limit=4, within=np.array([2, 4])) == {4: 1.0, 2: 0.0}


class Compacting(PrimaryStore):
    """Another process compacts just before it is said what was removed."""

    def removed_between(self, low, high):
        self.compact(FLAT)
        return super().removed_between(low, high)


def test_what_a_compaction_forgets_meanwhile_is_not_found(tmp_path, open_index):
    primary = Compacting.open(tmp_path / "compacting")
    add(primary, [X, Y, Z], FLAT)
    index = open_index(of=primary)
    primary.delete(["p2"])
    index.catch_up()

    assert len(index) == 2
    assert 2 not in index.search(Y, limit=3)
    primary.close()


def test_what_is_deleted_or_changed_is_not_found_as_it_was(primary, open_index):
    add(primary, [X, Y, Z], FLAT)
    index = open_index()

    primary.delete(["p1"])
    primary.update(Passage(text="another", id="p2"), Z, FLAT)
    index.catch_up()
    last = primary.last_sequence()
    assert index.search(X, limit=9).keys() == {3, last}
    assert index.search(X, limit=9, including=[1, 2, 3]).keys() == {3, last}
    assert nearest(index, Z, limit=2) == [3, last]


@pytest.mark.parametrize("exact_up_to", [1000, 3], ids=["exact", "graph"])
def test_after_a_compaction_it_begins_again(primary, open_index, exact_up_to):
    add(primary, clustered(50, dimensions=3), FLAT)
    index = open_index(exact_up_to=exact_up_to)
    index.build_graph(stop=NEVER)

    primary.delete([f"p{number}" for number in range(1, 11)])
    primary.compact(FLAT)
    index.catch_up()
    assert nearest(index, X, limit=99) == nearest(open_index(), X, limit=99)
    assert len(index) == 40


# --- passages without a vector ---------------------------------------------------------------


def test_a_changed_embedder_embeds_anew_and_is_away_meanwhile(primary, open_index):
    add(primary, [X, Y, Z], FLAT)
    index, theirs = open_index(OTHER), open_index(OTHER)
    assert index.unavailable == "3 passages are still to be embedded"
    assert index.search(X, limit=1) is None

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


def test_where_nothing_can_be_written_it_says_that_it_stays_away(primary, open_index):
    add(primary, [X], FLAT)
    reader = PrimaryStore.open(primary.directory, read_only=True)
    index = open_index(OTHER, of=reader)

    assert "nothing can be written here" in index.unavailable
    with pytest.raises(MemoryStoreFailed):
        index.embed_missing(stop=NEVER)
    reader.close()


# --- a large store ---------------------------------------------------------------------------

MANY = clustered(1200)


@pytest.fixture(scope="module")
def large_store(tmp_path_factory):
    """The directory of one that has its graph."""
    directory = tmp_path_factory.mktemp("many")
    primary = PrimaryStore.open(directory)
    add(primary, MANY, WIDE)
    index = VectorIndex(primary, WIDE, directory=directory / "vector", exact_up_to=1000)
    index.catch_up()
    assert index.wants_graph
    index.build_graph(stop=NEVER)
    primary.close()
    return directory


@pytest.fixture
def primary(request, tmp_path):
    """Empty; the copy of a large one, for tests of the index `large`."""
    if "large" in request.fixturenames:
        shutil.copytree(request.getfixturevalue("large_store"), tmp_path, dirs_exist_ok=True)
    opened = PrimaryStore.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def large(primary, open_index):
    index = open_index(WIDE)
    assert index.kind == "hnsw"
    return index


def graph_made_ns(tmp_path):
    (path,) = (tmp_path / "vector").glob("*.hnsw")
    return path.stat().st_mtime_ns


def test_what_comes_and_goes_after_the_graph_was_made_is_seen(primary, large, open_index):
    primary.delete(["p1"])
    (new,) = add(primary, MANY[:1], WIDE)
    large.catch_up()

    for index in (large, open_index(WIDE)):
        assert (index.kind, len(index)) == ("hnsw", 1200)
        assert nearest(index, MANY[0]) == [new]
        assert index.search(MANY[0], limit=5, including=[1, new]).keys() >= {new}
        assert 1 not in index.search(MANY[0], limit=1200, including=[1])


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_without_its_graph_it_searches_each_and_makes_it_again(open_index, tmp_path, harm):
    (path,) = (tmp_path / "vector").glob("*.hnsw")
    if harm == "deleted":
        shutil.rmtree(tmp_path / "vector")
    else:
        path.write_bytes(path.read_bytes()[:5000])

    again = open_index(WIDE)
    assert (again.kind, again.unavailable) == ("exact", None)
    stop = Event()
    again.build_graph(stop=stop, progress=lambda *_: stop.set())
    assert (again.kind, again.wants_graph) == ("exact", True)
    again.build_graph(stop=NEVER)
    assert again.kind == "hnsw"


@pytest.mark.usefixtures("large")
def test_a_graph_ahead_of_the_primary_store_is_not_used(tmp_path, open_index):
    other = PrimaryStore.open(tmp_path / "restored")
    add(other, MANY[:1100], WIDE)

    assert open_index(WIDE, of=other).kind == "exact"
    other.close()


def test_it_is_made_again_when_much_has_changed_and_another_takes_it(
    primary, large, open_index, tmp_path
):
    exact = open_index(WIDE, exact_up_to=1300)
    add(primary, clustered(250, seed=5), WIDE)
    large.catch_up()
    assert large.wants_graph

    told = []
    large.build_graph(stop=NEVER, progress=lambda *one: told.append(one))
    assert not large.wants_graph
    assert told[-1] == ("indexing vectors", 1450, 1450)
    made_ns = graph_made_ns(tmp_path)
    exact.catch_up()
    exact.build_graph(stop=NEVER)
    assert (exact.kind, graph_made_ns(tmp_path)) == ("hnsw", made_ns)


def test_passages_written_while_the_graph_is_made_are_not_lost(primary, open_index):
    add(primary, MANY, WIDE)
    index = open_index(WIDE)

    def write(what, done, total):
        if done == 1000:
            primary.delete(["p1", "p1199"])
            add(primary, MANY[:1], WIDE)
            index.catch_up()

    index.build_graph(stop=NEVER, progress=write)
    assert index.kind == "hnsw"
    assert nearest(index, MANY[0]) == [primary.last_sequence()]
    assert nearest(index, MANY[1198]) != [1199]


def test_vectors_that_another_embedders_compaction_took_are_missed_and_made(primary, large):
    other = PrimaryStore.open(primary.directory)
    other.compact(OTHER)
    other.close()

    assert large.search(MANY[0], limit=4) is None
    assert large.unavailable == "1,200 passages are still to be embedded"
    large.embed_missing(stop=NEVER)
    assert nearest(large, MANY[0]) == [1]


# --- closing ---------------------------------------------------------------------------------


def test_closing_waits_neither_for_a_search_nor_for_reading(primary, tmp_path):
    add(primary, [X, Y], FLAT)
    reading, closed = Barrier(2, timeout=30), Event()

    class Slow(PrimaryStore):
        def vectors_between(self, *arguments):
            reading.wait()
            assert closed.wait(30)
            return super().vectors_between(*arguments)

    slow = Slow.open(tmp_path)
    index = VectorIndex(slow, FLAT, directory=tmp_path / "vector")
    thread = Thread(target=index.catch_up)
    thread.start()
    reading.wait()
    index.close()
    closed.set()
    thread.join()

    assert (index.unavailable, index.resident_bytes) == ("it is closed", 0)
    slow.close()


def test_a_graph_that_is_being_made_ends_when_the_index_is_closed(primary, large):
    add(primary, clustered(700, seed=3), WIDE)
    large.build_graph(stop=NEVER, progress=lambda *_: large.close())
    assert (large.unavailable, large.resident_bytes) == ("it is closed", 0)


@pytest.mark.slow
@pytest.mark.parametrize("exact_up_to", [10_000, 1000], ids=["exact", "graph"])
def test_searches_go_on_while_it_is_written_to(primary, open_index, exact_up_to):
    add(primary, MANY, WIDE)
    index = open_index(WIDE, exact_up_to=exact_up_to)
    index.build_graph(stop=NEVER)
    best = {number: naive(MANY, MANY[number], limit=1) for number in range(50, 60)}
    done = Event()

    def search():
        answered = 0
        while not done.is_set() or not answered:
            for number, first in best.items():
                index.catch_up()
                found = index.search(MANY[number], limit=3, including=[7])
                if found is not None:
                    answered += 1
                    assert next(iter(found)) == next(iter(first))
        return answered

    with ThreadPoolExecutor(6) as threads:
        searching = [threads.submit(search) for _ in range(4)]
        try:
            for turn in range(20):
                new = add(primary, -MANY[turn : turn + 5], WIDE)
                primary.delete([f"p{new[0]}"])
        finally:
            done.set()
        assert all(one.result() > 0 for one in searching)
    index.catch_up()
    assert len(index) == 1200 + 20 * 4
