"""Byte counts as people write them: `8 GiB` is 8 * 2**30 bytes, `8 GB` is 8 * 10**9."""

from __future__ import annotations

import re
from fractions import Fraction

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB")
_SIZE = re.compile(rf"(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})", re.IGNORECASE | re.ASCII)
_ACCEPTED = "write a number of bytes, or a number with a unit: 512 MiB, 8 GiB, 1.5GB"


def format_bytes(count: int) -> str:
    """A byte count for people, in binary units with one decimal: `1.2 GiB`."""
    size, power = float(count), 0
    while round(size, 1) >= 1024 and power < len(_BINARY_UNITS):  # not 1024.0 KiB for 1023.96
        size /= 1024
        power += 1
    return f"{size:.1f} {_BINARY_UNITS[power - 1]}" if power else f"{count} B"


def parse_bytes(size: int | str) -> int:
    """The byte count that a person wrote: `8589934592`, `8 GiB`, `8GB`; case does not matter.

    A fraction of a byte is dropped.

    Raises:
        ValueError: It is negative or has another form; the message lists the forms.
    """
    text = str(size).strip()
    if text.isascii() and text.isdigit():
        return int(text)
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{size!r} is not a size; {_ACCEPTED}")
    number, unit = match.groups()
    return int(Fraction(number) * _UNITS[unit.upper()])
