"""JSON that others wrote: values of unknown shape, and those in the midst of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import orjson

_OPENING = re.compile(r"[{\[]")
# Braces and brackets of a text that are tried: each may be read to the end in vain.
_MOST_STARTS = 200


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _refuse("a key that stands twice")


class _Decoder(json.JSONDecoder):
    """Raises a ValueError for whatever is no JSON."""

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            return super().raw_decode(s, idx)
        except RecursionError:  # a model that repeats itself opens a thousand brackets
            raise ValueError("it is nested too deeply") from None


# Refuses what other readers settle silently: NaN, and the last of two equal keys.
DECODER = _Decoder(parse_constant=_refuse, object_pairs_hook=_without_doubles)


def values_in(text: str) -> Iterator[tuple[Any, str]]:
    """The objects and lists in a text, outermost first and in their order, and how each stands."""
    end = 0
    for _ in range(_MOST_STARTS):
        opening = _OPENING.search(text, end)
        if opening is None:
            return
        try:
            value, end = DECODER.raw_decode(text, opening.start())
        except json.JSONDecodeError as error:
            # Nothing within what is broken is looked at again.
            end = max(error.pos, opening.end())
        except ValueError:
            return
        else:
            yield value, text[opening.start() : end]


def objects_in(text: str) -> list[str]:
    """The different objects in a text, as they stand; a list of one object is that object."""
    objects = {}
    for value, raw in values_in(text):
        is_list = isinstance(value, list) and len(value) == 1
        only = value[0] if is_list else value
        if isinstance(only, dict):
            key = json.dumps(only, sort_keys=True)
            objects[key] = json.dumps(only, ensure_ascii=False) if is_list else raw
    return [*objects.values()]


# --- JSON of unknown shape: None for whatever is not as expected ------------------------------


def parsed(body: bytes | None) -> object:
    """A page's JSON; None if it is not JSON, or there is no page."""
    try:
        return None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def at(value: Any, *keys: str, model_id: str = "") -> Any:  # noqa: ANN401
    """The value at the end of these keys; in a list of models, the way goes through the model's."""
    for key in keys:
        if isinstance(value, list):
            value = _entry(value, model_id)
        value = value.get(key) if isinstance(value, dict) else None
    return value


def rows(value: object) -> list[Any]:
    """A list, or an empty one."""
    return value if isinstance(value, list) else []


def names(listed: object, key: str) -> tuple[str, ...] | None:
    """The values of a key in a list's rows; None if it is no list."""
    if not isinstance(listed, list):
        return None
    return tuple(name for row in listed if isinstance(name := at(row, key), str))


def whole(value: object) -> int | None:
    """The value if it is an integer, else None."""
    # Not `isinstance`: true is no number.
    return value if type(value) is int else None


def _entry(models: list[Any], model_id: str) -> object:
    # The only one counts, whatever its id: some servers accept any name for their model.
    named = [model for model in models if at(model, "id") == model_id]
    return (named or (models if len(models) == 1 else [None]))[0]


def text_at(value: object, *keys: str) -> str:
    """The text at the end of these keys, or ""."""
    text = at(value, *keys)
    return text if isinstance(text, str) else ""


def row_of(listed: object, model_id: str | None) -> Any:  # noqa: ANN401
    """The row of a model in a list of them; None if it is not listed."""
    return next((row for row in rows(listed) if at(row, "id") == model_id), None)
