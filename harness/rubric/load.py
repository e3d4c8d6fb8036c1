"""Reading rubric files, with every mistake answered by its file and line."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from harness.errors import RubricInvalid, did_you_mean
from harness.rubric.checks import CHECKS
from harness.rubric.rubric import Dimension, Rubric, Scale

_Location = tuple[int | str, ...]


def load_rubric_file(path: Path) -> Rubric:
    """Reads one rubric.

    Raises:
        RubricInvalid: The file is missing, not YAML, or breaks a rule; names file, line, remedy.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise RubricInvalid("there is no such file", path=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise RubricInvalid(f"cannot be read as UTF-8 text ({error})", path=path) from error
    values, lines = _parse(text, path)
    try:
        rubric = Rubric.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        location = tuple(first["loc"])
        raise RubricInvalid(
            _explain(first), path=path, line=_nearest_line(location, lines)
        ) from error
    digest = hashlib.sha256(text.encode()).hexdigest()
    return rubric.model_copy(update={"id": path.stem, "sha256": digest})


def _parse(text: str, path: Path) -> tuple[Any, Mapping[_Location, int]]:
    """The file's values, and the line of every key and item, by its place in them."""
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        lines: dict[_Location, int] = {(): 1}
        if root is not None:
            _note_lines(root, (), lines, path)
        values = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise RubricInvalid(f"not YAML: {error.problem}", path=path, line=line) from error
    finally:
        loader.dispose()
    if not isinstance(values, dict):
        raise RubricInvalid("a rubric is a mapping that starts with 'title:'", path=path, line=1)
    return values, lines


def _note_lines(
    node: yaml.Node, location: _Location, lines: dict[_Location, int], path: Path
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*location, key.value)
            if place in lines:
                # YAML would silently keep the last one.
                raise RubricInvalid(
                    f"'{key.value}' stands twice; the first is on line {lines[place]}",
                    path=path,
                    line=key.start_mark.line + 1,
                )
            lines[place] = key.start_mark.line + 1
            _note_lines(value, place, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            place = (*location, index)
            lines[place] = item.start_mark.line + 1
            _note_lines(item, place, lines, path)


def _nearest_line(location: _Location, lines: Mapping[_Location, int]) -> int:
    """The line of a place, or of the innermost place around it that stands in the file.

    Locations of a check hold the check's name too, which the file does not have as a key.
    """
    kept: _Location = ()
    for part in location:
        if (*kept, part) in lines:
            kept = (*kept, part)
    return lines[kept]


def _explain(problem: Any) -> str:  # noqa: ANN401 - pydantic's ErrorDetails, a TypedDict
    """What is wrong at one place, and what is allowed there."""
    where = ".".join(str(part) for part in problem["loc"])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        *owner, name = problem["loc"]
        return f"'{name}' is not allowed here; {did_you_mean(name, _fields_at(tuple(owner)))}"
    if problem["type"] == "missing":
        return f"'{where}' is missing"
    if problem["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        return f"{where}: {message}"
    given = problem.get("input")
    shown = f" (it is {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{where}: {message}{shown}" if where else message


def _fields_at(location: _Location) -> set[str]:
    """The fields that a rubric file may have at a place."""
    match location:
        case ():
            return set(Rubric.model_fields) - {"id", "sha256"}
        case ("scale",):
            return set(Scale.model_fields)
        case ("dimensions", _):
            return set(Dimension.model_fields)
        case ("dimensions", _, "checks", _, str(name)):
            return set(CHECKS[name].model_fields)
        case _:
            return set()
