"""Phrases in a text, as written or in other forms of their words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec

from harness.text.folding import composed, folded, has_phrase
from harness.text.languages import Language
from harness.text.words import words


def phrases_in(
    text: str, phrases: Sequence[str], language: Language | None, *, forms: bool
) -> list[str]:
    """The phrases that stand in a text; with `forms`, in any form of their words."""
    searched = folded(text, language)
    matches = {phrase for phrase in phrases if has_phrase(searched, folded(phrase, language))}
    if language == "de":
        matches |= {phrase for phrase in phrases if _stands_in_capitals(phrase, text)}
    if forms and language is not None:
        lemmas = _lemmas_of(text, language)
        matches |= {p for p in phrases if _stands_in(_lemmas_of(p, language), lemmas)}
    return [phrase for phrase in phrases if phrase in matches]


def forms_installed() -> bool:
    """Whether the extra `forms` is installed, which has the dictionaries."""
    return find_spec("simplemma") is not None


def has_forms(language: Language) -> bool:
    """Whether there is a dictionary of this language; the extra `forms` must be installed."""
    from simplemma.strategies.dictionaries import dictionary_factory  # noqa: PLC0415 - an extra

    return _CODES.get(language, language) in dictionary_factory.SUPPORTED_LANGUAGES


_WORD_WITH_SMALL_LETTERS = re.compile(r"\b\w*[a-zäöü]\w*")


def _stands_in_capitals(phrase: str, text: str) -> bool:
    """Whether a German phrase stands in a text if SS in capitals is read as ß."""
    if "SS" in phrase and phrase == phrase.upper():
        return has_phrase(folded(text, "de").replace("ß", "ss"), folded(phrase, "de"))
    if "ß" not in phrase or "SS" not in text:
        return False
    # In small letters, `Masse` is another word than `Maße`: its ss is made unlike a folded SS.
    marked = _WORD_WITH_SMALL_LETTERS.sub(lambda word: word[0].replace("ss", "s\0s"), text)
    return has_phrase(folded(marked, "de"), folded(phrase, "de").replace("ß", "ss"))


# simplemma knows Norwegian as its Bokmål, and has one dictionary for these three.
_CODES = {"no": "nb", "bs": "hbs", "hr": "hbs", "sr": "hbs"}


def _stands_in(phrase: Sequence[frozenset[str]], text: Sequence[frozenset[str]]) -> bool:
    """Whether the words of a phrase follow each other in a text; each is given by its lemmas."""
    starts = range(len(text) - len(phrase) + 1) if phrase else ()
    return any(not any(map(frozenset.isdisjoint, phrase, text[start:])) for start in starts)


def _lemmas_of(text: str, language: Language) -> list[frozenset[str]]:
    return [_lemmas(word, language) for word in words(composed(text))]


@lru_cache(maxsize=50_000)
def _lemmas(word: str, language: Language) -> frozenset[str]:
    """What a word may be a form of: `Haus` for `Häuser`, but not for `Hausarzt`."""
    # By dictionaries, since stemmers cut endings off: to them, `several` and `severe` are one word.
    import simplemma  # noqa: PLC0415 - an extra; a dictionary takes a second to load

    # A capital may belong to a noun, or to the first word of a sentence.
    forms = {word, word.lower(), word.capitalize()}
    code = _CODES.get(language, language)
    return frozenset(simplemma.lemmatize(form, lang=code).casefold() for form in forms)
