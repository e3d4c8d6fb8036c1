"""Reading the truth into a vector lane: all of it, or what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from harness.memory.embedder import Embedder, Vectors
from harness.memory.truth import Truth
from harness.memory.vector import hnsw, torch_matrix
from harness.memory.vector.approximate import Approximate
from harness.memory.vector.matrix import Block, Matrix, NumpyBlock, Rows

Device = Literal["cpu", "cuda"]
"""Where the vectors are."""

Held = Matrix | Approximate

_READ_AT_A_TIME = 4_000


class Reader:
    """Knows what a lane is to hold. For one thread at a time.

    Args:
        truth: Has the vectors.
        embedder: Whose.
        directory: Where the graph of a large store may be.
        device: Where the vectors go.
        exact_up_to: Beyond it a graph is looked for, unless they go to a GPU.

    Attributes:
        missing: How many passages had no vector at the last `read`.
    """

    def __init__(
        self, truth: Truth, embedder: Embedder, *, directory: Path, device: Device, exact_up_to: int
    ) -> None:
        self.missing = 0
        self._truth = truth
        self._embedder = embedder
        self._directory = directory
        self._device = device
        self._exact_up_to = exact_up_to
        self._complete_up_to = 0  # every passage up to there has a vector

    def trust_nothing(self) -> None:
        """Looks again, at the next `read`, whether old passages still have their vectors."""
        self._complete_up_to = 0

    def read(self, held: Held | None, position: int) -> tuple[Held, int]:
        """What a lane holds once the truth is read, and up to where; `None, 0` to begin with.

        It stays as it is while passages are without a vector.
        """
        if held is None or position < self._truth.compacted():
            held, position = self._beginning()
        last = self._truth.last_sequence()
        # Before the vectors are read: what is embedded in between is there by then.
        if self._lacks_vectors(position, last):
            return held, position
        if isinstance(held, Matrix) and not position:
            held = held.with_room(len(self._truth))  # at once, and not copied as it grows
        gone = self._truth.removed_between(position, last)
        # Asked after it: a compaction in between would have left nothing to be found there.
        if 0 < position < self._truth.compacted():
            return self.read(None, 0)
        held = held.without(gone)
        for numbers, vectors in self.vectors(position, last):
            held = held.with_more(numbers, vectors)
        return held, last

    def vectors(self, low: int, high: int) -> Iterator[tuple[Rows, Vectors]]:
        """Numbers (m,) and vectors (m, d), part by part: low < number <= high."""
        for start in range(low, high, _READ_AT_A_TIME):
            end = min(start + _READ_AT_A_TIME, high)
            yield self._truth.vectors_between(self._embedder, start, end)

    def _lacks_vectors(self, position: int, last: int) -> bool:
        """Whether a passage beyond `position` has none; notes how many."""
        complete = max(position, self._complete_up_to)
        lacking = self._truth.without_vector(self._embedder, 1, after=complete)
        if not lacking:
            self._complete_up_to, self.missing = last, 0
            return False
        first, _ = lacking[0]
        # To count them takes much longer than to find the first.
        if not self.missing or first > self._complete_up_to + 1:
            self.missing = max(1, self._truth.count_without_vector(self._embedder))
        self._complete_up_to = first - 1
        return True

    def _beginning(self) -> tuple[Held, int]:
        """What to begin with, and up to where that has read the truth."""
        if self._device == "cpu" and len(self._truth) > self._exact_up_to:
            graph = hnsw.Graph.load(self._directory, self._embedder)
            if graph and self._truth.compacted() <= graph.position <= self._truth.last_sequence():
                return Approximate.of(self._truth, self._embedder, graph), graph.position
        vectors = np.empty((0, self._embedder.dimensions), dtype=np.float32)
        block: Block = (
            torch_matrix.TorchBlock.of(vectors, device=self._device)
            if self._device == "cuda"
            else NumpyBlock(vectors, 0)
        )
        return Matrix.of(np.empty(0, dtype=np.int64), block), 0
