"""Words, as people count them and as they are compared.

Of `Don't merge API 1,024 中国人`:

- `words` counts Don't, merge, API, 1,024, 中国人
- `terms` compares don, t, merge, api, 1, 024, 中国, 国人
- `terms` that are `is_long`, and `matter_of` in `compress/markdown.py`: merge, 中国, 国人
- `words_in` in `compress/condense.py`: don, merge, api, 1,024, 中国, 国人
"""

from __future__ import annotations

import re
from operator import add

from harness.text.folding import folded
from harness.text.languages import HANGUL, MARKS, UNSPACED

_LETTERS = rf"[^\W_]+(?:[{MARKS}\u200c\u200d]+[^\W_]*)*"
_TERM = re.compile(rf"\w[\w{MARKS}\u200c\u200d]*")
# An address is one word. One mark between letters or digits does not part a word: `don't`, `1,024`,
# `e.g`, `and/or`, `a_b`.
_WORD = re.compile(rf"https?://[^\s()<>\[\]]+|{_LETTERS}(?:[-'\u2019\u2010.,/_]{_LETTERS})*")
_UNSPACED_RUN = re.compile(f"[{UNSPACED}{HANGUL}]+")
# Texts without these need no search for such runs, which takes longer than all the rest.
_MAY_BE_UNSPACED = re.compile("[\u0e00-\u1dff\u3005-\U0003ffff]")
# Tone marks and the like of Thai, Lao, Burmese and Khmer, which tokenizers take for gaps.
_TONE_MARKS = re.compile(
    "[\u0e3a\u0e47-\u0e4c\u0e4e\u0eba\u0ec8-\u0ecc\u1037\u1039\u103a\u17c6-\u17d3\u17dd]+"
)


def words(text: str) -> list[str]:
    """Words as people count them, where blanks part them: see `has_blanks`."""
    return _WORD.findall(text)


def terms(text: str, language: str | None = None) -> list[str]:
    """Words as they are compared, folded; pairs of letters in scripts without blanks."""
    return _TERM.findall(in_twos(folded(text, language)).replace("_", " "))


def is_long(term: str) -> bool:
    """Whether a term tells what a text is about: a word of four letters, or a pair of neighbors."""
    return len(term) >= 4 or _UNSPACED_RUN.match(term) is not None


def in_twos(text: str) -> str:
    """The text with each two letters of scripts without blanks as a word (Lucene's CJKAnalyzer)."""
    return _UNSPACED_RUN.sub(_twos, text) if _MAY_BE_UNSPACED.search(text) else text


def _twos(run: re.Match[str]) -> str:
    # Kana and Han begin at U+3000, and have none.
    letters = run[0] if run[0] >= "\u3000" else _TONE_MARKS.sub("", run[0])
    return f" {' '.join(map(add, letters, letters[1:])) or letters} "
