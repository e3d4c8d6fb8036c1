"""Whether a text is, includes or ends with the number of the target in its data set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from types import UnionType
from typing import ClassVar, Literal, get_args

from pydantic import Field

from harness.errors import InvalidInput
from harness.rubric.checks.base import Check, Grade, quoted
from harness.rubric.draft import Draft, Finding
from harness.text.folding import folded
from harness.text.numbers import numbers
from harness.text.value_text import text_of

MatchKind = Literal["equal", "includes", "number"]


@dataclass(frozen=True, slots=True)
class Match:
    """Scores 1 if an output says its target, or one of several targets; else 0.

    `equal` ignores case, white space, punctuation around the text, and how its letters are encoded;
    it compares JSON objects and lists by their values. An output that is a list may also be the
    whole list of targets.
    `includes` finds the target anywhere, and ignores case, white space and encoding. `number`
    compares the last number of the output.

    Raises:
        InvalidInput: There is no such kind, or the tolerance is negative.
    """

    kind: MatchKind
    tolerance: float = 0.0
    """How far a number may be from the target."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(MatchKind) or not self.tolerance >= 0:
            raise InvalidInput(
                f"Match({self.kind!r}, {self.tolerance!r}): the kind is equal, includes or number, "
                "and the tolerance 0 or more",
                code="evaluation.match-invalid",
            )

    # Evaluations name a score by its function.
    @property
    def __name__(self) -> str:
        return self.kind

    def __call__(self, output: object, target: object) -> bool:
        """Whether the output says one of the targets: a text, a number, or a list of these.

        For `equal`, also JSON values.
        """
        return self.holds(text_of(output), targets_for(output, target))

    def holds(self, text: str, targets: Iterable[str]) -> bool:
        """Whether a text says one of the targets, given as texts."""
        match self.kind:
            case "equal":
                targets = [*targets]
                if _plain(text) in map(_plain, targets):
                    return True
                output = _json_in(text)
                return output is not None and output in map(_json_in, targets)
            case "includes":
                searched = folded(text)
                # An empty target would stand in every text.
                return any(part and part in searched for part in map(folded, targets))
            case "number":
                values = readings_of(text)
                wanted = [value for target in targets for value in readings_of(target)]
                # By its text: `Decimal(0.1)` is the float, a little more than 0.1.
                tolerance = Decimal(str(self.tolerance))
                return any(abs(a - b) <= tolerance for a in values for b in wanted)

    def fault_of(self, target: object) -> str:
        """Why a target cannot be compared; empty if it can."""
        fits: type | UnionType = str | int | float
        if self.kind == "equal":
            fits |= dict | list
        if not all(isinstance(part, fits) for part in _parts(target)):
            return f"it is {type(target).__name__}, where a text, a number or a list of them is due"
        if self.kind == "number":
            for text in texts_of(target):
                if not readings_of(text):
                    return f"{quoted(text)} is no number"
        return ""


def texts_of(target: object) -> tuple[str, ...]:
    """A target, or each of several, as texts; empty for None."""
    parts = _parts(target)
    # Libraries make 4.0 of the 4 in a column with gaps, so it is `4` too.
    whole = (int(part) for part in parts if isinstance(part, float) and part.is_integer())
    return tuple(dict.fromkeys([*map(str, whole), *map(text_of, parts)]))


def targets_for(output: object, target: object) -> tuple[str, ...]:
    """The texts of `texts_of`; for an output that is a list, first the whole list of targets."""
    texts = texts_of(target)
    # Any of several targets is right, but for a list they may be what it has to hold.
    if not isinstance(target, list | tuple) or isinstance(output, str):
        return texts
    is_list = text_of(output).startswith("[")
    return (text_of(target), *texts) if is_list else texts


def _parts(target: object) -> list[object] | tuple[object, ...]:
    if isinstance(target, list | tuple):
        return target
    return () if target is None else (target,)


def readings_of(text: str) -> frozenset[Decimal]:
    """The values that the last number of a text may have: 1,200 is 1200 or 1.2; empty without."""
    # Where no other number is, `[42]` refers to no other text.
    for number in reversed(numbers(text, "en") or numbers(re.sub(r"[][]", " ", text), "en")):
        values = {value for value, _ in number.readings if isinstance(value, Decimal)}
        if values:
            return frozenset(values)
    return frozenset()


def _plain(text: str) -> str:
    return folded(text).strip(" .,;:!?'\"")


def _json_in(text: str) -> object:
    """A JSON object or list as a value to compare; None if the text is neither."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text, parse_int=_number, parse_float=_number)
    except (ValueError, RecursionError, InvalidOperation):
        return None
    return _comparable(value)


def _number(digits: str) -> tuple[Decimal]:
    # As a tuple, since 1 would equal True.
    return (Decimal(digits),)


def _comparable(value: object) -> object:
    """A JSON value with its texts compared as `equal` compares others."""
    match value:
        case str():
            return _plain(value)
        case list():
            return [*map(_comparable, value)]
        case dict():
            return {key: _comparable(part) for key, part in value.items()}
    return value


class Target(Check):
    """The text says the target of its row of an evaluation.

    With `equal`, the text is the target and nothing else, whatever its case. With `includes`, the
    target stands somewhere in it. With `number`, its last number is the target's, within
    `tolerance`.
    """

    check: Literal["target"] = "target"
    match: MatchKind = "equal"
    """How the text is compared."""
    tolerance: float = Field(default=0.0, ge=0)
    """How far a number may be from the target."""

    asks: ClassVar[str] = "The text says what is right."

    def grade(self, draft: Draft) -> Grade:
        """1 if it says one of the targets, else 0; unjudged without a target."""
        if not draft.targets:
            return Grade(1.0, unjudged="there is no target")
        if Match(self.match, self.tolerance).holds(draft.text, draft.targets):
            return Grade(1.0)
        wrong = f"the target is {' or '.join(map(quoted, draft.targets))}"
        return Grade(0.0, (Finding(wrong, code="check.not-the-target"),))
