"""Findings: what an evaluation asks to be changed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, said so that a reviser can act on it."""

    message: str
    """What is wrong, and what would be right."""
    section: str | None = None
    """Title of the section it concerns, for people; None for the whole draft."""
    section_index: int | None = None
    """Which of `sections_of(draft)` that is: titles may repeat. None for the whole draft."""
    code: str = ""
    """What is wrong, for programs, such as `check.too-few`; empty where a model, or a function of
    the user's, says it."""
