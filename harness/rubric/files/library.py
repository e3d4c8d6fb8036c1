"""Where rubrics are looked for by name: among the user's own first, then among those that ship."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import did_you_mean
from harness.shipped import shipped_directory

ENDINGS = (".yaml", ".yml")
"""What a rubric's file ends in; a name that does is a path."""


def directories(directory: Path) -> tuple[Path, ...]:
    """Where to look, in order.

    Args:
        directory: The user's own rubrics; it need not exist.
    """
    return directory, shipped_directory("rubrics")


def find_rubric(name: str, places: Sequence[Path], *, besides: Path | None = None) -> Path | None:
    """The first file of this name.

    Args:
        name: Without ending.
        places: Where to look.
        besides: A file that is not meant.
    """
    for place in places:
        for ending in ENDINGS:
            path = place / f"{name}{ending}"
            if path.is_file() and not (besides and path.samefile(besides)):
                return path
    return None


def known_rubrics(places: Sequence[Path]) -> dict[str, Path]:
    """Every rubric by its name; of two with one name, the one that `find_rubric` finds."""
    names = {path.stem for place in places for end in ENDINGS for path in place.glob(f"*{end}")}
    found = {name: find_rubric(name, places) for name in sorted(names)}
    return {name: path for name, path in found.items() if path is not None}


def no_such_rubric(name: str, places: Sequence[Path]) -> str:
    """What to say of a name that none has."""
    where = f"in {places[0]}/ nor among those that ship"
    here = next((Path(name + end) for end in ENDINGS if Path(name + end).is_file()), None)
    if here is not None:
        near = f"for the file of that name, write '{here}'"
    elif Path(name).is_file():
        near = f"a rubric's file ends in {ENDINGS[0]}"
    else:
        near = did_you_mean(name, known_rubrics(places))
    return f"there is no rubric '{name}' {where}; {near}"


def no_such_file(path: Path, places: Sequence[Path]) -> str:
    """What to say of a path at which there is nothing."""
    found = find_rubric(path.stem, places)
    return "there is no such file" + (f"; did you mean {found}?" if found else "")
