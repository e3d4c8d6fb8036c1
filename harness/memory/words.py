"""Words: how a text, of a passage or of a query, becomes the terms of the lexical lane."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from harness.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    import tantivy

LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek"),
    *("hungarian", "italian", "norwegian", "portuguese", "romanian", "russian", "spanish"),
    *("swedish", "tamil", "turkish", "none"),
)
"""Whose words can be stemmed (Snowball, as tantivy has it); `none` leaves words as they are."""

_WITH_STOP_WORDS = frozenset(LANGUAGES) - {
    *("arabic", "greek", "romanian", "tamil", "turkish", "none"),
}

# Han, kana, bopomofo, hangul, Thai, Lao, Khmer, Myanmar: scripts that put no blanks between words.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f"
    "\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)


def check_language(language: str) -> None:
    """Raises `InvalidInput` for one whose words nobody here knows."""
    if language not in LANGUAGES:
        raise InvalidInput(
            f"no language '{language}'; {did_you_mean(language, LANGUAGES)}",
            code="memory.unknown-language",
        )


def analyzer(language: str, *, stop_words: bool = True) -> tantivy.TextAnalyzer:
    """Words as runs of letters and digits, lower-cased, stemmed, without accents.

    Words such as "the" stay, unless `stop_words` is false and tantivy has a list of the language's:
    BM25 already weighs them near nothing, and "to be" stays findable. Words of more than 255 bytes
    are dropped: no digest of a file is so long, and what was encoded is.
    """
    import tantivy  # noqa: PLC0415  # importing harness stays light

    builder = (
        tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
        .filter(tantivy.Filter.remove_long(256))
        .filter(tantivy.Filter.lowercase())
    )
    if not stop_words and language in _WITH_STOP_WORDS:
        builder = builder.filter(tantivy.Filter.stopword(language))
    if language != "none":
        builder = builder.filter(tantivy.Filter.stemmer(language))
    # After stemming, since endings have accents, too.
    return builder.filter(tantivy.Filter.ascii_fold()).build()


def spaced(text: str) -> str:
    """The text as an analyzer can take it apart: it knows blanks, and letters of one piece.

    Of scripts that have no blanks, each two neighbours become a word (as Lucene's CJKAnalyzer
    does). Letters that are followed by their accents become one.
    """
    if text.isascii():
        return text
    return _UNSPACED.sub(_in_twos, _DECOMPOSED.sub(_composed, text))


# To normalise all of a text would take a quarter of an hour for a megabyte of nothing but accents,
# since they have to be sorted; no letter of any language has more than a few.
_DECOMPOSED = re.compile("([^\\W\\d_])([\u0300-\u036f]{1,4})[\u0300-\u036f]*")

# Tone marks and the like, which are no letters: words would end there.
_MARKS = re.compile(
    "[\u0e3a\u0e47-\u0e4c\u0e4e\u0eba\u0ec8-\u0ecc\u1037\u1039\u103a\u17c6-\u17d3\u17dd]+"
)


def _composed(letter: re.Match[str]) -> str:
    return unicodedata.normalize("NFC", letter[1] + letter[2])


def _in_twos(run: re.Match[str]) -> str:
    letters = _MARKS.sub("", run[0])
    pairs = (letters[i : i + 2] for i in range(max(1, len(letters) - 1)))
    return f" {' '.join(pairs)} "
