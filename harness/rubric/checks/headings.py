"""The headings of a draft: which there must be, in which order, at which levels."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import model_validator

from harness.compress import Section
from harness.errors import Mistake
from harness.rubric.checks.check import Check, Grade, Phrase, mean_of
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.words import terms


class Headings(Check):
    """Required headings, in order, and levels that go down one at a time.

    All findings are about the whole draft: a section that is written again keeps its heading.
    """

    check: Literal["headings"] = "headings"
    titles: tuple[Phrase, ...] = ()
    """Headings there must be, in this order; others may stand between them. Case, markup,
    punctuation and a number in front do not matter."""
    stepwise: bool = False
    """Whether each heading must be at most one level deeper than the one before it."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.titles and not self.stepwise:
            raise Mistake(
                "give 'titles', 'stepwise: true' or both", code="rubric.headings-ask-nothing"
            )
        wanted: dict[tuple[str, ...], str] = {}
        for title in self.titles:
            compared = _compared(title)
            if not compared:
                raise Mistake(
                    f"the title '{title}' has no letter and no digit to go by",
                    code="rubric.heading-without-words",
                )
            if compared in wanted:
                raise Mistake(
                    f"the titles '{wanted[compared]}' and '{title}' are the same",
                    code="rubric.heading-twice",
                )
            wanted[compared] = title
        return self

    @property
    def requirement(self) -> str:
        """For the author."""
        said = []
        if self.titles:
            said.append(f"There are these headings, in this order: {', '.join(self.titles)}.")
        if self.stepwise:
            said.append("No heading is more than one level deeper than the one before it.")
        return " ".join(said)

    def grade(self, draft: Draft) -> Grade:
        """The share of titles in place, the share of headings at their level, or the mean."""
        headings = [section for section in draft.sections if section.level]
        grades = []
        if self.titles:
            grades.append(self._grade_titles(headings))
        if self.stepwise:
            grades.append(_grade_levels(headings))
        return mean_of(grades)

    def _grade_titles(self, headings: list[Section]) -> Grade:
        places: dict[tuple[str, ...], int] = {}
        for place, section in enumerate(headings):
            places.setdefault(_compared(section.title), place)
            places.setdefault(tuple(terms(section.title)), place)
        found = {title: places.get(_compared(title)) for title in self.titles}
        kept = _longest_rising([place for place in found.values() if place is not None])
        findings = []
        for title, where in found.items():
            if where is None:
                findings.append(
                    Finding(
                        f'add the heading "{title}", which is missing', code="check.heading-missing"
                    )
                )
            elif where not in kept:
                order = ", ".join(f'"{name}"' for name in self.titles)
                findings.append(
                    Finding(
                        f'move the heading "{title}": the order is {order}',
                        code="check.heading-misplaced",
                    )
                )
        return Grade(1 - len(findings) / len(self.titles), tuple(findings))


def _grade_levels(headings: list[Section]) -> Grade:
    findings = []
    for before, section in pairwise(headings):
        if section.level > before.level + 1:
            findings.append(
                Finding(
                    f'the heading "{section.title}" has level {section.level} and follows one of '
                    f"level {before.level}; make it level {before.level + 1}",
                    code="check.level-skipped",
                )
            )
    return Grade(1 - len(findings) / max(1, len(headings) - 1), tuple(findings))


def _compared(title: str) -> tuple[str, ...]:
    """A title's words, without the number that it may have in front: `2.1 Results`."""
    words = terms(title)
    first = next((index for index, word in enumerate(words) if not word.isdecimal()), 0)
    return tuple(words[first:])


def _longest_rising(places: list[int]) -> set[int]:
    """The most of these distinct places that are in rising order, the earliest such."""
    longest: list[int] = []
    chains: list[list[int]] = []
    for place in places:
        chain: list[int] = []
        for earlier in chains:
            if earlier[-1] < place and len(earlier) > len(chain):
                chain = earlier
        chains.append([*chain, place])
        if len(chains[-1]) > len(longest):
            longest = chains[-1]
    return set(longest)
