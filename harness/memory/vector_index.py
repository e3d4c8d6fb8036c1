"""The vector index: the cosines of all passages to a query, if memory allows.

Vectors are read from the primary store into one of two forms: a `Matrix`, in which each is compared
with the query, and for large stores an `Approximate`, in which a graph proposes. Searches go on
while the next form is being read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event, Lock
from typing import Self

import numpy as np

from harness.memory import hnsw
from harness.memory.embedder import Embedder, Vectors, embed
from harness.memory.matrix import Matrix, Rows, cosines
from harness.memory.primary import PrimaryStore, Progress

EXACT_UP_TO = 64_000
"""How many vectors are all compared with a query: so many of 256 numbers take 2.0 ms on one core.
A graph of them takes 0.3 ms, and misses up to 1 in 100 of the best ten; the figures are from
`tests/benchmarks/bench_vector_search.py`."""

# A graph is made again when this share of it has changed.
_MOST_CHANGED = 0.2

_READ_AT_A_TIME = 4_000


class VectorIndex:
    """The vectors of one embedder, read from the primary store. May be used from any thread.

    It is unavailable while passages are without a vector, and after `close`. For more than
    `exact_up_to` vectors a graph is made in `directory`. Every method that reads or writes raises
    `MemoryStoreFailed` if it cannot.
    """

    def __init__(
        self,
        primary: PrimaryStore,
        embedder: Embedder,
        *,
        directory: Path,
        exact_up_to: int = EXACT_UP_TO,
    ) -> None:
        self._primary = primary
        self._embedder = embedder
        self._directory = directory
        self._exact_up_to = exact_up_to
        # One thread at a time reads the primary store, which may take long.
        self._updating = Lock()
        self._missing = 0
        self._complete_up_to = 0  # every passage up to there has a vector
        # A search reads one reference, which is replaced as a whole, under a lock that is held no
        # longer than that: closing never waits.
        self._switching = Lock()
        self._held: Matrix | Approximate | None = None
        self._is_closed = False
        self._position = 0

    # --- its state ---------------------------------------------------------------------------

    @property
    def unavailable(self) -> str | None:
        """Why it cannot be searched; None if it can."""
        if self._is_closed:
            return "it is closed"
        if missing := self.missing:
            passages = "passage is" if missing == 1 else "passages are"
            never = ", and nothing can be written here" if self._primary.read_only else ""
            return f"{missing:,} {passages} still to be embedded{never}"
        return None if self._held is not None else "its vectors are not read yet"

    @property
    def missing(self) -> int:
        """How many passages had no vector at the last `catch_up`."""
        return self._missing

    @property
    def kind(self) -> str:
        """`exact`, `hnsw`, or why it cannot be searched."""
        held = self._held
        return self.unavailable or ("hnsw" if isinstance(held, Approximate) else "exact")

    @property
    def resident_bytes(self) -> int:
        """Memory it takes now."""
        held = self._held
        return 0 if held is None else held.nbytes

    def __len__(self) -> int:
        held = self._held
        return 0 if held is None else len(held)

    # --- searching ---------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Reads what was written since the last time, unless it is closed."""
        last = self._primary.last_sequence()
        if self._held is not None and last == self._position and not self.missing:
            return
        with self._updating:
            if not self._is_closed:
                self._install(*self._read(self._held, self._position))

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Rows | None = None,
    ) -> dict[int, float] | None:
        """Sequence number to cosine of the best `limit` passages; None if it is unavailable.

        See `Matrix.search`.
        """
        held = self._held
        if held is None or self.missing:
            return None
        found = held.search(query, limit=limit, including=including, within=within)
        if not found and within is None and len(held):
            # Only a store that was opened with another embedder, and compacted, has a graph and no
            # vectors.
            self._begin_again()
            return None
        return found

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

    @property
    def wants_graph(self) -> bool:
        """Whether `build_graph` would make searches faster."""
        held = self._held
        if held is None or self.missing or self._primary.read_only:
            return False
        if isinstance(held, Approximate):
            return held.changed > _MOST_CHANGED * held.graph.count
        return len(held) > self._exact_up_to

    def build_graph(self, *, stop: Event, progress: Progress | None = None) -> None:
        """Makes a graph of all vectors, if it `wants_graph`. Searches go on meanwhile.

        `stop` ends it, as does `close`; nothing has changed then.
        """
        self.catch_up()
        held = self._held
        made = held.graph.position if isinstance(held, Approximate) else 0
        if self.wants_graph and hnsw.newest(self._directory, self._embedder) > made:
            self._read_again()  # another process has made one
        if not self.wants_graph:
            return
        position, total = self._position, len(self)

        def went_on(done: int) -> bool:
            if progress is not None:
                progress("indexing vectors", min(done, total), total)
            return not stop.is_set() and not self._is_closed

        vectors = self._vectors(0, position)
        if hnsw.write(
            self._directory, self._embedder, position=position, vectors=vectors, went_on=went_on
        ):
            self._read_again()

    def rebuild(self, progress: Progress | None = None) -> None:
        """Reads everything again, and makes a large store's graph again."""
        self._begin_again()
        self.build_graph(stop=Event(), progress=progress)

    def forget_others(self) -> None:
        """Deletes the graphs of other embedders, before the primary store drops their vectors."""
        hnsw.forget(self._directory, but=self._embedder)

    def close(self) -> None:
        """Gives its memory back, at once; a search that is under way finishes normally."""
        with self._switching:
            self._is_closed, self._held = True, None

    # --- reading the primary store -----------------------------------------------------------

    def _begin_again(self) -> None:
        hnsw.forget(self._directory, but=None)
        self._complete_up_to = 0  # old passages may have lost their vectors
        self._read_again()

    def _read_again(self) -> None:
        with self._updating:
            if not self._is_closed:
                self._install(*self._read(None, 0))

    def _install(self, held: Matrix | Approximate, position: int) -> None:
        """Takes what was read, unless it was closed meanwhile."""
        with self._switching:
            if not self._is_closed:
                self._held, self._position = held, position

    def _read(
        self, held: Matrix | Approximate | None, position: int
    ) -> tuple[Matrix | Approximate, int]:
        """What to hold after reading, and up to where; unchanged while passages lack a vector."""
        if held is None or position < self._primary.compacted():
            held, position = self._beginning()
        last = self._primary.last_sequence()
        # Before the vectors are read: what is embedded in between is there by then.
        if self._lacks_vectors(position, last):
            return held, position
        if isinstance(held, Matrix) and not position:
            held = held.with_room(len(self._primary))  # at once, and not copied as it grows
        gone = self._primary.removed_between(position, last)
        # Asked after it: a compaction in between would have emptied that list.
        if 0 < position < self._primary.compacted():
            return self._read(None, 0)
        held = held.without(gone)
        for numbers, vectors in self._vectors(position, last):
            held = held.with_more(numbers, vectors)
        return held, last

    def _vectors(self, low: int, high: int) -> Iterator[tuple[Rows, Vectors]]:
        for start in range(low, high, _READ_AT_A_TIME):
            end = min(start + _READ_AT_A_TIME, high)
            yield self._primary.vectors_between(self._embedder, start, end)

    def _lacks_vectors(self, position: int, last: int) -> bool:
        """Whether a passage beyond `position` has none; notes how many."""
        complete = max(position, self._complete_up_to)
        lacking = self._primary.without_vector(self._embedder, 1, after=complete)
        if not lacking:
            self._complete_up_to, self._missing = last, 0
            return False
        first, _ = lacking[0]
        # Counting them takes much longer than finding the first.
        if not self._missing or first > self._complete_up_to + 1:
            self._missing = max(1, self._primary.count_without_vector(self._embedder))
        self._complete_up_to = first - 1
        return True

    def _beginning(self) -> tuple[Matrix | Approximate, int]:
        """What to begin with, and up to where it has read the primary store."""
        if len(self._primary) > self._exact_up_to:
            graph = hnsw.Graph.load(self._directory, self._embedder)
            last = self._primary.last_sequence()
            if graph and self._primary.compacted() <= graph.position <= last:
                return Approximate.of(self._primary, self._embedder, graph), graph.position
        return Matrix.empty(self._embedder.dimensions), 0


