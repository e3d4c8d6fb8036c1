"""The languages we know, and what their writing says: capitals, blanks, stops."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Literal

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
"""The languages that can be told, by ISO 639-1."""

STEMMED: Mapping[Language, str] = {
    "ar": "arabic", "da": "danish", "de": "german", "el": "greek", "en": "english",
    "es": "spanish", "fi": "finnish", "fr": "french", "hu": "hungarian", "it": "italian",
    "nl": "dutch", "no": "norwegian", "pt": "portuguese", "ro": "romanian", "ru": "russian",
    "sv": "swedish", "ta": "tamil", "tr": "turkish",
}
"""Those whose words a search takes back to stems, with the names that stores give them."""

WITHOUT_BLANKS, WITHOUT_STOPS, CAPITAL_NOUNS, WITHOUT_CAPITALS, INFLECTED_NAMES, DECIMAL_POINT = (
    frozenset(codes.split())
    for codes in (
        "dz ja km lo my th zh", "lo th", "de lb",
        "am ar as bn dz fa gu he hi ja ka km kn ko lo ml mr my ne or pa ps sa si ta te th ug ur zh",
        "az be bg bs cs el et eu fi hr hu is ka kk la lt lv mk pl ro ru sk sl sq sr tr uk uz",
        "cy en ga he hi ja km ko mr ms my ne sw ta te th ur zh",
    )
)
"""Languages by what their writing lacks or has. Of those that we know, the others write 2,5."""
# fmt: on

UNSPACED = (
    "\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3100-\u312f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Han, kana, bopomofo, for a class of a regular expression:
scripts that put no blanks between words."""
HANGUL = "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af"
"""It has blanks, but writes particles onto its words."""
MARKS = "".join(c for c in map(chr, range(0x300, 0x3100)) if unicodedata.category(c)[0] == "M")
"""Accents and vowel signs, which are no letters to `re` and belong to words."""

_UNSPACED = re.compile(f"[{UNSPACED}]")
_NO_STOP = re.compile("[\u0e00-\u0eff]['\"\u2019\u201d)\\]*_\\s]*\\Z")


def has_blanks(text: str) -> bool:
    """Whether blanks part its words, but for a tenth of the letters at most."""
    return len(_UNSPACED.findall(text)) * 10 <= sum(map(str.isalnum, text))


def has_capitals(text: str) -> bool:
    """Whether most of its letters are of scripts with capitals."""
    letters = [letter for letter in text if letter.isalpha()]
    return 2 * sum(one.islower() or one.isupper() for one in letters) >= len(letters)


def ends_without_stop(text: str) -> bool:
    """Whether it ends in a script whose sentences have no stop: Thai, Lao."""
    return _NO_STOP.search(text[-100:]) is not None


ENOUGH_BYTES = 100
"""Of letters, in UTF-8: about 17 words of English, 33 characters of Chinese."""
# Near enough to each other to be taken for each other, in a text of any length.
_ALIKE = (frozenset({"bs", "hr", "sr"}), frozenset({"nn", "no"}), frozenset({"id", "ms"}))


def letter_bytes(text: str) -> int:
    """The length of its letters in UTF-8, which says how sure its language is."""
    return len("".join(filter(str.isalpha, text)).encode("utf-8", "replace"))


def language_of(text: str) -> Language:
    """The likeliest language of a text, which is a guess under `ENOUGH_BYTES`."""
    # Imported at the first use: it takes half a second to load its model.
    import py3langid  # noqa: PLC0415

    ranked: list[Language] = [code for code, _ in py3langid.rank(text) if len(code) == 2]
    return ranked[0]


def same_language(a: str, b: str) -> bool:
    """Whether two languages are one, or close relatives such as Croatian and Serbian."""
    return a == b or any({a, b} <= alike for alike in _ALIKE)
