"""Numbers as texts of many places write them, compared by value, sign and unit.

`2,5` is 2.5, `12 000` is one number or two, `1.200` is 1,200 or 1.2: as the other numbers of the
text are written, else as its language writes, else each reading counts. Not read: `1/2`, `10^2`,
一千二百.
"""

# ruff: noqa: RUF001 - signs of several scripts are meant

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
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
    # A minus stands behind nothing that a range, a name or a date may end with.
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
_WIDE_COMMA = re.compile("(?<=[０-９])，(?=[０-９])")
# `14.30 Uhr`, `kl. 14.30`, `klo 14.30`: no fraction.
_TIME_OF_DAY = re.compile(r"(\bklo |\bkl\. ?)?\b(\d\d?)\.([0-5]\d)\b(?(1)|(?=\s?Uhr\b))")
# Groups of digits: 1-000-000, or as in India 1-00-000.
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?:-\d{3})+|[1-9]\d?(?:-\d\d)*-\d{3}|[1-9]\d{0,2}")
WORD, TIMES = "word", "times"
"""In place of a unit: a number before a word that is none that we know, before `million`."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text."""

    text: str
    readings: frozenset[tuple[Value, str]]
    """What it may amount to, each with its unit or an empty text; none if it is several numbers."""
    parts: frozenset[Value] = frozenset()
    """The numbers that it may be instead: `1,2,3`, `12 000`, a date."""


def values_in(text: str) -> frozenset[Value]:
    """What the numbers of a text most likely amount to: 1,024 is rather 1024 than 1.024."""
    matches = numbers(text, "en")
    return frozenset({v for n in matches for v in (*(value for value, _ in n.readings), *n.parts)})


class _Behind(NamedTuple):
    """Words that may stand behind a number."""

    percent: re.Pattern[str]
    powers: re.Pattern[str]
    """Of ten, in groups by the exponent: `e6`."""
    units: re.Pattern[str]
    """In groups by their Latin letters."""


@cache
def _behind() -> _Behind:
    lines = files("harness.text").joinpath("number_words.tsv").read_text(encoding="utf-8")
    percent, *rows = (line.split("\t") for line in lines.splitlines() if line[0] != "#")
    powers = "|".join(f"(?P<e{name}>{words})" for name, words in rows if name.isdecimal())
    units = "|".join(f"(?P<{name}>{words})" for name, words in rows if not name.isdecimal())
    patterns = percent[1], rf"\s?(?:{powers})", rf"\s?(?:{units})"
    return _Behind(*(re.compile(pattern, re.IGNORECASE) for pattern in patterns))


def numbers(text: str, language: str | None = None) -> list[Number]:
    """The numbers that claim something: not the marks of list items and references."""
    lines = [line for line in _MARK.sub(" ", text).split("\n") if re.search(r"\d", line)]
    plain = (_WIDE_COMMA.sub(",", line.replace("．", ".")) for line in lines)
    matches = [list(_NUMBER.finditer(_TIME_OF_DAY.sub(r"\1\2:\3", line))) for line in plain]
    mark = _decimal_mark((match[0] for line in matches for match in line), language)
    values = []
    for line in matches:
        percent, sign = bool(_behind().percent.search(line[0].string)), ""
        for match in line:
            written = "".join(str(int(c)) if c.isdecimal() else c for c in match[0])
            # A minus is a match of its own, before that of its number.
            if not written[-1].isalnum():
                sign = written
                continue
            dates = _dates(written)
            readings = dates or _readings(written, mark)
            several = dates or " " in written or not readings
            parts = _parts(written) if several else frozenset[Value]()
            if not readings and not parts:  # marks that no place writes like this
                readings = {written}
            if sign:
                readings = {-value if isinstance(value, Decimal) else value for value in readings}
            units = frozenset(_with_units(readings, match, percent=percent))
            values.append(Number(sign + match[0], units, parts))
            sign = ""
    return values