# --- large stores ----------------------------------------------------------------------------

# For a filter: how many passages are compared without asking the graph, and how often the graph is
# asked, each time for four times as many, before all are compared.
_FEW = 2000
_ASKS = 3

_COMPARED_AT_A_TIME = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate:
    """A graph, and what has changed since it was made. Immutable: searches need no lock.

    What was written after the graph is compared exactly; what was removed since is left out. Every
    cosine is computed from the vector in the primary store, as a `Matrix` would.
    """

    primary: PrimaryStore
    embedder: Embedder
    graph: hnsw.Graph
    tail: Matrix
    """Vectors written after the graph."""
    dead: Rows
    """Numbers in the graph that are not to be found any more, ascending."""

    @classmethod
    def of(cls, primary: PrimaryStore, embedder: Embedder, graph: hnsw.Graph) -> Self:
        """Only the graph."""
        tail = Matrix.empty(embedder.dimensions)
        return cls(primary=primary, embedder=embedder, graph=graph, tail=tail, dead=tail.dead)

    def with_more(self, sequences: Rows, vectors: Vectors) -> Self:
        """See `Matrix.with_more`."""
        return replace(self, tail=self.tail.with_more(sequences, vectors))

    def without(self, sequences: Iterable[int]) -> Self:
        """See `Matrix.without`."""
        numbers = np.fromiter(sequences, dtype=np.int64)
        gone = numbers[numbers <= self.graph.position]
        return replace(self, dead=np.union1d(self.dead, gone), tail=self.tail.without(numbers))

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Rows | None = None,
    ) -> dict[int, float]:
        """See `Matrix.search`. It may miss some vectors of the graph."""
        near = self._near(query, limit, within)
        scores = self._cosines(query, np.union1d(near, np.fromiter(including, dtype=np.int64)))
        scores |= self.tail.search(query, limit=limit, including=including, within=within)
        best_first = sorted(scores, key=lambda number: (-scores[number], number))
        proposed = set(near.tolist())
        after = self.graph.position
        best = [number for number in best_first if number in proposed or number > after][:limit]
        kept = {*best, *including}
        return {number: scores[number] for number in best_first if number in kept}

    def _near(self, query: Vectors, limit: int, within: Rows | None) -> Rows:
        """About the best `limit` of the graph; all of `within` if the graph finds too few."""
        if within is not None:
            within = within[: np.searchsorted(within, self.graph.position, side="right")]
            if len(within) <= _FEW:
                return within
        asked = limit
        for _ in range(_ASKS):
            asked = min(asked * 4, self.graph.count)
            nearest = self.graph.nearest(query, asked)
            wanted = nearest[~np.isin(nearest, self.dead)]
            if within is not None:
                wanted = wanted[np.isin(wanted, within)]
            if len(wanted) >= limit or asked == self.graph.count:
                return wanted[:limit]
        return wanted if within is None else within

    def _cosines(self, query: Vectors, sequences: Rows) -> dict[int, float]:
        alive = np.setdiff1d(sequences[sequences <= self.graph.position], self.dead)
        scores: dict[int, float] = {}
        for start in range(0, len(alive), _COMPARED_AT_A_TIME):
            part = alive[start : start + _COMPARED_AT_A_TIME].tolist()
            numbers, vectors = self.primary.vectors_of(self.embedder, part)
            scores.update(zip(numbers.tolist(), cosines(vectors, query).tolist(), strict=True))
        return scores

    @property
    def changed(self) -> int:
        """How many vectors were added or removed since the graph was made."""
        return len(self.tail.sequences) + len(self.dead)

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        return self.graph.nbytes + self.tail.nbytes + self.dead.nbytes

    def __len__(self) -> int:
        return self.graph.count - len(self.dead) + len(self.tail)
