"""Refuses passages with invisible characters, and those that a guard of the user refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from harness.memory.passage import Passage, Refusal

Guard = Callable[[Passage], str | None]
"""Says why a passage may not be stored; None if it may."""


def refusal_of(passage: Passage, guard: Guard | None) -> Refusal | None:
    """Why a passage may not be stored; None if it may."""
    # Invisible characters can carry text that a model reads and a person does not see. Whether
    # visible text means harm is for the user's guard to say: no list of phrases can decide that.
    names = hidden_characters((passage.searchable, passage.source))
    if names:
        code = "injection.hidden-characters"
        reason: str | None = f"holds invisible characters: {names}"
    else:
        code = "passage.guard-refused"
        reason = None if guard is None else guard(passage)
    if reason is None:
        return None
    return Refusal(id=passage.id, title=passage.title, code=code, reason=reason)


def hidden_characters(texts: Iterable[str]) -> str:
    """The first characters with a hidden message, at most 8, as `U+202E`; empty if there are none.

    Takes time linear in the length of the texts.
    """
    for text in texts:
        # Flags of parts of a country are spelled in tags, and end with a tag of their own.
        match = None if text.isascii() else _HIDDEN.search(_FLAG.sub("", text))
        if match is not None:
            return " ".join(f"U+{ord(character):04X}" for character in match[0][:8])
    return ""


_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e007a]{1,6}\U000e007f")
_HIDDEN = re.compile(
    "[\U000e0001-\U000e007f]"  # tags: ASCII, invisible
    "|\u202e"  # all that follows is drawn from right to left, whatever it is
    "|[\u00ad\u034f\u180e\u200b-\u200f\u2060-\u2064\u206a-\u206f\ufeff]{8,}"  # bits, of no width
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3,}"  # bytes, as variants of one character
)
