"""From what is written to a rubric, or to all that is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from harness.errors import Problem
from harness.rubric.checks.function import Refuse
from harness.rubric.files.explain import explain, worth_saying
from harness.rubric.files.written import Written
from harness.rubric.rubric import FILLED_IN, Rubric

_THRESHOLDS = (("pass_at",), ("focus_below",))


def validated(
    written: Written, path: Path, *, refuse: Refuse | None
) -> tuple[Rubric | None, list[Problem]]:
    """The rubric that values amount to, or else what is wrong with them.

    Args:
        written: With all that the file takes from others.
        path: The file, whose lines the problems name, and from whose folder checks take files.
        refuse: Says of a check's code whether it may not be run.
    """
    context = {"directories": [path.parent], "refuse": refuse}
    values = {k: v for k, v in written.plain().items() if k not in FILLED_IN}
    try:
        return Rubric.model_validate(values, context=context), []
    except ValidationError as error:
        details = error.errors()
    details += _behind(details, values, context)
    return None, [_problem(one, written, path) for one in worth_saying(details)]


def _behind(
    details: list[ErrorDetails], values: dict[str, Any], context: dict[str, Any]
) -> list[ErrorDetails]:
    """What is wrong between sound values, at which nobody looks while others are broken."""
    broken = {one["loc"][1] for one in details if _is_of_a_dimension(one)}
    fields = {one["loc"][0] for one in details if one["loc"]} - {"dimensions"}
    listed = values.get("dimensions")
    if not isinstance(listed, list) or "scale" in fields:
        return []
    sound = {place: value for place, value in enumerate(listed) if place not in broken}
    kept = {name: value for name, value in values.items() if name not in fields}
    try:
        Rubric.model_validate(
            {**kept, "title": "T", "dimensions": list(sound.values())},
            context=context,
        )
    except ValidationError as error:
        found = error.errors()
    else:
        return []
    # What is said of the whole may be so for want of the broken ones.
    of_dimensions = [_moved(one, list(sound)) for one in found if _is_of_a_dimension(one)]
    return [*of_dimensions, *(one for one in found if one["loc"] in _THRESHOLDS)]


def _is_of_a_dimension(details: ErrorDetails) -> bool:
    return details["loc"][:1] == ("dimensions",) and len(details["loc"]) > 1


def _moved(details: ErrorDetails, numbers: list[int]) -> ErrorDetails:
    """With the dimension's number in the file."""
    field, index, *rest = details["loc"]
    return {**details, "loc": (field, numbers[int(index)], *rest)}


def _problem(details: ErrorDetails, written: Written, path: Path) -> Problem:
    found = written.at(details["loc"])
    said = explain(details)
    if found.path == path:
        return Problem(path=path, line=found.line, message=said.message, code=said.code)
    # The base is sound by itself: it is this file that does not go with it.
    message = f"{said.message} (taken over from {found.path}:{found.line})"
    line = written.fields["extends"].line
    return Problem(path=path, line=line, message=message, code=said.code)
