import sys

import numpy as np
import pytest
from plain_vectors import clustered

from harness.errors import InvalidInput
from harness.memory.vector import VectorLane
from harness.memory.vector.matrix import Matrix, NumpyBlock
from harness.memory.vector.torch_matrix import TorchBlock


def test_without_torch_the_remedy_is_said(truth, flat, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed

    with pytest.raises(InvalidInput, match=r"'cuda' needs torch, .* pip install torch, or leave"):
        VectorLane(truth, flat, directory=tmp_path, device="cuda")


def test_without_a_gpu_that_is_said(truth, flat, tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")

    with pytest.raises(InvalidInput, match="torch sees no GPU here"):
        VectorLane(truth, flat, directory=tmp_path, device="cuda")


def test_it_finds_what_numpy_finds():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    vectors = clustered(4000, dimensions=256)
    none = np.empty((0, 256), dtype=np.float32)
    blocks = [NumpyBlock(none, 0), TorchBlock.of(none, device=device)]
    numpy_one, torch_one = (
        grown(Matrix.of(np.empty(0, dtype=np.int64), b), vectors) for b in blocks
    )

    for query in clustered(20, dimensions=256, seed=2):
        for within in (None, np.arange(3, 4000, 7)):
            ours = numpy_one.search(query, limit=50, including=[1, 2, 3, 3999], within=within)
            theirs = torch_one.search(query, limit=50, including=[1, 2, 3, 3999], within=within)
            assert ours.keys() == theirs.keys()
            assert theirs == {number: pytest.approx(ours[number], abs=1e-6) for number in ours}
    assert torch_one.nbytes == numpy_one.nbytes


def grown(matrix, vectors):
    """In parts, with a quarter gone: enough for a copy without them, and then some."""
    for start in range(0, 4000, 500):
        numbers = np.arange(start + 1, start + 501)
        matrix = matrix.with_more(numbers, vectors[start : start + 500])
    return matrix.without(range(100, 1300)).without(range(2000, 2100))
