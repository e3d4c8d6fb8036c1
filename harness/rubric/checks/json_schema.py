"""JSON that follows a schema."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from pydantic import JsonValue, ValidationInfo, WithJsonSchema, field_validator

from harness.errors import EvaluationFailed, Mistake
from harness.rubric.checks.check import Check, Grade, path_beside
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding

_MOST_FAULTS = 10
_MOST_CHARS = 200

_Schema = Annotated[dict[str, JsonValue], WithJsonSchema({"type": ["object", "string"]})]


class Json(Check):
    """The draft, or the first fence labelled `json` in it, is JSON that follows a schema."""

    check: Literal["json"] = "json"
    against: _Schema
    """The JSON Schema: written here, or the name of the file that holds it, from this rubric's
    directory. References must stay inside it, since nothing is fetched; a `pattern` in it is
    searched as it stands, so let it not repeat what repeats."""

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
            faults = list(itertools.islice(self._faults(instance), _MOST_FAULTS))
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

    def _faults(self, instance: object) -> Iterator[str]:
        # Imported by whoever uses it: 80 ms that most rubrics never need.
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        try:
            registry = _registry_with(self.against)
            validator = _draft_of(self.against)(self.against, registry=registry)
            for error in validator.iter_errors(instance):
                message = error.message
                if len(message) > _MOST_CHARS:  # it quotes the instance, and the reason comes last
                    message = f"{message[: _MOST_CHARS // 2]} … {message[-_MOST_CHARS // 2 :]}"
                yield f"{error.json_path}: {message}"
        except Unresolvable as error:
            raise EvaluationFailed(
                f"the JSON Schema of a check refers to '{error.ref}', which is not in it"
            ) from error


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
            resolver = _registry_with(schema).resolver(str(schema.get("$id", "")))
            for reference in _values_of("$ref", schema):
                resolver.lookup(reference)
    except Unresolvable as error:
        raise Mistake(
            f"'$ref: {error.ref}' leads to nothing inside the schema",
            code="rubric.schema-reference",
        ) from error


def _draft_of(schema: dict[str, JsonValue]) -> Any:  # noqa: ANN401
    """The class that validates by the schema's draft; its stubs leave out a parameter we use."""
    from jsonschema import validators  # noqa: PLC0415 - as above

    latest = validators.Draft202012Validator
    named = schema.get("$schema", latest.META_SCHEMA["$id"])
    draft: Any = validators.validator_for({"$schema": named}, default=None)  # type: ignore[arg-type]
    if draft is None:
        raise Mistake(
            f"'$schema: {named}' is no draft of JSON Schema that we know",
            code="rubric.schema-draft",
        )
    return draft


def _registry_with(schema: dict[str, JsonValue]) -> Any:  # noqa: ANN401
    """The schema and the drafts of JSON Schema, under their ids; nothing else can be found.

    A `referencing.Registry`, which cannot be named without importing it. Without one, jsonschema
    goes to the network for what it does not find.
    """
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415
    from referencing import Resource  # noqa: PLC0415 - as above
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - as above

    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    return REGISTRY.with_resource(resource.id() or "", resource)


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
