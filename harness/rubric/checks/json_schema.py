"""JSON Schemas that a draft must follow."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import FunctionType, SimpleNamespace
from typing import Annotated, Any, Literal, NoReturn

from pydantic import Field, JsonValue, ValidationInfo, WithJsonSchema, field_validator

from harness.errors import EvaluationFailed, Mistake
from harness.rubric.checks.base import Check, Grade, path_beside
from harness.rubric.checks.patterns import matches_in
from harness.rubric.draft import Draft

_MOST_FAULTS = 10
_MOST_CHARS = 200
_SEARCHING = ("pattern", "patternProperties", "unevaluatedProperties")

_Schema = Annotated[dict[str, JsonValue], WithJsonSchema({"type": ["object", "string"]})]


class Json(Check):
    """The draft, or the first fence labelled `json` in it, is JSON that follows a schema."""

    check: Literal["json"] = "json"
    against: _Schema
    """The JSON Schema: written here, or the name of the file that holds it, from this rubric's
    directory. References must stay inside it, since nothing is fetched."""
    timeout_s: float = Field(default=5, gt=0, le=60, exclude=True)
    """How long the search for a `pattern` of the schema may take, in seconds, as in `regex`."""

    @field_validator("against", mode="before")
    @classmethod
    def _read(cls, against: object, info: ValidationInfo) -> object:
        if not isinstance(against, str):
            return against
        path = path_beside(against, info)
        try:
            # A file's content in place of its name: the rubric, and its digest, hold all it asks.
            return json.loads(path.read_bytes())
        except OSError as error:
            raise Mistake(
                f"{path} cannot be read ({error.strerror})", code="rubric.named-file-unreadable"
            ) from error
        except (ValueError, RecursionError) as error:
            raise Mistake(
                f"{path} is not JSON ({error})", code="rubric.named-file-not-json"
            ) from error

    @field_validator("against")
    @classmethod
    def _check(cls, schema: dict[str, JsonValue]) -> dict[str, JsonValue]:
        # Imported at the first use: 80 ms that most rubrics never need.
        from jsonschema import SchemaError  # noqa: PLC0415
        from referencing.exceptions import Unresolvable  # noqa: PLC0415

        validator = _validator_class(schema)
        try:
            # With formats: a `pattern` has to be one of the format "regex".
            validator.check_schema(schema, format_checker=validator.FORMAT_CHECKER)
        except SchemaError as error:
            raise Mistake(
                f"not a JSON Schema: {error.json_path}: {error.message}",
                code="rubric.schema-invalid",
            ) from error
        # References to a part with an `$id` of its own are looked up only when a draft is graded.
        # The whole schema's `$id` stands at the top and is left out here.
        if any(key == "$id" for key, _ in _members_of([*schema.values()])):
            return schema
        resolver = _registry_with(schema).resolver(str(schema.get("$id", "")))
        try:
            for key, reference in _members_of(schema):
                if key == "$ref" and isinstance(reference, str):
                    resolver.lookup(reference)
        except Unresolvable as error:
            raise Mistake(
                f"'$ref: {error.ref}' leads to nothing inside the schema",
                code="rubric.schema-reference",
            ) from error
        return schema

    @property
    def requirement(self) -> str:
        """What the author is told, in one sentence."""
        schema = json.dumps(self.against, ensure_ascii=False)
        return f"It is JSON, or has it in a fence labelled json, by this schema: {schema}."

    def grade(self, draft: Draft) -> Grade:
        """0 for what is not JSON; else a half, a third … for one fault, two …; 1 without any."""
        index, text = _json_in(draft)
        try:
            faults = self._faults(json.loads(text, parse_constant=_refuse))
        except ValueError as error:  # JSONDecodeError, and numbers of 5,000 digits
            message = f"this is not JSON: {error}"
            return Grade(0.0, (draft.finding(message, index, code="check.json-invalid"),))
        except RecursionError:
            message = "this JSON is nested too deeply"
            return Grade(0.0, (draft.finding(message, index, code="check.json-too-deep"),))
        findings = tuple(
            draft.finding(fault, index, code="check.schema-violated") for fault in faults
        )
        return Grade(1 / (1 + len(findings)), findings)

    def _faults(self, instance: object) -> list[str]:
        """The first faults, each with its place."""
        from jsonschema import ValidationError, validators  # noqa: PLC0415 - as above
        from referencing.exceptions import Unresolvable  # noqa: PLC0415 - as above

        deadline = time.monotonic() + self.timeout_s

        def matches(pattern: str, text: str) -> bool:
            return any(matches_in(text, pattern, deadline, timeout_s=self.timeout_s))

        validator_class = _validator_class(self.against)
        keywords = _with_search(validator_class.VALIDATORS, matches)
        additional_faults = validator_class.VALIDATORS["additionalProperties"]

        def additional_properties_faults(
            validator: object, schema: object, instance: object, around: dict[str, Any]
        ) -> Iterator[ValidationError]:
            # It would join the patterns, and so renumber their groups: it gets the names that match
            # in their place.
            patterns = around.get("patternProperties", {})
            names = instance if isinstance(instance, dict) else ()
            matching = {n: True for n in names if any(matches(p, n) for p in patterns)}
            properties = {**around.get("properties", {}), **matching}
            yield from additional_faults(validator, schema, instance, {"properties": properties})

        keywords["additionalProperties"] = additional_properties_faults
        # Where a schema names its draft, jsonschema would take that draft's own keywords.
        schema = {key: value for key, value in self.against.items() if key != "$schema"}
        timed = validators.extend(validator_class, keywords)  # type: ignore[no-untyped-call]
        validator = timed(schema, registry=_registry_with(schema, like=self.against))
        faults = []
        try:
            for error in islice(validator.iter_errors(instance), _MOST_FAULTS):
                message = error.message
                if len(message) > _MOST_CHARS:  # it quotes the instance, and the reason comes last
                    message = f"{message[: _MOST_CHARS // 2]} … {message[-_MOST_CHARS // 2 :]}"
                faults.append(f"{error.json_path}: {message}")
        except Unresolvable as error:
            raise EvaluationFailed(
                f"the JSON Schema of a check refers to '{error.ref}', which is not in it"
            ) from error
        return faults


def _with_search(keywords: Mapping[str, Any], search: Callable[[str, str], bool]) -> dict[str, Any]:
    """The keywords of jsonschema that search for patterns, with `search` for their `re.search`.

    `re` has no time limit. Some keywords search in functions they call: these are copied as well.
    """
    copies: dict[FunctionType, FunctionType] = {}

    def copy(function: FunctionType) -> FunctionType:
        if function not in copies:
            scope = {**function.__globals__, "re": SimpleNamespace(search=search)}
            copies[function] = FunctionType(function.__code__, scope, None, function.__defaults__)
            callees = {name: scope.get(name) for name in function.__code__.co_names}
            scope.update({n: copy(f) for n, f in callees.items() if isinstance(f, FunctionType)})
        return copies[function]

    return {name: copy(keywords[name]) for name in _SEARCHING if name in keywords}


def _json_in(draft: Draft) -> tuple[int | None, str]:
    """The first fence labelled `json`, with its section's index; without one, the whole text."""
    for index, _, fence in draft.fences:
        if fence.language == "json":
            return index, fence.code
    return None, draft.text


