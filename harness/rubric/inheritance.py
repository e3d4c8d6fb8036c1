"""Merges a rubric's file with the rubric that it extends.

A file's own field overrides the base's. Mappings (`scale`, `shorten`, `anchors`, a dimension) are
merged field by field, dimensions by name and in the base's order; any other list (`checks`, `caps`)
comes whole from one of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.errors import Problem, did_you_mean
from harness.rubric.rubric import Scale
from harness.rubric.written import Written

# Fields that say how a file is read, not what its rubric is.
_NOT_INHERITED = ("extends", "without")
_OF_JUDGING = frozenset({"judge", "anchors", "feedback", "caps", "needs_sources", "optional"})
_OF_CHECKING = frozenset({"checks", "caps", "gate"})


def extended(file: Written, base: Written) -> tuple[Written, list[Problem]]:
    """A file merged with its base, and what in the file does not fit the base."""
    inherited = {name: field for name, field in base.fields.items() if name not in _NOT_INHERITED}
    base_dimensions = _by_name(inherited["dimensions"].items)
    left_out = {
        item.value: item for item in _items_of(file, "without") if isinstance(item.value, str)
    }
    remaining = {name: d for name, d in base_dimensions.items() if name not in left_out}
    inherited["dimensions"] = replace(inherited["dimensions"], value=[*remaining.values()])
    problems = [
        item.problem(
            f"without: the rubric that this extends has no dimension '{name}'; "
            + did_you_mean(name, base_dimensions),
            code="rubric.unknown-left-out",
        )
        for name, item in left_out.items()
        if name not in base_dimensions
    ]
    own = []
    for dimension in _items_of(file, "dimensions"):
        name = _name(dimension)
        is_new = {"checks", "judge"} & dimension.fields.keys()
        if not name or name in base_dimensions or is_new:
            own.append(dimension)
            continue
        problems.append(
            dimension.problem(
                f"the rubric that this extends has no dimension '{name}', and a new one needs "
                f"'checks' or 'judge'; {did_you_mean(name, base_dimensions)}",
                code="rubric.unknown-dimension",
            )
        )
    fields = _merged(file.fields, inherited, mappings=("scale", "shorten", "prompts"))
    if _items_of(file, "dimensions"):
        dimensions = _merged_dimensions(own, remaining)
        fields["dimensions"] = replace(file.fields["dimensions"], value=dimensions)
    elif "dimensions" in file.fields and file.fields["dimensions"].value in (None, []):
        fields["dimensions"] = inherited["dimensions"]
    merged = replace(file, value=fields)
    return merged, [*problems, *_scores_of_another_scale(file, base, merged)]


def _merged_dimensions(own: Sequence[Written], base: Mapping[str, Written]) -> list[Written]:
    """The base's dimensions with a file's own changes, then those that only the file has."""
    changes = _by_name(own)
    merged = []
    for name, dimension in base.items():
        change = changes.get(name)
        merged.append(_changed_dimension(dimension, change) if change else dimension)
    # A dimension that stands twice comes here the second time, and is refused for that.
    new = [d for d in own if _name(d) not in base or d is not changes[_name(d)]]
    return [*merged, *new]


def _changed_dimension(base: Written, change: Written) -> Written:
    """The base's dimension with a file's changes."""
    dropped: frozenset[str] = frozenset()
    # Scored in another way, it keeps only name, weight and floor.
    if "checks" in change.fields and "judge" in base.fields:
        dropped = _OF_JUDGING
    elif "judge" in change.fields and "checks" in base.fields:
        dropped = _OF_CHECKING
    inherited = {name: field for name, field in base.fields.items() if name not in dropped}
    fields = _merged(change.fields, inherited, mappings=("anchors", "scale"))
    return replace(change, value=fields)


def _merged(
    own: Mapping[str, Written], base: Mapping[str, Written], *, mappings: Sequence[str]
) -> dict[str, Written]:
    """The fields of both, the own ones first; those named in `mappings` are merged themselves."""
    fields = {**base, **own}
    for name in mappings:
        if name in own and name in base and own[name].fields:
            fields[name] = replace(own[name], value={**base[name].fields, **own[name].fields})
    return fields


def _scores_of_another_scale(file: Written, base: Written, merged: Written) -> Iterator[Problem]:
    """The problem with scores taken over from a base whose scale has other ends."""
    # There they mean something else: 8 of 10 is not 8 of 100.
    scores: list[tuple[str, Written | None]] = []
    if _ends_of_scale(base) != _ends_of_scale(merged):
        scores = [(name, merged.fields.get(name)) for name in ("pass_at", "focus_below")]
    base_dimensions = _by_name(base.fields["dimensions"].items)
    rescaled = [file]
    for name, dimension in _by_name(merged.fields["dimensions"].items).items():
        before = base_dimensions.get(name)
        if not before or _ends_of_scale(before, base) == _ends_of_scale(dimension, merged):
            continue
        rescaled += [d for d in _items_of(file, "dimensions") if _name(d) == name]
        scores.append((f"the floor of '{name}'", dimension.fields.get("floor")))
        if anchors := dimension.fields.get("anchors"):
            scores += [(f"anchor {score} of '{name}'", a) for score, a in anchors.fields.items()]
        for cap in _items_of(dimension, "caps"):
            scores.append((f"a cap of '{name}'", cap.fields.get("at_most")))
    inherited = [label for label, score in scores if score and score.path != file.path]
    if inherited:
        # The file's own scale, else that of the first dimension that got another.
        scale = next(level.fields["scale"] for level in rescaled if "scale" in level.fields)
        yield scale.problem(
            f"{', '.join(inherited)}: inherited from {base.path}, which has another scale; set "
            "them on this scale, or keep the scale",
            code="rubric.taken-from-another-scale",
        )


def _ends_of_scale(*levels: Written) -> tuple[object, object]:
    """The ends of the first scale that `levels` have: a dimension's own, or its rubric's."""
    scales = (level.fields["scale"].plain() for level in levels if "scale" in level.fields)
    scale: Any = next(scales, {})
    # The name `pass_fail`, or a mistake that validation reports.
    if not isinstance(scale, dict):
        return scale, scale
    usual = Scale()
    return scale.get("min", usual.min), scale.get("max", usual.max)


def _items_of(file: Written, name: str) -> Sequence[Written]:
    """The items of a field that holds a list; empty if there is no such field."""
    field = file.fields.get(name)
    return field.items if field else []


def _by_name(dimensions: Sequence[Written]) -> dict[str, Written]:
    """The first of each name, in order; those without a name are left to validation."""
    by_name: dict[str, Written] = {}
    for dimension in dimensions:
        if name := _name(dimension):
            by_name.setdefault(name, dimension)
    return by_name


def _name(dimension: Written) -> str:
    """The name of a dimension; empty if it has none that is a text."""
    name = dimension.fields.get("name")
    return str(name.value).strip() if name is not None and isinstance(name.value, str) else ""
