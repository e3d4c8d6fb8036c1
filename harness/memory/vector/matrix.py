"""Exact cosine search over vectors in memory. What is made is never changed: searches need no lock.

Exact, since that is quick enough: the best 100 of 50,000 x 256 take 1.7 ms on one core. The figures
are those of `tests/benchmarks/bench_vector_search.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from harness.memory.embedder import Vectors

Rows = NDArray[np.int64]

# Dead rows are searched and left out. A copy without them is made when that costs too much.
_MOST_DEAD = 1000
_MOST_DEAD_SHARE = 0.25


class Block(Protocol):
    """Vectors (n, d), wherever they are."""

    def with_room(self, rows: int) -> Self:
        """The same in room for so many rows, elsewhere."""
        ...

    def extended(self, vectors: Vectors) -> Self:
        """These and (m, d) more. Of one block only the last extension may be extended further."""
        ...

    def taken(self, rows: Rows) -> Self:
        """Only these rows, in room of their own."""
        ...

    def cosines(self, query: Vectors, rows: Rows) -> Vectors:
        """Those of some rows to a query (d,) of unit length."""
        ...

    def best(self, query: Vectors, limit: int, *, dead: Rows) -> tuple[Rows, Vectors]:
        """The rows with the greatest cosines, `limit` of them, in no order; none of the dead."""
        ...

    @property
    def nbytes(self) -> int:
        """What it takes, with its room to grow."""
        ...


class NumpyBlock:
    """Vectors in the machine's memory.

    Args:
        buffer: (capacity, d) float32, written to beyond the block's end as it is extended.
        count: n, how many rows are in use.
    """

    def __init__(self, buffer: Vectors, count: int) -> None:
        self._buffer = buffer
        self._vectors = buffer[:count]

    def with_room(self, rows: int) -> Self:
        """See `Block`."""
        buffer = np.empty((rows, self._buffer.shape[1]), dtype=np.float32)
        buffer[: len(self._vectors)] = self._vectors
        return type(self)(buffer, len(self._vectors))

    def extended(self, vectors: Vectors) -> Self:
        """See `Block`."""
        count = len(self._vectors)
        total = count + len(vectors)
        if total > len(self._buffer):
            return self.with_room(grown(total)).extended(vectors)
        # Behind the end of whatever a search is reading.
        self._buffer[count:total] = vectors
        return type(self)(self._buffer, total)

    def taken(self, rows: Rows) -> Self:
        """See `Block`."""
        return type(self)(self._vectors[rows], len(rows))

    def cosines(self, query: Vectors, rows: Rows) -> Vectors:
        """See `Block`."""
        if len(rows) * 8 > len(self._vectors):  # picking so many costs more than all of them
            return self._all(query)[rows]
        return cosines(self._vectors[rows], query)

    def best(self, query: Vectors, limit: int, *, dead: Rows) -> tuple[Rows, Vectors]:
        """See `Block`."""
        scores = self._all(query)
        scores[dead] = -np.inf
        rows = np.argpartition(-scores, limit - 1)[:limit]
        return rows, scores[rows]

    @property
    def nbytes(self) -> int:
        """See `Block`."""
        return self._buffer.nbytes

    def _all(self, query: Vectors) -> Vectors:
        return cosines(self._vectors, query)


def cosines(vectors: Vectors, query: Vectors) -> Vectors:
    """Those of (n, d) vectors to a query (d,), all of unit length: the same for a vector anywhere.

    Not `vectors @ query`: BLAS starts a thread per core, and when a model keeps the cores busy
    these wait for each other, 10 to 35 ms instead of 0.7. This stays at 1.7 on one core.
    """
    scores: Vectors = np.vecdot(vectors, query)
    return scores


def grown(count: int) -> int:
    """Room for that many rows and those that will come."""
    return count + max(256, count // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Vectors, by sequence number."""

    sequences: Rows
    """The numbers (n,), growing."""
    block: Block
    """Their vectors."""
    dead: Rows
    """The rows that are not to be found any more."""

    @classmethod
    def of(cls, sequences: Rows, block: Block) -> Self:
        """All of them to be found."""
        return cls(sequences=sequences, block=block, dead=np.empty(0, dtype=np.int64))

    def with_room(self, count: int) -> Self:
        """The same with room for so many vectors, and some more."""
        return replace(self, block=self.block.with_room(grown(count)))

    def with_more(self, sequences: Rows, vectors: Vectors) -> Self:
        """These too, whose numbers are all greater. Only the newest of a matrix may be extended."""
        if not len(sequences):
            return self
        return replace(
            self,
            sequences=np.concatenate([self.sequences, sequences]),
            block=self.block.extended(vectors),
        )

    def without(self, sequences: Iterable[int]) -> Self:
        """All but these, as far as they are here."""
        gone = rows_of(self.sequences, sequences)
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
            including: Numbers that are scored too, wherever they stand, as far as they are here.
            within: The numbers that may be found, growing; all when None. Those in `including` are
                taken to be among them.
        """
        rows, scores = self._best(query, limit, within)
        extra = np.setdiff1d(self._alive(including), rows)
        rows = np.concatenate([rows, extra])
        scores = np.concatenate([scores, self.block.cosines(query, extra)])
        return ranked(self.sequences[rows], scores)

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
        return np.setdiff1d(rows_of(self.sequences, sequences), self.dead, assume_unique=True)

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.block.nbytes + self.sequences.nbytes + self.dead.nbytes

    def __len__(self) -> int:
        return len(self.sequences) - len(self.dead)


def rows_of(known: Rows, sequences: Iterable[int]) -> Rows:
    """Where these numbers stand among the known, which grow; growing, without those not there."""
    if isinstance(sequences, np.ndarray):
        wanted = np.unique(sequences)
    else:
        wanted = np.unique(np.fromiter(sequences, dtype=np.int64))
    rows = np.searchsorted(known, wanted)
    there = rows < len(known)
    there[there] = known[rows[there]] == wanted[there]
    return rows[there]


def ranked(sequences: Rows, scores: Vectors) -> dict[int, float]:
    """Number to score, best first; of equals, the older first."""
    order = np.lexsort((sequences, -scores))
    return dict(zip(sequences[order].tolist(), scores[order].tolist(), strict=True))
