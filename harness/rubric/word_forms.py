"""Phrases in a text, as written or in other forms of their words."""

from __future__ import annotations

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
        # In capitals, SS is written for ß too. In small letters, `Masse` is not `Maße`.
        words_or_gaps = (word if word == word.upper() else "\0" for word in text.split())
        capitals = folded(" ".join(words_or_gaps))
        matches |= {phrase for phrase in phrases if has_phrase(capitals, folded(phrase))}
    if forms and language is not None:
        lemmas = _lemmas_of(text, language)
        matches |= {
            phrase for phrase in phrases if _stands_in(_lemmas_of(phrase, language), lemmas)
        }
    return [phrase for phrase in phrases if phrase in matches]


def forms_installed() -> bool:
    """Whether the extra `forms` is installed, which has the dictionaries."""
    return find_spec("simplemma") is not None


def has_forms(language: Language) -> bool:
    """Whether there is a dictionary of this language; the extra `forms` must be installed."""
    from simplemma.strategies.dictionaries import dictionary_factory  # noqa: PLC0415 - an extra

    return _CODES.get(language, language) in dictionary_factory.SUPPORTED_LANGUAGES


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
