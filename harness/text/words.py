"""Words: as people count them, and as they are compared."""

from __future__ import annotations

import re
from collections.abc import Iterable
from operator import add

from harness.text.folding import folded
from harness.text.languages import HANGUL, MARKS, UNSPACED

_LETTERS = rf"[^\W_]+(?:[{MARKS}\u200c\u200d]+[^\W_]*)*"
_TERM = re.compile(rf"\w[\w{MARKS}\u200c\u200d]*")
# One mark between letters or digits does not part a word: `don't`, `1,024`, `e.g`, `and/or`, `a_b`.
_WORD = re.compile(rf"{_LETTERS}(?:[-'\u2019\u2010.,/_]{_LETTERS})*")
_RUN = re.compile(f"([{UNSPACED}{HANGUL}]+)")
# Texts without any later character, in which to look for runs takes a third of the time.
_LATER = re.compile("[\u0e00-\U0003ffff]")
_PUNCTUATION = re.compile(f"[^\\w{MARKS}]")
# Tone marks and the like of the scripts without blanks, which tokenizers take for gaps.
_SIGNS = re.compile(
    "[\u0e3a\u0e47-\u0e4c\u0e4e\u0eba\u0ec8-\u0ecc\u1037\u1039\u103a\u17c6-\u17d3\u17dd]+"
)


def words(text: str) -> list[str]:
    """Words as people count them, where blanks part them: see `has_blanks`."""
    return _WORD.findall(text)


def terms(text: str, language: str | None = None) -> list[str]:
    """Words as they are compared, folded; each two neighbors where no blanks part words."""
    text = folded(text, language).replace("_", " ")
    rest, *pieces = _RUN.split(text) if _LATER.search(text) else [text]
    found = _TERM.findall(rest)
    for run, rest in zip(pieces[::2], pieces[1::2], strict=True):
        # Faster by a half than to cut what `in_twos` has put together.
        is_plain = run.isalnum() or not _PUNCTUATION.search(run)
        found += _twos(run) if is_plain else _TERM.findall(" ".join(_twos(run)))
        if rest != " ":
            found += _TERM.findall(rest)
    return found


def is_long(term: str) -> bool:
    """Whether a term tells what a text is about: a word of four letters, or a pair of neighbors."""
    return len(term) >= 4 or _RUN.match(term) is not None


def in_twos(text: str) -> str:
    """The text with each two letters of scripts without blanks as a word (Lucene's CJKAnalyzer)."""
    if not _LATER.search(text):
        return text
    return _RUN.sub(lambda run: f" {' '.join(_twos(run[0]))} ", text)


def _twos(run: str) -> Iterable[str]:
    letters = run if run >= "\u3000" else _SIGNS.sub("", run)
    return map(add, letters, letters[1:]) if letters[1:] else [letters]
