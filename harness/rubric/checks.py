"""Deterministic checks: functions with parameters that score a draft without any model.

Each is a small class whose fields are the parameters a rubric may set. `grade` gives a share from
0 (nothing right) to 1 (nothing wrong) and says what to change, section by section.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

_WORD = re.compile(r"[^\W_]+(?:[-'\u2019][^\W_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE_END = re.compile(r"[.!?\u2026:][\"'\u201d\u2019)\]*_`]*$")


@dataclass(frozen=True, slots=True)
class Grade:
    """What a check found."""

    share: float
    """From 0 to 1."""
    findings: tuple[Finding, ...] = ()
    """What keeps it from 1."""


class Check(BaseModel):
    """The base of all checks; `check` in a rubric names which one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @property
    @abstractmethod
    def requirement(self) -> str:
        """What a draft must be like, as an author is told."""

    @abstractmethod
    def grade(self, draft: Draft) -> Grade:
        """Scores a draft."""


class _Range(Check):
    """A count that must lie between two bounds."""

    min: int = Field(default=0, ge=0)
    """The least allowed."""
    max: int | None = Field(default=None, ge=1)
    """The most allowed; no limit when left out."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.max is None and self.min == 0:
            raise ValueError("give 'min', 'max' or both")
        return self

    @property
    def _range(self) -> str:
        """The bounds in words."""
        if self.max is None:
            return f"at least {self.min}"
        return f"{self.min} to {self.max}" if self.min else f"at most {self.max}"

    def _share(self, count: int) -> float:
        """1 inside the range, falling off with the distance from it."""
        if count < self.min:
            return count / self.min
        if self.max is not None and count > self.max:
            return max(0.0, 1 - (count - self.max) / self.max)
        return 1.0

    def _complaint(self, count: int, what: str) -> str | None:
        if count < self.min:
            return f"{count} {what}; at least {self.min} are needed"
        if self.max is not None and count > self.max:
            return f"{count} {what}; at most {self.max} are allowed"
        return None


class Words(_Range):
    """The number of words in the whole draft."""

    check: Literal["words"] = "words"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"The whole text has {self._range} words."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        count = len(_words(draft.text))
        complaint = self._complaint(count, "words in all")
        return Grade(self._share(count), (Finding(complaint),) if complaint else ())


class Sections(_Range):
    """The number of headings."""

    check: Literal["sections"] = "sections"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"The text has {self._range} sections."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        count = sum(section.level > 0 for section in draft.sections)
        complaint = self._complaint(count, "sections")
        return Grade(self._share(count), (Finding(complaint),) if complaint else ())


class SectionWords(_Range):
    """The number of words under each heading."""

    check: Literal["section_words"] = "section_words"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"Each section has {self._range} words."

    def grade(self, draft: Draft) -> Grade:
        """The mean over the sections; a title alone at the top is not a section."""
        shares, findings = [], []
        for section in draft.sections:
            if section.level == 1 and not section.body.strip():
                continue
            count = len(_words(section.body))
            shares.append(self._share(count))
            if complaint := self._complaint(count, "words in this section"):
                findings.append(Finding(complaint, section.title))
        return Grade(_mean(shares), tuple(findings))


class Finished(Check):
    """Every section ends with a finished sentence, and every code fence is closed."""

    check: Literal["finished"] = "finished"

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Every section ends with a whole sentence."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections that are finished."""
        findings = []
        sections = [s for s in draft.sections if s.body.strip()]
        for section in sections:
            fences = re.findall(r"(?m)^ {0,3}(```|~~~)", section.body)
            if len(fences) % 2:
                findings.append(Finding("a code fence is never closed", section.title))
            elif not (fences or _SENTENCE_END.search(section.body.rstrip())):
                findings.append(Finding("the last sentence breaks off; finish it", section.title))
        return Grade(_share_without(findings, len(sections)), tuple(findings))


