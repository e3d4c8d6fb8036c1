import fcntl

import numpy as np
import pytest
from plain_vectors import Named, clustered, naive

from harness.errors import MemoryStoreFailed
from harness.memory.vector import hnsw

VECTORS = clustered(3000)
OTHER = Named("other", dimensions=16)


@pytest.fixture
def flat():
    return Named(dimensions=16)


def write(directory, embedder, *, position=3000, vectors=VECTORS, went_on=lambda _: True):
    numbered = (np.arange(1, len(vectors) + 1), vectors)
    return hnsw.write(directory, embedder, position=position, vectors=[numbered], went_on=went_on)


def graph_file(directory):
    (path,) = directory.glob("*.hnsw")
    return path


def test_what_was_written_finds_nearly_all_of_the_nearest(tmp_path, flat):
    directory = tmp_path / "vector"
    assert write(directory, flat)

    graph = hnsw.Graph.load(directory, flat)
    queries = clustered(50, seed=2)
    right = sum(
        len(set(graph.nearest(query, 10).tolist()) & naive(VECTORS, query, limit=10).keys())
        for query in queries
    )
    assert (graph.position, graph.count) == (3000, 3000)
    assert right >= 0.97 * 10 * len(queries)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda file: file[:-1], id="cut by a byte"),
        pytest.param(lambda file: file[: len(file) // 2], id="half of it"),
        pytest.param(lambda _: b"", id="empty"),
        pytest.param(lambda file: bytes(len(file)), id="zeros"),
        pytest.param(lambda file: flipped(file, 30), id="a bit of the header"),
        pytest.param(lambda file: flipped(file, 2000), id="a bit of the graph"),
        pytest.param(lambda file: flipped(file, len(file) - 1), id="a bit of the checksum"),
        pytest.param(lambda file: file + b"\0", id="a byte more"),
    ],
)
def test_a_damaged_one_is_not_opened(tmp_path, flat, damage):
    write(tmp_path, flat)
    path = graph_file(tmp_path)

    path.write_bytes(damage(path.read_bytes()))
    assert hnsw.Graph.load(tmp_path, flat) is None


def flipped(file, place):
    return file[:place] + bytes([file[place] ^ 1]) + file[place + 1 :]


def test_the_newest_that_is_whole_is_opened(tmp_path, flat):
    write(tmp_path, flat, position=3000)
    older = graph_file(tmp_path)
    content = older.read_bytes()
    write(tmp_path, flat, position=12_000)
    assert graph_file(tmp_path) != older  # which is gone
    older.write_bytes(content)

    assert hnsw.Graph.load(tmp_path, flat).position == 12_000
    assert hnsw.newest(tmp_path, flat) == 12_000
    max(tmp_path.glob("*12000.hnsw")).write_bytes(b"")
    assert hnsw.Graph.load(tmp_path, flat).position == 3000


@pytest.mark.parametrize(
    "reader", [Named("round", 16), Named("flat", 3)], ids=["name", "dimensions"]
)
def test_that_of_another_embedder_is_not_opened(tmp_path, flat, reader):
    write(tmp_path, flat)
    # Not even under a name that says otherwise.
    write(tmp_path, reader, vectors=clustered(10, dimensions=reader.dimensions))
    theirs = next(path for path in tmp_path.glob("*.hnsw") if b'"flat"' in path.read_bytes()[:1024])
    ours = next(path for path in tmp_path.glob("*.hnsw") if path != theirs)
    theirs.replace(ours)

    assert hnsw.Graph.load(tmp_path, reader) is None


def test_one_that_other_settings_made_is_not_opened(tmp_path, flat, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(hnsw, "_CONNECTIVITY", 8)
        write(tmp_path, flat)

    assert hnsw.Graph.load(tmp_path, flat) is None


def test_only_one_process_makes_one_at_a_time(tmp_path, flat):
    with (tmp_path / "lock").open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        assert not write(tmp_path, flat)

    assert write(tmp_path, flat)


def test_one_that_is_ended_leaves_nothing(tmp_path, flat):
    told = []

    assert not write(tmp_path, flat, went_on=lambda done: told.append(done) or done < 2000)
    assert told == [1000, 2000]
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_what_a_killed_process_left_is_cleared(tmp_path, flat):
    (tmp_path / "0-1.unfinished").write_bytes(b"half")

    write(tmp_path, flat)
    assert list(tmp_path.glob("*.unfinished")) == []


def test_the_others_can_be_forgotten(tmp_path, flat):
    write(tmp_path, flat)
    write(tmp_path, OTHER)

    hnsw.forget(tmp_path, but=OTHER)
    assert hnsw.Graph.load(tmp_path, flat) is None
    assert hnsw.Graph.load(tmp_path, OTHER) is not None
    hnsw.forget(tmp_path, but=None)
    assert hnsw.newest(tmp_path, OTHER) == 0


def test_vectors_of_zeros_are_left_out(tmp_path, flat):
    vectors = VECTORS.copy()
    vectors[::2] = 0
    write(tmp_path, flat, vectors=vectors)

    graph = hnsw.Graph.load(tmp_path, flat)
    assert graph.count == 1500
    assert set(graph.nearest(VECTORS[1], 1500) % 2) == {0}


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, flat, full_disk):
    # A file may grow to 64 KiB here, which the graph does not fit into.
    with (
        full_disk(1 << 16),
        pytest.raises(MemoryStoreFailed, match="index cannot be written: File"),
    ):
        write(tmp_path, flat)

    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


@pytest.fixture
def full_disk():
    import resource
    import signal
    from contextlib import contextmanager

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)

    return limited


def test_where_a_file_stands_in_the_way_it_is_said(tmp_path, flat):
    (tmp_path / "vector").write_text("")

    with pytest.raises(MemoryStoreFailed, match=r"vector: the vectors' index cannot be written"):
        write(tmp_path / "vector", flat)
