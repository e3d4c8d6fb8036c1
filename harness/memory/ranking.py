"""Search: asks both indexes, fuses their scores, and fetches the best passages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from heapq import nsmallest
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from harness.errors import InferenceError, MemoryStoreFailed
from harness.memory.embedder import Embedder, UnrelatedCosines, Vectors, embed, unrelated_cosines
from harness.memory.lexical import LexicalIndex
from harness.memory.passage import Hit, Hits, WantedTags
from harness.memory.primary import PrimaryStore, judgement
from harness.memory.vector_index import VectorIndex

Mode = Literal["hybrid", "lexical", "vector"]
"""By words and meaning, by words, by meaning."""

# How many passages each index proposes for fusion, at least. What the lexical index does not
# propose counts 0 for its words. On the Cranfield collection nDCG@10 is the same from 40, 100 and
# all 1,400.
_PROPOSALS = 100


class Searcher:
    """Asks the indexes of one store. May be used from any thread."""

    def __init__(
        self,
        *,
        primary: PrimaryStore,
        lexical: LexicalIndex,
        vector: VectorIndex,
        embedder: Embedder,
    ) -> None:
        self.primary = primary
        self.lexical = lexical
        self.vector = vector
        self.embedder = embedder
        self._unrelated: UnrelatedCosines | None = None

    def search(
        self,
        query: str,
        *,
        limit: int,
        mode: Mode,
        where: WantedTags | None,
        half_life_days: float | None,
        until: int,
    ) -> Hits:
        """The best passages, considering all writes up to `until` at least.

        See `MemoryStore.search`.
        """
        # 1. What each index proposes, if it is available.
        lexical, vector, fallback = self._scores(query, mode, limit=limit, where=where, until=until)
        # 2. One score of both, and what else counts for the best. An old passage may be among them
        # though many are more relevant, if age counts.
        mean, unrelated = (0.0, 0.0) if vector is None else self.unrelated()
        fused = fuse(lexical, vector, least_cosine=mean)
        count = _candidates_for(limit) if half_life_days is None else len(fused)
        best = nsmallest(count, fused, key=lambda sequence: (-fused[sequence], sequence))
        # With their texts, since each question to a server takes longer than what it reads.
        rows = self.primary.rows(best)
        # 3. The best of these by relevance, age and quality, of equals the older first.
        ceiling = 0.0 if lexical is None else self.lexical.ceiling(query)
        words, cosines = lexical or {}, vector or {}
        now = datetime.now(UTC)
        scores = {
            sequence: score(
                fused[sequence] * recency(created, half_life_days=half_life_days, now=now), quality
            )
            for sequence, (quality, created) in zip(
                rows, map(judgement, rows.values()), strict=True
            )
            if is_relevant(
                words.get(sequence), cosines.get(sequence), unrelated=unrelated, ceiling=ceiling
            )
        }
        ranked = sorted(scores, key=lambda sequence: (-scores[sequence], sequence))
        hits = [
            Hit(
                passage=self.primary.whole(rows[sequence]),
                rank=place,
                score=scores[sequence],
                fused=fused[sequence],
                lexical=words.get(sequence),
                vector=cosines.get(sequence),
            )
            for place, sequence in enumerate(ranked[:limit], start=1)
        ]
        return Hits(hits, fallback=fallback)

    def novelty(self, texts: Sequence[str]) -> float:
        """See `MemoryStore.novelty`."""
        batch = embed(self.embedder, texts)
        self.vector.catch_up()
        nearest = np.array([self._nearest(vector) for vector in batch], dtype=np.float32)
        return novelty(nearest, unrelated=self.unrelated().limit)

    def _nearest(self, vector: Vectors) -> float:
        """The greatest cosine of a passage to a vector (d,) of unit length; -1 without passages."""
        if not vector.any():
            return 1.0  # it says nothing
        cosines = self.vector.search(vector, limit=1)
        if cosines is None:
            raise MemoryStoreFailed(
                "novelty is measured by the vector index, which is unavailable "
                f"({self.vector.unavailable})",
                path=str(self.primary.place),
                code="memory.lane-away",
            )
        return max(cosines.values(), default=-1.0)

    def unrelated(self) -> UnrelatedCosines:
        """The embedder's `unrelated_cosines`, computed once."""
        if self._unrelated is None:
            self._unrelated = unrelated_cosines(self.embedder)
        return self._unrelated

    def _scores(
        self, query: str, mode: Mode, *, limit: int, where: WantedTags | None, until: int
    ) -> tuple[dict[int, float] | None, dict[int, float] | None, str | None]:
        """Scores by words, by meaning (None if not asked), and why there are none by meaning."""
        # More than are returned: only scores that both indexes propose can be fused.
        depth = max(_candidates_for(limit), _PROPOSALS)
        # In this order, so that the vector index scores all that the lexical index proposes.
        by_words = partial(self.lexical.search, query, limit=depth, where=where, until=until)
        lexical = None if mode == "vector" else by_words()
        if mode == "lexical":
            return lexical, None, None
        vector, reason = self._by_meaning(query, depth, including=lexical or (), where=where)
        if lexical is None and reason is not None:
            lexical = by_words()
        return lexical, vector, reason

    def _by_meaning(
        self, query: str, depth: int, *, including: Collection[int], where: WantedTags | None
    ) -> tuple[dict[int, float] | None, str | None]:
        """Cosines by sequence number, or why there are none."""
        self.vector.catch_up()
        if reason := self.vector.unavailable:
            return None, reason
        try:
            (embedded,) = embed(self.embedder, [query])
            self.unrelated()
        except InferenceError as error:
            return None, f"the query cannot be embedded: {error}"
        within = None if where is None else self.primary.tagged(where)
        cosines = self.vector.search(embedded, limit=depth, including=including, within=within)
        return cosines, (self.vector.unavailable or "it is closed") if cosines is None else None


