"""Numbers as texts of many places write them, compared by value, sign and unit.

`2,5` is 2.5, and `12 000` is one number or two. `1.200` is 1,200 or 1.2: the other numbers of the
text and its language decide, or else both readings count. `1e3` is 1000. Fractions such as `1/2`,
powers such as `10^2` and numerals such as 一千二百 are not read.
"""

# ruff: noqa: RUF001 - signs of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from harness.text.languages import NO_WIDTH, has_trait

Value = Decimal | str
"""A number to compare by; a date, or a version such as 3.11.2, stays a text."""

# The usual context rounds to 28 digits, which would make long numbers of an id the same.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DECIMAL_MARKS = ".,\u066b"
_GROUP_MARKS = "'\u2019\u066c\u00a0\u2009\u202f"
_NUMBER = re.compile(
    # A minus, unless something is before it that a range, a name or a date may end with.
    rf"(?:(?P<minus>(?<![\w)\]%.,])[-\u2212\u2013\uff0d](?=[{NO_WIDTH}]*\d))[{NO_WIDTH}]*)?"
    # A year or a date.
    r"(?P<form>(?<!\d)(?:\d{4}(?:-\d\d-\d\d(?!\d)|年\d\d?月\d\d?日)|\d\d?/\d\d?/\d{4})"
    # Digits with marks or single blanks between them, and a power of ten.
    rf"|(?:\d+|(?<![\w.,])\.\d+)(?:[{_DECIMAL_MARKS}{_GROUP_MARKS}]\d+|[ ]\d{{3}}(?!\d))*"
    r"(?:[eE][-+]?\d{1,3}\b)?)"
)
# `1.` names an item of a list if a text follows, `[1]` and `[^1]` another text.
_REFERENCE = re.compile(r"(?m)^[^\S\n]*\d+[.)][^\S\n]|\[\^?\d+\]")
_UNIT = re.compile(
    r"\s?(°\s?[CF]|‰|[€$£¥₽₹₩]|(?:[kcm\u00b5\u03bcn]?m|[km\u00b5\u03bc]?g|[cm]?l|t|h|min"
    r"|[m\u00b5\u03bc]?s|[kMGT]?(?:Wh?|Hz|V|B)|KB|[KMGT]iB)(?!\w))"
)
_MILLION_OR_BILLION = re.compile(r"[mMbB](?!\w)")
_CURRENCIES = tuple("€$£¥₽₹₩")
_COMMA = re.compile(r"(?<=[０-９])，(?=[０-９])|\{,\}|,\\!|(?<=\d)_(?=\d{3})")  # in TeX 1{,}234
# `14.30 Uhr`, `kl. 14.30`, `klo 14.30`: no fraction.
_TIME_OF_DAY = re.compile(r"(\bklo |\bkl\. ?)?\b(\d\d?)\.([0-5]\d)\b(?(1)|(?=\s?Uhr\b))")
# Groups of digits with dashes between: 1-000-000, or as in India 1-00-000.
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
    """A number in a text: one by its `readings`, or several, its `parts`.

    `2,5` has the reading 2.5; `1,200` has 1200 and 1.2; neither has parts. `12 000` has the reading
    12000 and the parts 12 and 0, a date its year and day as parts. `1,2,3` has only parts.
    """

    text: str
    readings: frozenset[NumberReading]
    parts: frozenset[Value] = frozenset()


def values_in(text: str) -> frozenset[Value]:
    """The likeliest values of the numbers in a text: 1,024 is rather 1024 than 1.024."""
    values = ({reading.value for reading in n.readings} | n.parts for n in numbers(text, "en"))
    return frozenset[Value]().union(*values)


class _WordsBehind(NamedTuple):
    """Patterns of words that may stand behind a number."""

    percent: re.Pattern[str]
    powers: re.Pattern[str]  # of ten; the name of each group is `e` and the exponent: `e6`
    units: re.Pattern[str]  # the name of each group is the unit in Latin letters


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
    text = _COMMA.sub(",", _REFERENCE.sub(" ", text).replace("．", ".").replace("\\,", "\u2009"))
    lines = filter(re.compile(r"\d").search, _TIME_OF_DAY.sub(r"\1\2:\3", text).split("\n"))
    # A line with a digit has a match of `_NUMBER`.
    matches_by_line = [list(_NUMBER.finditer(line)) for line in lines]
    forms = [match["form"] for matches in matches_by_line for match in matches]
    decimal_mark = _decimal_mark(forms, language)
    read: list[Number] = []
    for matches in matches_by_line:
        # In `5 to 10 percent`, the word behind the 5 does not stand for a unit.
        has_percent = bool(_words_behind().percent.search(matches[0].string))
        read += [_number(match, decimal_mark, has_percent=has_percent) for match in matches]
    return read


def _number(match: re.Match[str], decimal_mark: str, *, has_percent: bool) -> Number:
    ascii_form = "".join(str(int(c)) if c.isdecimal() else c for c in match["form"])
    form, _, power = ascii_form.lower().partition("e")
    if dates := _dates(form):
        values, parts = dates, _date_parts(dates)
    else:
        values = _values(form, decimal_mark)
        exponent = int(power or 0)
        values = {v.scaleb(exponent, _EXACT) if isinstance(v, Decimal) else v for v in values}
        parts = _parts(form) if " " in form or not values else set()
    if not values and not parts:  # marks in an order that no place writes
        values = {form}
    minus = match["minus"] or ""
    if minus:
        values = {v.copy_negate() if isinstance(v, Decimal) else v for v in values}
    readings = _with_units(values, match, has_percent=has_percent)
    return Number(minus + match["form"], frozenset(readings), frozenset(parts))


