"""JSON that can always be written: what a run hands to its trace must never be what it fails of."""

from __future__ import annotations

from collections.abc import Mapping

import orjson

_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_DEEPEST = 100
"""Levels of nesting that are kept when a value has to be cleaned; orjson refuses 255."""


def dump_json(value: object) -> bytes:
    """A value as JSON on one line, without a newline.

    What JSON has no form for is written as its `repr`, NaN and infinities as null, lone surrogates
    as `?`, integers beyond 64 bits as text; what contains itself is cut off there. An
    `orjson.Fragment` is JSON already, and stands as it is.
    """
    try:
        return orjson.dumps(value, default=_described, option=_OPTIONS)
    except orjson.JSONEncodeError:
        # Rare, and slower: only what orjson refuses outright comes here.
        return orjson.dumps(_cleaned(value, ()), option=_OPTIONS)


def _cleaned(value: object, around: tuple[int, ...]) -> object:
    """A copy that orjson accepts.

    Args:
        value: To copy.
        around: The `id` of every container it lies in.
    """
    if not isinstance(value, Mapping | list | tuple):
        return _cleaned_scalar(value)
    if id(value) in around or len(around) == _DEEPEST:
        return "…"
    around = (*around, id(value))
    if isinstance(value, Mapping):
        return {_cleaned_text(_described(k)): _cleaned(v, around) for k, v in value.items()}
    return [_cleaned(item, around) for item in value]


def _cleaned_scalar(value: object) -> object:
    match value:
        case bool() | None | orjson.Fragment():
            return value
        case float():
            return float(value)
        case int() if -(2**63) <= value < 2**64:
            return int(value)
        case _:
            return _cleaned_text(_described(value))


def _cleaned_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")


def _described(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - its author's mistake; it must not end the run
        return f"<{type(value).__name__}>"
