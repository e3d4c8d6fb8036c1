"""Explains mistakes in a rubric's values, as pydantic finds them, to people who do not program."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from harness.errors import Mistake, Notice, did_you_mean, fault_of, nearest_names
from harness.plugins import plugin_names
from harness.rubric.checks import CHECKS
from harness.rubric.rubric import FILLED_IN, Cap, Dimension, Prompts, Rubric, Scale, Shortening

NOTHING = Notice(
    code="rubric.nothing-given",
    message="the value after the colon is missing, or is not indented below it",
)


def worth_saying(problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The problems without those that only follow from another one."""
    # A default that follows the scale is missing with it.
    return [
        problem
        for problem in problems
        if problem["type"] != "default_factory_not_called" and not _follows(problem, problems)
    ]


def explain(problem: ErrorDetails) -> Notice:
    """What is wrong at one place, and what is allowed there."""
    *owner, name = problem["loc"] or ("",)
    match problem["type"]:
        case "extra_forbidden" | "invalid_key":
            return _not_allowed(str(name), _fields_at(owner), problem["input"])
        case "missing":
            message = f"'{name}' is missing{_EXAMPLES.get(str(name), '')}"
            return Notice(code="rubric.field-missing", message=message)
        case "union_tag_not_found":
            message = "'check' is missing, which says which check it is; "
            return Notice(code="rubric.check-unnamed", message=message + did_you_mean("", CHECKS))
        case "union_tag_invalid":
            tag = problem["ctx"]["tag"]
            nearest = did_you_mean(tag, [*CHECKS, *plugin_names("checks")])
            message = f"there is no check '{tag}'; {nearest}"
            return Notice(code="rubric.unknown-check", message=message)
        case str(code) if code.startswith("rubric."):
            return Notice(code=code, message=problem["msg"])
    notice = NOTHING if problem["input"] is None else _of_shape(problem) or _of_value(problem)
    # The line says where the mistake is; the innermost name is enough.
    names = [part for part in problem["loc"] if isinstance(part, str) and part != "[key]"]
    return replace(notice, message=f"{names[-1]}: {notice.message}") if names else notice


def _not_allowed(name: str, allowed: set[str], value: object) -> Notice:
    """Explains a field that does not exist, which may be the rest of a text behind a comma."""
    nearest = did_you_mean(name, allowed)
    # `{ at_most: 0,5 }` has a field 5 without a value.
    if value is None and name.isdigit():
        nearest = "a number has no comma in it: write 0.5, or 6000"
    # `{ when: short, vague }` has a field `vague` without a value.
    elif value is None and allowed and not nearest_names(name, allowed):
        rule = "between { and } a comma ends a text"
        nearest = f"{rule}: one that goes on is put in quotes, a list in [ ]; {nearest}"
    elif allowed == {"check"}:
        nearest = "this check has no parameters"
    return Notice(code="rubric.unknown-field", message=f"'{name}' is not allowed here; {nearest}")


def _of_shape(problem: ErrorDetails) -> Notice | None:
    """Explains one value in place of fields or a list, or the reverse; None for other cases."""
    value = problem["input"]
    code = "rubric.name-for-fields"
    if problem["type"] not in _SHAPES:
        return None
    match problem["loc"]:
        case [*_, "checks", int()] | [*_, "unless"] if isinstance(value, str) and value in CHECKS:
            mark = "" if problem["loc"][-1] == "unless" else "- "
            message = f"write this as '{mark}{{ check: {value} }}'"
        case ["dimensions", int()]:
            message = f"write this as '- name: …', and what else it has below that{_shown(value)}"
        case [*_, "when"] if isinstance(value, dict):
            code = "rubric.check-for-text"
            message = "must be a statement in words; a check is put under 'unless'"
        case [*_, str()] if isinstance(value, list) and problem["type"] == "string_type":
            code, message = "rubric.list-for-text", "must be one text, not a list; put it in quotes"
        case [*_, str()] if isinstance(value, str) and problem["type"] == "tuple_type":
            code, message = "rubric.text-for-list", f"must be a list, even of one: [{value}]"
        case [*_, str(name)] if name in _FORMS:
            code = "rubric.not-fields"
            message = f"must have fields, such as {_FORMS[name]}{_shown(value)}"
        case _:
            return None
    return Notice(code=code, message=message)


def _of_value(problem: ErrorDetails) -> Notice:
    """Explains a value that its field cannot have."""
    value = problem["input"]
    kind = problem["type"]
    name = problem["loc"][-1]
    mistake = problem.get("ctx", {}).get("error")
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])  # "'a', 'b' or 'c'"
        # `en-US` is meant for `en`.
        prefixes = [choice for choice in choices if str(value).lower().startswith(choice)]
        nearest = did_you_mean(str(value), choices)
        if prefixes:
            nearest = did_you_mean(prefixes[0], prefixes)
        return Notice(code="rubric.unknown-choice", message=f"there is no '{value}'; {nearest}")
    if isinstance(mistake, Mistake):
        notice = Notice(code=mistake.code, message=fault_of(problem))
    elif kind == "string_pattern_mismatch" and name == "call":
        notice = _CALL
    elif kind == "string_pattern_mismatch":
        notice = _malformed_name(value)
    elif isinstance(value, str) and (decimal := _DECIMAL_COMMA.fullmatch(value.strip())):
        message = f"must be a number with a point: {decimal[1]}.{decimal[2]}"
        notice = Notice(code="rubric.decimal-comma", message=message)
    elif name == "[key]" and _MESSAGES.get(kind) is _NUMBER:
        notice = _NO_SCORE
    elif kind in _MESSAGES:
        notice = _MESSAGES[kind]
    else:
        message = fault_of(problem)
        for pydantics, ours in _WORDS.items():
            message = message.replace(pydantics, ours)
        code = "rubric.weight-not-positive" if name == "weight" else "rubric.out-of-range"
        notice = Notice(code=code, message=message)
    return replace(notice, message=notice.message + _shown(value))


