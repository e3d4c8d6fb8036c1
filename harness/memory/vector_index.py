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

from harness.memory.embedder import Embedder, Vectors, embed
from harness.memory.primary import Numbers, PrimaryStore, Progress

_READ_AT_A_TIME = 4_000

# If more passages lack a vector, the others would be found only because they have one.
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
        self._complete_up_to = 0  # every passage up to there has a vector
        # A search reads this reference once; it is replaced as a whole.
        self._held = Matrix.empty(embedder.dimensions)
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
        return self._held.nbytes

    def __len__(self) -> int:
        return len(self._held)

    # --- searching ---------------------------------------------------------------------------

    def catch_up(self, *, until: int = 0) -> None:
        """Reads new writes, at least as far as the write `until`, unless it is closed."""
        last = max(until, self._primary.seen_sequence())
        if last <= self.position:
            return
        with self._updating:
            if not self._is_closed:
                self._held, self.position = self._read(self._held, self.position)
            if self._is_closed:  # meanwhile: closing waits for nobody
                self.close()

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Numbers | None = None,
    ) -> dict[int, float] | None:
        """Sequence number to cosine of the best `limit` passages; None if it is unavailable.

        See `Matrix.search`.
        """
        held = self._held  # before it may be closed
        if self.unavailable:
            return None
        return held.search(query, limit=limit, including=including, within=within)

    # --- making what is missing --------------------------------------------------------------

    def embed_missing(
        self, *, stop: Event, batch: int = 256, progress: Progress | None = None
    ) -> None:
        """Embeds all passages that have no vector, stores the vectors, and reads them.

        `stop` ends it after a batch of `batch` passages; the rest is left to do.

        Raises:
            InvalidInput: The embedder did not return vectors.
        """
        done, after = 0, 0
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
        """Gives its memory back, at once; a search that is under way finishes normally."""
        self._is_closed = True
        self._held = Matrix.empty(self._embedder.dimensions)

    # --- reading the primary store -----------------------------------------------------------

    def _read(self, held: Matrix, position: int) -> tuple[Matrix, int]:
        """The matrix after reading, and its position, before the first passage without a vector."""
        last = self._primary.last_sequence()
        # Noted before the vectors are read, so that what is embedded in between is read too.
        self._note_missing(position, last)
        last = min(last, self._complete_up_to)
        if position:
            held = held.without(self._primary.removed_between(position, last))
        else:
            held = held.with_room(len(self._primary))  # at once, and not copied as it grows
        for start in range(position, last, _READ_AT_A_TIME):
            end = min(start + _READ_AT_A_TIME, last)
            held = held.with_more(*self._primary.vectors_between(self._embedder, start, end))
        return held.with_axes(), max(position, last)

    def _note_missing(self, position: int, last: int) -> None:
        """Notes how many passages beyond `position` have no vector, and which is the first."""
        complete = max(position, self._complete_up_to)
        lacking = self._primary.without_vector(self._embedder, 1, after=complete)
        if not lacking:
            self._complete_up_to, self.missing = last, 0
            return
        first, _ = lacking[0]
        # Counting takes much longer than finding the first, so it is done only for another first.
        if not self.missing or first > self._complete_up_to + 1:
            self.missing = max(1, self._primary.count_without_vector(self._embedder))
        self._complete_up_to = first - 1


# --- search ----------------------------------------------------------------------------------

# In a large matrix, all vectors are compared by 64 numbers, and the best 500 by all they have. On
# the axes along which vectors differ most, 64 of 256 or 384 numbers are enough: the 500 held all of
# the true 100 nearest on Cranfield. The first 64 numbers as they are held 94 %.
_AXES = 64
_SECOND_PASS = 500
_LARGE = 10_000
_SAMPLE = 2_048  # vectors from which the axes are computed
_STEPS = 8
_LEAST_SHARE = 0.6  # of what all numbers hold; wordllama's axes hold 0.8

