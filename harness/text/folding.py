"""One form for all the ways to write a text, so that phrases and words are found.

Only for finding: `composed` is for what merges or compares. Superscripts, fractions and circled
letters stay (10² is not 102), and so do accents (`schon` is not `schön`).
"""

# ruff: noqa: RUF001 - signs that look like others are meant

from __future__ import annotations

import re
import unicodedata
from functools import cache

from harness.text.languages import HANGUL, MARKS, UNSPACED

# Canonical order takes quadratic time in a run of marks; no letter of any language has so many.
_FLOOD = re.compile(r"([^\w\s\x00-\x7f]{31,})")
# Joiners tell words apart in Arabic, Indic, Khmer and Mongolian letters, and nowhere else.
_JOINED = "\u0600-\u08ff\u0900-\u0dff\u1780-\u18af"
_JOINERS = re.compile(f"(?<![{_JOINED}])[\u200c\u200d]|[\u200c\u200d](?![{_JOINED}])")
_JOINER = re.compile("[\u200c\u200d]")
_WRAPPED = re.compile(f"\n(?<=[{UNSPACED}]\n)[ \t]*(?=[{UNSPACED}])")
_KEPT = ("<super>", "<sub>", "<fraction>", "<circle>")
_SAME = {
    "'": "´ʹʻʼˈ׳‘’‚‛′‵‹›ꞌ",
    '"': "«»ʺ״“”„‟″‶〝〞〟",
    "-": "־᠆‐‑‒–—―−﹘",
    "ی": "ي",
    "ک": "ك",
    # Soft hyphen, blanks without width, marks of direction, selectors, the tatweel.
    "": "\u00ad\u034f\u061c\u180b\u180c\u180d\u200b\u200e\u200f\u2060\ufeff\u0640"
    + "".join(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xFE00, 0xFE10)))),
}
# Of Hebrew and Arabic, which most texts leave out.
_VOWEL_POINTS = re.compile(
    "[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8]"
)


@cache
def _forms() -> tuple[re.Pattern[str], dict[str, str]]:
    """Finds the letters that have another form, and tells it."""
    forms = {letter: form for form, letters in _SAME.items() for letter in letters}
    # Up to the squared words, then compatibility forms, and the letters of formulas.
    for code in (*range(0xA0, 0x3400), *range(0xF900, 0x10000), *range(0x1D400, 0x1D800)):
        letter = chr(code)
        if letter.isdecimal():
            forms[letter] = str(unicodedata.decimal(letter))
        elif _VOWEL_POINTS.match(letter):
            forms[letter] = ""
        elif letter not in forms:
            tag = unicodedata.decomposition(letter).partition(" ")[0]
            if tag.startswith("<") and tag not in _KEPT:
                plain = unicodedata.normalize("NFKC", letter)
                forms[letter] = "".join(forms.get(one, one) for one in plain)
    # One range for what is not in the basic plane: single letters of it are slow in a class.
    basic = re.escape("".join(letter for letter in forms if letter <= "\uffff"))
    return re.compile(f"[{basic}\U0001d400-\U0001d7ff]"), forms


def composed(text: str) -> str:
    """The text in Unicode's composed form (NFC), but for floods of accents, which stay."""
    if unicodedata.is_normalized("NFC", text):
        return text
    parts = enumerate(_FLOOD.split(text))
    return "".join(part if n % 2 else unicodedata.normalize("NFC", part) for n, part in parts)


def folded(text: str, language: str | None = None) -> str:
    """The text in the form in which it is searched, in lower case.

    The same for typographic and plain quotation marks, dashes and digits, full and half width,
    ligatures, letters with their marks apart, with vowel points or without, with soft hyphens or
    signs without width, on one line or several.
    """
    if not text.isascii():
        other_forms, forms = _forms()
        text = other_forms.sub(lambda letter: forms.get(letter[0], letter[0]), composed(text))
        text = _JOINERS.sub("", text) if _JOINER.search(text) else text
        if "\n" in text:  # a line that was wrapped where no blank belongs
            text = _WRAPPED.sub("", text)
    if language in {"tr", "az"}:
        text = text.replace("İ", "i").replace("I", "ı")
    # In German, folding ß would make `Maße` the same as `Masse`.
    text = text.replace("ẞ", "ß").lower() if language == "de" else text.casefold()
    return " ".join(composed(text).replace("i\u0307", "i").replace("`", "'").split())


# What begins a word in Arabic and Hebrew though it is another: and, the, in, for, as.
_ATTACHED = {"[\u0620-\u06d3]": "(?:[وف]?(?:[بك]?ال|لل|[بكل])?)", "[א-ת]": "(?:ו?[הבכלמש]?)"}
_INSIDE = f"(?:[^\\W{UNSPACED}{HANGUL}]|[{re.sub(f'[{UNSPACED}]', '', MARKS)}\u200c\u200d])"


@cache
def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Finds a folded phrase in folded text, but not inside a word: `todo` is not in `mastodon`.

    Scripts that write words without blanks, or particles onto words, have no inside.
    """
    attached = next((p for first, p in _ATTACHED.items() if re.match(first, phrase)), "")
    before = f"(?<!{_INSIDE}){attached}" if re.match(_INSIDE, phrase) else ""
    after = f"(?!{_INSIDE})" if re.search(f"{_INSIDE}\\Z", phrase) else ""
    return re.compile(before + re.escape(phrase) + after)
