"""Exact cosine search over vectors in memory. Nothing is changed once made: searches need no lock.

Exact, since that is quick enough: the best 100 of 50,000 x 256 take 1.7 ms on one core. The figures
are from `tests/benchmarks/bench_vector_search.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from harness.errors import InvalidInput
from harness.memory.embedder import Vectors

Rows = NDArray[np.int64]

# Dead rows are searched and left out. A copy without them is made when that costs too much.
_MOST_DEAD = 1000
_MOST_DEAD_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Vectors, by sequence number."""

    sequences: Rows
    """The numbers (n,), ascending."""
    block: NumpyBlock
    dead: Rows
    """Rows that are not to be found any more."""

    @classmethod
    def of(cls, sequences: Rows, block: NumpyBlock) -> Self:
        """All of them to be found."""
        return cls(sequences=sequences, block=block, dead=np.empty(0, dtype=np.int64))

    def with_room(self, count: int) -> Self:
        """The same with room for so many vectors, and some more."""
        return replace(self, block=self.block.with_room(_grown(count)))

    def with_more(self, sequences: Rows, vectors: Vectors) -> Self:
        """These too, whose numbers are all greater. Only the newest matrix may be extended."""
        if not len(sequences):
            return self
        return replace(
            self,
            sequences=np.concatenate([self.sequences, sequences]),
            block=self.block.extended(vectors),
        )

    def without(self, sequences: Iterable[int]) -> Self:
        """All but these, as far as they are here."""
        gone = _rows_of(self.sequences, sequences)
        if not len(gone):
            return self
        dead = np.union1d(self.dead, gone)
        if len(dead) <= max(_MOST_DEAD, _MOST_DEAD_SHARE * len(self.sequences)):
            return replace(self, dead=dead)
        alive = np.delete(np.arange(len(self.sequences)), dead)
        return type(self).of(self.sequences[alive], self.block.taken(alive))

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Rows | None = None,
    ) -> dict[int, float]:
        """Sequence number to cosine of the best `limit`, best first; of equals, the older first.

        Args:
            query: (d,) float32 of unit length.
            limit: At least 1.
            including: Numbers that are scored too, whatever their rank, as far as they are here.
            within: The numbers that may be found, ascending; all if None. Those in `including` are
                taken to be among them.
        """
        rows, scores = self._best(query, limit, within)
        extra = np.setdiff1d(self._alive(including), rows)
        rows = np.concatenate([rows, extra])
        scores = np.concatenate([scores, self.block.cosines(query, extra)])
        sequences = self.sequences[rows]
        order = np.lexsort((sequences, -scores))
        return dict(zip(sequences[order].tolist(), scores[order].tolist(), strict=True))

    def _best(self, query: Vectors, limit: int, within: Rows | None) -> tuple[Rows, Vectors]:
        if within is None:
            limit = min(limit, len(self))
            if not limit:
                return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
            return self.block.best(query, limit, dead=self.dead)
        rows = self._alive(within)
        scores = self.block.cosines(query, rows)
        if limit < len(rows):
            best = np.argpartition(-scores, limit - 1)[:limit]
            rows, scores = rows[best], scores[best]
        return rows, scores

    def _alive(self, sequences: Iterable[int]) -> Rows:
        return np.setdiff1d(_rows_of(self.sequences, sequences), self.dead, assume_unique=True)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.block.nbytes + self.sequences.nbytes + self.dead.nbytes

    def __len__(self) -> int:
        return len(self.sequences) - len(self.dead)


def _rows_of(known: Rows, sequences: Iterable[int]) -> Rows:
    """The rows of these numbers in `known`, which ascends; without those not there."""
    if isinstance(sequences, np.ndarray):
        wanted = np.unique(sequences)
    else:
        wanted = np.unique(np.fromiter(sequences, dtype=np.int64))
    rows = np.searchsorted(known, wanted)
    there = rows < len(known)
    there[there] = known[rows[there]] == wanted[there]
    return rows[there]


def cosines(vectors: Vectors, query: Vectors) -> Vectors:
    """Cosines of (n, d) vectors to a query (d,), all of unit length; independent of position.

    Not `vectors @ query`: BLAS starts a thread per core, and when a model keeps the cores busy
    these wait for each other, 10 to 35 ms instead of 0.7. This stays at 1.7 on one core.
    """
    scores: Vectors = np.vecdot(vectors, query)
    return scores