def _with_units(
    readings: Collection[Value], match: re.Match[str], *, percent: bool
) -> Iterator[tuple[Value, str]]:
    line, behind = match.string, match.end()
    before = line[max(0, match.start() - 2) : match.start()].strip()[-1:]
    money = before if before and before in "€$£¥₽₹₩" else ""
    if exponent := _exponent(line, behind, is_money=bool(money)):
        yield from ((v.scaleb(exponent), "") for v in readings if isinstance(v, Decimal))
        yield from ((value, TIMES) for value in readings)
        return
    unit = _UNIT.match(line, behind)
    is_word = not percent and line[behind : behind + 2].strip()[:1].isalpha()
    name = money or (WORD if is_word else "")
    if before in {"%", "٪"} or _behind().percent.match(line[behind : behind + 20].lstrip()):
        name = "%"
    elif unit:
        name = "".join(unit[1].split()).replace("KB", "kB").replace("\u03bc", "\u00b5")
    elif spelt := _behind().units.match(line, behind):
        name = str(spelt.lastgroup)
    yield from ((value, name) for value in readings)


def _exponent(line: str, behind: int, *, is_money: bool) -> int:
    """Of the power of ten that follows a number: `3 million`, `$5m`, `7B`; 0 for none."""
    letter = re.match(r"[mMbB](?!\w)", line[behind : behind + 2])
    # Without money, `5m` are meters.
    if letter and (is_money or letter[0].isupper()):
        return {"m": 6, "b": 9}[letter[0].lower()]
    power = _behind().powers.match(line, behind)
    return int(str(power.lastgroup)[1:]) if power else 0


def _dates(written: str) -> set[Value]:
    """`2024-04-03` for that, for `3.4.2024` and for `2024年4月3日`; for `3/4/2024` two."""
    groups = re.split(r"\D", written.rstrip("日"))
    if len(groups) != 3 or written.count(",") or max(map(len, groups)) != 4:
        return set()
    year, month, day = map(int, groups if len(groups[0]) == 4 else groups[::-1])
    orders = {(month, day), (day, month)} if "/" in written else {(month, day)}
    return {f"{year:04}-{m:02}-{d:02}" for m, d in orders if 0 < m <= 12 and 0 < d <= 31}


def _decimal_mark(numbers: Iterable[str], language: str | None) -> str:
    """The mark before fractions, if the language and the numbers without doubt agree on one."""
    marks_seen = {"." if has_trait(language, "decimal-point") else ","} if language else set()
    for number in numbers:
        marks, groups = re.findall(f"[{_DECIMAL_MARKS}]", number), re.split(r"\D", number)
        # A mark tells what it is beside another one, and where it cannot part thousands.
        parts_no_thousands = len(groups[-1]) != 3 or groups[0] == "0"
        if len(set(marks)) == 2 or (len(marks) == 1 and parts_no_thousands):
            marks_seen.add(marks[-1])
    return marks_seen.pop() if len(marks_seen) == 1 else ""


def _parts(written: str) -> frozenset[Value]:
    """The numbers between marks that may part several."""
    if dates := _dates(written):
        orders = [{Decimal(date[:4]), Decimal(date[-2:])} for date in map(str, dates)]
        return frozenset(set.intersection(*orders))
    parts = re.split(f"[, {_GROUP_MARKS}]", written)
    return frozenset[Value]().union(*map(_readings, parts)) if parts[1:] else frozenset()


def _readings(written: str, mark: str = "") -> set[Value]:
    """What a number may amount to, with this mark before fractions, or with any."""
    groups, marks = re.split(r"\D", written), re.findall(r"\D", written)
    whole = Decimal("".join(groups))
    if not marks:
        return {whole}
    fraction = Decimal(f"{''.join(groups[:-1])}.{groups[-1]}")
    if len({*marks[:-1]} - {marks[-1]}) == 1 and marks[-1] in _DECIMAL_MARKS:
        # 1,024.5 and 1.024,5: the last mark is the only one of its kind.
        is_one = marks[-1] not in marks[:-1] and _THOUSANDS.fullmatch("-".join(groups[:-1]))
        return {fraction} if is_one else set()
    are_thousands = bool(_THOUSANDS.fullmatch("-".join(groups)))
    # A version, such as 3.11.2, is compared as a text.
    if {*marks} == {"."} and marks[1:] and not are_thousands:
        return {written}
    # `2,5` is a fraction, `1 200` a whole number, and `1,200` either.
    readings: set[Value] = set()
    if not marks[1:] and marks[0] in _DECIMAL_MARKS:
        readings.add(fraction)
    # U+066B is the decimal mark of Arabic, and groups nothing.
    if len({*marks}) == 1 and are_thousands and marks[0] != "\u066b":
        readings.add(whole)
    if mark and len(readings) == 2:
        return {fraction if marks[0] == mark else whole}
    return readings
