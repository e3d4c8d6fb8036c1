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
from harness.rubric.written import EMPTY


def worth_saying(problems: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """The problems without those that may only follow from another one."""
    # A default that follows the scale is missing with it.
    known = [p for p in problems if p["type"] != "default_factory_not_called"]
    return [problem for problem in known if not _may_follow(problem, known)]


def _may_follow(problem: ErrorDetails, problems: Sequence[ErrorDetails]) -> bool:
    place = problem["loc"]
    match problem["type"]:
        case "missing":
            # Where `titel` is unknown, `title` is missing.
            return any(p["type"] in _UNKNOWN and p["loc"][:-1] == place[:-1] for p in problems)
        case "too_short":
            # A list whose one item is wrong counts as empty.
            return any(p["loc"][: len(place)] == place != p["loc"] for p in problems)
    return False


_UNKNOWN = ("extra_forbidden", "invalid_key")


def explain(problem: ErrorDetails) -> Notice:
    """What is wrong at one place, and what is allowed there."""
    *owner, name = problem["loc"] or ("",)
    match problem["type"]:
        case str(kind) if kind in _UNKNOWN:
            nearest = _nearest(str(name), _fields_at(owner), problem["input"])
            message = f"'{name}' is not allowed here; {nearest}"
            return Notice(code="rubric.unknown-field", message=message)
        case "missing":
            remedy = _REMEDIES_OF_MISSING.get((len(owner), str(name)), "")
            return Notice(code="rubric.field-missing", message=f"'{name}' is missing{remedy}")
        case "union_tag_not_found":
            message = "'check' is missing, which says which check it is; "
            return Notice(code="rubric.check-unnamed", message=message + did_you_mean("", CHECKS))
        case "union_tag_invalid" if problem["input"]["check"] in (None, EMPTY):
            problem = {**problem, "loc": ("check",), "input": None}
        case "union_tag_invalid":
            tag = problem["ctx"]["tag"]
            nearest = did_you_mean(tag, [*CHECKS, *plugin_names("checks")])
            message = f"there is no check '{tag}'; {nearest}"
            return Notice(code="rubric.unknown-check", message=message)
        case str(code) if code.startswith("rubric."):
            return Notice(code=code, message=problem["msg"])
    notice = _wrong_value(problem)
    # The line says where the mistake is; the innermost name is enough.
    names = [part for part in problem["loc"] if isinstance(part, str) and part != "[key]"]
    label = f"{names[-1]}: " if names else ""
    return replace(notice, message=f"{label}{notice.message}{_shown(problem['input'])}")


def _nearest(name: str, allowed: set[str], value: object) -> str:
    """What may be meant by a field that does not exist."""
    nearest = did_you_mean(name, allowed)
    # `{ at_most: 0,5 }` has a field 5 without a value, `{ when: short, vague }` a field `vague`.
    if value in (None, EMPTY) and not nearest_names(name, allowed):
        nearest = (
            "between { and } a comma ends a value: a text that goes on is put in quotes, a list in "
            f"[ ], and a number has a point; {nearest}"
        )
    return nearest


def _wrong_value(problem: ErrorDetails) -> Notice:
    """What is wrong with a value that its field cannot have."""
    value = problem["input"]
    kind = problem["type"]
    name = problem["loc"][-1] if problem["loc"] else ""
    mistake = problem.get("ctx", {}).get("error")
    notice = _MESSAGES.get(kind) or Notice(
        code="rubric.out-of-range", message=_in_our_words(problem)
    )
    if value in (None, EMPTY):
        notice = Notice(
            code="rubric.nothing-given",
            message="the value after the colon is missing, or is not indented below it",
        )
    elif isinstance(mistake, Mistake):
        notice = Notice(code=mistake.code, message=fault_of(problem))
    elif kind == "literal_error":
        choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])  # "'a', 'b' or 'c'"
        notice = Notice(code="rubric.unknown-choice", message=did_you_mean(str(value), choices))
    elif kind == "string_pattern_mismatch" and name == "call":
        notice = Notice(
            code="rubric.call-malformed",
            message="must be 'package.module:function' or './file.py:function'",
        )
    elif kind == "string_pattern_mismatch":
        notice = _on_malformed_name(value)
    elif isinstance(value, str) and (decimal := _DECIMAL_COMMA.fullmatch(value.strip())):
        message = f"must be a number with a point: {decimal[1]}.{decimal[2]}"
        notice = Notice(code="rubric.decimal-comma", message=message)
    elif isinstance(value, str) and value in CHECKS and notice is _FIELDS:
        message = f"write this as '{{ check: {value} }}'"
        notice = Notice(code="rubric.name-for-fields", message=message)
    elif name == "when" and notice is _TEXT:
        message = "must be a statement in words; a check is put under 'unless'"
        notice = Notice(code="rubric.not-text", message=message)
    elif notice is _TEXT and isinstance(value, list | dict):
        message = "must be one text, and has items or fields"
        notice = Notice(code="rubric.not-text", message=message)
    elif name == "[key]" and notice is _NUMBER:
        notice = Notice(
            code="rubric.anchor-without-score",
            message="an anchor begins with one score, such as '9: …'",
        )
    return notice


def _in_our_words(problem: ErrorDetails) -> str:
    message = fault_of(problem)
    for pydantics, ours in _WORDS.items():
        message = message.replace(pydantics, ours)
    return message


def _on_malformed_name(name: str) -> Notice:
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
_DECIMAL_COMMA = re.compile(r"(\d+),(\d+)")
# pydantic's words → ours.
_WORDS = {
    "Input should be": "must be",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
# How many keys lead to the field's table, and the field → how to mend that it is missing.
_REMEDIES_OF_MISSING = {
    (0, "title"): "; begin the file with it, such as 'title: My rubric'",
    (2, "name"): ", which every dimension needs, such as 'name: clear'",
}
_FIELDS = Notice(code="rubric.not-fields", message="must have fields, such as 'name: value'")
_NUMBER = Notice(code="rubric.not-a-number", message="must be a number")
_TEXT = Notice(code="rubric.not-text", message="must be one text; put it in quotes")
_WHOLE = Notice(code="rubric.not-whole", message="must be a whole number")
_TRUE_OR_FALSE = Notice(code="rubric.not-true-or-false", message="must be true or false")
# Type of pydantic's error → what we say: pydantic's words speak of Python's types.
_MESSAGES = {
    "bool_parsing": _TRUE_OR_FALSE,
    "bool_type": _TRUE_OR_FALSE,
    "dict_type": _FIELDS,
    "finite_number": Notice(code="rubric.not-finite", message="must be a finite number"),
    "float_parsing": _NUMBER,
    "float_type": _NUMBER,
    "int_from_float": _WHOLE,
    "int_parsing": _WHOLE,
    "int_type": _WHOLE,
    "model_attributes_type": _FIELDS,
    "model_type": _FIELDS,
    "string_too_short": Notice(code="rubric.text-empty", message="must not be empty"),
    "string_type": _TEXT,
    "too_short": Notice(code="rubric.list-empty", message="must hold at least one"),
    "tuple_type": Notice(
        code="rubric.not-a-list",
        message="must be a list, even of one: [ … ], or lines that each begin with '- '",
    ),
}


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
