import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import MemoryStoreFailed
from harness.memory.passage import Passage
from harness.memory.truth import Truth
from harness.memory.vector import VectorLane


class Named:
    """An embedder in name only: these lanes read vectors that are there."""

    def __init__(self, name="flat", dimensions=3):
        self.name = name
        self.dimensions = dimensions

    def embed(self, texts):
        raise NotImplementedError


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def add(truth, vectors, embedder="flat"):
    first = truth.last_sequence()
    truth.add(
        [(Passage(text=f"{first + i}"), v.tobytes()) for i, v in enumerate(vectors)],
        embedder=embedder,
    )


@pytest.fixture
def truth(tmp_path):
    opened = Truth(tmp_path)
    yield opened
    opened.close()


@settings(deadline=None)  # it reads a disk
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 30),
    limit=st.integers(1, 40),
    data=st.data(),
)
def test_it_finds_what_a_full_sort_finds(tmp_path_factory, seed, n, limit, data):
    # Small integers, so that equal cosines do occur, and opposite ones.
    random = np.random.default_rng(seed)
    vectors = unit(random.integers(-2, 3, (n, 3)) + np.array([0, 0, 0.5]))
    including = data.draw(st.sets(st.integers(1, n)))
    directory = tmp_path_factory.mktemp("vectors")
    truth = Truth(directory)
    add(truth, vectors)
    lane = VectorLane(Named())
    lane.catch_up(truth)
    truth.close()

    query = unit([1, 2, 3])
    found = lane.search(query, limit=limit, including=including)

    cosines = dict(enumerate((vectors * query).sum(axis=1).tolist(), start=1))
    assert found == {sequence: pytest.approx(cosines[sequence], abs=1e-6) for sequence in found}
    assert list(found.values()) == sorted(found.values(), reverse=True)
    worst = sorted(cosines.values(), reverse=True)[:limit][-1]
    assert {n for n, cosine in cosines.items() if cosine > worst + 1e-6} <= set(found)
    assert {n for n in found if cosines[n] < worst - 1e-6} <= including <= set(found)
    assert len(found) <= limit + len(including)


def test_of_equals_the_older_comes_first(truth):
    add(truth, unit([[0, 1, 0], [1, 0, 0]] * 100))
    lane = VectorLane(Named())
    lane.catch_up(truth)

    found = list(lane.search(unit([1, 0, 0]), limit=200))
    assert found == [*range(2, 201, 2), *range(1, 201, 2)]


def test_it_catches_up_from_where_it_was(truth):
    add(truth, unit([[1, 0, 0]]))
    lane = VectorLane(Named())
    lane.catch_up(truth)
    add(truth, unit([[0, 1, 0], [0, 0, 1]]))
    lane.catch_up(truth)
    lane.catch_up(truth)

    assert len(lane) == 3
    assert lane.search(unit([0, 1, 0]), limit=1) == {2: 1.0}


def test_an_empty_lane_finds_nothing():
    assert VectorLane(Named()).search(unit([1, 0, 0]), limit=4) == {}


@pytest.mark.parametrize(
    "reader", [Named("round"), Named("flat", dimensions=4)], ids=["name", "dimensions"]
)
def test_vectors_of_another_embedder_are_not_compared(truth, reader):
    add(truth, unit([[1, 0, 0]]))

    with pytest.raises(MemoryStoreFailed, match=r"by 'flat' \(3 dimensions\), not by '"):
        VectorLane(reader).catch_up(truth)
