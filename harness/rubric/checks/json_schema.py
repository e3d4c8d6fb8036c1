"""JSON that follows a schema."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, JsonValue, ValidationInfo, WithJsonSchema, field_validator

from harness.errors import EvaluationFailed, Mistake
from harness.rubric.checks import schema_faults
from harness.rubric.checks.check import Check, Grade, path_beside
from harness.rubric.checks.regex import ask_program
from harness.rubric.checks.schema_faults import draft_of, faults_of, registry_with
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

_Schema = Annotated[dict[str, JsonValue], WithJsonSchema({"type": ["object", "string"]})]


class Json(Check):
    """The draft, or the first fence labelled `json` in it, is JSON that follows a schema."""

    check: Literal["json"] = "json"
    against: _Schema
    """The JSON Schema: written here, or the name of the file that holds it, from this rubric's
    directory. References must stay inside it, since nothing is fetched. A `pattern` in it
    has a time, as that of `regex` has."""
    timeout_s: float = Field(default=5, gt=0, le=60, exclude=True)
    """How long a draft may take, in seconds, where there is a pattern in the schema. One that takes
    longer than this tries too many ways to match, and there is no verdict."""

    @field_validator("against", mode="before")
    @classmethod
    def _read(cls, against: object, info: ValidationInfo) -> object:
        """A file's content in place of its name, so that the rubric holds all that it asks."""
        return _content_of(path_beside(against, info)) if isinstance(against, str) else against

    @field_validator("against")
    @classmethod
    def _check(cls, against: dict[str, JsonValue]) -> dict[str, JsonValue]:
        _check_schema(against)
        return against

    @property
    def requirement(self) -> str:
        """For the author."""
        schema = json.dumps(self.against, ensure_ascii=False)
        return f"It is JSON, or has it in a fence labelled json, by this schema: {schema}."

    def grade(self, draft: Draft) -> Grade:
        """0 for what is not JSON; else a half, a third … for one fault, two …; 1 without any."""
        text, title, index = draft.text, None, None
        for number, section, fence in draft.fences:
            if fence.language == "json":
                text, title, index = fence.code, section.title, number
                break
        try:
            instance = json.loads(text, parse_constant=_refuse)
            faults = self._faults(instance)
        except ValueError as error:  # JSONDecodeError, and numbers of 5,000 digits
            return Grade(
                0.0,
                (Finding(f"this is not JSON: {error}", title, index, code="check.json-invalid"),),
            )
        except RecursionError:
            return Grade(
                0.0,
                (
                    Finding(
                        "this JSON is nested too deeply", title, index, code="check.json-too-deep"
                    ),
                ),
            )
        findings = tuple(
            Finding(fault, title, index, code="check.schema-violated") for fault in faults
        )
        return Grade(1 / (1 + len(findings)), findings)

    def _faults(self, instance: object) -> list[str]:
        # Imported by whoever uses it: 80 ms that most rubrics never need.
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        if not any(key in _PATTERNS for key in _keys_of(self.against)):
            try:
                return faults_of(self.against, instance)
            except Unresolvable as error:
                raise EvaluationFailed(
                    f"the JSON Schema of a check refers to '{error.ref}', which is not in it"
                ) from error
        try:
            found = ask_program(
                [schema_faults.__file__],
                {"path": sys.path, "schema": self.against, "instance": instance},
                timeout_s=self.timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise EvaluationFailed(
                f"a JSON Schema was not through with this draft after {self.timeout_s:g} s: a "
                "pattern in it tries too many ways to match; write repeats inside repeats so that "
                "they give nothing back (`++`, `*+`, `(?>...)`)"
            ) from error
        except (OSError, subprocess.CalledProcessError) as error:
            raise EvaluationFailed(f"a JSON Schema could not be tried ({error})") from error
        if found is None:
            raise RecursionError
        return [str(fault) for fault in found]


def _content_of(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise Mistake(
            f"{path} cannot be read ({error.strerror})", code="rubric.named-file-unreadable"
        ) from error
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{path} is not JSON ({error})", code="rubric.named-file-not-json") from error


def _check_schema(schema: dict[str, JsonValue]) -> None:
    from jsonschema import SchemaError  # noqa: PLC0415 - as above
    from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above

    draft = _draft_of(schema)
    try:
        # Formats too, of which one is that of a `pattern`.
        draft.check_schema(schema, format_checker=draft.FORMAT_CHECKER)
    except SchemaError as error:
        raise Mistake(
            f"not a JSON Schema: {error.json_path}: {error.message}", code="rubric.schema-invalid"
        ) from error
    try:
        # What has an id of its own may be referred to by that; such references wait for a draft.
        if not any(_values_of("$id", [*schema.values()])):
            resolver = registry_with(schema).resolver(str(schema.get("$id", "")))
            for reference in _values_of("$ref", schema):
                resolver.lookup(reference)
    except Unresolvable as error:
        raise Mistake(
            f"'$ref: {error.ref}' leads to nothing inside the schema",
            code="rubric.schema-reference",
        ) from error


def _draft_of(schema: dict[str, JsonValue]) -> Any:  # noqa: ANN401
    draft = draft_of(schema)
    if draft is None:
        raise Mistake(
            f"'$schema: {schema['$schema']}' is no draft of JSON Schema that we know",
            code="rubric.schema-draft",
        )
    return draft


_PATTERNS = frozenset({"pattern", "patternProperties"})


def _keys_of(schema: dict[str, JsonValue] | list[JsonValue]) -> Iterator[str]:
    """All keys, of whatever they are, anywhere in a schema."""
    if isinstance(schema, dict):
        yield from schema
    for value in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(value, dict | list):
            yield from _keys_of(value)


def _values_of(keyword: str, schema: JsonValue) -> Iterator[str]:
    """The texts that stand behind a keyword, anywhere in a schema."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == keyword and isinstance(value, str):
                yield value
            else:
                yield from _values_of(keyword, value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _values_of(keyword, value)


def _refuse(constant: str) -> NoReturn:
    """`NaN` and `Infinity`, which Python would read, are not JSON."""
    raise ValueError(f"it holds {constant}")
