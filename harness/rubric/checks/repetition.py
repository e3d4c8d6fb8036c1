"""Sentences that say what was said before."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from pydantic import Field

from harness.rubric.checks.check import Check, Grade, quoted, share_without
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.words import Value, numbers, terms, value

_Said = tuple[frozenset[str], frozenset[Value]]
"""What a sentence says: its words, and the numbers it names."""


class NoRepetition(Check):
    """No sentence is said twice, whether in one section or in two.

    Sentences of one or two words may be, and a sentence with other numbers says something else.
    """

    check: Literal["no_repetition"] = "no_repetition"
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Two sentences repeat each other from this share of common words on (Jaccard index)."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Nothing is said twice."

    def grade(self, draft: Draft) -> Grade:
        """The share of sentences that say something for the first time."""
        all_said = [_said(sentence) for _, _, sentence in draft.sentences]
        seen = _Seen(all_said, similarity=self.similarity)
        findings = []
        for (index, section, sentence), said in zip(draft.sentences, all_said, strict=True):
            if len(said[0]) > 2 and seen.has_like(said):
                findings.append(
                    Finding(
                        f"this was said before: {quoted(sentence)}",
                        section.title,
                        index,
                        code="check.repeated",
                    )
                )
            seen.add(said)
        return Grade(share_without(findings, len(all_said)), tuple(findings))


class _Seen:
    """The sentences so far, found again by their rarest words.

    Two sets of at least a share `t` of common words have one in common among the first
    `n - ceil(t * n) + 1` of each, when both are sorted alike: the prefix filter of Chaudhuri,
    Ganti and Kaushik, "A primitive operator for similarity joins" (ICDE 2006). Sorted from the
    rarest on, that leaves few to compare. Comparing each with all would take the square of time.
    """

    def __init__(self, all_said: list[_Said], *, similarity: float) -> None:
        self._similarity = similarity
        self._count = Counter(word for words, _ in all_said for word in words)
        self._known: set[_Said] = set()
        self._by_word: dict[tuple[str, frozenset[Value]], list[frozenset[str]]] = {}

    def has_like(self, said: _Said) -> bool:
        """Whether a sentence before names the same numbers in the same words, or nearly so."""
        words, values = said
        return said in self._known or any(
            _jaccard(words, earlier) >= self._similarity
            for word in self._rarest(words)
            for earlier in self._by_word.get((word, values), ())
        )

    def add(self, said: _Said) -> None:
        """Notes a sentence."""
        if said in self._known:
            return
        self._known.add(said)
        words, values = said
        for word in self._rarest(words):
            self._by_word.setdefault((word, values), []).append(words)

    def _rarest(self, words: frozenset[str]) -> list[str]:
        # A hair less, lest the product be rounded up over a whole number.
        needed = math.ceil(self._similarity * len(words) - 1e-9)
        ranked = sorted(words, key=lambda word: (self._count[word], word))
        return ranked[: len(words) - needed + 1]


def _said(sentence: str) -> _Said:
    words = frozenset(term for term in terms(sentence) if not term.isdecimal())
    return words, frozenset(value(number) for number in numbers(sentence))


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    common = len(a & b)
    return common / (len(a) + len(b) - common) if a or b else 0.0
