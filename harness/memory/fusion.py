"""Fusion: one ranking out of two. Pure functions from scores, by sequence number, to scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Scores = Mapping[int, float]
"""Sequence number to score; more is better."""

Fusion = Callable[[Scores, Scores], dict[int, float]]
"""Lexical and vector scores in, fused scores out, for every passage that either has."""


def min_max(scores: Scores) -> dict[int, float]:
    """(s - min) / (max - min): the best becomes 1, the worst 0.

    When all are equal they become 1, since being found at all is what they have.
    """
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if low == high:
        return dict.fromkeys(scores, 1.0)
    return {sequence: (s - low) / (high - low) for sequence, s in scores.items()}


def convex_combination(lexical: Scores, vector: Scores, *, weight: float = 0.5) -> dict[int, float]:
    """The sum of weight x lexical and (1 - weight) x vector, both min-max normalised.

    A passage without a score in one lane has 0 there.

    Bruch, Gai, Ingber: "An Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 2023
    (arXiv 2210.11934), where it beats reciprocal rank fusion in and out of domain.
    """
    lexical, vector = min_max(lexical), min_max(vector)
    return {
        sequence: weight * lexical.get(sequence, 0) + (1 - weight) * vector.get(sequence, 0)
        for sequence in lexical | vector
    }


def reciprocal_rank_fusion(lexical: Scores, vector: Scores, *, k: int = 60) -> dict[int, float]:
    """The sum over both lanes of 1 / (k + rank), ranks from 1; nothing where a lane has none.

    Cormack, Clarke, Büttcher: "Reciprocal Rank Fusion outperforms Condorcet and individual Rank
    Learning Methods", SIGIR 2009.
    """
    fused: dict[int, float] = {}
    for scores in (lexical, vector):
        best_first = sorted(scores, key=lambda sequence: (-scores[sequence], sequence))
        for rank, sequence in enumerate(best_first, start=1):
            fused[sequence] = fused.get(sequence, 0) + 1 / (k + rank)
    return fused
