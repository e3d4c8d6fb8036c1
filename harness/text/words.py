"""Words: as people count them, as they are compared, and in their forms.

Forms of one word go by the dictionaries of simplemma: `Häuser` and `Haus`, but not `Hausarzt`.
Stemmers cut endings off: for them, `several` and `severe` are one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.util import find_spec
from operator import add

from harness.text.folding import composed, folded, phrase_pattern
from harness.text.languages import HANGUL, MARKS, UNSPACED, Language

_LETTERS = rf"[^\W_]+(?:[{MARKS}\u200c\u200d]+[^\W_]*)*"
_TERM = re.compile(rf"\w[\w{MARKS}\u200c\u200d]*")
# One mark between letters or digits does not part a word: `don't`, `1,024`, `e.g`, `and/or`, `a_b`.
_WORD = re.compile(rf"{_LETTERS}(?:[-'\u2019\u2010.,/_]{_LETTERS})*")
_RUN = re.compile(f"[{UNSPACED}{HANGUL}]+")
# Tone marks and the like of the scripts without blanks, which tokenizers take for gaps.
_SIGNS = re.compile(
    "[\u0e3a\u0e47-\u0e4c\u0e4e\u0eba\u0ec8-\u0ecc\u1037\u1039\u103a\u17c6-\u17d3\u17dd]+"
)


def words(text: str) -> list[str]:
    """Words as people count them, where blanks part them: see `has_blanks`."""
    return _WORD.findall(text)


def character_count(text: str) -> int:
    """The characters that a reader sees, with single blanks between words."""
    return len(
        composed(" ".join(re.sub("[\u00ad\u200b\u200e\u200f\u2060\ufeff]", "", text).split()))
    )


def terms(text: str, language: str | None = None) -> list[str]:
    """Words as they are compared, folded; each two neighbors where no blanks part words."""
    return _TERM.findall(in_twos(folded(text, language)).replace("_", " "))


def matter(terms: Iterable[str]) -> list[str]:
    """The terms that carry the matter: those of four letters and more, and twos."""
    return [term for term in terms if len(term) >= 4 or _RUN.match(term)]


def in_twos(text: str) -> str:
    """The text with blanks between each two letters of scripts without blanks.

    As Lucene's CJKAnalyzer does.
    """
    return text if text.isascii() else _RUN.sub(_twos, text)


def _twos(run: re.Match[str]) -> str:
    letters = run[0] if run[0] >= "\u3000" else _SIGNS.sub("", run[0])
    return f" {' '.join(map(add, letters, letters[1:])) or letters} "


# --- phrases ---


def phrases_in(
    text: str, phrases: Sequence[str], language: Language | None, *, forms: bool
) -> list[str]:
    """The phrases that stand in a text; with `forms`, in any form of their words."""
    searched = folded(text, language)
    found = {one for one in phrases if phrase_pattern(folded(one, language)).search(searched)}
    if forms and language is not None:
        lemmas = _lemmas_of(text, language)
        found |= {one for one in phrases if _stands_in(_lemmas_of(one, language), lemmas)}
    return [one for one in phrases if one in found]


def forms_installed() -> bool:
    """Whether the dictionaries are there."""
    return find_spec("simplemma") is not None


def has_forms(language: Language) -> bool:
    """Whether one of the dictionaries, which must be installed, is of this language."""
    from simplemma.strategies.dictionaries.dictionary_factory import (  # noqa: PLC0415 - an extra
        SUPPORTED_LANGUAGES,
    )

    return _CODES.get(language, language) in SUPPORTED_LANGUAGES


_CODES = {"no": "nb", "bs": "hbs", "hr": "hbs", "sr": "hbs"}


def _stands_in(phrase: Sequence[frozenset[str]], words: Sequence[frozenset[str]]) -> bool:
    starts = range(len(words) - len(phrase) + 1) if phrase else ()
    return any(not any(map(frozenset.isdisjoint, phrase, words[start:])) for start in starts)


def _lemmas_of(text: str, language: Language) -> list[frozenset[str]]:
    return [_lemmas(word, language) for word in _TERM.findall(composed(text).replace("_", " "))]


@lru_cache(maxsize=50_000)
def _lemmas(word: str, language: Language) -> frozenset[str]:
    """What a word may be a form of: its capital may be of a noun, or of a sentence."""
    import simplemma  # noqa: PLC0415 - an extra; a dictionary takes a second to load

    forms = {word, word.lower(), word.capitalize()}
    code = _CODES.get(language, language)
    return frozenset(simplemma.lemmatize(one, lang=code).casefold() for one in forms)
