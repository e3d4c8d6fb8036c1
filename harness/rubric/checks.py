"""Deterministic checks: functions with parameters that score a draft without any model.

Each is a small class whose fields are the parameters a rubric may set. `grade` gives a share from
0 (nothing right) to 1 (nothing wrong) and says what to change, section by section.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from harness.rubric.draft import Draft
from harness.rubric.ending import unfinished
from harness.rubric.finding import Finding
from harness.rubric.words import Value, numbers, phrase_pattern, terms, value, values_named, words

_NO_TEXT = Finding("there is no text")

_Phrase = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


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
        count = len(words(draft.text))
        complaint = self._complaint(count, "words in all")
        return Grade(self._share(count), (Finding(complaint),) if complaint else ())


class Sections(_Range):
    """The number of headings, without titles: those that only stand above deeper headings."""

    check: Literal["sections"] = "sections"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"The text has {self._range} sections."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        count = sum(section.level > 0 for _, section in draft.parts)
        complaint = self._complaint(count, "sections")
        return Grade(self._share(count), (Finding(complaint),) if complaint else ())


class SectionWords(_Range):
    """The number of words under each heading, titles excepted; without headings, in the draft."""

    check: Literal["section_words"] = "section_words"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"Each section has {self._range} words."

    def grade(self, draft: Draft) -> Grade:
        """The mean over the sections; text above the first heading is not one."""
        sections = [part for part in draft.parts if part[1].level] or draft.parts
        if not sections:
            return Grade(self._share(0), (_NO_TEXT,) if self.min else ())
        shares, findings = [], []
        for index, section in sections:
            count = len(words(section.body))
            shares.append(self._share(count))
            if complaint := self._complaint(count, "words in this section"):
                findings.append(Finding(complaint, section.title, index))
        return Grade(sum(shares) / len(shares), tuple(findings))


class Finished(Check):
    """Every section has a text, which does not break off; every code fence is closed.

    A list may do without full stops, and a colon may lead over to subsections.
    """

    check: Literal["finished"] = "finished"

    @property
    def requirement(self) -> str:
        """For the author."""
        return "Every section ends with a whole sentence."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections that are finished; 0 for a draft without text."""
        if not draft.parts:
            return Grade(0.0, (_NO_TEXT,))
        findings = tuple(
            Finding(fault, section.title, index)
            for index, section in draft.parts
            if (fault := unfinished(section, leads_over=draft.has_subsections(index)))
        )
        return Grade(_share_without(findings, len(draft.parts)), findings)


class Excludes(Check):
    """Phrases that must not occur: placeholders, talk about the task, boilerplate."""

    check: Literal["excludes"] = "excludes"
    phrases: tuple[_Phrase, ...] = Field(min_length=1)
    """Looked for as whole words, without regard to case and line breaks, in headings too."""

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"These do not occur: {', '.join(self.phrases)}."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections without any of the phrases."""
        findings = []
        for index, section in enumerate(draft.sections):
            if found := self._found_in(section.body):
                findings.append(Finding(f"remove {found}", section.title, index))
            elif found := self._found_in(section.title):
                # About the whole draft: a section that is written again keeps its heading.
                findings.append(Finding(f'remove {found} from the heading "{section.title}"'))
        return Grade(_share_without(findings, len(draft.sections)), tuple(findings))

    def _found_in(self, text: str) -> str:
        found = (phrase for phrase in self.phrases if phrase_pattern(phrase).search(text))
        return ", ".join(f'"{phrase}"' for phrase in found)


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
        seen: list[tuple[frozenset[str], frozenset[Value]]] = []
        findings = []
        for index, section, sentence in draft.sentences:
            said = frozenset(term for term in terms(sentence) if not term.isdecimal())
            values = frozenset(value(number) for number in numbers(sentence))
            if len(said) > 2 and any(
                values == earlier_values and _jaccard(said, earlier) >= self.similarity
                for earlier, earlier_values in seen
            ):
                findings.append(
                    Finding(f"this was said before: {_quoted(sentence)}", section.title, index)
                )
            seen.append((said, values))
        return Grade(_share_without(findings, len(seen)), tuple(findings))


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
        known = values_named(draft.evidence)
        total = 0
        findings = []
        for index, section in enumerate(draft.sections):
            found = numbers(section.body)
            total += len(found)
            findings += [
                Finding(f"the number {number} is not in the sources", section.title, index)
                for number in found
                if value(number) not in known
            ]
        return Grade(_share_without(findings, total), tuple(findings))


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
        sources = [frozenset(terms(source)) for source in draft.sources]
        findings = []
        for index, section, sentence in draft.sentences:
            # Words of four letters and more carry the matter; the rest are in every text.
            said = [term for term in terms(sentence) if len(term) >= 4]
            if not said:
                continue
            best = max((_share_in(said, source) for source in sources), default=0.0)
            if best < self.overlap:
                findings.append(
                    Finding(f"no source says this: {_quoted(sentence)}", section.title, index)
                )
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


def _jaccard(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 0.0


def _share_in(said: list[str], source: frozenset[str]) -> float:
    return sum(term in source for term in said) / len(said)


def _share_without(findings: Sequence[Finding], total: int) -> float:
    """The share of `total` that has no finding, of which each has at most one."""
    return 1 - len(findings) / total if total else 1.0


def _quoted(sentence: str, limit: int = 90) -> str:
    short = sentence if len(sentence) <= limit else sentence[: limit - 1].rstrip() + "…"
    return f'"{short}"'
