"""Searching: both lanes are asked, their scores become one, and the best passages are fetched."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from heapq import nsmallest

from harness.errors import InferenceError, MemoryStoreFailed
from harness.memory.embedder import Embedder, Vectors, embed
from harness.memory.found import Hits
from harness.memory.fusion import LEAST_BM25, LEAST_COSINE, Fusion, contenders, min_max
from harness.memory.lexical import LexicalLane
from harness.memory.protocol import Mode
from harness.memory.ranking import Candidate, Floor, Ranking, is_relevant, rank
from harness.memory.truth import Truth
from harness.memory.unrelated import unrelated_cosine
from harness.memory.vector import VectorLane
from harness.memory.where import Where

# How many passages each lane proposes for fusion, at least. On the Cranfield collection nDCG@10 is
# the same from 50, 100, 200 and all 1,400.
_PROPOSALS = 100


class Searcher:
    """Asks the lanes of one store. May be used from any thread.

    Args:
        truth: Has the passages.
        lexical: Knows their words.
        vector: Knows their meaning, as long as it is there.
        embedder: Whose vectors it has.
        fusion: Makes one score of both lanes'.
        ranking: How quality and titles count.
    """

    def __init__(
        self,
        *,
        truth: Truth,
        lexical: LexicalLane,
        vector: VectorLane,
        embedder: Embedder,
        fusion: Fusion,
        ranking: Ranking,
    ) -> None:
        self._truth = truth
        self._lexical = lexical
        self._vector = vector
        self._embedder = embedder
        self._fusion = fusion
        self._ranking = ranking
        self._unrelated: float | None = None

    def search(
        self, query: str, *, limit: int, mode: Mode, where: Where | None, until: int
    ) -> Hits:
        """The best passages, with all writes considered up to `until` at least.

        See `MemoryStore.search`.
        """
        # 1. What each lane proposes, as far as it is there.
        self._lexical.catch_up(until=until)
        scores = self._scores(query, mode, limit=limit, where=where)
        # 2. One score of both, and the passages with the best.
        fused = scores.fused(self._fusion)
        count = self._ranking.candidates(limit)
        best = nsmallest(count, fused, key=lambda sequence: (-fused[sequence], sequence))
        candidates = self._candidates(best, fused, scores)
        # 3. The best of these, quality and titles considered.
        floor = Floor(
            cosine=self.unrelated() if scores.by_meaning else 0,
            ceiling=self._lexical.ceiling(query) if scores.by_words else 0,
        )
        relevant = [one for one in candidates if is_relevant(one, floor=floor)]
        hits = rank(relevant, limit=limit, ranking=self._ranking, fallback=scores.fallback)
        return Hits(hits, fallback=scores.fallback)

    def nearest(self, vector: Vectors) -> float:
        """The greatest cosine of a passage to a vector (d,) of unit length; -1 without passages.

        Raises:
            MemoryStoreFailed: The vector lane is away, and nothing else can say.
        """
        if not vector.any():
            return 1.0  # nothing is said
        found = self._vector.search(vector, limit=1)
        if found is None:
            raise MemoryStoreFailed(
                f"novelty is told by the vector lane, which is away ({self._vector.unavailable})",
                path=self._truth.directory,
                code="memory.lane-away",
            )
        return max(found.values(), default=-1.0)

    def unrelated(self) -> float:
        """The embedder's cosine of texts about different things: asked once, and kept."""
        if self._unrelated is None:
            known = self._truth.unrelated(self._embedder)
            if known is None:
                known = unrelated_cosine(self._embedder)
                if not self._truth.read_only:
                    self._truth.set_unrelated(self._embedder, known)
            self._unrelated = known
        return self._unrelated

    def _scores(self, query: str, mode: Mode, *, limit: int, where: Where | None) -> _Scores:
        """What each lane gives a query, as far as it is asked and there."""
        depth = max(self._ranking.candidates(limit), _PROPOSALS)
        # In this order, so that the vector lane has all that the lexical lane proposes.
        lexical: dict[int, float] = {}
        vector: dict[int, float] = {}
        fallback = None
        if mode != "vector":
            lexical = self._lexical.search(query, limit=depth, where=where)
        if mode != "lexical":
            try:
                vector = self._by_meaning(query, depth=depth, including=lexical, where=where)
            except _Away as away:
                fallback = str(away)
        if mode == "hybrid" and len(lexical) == depth:  # else these are all that have any word
            count = self._ranking.candidates(limit)
            hopeful = contenders(lexical, vector, fusion=self._fusion, count=count)
            lexical |= self._lexical.scores(query, hopeful)
        elif mode == "vector" and fallback:
            lexical = self._lexical.search(query, limit=depth, where=where)
        return _Scores(
            lexical=lexical,
            vector=vector,
            by_words=mode != "vector" or fallback is not None,
            by_meaning=mode != "lexical" and fallback is None,
            fallback=fallback,
        )

    def _by_meaning(
        self, query: str, *, depth: int, including: Collection[int], where: Where | None
    ) -> dict[int, float]:
        """Cosines; raises `_Away` when they cannot be had."""
        self._vector.catch_up()
        if reason := self._vector.unavailable:
            raise _Away(reason)
        try:
            (embedded,) = embed(self._embedder, [query])
            self.unrelated()
        except InferenceError as error:
            raise _Away(f"the query cannot be embedded: {error}") from error
        within = None if where is None else self._truth.tagged(where)
        found = self._vector.search(embedded, limit=depth, including=including, within=within)
        if found is None:
            raise _Away(self._vector.unavailable or "evicted")
        return found

    def _candidates(
        self, best: list[int], fused: dict[int, float], scores: _Scores
    ) -> Iterator[Candidate]:
        passages = self._truth.fetch(best)
        for sequence in best:
            if sequence in passages:  # and was not deleted meanwhile
                yield Candidate(
                    passage=passages[sequence],
                    sequence=sequence,
                    fused=fused[sequence],
                    lexical=scores.lexical.get(sequence),
                    vector=scores.vector.get(sequence),
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """What the lanes gave, by sequence number."""

    lexical: dict[int, float]
    vector: dict[int, float]
    by_words: bool
    by_meaning: bool
    fallback: str | None

    def fused(self, fusion: Fusion) -> dict[int, float]:
        """One score of what there is, 0 to 1."""
        if self.by_words and self.by_meaning:
            return fusion(self.lexical, self.vector)
        if self.by_meaning:
            return min_max(self.vector, least=LEAST_COSINE)
        return min_max(self.lexical, least=LEAST_BM25)


class _Away(Exception):
    """The vector lane cannot answer."""
