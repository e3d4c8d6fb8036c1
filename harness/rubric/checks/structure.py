"""Checks of how a draft is built: its length, sections, list items and headings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.compress import Section
from harness.compress.markdown import shown_text
from harness.errors import Mistake
from harness.rubric.checks.base import Check, Grade, InRange, Phrase
from harness.rubric.draft import Draft, Finding, items_of_scripts, visible_text
from harness.text.languages import Language, has_blanks
from harness.text.words import terms, words

# Not the joiners: they make one emoji of several, and shape letters.
_NO_WIDTH = re.compile("[\u00ad\u200b\u200e\u200f\u2060\ufeff]")
_BULLET = re.compile("\\s*[-*+•・\u2013]")

ItemKind = Literal["any", "numbered", "bullets"]
_ITEMS: dict[ItemKind, str] = {
    "any": "list items",
    "numbered": "numbered list items",
    "bullets": "bullet points",
}

NO_WORDS = Grade(
    1.0, unjudged="not for this language: no blanks part its words; give a range of 'characters'"
)


class Words(InRange):
    """The number of words in the whole draft, in scripts that part words by blanks."""

    check: Literal["words"] = "words"

    asks: ClassVar[str] = "The whole text has {self._range} words."
    not_for = ("no-blanks",)

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        if not has_blanks(draft.visible):
            return NO_WORDS
        return self._grade(draft, len(words(shown_text(draft.visible))), "words in all")


class Characters(InRange):
    """The number of characters that a reader sees, with single blanks between words."""

    check: Literal["characters"] = "characters"

    asks: ClassVar[str] = "The whole text has {self._range} characters."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        visible = " ".join(_NO_WIDTH.sub("", shown_text(draft.visible)).split())
        count = len(visible)
        if not visible.isascii():
            import regex  # type: ignore[import-untyped]  # noqa: PLC0415 - for such texts alone

            # Grapheme clusters (UAX 29) are what a reader takes for one character: `é` may be two
            # code points, and a family of emoji seven.
            count = len(regex.findall(r"\X", visible))
        return self._grade(draft, count, "characters in all")


class Sections(InRange):
    """The number of headings, without titles, which only stand above deeper headings."""

    check: Literal["sections"] = "sections"

    asks: ClassVar[str] = "The text has {self._range} sections."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range."""
        return self._grade(draft, sum(section.level > 0 for _, section in draft.parts), "sections")


class SectionWords(InRange):
    """The number of words under each heading, titles excepted; without headings, in the draft."""

    check: Literal["section_words"] = "section_words"

    asks: ClassVar[str] = "Each section has {self._range} words."
    not_for = ("no-blanks",)

    def grade(self, draft: Draft) -> Grade:
        """The mean over the sections; text above the first heading is not one."""
        if not has_blanks(draft.visible):
            return NO_WORDS
        return self._grade_each(
            draft,
            lambda part: len(words(shown_text(visible_text(part.blocks)))),
            "words in this section",
        )


class Items(InRange):
    """The number of top-level list items: none inside items or quotations, no dashes in code."""

    check: Literal["items"] = "items"
    kind: ItemKind = "any"
    """`numbered` counts those of enumerated lists (`1.`), `bullets` those of the others."""
    scope: Literal["draft", "section"] = "draft"
    """What is counted: all items of the draft, or those of each section for itself."""

    @property
    def requirement(self) -> str:
        """What the author is told, in one sentence."""
        whose = "The whole text" if self.scope == "draft" else "Each section"
        return f"{whose} has {self._range} {_ITEMS[self.kind]}."

    def grade(self, draft: Draft) -> Grade:
        """Falls off with the distance from the range; with `scope: section`, the mean of them."""
        what = f"top-level {_ITEMS[self.kind]}"
        if self.scope == "section":
            return self._grade_each(draft, self._count, f"{what} in this section")
        counts = [self._count(section) for section in draft.sections]
        with_items = [index for index, count in enumerate(counts) if count]
        # If one section alone has items, the finding is about that section: an author must not redo
        # a good text for the sake of its arithmetic.
        index = with_items[0] if len(with_items) == 1 else None
        return self._grade(draft, sum(counts), f"{what} in all", index)

    def _count(self, section: Section) -> int:
        items = [block.text for block in section.blocks if block.kind == "item"]
        items += [line for block in section.blocks for line in items_of_scripts(block)]
        if self.kind == "any":
            return len(items)
        numbered = sum(_BULLET.match(item) is None for item in items)
        return numbered if self.kind == "numbered" else len(items) - numbered


class Headings(Check):
    """Required headings, in order."""

    check: Literal["headings"] = "headings"
    titles: tuple[Phrase, ...] = Field(min_length=1)
    """Headings there must be, in this order; others may stand between them. Case, markup,
    punctuation and a number in front do not matter."""

    asks: ClassVar[str] = "There are these headings, in this order: {self._listed}."

    @model_validator(mode="after")
    def _check(self) -> Self:
        by_words: dict[tuple[str, ...], str] = {}
        for title in self.titles:
            compared = _compared(title)
            if not compared:
                raise Mistake(
                    f"the title '{title}' has no letter or digit to match",
                    code="rubric.heading-without-words",
                )
            if compared in by_words:
                raise Mistake(
                    f"the titles '{by_words[compared]}' and '{title}' are the same",
                    code="rubric.heading-twice",
                )
            by_words[compared] = title
        return self

    @property
    def _listed(self) -> str:
        return ", ".join(self.titles)

    def grade(self, draft: Draft) -> Grade:
        """The share of titles in place."""
        forms_of_titles = [{*_forms(title, draft.language)} for title in self.titles]
        # For the place of each title in the list, the longest run of titles in order up to it.
        runs: dict[int, tuple[int, ...]] = {}
        for heading in (section.title for section in draft.sections if section.level):
            # As written too: what looks like a tag may be a word, as in `List<T>`.
            forms = {*_forms(heading, draft.language), *_forms(shown_text(heading), draft.language)}
            for place, forms_of_title in enumerate(forms_of_titles):
                if not forms_of_title.isdisjoint(forms):
                    earlier = _longest(run for last, run in runs.items() if last < place)
                    runs[place] = (*earlier, place)
        in_order = _longest(runs.values())
        order = ", ".join(f'"{title}"' for title in self.titles)
        # Findings are about the whole draft: a section that is written again keeps its heading.
        findings = []
        for place, title in enumerate(self.titles):
            if place not in runs:
                message = f'add the heading "{title}", which is missing'
                findings.append(Finding(message, code="check.heading-missing"))
            elif place not in in_order:
                message = f'move the heading "{title}": the order is {order}'
                findings.append(Finding(message, code="check.heading-misplaced"))
        return Grade(1 - len(findings) / len(self.titles), tuple(findings))


def _longest(runs: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest of these; of several, the one with the first titles."""
    return min(runs, key=lambda run: (-len(run), run), default=())


def _forms(title: str, language: Language | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A title's words by no language and by this one."""
    # A Turkish I is no i, but in German SS is ß in a heading.
    return _compared(title), _compared(title, language)


def _compared(title: str, language: Language | None = None) -> tuple[str, ...]:
    """A title's words, without a number in front: `2.1 Results`."""
    words = terms(title, language)
    first = next((index for index, word in enumerate(words) if not word.isnumeric()), 0)
    return tuple(words[first:])
