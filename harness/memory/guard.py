"""Text that speaks to a model instead of about something, by what such text is known to look like.

A filter and not security: it stops what is copied from the well-known attacks, and whoever knows
these patterns words around them. What is only quoted, as articles about such attacks do, passes.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from harness.memory.injections import PATTERNS

_EXCERPT_CHARACTERS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """Why a text looks like an instruction to a model."""

    code: str
    """Which kind it is, such as `injection.drop-instructions`."""
    reason: str
    """What it does, such as `tells a model to drop its instructions`."""
    excerpt: str
    """The words that do, a line of 120 characters at most; invisible ones as `U+202E`."""


def injected_instruction(text: str) -> Suspicion | None:
    """The first thing about a text that looks like an instruction to a model, if there is one.

    In time linear in the text's length, whatever the text is.
    """
    if not text.isascii():
        # 1. What no reader sees.
        hidden = _hidden(text)
        if hidden is not None:
            return hidden
        # 2. Letters that only look other than they are.
        text = _plain(text)
    # 3. Words. Case is folded once, so that every pattern begins with letters that are quick to
    # find; none begins with a condition, which would be tried at each character.
    folded = text.lower()
    for pattern in PATTERNS:
        if any(needle in folded for needle in pattern.needles):
            for count, match in enumerate(pattern.expression.finditer(folded)):
                if count == _MANY or pattern.is_meant(match):
                    return Suspicion(
                        code=pattern.code, reason=pattern.reason, excerpt=_excerpt(match)
                    )
    return None


_MANY = 1000
"""Nobody quotes so many: they are looked at no further, and believed."""


def _hidden(text: str) -> Suspicion | None:
    # As bytes, four searches for a few bytes each tell that there is nothing to look at; a
    # pattern would look at each character. Half a surrogate pair is nothing of the kind.
    encoded = text.encode(errors="replace")
    if not any(start in encoded for start in _HIDDEN_STARTS):
        return None
    # Flags of parts of a country are spelt in tags, and end with one of their own.
    shown = _FLAG.sub("", text)
    match = _HIDDEN.search(shown)
    if match is None:
        return None
    names = " ".join(f"U+{ord(character):04X}" for character in match[0][:8])
    return Suspicion(
        code="injection.hidden-characters",
        reason="holds characters that no reader sees",
        excerpt=names,
    )


_HIDDEN_STARTS = (b"\xf3\xa0", b"\xe2\x80\xae", b"\xe2\x80\x8b", b"\xe2\x80\x8c", b"\xef\xb8\x80")
_FLAG = re.compile("\U0001f3f4[\U000e0030-\U000e007a]{1,6}\U000e007f")
_HIDDEN = re.compile(
    "[\U000e0001-\U000e007f]"  # tags: ASCII, invisible
    "|\u202e"  # all that follows is drawn from right to left, whatever it is
    "|[\u200b-\u200d\u2060]{8,}"  # bits, as characters of no width
    "|[\ufe00-\ufe0f\U000e0100-\U000e01ef]{3,}"  # bytes, as variants of one character
)


def _plain(text: str) -> str:
    """The text with full-width and mathematical letters as letters, and no breaks in words."""
    encoded = text.encode(errors="replace")
    if any(start in encoded for start in (b"\xef\xbc", b"\xef\xbd", b"\xf0\x9d")):
        text = unicodedata.normalize("NFKC", text)
    if b"\xe2\x80\x8b" in encoded or b"\xe2\x80\x8c" in encoded or b"\xc2\xad" in encoded:
        text = text.translate(_WIDTHLESS)
    return text.replace("\u2019", "'")


_WIDTHLESS = dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xAD))


def _excerpt(match: re.Match[str]) -> str:
    start, end = match.span()
    return " ".join(match.string[start : max(end, start + 80)].split())[:_EXCERPT_CHARACTERS]
