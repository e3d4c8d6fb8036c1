"""Exact cosine search over vectors in memory. Nothing is changed once made: searches need no lock.

Exact, since that is quick enough: the best 100 of 50,000 x 256 take 1.7 ms on one core. The figures
are from `tests/benchmarks/bench_vector_search.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

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
    buffer: Vectors
    """(capacity, d): n vectors, and room for more. Rows beyond n are written to as it grows."""
    dead: Rows
    """Rows that are not to be found any more."""

    @classmethod
    def empty(cls, dimensions: int) -> Self:
        """Without vectors."""
        none = np.empty(0, dtype=np.int64)
        return cls(sequences=none, buffer=np.empty((0, dimensions), dtype=np.float32), dead=none)

    def with_room(self, count: int) -> Self:
        """The same with room for so many vectors, and some more."""
        rows = count + max(256, count // 4)
        buffer = np.empty((rows, self.buffer.shape[1]), dtype=np.float32)
        buffer[: len(self.sequences)] = self._vectors
        return replace(self, buffer=buffer)

    def with_more(self, sequences: Rows, vectors: Vectors) -> Self:
        """These too, whose numbers are all greater. Only the newest matrix may be extended."""
        count = len(self.sequences)
        total = count + len(sequences)
        if total > len(self.buffer):
            return self.with_room(total).with_more(sequences, vectors)
        self.buffer[count:total] = vectors  # beyond the end of whatever a search is reading
        return replace(self, sequences=np.concatenate([self.sequences, sequences]))

    def without(self, sequences: Iterable[int]) -> Self:
        """All but these, as far as they are here."""
        gone = _rows_of(self.sequences, sequences)
        if not len(gone):
            return self
        dead = np.union1d(self.dead, gone)
        if len(dead) <= max(_MOST_DEAD, _MOST_DEAD_SHARE * len(self.sequences)):
            return replace(self, dead=dead)
        alive = np.delete(np.arange(len(self.sequences)), dead)
        return replace(
            self, sequences=self.sequences[alive], buffer=self.buffer[alive], dead=dead[:0]
        )

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
        if within is None:
            limit = min(limit, len(self))
            rows = np.arange(len(self.sequences))
            scores = cosines(self._vectors, query)
            scores[self.dead] = -np.inf
        else:
            rows = self._alive(within)
            scores = self._cosines(query, rows)
        if limit < len(rows):
            best = np.argpartition(-scores, limit - 1)[:limit]
            rows, scores = rows[best], scores[best]
        extra = np.setdiff1d(self._alive(including), rows)
        rows = np.concatenate([rows, extra])
        scores = np.concatenate([scores, self._cosines(query, extra)])
        sequences = self.sequences[rows]
        order = np.lexsort((sequences, -scores))
        return dict(zip(sequences[order].tolist(), scores[order].tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Memory it takes, with its room to grow."""
        return self.buffer.nbytes + self.sequences.nbytes + self.dead.nbytes

    def __len__(self) -> int:
        return len(self.sequences) - len(self.dead)

    @property
    def _vectors(self) -> Vectors:
        return self.buffer[: len(self.sequences)]

    def _alive(self, sequences: Iterable[int]) -> Rows:
        return np.setdiff1d(_rows_of(self.sequences, sequences), self.dead, assume_unique=True)

    def _cosines(self, query: Vectors, rows: Rows) -> Vectors:
        if len(rows) * 8 > len(self.sequences):  # picking so many costs more than all of them
            return cosines(self._vectors, query)[rows]
        return cosines(self._vectors[rows], query)


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
