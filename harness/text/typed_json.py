"""JSON as a value of a type, where pydantic alone would lose digits, guess, or refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cached_property
from typing import Any

import pydantic_core
from pydantic import ValidationError, ValidationInfo
from pydantic_core import CoreSchema, SchemaValidator, core_schema

from harness.text.folding import folded

AROUND_WORDS = " \t\r\n.`*\"'“”„\u2018\u2019«»!,;:()。"
NULLS = {"null", "none"}
_FRACTION = re.compile(r"(?<!\d)-?\d++(?:\.\d+(?:[eE][-+]?\d+)?|[eE][-+]?\d+)")
_GROUPED = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?")
_TIMES, _NUMBERS = {"date", "datetime", "time", "timedelta"}, {"int", "float", "decimal"}
_CHOICES = {"literal": "expected", "enum": "members"}  # → where a part has them
_IN_JSON = {"list", "tuple", "set", "frozenset", "dict", "call", "tagged-union"}
_IN_JSON |= {"model", "dataclass", "typed-dict"}  # what is a list or an object in JSON
_VALUES = {"metadata", "default", "serialization"}  # keys of a part whose values are not parts


class TypedJson:
    """Reads JSON as a type: Decimals with all their digits, and choices by any clear word.

    A number is no time, and true and false are no numbers. If the JSON is not of the type as it is,
    a choice (of a `Literal` or an enum) may be in another case or form of Unicode, between
    punctuation, a member's name, or a number as a text; a number in a text may have commas; a list
    or an object may be JSON in a text; null stands for a default, and "null" for null. What fits
    two choices, or two ways to write numbers, is not read.
    """

    def __init__(self, schema: CoreSchema) -> None:
        self._schema = schema
        self._has_decimals = "'decimal'" in repr(schema)  # or a field has that name: no matter
        self._exact = _validator(schema, is_lenient=False)

    def read(self, text: str) -> Any:  # noqa: ANN401 - of the type
        """The value in a JSON text; raises `ValidationError`."""
        numbers = self._fractions_in(text)
        return self._read(lambda reader: reader.validate_json(text, context=numbers))

    def read_decoded(self, value: object, text: str) -> Any:  # noqa: ANN401 - of the type
        """The value of a JSON text that is decoded already; raises `ValidationError`."""
        numbers = self._fractions_in(text)
        return self._read(lambda reader: reader.validate_python(value, context=numbers))

    def read_value(self, value: object) -> Any:  # noqa: ANN401 - of the type
        """The value of a Python value, or of a text as a person types it, as JSON or not."""
        text = value if isinstance(value, str) else ""
        try:
            return self.read_decoded(value, text)
        except ValidationError as error:
            try:
                return self.read(text)
            except ValidationError as json_error:
                raise (json_error if text.startswith(("{", "[")) else error) from None

    def _read(self, validate: Callable[[SchemaValidator], Any]) -> Any:  # noqa: ANN401 - as above
        try:
            return validate(self._exact)
        except ValidationError as error:
            # A validator of the type's may have changed the value, and raise anything now.
            with suppress(Exception):
                return validate(self._lenient)
            try:
                validate(SchemaValidator(self._schema))
            except ValidationError as plain_error:  # it names no checks of ours
                raise plain_error from None
            except Exception:  # noqa: BLE001 - as above
                raise error from None
            raise

    def _fractions_in(self, text: str) -> dict[float, Decimal | None] | None:
        """The fractions of a text by the floats they become; None where several become the same."""
        numbers: dict[float, Decimal | None] = {}
        for match in _FRACTION.finditer(text) if self._has_decimals else ():
            with suppress(InvalidOperation):  # of an exponent as in the digits of a hash
                number = Decimal(match[0])
                if numbers.setdefault(float(number), number) != number:
                    numbers[float(number)] = None
        return numbers or None

    @cached_property
    def _lenient(self) -> SchemaValidator:
        return _validator(self._schema, is_lenient=True)


def _validator(schema: CoreSchema, *, is_lenient: bool) -> SchemaValidator:
    # A model in it would be read by its own validator, made of its schema as it was. pydantic 2.14
    # has no public way around that: hooks of a type get its models as references.
    return SchemaValidator(_rewritten(schema, None, is_lenient=is_lenient), _use_prebuilt=False)


def _rewritten(schema: Any, parent: dict[str, Any] | None, *, is_lenient: bool) -> Any:  # noqa: ANN401
    """A schema of pydantic's, with our readers in front of its parts, the dictionaries with a type.

    `parent` is the part that has this one, by itself, in a list, or by name, as a model its fields.
    """
    if type(schema) in (list, tuple):
        return type(schema)(_rewritten(part, parent, is_lenient=is_lenient) for part in schema)
    if type(schema) is not dict:
        return schema
    if not isinstance(schema.get("type"), str):
        return {n: _rewritten(p, parent, is_lenient=is_lenient) for n, p in schema.items()}
    part = {
        name: value if name in _VALUES else _rewritten(value, schema, is_lenient=is_lenient)
        for name, value in schema.items()
    }
    reader = _exact(part, parent)
    if is_lenient:
        reader = _lenient(part, reader, parent)
    # Other parts refer to the outermost.
    return {**reader, "ref": schema.get("ref")}


def _exact(part: dict[str, Any], parent: dict[str, Any] | None) -> Any:  # noqa: ANN401
    """The part, with all digits of Decimals, no number read as a time, and no truth as a number."""
    kind = part["type"]
    if kind == "decimal":
        return core_schema.with_info_before_validator_function(_digits, part)
    if parent is not None and parent["type"] in {"function-before", "function-wrap"}:
        # The type's own validator has the say, and may make a time of a number.
        return part
    if kind in _TIMES:
        return core_schema.no_info_before_validator_function(_time_reader(kind), part)
    choices = part.get(_CHOICES.get(kind, ""), ())
    types = {type(choice.value if isinstance(choice, Enum) else choice) for choice in choices}
    has_numbers = kind in _NUMBERS or any(issubclass(type_, int | float) for type_ in types)
    if has_numbers and bool not in types:
        return core_schema.no_info_before_validator_function(_no_truth, part)
    return part


def _digits(value: object, info: ValidationInfo) -> object:
    number = info.context.get(value, value) if type(value) is float and info.context else value
    if number is None:
        raise ValueError(f"several numbers are all {value} as a float; give it as a text")
    return number


def _no_truth(value: object) -> object:
    # For pydantic, true is 1. It takes a tuple neither for a number, nor a choice, nor a time.
    return (value,) if type(value) is bool else value


def _time_reader(kind: Any) -> Callable[[object], object]:  # noqa: ANN401 - one of `_TIMES`
    validator = SchemaValidator({"type": kind})

    def read(value: object) -> object:
        # For pydantic, a number is seconds since 1970.
        if isinstance(value, int | float) or _NUMBER.fullmatch(str(value)):
            return (value,)  # as in `_no_truth`
        # The texts of JSON are read here, so that in a union a time goes before a text.
        if type(value) is str:
            with suppress(ValueError):
                return validator.validate_json(json.dumps(value), strict=True)
        return value

    return read


def _lenient(part: dict[str, Any], exact: Any, parent: dict[str, Any] | None) -> Any:  # noqa: ANN401
    """The part, as `exact` reads it, that also takes other spellings, JSON in texts, and null."""
    kind = part["type"]
    if kind == "nullable":
        return _or_null(part)
    if kind == "default":
        return {**part, "schema": _or_null(part["schema"], pydantic_core.PydanticUseDefault)}
    if kind == "typed-dict-field" and not part["required"]:
        return {**part, "schema": _or_null(part["schema"], pydantic_core.PydanticOmit)}
    if kind not in _IN_JSON | _NUMBERS | _CHOICES.keys():
        return exact
    if parent is not None and parent["type"] == "union":
        # A word may be meant as another option of the union, and JSON in a text as that text.
        options = [c[0] if type(c) is tuple else c for c in parent["choices"]]
        if kind not in _IN_JSON or any(option["type"] == "str" for option in options):
            return exact
    read = _unpacked if kind in _IN_JSON else _spelled(part)
    return core_schema.no_info_before_validator_function(read, exact)


def _or_null(schema: Any, absent: type[Exception] | None = None) -> Any:  # noqa: ANN401
    """A schema that also takes null or a word for it, as None, or raises `absent` for it."""

    def read(value: object, inner: Callable[[object], object]) -> object:
        try:
            return inner(value)
        except ValidationError:
            if value is not None and not (type(value) is str and _word(value) in NULLS):
                raise
            if absent is not None:
                raise absent from None
            return None

    return core_schema.no_info_wrap_validator_function(read, schema)


def _unpacked(value: object) -> object:
    with suppress(ValueError, RecursionError):
        # Not strict: in texts of that JSON, line ends were written as in this one.
        return _unpacked(json.loads(value, strict=False)) if type(value) is str else value
    return value


def _spelled(part: dict[str, Any]) -> Callable[[object], object]:
    by_word: dict[str, list[object]] = {}
    for choice in part.get(_CHOICES.get(part["type"], ""), ()):
        names = (choice.name, choice.value) if isinstance(choice, Enum) else (choice,)
        for word in {_word(name) for name in names} - {""}:
            by_word.setdefault(word, []).append(choice)

    def spelled(value: object) -> object:
        if type(value) is str and part["type"] in _NUMBERS:
            # A fraction of 1,234 may be 1.234, as in German.
            is_clear = part["type"] == "int" or "." in value or value.count(",") > 1
            return value.replace(",", "") if is_clear and _GROUPED.fullmatch(value) else value
        choices = by_word.get(_word(value), ()) if type(value) in (str, int) else ()
        return choices[0] if len(choices) == 1 else value

    return spelled


def _word(value: object) -> str:
    return folded(str(value)).strip(AROUND_WORDS)
