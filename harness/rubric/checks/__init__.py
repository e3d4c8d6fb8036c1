"""Deterministic checks: functions with parameters that score a draft without any model.

Each is a small class whose fields are the parameters a rubric may set.
"""

from collections.abc import Mapping
from typing import Annotated, Any, cast, get_args

from pydantic import (
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from harness.errors import Mistake, fault_of
from harness.plugins import load_plugin, plugin_names
from harness.rubric.checks.base import Check, Grade, mean_of
from harness.rubric.checks.code import NoStubs, ParsesAsPython
from harness.rubric.checks.function import Function
from harness.rubric.checks.json_schema import Json
from harness.rubric.checks.patterns import Regex
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
from harness.rubric.checks.target import Match, Target

_ShippedCheck = Annotated[
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
    | Target
    | Function,
    Field(discriminator="check"),
]
"""The field `check` says which class it is."""

CHECKS: dict[str, type[Check]] = {
    check.model_fields["check"].default: check for check in get_args(get_args(_ShippedCheck)[0])
}
"""Every check that ships, by the name rubrics use."""


def _read(value: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:  # noqa: ANN401
    """Reads a check that ships, or one that a plugin adds."""
    # The union lacks the checks of plugins, since it is made before any plugin is looked for.
    name = value.get("check") if isinstance(value, Mapping) else getattr(value, "check", None)
    if not isinstance(name, str) or name in CHECKS or name not in plugin_names("checks"):
        return read(value)
    try:
        check = load_plugin("checks", name, lambda c: isinstance(c, type) and issubclass(c, Check))
        return check.model_validate(value, context=info.context)
    except ValidationError as error:
        fault = error.errors()[0]
        message = ": ".join([*map(str, fault["loc"]), fault_of(cast("dict[str, Any]", fault))])
        raise Mistake(message, code="rubric.check-invalid") from error


# Serialized by its own class: the union has no fields of a plugin's check.
AnyCheck = Annotated[_ShippedCheck, WrapValidator(_read), SerializeAsAny()]
"""What stands in a rubric's `checks`."""

# The checks that other modules make or name; all others are in `CHECKS`, by their names.
__all__ = ["CHECKS", "AnyCheck", "Check", "Grade", "Match", "Target", "mean_of"]