def _with_units(
    values: Collection[Value], match: re.Match[str], *, has_percent: bool
) -> set[NumberReading]:
    """Each value with its unit, by the signs and words around the number."""
    start = match.start("form")
    sign_before = match.string[max(0, start - 2) : start].strip()[-1:]
    if exponent := _exponent(match, is_money=sign_before in _CURRENCIES):
        large = {v.scaleb(exponent, _EXACT) for v in values if isinstance(v, Decimal)}
        # `3 million` is 3,000,000, and also a three before a word.
        return {NumberReading(v, "") for v in large} | {NumberReading(v, TIMES) for v in values}
    unit = _unit(match, sign_before, has_percent=has_percent)
    return {NumberReading(value, unit) for value in values}


def _unit(match: re.Match[str], sign_before: str, *, has_percent: bool) -> str:
    """The unit of a number without a power of ten such as `million` behind it."""
    line, end = match.string, match.end()
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


def _exponent(match: re.Match[str], *, is_money: bool) -> int:
    """The exponent of a power of ten behind a number: `3 million`, `$5m`, `7B`; 0 for none."""
    line, end = match.string, match.end()
    letter = _MILLION_OR_BILLION.match(line, end)
    # Without money, `5m` are meters.
    if letter and (is_money or letter[0].isupper()):
        return {"m": 6, "b": 9}[letter[0].lower()]
    power = _words_behind().powers.match(line, end)
    return int(str(power.lastgroup).removeprefix("e")) if power else 0


def _dates(form: str) -> set[Value]:
    """`2024-04-03` for `2024-04-03`, `3.4.2024` or `2024年4月3日`; for `3/4/2024`, both orders."""
    groups = re.split(r"\D", form.rstrip("日"))
    # The first group of `.5.2024` is empty.
    if len(groups) != 3 or not groups[0] or "," in form or max(map(len, groups)) != 4:
        return set()
    year, month, day = map(int, groups if len(groups[0]) == 4 else groups[::-1])
    orders = {(month, day), (day, month)} if "/" in form else {(month, day)}
    return {f"{year:04}-{m:02}-{d:02}" for m, d in orders if 0 < m <= 12 and 0 < d <= 31}


def _date_parts(dates: Iterable[Value]) -> set[Value]:
    """The year of a date, and its day unless day and month may be the other way round."""
    orders: list[set[Value]] = [{Decimal(d[:4]), Decimal(d[-2:])} for d in map(str, dates)]
    return set.intersection(*orders)


def _parts(form: str) -> set[Value]:
    """The numbers between marks that may separate numbers; empty without such a mark."""
    parts = re.split(f"[, {_GROUP_MARKS}]", form)
    return set[Value]().union(*map(_values, parts)) if parts[1:] else set()


def _decimal_mark(forms: Iterable[str], language: str | None) -> str:
    """The mark before fractions, if the language and all unambiguous numbers agree; else empty."""
    marks_seen: set[str] = set()
    if language:
        marks_seen.add("." if has_trait(language, "decimal-point") else ",")
    for form in forms:
        marks = re.findall(f"[{_DECIMAL_MARKS}]", form)
        groups = re.split(r"\D", form)
        # A number is unambiguous if it has both marks, or if its mark cannot part thousands.
        parts_no_thousands = len(groups[-1]) != 3 or groups[0] == "0"
        if len(set(marks)) == 2 or (len(marks) == 1 and parts_no_thousands):
            marks_seen.add(marks[-1])
    return marks_seen.pop() if len(marks_seen) == 1 else ""


def _values(form: str, decimal_mark: str = "") -> set[Value]:
    """The values that a number may have; without a `decimal_mark`, any mark may be the decimal one.

    `2,5` is a fraction, `1 200` a whole number, `1,200` either, and `1,024.5` has both marks. Empty
    if the marks separate several numbers.
    """
    groups, marks = re.split(r"\D", form), re.findall(r"\D", form)
    as_whole = Decimal("".join(groups))
    if not marks:
        return {as_whole}
    as_fraction = Decimal(f"{''.join(groups[:-1])}.{groups[-1]}")
    *earlier_marks, last_mark = marks
    is_decimal = last_mark in _DECIMAL_MARKS
    if len({*marks}) == 2 and is_decimal:
        # Thousands, and then the decimal mark, once.
        is_number = last_mark not in earlier_marks and _are_thousands(groups[:-1])
        return {as_fraction} if is_number else set()
    # A version, such as 3.11.2, is compared as a text.
    if {*marks} == {"."} and earlier_marks and not _are_thousands(groups):
        return {form}
    values: set[Value] = set()
    if not earlier_marks and is_decimal:
        values.add(as_fraction)
    # U+066B is the decimal mark of Arabic, and groups nothing.
    if len({*marks}) == 1 and _are_thousands(groups) and last_mark != "\u066b":
        values.add(as_whole)
    if decimal_mark and len(values) == 2:
        return {as_fraction if last_mark == decimal_mark else as_whole}
    return values


def _are_thousands(groups: Iterable[str]) -> bool:
    """Whether these groups of digits are those of a whole number: `1 200`, in India `12 00 000`."""
    return _THOUSANDS.fullmatch("-".join(groups)) is not None
