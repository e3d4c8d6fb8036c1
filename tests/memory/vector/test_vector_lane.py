import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import numpy as np
import pytest
from plain_vectors import Named, add, clustered, naive, unit

from harness.errors import InvalidInput, MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.truth import Truth
from harness.memory.vector import VectorLane

X, Y, Z = unit([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
NEVER = Event()


@pytest.fixture
def open_lane(truth, tmp_path):
    opened = []

    def open_(embedder, *, exact_up_to=1000, of=truth):
        lane = VectorLane(of, embedder, directory=tmp_path / "vector", exact_up_to=exact_up_to)
        lane.catch_up()
        opened.append(lane)
        return lane

    yield open_
    for lane in opened:
        lane.close()


def nearest(lane, query, *, limit=1):
    found = lane.search(query, limit=limit)
    return None if found is None else list(found)


# --- reading the truth -----------------------------------------------------------------------


def test_it_catches_up_from_where_it_was(truth, flat, open_lane):
    add(truth, [X], flat)
    lane = open_lane(flat)
    add(truth, [Y, Z], flat)
    assert nearest(lane, Y) == [1]
    lane.catch_up()
    lane.catch_up()

    assert len(lane) == 3
    assert lane.search(Y, limit=1) == {2: 1.0}


class Compacting(Truth):
    """Another process compacts just before it is said what was removed."""

    def removed_between(self, low, high):
        self.compact(Named())
        return super().removed_between(low, high)


def test_what_a_compaction_forgets_meanwhile_is_not_found(tmp_path, flat, open_lane):
    truth = Compacting.open(tmp_path / "compacting")
    add(truth, [X, Y, Z], flat)
    lane = open_lane(flat, of=truth)
    truth.delete(["p2"])
    lane.catch_up()

    assert len(lane) == 2
    assert 2 not in lane.search(Y, limit=3)
    truth.close()


def test_what_is_deleted_or_changed_is_not_found_as_it_was(truth, flat, open_lane):
    add(truth, [X, Y, Z], flat)
    lane = open_lane(flat)

    truth.delete(["p1"])
    truth.update(Passage(text="another", id="p2"), Z, flat)
    lane.catch_up()
    last = truth.last_sequence()
    assert lane.search(X, limit=9).keys() == {3, last}
    assert lane.search(X, limit=9, including=[1, 2, 3]).keys() == {3, last}
    assert nearest(lane, Z, limit=2) == [3, last]


@pytest.mark.parametrize("exact_up_to", [1000, 3], ids=["exact", "graph"])
def test_after_a_compaction_it_begins_again(truth, flat, open_lane, exact_up_to):
    add(truth, clustered(50, dimensions=3), flat)
    lane = open_lane(flat, exact_up_to=exact_up_to)
    lane.build_index(stop=NEVER)

    truth.delete([f"p{number}" for number in range(1, 11)])
    truth.compact(flat)
    lane.catch_up()
    assert nearest(lane, X, limit=99) == nearest(open_lane(flat), X, limit=99)
    assert len(lane) == 40


def test_an_empty_one_finds_nothing_and_is_there(flat, open_lane):
    lane = open_lane(flat)

    assert lane.unavailable is None
    assert lane.search(X, limit=4) == {}


def test_before_it_has_read_anything_it_says_so(truth, flat, tmp_path):
    lane = VectorLane(truth, flat, directory=tmp_path / "vector")

    assert lane.unavailable == "its vectors are not read yet"
    assert lane.search(X, limit=1) is None


def test_a_filter_holds(truth, flat, open_lane):
    add(truth, [X, Y, Z, X], flat)

    found = open_lane(flat).search(X, limit=4, within=np.array([2, 4]))
    assert found == {4: 1.0, 2: 0.0}


def test_an_unknown_device_is_refused_with_the_known_ones(truth, flat, tmp_path):
    with pytest.raises(InvalidInput, match="no device 'cud'; did you mean 'cuda'"):
        VectorLane(truth, flat, directory=tmp_path, device="cud")


# --- passages without a vector ---------------------------------------------------------------


def test_a_changed_embedder_embeds_anew_and_is_away_meanwhile(truth, flat, open_lane):
    add(truth, [X, Y, Z], flat)
    other = Named("other")
    lane = open_lane(other)
    assert lane.unavailable == "3 passages are still to be embedded"
    assert lane.search(X, limit=1) is None

    done = []
    lane.embed_missing(stop=NEVER, batch=2, progress=lambda *told: done.append(told))
    assert (lane.unavailable, lane.missing) == (None, 0)
    assert nearest(lane, Y) == [2]
    assert done == [("embedding passages", 2, 3), ("embedding passages", 3, 3)]
    assert nearest(open_lane(flat), Y) == [2]  # the first one's vectors are still there


def test_what_is_stopped_goes_on_where_it_was(truth, flat, open_lane):
    add(truth, [X, Y, Z], flat)
    lane = open_lane(Named("other"))
    stop = Event()

    lane.embed_missing(stop=stop, batch=1, progress=lambda *_: stop.set())
    assert lane.unavailable == "2 passages are still to be embedded"
    again = []
    lane.embed_missing(stop=NEVER, progress=lambda *told: again.append(told))
    assert again == [("embedding passages", 2, 2)]
    assert lane.unavailable is None


def test_what_another_process_embeds_is_noticed(truth, flat, open_lane):
    add(truth, [X, Y, Z], flat)
    other = Named("other")
    lane, theirs = open_lane(other), open_lane(other)

    theirs.embed_missing(stop=NEVER)
    lane.catch_up()
    assert nearest(lane, Z) == [3]


def test_one_that_comes_without_a_vector_takes_a_ready_lane_away(truth, flat, open_lane):
    add(truth, [X, Y], flat)
    lane = open_lane(flat)
    truth.add([(Passage(text="3 0 0 1"), None)], embedder=None)
    lane.catch_up()
    assert lane.unavailable == "1 passage is still to be embedded"

    lane.embed_missing(stop=NEVER)
    assert nearest(lane, Z) == [3]


def test_where_nothing_can_be_written_it_says_that_it_stays_away(truth, flat, open_lane):
    add(truth, [X], flat)
    reader = Truth.open(truth.directory, read_only=True)
    lane = open_lane(Named("other"), of=reader)

    assert lane.unavailable == (
        "1 passage is still to be embedded, and nothing can be written here"
    )
    with pytest.raises(MemoryStoreFailed):
        lane.embed_missing(stop=NEVER)
    reader.close()


# --- a large store ---------------------------------------------------------------------------

MANY = clustered(3000)


@pytest.fixture
def wide():
    return Named("wide", dimensions=16)


@pytest.fixture
def large(truth, wide, open_lane):
    add(truth, MANY, wide)
    lane = open_lane(wide)
    assert lane.wants_index
    lane.build_index(stop=NEVER)
    return lane


def test_a_large_one_has_a_graph_and_finds_the_same(truth, wide, open_lane, large):
    exact = open_lane(wide, exact_up_to=10_000)
    assert (exact.kind, large.kind, large.wants_index) == ("exact", "hnsw", False)

    for query in clustered(10, seed=2):
        ours, theirs = large.search(query, limit=20), exact.search(query, limit=20)
        both = ours.keys() & theirs.keys()
        assert len(both) >= 19
        assert {number: ours[number] for number in both} == {n: theirs[n] for n in both}


def test_what_comes_and_goes_after_the_graph_was_made_is_seen(truth, wide, large):
    truth.delete(["p1"])
    (new,) = add(truth, MANY[:1], wide)
    large.catch_up()

    assert large.kind == "hnsw"
    assert nearest(large, MANY[0]) == [new]
    assert large.search(MANY[0], limit=5, including=[1, new]).keys() >= {new}
    assert 1 not in large.search(MANY[0], limit=3000, including=[1])


def test_it_opens_by_the_graph_that_is_there(truth, wide, large, open_lane):
    add(truth, MANY[:7], wide)

    again = open_lane(wide)
    assert again.kind == "hnsw"
    assert len(again) == 3007


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("harm", ["deleted", "damaged"])
def test_without_its_graph_it_searches_each_and_makes_it_again(wide, open_lane, tmp_path, harm):
    (path,) = (tmp_path / "vector").glob("*.hnsw")
    if harm == "deleted":
        shutil.rmtree(tmp_path / "vector")
    else:
        os.truncate(path, 5000)

    again = open_lane(wide)
    assert (again.kind, again.unavailable) == ("exact", None)
    again.build_index(stop=NEVER)
    assert again.kind == "hnsw"


def test_a_graph_ahead_of_the_truth_is_not_used(truth, wide, large, tmp_path, open_lane):
    (path,) = (tmp_path / "vector").glob("*.hnsw")
    other = Truth.open(tmp_path / "restored")
    add(other, MANY[:2000], wide)

    assert path.exists()
    assert open_lane(wide, of=other).kind == "exact"
    other.close()


def test_it_is_made_again_when_much_has_changed(truth, wide, large):
    add(truth, clustered(601, seed=5), wide)
    large.catch_up()
    assert large.wants_index

    told = []
    large.build_index(stop=NEVER, progress=lambda *one: told.append(one))
    assert not large.wants_index
    assert told[-1] == ("indexing vectors", 3601, 3601)


def test_one_that_is_stopped_goes_on_as_it_was(truth, wide, open_lane):
    add(truth, MANY, wide)
    lane = open_lane(wide)
    stop = Event()

    lane.build_index(stop=stop, progress=lambda *_: stop.set())
    assert (lane.kind, lane.wants_index) == ("exact", True)


def test_a_graph_that_another_process_made_is_taken(truth, wide, large, open_lane, tmp_path):
    exact = open_lane(wide, exact_up_to=5000)
    add(truth, clustered(2500, seed=3), wide)
    large.build_index(stop=NEVER)
    (path,) = (tmp_path / "vector").glob("*.hnsw")
    made_ns = path.stat().st_mtime_ns

    exact.build_index(stop=NEVER)
    assert exact.kind == "hnsw"
    assert path.stat().st_mtime_ns == made_ns


def test_passages_written_while_the_graph_is_made_are_not_lost(truth, wide, open_lane):
    add(truth, MANY, wide)
    lane = open_lane(wide)

    def write(what, done, total):
        if done == 2000:
            truth.delete(["p1", "p2999"])
            add(truth, MANY[:1], wide)
            lane.catch_up()

    lane.build_index(stop=NEVER, progress=write)
    assert lane.kind == "hnsw"
    assert nearest(lane, MANY[0]) == [truth.last_sequence()]
    assert nearest(lane, MANY[2998]) != [2999]


def test_vectors_that_another_embedders_compaction_took_are_missed_and_made(
    truth, large, wide, tmp_path
):
    other = Truth.open(truth.directory)
    other.compact(Named("other"))
    other.close()

    assert large.search(MANY[0], limit=4) is None
    assert large.unavailable == "3,000 passages are still to be embedded"
    large.embed_missing(stop=NEVER)
    assert nearest(large, MANY[0]) == [1]


def test_rebuilding_reads_and_makes_everything_again(wide, large, tmp_path):
    (path,) = (tmp_path / "vector").glob("*.hnsw")
    before_ns = path.stat().st_mtime_ns
    expected = large.search(MANY[0], limit=50)

    large.rebuild()
    assert large.search(MANY[0], limit=50) == expected
    assert path.stat().st_mtime_ns > before_ns


# --- giving way ------------------------------------------------------------------------------


def test_evicted_it_takes_nothing_and_says_why(truth, flat, open_lane):
    add(truth, [X, Y], flat)
    lane = open_lane(flat)
    taken = lane.resident_bytes
    assert taken >= 2 * 3 * 4

    lane.evict("room for a model")
    assert (lane.resident_bytes, lane.needed_bytes) == (0, taken)
    assert lane.unavailable == "evicted: room for a model"
    assert lane.search(X, limit=1) is None
    lane.catch_up()
    assert lane.resident_bytes == 0

    lane.restore()
    assert (lane.resident_bytes, lane.unavailable) == (taken, None)
    assert nearest(lane, Y) == [2]


def test_what_it_needs_grows_while_it_is_away(truth, wide, open_lane):
    add(truth, MANY[:10], wide)
    lane = open_lane(wide)
    lane.evict("room for a model")
    before = lane.needed_bytes

    add(truth, MANY[:500], wide)
    lane.catch_up()
    assert lane.needed_bytes >= before + 500 * 16 * 4
    lane.restore()
    assert len(lane) == 510


def test_one_that_cannot_come_back_stays_away(truth, flat, open_lane):
    add(truth, [X], flat)
    lane = open_lane(flat)
    lane.evict("room for a model")
    truth.close()

    with pytest.raises(MemoryStoreFailed):
        lane.restore()
    assert lane.unavailable == "evicted: room for a model"
    assert lane.resident_bytes == 0


def test_evicting_waits_neither_for_a_search_nor_for_reading(truth, flat, tmp_path):
    """A truth that stops in the middle of being read, until the lane is evicted."""
    add(truth, [X, Y], flat)
    reading, evicted = Barrier(2, timeout=30), Event()

    class Slow:
        directory, read_only = truth.directory, False

        def __getattr__(self, name):
            return getattr(truth, name)

        def __len__(self):
            return len(truth)

        def vectors_between(self, *arguments):
            reading.wait()
            assert evicted.wait(30)
            return truth.vectors_between(*arguments)

    lane = VectorLane(Slow(), flat, directory=tmp_path / "vector")
    thread = Thread(target=lane.catch_up)
    thread.start()
    reading.wait()
    lane.evict("room for a model")
    lane.catch_up()  # as a search does: it does not wait for the other to read
    evicted.set()
    thread.join()

    assert lane.resident_bytes == 0
    assert lane.unavailable == "evicted: room for a model"


def test_evicted_again_while_it_comes_back_it_stays_away(truth, flat, tmp_path):
    add(truth, [X, Y], flat)
    reads = []

    class Watched:
        directory, read_only = truth.directory, False

        def __getattr__(self, name):
            return getattr(truth, name)

        def __len__(self):
            return len(truth)

        def vectors_between(self, *arguments):
            reads.append(arguments)
            if len(reads) == 2:
                lane.evict("another model")
            return truth.vectors_between(*arguments)

    lane = VectorLane(Watched(), flat, directory=tmp_path / "vector")
    lane.catch_up()
    lane.evict("a model")
    lane.restore()

    assert lane.unavailable == "evicted: another model"
    assert lane.resident_bytes == 0
    lane.restore()
    assert nearest(lane, Y) == [2]


def test_a_graph_is_given_back_too_and_ends_when_it_is_being_made(truth, wide, large, open_lane):
    large.evict("room for a model")
    assert large.resident_bytes == 0
    large.restore()
    assert large.kind == "hnsw"

    add(truth, clustered(700, seed=3), wide)
    large.build_index(stop=NEVER, progress=lambda *_: large.evict("room for a model"))
    assert large.unavailable == "evicted: room for a model"
    large.restore()
    assert large.wants_index


@pytest.mark.parametrize("exact_up_to", [10_000, 1000], ids=["exact", "graph"])
def test_searches_go_on_while_it_is_written_to_and_goes_and_comes_back(
    truth, wide, open_lane, exact_up_to
):
    add(truth, MANY, wide)
    lane = open_lane(wide, exact_up_to=exact_up_to)
    lane.build_index(stop=NEVER)
    best = {number: naive(MANY, MANY[number], limit=1) for number in range(50, 60)}
    done = Event()

    def search():
        answered = 0
        while not done.is_set() or not answered:
            for number, first in best.items():
                lane.catch_up()
                found = lane.search(MANY[number], limit=3, including=[7])
                if found is not None:
                    answered += 1
                    assert next(iter(found)) == next(iter(first))
        return answered

    with ThreadPoolExecutor(6) as threads:
        searching = [threads.submit(search) for _ in range(4)]
        try:
            for turn in range(20):
                new = add(truth, -MANY[turn : turn + 5], wide)
                truth.delete([f"p{new[0]}"])
                lane.evict("room for a model")
                lane.restore()
        finally:
            done.set()
        assert all(one.result() > 0 for one in searching)
    lane.catch_up()
    assert len(lane) == 3000 + 20 * 4
