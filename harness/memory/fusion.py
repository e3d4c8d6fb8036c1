"""Fusion: one ranking out of two. Pure functions from scores, by sequence number, to scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import nlargest

Scores = Mapping[int, float]
"""Sequence number to score; more is better."""

Fusion = Callable[[Scores, Scores], dict[int, float]]
"""Lexical and vector scores in, fused scores out, for every passage that either has."""


LEAST_BM25 = 0.0
"""Of a passage without any of the query's words."""

LEAST_COSINE = -1.0
"""Of a passage that points the other way."""


def min_max(scores: Scores, *, least: float) -> dict[int, float]:
    """(s - least) / (max - least): the best becomes 1, the least score that there can be 0.

    By the least possible score and not by the least that was found, so that a passage's score does
    not hang on how many others were proposed with it.
    """
    high = max(scores.values(), default=least)
    if high <= least:
        return dict.fromkeys(scores, 0.0)
    return {sequence: (s - least) / (high - least) for sequence, s in scores.items()}


def convex_combination(lexical: Scores, vector: Scores, *, weight: float = 0.5) -> dict[int, float]:
    """The sum of weight x lexical and (1 - weight) x vector, both min-max normalised.

    A passage without a score in one lane has 0 there.

    Bruch, Gai, Ingber: "An Analysis of Fusion Functions for Hybrid Retrieval", ACM TOIS 2023
    (arXiv 2210.11934), where it beats reciprocal rank fusion in and out of domain, and normalising
    by the theoretical minimum is the choice that is stable.
    """
    lexical = min_max(lexical, least=LEAST_BM25)
    vector = min_max(vector, least=LEAST_COSINE)
    return {
        sequence: weight * lexical.get(sequence, 0) + (1 - weight) * vector.get(sequence, 0)
        for sequence in lexical | vector
    }


def reciprocal_rank_fusion(lexical: Scores, vector: Scores, *, k: int = 60) -> dict[int, float]:
    """The sum over both lanes of 1 / (k + rank), ranks from 1; nothing where a lane has none.

    Times (k + 1) / 2, so that the first of both lanes has 1: the order is the same, and the scores
    can be weighed against others.

    Cormack, Clarke, Büttcher: "Reciprocal Rank Fusion outperforms Condorcet and individual Rank
    Learning Methods", SIGIR 2009.
    """
    fused: dict[int, float] = {}
    for scores in (lexical, vector):
        best_first = sorted(scores, key=lambda sequence: (-scores[sequence], sequence))
        for rank, sequence in enumerate(best_first, start=1):
            fused[sequence] = fused.get(sequence, 0) + (k + 1) / 2 / (k + rank)
    return fused


def contenders(lexical: Scores, vector: Scores, *, fusion: Fusion, count: int) -> list[int]:
    """What only the vector lane proposes, and might be among the best `count` for its words, too.

    None of it can have a better score than the last that the lexical lane proposes.
    """
    others = vector.keys() - lexical.keys()
    if fusion is not convex_combination or not lexical:
        return list(others)  # a passage's score may hang on those of all others, as ranks do
    sure = fusion(lexical, vector)
    bar = min(nlargest(count, sure.values()))
    first, last = max(lexical.values()), min(lexical.values())
    gain = fusion({0: last, 1: first}, {})[0]
    return [sequence for sequence in others if sure[sequence] + gain >= bar]
