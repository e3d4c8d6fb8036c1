"""JSON Schemas by the rules of OpenAI's strict mode, which Azure, Groq and others share.

Every key is required, objects are closed, and few keywords are allowed: the others move to the
description, and the reply's type checks them. An optional key becomes one that may be null; `plain`
takes those nulls out of the reply again. Rules: OpenAI's page on structured outputs, 2026-02.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from harness.inference.json_text import parsed_with_digits
from harness.inference.request import JsonSchema

_ALLOWED = {"type", "enum", "const", "title", "multipleOf", "minItems", "maxItems"}
_ALLOWED |= {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}
_FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
_HANDLED = {"required", "additionalProperties", "description", "discriminator"}
_NOTHING: Mapping[str, Any] = {}


class _TooOpenError(Exception):
    """A part of a schema allows values that strict mode has no words for."""


def strict_schema(schema: JsonSchema) -> JsonSchema | None:
    """The schema in its strict form, itself if it is strict; None if it has none.

    `dict[str, int]`, `Any`, a bare `list` and models that take any key have none.
    """
    try:
        return _strict(schema)
    except _TooOpenError:
        return None


def _strict(part: Any) -> dict[str, Any]:  # noqa: ANN401, PLR0912 - one for each keyword
    """The strict form of a part of a schema; raises `_TooOpenError` if it has none."""
    if not isinstance(part, Mapping) or "patternProperties" in part:
        raise _TooOpenError
    # 1. The keywords: allowed ones stay, others become notes in the description.
    result: dict[str, Any] = {}
    notes: list[str] = []
    for name, value in part.items():
        match name:
            case "properties" | "$defs":
                result[name] = {key: _strict(kind) for key, kind in value.items()}
            case "anyOf" | "oneOf":
                result["anyOf"] = [*map(_strict, value)]
            case "allOf":
                # Several would have to be merged to one.
                if len(value) != 1:
                    raise _TooOpenError
                result |= _strict(value[0])
            case "items":
                result[name] = _strict(value)
            case "prefixItems":
                # Each once; a schema cannot be hashed.
                options = [kind for n, kind in enumerate(value) if kind not in value[:n]]
                result["items"] = _strict(options[0] if len(options) == 1 else {"anyOf": options})
            case _ if _is_allowed(name, value):
                result[name] = value
            case _ if name not in _HANDLED and value is not None:
                plain = json.loads(json.dumps(value, default=str), parse_constant=lambda _: None)
                text = json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
                notes.append(f"{name}: {text}")
    # 2. Optional keys: required, but may be null.
    if "properties" in result:
        result.setdefault("type", "object")
        for key, kind in result["properties"].items():
            # A constant distinguishes the options of a union, so it is never null.
            if key not in part.get("required", ()) and "const" not in kind:
                result["properties"][key] = _nullable(kind)
    # 3. Objects are closed. By default, one with properties has no others, one without has any.
    types = _types(result)
    if "object" in types:
        if part.get("additionalProperties", "properties" not in result) is not False:
            raise _TooOpenError
        result.setdefault("properties", {})
        result |= {"required": [*result["properties"]], "additionalProperties": False}
    # 4. A list says what its items are, any other part what it is.
    is_open_list = "array" in types and "items" not in result
    if is_open_list or result.keys().isdisjoint({"type", "enum", "const", "$ref", "anyOf"}):
        raise _TooOpenError
    texts = [part.get("description", ""), f"({'; '.join(notes)})" if notes else ""]
    description = " ".join(filter(None, texts))
    if "$ref" in result and (description or len(result) > 1):  # a reference stands alone
        result["anyOf"] = [{"$ref": result.pop("$ref")}]
    return result | ({"description": description} if description else {})


def _is_allowed(name: str, value: Any) -> bool:  # noqa: ANN401
    if name == "pattern":
        return "(?" not in value  # no look-around
    if name == "$ref":
        return str(value) == "#" or str(value).startswith("#/$defs/")  # other places move
    return name in _ALLOWED or (name == "format" and value in _FORMATS)


def _types(part: Mapping[str, Any]) -> Sequence[str]:
    kinds = part.get("type", ())
    return [kinds] if isinstance(kinds, str) else kinds


def _nullable(part: dict[str, Any]) -> dict[str, Any]:
    if _takes_null(part):
        return part
    if "anyOf" not in part:
        part = {"anyOf": [part]}
    return {**part, "anyOf": [*part["anyOf"], {"type": "null"}]}


def _takes_null(part: Mapping[str, Any]) -> bool:
    options = (*part.get("anyOf", ()), *part.get("oneOf", ()))
    return "null" in _types(part) or None in part.get("enum", ()) or any(map(_takes_null, options))


def plain(reply: str, schema: JsonSchema) -> str:
    """A reply to the strict form of a schema, without its nulls for keys that may be absent."""
    value = parsed_with_digits(reply)
    try:
        result = _plain(value, schema, schema)
        return reply if result == value else orjson.dumps(result).decode()
    except (RecursionError, TypeError):  # it is nested too deeply for us, or for orjson
        return reply


def _plain(value: Any, part: Mapping[str, Any], root: JsonSchema) -> Any:  # noqa: ANN401 - JSON
    part = _resolved(value, part, root)
    if isinstance(value, list):
        first = part.get("prefixItems", ())
        kinds = [*first, *[part.get("items") or _NOTHING] * (len(value) - len(first))]
        return [_plain(item, kind, root) for item, kind in zip(value, kinds, strict=False)]
    if not isinstance(value, dict):
        return value
    properties: Any = part.get("properties", _NOTHING)
    optional = properties.keys() - part.get("required", ())
    return {
        key: _plain(item, properties.get(key, _NOTHING), root)
        for key, item in value.items()
        # Unless only the strict form allows null.
        if item is not None
        or key not in optional
        or _takes_null(_resolved(None, properties[key], root))
    }


def _resolved(value: object, part: Mapping[str, Any], root: JsonSchema) -> Mapping[str, Any]:
    """The part that a reference means, and of a choice the option that the value's keys fit."""
    if "$ref" in part:
        definitions: Any = root.get("$defs", _NOTHING)
        name = part["$ref"].removeprefix("#/$defs/")
        return _resolved(value, definitions.get(name, _NOTHING), root)
    kinds = ("anyOf", "oneOf", "allOf")
    options = [_resolved(value, option, root) for kind in kinds for option in part.get(kind, ())]
    return next((option for option in options if _may_be(value, option)), part)


def _may_be(value: object, part: Mapping[str, Any]) -> bool:
    """Whether a list or an object, by its keys and constants, may be of this part of a schema."""
    if isinstance(value, list):
        return "array" in _types(part)
    properties = part.get("properties", _NOTHING)
    return (
        isinstance(value, dict)
        and properties.keys() == value.keys()
        and all(kind.get("const", value[key]) == value[key] for key, kind in properties.items())
    )
