"""Reading rubric files, with every mistake answered by its file and line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from yaml.reader import ReaderError

from harness.errors import RubricInvalid, did_you_mean
from harness.rubric.checks import CHECKS
from harness.rubric.rubric import FILLED_IN, Dimension, Rubric, Scale

_Location = tuple[int | str, ...]
_TAGS_OF_YAML_1_1 = {"tag:yaml.org,2002:bool", "tag:yaml.org,2002:timestamp"}


class _Loader(yaml.SafeLoader):
    """YAML as editors know it (1.2): `yes`, `no`, `on` and dates are texts, `true` is a value."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _TAGS_OF_YAML_1_1]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")
)


def load_rubric_file(path: Path) -> Rubric:
    """Reads one rubric.

    Raises:
        RubricInvalid: The file is missing, not YAML, or breaks a rule; names file, line, remedy.
    """
    try:
        content = path.read_bytes()
        text = content.decode("utf-8")
    except FileNotFoundError as error:
        raise RubricInvalid("there is no such file", path=path) from error
    except OSError as error:
        raise RubricInvalid(f"cannot be read ({error.strerror})", path=path) from error
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise RubricInvalid("not UTF-8 text; save it as UTF-8", path=path, line=line) from error
    values, lines = _parse(text, path)
    for name in sorted(FILLED_IN & values.keys()):
        line = _nearest_line((name,), lines)
        raise RubricInvalid(f"'{name}' is filled in on loading; leave it out", path=path, line=line)
    try:
        rubric = Rubric.model_validate(values)
    except ValidationError as error:
        problem = _first(error.errors())
        place = (*problem["loc"], *problem.get("ctx", {}).get("place", ()))
        raise RubricInvalid(
            _explain(problem), path=path, line=_nearest_line(place, lines)
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    return rubric.model_copy(update={"id": path.stem, "sha256": digest})


def _parse(text: str, path: Path) -> tuple[Any, Mapping[_Location, int]]:
    """The file's values, and the line of every key and item, by its place in them."""
    lines: dict[_Location, int] = {(): 1}
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is not None:
            _note_lines(root, (), lines, path)
        values = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise RubricInvalid(_explain_yaml(error), path=path, line=line) from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RubricInvalid(
            "not YAML: it holds a control character", path=path, line=line
        ) from error
    except ValueError as error:  # such as a number of 5,000 digits
        raise RubricInvalid(f"a value cannot be read ({error}); quote it", path=path) from error
    except RecursionError as error:
        raise RubricInvalid("the values are nested too deeply", path=path) from error
    if not isinstance(values, dict):
        raise RubricInvalid("a rubric is a mapping that starts with 'title:'", path=path, line=1)
    return values, lines


def _note_lines(
    node: yaml.Node, location: _Location, lines: dict[_Location, int], path: Path
) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise RubricInvalid(
                    "a field's name is a plain word", path=path, line=key.start_mark.line + 1
                )
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


def _explain_yaml(error: yaml.MarkedYAMLError) -> str:
    """What the parser stumbled on, and in the midst of what."""
    context = ""
    if error.context and error.context_mark:
        context = f"{error.context} (line {error.context_mark.line + 1}), "
    remedy = "; indent with spaces" if "'\\t'" in (error.problem or "") else ""
    return f"not YAML: {context}{error.problem}{remedy}"


def _first(problems: Sequence[ErrorDetails]) -> ErrorDetails:
    """The problem to report: an unknown name before the field that is missing because of it."""
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    return next(unknown, problems[0])


def _explain(problem: ErrorDetails) -> str:
    """What is wrong at one place, and what is allowed there."""
    *owner, name = problem["loc"] or ("",)
    given = problem["input"]
    match problem["type"]:
        case "extra_forbidden" | "invalid_key":
            known = _fields_at(tuple(owner))
            return f"'{name}' is not allowed here; {did_you_mean(str(name), known)}"
        case "missing":
            return f"'{name}' is missing"
        case "union_tag_not_found":
            return f"'check' is missing; {did_you_mean('', CHECKS)}"
        case "union_tag_invalid":
            tag = problem["ctx"]["tag"]
            return f"there is no check '{tag}'; {did_you_mean(tag, CHECKS)}"
        case "mistake":
            return problem["msg"]
    message = problem["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    message = _MESSAGES.get(problem["type"], message)
    shown = f" (it is {given!r})" if isinstance(given, str | int | float | bool) else ""
    # The line tells where; the nearest name is enough.
    names = [part for part in problem["loc"] if isinstance(part, str) and part != "[key]"]
    return f"{names[-1]}: {message}{shown}" if names else message


_MESSAGES = {
    "dict_type": "must be a mapping of names to values",
    "model_attributes_type": "must be a mapping of names to values",
    "model_type": "must be a mapping of names to values",
    "string_pattern_mismatch": "must be lower-case letters, digits and underscores",
    "string_too_short": "must not be empty",
    "string_type": "must be text; put it in quotes",
    "too_short": "must hold at least one",
    "tuple_type": "must be a list",
}
"""In place of pydantic's own words, which speak of Python's types."""


def _fields_at(location: _Location) -> set[str]:
    """The fields that a rubric file may have at a place."""
    match location:
        case ():
            return set(Rubric.model_fields) - FILLED_IN
        case ("scale",):
            return set(Scale.model_fields)
        case ("dimensions", _):
            return set(Dimension.model_fields)
        case ("dimensions", _, "checks", _, str(name)):
            return set(CHECKS[name].model_fields)
        case _:
            return set()
