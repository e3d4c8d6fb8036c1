"""Forms of one word, by the dictionaries of simplemma: `Häuser` and `Haus`, but not `Hausarzt`.

Stemmers cut endings off: for them, `several` and `severe` are one word.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec

from harness.rubric.draft import Language

WITHOUT_DICTIONARY = frozenset({"ta"})
"""Of the languages of rubrics, those whose forms are not known."""

_CODES = {"no": "nb"}
_WORD = re.compile(r"[^\W_]+")


def is_installed() -> bool:
    """Whether the dictionaries are there."""
    return find_spec("simplemma") is not None


def phrases_in(text: str, phrases: Iterable[str], language: Language) -> set[str]:
    """The phrases of which forms of all words stand in a row in a text."""
    words = _lemmas_of(text, language)
    return {phrase for phrase in phrases if _stands_in(_lemmas_of(phrase, language), words)}


def _stands_in(phrase: Sequence[frozenset[str]], words: Sequence[frozenset[str]]) -> bool:
    rows = (words[start : start + len(phrase)] for start in range(len(words) - len(phrase) + 1))
    return bool(phrase) and any(
        all(not word.isdisjoint(forms) for word, forms in zip(phrase, row, strict=True))
        for row in rows
    )


def _lemmas_of(text: str, language: Language) -> list[frozenset[str]]:
    words = _WORD.findall(unicodedata.normalize("NFC", text))
    return [_lemmas(word, language) for word in words]


@lru_cache(maxsize=50_000)
def _lemmas(word: str, language: Language) -> frozenset[str]:
    """What a word may be a form of: its capital may be of a noun, or of a sentence."""
    import simplemma  # noqa: PLC0415 - an extra; a dictionary takes a second to load

    forms = {word, word.lower(), word.capitalize()}
    code = _CODES.get(language, language)
    return frozenset(simplemma.lemmatize(one, lang=code).casefold() for one in forms)
