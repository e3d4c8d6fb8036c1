"""The memory store: passages go in, the best few for a query come out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Literal, Self, get_args

from harness.errors import InvalidInput, did_you_mean
from harness.memory.embedder import Embedder, WordLlamaEmbedder, embed
from harness.memory.fusion import Fusion, convex_combination
from harness.memory.lexical import LexicalLane
from harness.memory.passage import Hit, Passage
from harness.memory.truth import Truth
from harness.memory.vector import VectorLane

Mode = Literal["hybrid", "lexical", "vector"]

# How many passages each lane proposes for fusion. On the Cranfield collection nDCG@10 is 0.384
# from 100, 0.385 from 200 and 0.384 from 1,000.
_CANDIDATES = 100


class MemoryStore:
    """A directory of passages, searched by words, by meaning, or both.

    Every method may be called from any thread (`asyncio.to_thread`); calls take turns. Made for
    one process at a time: a second one finds what the first stored, but may be told to try again.
    """

    def __init__(
        self,
        *,
        truth: Truth,
        lexical: LexicalLane,
        vector: VectorLane,
        embedder: Embedder,
        fusion: Fusion,
    ) -> None:
        self._truth = truth
        self._lexical = lexical
        self._vector = vector
        self._embedder = embedder
        self._fusion = fusion
        self._lock = Lock()

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        embedder: Embedder | None = None,
        fusion: Fusion = convex_combination,
    ) -> Self:
        """Open the store in the directory `path`, or make one there.

        Lanes that are behind catch up; a damaged one is rebuilt. Without an `embedder` it is
        `WordLlamaEmbedder`. Raises `MemoryStoreFailed`, also when the passages there were
        embedded by another embedder.
        """
        directory = Path(path)
        embedder = embedder or WordLlamaEmbedder()
        truth = Truth(directory)
        try:
            vector = VectorLane(embedder)
            vector.catch_up(truth)
            lexical = LexicalLane.open(directory / "lexical", truth)
        except BaseException:
            truth.close()
            raise
        return cls(truth=truth, lexical=lexical, vector=vector, embedder=embedder, fusion=fusion)

    def add(self, passages: Iterable[Passage]) -> int:
        """Store passages; returns how many were new. Those with a known id change nothing.

        When this returns they are durable. The lanes read them at the next search, so many small
        calls cost one commit of the index, not many.
        """
        passages = list(passages)  # before the lock: making them may take long, or search here
        with self._lock:
            new = [passage for passage in passages if not self._truth.holds(passage)]
            vectors = embed(self._embedder, [passage.searchable for passage in new])
            blobs = (vector.astype("<f4").tobytes() for vector in vectors)
            return self._truth.add(zip(new, blobs, strict=True), embedder=self._embedder.name)

    def search(self, query: str, *, limit: int = 4, mode: Mode = "hybrid") -> list[Hit]:
        """The best `limit` passages for `query`, best first; fewer when fewer are found.

        Any text is a query; a blank one finds nothing.
        """
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; it must be at least 1")
        if mode not in get_args(Mode):
            raise InvalidInput(f"no search mode '{mode}'; {did_you_mean(mode, get_args(Mode))}")
        # Replies of models do hold halves of surrogate pairs, which nothing below can encode.
        query = query.encode(errors="replace").decode()
        if not query.strip():
            return []
        with self._lock:
            # In this order, so that the vector lane holds all that the lexical lane proposes.
            self._lexical.catch_up(self._truth)
            self._vector.catch_up(self._truth)
            lexical, vector = self._scores(query, mode, depth=max(limit, _CANDIDATES))
            fused = self._fusion(lexical, vector) if mode == "hybrid" else lexical or vector
            best = sorted(fused, key=lambda sequence: (-fused[sequence], sequence))[:limit]
            return [
                Hit(
                    passage=self._truth.passage(sequence),
                    score=fused[sequence],
                    lexical=lexical.get(sequence),
                    vector=vector.get(sequence),
                    rank=rank,
                )
                for rank, sequence in enumerate(best, start=1)
            ]

    def close(self) -> None:
        """Close the files. Nothing is lost when this is never called."""
        with self._lock:
            self._truth.close()

    def __len__(self) -> int:
        with self._lock:
            return len(self._truth)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _scores(
        self, query: str, mode: Mode, *, depth: int
    ) -> tuple[dict[int, float], dict[int, float]]:
        """What each lane gives `query`; a lane that `mode` leaves out gives nothing."""
        lexical, vector = {}, {}
        if mode != "vector":
            lexical = self._lexical.search(query, limit=depth)
        if mode != "lexical":
            (embedded,) = embed(self._embedder, [query])
            # With a cosine for all that the other lane proposes. Without, they would count as the
            # worst of this lane's candidates: 0.379 instead of 0.384 in the figure above.
            vector = self._vector.search(embedded, limit=depth, including=lexical)
        return lexical, vector
