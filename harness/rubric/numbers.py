"""Numbers as texts of many places write them, compared by what they may amount to.

`2,5` is 2.5, `1.200` is 1,200 or 1.2, `12 000` is one number or two: where a text does not say
which, each reading counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

Value = Decimal | str
"""A number to compare by; a version such as 3.11.2 stays a text."""

_DECIMAL_MARKS = ".,\u066b"
_GROUP_MARKS = "'\u2019\u066c\u00a0\u2009\u202f"
_NUMBER = re.compile(
    # A minus stands behind nothing that a range, a name or a date may end with.
    rf"(?<![\w)\]%.,])[-\u2212\u2013](?=\d)"
    rf"|\d+(?:[{_DECIMAL_MARKS}{_GROUP_MARKS}]\d+|[ ]\d{{3}}(?!\d))*"
)
# `1.` before an item of a list, `[1]` and `[^1]` for a reference.
_MARK = re.compile(r"(?m)^[^\S\n]*\d+[.)]\s|\[\^?\d+\]")


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a text."""

    text: str
    readings: frozenset[Value]
    """What it may amount to; empty if it is several numbers."""
    parts: frozenset[Value] = frozenset()
    """The numbers that it may be instead: `1,2,3`, `12 000`."""

    @property
    def values(self) -> frozenset[Value]:
        """All that it may name. A number below zero names its size too: `falls by 5`."""
        sizes = {abs(one) for one in self.readings if isinstance(one, Decimal)}
        return self.readings | self.parts | sizes

    def is_among(self, values: frozenset[Value]) -> bool:
        """Whether one of its readings is, or all of its parts are."""
        return not self.readings.isdisjoint(values) or (bool(self.parts) and self.parts <= values)


def numbers(text: str) -> list[Number]:
    """The numbers that claim something: not the marks of list items and references."""
    found, sign = [], ""
    for match in _NUMBER.finditer(_MARK.sub(" ", text)):
        written = match[0]
        if not written[0].isdecimal():
            sign = written
            continue
        readings = _readings(written)
        parts = _parts(written) if " " in written or not readings else frozenset[Value]()
        if not readings and not parts:  # marks that no place writes like this
            readings = frozenset([written])
        if sign:
            readings = frozenset(-one if isinstance(one, Decimal) else one for one in readings)
        found.append(Number(sign + written, readings, parts))
        sign = ""
    return found


def values_in(text: str) -> frozenset[Value]:
    """What the numbers of a text most likely amount to: 1,024 is rather 1024 than 1.024."""
    found: set[Value] = set()
    for number in numbers(text):
        sizes = [one for one in number.readings if isinstance(one, Decimal)]
        found |= {max(sizes)} if sizes else number.readings | number.parts
    return frozenset(found)


def _parts(written: str) -> frozenset[Value]:
    """The numbers between marks that may part several."""
    parts = re.split(f"[, {_GROUP_MARKS}]", written)
    return frozenset[Value]().union(*map(_readings, parts)) if parts[1:] else frozenset()


def _readings(written: str) -> frozenset[Value]:
    *groups, last = re.split(r"\D", written)
    marks = re.findall(r"\D", written)
    whole = Decimal("".join((*groups, last)))
    if not marks:
        return frozenset([whole])
    fraction = Decimal(f"{''.join(groups)}.{last}")
    if len({*marks[:-1]} - {marks[-1]}) == 1 and marks[-1] in _DECIMAL_MARKS:
        # 1,024.5 and 1.024,5: the last mark is the only one of its kind.
        is_one = marks[-1] not in marks[:-1] and _are_thousands(groups)
        return frozenset([fraction] if is_one else [])
    if {*marks} == {"."} and marks[1:] and not _are_thousands((*groups, last)):
        return frozenset([written])
    readings: set[Value] = set()
    if not marks[1:] and marks[0] in _DECIMAL_MARKS:
        readings.add(fraction)
    if len({*marks}) == 1 and _are_thousands((*groups, last)):
        readings.add(whole)
    return frozenset(readings)


def _are_thousands(groups: Sequence[str]) -> bool:
    """Whether marks part them as thousands, or as in India: 1,00,000."""
    first, *others = groups
    return (
        0 < len(first) <= 3
        and first[0] != "0"
        and (
            all(len(one) == 3 for one in others)
            or (
                len(others[-1]) == 3
                and all(len(one) == 2 for one in others[:-1])
                and len(first) < 3
            )
        )
    )
