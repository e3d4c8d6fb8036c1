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

# Canonical order takes quadratic time in a run of marks, so texts are composed in pieces, which end
# where no letter composes; no letter of any language has so many marks as a longer piece.
_PIECE_CHARS = 2_000
_PIECE = re.compile(rf"(?s).{{1,{_PIECE_CHARS}}}(?=[^\W\u1160-\u11ff]|\s|\Z)|.[\W\u1160-\u11ff]*")
# Joiners tell words apart in Arabic, Indic, Khmer and Mongolian letters, and nowhere else.
_JOINED = "\u0600-\u08ff\u0900-\u0dff\u1780-\u18af"
_JOINERS = re.compile(f"[\u200c\u200d](?:(?<![{_JOINED}].)|(?![{_JOINED}]))")
# A break in the midst of words of scripts without blanks.
_WRAPPED_LINE = re.compile(f"\n(?<=[{UNSPACED}]\n)[ \t]*(?=[{UNSPACED}])")
_LEFT_AS_THEY_ARE = ("<super>", "<sub>", "<fraction>", "<circle>")
_VARIANTS = {  # plain sign → signs that are written in its place
    "'": "´ʹʻʼˈ׳‘’‚‛′‵‹›ꞌ",
    '"': "«»ʺ״“”„‟″‶〝〞〟",
    "-": "־᠆‐‑‒–—―−﹘",
    "ی": "ي",
    "ک": "ك",
}
_DROPPED = re.compile(
    # Soft hyphen, blanks without width, marks of direction, selectors, the tatweel.
    "[\u00ad\u034f\u061c\u180b\u180c\u180d\u200b\u200e\u200f\u2060\ufeff\u0640\u202a-\u202e\u2066-\u2069"
    # Vowel points of Hebrew and Arabic, which most texts leave out.
    "\ufe00-\ufe0f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\ufc5e-\ufc63\ufcf2-\ufcf4\ufe70-\ufe72\ufe74\ufe76-\ufe7f]"
)
# Marks and parts of letters that compose with a letter that folding may have put before them.
_COMPOSING = re.compile("[\u0300-\u036f\u0f71\u1160-\u11ff\u3099\u309a]")


@cache
def _forms() -> tuple[re.Pattern[str], dict[str, str]]:
    """A pattern of the letters that are replaced, and letter → form in its place."""
    forms = {letter: form for form, letters in _VARIANTS.items() for letter in letters}
    # Up to the squared words, then compatibility forms, and the letters of formulas.
    for code in (*range(0xA0, 0x3400), *range(0xF900, 0x10000), *range(0x1D400, 0x1D800)):
        letter = chr(code)
        tag = unicodedata.decomposition(letter).partition(" ")[0]
        if letter.isdecimal():
            forms[letter] = str(unicodedata.decimal(letter))
        elif letter not in forms and tag.startswith("<") and tag not in _LEFT_AS_THEY_ARE:
            plain = _DROPPED.sub("", unicodedata.normalize("NFKC", letter))
            forms[letter] = "".join(forms.get(sign, sign) for sign in plain)
    # One range for what is not in the basic plane: single letters of it are slow in a class.
    basic = re.escape("".join(letter for letter in forms if letter <= "\uffff"))
    return re.compile(f"[{basic}\U0001d400-\U0001d7ff]"), forms


def composed(text: str) -> str:
    """The text in Unicode's composed form (NFC), except that a flood of accents stays as it is."""
    return "".join(
        piece if len(piece) > _PIECE_CHARS else unicodedata.normalize("NFC", piece)
        for piece in _PIECE.findall(text)
    )


def folded(text: str, language: str | None = None) -> str:
    """The text in the form in which it is searched, in lower case.

    Two texts have the same form if they differ only in typographic or plain quotation marks, dashes
    and digits, in full or half width, ligatures, letters with their marks apart, vowel points, soft
    hyphens, signs without width, or line breaks.
    """
    has_new_neighbors = False
    if not text.isascii():
        text = composed(text)
        length = len(text)
        text = _WRAPPED_LINE.sub("", _JOINERS.sub("", _DROPPED.sub("", text)))
        has_new_neighbors = len(text) < length
        replaced_letters, forms = _forms()
        text = replaced_letters.sub(lambda letter: forms.get(letter[0], letter[0]), text)
    if language in {"tr", "az"}:
        text = text.replace("İ", "i").replace("I", "ı")
    # In German, folding ß would make `Maße` the same as `Masse`.
    text = text.replace("ẞ", "ß").lower() if language == "de" else text.casefold()
    # Casefolding makes of İ an i with a dot above, which no phrase has.
    text = text.replace("i\u0307", "i").replace("`", "'")
    if has_new_neighbors or _COMPOSING.search(text):
        text = composed(text)
    return " ".join(text.split())


# First letters of a script → words that it attaches to the next one: and, the, in, for, as.
_ATTACHED = {"[\u0620-\u06d3]": "(?:[وف]?(?:[بك]?ال|لل|[بكل])?)", "[א-ת]": "(?:ו?[הבכלמש]?)"}
# Scripts that write words without blanks, or particles onto words, have no inside.
_INSIDE = f"(?:[^\\W{UNSPACED}{HANGUL}]|[{re.sub(f'[{UNSPACED}]', '', MARKS)}\u200c\u200d])"


def has_phrase(text: str, phrase: str) -> bool:
    """Whether a folded phrase stands in folded text, not within a word: no `todo` in `mastodon`."""
    return phrase in text and _phrase_pattern(phrase).search(text) is not None


@cache
def _phrase_pattern(phrase: str) -> re.Pattern[str]:
    attached = next((p for first, p in _ATTACHED.items() if re.match(first, phrase)), "")
    before = f"(?<!{_INSIDE}){attached}" if re.match(_INSIDE, phrase) else ""
    after = f"(?!{_INSIDE})" if re.search(f"{_INSIDE}\\Z", phrase) else ""
    return re.compile(before + re.escape(phrase) + after)