class Excludes(Check):
    """Phrases that must not occur: placeholders, talk about the task, boilerplate."""

    check: Literal["excludes"] = "excludes"
    phrases: tuple[str, ...] = Field(min_length=1)
    """Looked for without regard to case."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"These do not occur: {', '.join(self.phrases)}."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections without any of the phrases."""
        findings = []
        for section in draft.sections:
            body = section.body.lower()
            found = [phrase for phrase in self.phrases if phrase.lower() in body]
            if found:
                listed = ", ".join(f'"{phrase}"' for phrase in found)
                findings.append(Finding(f"remove {listed}", section.title))
        return Grade(_share_without(findings, len(draft.sections)), tuple(findings))


class NoRepetition(Check):
    """No sentence is said twice, whether in one section or in two."""

    check: Literal["no_repetition"] = "no_repetition"
    similarity: float = Field(default=0.8, gt=0, le=1)
    """Two sentences repeat each other from this share of common words on (Jaccard index)."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Nothing is said twice."

    def grade(self, draft: Draft) -> Grade:
        """The share of sentences that say something for the first time."""
        seen: list[frozenset[str]] = []
        findings = []
        for section, sentence in draft.sentences:
            words = frozenset(_words(sentence.lower()))
            if any(_jaccard(words, earlier) >= self.similarity for earlier in seen):
                findings.append(
                    Finding(f"this was said before: {_quoted(sentence)}", section.title)
                )
            seen.append(words)
        return Grade(_share_without(findings, len(seen)), tuple(findings))


class GroundedNumbers(Check):
    """Every number stands in the sources or in the task."""

    check: Literal["grounded_numbers"] = "grounded_numbers"

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Every number stands in the sources."

    def grade(self, draft: Draft) -> Grade:
        """The share of numbers that have a source; 1 when there are none."""
        known = {_plain(number) for number in _NUMBER.findall(draft.evidence)}
        found = 0
        findings = []
        for section in draft.sections:
            numbers = _NUMBER.findall(_without_list_marks(section.body))
            found += len(numbers)
            findings += [
                Finding(f"the number {number} is not in the sources", section.title)
                for number in numbers
                if _plain(number) not in known
            ]
        return Grade(_share_without(findings, found), tuple(findings))


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
        sources = [frozenset(_words(source.lower())) for source in draft.sources]
        findings = []
        for section, sentence in draft.sentences:
            # Words of four letters and more carry the matter; the rest are in every text.
            words = [word for word in _words(sentence.lower()) if len(word) >= 4]
            if not words:
                continue
            best = max((_share_in(words, source) for source in sources), default=0.0)
            if best < self.overlap:
                findings.append(Finding(f"no source says this: {_quoted(sentence)}", section.title))
        return Grade(_share_without(findings, len(draft.sentences)), tuple(findings))


AnyCheck = Annotated[
    Words
    | Sections
    | SectionWords
    | Finished
    | Excludes
    | NoRepetition
    | GroundedNumbers
    | GroundedSentences,
    Field(discriminator="check"),
]

"""What stands in a rubric's `checks`: the field `check` says which class it is."""

CHECKS: dict[str, type[Check]] = {
    check.model_fields["check"].default: check
    for check in (
        Words,
        Sections,
        SectionWords,
        Finished,
        Excludes,
        NoRepetition,
        GroundedNumbers,
        GroundedSentences,
    )
}
"""Every check by the name rubrics use."""


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _plain(number: str) -> str:
    """1,024 and 1024 are the same number; so are 0.50 and 0.5."""
    digits = number.replace(",", "")
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _without_list_marks(text: str) -> str:
    """Ordered lists number their items; those numbers claim nothing."""
    return re.sub(r"(?m)^\s*\d+[.)]\s", "", text)


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 0.0


def _share_in(words: list[str], source: frozenset[str]) -> float:
    return sum(word in source for word in words) / len(words)


def _share_without(findings: Iterable[Finding], total: int) -> float:
    return 1 - min(1.0, len(list(findings)) / total) if total else 1.0


def _mean(shares: list[float]) -> float:
    return sum(shares) / len(shares) if shares else 0.0


def _quoted(sentence: str, limit: int = 90) -> str:
    short = sentence if len(sentence) <= limit else sentence[: limit - 1].rstrip() + "…"
    return f'"{short}"'
