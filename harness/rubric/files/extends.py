"""A rubric that extends another: whose values it takes over, and how the two become one.

A field that the file writes goes before the base's. Mappings (`scale`, `shorten`, `anchors`, a
dimension) are merged field by field, dimensions by name and in the base's order; any other list
(`checks`, `caps`) is taken whole from one of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.errors import Notice, Problem, RubricInvalid, did_you_mean
from harness.rubric.files.library import ENDINGS, find_rubric, no_such_rubric
from harness.rubric.files.written import Written

_MOST_LINKS = 8
"""Rubrics that extend one another; nobody follows more."""
_ITS_OWN = ("extends", "without")
"""Fields that say how a file is read, and not what its rubric is."""
_OF_JUDGING = frozenset({"judge", "anchors", "feedback", "caps", "needs_sources", "optional"})
_OF_CHECKING = frozenset({"checks", "caps", "gate"})


def base_of(own: Written, chain: Sequence[Path], places: Sequence[Path]) -> Path | None:
    """The file that one extends; None when it extends nothing.

    Args:
        own: What the file holds.
        chain: The files that led to this one, itself the last.
        places: Where a name is looked for, after the file's own folder.

    Raises:
        RubricInvalid: There is no such rubric, or they extend each other in a circle, or too many.
    """
    wanted = own.fields.get("extends")
    if wanted is None or not isinstance(wanted.value, str) or not wanted.value.strip():
        return None  # validation says what is wrong with it, if anything is
    name, here = wanted.value.strip(), chain[-1]
    if name.endswith(ENDINGS):
        path: Path | None = here.parent / name
        missing = f"there is no file {path}; a path starts at the folder of this file"
    else:
        path = find_rubric(name, (here.parent, *places), besides=here)
        missing = no_such_rubric(name, places)
        if name == here.stem:
            missing = f"there is no rubric '{name}' besides this one"
    links = " → ".join(map(str, (*chain, path)))
    if path is None or not path.is_file():
        said = Notice(code="rubric.base-not-found", message=f"extends: {missing}")
    elif any(path.samefile(earlier) for earlier in chain):
        said = Notice(
            code="rubric.extends-circle",
            message=f"the rubrics extend each other in a circle: {links}",
        )
    elif len(chain) >= _MOST_LINKS:
        said = Notice(
            code="rubric.extends-too-many",
            message=f"more than {_MOST_LINKS} rubrics extend each other: {links}",
        )
    else:
        return path
    raise RubricInvalid(said.message, code=said.code, path=here, line=wanted.line)


def extended(own: Written, base: Written) -> tuple[Written, tuple[Problem, ...]]:
    """What a file and its base amount to, and what in the file does not fit the base."""
    inherited = {name: field for name, field in base.fields.items() if name not in _ITS_OWN}
    names = _by_name(inherited["dimensions"])
    left_out = {item.value for item in _without(own)}
    kept = [dimension for name, dimension in names.items() if name not in left_out]
    inherited["dimensions"] = Written(kept, base.path, inherited["dimensions"].line)
    misspelt = _misspelt(own, names)
    problems = [*_unknown_in_without(own, names), *(_is_misspelt(d, names) for d in misspelt)]
    merged = over(_leaving_out(misspelt, own), Written(inherited, base.path, base.line))
    return merged, tuple(problems)


def over(own: Written, base: Written) -> Written:
    """A rubric's fields, and the base's where it has none."""
    fields = {**base.fields, **own.fields}
    for name in ("scale", "shorten"):
        fields = _merge_field(fields, name, own, base)
    if "dimensions" in own.fields and "dimensions" in base.fields:
        both = own.fields["dimensions"], base.fields["dimensions"]
        fields["dimensions"] = _dimensions_over(*both)
    return Written(fields, own.path, own.line)


def _dimensions_over(own: Written, base: Written) -> Written:
    if not own.items:
        return base if own.value is None or own.value == [] else own
    mine = _by_name(own)
    merged = [
        _dimension_over(mine[name], inherited) if name in mine else inherited
        for name, inherited in _by_name(base).items()
    ]
    known = _by_name(base).keys()
    # One that stands twice comes here the second time, and is refused for that.
    new = [d for d in own.items if _name(d) not in known or d is not mine[_name(d)]]
    return Written([*merged, *new], own.path, own.line)


def _dimension_over(own: Written, base: Written) -> Written:
    """One dimension's fields; scored in another way, it takes over only name, weight and floor."""
    dropped: frozenset[str] = frozenset()
    if "checks" in own.fields and "judge" in base.fields:
        dropped = _OF_JUDGING
    elif "judge" in own.fields and "checks" in base.fields:
        dropped = _OF_CHECKING
    inherited = {name: field for name, field in base.fields.items() if name not in dropped}
    merged = _merge_field(
        {**inherited, **own.fields}, "anchors", own, Written(inherited, base.path, base.line)
    )
    return Written(merged, own.path, own.line)


def _merge_field(
    fields: dict[str, Written], name: str, own: Written, base: Written
) -> dict[str, Written]:
    mine, inherited = own.fields.get(name), base.fields.get(name)
    if mine is None or inherited is None or not mine.fields:
        return fields
    both = Written({**inherited.fields, **mine.fields}, mine.path, mine.line)
    return {**fields, name: both}


def _unknown_in_without(own: Written, names: dict[str, Written]) -> list[Problem]:
    return [
        Problem(
            path=item.path,
            line=item.line,
            message=f"without: the rubric that this extends has no dimension '{item.value}'; "
            + did_you_mean(str(item.value), names),
            code="rubric.unknown-left-out",
        )
        for item in _without(own)
        if item.value not in names
    ]


def _misspelt(own: Written, names: dict[str, Written]) -> list[Written]:
    """The dimensions that are meant to change one which the base does not have."""
    dimensions = own.fields.get("dimensions")
    return [
        dimension
        for dimension in (dimensions.items if dimensions else ())
        if _name(dimension)
        and _name(dimension) not in names
        and not {"checks", "judge"} & dimension.fields.keys()
    ]


def _is_misspelt(dimension: Written, names: dict[str, Written]) -> Problem:
    name = _name(dimension)
    return Problem(
        path=dimension.path,
        line=dimension.line,
        message=f"the rubric that this extends has no dimension '{name}', and a new one needs "
        f"'checks' or 'judge'; {did_you_mean(name, names)}",
        code="rubric.unknown-dimension",
    )


def _leaving_out(dimensions: Sequence[Written], own: Written) -> Written:
    """Without those that were said to be wrong already."""
    if not dimensions:
        return own
    listed = own.fields["dimensions"]
    kept = [item for item in listed.items if all(item is not d for d in dimensions)]
    fields = {**own.fields, "dimensions": Written(kept, listed.path, listed.line)}
    return Written(fields, own.path, own.line)


def _without(own: Written) -> Sequence[Written]:
    listed = own.fields.get("without")
    return [item for item in listed.items if isinstance(item.value, str)] if listed else []


def _by_name(dimensions: Written) -> dict[str, Written]:
    """The first of each name, in order; those without a name are left to validation."""
    found: dict[str, Written] = {}
    for dimension in dimensions.items:
        if name := _name(dimension):
            found.setdefault(name, dimension)
    return found


def _name(dimension: Written) -> str:
    name = dimension.fields.get("name")
    return str(name.value).strip() if name is not None and isinstance(name.value, str) else ""
