"""Ranking: which candidates are worth giving back, and in what order. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.errors import InvalidInput
from harness.memory.found import Hit
from harness.memory.passage import Passage


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A passage that a lane proposed."""

    passage: Passage
    """What was proposed."""
    sequence: int
    """The number of the write that last changed it; of equals, the older goes first."""
    fused: float
    """How relevant, 0 to 1, compared with the others that were proposed."""
    lexical: float | None
    """BM25 score; None without any of the query's words, or when that lane was not asked."""
    vector: float | None
    """Cosine to the query; None when the vector lane was not asked, or could not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What a passage must reach to have anything to do with a query."""

    cosine: float
    """Above which two texts do, by this embedder: its `unrelated_cosine`."""
    ceiling: float
    """The BM25 score that no passage can exceed for this query; 0 when it has no words, or when
    the lexical lane was not asked."""
    share: float = 0.1
    """How near the passage must be, 0 to 1, of what there can be. By words, 0.1 is some more than a
    fifth of the query's, by weight, each once in a passage of average length (once is worth
    1 / (k1 + 1) of the ceiling); by meaning, a tenth of the way from unrelated to the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """How much a passage's quality counts beside its relevance, and what is left out."""

    candidates_per_hit: int = 3
    """How many passages are weighed for each that is asked for; never less than 12 in all."""
    quality_weight: float = 0.3
    """Of the score, how much is quality; the rest is relevance."""
    low_quality: float = 7.0
    """Quality below this counts half, 0 to 10."""
    unknown_quality: float = 0.5
    """What counts for a passage that nobody judged, 0 to 1."""

    def __post_init__(self) -> None:
        limits = {"quality_weight": 1, "low_quality": 10, "unknown_quality": 1}
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise InvalidInput(
                    f"{name} is {getattr(self, name)}; it must lie between 0 and {most}",
                    code="memory.ranking-out-of-range",
                )
        if self.candidates_per_hit < 1:
            raise InvalidInput(
                f"candidates_per_hit is {self.candidates_per_hit}; it must be at least 1",
                code="memory.no-candidates",
            )

    def candidates(self, limit: int) -> int:
        """How many passages to weigh when `limit` are asked for."""
        return max(12, self.candidates_per_hit * limit)

    def score(self, candidate: Candidate) -> float:
        """Relevance and quality as one, 0 to 1."""
        quality = self.unknown_quality
        if (judged := candidate.passage.quality) is not None:
            quality = judged / 10 if judged >= self.low_quality else judged / 20
        return (1 - self.quality_weight) * candidate.fused + self.quality_weight * quality


def is_relevant(candidate: Candidate, *, floor: Floor) -> bool:
    """Whether words and meaning together, or what there is of the two, reach the floor.

    Their mean, and not the better one: what is unrelated has some of the words, or is a little
    alike in meaning, but seldom both.
    """
    measures = []
    if floor.ceiling > 0:
        measures.append((candidate.lexical or 0) / floor.ceiling)
    if candidate.vector is not None:
        measures.append(max(0, candidate.vector - floor.cosine) / (1 - floor.cosine))
    return bool(measures) and sum(measures) / len(measures) > floor.share


def rank(
    candidates: Sequence[Candidate], *, limit: int, ranking: Ranking, fallback: str | None
) -> list[Hit]:
    """The best `limit` candidates, best first; of equal ones, the older first."""
    scored = [(ranking.score(candidate), candidate) for candidate in candidates]
    scored.sort(key=lambda pair: (-pair[0], pair[1].sequence))
    return [
        Hit(
            passage=candidate.passage,
            rank=place,
            score=score,
            fused=candidate.fused,
            lexical=candidate.lexical,
            vector=candidate.vector,
            fallback=fallback,
        )
        for place, (score, candidate) in enumerate(scored[:limit], start=1)
    ]
