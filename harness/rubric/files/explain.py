"""What is wrong with a rubric's values, for people who do not program."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from harness.errors import did_you_mean
from harness.rubric.checks import CHECKS
from harness.rubric.rubric import (
    FILLED_IN,
    Cap,
    Dimension,
    Rubric,
    Scale,
    Shortening,
)

NOTHING = "nothing stands after the colon, or it is not indented below it"


def worth_saying(problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The problems without those that only follow from another."""
    return [problem for problem in problems if not _follows(problem, problems)]


def explain(problem: ErrorDetails) -> str:
    """What is wrong at one place, and what is allowed there."""
    *owner, name = problem["loc"] or ("",)
    match problem["type"]:
        case "extra_forbidden" | "invalid_key":
            return f"'{name}' is not allowed here; {did_you_mean(str(name), _fields_at(owner))}"
        case "missing":
            return f"'{name}' is missing{_EXAMPLES.get(str(name), '')}"
        case "union_tag_not_found":
            return f"'check' is missing, which says which check it is; {did_you_mean('', CHECKS)}"
        case "union_tag_invalid":
            tag = problem["ctx"]["tag"]
            return f"there is no check '{tag}'; {did_you_mean(tag, CHECKS)}"
        case "literal_error":
            message = f"there is no '{problem['input']}'; {_nearest_choice(problem)}"
        case "mistake":
            return problem["msg"]
        case _:
            message = _complaint(problem)
    # The line tells where; the nearest name is enough.
    names = [part for part in problem["loc"] if isinstance(part, str) and part != "[key]"]
    return f"{names[-1]}: {message}" if names else message


def _complaint(problem: ErrorDetails) -> str:
    given = problem["input"]
    if given is None:
        return NOTHING
    message = problem["msg"].removeprefix("Value error, ")
    for pydantics, ours in _WORDS.items():
        message = message.replace(pydantics, ours)
    message = _MESSAGES.get(problem["type"], message)
    if isinstance(given, str) and given in CHECKS and problem["loc"][-2:-1] == ("checks",):
        return f"write this as '- {{ check: {given} }}'"
    if isinstance(given, str) and (decimal := _DECIMAL_COMMA.fullmatch(given.strip())):
        message = f"must be a number with a point: {decimal[1]}.{decimal[2]}"
    if problem["type"] == "string_pattern_mismatch":
        message = _pattern(problem)
    shown = f" (it is {_quoted(given)})" if isinstance(given, str | int | float) else ""
    return message + shown


def _quoted(given: str | float) -> str:
    """As it is written, cut where it is long."""
    if isinstance(given, bool):
        return "true" if given else "false"
    said = repr(given)
    return said if len(said) <= _LONG_CHARS else f"{said[:_LONG_CHARS]}…"


def _pattern(problem: ErrorDetails) -> str:
    """What a text must look like: a name, with the nearest that would do, or a function."""
    if problem["loc"][-1] == "call":
        return "must be 'package.module:function' or './file.py:function'"
    near = re.sub(r"[^a-z0-9]+", "_", problem["input"].lower()).strip("_0123456789")
    such = f", such as '{near}'" if near else ""
    return f"must be lower-case letters, digits and underscores{such}"


_LONG_CHARS = 60
_WORDS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_UNKNOWN = ("extra_forbidden", "invalid_key")
_DECIMAL_COMMA = re.compile(r"(\d+),(\d+)")
_LIST = "must be a list, each item on a line of its own that begins with '- '"
_MAPPING = "must be a mapping of names to values, such as 'name: value'"
_NUMBER = "must be a number"
_WHOLE = "must be a whole number"
_MESSAGES = {
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "dict_type": _MAPPING,
    "finite_number": "must be a finite number",
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "model_attributes_type": _MAPPING,
    "model_type": _MAPPING,
    "string_too_short": "must not be empty",
    "string_type": "must be text; put it in quotes",
    "too_short": "must hold at least one",
    "tuple_type": _LIST,
}
"""In place of pydantic's own words, which speak of Python's types."""
_EXAMPLES = {
    "title": "; begin the file with it, such as 'title: My rubric'",
    "name": ", which every dimension needs, such as 'name: clear'",
    "dimensions": "; they are what a draft is scored on",
    "at_most": ", the score that the cap holds the dimension down to",
}
"""What a missing field is good for."""


def _nearest_choice(problem: ErrorDetails) -> str:
    """The end of a message about a word that is none of those that are allowed."""
    given = str(problem["input"])
    choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])  # "'a', 'b' or 'c'"
    begins = [choice for choice in choices if given.lower().startswith(choice)]
    return did_you_mean(begins[0] if begins else given, begins or choices)


def _follows(problem: ErrorDetails, problems: Sequence[ErrorDetails]) -> bool:
    """Whether it is another problem in other words.

    Where `titel` is unknown, `title` is missing; a list whose one item is wrong counts as empty.
    """
    place = problem["loc"]
    if problem["type"] == "too_short":
        return any(p["loc"][: len(place)] == place and p["loc"] != place for p in problems)
    return problem["type"] == "missing" and any(
        p["type"] in _UNKNOWN
        and p["loc"][:-1] == place[:-1]
        and _is_near(str(p["loc"][-1]), str(place[-1]))
        for p in problems
    )


def _is_near(name: str, other: str) -> bool:
    return did_you_mean(name, [other]).startswith("did you mean")


def _fields_at(place: Sequence[int | str]) -> set[str]:
    """The fields that a rubric file may have at a place."""
    match place:
        case [*_, str(name)] if name in CHECKS:
            owner: type[BaseModel] | None = CHECKS[name]
        case ["dimensions", _, "caps", _]:
            owner = Cap
        case ["dimensions", _]:
            owner = Dimension
        case [str(name)]:
            owner = {"scale": Scale, "shorten": Shortening}.get(name)
        case _:
            owner = None if place else Rubric
    return set(owner.model_fields) - FILLED_IN if owner else set()
