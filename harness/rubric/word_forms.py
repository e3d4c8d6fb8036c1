"""Forms of one word, by the dictionaries of simplemma: `Häuser` and `Haus`, but not `Hausarzt`.

Stemmers cut endings off: for them, `several` and `severe` are one word.
"""

from __future__ import annotations

import re
import unicodedata
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


def has_form_of(phrase: str, text: str, language: Language) -> bool:
    """Whether forms of the words of a phrase stand in a row in a text."""
    wanted = [_lemmas(word, language) for word in _words(phrase)]
    said = [_lemmas(word, language) for word in _words(text)]
    starts = range(len(said) - len(wanted) + 1) if wanted else ()
    return any(
        all(not one.isdisjoint(said[start + n]) for n, one in enumerate(wanted)) for start in starts
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text))


@lru_cache(maxsize=50_000)
def _lemmas(word: str, language: Language) -> frozenset[str]:
    """What a word may be a form of: its capital may be of a noun, or of a sentence."""
    import simplemma  # noqa: PLC0415 - an extra; a dictionary takes a second to load

    forms = {word, word.lower(), word.capitalize()}
    code = _CODES.get(language, language)
    return frozenset(simplemma.lemmatize(one, lang=code).casefold() for one in forms)
