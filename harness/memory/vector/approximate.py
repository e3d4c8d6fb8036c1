"""Cosine search over more vectors than are quickly compared with each: a graph proposes.

What was written after the graph was made is compared exactly, and what was removed since is left
out. Every cosine is computed from the truth's vector: the same that a `Matrix` would give.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from harness.memory.embedder import Embedder, Vectors
from harness.memory.truth import Truth
from harness.memory.vector.hnsw import Graph
from harness.memory.vector.matrix import Matrix, NumpyBlock, Rows, cosines

# Of a filter: how many passages are compared without asking the graph, and how often it is asked,
# each time for four times as many, before all are compared.
_FEW = 2000
_ASKS = 3

_AT_A_TIME = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Approximate:
    """A graph, and what has changed since. Never changed itself: searches need no lock."""

    truth: Truth
    """Has the vectors."""
    embedder: Embedder
    """Whose they are."""
    graph: Graph
    """Proposes, of those up to its position."""
    tail: Matrix
    """Those after it."""
    dead: Rows
    """Those in the graph that are not to be found any more, growing."""

    @classmethod
    def of(cls, truth: Truth, embedder: Embedder, graph: Graph) -> Self:
        """Just what is in the graph."""
        none = np.empty(0, dtype=np.int64)
        empty = NumpyBlock(np.empty((0, embedder.dimensions), dtype=np.float32), 0)
        tail = Matrix.of(none, empty)
        return cls(truth=truth, embedder=embedder, graph=graph, tail=tail, dead=none)

    def with_more(self, sequences: Rows, vectors: Vectors) -> Self:
        """See `Matrix.with_more`."""
        return replace(self, tail=self.tail.with_more(sequences, vectors))

    def without(self, sequences: Iterable[int]) -> Self:
        """See `Matrix.without`."""
        numbers = np.fromiter(sequences, dtype=np.int64)
        gone = numbers[numbers <= self.graph.position]
        return replace(
            self, dead=np.union1d(self.dead, gone), tail=self.tail.without(numbers.tolist())
        )

    def search(
        self,
        query: Vectors,
        *,
        limit: int,
        including: Collection[int] = (),
        within: Rows | None = None,
    ) -> dict[int, float]:
        """See `Matrix.search`. Of those in the graph, it may miss some."""
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
        """About the best `limit` of the graph's; more, where it is not worth asking."""
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
        """Those of the graph's."""
        alive = np.setdiff1d(sequences[sequences <= self.graph.position], self.dead)
        scores: dict[int, float] = {}
        for start in range(0, len(alive), _AT_A_TIME):
            part = alive[start : start + _AT_A_TIME].tolist()
            numbers, vectors = self.truth.vectors_of(self.embedder, part)
            scores.update(zip(numbers.tolist(), cosines(vectors, query).tolist(), strict=True))
        return scores

    @property
    def changed(self) -> int:
        """How many vectors came or went since the graph was made."""
        return len(self.tail.sequences) + len(self.dead)

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.graph.nbytes + self.tail.nbytes + self.dead.nbytes

    def __len__(self) -> int:
        return self.graph.count - len(self.dead) + len(self.tail)
