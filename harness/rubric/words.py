"""The words and numbers of a text, as checks count and compare them."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import cache

Value = Decimal | str
"""A number to compare by; a version such as 3.11.2 stays a text."""

# One mark between letters or digits does not part a word: `don't`, `1,024`, `e.g`, `and/or`, `a_b`.
_WORD = re.compile(r"[^\W_]+(?:[-'\u2019.,/_][^\W_]+)*")
_TERM = re.compile(r"[^\W_]+")
# Digits with commas, and what may follow the last of them; `_parted` says what the commas are.
_DIGITS = re.compile(r"(\d+(?:,\d+)*)((?:\.\d+)*)")
# `1.` before an item of a list, `[1]` and `[^1]` for a reference.
_MARK = re.compile(r"(?m)^[^\S\n]*\d+[.)]\s|\[\^?\d+\]")
_SPELT = (
    *("zero", "one", "two", "three", "four", "five", "six"),
    *("seven", "eight", "nine", "ten", "eleven", "twelve"),
)
_LATIN = "0-9A-Za-z\u00c0-\u024f"


def words(text: str) -> list[str]:
    """Words as people count them."""
    return _WORD.findall(text)


def terms(text: str) -> list[str]:
    """Words as they are compared: no matter the case, the apostrophe, or how accents are coded."""
    return _TERM.findall(unicodedata.normalize("NFC", text).casefold())


def numbers(text: str) -> list[str]:
    """The numbers that claim something: not the marks of list items and references."""
    return [
        number
        for digits, decimals in _DIGITS.findall(_MARK.sub(" ", text))
        for number in _parted(digits, decimals)
    ]


def value(number: str) -> Value:
    """What a number amounts to: 1,024 and 1024 are the same, and so are 0.50 and 0.5."""
    return number if number.count(".") > 1 else Decimal(number.replace(",", ""))


def values_named(text: str) -> set[Value]:
    """The numbers a text names, in digits or, up to twelve, in words."""
    in_words = set(terms(text))
    spelt = {Decimal(number) for number, word in enumerate(_SPELT) if word in in_words}
    return spelt | {value(number) for number in numbers(text)}


def _parted(digits: str, decimals: str) -> list[str]:
    """A comma parts a number's thousands, and nothing else: `1,024` is one number, `1,2` are two.

    Not left to the pattern: it would try every comma of a long list anew, to the list's end.
    """
    parts = digits.split(",")
    first = len(parts) - 1
    while first and len(parts[first]) == 3 and len(parts[first - 1]) <= 3:
        first -= 1
    return [*parts[:first], ",".join(parts[first:]) + decimals]


@cache
def phrase_pattern(phrase: str) -> re.Pattern[str]:
    """Finds a phrase on one line or several, but not inside a word: `todo` is not in `mastodon`."""
    pattern = r"\s+".join(re.escape(word) for word in phrase.split())
    # Only of Latin letters: some scripts have no spaces to tell words by.
    before = f"(?<![{_LATIN}])" if re.match(f"[{_LATIN}]", phrase) else ""
    after = f"(?![{_LATIN}])" if re.search(rf"[{_LATIN}]\Z", phrase) else ""
    return re.compile(before + pattern + after, re.IGNORECASE)