def _malformed_name(name: str) -> Notice:
    """Explains a dimension's name, with the nearest name that is allowed: `klar` for `Klär`."""
    ascii_name = unicodedata.normalize("NFKD", name.lower()).encode("ascii", "ignore").decode()
    proposal = re.sub(r"[^a-z0-9]+", "_", ascii_name).strip("_0123456789")
    example = f", such as '{proposal}'" if proposal else ""
    message = f"must be lower-case letters, digits and underscores{example}"
    return Notice(code="rubric.name-malformed", message=message)


def _shown(value: object) -> str:
    """A remark with the value as it was written, cut if it is long; empty for lists and fields."""
    if not isinstance(value, str | int | float):
        return ""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    if len(text) > _MOST_CHARS_SHOWN:
        text = f"{text[:_MOST_CHARS_SHOWN]}…"
    return f" (it is {text})"


_MOST_CHARS_SHOWN = 60
# pydantic's words → ours.
_WORDS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_DECIMAL_COMMA = re.compile(r"(\d+),(\d+)")
_LIST = Notice(
    code="rubric.not-a-list",
    message="must be a list, each item on a line of its own that begins with '- '",
)
_MAPPING = Notice(
    code="rubric.not-fields", message="must be a mapping of names to values, such as 'name: value'"
)
_CALL = Notice(
    code="rubric.call-malformed",
    message="must be 'package.module:function' or './file.py:function'",
)
_NUMBER = Notice(code="rubric.not-a-number", message="must be a number")
_NO_SCORE = Notice(
    code="rubric.anchor-without-score", message="an anchor begins with one score, such as '9: …'"
)
_WHOLE = Notice(code="rubric.not-whole", message="must be a whole number")
_TRUE_OR_FALSE = Notice(code="rubric.not-true-or-false", message="must be true or false")
_SHAPES = ("dict_type", "model_attributes_type", "model_type", "string_type", "tuple_type")
# Field with fields of its own → an example.
_FORMS = {
    "anchors": "{ 9: …, 6: …, 3: … }",
    "prompts": "'section: |', or be the name of a file of prompts",
    "scale": "{ min: 0, max: 10, step: 0.5 }, or be pass_fail",
    "shorten": "{ evaluate_over: 6000 }",
    "unless": "{ check: finished }",
}
# Type of pydantic's error → what we say: pydantic's words speak of Python's types.
_MESSAGES = {
    "bool_parsing": _TRUE_OR_FALSE,
    "bool_type": _TRUE_OR_FALSE,
    "dict_type": _MAPPING,
    "finite_number": Notice(code="rubric.not-finite", message="must be a finite number"),
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "model_attributes_type": _MAPPING,
    "model_type": _MAPPING,
    "string_too_short": Notice(code="rubric.text-empty", message="must not be empty"),
    "string_type": Notice(code="rubric.not-text", message="must be text; put it in quotes"),
    "too_short": Notice(code="rubric.list-empty", message="must hold at least one"),
    "tuple_type": _LIST,
}
# Missing field → what it is for.
_EXAMPLES = {
    "title": "; begin the file with it, such as 'title: My rubric'",
    "name": ", which every dimension needs, such as 'name: clear'",
    "dimensions": "; they are what a draft is scored on",
    "at_most": ", the score that the cap holds the dimension down to",
}


def _follows(problem: ErrorDetails, problems: Sequence[ErrorDetails]) -> bool:
    """Whether a problem is gone when another one is mended."""
    place = problem["loc"]
    # A list whose one item is wrong counts as empty.
    if problem["type"] == "too_short":
        return any(p["loc"][: len(place)] == place and p["loc"] != place for p in problems)
    # Where `titel` is unknown, `title` is missing.
    return problem["type"] == "missing" and any(
        p["type"] in {"extra_forbidden", "invalid_key"}
        and p["loc"][:-1] == place[:-1]
        and nearest_names(str(p["loc"][-1]), [str(place[-1])])
        for p in problems
    )


def _fields_at(place: Sequence[int | str]) -> set[str]:
    """The names of the fields that a rubric can have at a place; empty if it has none there."""
    match place:
        case [*_, str(name)] if name in CHECKS:
            owner: type[BaseModel] | None = CHECKS[name]
        case ["dimensions", _, "caps", _]:
            owner = Cap
        case ["dimensions", _]:
            owner = Dimension
        case ["prompts"]:
            owner = Prompts
        case ["scale"] | ["dimensions", _, "scale"]:
            owner = Scale
        case ["shorten"]:
            owner = Shortening
        case _:
            owner = None if place else Rubric
    return set(owner.model_fields) - FILLED_IN if owner else set()
