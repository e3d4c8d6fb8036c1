"""Which passages a search returns, and in what order: by the scores of both indexes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Mode = Literal["hybrid", "lexical", "vector"]
"""Whether passages are found by words and meaning, by words, or by meaning."""

# --- ranking: which candidates to return, and in what order ----------------------------------

# The share of the possible score that a passage must have, 0 to 1. By words, 0.1 is a little more
# than a fifth of the query's words, by weight, each of them once in a passage of average length (a
# word that occurs once counts 1 / (k1 + 1) of the ceiling). By meaning, it is a tenth of the way
# from unrelated to equal.
_FLOOR = 0.1

_QUALITY_WEIGHT = 0.3  # quality's share of the score; the rest is relevance
_LOW_QUALITY = 7.0  # quality below this counts half, 0 to 10
_UNKNOWN_QUALITY = 0.5  # what counts for a passage that was not judged, 0 to 1


def score(relevance: float, quality: float | None) -> float:
    """One score, 0 to 1, of relevance, 0 to 1, and quality, 0 to 10 or None."""
    share = _UNKNOWN_QUALITY
    if quality is not None:
        share = quality / 10 if quality >= _LOW_QUALITY else quality / 20
    return (1 - _QUALITY_WEIGHT) * relevance + _QUALITY_WEIGHT * share


def recency(created: datetime | None, *, half_life_days: float | None, now: datetime) -> float:
    """Factor that each half-life since `created` halves; 1 if age does not count or is unknown."""
    if half_life_days is None or created is None:
        return 1.0
    days = max(0.0, (now - created) / timedelta(days=1))
    return float(0.5 ** (days / half_life_days))


def is_relevant(
    lexical: float | None, cosine: float | None, *, unrelated: float, ceiling: float
) -> bool:
    """Whether the mean of words and meaning, or the one that was measured, reaches the floor.

    Args:
        lexical: BM25 score; None if the lexical index was not asked or did not propose it.
        cosine: To the query; None if the vector index was not asked or had no answer.
        unrelated: The limit of the embedder's `unrelated_cosines`.
        ceiling: The BM25 score that no passage can exceed for this query; 0 if it has no words, or
            the lexical index was not asked.
    """
    shares = []
    if ceiling > 0:
        shares.append((lexical or 0) / ceiling)
    if cosine is not None:
        shares.append(max(0, cosine - unrelated) / (1 - unrelated))
    # The mean and not the greater: an unrelated text may have some of the words, or be a little
    # alike in meaning, but seldom both.
    return bool(shares) and sum(shares) / len(shares) > _FLOOR


# --- fusion: one score out of two ------------------------------------------------------------

Scores = Mapping[int, float]
"""Sequence number to score; more is better."""


def min_max(scores: Scores, *, zero: float) -> dict[int, float]:
    """Each score s as max(0, s - zero) / (max - zero): 1 for the best, 0 for `zero` and less."""
    # `zero` is the score of unrelated passages, and not the least of these scores, so that a
    # passage's score does not depend on how many others were proposed with it. In BM25 it is 0. For
    # an embedder that gives unrelated texts a cosine of 0.5, counting from 0 would make the best
    # and the worst nearly the same.
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

    Args:
        nearest: For each text its greatest cosine to a known text (n,); -1 if nothing is known.
        unrelated: The cosine above which two texts are related, below 1.
    """
    if not len(nearest):
        return 0.0
    # Clipped at 0, since rounding may take the cosine of equal texts a little above 1; and at 1,
    # since a text that is farther from all others than unrelated texts are is not newer for that.
    distance = np.clip((1 - nearest.astype(np.float64)) / (1 - unrelated), 0, 1)
    return float(10 * distance.mean())