# Dead rows are searched and left out. A copy without them is made when that costs too much.
_MOST_DEAD = 1000
_MOST_DEAD_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Vectors, by sequence number; comparing all is quick enough, see `docs/memory.md`."""

    sequences: Numbers
    """The numbers (n,), ascending."""
    buffer: Vectors
    """(capacity, d): n vectors, and room for more. Rows beyond n are written to as it grows."""
    dead: Numbers
    """Rows of removed passages, which no search returns."""
    axes: Vectors | None = None
    """(64, d): what the first pass compares by; None while one pass is quick enough."""
    projected: Vectors | None = None
    """(capacity, 64): the vectors on these axes; None if they hold too little."""

    @classmethod
    def empty(cls, dimensions: int) -> Self:
        """A matrix without vectors, for vectors of so many dimensions."""
        none = np.empty(0, dtype=np.int64)
        return cls(sequences=none, buffer=np.empty((0, dimensions), dtype=np.float32), dead=none)

    def with_room(self, count: int) -> Self:
        """The same with room for so many vectors, and some more."""
        rows = count + max(256, count // 4)
        buffer = np.empty((rows, self.buffer.shape[1]), dtype=np.float32)
        buffer[: len(self.sequences)] = self._vectors
        return replace(self, buffer=buffer, projected=None, axes=None)

    def with_axes(self) -> Self:
        """The same, ready for two passes if that pays."""
        count, dimensions = self._vectors.shape
        if self.axes is not None or count < _LARGE or dimensions < 2 * _AXES:
            return self
        sample = self._vectors[:: max(1, count // _SAMPLE)]
        axes = main_axes(sample, _AXES)
        if np.square(products(sample, axes)).sum() < _LEAST_SHARE * np.square(sample).sum():
            # These axes hold too little. They stay, so that they are not computed at each write.
            return replace(self, axes=axes)
        projected = np.empty((len(self.buffer), _AXES), dtype=np.float32)
        projected[:count] = products(self._vectors, axes)
        return replace(self, axes=axes, projected=projected)

    def with_more(self, sequences: Numbers, vectors: Vectors) -> Self:
        """The same with more vectors, whose numbers are all greater; only for the newest matrix."""
        count = len(self.sequences)
        total = count + len(sequences)
        if total > len(self.buffer):
            return self.with_room(total).with_more(sequences, vectors)
        self.buffer[count:total] = vectors  # beyond the end of whatever a search is reading
        if self.axes is not None and self.projected is not None:
            self.projected[count:total] = products(vectors, self.axes)
        return replace(self, sequences=np.concatenate([self.sequences, sequences]))

    def without(self, sequences: Iterable[int]) -> Self:
        """The same without the vectors that it has of these numbers."""
        gone = _rows_of(self.sequences, sequences)
        if not len(gone):
            return self
        dead = np.union1d(self.dead, gone)
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
            including: Numbers that are scored too, whatever their rank, as far as they are here.
            within: The numbers that may be found, ascending; all if None. Those in `including` are
                taken to be among them.
        """
        if within is None:
            limit = min(limit, len(self))
            rows = self._first_pass(query, limit)
            scores = self._cosines(query, rows)
            # Rows are places among the scores only if all were compared.
            all_rows = len(rows) == len(self.sequences)
            scores[self.dead if all_rows else np.isin(rows, self.dead)] = -np.inf
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
        arrays = (self.buffer, self.sequences, self.dead, self.axes, self.projected)
        return sum(array.nbytes for array in arrays if array is not None)

    def __len__(self) -> int:
        return len(self.sequences) - len(self.dead)

    @property
    def _vectors(self) -> Vectors:
        return self.buffer[: len(self.sequences)]

    def _first_pass(self, query: Vectors, limit: int) -> Numbers:
        """The rows that the second pass compares, by all dimensions."""
        count, candidates = len(self.sequences), max(_SECOND_PASS, 5 * limit)
        if self.axes is None or self.projected is None or candidates >= count:
            return np.arange(count)
        scores = products(self.projected[:count], products(self.axes, query))
        scores[self.dead] = -np.inf
        return np.argpartition(-scores, candidates)[:candidates]

    def _alive(self, sequences: Iterable[int]) -> Numbers:
        return np.setdiff1d(_rows_of(self.sequences, sequences), self.dead, assume_unique=True)

    def _cosines(self, query: Vectors, rows: Numbers) -> Vectors:
        if len(rows) == len(self.sequences):
            return products(self._vectors, query)
        if len(rows) * 8 > len(self.sequences):  # picking so many costs more than all of them
            return products(self._vectors, query)[rows]
        return products(self._vectors[rows], query)


def _rows_of(ascending: Numbers, sequences: Iterable[int]) -> Numbers:
    """The rows of these numbers in `ascending`, without numbers that it does not have."""
    if isinstance(sequences, np.ndarray):
        numbers = np.unique(sequences)
    else:
        numbers = np.unique(np.fromiter(sequences, dtype=np.int64))
    rows = np.searchsorted(ascending, numbers)
    # `searchsorted` gives missing numbers a place, too, which may lie behind the end.
    present = rows < len(ascending)
    present[present] = ascending[rows[present]] == numbers[present]
    return rows[present]


def main_axes(vectors: Vectors, count: int) -> Vectors:
    """The orthogonal axes (count, d) along which vectors (n, d) differ most, nearly."""
    # By subspace iteration: `np.linalg.eigh` takes up to 2 s beside busy cores, see `products`.
    columns = np.ascontiguousarray(vectors.T)
    covariance = products(columns, columns)
    axes = covariance[:count]
    for _ in range(_STEPS):
        axes = products(axes, covariance)
        for n, axis in enumerate(axes):  # made orthogonal as Gram and Schmidt do it
            shadow = products(np.ascontiguousarray(axes[:n].T), products(axes[:n], axis))
            rest = axis - shadow
            axes[n] = rest / max(np.sqrt(np.vecdot(rest, rest)), np.finfo(np.float32).tiny)
    return axes


def products(vectors: Vectors, queries: Vectors) -> Vectors:
    """The products of vectors (n, d) with one (d,) or several (m, d): (n,) or (n, m).

    Of vectors of unit length, their cosines, which do not depend on the rows beside them.
    """
    # Not `vectors @ others.T`: BLAS starts a thread per core, and when a model keeps the cores busy
    # these wait for each other, for 50,000 vectors 10 to 35 ms instead of 0.7. This stays at 1.7.
    rows = vectors if queries.ndim == 1 else vectors[:, np.newaxis]
    result: Vectors = np.vecdot(rows, queries)
    return result
