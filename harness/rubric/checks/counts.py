"""Counts that must lie in a range: words, sections, words of a section, items of lists."""

from __future__ import annotations

import re
from typing import Literal

from harness.compress import Section
from harness.rubric.checks.check import NO_TEXT, Grade, InRange
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.words import words

_NUMBER_BEFORE_ITEM = re.compile(r"\s*\d{1,9}[.)]")

ItemKind = Literal["any", "numbered", "bullets"]
_ITEMS: dict[ItemKind, str] = {
    "any": "list items",
    "numbered": "numbered list items",
    "bullets": "bullet points",
}


class Words(InRange):
    """The number of words in the whole draft."""

    check: Literal["words"] = "words"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"The whole text has {self._range} words."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        count = len(words(draft.text))
        return Grade(self._share(count), self._findings(count, "words in all"))


class Sections(InRange):
    """The number of headings, without titles: those that only stand above deeper headings."""

    check: Literal["sections"] = "sections"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"The text has {self._range} sections."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        count = sum(section.level > 0 for _, section in draft.parts)
        return Grade(self._share(count), self._findings(count, "sections"))


class SectionWords(InRange):
    """The number of words under each heading, titles excepted; without headings, in the draft."""

    check: Literal["section_words"] = "section_words"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"Each section has {self._range} words."

    def grade(self, draft: Draft) -> Grade:
        """The mean over the sections; text above the first heading is not one."""
        if not draft.chapters:
            return Grade(self._share(0), (NO_TEXT,) if self.min else ())
        shares: list[float] = []
        findings: list[Finding] = []
        for index, section in draft.chapters:
            count = len(words(section.body))
            shares.append(self._share(count))
            findings += self._findings(count, "words in this section", section, index)
        return Grade(sum(shares) / len(shares), tuple(findings))


class Items(InRange):
    """The number of list items. Items inside items do not count, nor do dashes in code.

    A count that is off by one costs little, and a list that one section alone has is mended there:
    all or nothing would drive an author to redo a good text for the sake of its arithmetic.
    """

    check: Literal["items"] = "items"
    kind: ItemKind = "any"
    """`numbered` counts those of enumerated lists (`1.`), `bullets` those of the others."""
    scope: Literal["draft", "section"] = "draft"
    """What is counted: all items of the draft, or those of each section for itself."""

    @property
    def requirement(self) -> str:
        """For the author."""
        whose = "The whole text" if self.scope == "draft" else "Each section"
        return f"{whose} has {self._range} {_ITEMS[self.kind]}."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range; with `scope: section`, the mean of them."""
        return self._grade_all(draft) if self.scope == "draft" else self._grade_each(draft)

    def _grade_all(self, draft: Draft) -> Grade:
        counts = [self._count(section) for section in draft.sections]
        listing = [index for index, count in enumerate(counts) if count]
        place = (draft.sections[listing[0]], listing[0]) if len(listing) == 1 else ()
        findings = self._findings(sum(counts), f"{_ITEMS[self.kind]} in all", *place)
        return Grade(self._share(sum(counts)), findings)

    def _grade_each(self, draft: Draft) -> Grade:
        if not draft.chapters:
            return Grade(self._share(0), (NO_TEXT,) if self.min else ())
        shares: list[float] = []
        findings: list[Finding] = []
        for index, section in draft.chapters:
            count = self._count(section)
            shares.append(self._share(count))
            what = f"{_ITEMS[self.kind]} in this section"
            findings += self._findings(count, what, section, index)
        return Grade(sum(shares) / len(shares), tuple(findings))

    def _count(self, section: Section) -> int:
        items = [block.text for block in section.blocks if block.kind == "item"]
        if self.kind == "any":
            return len(items)
        numbered = sum(_NUMBER_BEFORE_ITEM.match(item) is not None for item in items)
        return numbered if self.kind == "numbered" else len(items) - numbered
