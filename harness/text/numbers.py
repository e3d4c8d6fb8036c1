"""Numbers as texts of many places write them, compared by value, sign and unit.

`2,5` is 2.5, and `12 000` is one number or two. `1.200` is 1,200 or 1.2: the other numbers of the
text and its language decide, or else both readings count. Fractions such as `1/2`, powers such as
`10^2` and numerals such as 一千二百 are not read.
"""

# ruff: noqa: RUF001 - signs of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from harness.text.languages import NO_WIDTH, has_trait

Value = Decimal | str
"""A number to compare by; a date, or a version such as 3.11.2, stays a text."""

_DECIMAL_MARKS = ".,\u066b"
_GROUP_MARKS = "'\u2019\u066c\u00a0\u2009\u202f"
_NUMBER = re.compile(
    # A minus, unless something is before it that a range, a name or a date may end with.
    rf"(?<![\w)\]%.,])[-\u2212\u2013\uff0d](?=[{NO_WIDTH}]*\d)"
    rf"|(?<!\d)(?:\d{{4}}(?:-\d\d-\d\d(?!\d)|年\d\d?月\d\d?日)|\d\d?/\d\d?/\d{{4}})"
    rf"|(?:\d+|(?<![\w.,])\.\d+)(?:[{_DECIMAL_MARKS}{_GROUP_MARKS}]\d+|[ ]\d{{3}}(?!\d))*"
)
# `1.` before an item of a list, `[1]` and `[^1]` for a reference.
_MARK = re.compile(r"(?m)^[^\S\n]*\d+[.)]\s|\[\^?\d+\]")
_UNIT = re.compile(
    r"\s?(°\s?[CF]|‰|[€$£¥₽₹₩]|(?:[kcm\u00b5\u03bcn]?m|[km\u00b5\u03bc]?g|[cm]?l|t|h|min"
    r"|[m\u00b5\u03bc]?s|[kMGT]?(?:Wh?|Hz|V|B)|KB|[KMGT]iB)(?!\w))"
)
_CURRENCIES = tuple("€$£¥₽₹₩")
_WIDE_COMMA = re.compile("(?<=[０-９])，(?=[０-９])")
# `14.30 Uhr`, `kl. 14.30`, `klo 14.30`: no fraction.
_TIME_OF_DAY = re.compile(r"(\bklo |\bkl\. ?)?\b(\d\d?)\.([0-5]\d)\b(?(1)|(?=\s?Uhr\b))")
# Groups of digits: 1-000-000, or as in India 1-00-000.
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:-\d{3})+|[1-9]\d?(?:-\d\d)*-\d{3}|[1-9]\d{0,2}")
WORD = "word"  # in place of the unit of a number before a word that is no unit we know
TIMES = "times"  # in place of the unit of a number before a power of ten, such as `million`


class NumberReading(NamedTuple):
    """One way to read a number."""

    value: Value
    unit: str
    """In Latin letters; or a currency's sign, `%`, `WORD` or `TIMES`; empty without a unit."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text."""

    text: str
    readings: frozenset[NumberReading]
    """Empty if it is several numbers for certain."""
    parts: frozenset[Value] = frozenset()
    """The numbers that it may be instead, if it may be several: `1,2,3`, `12 000`, a date."""


def values_in(text: str) -> frozenset[Value]:
    """The likeliest values of the numbers in a text: 1,024 is rather 1024 than 1.024."""
    values: set[Value] = set()
    for number in numbers(text, "en"):
        values.update(reading.value for reading in number.readings)
        values.update(number.parts)
    return frozenset(values)


class _WordsBehind(NamedTuple):
    """Patterns of words that may stand behind a number."""

    percent: re.Pattern[str]
    powers: re.Pattern[str]
    """Powers of ten; the name of each group is `e` and the exponent: `e6`."""
    units: re.Pattern[str]
    """The name of each group is the unit in Latin letters."""


