"""Texts that break off: empty sections, half sentences, code fences left open."""

from __future__ import annotations

from typing import Literal

from harness.errors import Notice
from harness.rubric.checks.check import NO_TEXT, Check, Grade, share_without
from harness.rubric.draft import Draft
from harness.rubric.ending import unfinished
from harness.rubric.finding import Finding

_OPEN_FENCE = Notice(code="check.fence-open", message="a code fence is never closed")


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
            return Grade(0.0, (NO_TEXT,))
        open_fence = {index for index, _, fence in draft.fences if not fence.closed}
        findings = tuple(
            Finding(fault.message, section.title, index, code=fault.code)
            for index, section in draft.parts
            if (
                fault := _OPEN_FENCE
                if index in open_fence
                else unfinished(section, leads_over=draft.has_subsections(index))
            )
        )
        return Grade(share_without(findings, len(draft.parts)), findings)
