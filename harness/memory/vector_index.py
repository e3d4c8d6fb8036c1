"""The vector index: the cosines of all passages to a query, by search in memory.

`VectorIndex` reads the vectors from the primary store into a `Matrix`, which never changes:
searches need no lock, and continue while the next one is being read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Self

import numpy as np

from harness.memory.embedder import Embedder, Vectors, embed, normalized
from harness.memory.primary import Numbers, PrimaryStore, Progress

_READ_AT_A_TIME = 4_000

# With a greater share of passages without a vector, a search would find others only because they
# have one.
_MOST_MISSING_SHARE = 0.1


class VectorIndex:
    """The vectors of one embedder, read from the primary store. May be used from any thread.

    It is unavailable after `close`, and while more than a tenth of the passages is without a
    vector. Every method that reads or writes raises `MemoryStoreFailed` if it cannot.

    Attributes:
        missing: How many passages had no vector at the last `catch_up`.
        position: The last write that it has read.
    """

    def __init__(self, primary: PrimaryStore, embedder: Embedder) -> None:
        self._primary = primary
        self._embedder = embedder
        # One thread at a time reads the primary store, which may take long.
        self._updating = Lock()
        self.missing = 0
        self._complete_up_to = 0  # every passage up to this number has a vector
        # A search reads this reference once, so a matrix is never changed, only replaced.
        self._matrix = Matrix.empty(embedder.dimensions)
        self._is_closed = False
        self.position = 0

    # --- its state ---------------------------------------------------------------------------

    @property
    def unavailable(self) -> str | None:
        """Why it cannot be searched; None if it can."""
        if self._is_closed:
            return "it is closed"
        if (missing := self.missing) > _MOST_MISSING_SHARE * (len(self) + missing):
            passages = "passage is" if missing == 1 else "passages are"
            return f"{missing:,} {passages} still to be embedded"
        return None

    @property
    def resident_bytes(self) -> int:
        """Memory it takes now, with its room to grow."""
        return self._matrix.nbytes

    def __len__(self) -> int:
        return len(self._matrix)

    # --- searching ---------------------------------------------------------------------------

    def catch_up(self, *, until: int = 0) -> None:
        """Reads new writes, at least as far as the write `until`, unless it is closed."""
        last = max(until, self._primary.seen_sequence())
        if last <= self.position:
            return
        with self._updating:
            if not self._is_closed:
                self._matrix, self.position = self._read(self._matrix, self.position)
            if self._is_closed:
                # `close` does not wait for this lock, and may have run meanwhile.
                self.close()

    @property
    def matrix(self) -> Matrix | None:
        """The vectors, for a search; None if it is unavailable."""
        matrix = self._matrix  # taken before the check, since the index may be closed meanwhile
        return None if self.unavailable else matrix

    # --- making what is missing --------------------------------------------------------------

    def embed_missing(
        self, *, stop: Event, batch: int = 256, progress: Progress | None = None
    ) -> None:
        """Embeds all passages that have no vector, stores the vectors, and reads them.

        `stop` ends it early, after a batch of `batch` passages.

        Raises:
            InvalidInput: The embedder did not return vectors.
        """
        done = 0
        after = 0  # the number of the last passage that was embedded
        total = self._primary.count_without_vector(self._embedder)
        while not stop.is_set():
            rows = self._primary.without_vector(self._embedder, batch, after=after)
            if not rows:
                break
            vectors = embed(self._embedder, [passage.searchable for _, passage in rows])
            self._primary.put_vectors(self._embedder, [number for number, _ in rows], vectors)
            after = rows[-1][0]
            done += len(rows)
            if progress is not None:
                progress("embedding passages", min(done, total), total)
        self.catch_up()

    def close(self) -> None:
        """Gives its memory back at once; a search that is under way finishes normally."""
        self._is_closed = True
        self._matrix = Matrix.empty(self._embedder.dimensions)

    # --- reading the primary store -----------------------------------------------------------

    def _read(self, matrix: Matrix, position: int) -> tuple[Matrix, int]:
        """Reads new writes, up to the first passage without a vector: the matrix and position."""
        last = self._primary.last_sequence()
        # Before the vectors are read, so that vectors made in between are read too.
        self._update_missing(position, last)
        last = min(last, self._complete_up_to)
        if position:
            matrix = matrix.without(self._primary.removed_between(position, last))
        else:
            # With room for all, so that it is not copied as it grows.
            matrix = matrix.with_room(len(self._primary))
        for start in range(position, last, _READ_AT_A_TIME):
            end = min(start + _READ_AT_A_TIME, last)
            numbers, vectors = self._primary.vectors_between(self._embedder, start, end)
            # An earlier harness stored vectors of any length, and damaged ones may be infinite.
            with np.errstate(over="ignore", invalid="ignore"):
                is_unit = np.isclose(np.vecdot(vectors, vectors), 1, atol=1e-3)
                vectors[~is_unit] = normalized(vectors[~is_unit])
            matrix = matrix.with_more(numbers, vectors)
        return matrix.with_axes(), max(position, last)

    def _update_missing(self, position: int, last: int) -> None:
        """Updates `missing`, and `_complete_up_to` by the first passage without a vector."""
        after = max(position, self._complete_up_to)
        lacking = self._primary.without_vector(self._embedder, 1, after=after)
        if not lacking:
            self._complete_up_to = last
            self.missing = 0
            return
        first, _ = lacking[0]
        # Counting takes much longer than finding the first, so the count stays as long as it.
        is_first_as_before = self.missing > 0 and first == self._complete_up_to + 1
        if not is_first_as_before:
            self.missing = max(1, self._primary.count_without_vector(self._embedder))
        self._complete_up_to = first - 1


# --- search ----------------------------------------------------------------------------------

# A search in a large matrix has two passes: all vectors are compared by 64 numbers, and the best
# 500 by all numbers. The 64 numbers are coordinates on the axes along which vectors differ most. On
# Cranfield, with 256 or 384 numbers, the 500 had all of the true 100 nearest; by the first 64
# numbers of each vector they had 94 %.
_AXES = 64
_SECOND_PASS = 500
_LARGE = 10_000  # vectors
_SAMPLE = 2_048  # vectors from which the axes are computed
_STEPS = 8  # of subspace iteration
_LEAST_SHARE = 0.6  # of the vectors' squared length on the axes; with wordllama it is 0.8

# Rows of removed passages are compared too, and left out of results. When there are more, a copy
# without them is made.
_MOST_DEAD = 1000
_MOST_DEAD_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Vectors by sequence number, of which a search compares all; see `docs/memory.md`."""

    sequences: Numbers
    """The numbers (n,), ascending."""
    buffer: Vectors
    """(capacity, d): n vectors, and room for more. Rows beyond n are written to as it grows."""
    dead: Numbers
    """Rows of removed passages, which no search returns."""
    axes: Vectors | None = None
    """(64, d): the axes of the first pass; None while one pass is quick enough."""
    projected: Vectors | None = None
    """(capacity, 64): the vectors' coordinates on the axes; None if these hold too little."""

    @classmethod
    def empty(cls, dimensions: int) -> Self:
        """A matrix without vectors, for vectors of this many dimensions."""
        no_rows = np.empty(0, dtype=np.int64)
        buffer = np.empty((0, dimensions), dtype=np.float32)
        return cls(sequences=no_rows, buffer=buffer, dead=no_rows)

    def with_room(self, count: int) -> Self:
        """A copy with room for `count` vectors, and some more."""
        rows = count + max(256, count // 4)
        buffer = np.empty((rows, self.buffer.shape[1]), dtype=np.float32)
        buffer[: len(self.sequences)] = self._vectors
        return replace(self, buffer=buffer, projected=None, axes=None)

    def with_axes(self) -> Self:
        """The matrix with axes for a first pass, if it is large enough."""
        count, dimensions = self._vectors.shape
        if self.axes is not None or count < _LARGE or dimensions < 2 * _AXES:
            return self
        sample = self._vectors[:: max(1, count // _SAMPLE)]
        axes = main_axes(sample, _AXES)
        if np.square(products(sample, axes)).sum() < _LEAST_SHARE * np.square(sample).sum():
            # These axes hold too little. They are kept only so that they are not computed again at
            # each write.
            return replace(self, axes=axes)
        projected = np.empty((len(self.buffer), _AXES), dtype=np.float32)
        projected[:count] = products(self._vectors, axes)
        return replace(self, axes=axes, projected=projected)

    def with_more(self, sequences: Numbers, vectors: Vectors) -> Self:
        """The matrix with more vectors, whose numbers are all greater.

        Only for the newest matrix, since it shares the buffer with the result.
        """
        count = len(self.sequences)
        total = count + len(sequences)
        if total > len(self.buffer):
            return self.with_room(total).with_more(sequences, vectors)
        # A search that is under way reads only the rows before these.
        self.buffer[count:total] = vectors
        if self.axes is not None and self.projected is not None:
            self.projected[count:total] = products(vectors, self.axes)
        return replace(self, sequences=np.concatenate([self.sequences, sequences]))

    def without(self, sequences: Iterable[int]) -> Self:
        """The matrix without the vectors of these numbers."""
        removed = _rows_of(self.sequences, sequences)
        if not len(removed):
            return self
        dead = np.union1d(self.dead, removed)
        if len(dead) <= max(_MOST_DEAD, _MOST_DEAD_SHARE * len(self.sequences)):
            return replace(self, dead=dead)
        alive = np.delete(np.arange(len(self.sequences)), dead)
        return replace(
            self,
            sequences=self.sequences[alive],
            buffer=self.buffer[alive],
            dead=dead[:0],
            axes=None,
            projected=None,
        )

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Numbers | None = None,
    ) -> dict[int, float]:
        """Sequence number to cosine of the best `limit`, best first; of equals, the older first.

        Args:
            query: (d,) float32 of unit length.
            limit: At least 1.
            including: Numbers whose vectors are scored too, whatever their rank.
            within: The numbers that may be returned, ascending; all if None. Those in `including`
                must be among them.
        """
        if within is None:
            limit = min(limit, len(self))
            rows = self._first_pass(query, limit)
            scores = self._cosines(query, rows)
            if len(rows) == len(self.sequences):
                # All rows were compared in order, so a row is its own place among the scores.
                scores[self.dead] = -np.inf
            else:
                scores[np.isin(rows, self.dead)] = -np.inf
        else:
            rows = self._alive(within)
            scores = self._cosines(query, rows)
        if limit < len(rows):
            best = np.argpartition(-scores, limit - 1)[:limit]
            rows = rows[best]
            scores = scores[best]
        extra = np.setdiff1d(self._alive(including), rows)
        rows = np.concatenate([rows, extra])
        scores = np.concatenate([scores, self._cosines(query, extra)])
        sequences = self.sequences[rows]
        order = np.lexsort((sequences, -scores))
        return dict(zip(sequences[order].tolist(), scores[order].tolist(), strict=True))

    @property
    def nbytes(self) -> int:
        """Memory it takes, with its room to grow."""
        arrays = (self.buffer, self.sequences, self.dead, self.axes, self.projected)
        return sum(array.nbytes for array in arrays if array is not None)

    def __len__(self) -> int:
        return len(self.sequences) - len(self.dead)

    @property
    def _vectors(self) -> Vectors:
        return self.buffer[: len(self.sequences)]

    def _first_pass(self, query: Vectors, limit: int) -> Numbers:
        """The rows to be compared by all numbers: the best by their coordinates on the axes."""
        count = len(self.sequences)
        candidates = max(_SECOND_PASS, 5 * limit)
        if self.axes is None or self.projected is None or candidates >= count:
            return np.arange(count)
        scores = products(self.projected[:count], products(self.axes, query))
        scores[self.dead] = -np.inf
        return np.argpartition(-scores, candidates)[:candidates]

    def _alive(self, sequences: Iterable[int]) -> Numbers:
        """The rows of these numbers, without dead ones."""
        return np.setdiff1d(_rows_of(self.sequences, sequences), self.dead, assume_unique=True)

    def _cosines(self, query: Vectors, rows: Numbers) -> Vectors:
        if len(rows) == len(self.sequences):
            return products(self._vectors, query)
        if len(rows) * 8 > len(self.sequences):
            # Copying so many rows would take longer than comparing all.
            return products(self._vectors, query)[rows]
        return products(self._vectors[rows], query)


def _rows_of(ascending: Numbers, sequences: Iterable[int]) -> Numbers:
    """The rows of these numbers in `ascending`, without numbers that it does not have."""
    if isinstance(sequences, np.ndarray):
        numbers = np.unique(sequences)
    else:
        numbers = np.unique(np.fromiter(sequences, dtype=np.int64))
    rows = np.searchsorted(ascending, numbers)
    # `searchsorted` returns a place for missing numbers too, which may be behind the end.
    present = rows < len(ascending)
    present[present] = ascending[rows[present]] == numbers[present]
    return rows[present]


def main_axes(vectors: Vectors, count: int) -> Vectors:
    """Orthogonal axes (count, d) that are nearly those along which vectors (n, d) differ most."""
    # By subspace iteration: `np.linalg.eigh` takes up to 2 s beside busy cores, see `products`.
    columns = np.ascontiguousarray(vectors.T)
    covariance = products(columns, columns)
    axes = covariance[:count]
    for _ in range(_STEPS):
        axes = products(axes, covariance)
        # Made orthogonal by the method of Gram and Schmidt.
        for n, axis in enumerate(axes):
            projection = products(np.ascontiguousarray(axes[:n].T), products(axes[:n], axis))
            residual = axis - projection
            length = np.sqrt(np.vecdot(residual, residual))
            axes[n] = residual / max(length, np.finfo(np.float32).tiny)
    return axes


def products(vectors: Vectors, queries: Vectors) -> Vectors:
    """The products of vectors (n, d) with one query (d,) or several (m, d): (n,) or (n, m).

    For vectors of unit length these are cosines. A product does not depend on other rows.
    """
    # Not `vectors @ queries.T`: BLAS starts a thread per core. When a model keeps the cores busy,
    # these threads wait for each other, for 50,000 vectors 10 to 35 ms instead of 0.7 ms. This
    # takes 1.7 ms in both cases.
    rows = vectors if queries.ndim == 1 else vectors[:, np.newaxis]
    result: Vectors = np.vecdot(rows, queries)
    return result
