"""The package does not grow: each room has a ceiling in `ceilings.toml`."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from sources import PACKAGE

TESTS = Path(__file__).parent
CEILINGS = tomllib.loads((TESTS / "ceilings.toml").read_text(encoding="utf-8"))


def lines_by_room(package: Path) -> Counter[str]:
    """Lines of Python by folder of a package; its own files are `top`."""
    lines: Counter[str] = Counter()
    for file in package.rglob("*.py"):
        folders = file.relative_to(package).parts[:-1]
        lines[folders[0] if folders else "top"] += file.read_bytes().count(b"\n")
    return lines


def faults(lines: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """Where lines and ceilings disagree, in words that say what to do."""
    over = [
        f"{room} has {lines[room]:,} lines, {lines[room] - ceilings[room]:,} over its ceiling: "
        "take out as many, or say in CHANGELOG.md why the ceiling rises"
        for room in sorted(lines.keys() & ceilings.keys())
        if lines[room] > ceilings[room]
    ]
    new = sorted(lines.keys() - ceilings.keys())
    return over + [f"{room} has no ceiling in tests/ceilings.toml" for room in new]


def test_no_room_is_over_its_ceiling():
    # An installed package has the rooms of a checkout as well, which are no code of its own.
    lines = {room: n for room, n in lines_by_room(PACKAGE).items() if room != "_rooms"}

    assert faults(lines, CEILINGS["harness"]) == []


def test_the_tests_are_not_over_their_ceiling():
    lines = sum(lines_by_room(TESTS).values())

    assert lines <= CEILINGS["tests"], f"{lines - CEILINGS['tests']:,} lines of tests too many"


if __name__ == "__main__":
    for room, count in sorted(lines_by_room(PACKAGE).items()):
        print(f"{room:<12} {count:>7,} of {CEILINGS['harness'].get(room, 0):>7,}")
    print(f"{'tests':<12} {sum(lines_by_room(TESTS).values()):>7,} of {CEILINGS['tests']:>7,}")
