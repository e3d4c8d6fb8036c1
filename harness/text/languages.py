"""The languages we know, and what their writing says: capitals, blanks, stops."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

# fmt: off
Language = Literal[
    "af", "am", "an", "ar", "as", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "cs", "cy",
    "da", "de", "dz", "el", "en", "eo", "es", "et", "eu", "fa", "fi", "fo", "fr", "fy", "ga",
    "gd", "gl", "gu", "ha", "he", "hi", "hr", "ht", "hu", "hy", "id", "ig", "is", "it", "ja",
    "jv", "ka", "kk", "km", "kn", "ko", "ku", "ky", "la", "lb", "lg", "ln", "lo", "lt", "lv",
    "mg", "mk", "ml", "mn", "mr", "ms", "mt", "my", "ne", "nl", "nn", "no", "oc", "om", "or",
    "pa", "pl", "ps", "pt", "qu", "ro", "ru", "rw", "sa", "se", "si", "sk", "sl", "sn", "so",
    "sq", "sr", "st", "sv", "sw", "ta", "te", "tg", "th", "tk", "tl", "tr", "tt", "ug", "uk",
    "ur", "uz", "vi", "vo", "wa", "xh", "yo", "zh", "zu",
]
"""The languages that we recognize, by ISO 639-1."""
# fmt: on

UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Han, kana, bopomofo, for a class of a regular expression:
scripts that put no blanks between words."""
_UNSPACED = re.compile(f"[{UNSPACED}]+")
HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"  # has blanks, but not before particles
NO_WIDTH = "\u00ad\u200b-\u200f\u2060\ufeff"  # soft hyphen, joiners: no reader sees them
# Accents and vowel signs, which are no letters to `re` and belong to words.
MARKS = "".join(c for c in map(chr, range(0x300, 0x3100)) if unicodedata.category(c)[0] == "M")
# Fewer Latin letters may be a name or a brand in a text of any language.
_LEAST_LATIN_LETTERS = 12

Trait = Literal[
    "no-blanks", "no-stops", "no-capitals", "capital-nouns", "inflected-names", "decimal-point"
]
"""A trait of a language's writing."""


class _LanguageRow(NamedTuple):
    stemmer: str
    traits: list[str]
    scripts: list[str]
    numerals: list[str]
    ordinals: list[list[str]]


@cache
def _table() -> dict[str, _LanguageRow]:
    """The rows of `languages.tsv`, by code."""
    lines = files("harness.text").joinpath("languages.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in lines.splitlines() if not line.startswith("#"))
    table = {}
    for code, stemmer, *lists in rows:
        traits, scripts, numerals, ordinals = map(str.split, lists)
        forms = [ordinal.split("/") for ordinal in ordinals]
        table[code] = _LanguageRow(stemmer, traits, scripts, numerals, forms)
    return table


def has_trait(language: str | None, trait: Trait) -> bool:
    """Whether a language has it; False if the language or its trait is not known."""
    return language in _table() and trait in _table()[language].traits


def numerals(language: str | None) -> list[str]:
    """The words for zero, one, two and so on; empty if they are not known."""
    return _table()[language].numerals if language in _table() else []


def ordinals(language: str) -> list[list[str]]:
    """The words for first, second and so on, each in its forms; empty if they are not known."""
    return _table()[language].ordinals if language in _table() else []


def stemmers() -> tuple[str, ...]:
    """The names that stores have for the languages whose words they take back to stems."""
    return tuple(sorted(row.stemmer for row in _table().values() if row.stemmer))


def fits_script(text: str, language: Language) -> bool | None:
    """Whether a text is in a language, as far as its letters tell; None if they do not."""
    script, count = _main_script(text)
    if script == "LATIN":
        other_scripts = _table()[language].scripts
        is_never_latin = bool(other_scripts) and "LATIN" not in other_scripts
        return False if is_never_latin and count >= _LEAST_LATIN_LETTERS else None
    languages = [code for code, row in _table().items() if script in row.scripts]
    if languages and language not in languages:
        return False
    # A script that several languages share does not say which of them this is.
    return True if languages == [language] else None


def _main_script(text: str) -> tuple[str, int]:
    """The script of four fifths of a text's letters and their number; empty if there is none."""
    letters = [c for c in text if c.isalpha()]
    scripts = Counter(unicodedata.name(c, "").partition(" ")[0] for c in letters)
    scripts["CJK"] += scripts.pop("IDEOGRAPHIC", 0)
    if kana := scripts.pop("HIRAGANA", 0) + scripts.pop("KATAKANA", 0):
        scripts["KATAKANA"] = kana + scripts.pop("CJK")  # Han among kana is Japanese
    script, count = scripts.most_common(1)[0]
    # A name or a term in other letters stands in many texts.
    return (script, count) if count and count >= 0.8 * len(letters) else ("", 0)


def has_blanks(text: str) -> bool:
    """Whether blanks part its words; a tenth of its letters may be of scripts without blanks."""
    unspaced = sum(map(len, _UNSPACED.findall(text)))
    return not unspaced or unspaced * 10 <= sum(map(str.isalnum, text))