def _grown(count: int) -> int:
    """Room for that many rows and some to come."""
    return count + max(256, count // 4)


class NumpyBlock:
    """Vectors (n, d) in the machine's memory.

    Args:
        buffer: (capacity, d) float32, written to beyond the block's end as it is extended.
        count: n, how many rows are in use.
    """

    def __init__(self, buffer: Any, count: int) -> None:  # noqa: ANN401  # numpy's or torch's
        self._buffer = buffer
        self._vectors = buffer[:count]

    def with_room(self, rows: int) -> Self:
        """The same in a buffer of its own, with room for so many rows."""
        buffer = self._empty((rows, self._buffer.shape[1]))
        buffer[: len(self._vectors)] = self._vectors
        return type(self)(buffer, len(self._vectors))

    def extended(self, vectors: Vectors) -> Self:
        """These and (m, d) more. Only the last extension of a block may be extended further."""
        count = len(self._vectors)
        total = count + len(vectors)
        if total > len(self._buffer):
            return self.with_room(_grown(total)).extended(vectors)
        # Behind the end of whatever a search is reading.
        self._buffer[count:total] = self._there(vectors)
        return type(self)(self._buffer, total)

    def taken(self, rows: Rows) -> Self:
        """Only these rows, in a buffer of their own."""
        return type(self)(self._vectors[self._there(rows)], len(rows))

    def cosines(self, query: Vectors, rows: Rows) -> Vectors:
        """Cosines of some rows to a query (d,) of unit length."""
        if len(rows) * 8 > len(self._vectors):  # picking so many costs more than all of them
            return cosines(self._vectors, query)[rows]
        return cosines(self._vectors[rows], query)

    def best(self, query: Vectors, limit: int, *, dead: Rows) -> tuple[Rows, Vectors]:
        """The `limit` rows with the greatest cosines, in no order, without the dead ones."""
        scores = cosines(self._vectors, query)
        scores[dead] = -np.inf
        rows = np.argpartition(-scores, limit - 1)[:limit]
        return rows, scores[rows]

    @property
    def nbytes(self) -> int:
        """Memory it takes, with its room to grow."""
        return int(self._buffer.nbytes)

    def _empty(self, shape: tuple[int, int]) -> Any:  # noqa: ANN401  # as the buffer
        return np.empty(shape, dtype=np.float32)

    def _there(self, array: Rows | Vectors) -> Any:  # noqa: ANN401  # as the buffer
        return array


class TorchBlock(NumpyBlock):
    """Vectors in the memory of a GPU: the same results, to 1e-6, at any size."""

    @classmethod
    def of(cls, vectors: Vectors, *, device: str) -> Self:
        """These vectors (n, d), on a device that torch knows."""
        import torch  # noqa: PLC0415  # optional, and slow

        return cls(torch.from_numpy(vectors).to(device), len(vectors))

    def cosines(self, query: Vectors, rows: Rows) -> Vectors:
        """See `NumpyBlock`."""
        return self._here(self._vectors[self._there(rows)] @ self._there(query))

    def best(self, query: Vectors, limit: int, *, dead: Rows) -> tuple[Rows, Vectors]:
        """See `NumpyBlock`."""
        scores = self._vectors @ self._there(query)
        if len(dead):
            scores[self._there(dead)] = -np.inf
        best = scores.topk(limit)
        return best.indices.cpu().numpy(), self._here(best.values)

    def _empty(self, shape: tuple[int, int]) -> Any:  # noqa: ANN401  # a tensor
        return self._buffer.new_empty(shape)

    def _there(self, array: Rows | Vectors) -> Any:  # noqa: ANN401  # a tensor
        import torch  # noqa: PLC0415  # optional, and slow

        return torch.from_numpy(array).to(self._buffer.device)

    @staticmethod
    def _here(tensor: Any) -> Vectors:  # noqa: ANN401  # a tensor
        array: Vectors = tensor.cpu().numpy()
        return array


def check_gpu() -> None:
    """Raises `InvalidInput` if torch is not installed or sees no GPU."""
    try:
        import torch  # noqa: PLC0415  # optional, and slow
    except ImportError as error:
        raise InvalidInput(
            "device 'cuda' needs torch, which is not installed; pip install torch, or leave "
            "the device out",
            code="memory.torch-missing",
        ) from error
    if not torch.cuda.is_available():
        raise InvalidInput(
            "device 'cuda': torch sees no GPU here; leave the device out", code="memory.no-gpu"
        )


def free_gpu() -> None:
    """Returns the memory that torch keeps for later to the GPU, where models wait for it."""
    import torch  # noqa: PLC0415  # optional, and slow

    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
