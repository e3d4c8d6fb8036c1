"""The vector lane: exact cosine search over a matrix in memory.

Exact, since that is quick enough: the best 100 of 50,000 x 256 take 1.7 ms on one core, where
usearch 2.26's exact search takes 5.8 ms (3.4 ms on two). An approximate index pays beyond some
hundred thousand passages; it would stand behind these same methods. The figures are those of
`tests/benchmarks/bench_vector_search.py`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from harness.errors import MemoryStoreFailed
from harness.memory.embedder import Embedder, Vectors
from harness.memory.truth import Truth


class VectorLane:
    """All vectors of one embedder, read from the truth."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._sequences = np.empty(0, dtype=np.int64)  # (n,), growing
        self._matrix = np.empty((0, embedder.dimensions), dtype=np.float32)  # (n, d)

    def catch_up(self, truth: Truth) -> None:
        """Read what the truth has beyond this lane's last sequence number.

        Raises `MemoryStoreFailed` when another embedder made the vectors.
        """
        last = int(self._sequences[-1]) if len(self) else 0
        rows = truth.vectors_after(last)
        if not rows:
            return
        mine = (self._embedder.name, self._embedder.dimensions)
        if others := {(name, len(vector) // 4) for _, name, vector in rows} - {mine}:
            raise MemoryStoreFailed(
                "its passages were embedded by '{}' ({} dimensions), not by '{}' ({}), and vectors "
                "of two embedders do not compare; open it with the first, or open another "
                "directory".format(*min(others), *mine),
                path=truth.directory,
            )
        numbers = np.frombuffer(b"".join(vector for _, _, vector in rows), dtype="<f4")
        vectors = numbers.reshape(len(rows), self._embedder.dimensions)
        self._sequences = np.append(self._sequences, [sequence for sequence, _, _ in rows])
        self._matrix = np.concatenate([self._matrix, vectors])

    def search(
        self, query: Vectors, *, limit: int, including: Collection[int] = ()
    ) -> dict[int, float]:
        """Sequence number to cosine of the best `limit` passages, best first.

        `query` is (d,) float32 of unit length. The passages in `including`, which this lane must
        hold, are scored too, wherever they stand.
        """
        if not len(self):
            return {}
        # Not `matrix @ query`: BLAS starts a thread per core, and when a model keeps the cores busy
        # these wait for each other, 10 to 35 ms instead of 0.7. This stays at 1.7 on one core.
        scores = np.einsum("ij,j->i", self._matrix, query)
        limit = min(limit, len(self))
        best = np.argpartition(-scores, limit - 1)[:limit]
        rows = np.union1d(best, np.searchsorted(self._sequences, list(including)))
        # Rows are in sequence's order and the sort is stable, so of equals the older comes first.
        rows = rows[np.argsort(-scores[rows], kind="stable")]
        return dict(zip(self._sequences[rows].tolist(), scores[rows].tolist(), strict=True))

    def __len__(self) -> int:
        return len(self._sequences)
