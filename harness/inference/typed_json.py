"""JSON as a value of a type, where pydantic alone would lose digits or refuse a clear choice."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any

from pydantic import ValidationError, ValidationInfo
from pydantic_core import CoreSchema, SchemaValidator, core_schema

AROUND_WORDS = " \t\r\n.`*\"'“”„\u2018\u2019«»!,;:()。"
_FRACTION = re.compile(r"-?\d+(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_LENIENT = {"reads": "words"}


class TypedJson:
    """Reads JSON as a type: Decimals with all their digits, and choices by any clear word.

    If the JSON is not of the type as it is, a choice (of a `Literal` or an enum) may be in another
    case, between punctuation, a member's name, or a number as a text; and a number in a text may
    have commas. What fits two choices, or two ways to write numbers, is not read.
    """

    def __init__(self, schema: CoreSchema) -> None:
        self._schema = rewritten(schema, _with_digits)
        self._has_decimals = self._schema != schema
        self._exact = _validator(self._schema)

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the type
        """The value in a JSON text; raises `ValidationError`."""
        numbers = self._numbers_in(text)
        try:
            return self._exact.validate_json(text, context=numbers)
        except ValidationError:
            with suppress(ValidationError):
                return self._lenient.validate_json(text, context=numbers)
            raise

    def read_decoded(self, value: object, text: str) -> Any:  # noqa: ANN401 - of the type
        """The value that the decoded value of a JSON text is; raises `ValidationError`."""
        return self._exact.validate_python(value, context=self._numbers_in(text))

    def _numbers_in(self, text: str) -> dict[float, Decimal | None] | None:
        """The fractions of a text by the floats they become; None where several become the same."""
        numbers: dict[float, Decimal | None] = {}
        for match in _FRACTION.finditer(text) if self._has_decimals else ():
            number = Decimal(match[0])
            if numbers.setdefault(float(number), number) != number:
                numbers[float(number)] = None
        return numbers or None

    @cached_property
    def _lenient(self) -> SchemaValidator:
        return _validator(rewritten(self._schema, _with_choices))


def _validator(schema: CoreSchema) -> SchemaValidator:
    # A model in it would be read by its own validator, made of its schema as it was. pydantic 2.14
    # has no public way around that: hooks of a type get its models as references.
    return SchemaValidator(schema, _use_prebuilt=False)


def rewritten(schema: Any, rewrite: Callable[[dict[str, Any]], Any]) -> Any:  # noqa: ANN401
    """A schema of pydantic's, each part rewritten after the parts in it."""
    if type(schema) in (list, tuple):
        return type(schema)(rewritten(part, rewrite) for part in schema)
    if type(schema) is not dict:
        return schema
    values = {"metadata", "default"}
    parts = {n: p if n in values else rewritten(p, rewrite) for n, p in schema.items()}
    return rewrite(parts) if isinstance(parts.get("type"), str) else parts


def _digits(value: object, info: ValidationInfo) -> object:
    number = info.context.get(value, value) if type(value) is float and info.context else value
    if number is None:
        raise ValueError(f"several numbers are all {value} as a float; give it as a text")
    return number


def _with_digits(part: dict[str, Any]) -> Any:  # noqa: ANN401 - a schema of pydantic's
    if part["type"] != "decimal":
        return part
    return core_schema.with_info_before_validator_function(_digits, part)


def _with_choices(part: dict[str, Any]) -> Any:  # noqa: ANN401 - a schema of pydantic's
    kind = part["type"]
    if kind == "union":
        # A word may be meant as another option of it.
        part["choices"] = [
            c["schema"] if isinstance(c, dict) and c.get("metadata") == _LENIENT else c
            for c in part["choices"]
        ]
    by_word: dict[str, list[object]] = {}
    for choice in part["expected"] if kind == "literal" else part.get("members", ()):
        names = (choice.name, choice.value) if isinstance(choice, Enum) else (choice,)
        for word in {_word(name) for name in names} - {""}:
            by_word.setdefault(word, []).append(choice)

    def with_choices(value: object) -> object:
        if type(value) is str and kind in {"int", "float", "decimal"}:
            # A fraction of 1,234 may be 1.234, as in German.
            is_clear = kind == "int" or "." in value or value.count(",") > 1
            return value.replace(",", "") if is_clear and _GROUPED.fullmatch(value) else value
        choices = by_word.get(_word(value), ()) if type(value) in (str, int) else ()
        return choices[0] if len(choices) == 1 else value

    if kind not in {"literal", "enum", "int", "float", "decimal"}:
        return part
    return core_schema.no_info_before_validator_function(with_choices, part, metadata=_LENIENT)


def _word(value: object) -> str:
    return str(value).strip(AROUND_WORDS).casefold()
