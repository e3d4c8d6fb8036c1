"""What a draft says, held against the sources: numbers, names, sentences.

Without sources there is nothing to hold it against: then these judge nothing, and say so.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Literal

from pydantic import Field

from harness.rubric.checks.check import Check, Grade, Phrase, quoted, share_without
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.names import Name, identifier_parts, names_in
from harness.rubric.words import numbers, terms, value, values_named

_NO_SOURCES = Grade(1.0, unjudged="there are no sources")


class GroundedNumbers(Check):
    """Every number stands in the sources or in the task, in digits or, up to twelve, in words.

    1,024 is 1024 and 0.50 is 0.5. The marks of lists (`1.`) and references (`[1]`) do not count.
    """

    check: Literal["grounded_numbers"] = "grounded_numbers"

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Every number stands in the sources."

    def grade(self, draft: Draft) -> Grade:
        """The share of numbers that have a source; 1 when there are none."""
        if not draft.has_sources:
            return _NO_SOURCES
        known = values_named(draft.evidence)
        total = 0
        findings = []
        for index, section in enumerate(draft.sections):
            found = numbers(section.body)
            total += len(found)
            findings += [
                Finding(
                    f"the number {number} is not in the sources",
                    section.title,
                    index,
                    code="check.number-not-in-sources",
                )
                for number in found
                if value(number) not in known
            ]
        return Grade(share_without(findings, total), tuple(findings))


class GroundedNames(Check):
    """Every name stands in the sources or in the task, word by word.

    Names are words that are capitalised in mid-sentence, with those that follow them (`Ada
    Lovelace`), words with capitals inside (`PyTorch`, `vLLM`), and identifiers in backticks. The
    capital of a sentence's first word tells nothing, nor do those of a line all in capitals.
    """

    check: Literal["grounded_names"] = "grounded_names"
    allowed: tuple[Phrase, ...] = ()
    """Names that need no source."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Every name stands in the sources."

    def grade(self, draft: Draft) -> Grade:
        """The share of names that have a source, each counted once a section; 1 without any."""
        if not draft.has_sources:
            return _NO_SOURCES
        evidence = "\n".join((draft.evidence, *self.allowed))
        words, identifiers = set(terms(evidence)), set(identifier_parts(evidence))
        named = {
            (index, name): section
            for index, section, sentence in draft.sentences
            for name in names_in(sentence)
        }
        findings = tuple(
            Finding(
                f"the name {name.text} is not in the sources",
                section.title,
                index,
                code="check.name-not-in-sources",
            )
            for (index, name), section in named.items()
            if not _is_known(name, identifiers if name.exact else words)
        )
        return Grade(share_without(findings, len(named)), findings)


class GroundedSentences(Check):
    """Every sentence is made mostly of words that the sources use."""

    check: Literal["grounded_sentences"] = "grounded_sentences"
    overlap: float = Field(default=0.6, gt=0, le=1)
    """The share of a sentence's longer words that must occur in one source."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Every sentence rests on the sources and uses their words."

    def grade(self, draft: Draft) -> Grade:
        """The share of sentences that rest on some source."""
        if not draft.has_sources:
            return _NO_SOURCES
        sources = [frozenset(terms(source)) for source in draft.sources]
        findings = []
        for index, section, sentence in draft.sentences:
            # Words of four letters and more carry the matter; the rest are in every text.
            said = [term for term in terms(sentence) if len(term) >= 4]
            if said and max(_share_in(said, source) for source in sources) < self.overlap:
                findings.append(
                    Finding(
                        f"no source says this: {quoted(sentence)}",
                        section.title,
                        index,
                        code="check.not-in-sources",
                    )
                )
        return Grade(share_without(findings, len(draft.sentences)), tuple(findings))


def _share_in(said: Sequence[str], source: frozenset[str]) -> float:
    return sum(term in source for term in said) / len(said)


def _is_known(name: Name, known: Set[str]) -> bool:
    # `GPUs` are known from a source that speaks of a GPU.
    return all(part in known or part.removesuffix("s") in known for part in name.parts)