@cache
def _words_behind() -> _WordsBehind:
    lines = files("harness.text").joinpath("number_words.tsv").read_text(encoding="utf-8")
    percent, *rows = (line.split("\t") for line in lines.splitlines() if line[0] != "#")
    powers = "|".join(f"(?P<e{name}>{words})" for name, words in rows if name.isdecimal())
    units = "|".join(f"(?P<{name}>{words})" for name, words in rows if not name.isdecimal())
    patterns = percent[1], rf"\s?(?:{powers})", rf"\s?(?:{units})"
    return _WordsBehind(*(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


def numbers(text: str, language: str | None = None) -> list[Number]:
    """The numbers in a text, without the numbers of list items and references."""
    # A line with a digit has a match of `_NUMBER`.
    lines = [line for line in _MARK.sub(" ", text).split("\n") if re.search(r"\d", line)]
    matches_by_line = [list(_NUMBER.finditer(_plain(line))) for line in lines]
    written = [match[0] for matches in matches_by_line for match in matches]
    decimal_mark = _decimal_mark(written, language)
    return [
        number for matches in matches_by_line for number in _line_numbers(matches, decimal_mark)
    ]


def _plain(line: str) -> str:
    """The line with ASCII marks in its numbers, and a colon in its times of day."""
    line = _WIDE_COMMA.sub(",", line.replace("．", "."))
    return _TIME_OF_DAY.sub(r"\1\2:\3", line)


def _line_numbers(matches: Sequence[re.Match[str]], decimal_mark: str) -> Iterator[Number]:
    """The numbers of a line that has a match; a minus is a match of its own, before its number."""
    # In `5 to 10 percent`, the word behind the 5 does not stand for a unit.
    has_percent = bool(_words_behind().percent.search(matches[0].string))
    minus = ""
    for match in matches:
        written = "".join(str(int(c)) if c.isdecimal() else c for c in match[0])
        if not written[-1].isalnum():
            minus = written
            continue
        dates = _dates(written)
        values = dates or _values(written, decimal_mark)
        parts: set[Value] = set()
        if dates:
            parts = _date_parts(dates)
        elif " " in written or not values:
            parts = _parts(written)
        if not values and not parts:  # marks in an order that no place writes
            values = {written}
        if minus:
            values = {-value if isinstance(value, Decimal) else value for value in values}
        readings = _with_units(values, match, has_percent=has_percent)
        yield Number(minus + match[0], frozenset(readings), frozenset(parts))
        minus = ""


def _with_units(
    values: Collection[Value], match: re.Match[str], *, has_percent: bool
) -> set[NumberReading]:
    """Each value with its unit, by the signs and words around the number."""
    sign_before = match.string[max(0, match.start() - 2) : match.start()].strip()[-1:]
    exponent = _exponent(match, is_money=sign_before in _CURRENCIES)
    if exponent:
        large = {NumberReading(v.scaleb(exponent), "") for v in values if isinstance(v, Decimal)}
        # `3 million` is 3,000,000, and also a three before a word.
        return large | {NumberReading(value, TIMES) for value in values}
    unit = _unit(match, sign_before, has_percent=has_percent)
    return {NumberReading(value, unit) for value in values}


def _unit(match: re.Match[str], sign_before: str, *, has_percent: bool) -> str:
    """The unit of a number that no power of ten follows."""
    line = match.string
    end = match.end()
    if sign_before in {"%", "٪"} or _words_behind().percent.match(line[end : end + 20].lstrip()):
        return "%"
    if short_unit := _UNIT.match(line, end):
        return "".join(short_unit[1].split()).replace("KB", "kB").replace("\u03bc", "\u00b5")
    if spelt_unit := _words_behind().units.match(line, end):
        return str(spelt_unit.lastgroup)
    if sign_before in _CURRENCIES:
        return sign_before
    is_before_word = line[end : end + 2].strip()[:1].isalpha()
    return WORD if is_before_word and not has_percent else ""


_LETTER = re.compile(r"[mMbB](?!\w)")


def _exponent(match: re.Match[str], *, is_money: bool) -> int:
    """The exponent of a power of ten behind a number: `3 million`, `$5m`, `7B`; 0 for none."""
    line = match.string
    end = match.end()
    letter = _LETTER.match(line, end)
    # Without money, `5m` are meters.
    if letter and (is_money or letter[0].isupper()):
        return {"m": 6, "b": 9}[letter[0].lower()]
    # The words of each power stand in a group that is named after its exponent: `e6`.
    power = _words_behind().powers.match(line, end)
    return int(str(power.lastgroup).removeprefix("e")) if power else 0


def _dates(written: str) -> set[Value]:
    """`2024-04-03` for `2024-04-03`, `3.4.2024` or `2024年4月3日`; for `3/4/2024`, both orders."""
    groups = re.split(r"\D", written.rstrip("日"))
    # The first group of `.5.2024` is empty.
    if len(groups) != 3 or not groups[0] or "," in written or max(map(len, groups)) != 4:
        return set()
    year, month, day = map(int, groups if len(groups[0]) == 4 else groups[::-1])
    orders = {(month, day), (day, month)} if "/" in written else {(month, day)}
    return {f"{year:04}-{m:02}-{d:02}" for m, d in orders if 0 < m <= 12 and 0 < d <= 31}


def _decimal_mark(numbers: Iterable[str], language: str | None) -> str:
    """The mark before fractions, if the language and all unambiguous numbers agree; else empty."""
    marks_seen: set[str] = set()
    if language:
        marks_seen.add("." if has_trait(language, "decimal-point") else ",")
    for number in numbers:
        marks = re.findall(f"[{_DECIMAL_MARKS}]", number)
        groups = re.split(r"\D", number)
        # A number is unambiguous if it has both marks, or if its mark cannot part thousands.
        parts_no_thousands = len(groups[-1]) != 3 or groups[0] == "0"
        if len(set(marks)) == 2 or (len(marks) == 1 and parts_no_thousands):
            marks_seen.add(marks[-1])
    return marks_seen.pop() if len(marks_seen) == 1 else ""


def _date_parts(dates: Iterable[Value]) -> set[Value]:
    """The year of a date, and its day unless day and month may be the other way round."""
    orders: list[set[Value]] = [{Decimal(d[:4]), Decimal(d[-2:])} for d in map(str, dates)]
    return set.intersection(*orders)


def _parts(written: str) -> set[Value]:
    """The numbers between marks that may part several; empty without such a mark."""
    parts = re.split(f"[, {_GROUP_MARKS}]", written)
    return set[Value]().union(*map(_values, parts)) if parts[1:] else set()


def _values(written: str, decimal_mark: str = "") -> set[Value]:
    """The values that a number may have; without a `decimal_mark`, any mark may be the decimal one.

    Empty if its marks part several numbers.
    """
    groups = re.split(r"\D", written)
    marks = re.findall(r"\D", written)
    as_whole = Decimal("".join(groups))
    if not marks:
        return {as_whole}
    *earlier_marks, last_mark = marks
    as_fraction = Decimal(f"{''.join(groups[:-1])}.{groups[-1]}")
    if len({*marks}) == 2 and last_mark in _DECIMAL_MARKS:
        # 1,024.5 and 1.024,5: thousands, then the decimal mark, once.
        is_grouped = _THOUSANDS.fullmatch("-".join(groups[:-1]))
        return {as_fraction} if is_grouped and last_mark not in earlier_marks else set()
    are_thousands = bool(_THOUSANDS.fullmatch("-".join(groups)))
    # A version, such as 3.11.2, is compared as a text.
    if {*marks} == {"."} and earlier_marks and not are_thousands:
        return {written}
    # `2,5` is a fraction, `1 200` a whole number, and `1,200` either.
    values: set[Value] = set()
    if not earlier_marks and last_mark in _DECIMAL_MARKS:
        values.add(as_fraction)
    # U+066B is the decimal mark of Arabic, and groups nothing.
    if len({*marks}) == 1 and are_thousands and last_mark != "\u066b":
        values.add(as_whole)
    if decimal_mark and len(values) == 2:
        return {as_fraction if last_mark == decimal_mark else as_whole}
    return values