# --- ranking: which candidates to return, and in what order ----------------------------------

# How much of what is possible a passage must have, 0 to 1. By words, 0.1 is a little more than a
# fifth of the query's, by weight, each once in a passage of average length (once is worth
# 1 / (k1 + 1) of the ceiling); by meaning, a tenth of the way from unrelated to equal.
_FLOOR = 0.1


# How many passages are weighed for each that is asked for, and at least.
_CANDIDATES_PER_HIT = 3
_LEAST_CANDIDATES = 12

_QUALITY_WEIGHT = 0.3  # quality's share of the score; the rest is relevance
_LOW_QUALITY = 7.0  # quality below this counts half, 0 to 10
_UNKNOWN_QUALITY = 0.5  # what counts for a passage that was not judged, 0 to 1


def _candidates_for(limit: int) -> int:
    return max(_LEAST_CANDIDATES, _CANDIDATES_PER_HIT * limit)


def score(relevance: float, quality: float | None) -> float:
    """Relevance, 0 to 1, and quality, 0 to 10 or None, as one, 0 to 1."""
    share = _UNKNOWN_QUALITY
    if quality is not None:
        share = quality / 10 if quality >= _LOW_QUALITY else quality / 20
    return (1 - _QUALITY_WEIGHT) * relevance + _QUALITY_WEIGHT * share


def recency(created: datetime | None, *, half_life_days: float | None, now: datetime) -> float:
    """Halved by each half-life since `created`; 1 if age does not count or is unknown."""
    if half_life_days is None or created is None:
        return 1.0
    days = max(0.0, (now - created) / timedelta(days=1))
    return float(0.5 ** (days / half_life_days))


def is_relevant(
    lexical: float | None, cosine: float | None, *, unrelated: float, ceiling: float
) -> bool:
    """Whether the mean of words and meaning, or the one that was measured, reaches the floor.

    The mean and not the better one: unrelated text has some of the words, or is a little alike in
    meaning, but seldom both.

    Args:
        lexical: BM25 score; None if the lexical index was not asked or did not propose it.
        cosine: To the query; None if the vector index was not asked or had no answer.
        unrelated: The limit of the embedder's `unrelated_cosines`.
        ceiling: The BM25 score that no passage can exceed for this query; 0 if it has no words, or
            the lexical index was not asked.
    """
    measures = []
    if ceiling > 0:
        measures.append((lexical or 0) / ceiling)
    if cosine is not None:
        measures.append(max(0, cosine - unrelated) / (1 - unrelated))
    return bool(measures) and sum(measures) / len(measures) > _FLOOR


# --- fusion: one score out of two ------------------------------------------------------------

Scores = Mapping[int, float]
"""Sequence number to score; more is better."""


def min_max(scores: Scores, *, zero: float) -> dict[int, float]:
    """max(0, s - least) / (max - least): the best becomes 1; `least`, and what is below it, 0.

    By the score of unrelated passages and not by the least that was found, so that a passage's
    score does not depend on how many others were proposed with it. BM25 gives unrelated ones 0.
    Cosines begin where the embedder has unrelated texts: by one that puts them at 0.5, the best
    and the worst would otherwise count nearly the same.
    """
    high = max(scores.values(), default=zero)
    if high <= zero:
        return dict.fromkeys(scores, 0.0)
    return {
        sequence: (s - zero) / (high - zero) if s > zero else 0.0 for sequence, s in scores.items()
    }


def fuse(lexical: Scores | None, vector: Scores | None, *, least_cosine: float) -> dict[int, float]:
    """The mean of the scores, each min-max normalized, 0 to 1. A missing score counts 0.

    Bruch, Gai, Ingber: "An Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 2023
    (arXiv 2210.11934), where it beats reciprocal rank fusion in and out of domain, and normalizing
    by a fixed minimum is the stable choice.

    Args:
        lexical: BM25 scores; None if that index was not asked.
        vector: Cosines; None if that index was not asked.
        least_cosine: The mean of the embedder's `unrelated_cosines`.
    """
    lanes = [
        min_max(scores, zero=zero)
        for scores, zero in ((lexical, 0.0), (vector, least_cosine))
        if scores is not None
    ]
    fused: dict[int, float] = {}
    for lane in lanes:
        for sequence, share in lane.items():
            fused[sequence] = fused.get(sequence, 0.0) + share / len(lanes)
    return fused


# --- novelty ---------------------------------------------------------------------------------


def novelty(nearest: NDArray[np.float32], *, unrelated: float) -> float:
    """10 x the mean of min(1, (1 - cosine) / (1 - unrelated)): how new a batch of texts is.

    A text that is known word for word adds 0. One that is no nearer to a known text than unrelated
    texts are to each other adds the most: farther away is not newer. An empty batch has 0.

    Args:
        nearest: For each text its greatest cosine to a known text (n,); -1 if nothing is known.
        unrelated: The cosine above which two texts are related, below 1.
    """
    if not len(nearest):
        return 0.0
    # Clipped at both ends: rounding takes the cosine of equal texts a little above 1.
    distance = np.clip((1 - nearest.astype(np.float64)) / (1 - unrelated), 0, 1)
    return float(10 * distance.mean())
