"""The JSON Schema of rubric files, by which editors complete and check them while they are written.

`rubrics/rubric.schema.json` holds it; a rubric's first line names that file.
"""

from __future__ import annotations

from typing import Any

from harness.rubric.checks import CHECKS
from harness.rubric.rubric import FILLED_IN, Rubric


def rubric_schema() -> dict[str, Any]:
    """The schema, in draft 2020-12: the fields that a person writes."""
    schema = Rubric.model_json_schema()
    for name in FILLED_IN:
        del schema["properties"][name]
    for check in CHECKS.values():
        # pydantic knows a check's class from its name, which has a default in Python only.
        part = schema["$defs"][check.__name__]
        part["required"] = ["check", *part.get("required", ())]
    # What a rubric extends may have the rest.
    needed = schema.pop("required")
    schema["anyOf"] = [{"required": ["extends"]}, {"required": needed}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
