"""Drafts to be checked, and what was found in them."""

from __future__ import annotations

from harness.rubric import Draft
from harness.rubric.checks import Grade


def draft(text: str, *sources: str, task: str = "") -> Draft:
    return Draft(text=text, task=task, sources=sources)


def found(grade: Grade) -> list[tuple[str, int | None]]:
    """What the findings say, and about which section."""
    return [(finding.message, finding.section_index) for finding in grade.findings]
