"""Finds where a JSON document breaks a schema; also a program, for schemas with patterns.

The program reads one JSON object and prints the faults, or null for a document that is nested too
deeply.
"""

from __future__ import annotations

# Nothing of this package: the program must start fast.
import json
import sys
from itertools import islice
from typing import Any

_MOST_FAULTS = 10
_MOST_CHARS = 200


def faults_of(schema: dict[str, Any], instance: object) -> list[str]:
    """The first faults, each with its place.

    Raises:
        Unresolvable: A reference in the schema leads to nothing inside it.
        RecursionError: The document is nested too deeply.
    """
    validator = validator_class(schema)(schema, registry=registry_with(schema))
    faults = []
    for error in islice(validator.iter_errors(instance), _MOST_FAULTS):
        message = error.message
        if len(message) > _MOST_CHARS:  # it quotes the instance, and the reason comes last
            message = f"{message[: _MOST_CHARS // 2]} … {message[-_MOST_CHARS // 2 :]}"
        faults.append(f"{error.json_path}: {message}")
    return faults


def validator_class(schema: dict[str, Any]) -> Any:  # noqa: ANN401 - its stubs lack a parameter
    """The validator for the draft of JSON Schema that a schema names; None for an unknown draft."""
    # Imported at the first use: 80 ms that most rubrics never need.
    from jsonschema import validators  # noqa: PLC0415

    latest = validators.Draft202012Validator
    named = schema.get("$schema", latest.META_SCHEMA["$id"])
    if not isinstance(named, str):
        return None
    return validators.validator_for({"$schema": named}, default=None)  # type: ignore[arg-type]


def registry_with(schema: dict[str, Any]) -> Any:  # noqa: ANN401
    """The `referencing.Registry` of the schema and the drafts of JSON Schema, under their ids."""
    # Without one, jsonschema goes to the network for what it does not find.
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # noqa: PLC0415
    from referencing import Resource  # noqa: PLC0415 - as above
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415 - as above

    resource = Resource.from_contents(schema, default_specification=DRAFT202012)
    return REGISTRY.with_resource(resource.id() or "", resource)


if __name__ == "__main__":
    question = json.load(sys.stdin)
    sys.path[:] = question["path"]
    try:
        faults: list[str] | None = faults_of(question["schema"], question["instance"])
    except RecursionError:
        faults = None
    json.dump(faults, sys.stdout)