def _validator_class(schema: dict[str, Any]) -> Any:  # noqa: ANN401 - its stubs lack a parameter
    """The validator for the draft of JSON Schema that a schema names, else for the latest one."""
    from jsonschema import validators  # noqa: PLC0415 - as above

    named = {"$schema": schema["$schema"]} if isinstance(schema.get("$schema"), str) else {}
    return validators.validator_for(named, default=validators.Draft202012Validator)


def _registry_with(schema: dict[str, Any], *, like: dict[str, Any] | None = None) -> Any:  # noqa: ANN401
    """The `referencing.Registry` of the schema and the drafts of JSON Schema, under their ids.

    The schema is of the draft that `like` names.
    """
    # Without one, jsonschema goes to the network for what it does not find.
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415
    from referencing.jsonschema import DRAFT202012, specification_with  # noqa: PLC0415 - as above

    named = (like or schema).get("$schema", "")
    resource = specification_with(named, default=DRAFT202012).create_resource(schema)
    return REGISTRY.with_resource(resource.id() or "", resource)


def _members_of(schema: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    """Every key with its value, at any depth."""
    if isinstance(schema, dict):
        yield from schema.items()
        for value in schema.values():
            yield from _members_of(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from _members_of(item)


def _refuse(constant: str) -> NoReturn:
    # `NaN` and `Infinity` are not JSON, though Python would read them.
    raise ValueError(f"it holds {constant}")
