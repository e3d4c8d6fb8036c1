"""Deterministic checks: functions with parameters that score a draft without any model.

Each is a small class whose fields are the parameters a rubric may set. `grade` gives a share from
0 (nothing right) to 1 (nothing wrong) and says what to change, section by section.
"""

from typing import Annotated, get_args

from pydantic import Field

from harness.rubric.checks.base import Check, Grade, mean_of
from harness.rubric.checks.code import NoStubs, ParsesAsPython
from harness.rubric.checks.function import Function
from harness.rubric.checks.patterns import Json, Regex
from harness.rubric.checks.prose import (
    ContainsAll,
    ContainsAny,
    Excludes,
    Finished,
    Language,
    NoRepetition,
)
from harness.rubric.checks.sources import GroundedNames, GroundedNumbers, GroundedSentences
from harness.rubric.checks.structure import (
    Characters,
    Headings,
    Items,
    Sections,
    SectionWords,
    Words,
)

AnyCheck = Annotated[
    Words
    | Characters
    | Sections
    | SectionWords
    | Items
    | Headings
    | Finished
    | ContainsAll
    | ContainsAny
    | Excludes
    | Regex
    | NoRepetition
    | Language
    | Json
    | ParsesAsPython
    | NoStubs
    | GroundedNumbers
    | GroundedNames
    | GroundedSentences
    | Function,
    Field(discriminator="check"),
]
"""What stands in a rubric's `checks`: the field `check` says which class it is."""

CHECKS: dict[str, type[Check]] = {
    check.model_fields["check"].default: check for check in get_args(get_args(AnyCheck)[0])
}
"""Every check by the name rubrics use."""

__all__ = [
    "CHECKS",
    "AnyCheck",
    "Characters",
    "Check",
    "ContainsAll",
    "ContainsAny",
    "Excludes",
    "Finished",
    "Function",
    "Grade",
    "GroundedNames",
    "GroundedNumbers",
    "GroundedSentences",
    "Headings",
    "Items",
    "Json",
    "Language",
    "NoRepetition",
    "NoStubs",
    "ParsesAsPython",
    "Regex",
    "SectionWords",
    "Sections",
    "Words",
    "mean_of",
]
