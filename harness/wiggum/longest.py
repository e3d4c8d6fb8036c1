"""The longest draft that there may be, by which is told what its evaluation takes at most."""

from __future__ import annotations

from dataclasses import replace

from harness.rubric import Draft

_MOST_CHARS_PER_TOKEN = 6
"""High, so that a draft is not longer than was expected: in English there are about four."""


def lengthened(draft: Draft, *, tokens: int) -> Draft:
    """The draft, longer by so many tokens' worth of words."""
    words = tokens * _MOST_CHARS_PER_TOKEN // len(" word")
    return replace(draft, text=draft.text + " word" * words)
