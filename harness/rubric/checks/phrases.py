"""Phrases that must, or must not, occur."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.rubric.checks.check import Check, Grade, Phrase, share_without
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.words import phrase_pattern


class _Phrases(Check):
    """Phrases that are looked for."""

    phrases: tuple[Phrase, ...] = Field(min_length=1)
    """Looked for as whole words, without regard to case and line breaks, in headings too."""

    @property
    def _listed(self) -> str:
        return ", ".join(self.phrases)

    def _found_in(self, text: str) -> list[str]:
        return [phrase for phrase in self.phrases if phrase_pattern(phrase).search(text)]


class Excludes(_Phrases):
    """Phrases that must not occur: placeholders, talk about the task, boilerplate."""

    check: Literal["excludes"] = "excludes"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"These do not occur: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """The share of sections without any of the phrases."""
        findings = []
        for index, section in enumerate(draft.sections):
            if found := self._found_in(section.body):
                findings.append(
                    Finding(
                        f"remove {_quoted(found)}",
                        section.title,
                        index,
                        code="check.phrase-excluded",
                    )
                )
            elif found := self._found_in(section.title):
                # About the whole draft: a section that is written again keeps its heading.
                findings.append(
                    Finding(
                        f'remove {_quoted(found)} from the heading "{section.title}"',
                        code="check.phrase-excluded",
                    )
                )
        return Grade(share_without(findings, len(draft.sections)), tuple(findings))


class ContainsAll(_Phrases):
    """Phrases that must all occur, each somewhere in the draft."""

    check: Literal["contains_all"] = "contains_all"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"All of these occur: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """The share of phrases that occur."""
        found = self._found_in(draft.text)
        findings = tuple(
            Finding(f'say "{phrase}" where it belongs', code="check.phrase-missing")
            for phrase in self.phrases
            if phrase not in found
        )
        return Grade(share_without(findings, len(self.phrases)), findings)


class ContainsAny(_Phrases):
    """Phrases of which at least one must occur."""

    check: Literal["contains_any"] = "contains_any"

    @property
    def requirement(self) -> str:
        """For the author."""
        return f"At least one of these occurs: {self._listed}."

    def grade(self, draft: Draft) -> Grade:
        """All or nothing."""
        if self._found_in(draft.text):
            return Grade(1.0)
        return Grade(
            0.0,
            (Finding(f"say one of these: {_quoted(self.phrases)}", code="check.phrase-missing"),),
        )


def _quoted(phrases: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f'"{phrase}"' for phrase in phrases)
