"""JSON that others wrote: values of unknown shape, and values in the midst of a text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import orjson

from harness.errors import InvalidInput

_OPENING = re.compile(r"[{\[]")
# So many braces and brackets of a text are tried at most: each error counts the lines before it.
_MOST_STARTS = 1_000


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
_DIGITS_DECODER = _Decoder(
    parse_float=orjson.Fragment,
    parse_int=lambda digits: int(digits) if len(digits) < 19 else orjson.Fragment(digits),
)


def json_of(value: object, *, sort_keys: bool = False) -> bytes:
    """The JSON of what users give; raises `InvalidInput` for a part without JSON, such as a set."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS if sort_keys else 0)
    except TypeError as error:
        with suppress(TypeError, ValueError, RecursionError):
            # orjson has no integers of more than 64 bits.
            as_text = json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), allow_nan=False)
            return as_text.encode()
        raise InvalidInput(
            f"a part of the call has no JSON ({error}); give texts, numbers, lists and mappings",
            code="request.wrong-type",
        ) from error


def json_values_in(text: str) -> Iterator[tuple[Any, str]]:
    """The outermost objects and lists in a text, in their order, each with the text it is from."""
    end = 0
    for _ in range(_MOST_STARTS):
        if (opening := _OPENING.search(text, end)) is None:
            return
        try:
            value, end = DECODER.raw_decode(text, opening.start())
        except json.JSONDecodeError as error:
            # All up to the error is skipped: values inside a broken one are parts of it.
            end = max(error.pos, opening.end())
        except ValueError:
            return
        else:
            yield value, text[opening.start() : end]


def json_objects_in(text: str) -> list[str]:
    """The texts of the different objects in a text; a list of one object counts as that object."""
    texts = {}  # by the object's JSON in one spelling, so that equal objects count once
    for value, raw in json_values_in(text):
        is_list = isinstance(value, list) and len(value) == 1
        only = value[0] if is_list else value
        if isinstance(only, dict):
            # Not written anew, which would round its numbers.
            texts[json.dumps(only, sort_keys=True)] = raw[1:-1].strip() if is_list else raw
    return [*texts.values()]


# --- JSON with slips ------------------------------------------------------------------------------

_MOST_NESTED = 24
_TOKEN = re.compile(
    r"(?>(?:\s++|(?://|\#)[^\n]*+|/\*(?>(?:(?!\*/).)*)\*/)*)"
    r"(?:(?P<text>\"(?>(?:[^\"\\]|\\.)*)\"|'(?>(?:[^'\\]|\\.)*)')|(?P<mark>[{}\[\],:])"
    r"|(?P<bare>(?!/\*)[^\s\"'{}\[\],:\#](?>(?:[^\"'{}\[\],:\n/\#]|/(?![/*]))*)))",
    re.DOTALL,
)
_QUOTES, _REQUOTED = re.compile(r"\\.|\"", re.DOTALL), {"\\'": "'", '"': '\\"'}
_KEY_END = re.compile(r"\s*:")
_LITERALS = {"None": "null", "True": "true", "False": "false"}


def respelled(
    text: str, position: int, leaf: Callable[[re.Match[str]], str]
) -> tuple[list[str], int]:
    """The object or list at a position in tokens of strict JSON, and its end; in linear time.

    Slips are a comma before a closing bracket, single quotes, raw line ends in texts, keys without
    quotes, and comments. `leaf` is the JSON of a token that is no bracket, comma or colon.

    Raises:
        ValueError: Its brackets are not closed, or too deep. Other mistakes stay.
    """
    pieces: list[str] = []
    depth = 0
    while not pieces or depth:
        token = _TOKEN.match(text, position)
        if token is None or depth > _MOST_NESTED:
            raise ValueError("it is broken")
        position = token.end()
        mark = token["mark"]
        if mark in ("}", "]") and pieces[-1] == ",":
            pieces.pop()
        depth += (mark in ("{", "[")) - (mark in ("}", "]"))
        pieces.append(mark or leaf(token))
    return pieces, position


def text_in(token: re.Match[str]) -> str:
    """The text in quotes that a token is; raises `ValueError` for an escape that JSON lacks."""
    inner = _QUOTES.sub(lambda match: _REQUOTED.get(match[0], match[0]), token["text"][1:-1])
    return str(json.loads(f'"{inner}"', strict=False))


def without_slips(text: str) -> str:
    """The text with its objects and lists in strict JSON, up to the first that is broken."""
    pieces: list[str] = []
    position = 0
    with suppress(ValueError):
        while opening := _OPENING.search(text, position):
            value, end = respelled(text, opening.start(), _json_of)
            pieces += text[position : opening.start()], *value
            position = end
    return "".join(pieces) + text[position:]


def _json_of(token: re.Match[str]) -> str:
    if token["text"]:
        return json.dumps(text_in(token))
    word = token["bare"].rstrip()
    is_key = word.isidentifier() and _KEY_END.match(token.string, token.end())
    return json.dumps(word) if is_key else _LITERALS.get(word, word)


# --- JSON of unknown shape: None for whatever is not as expected ------------------------------


def parsed(body: bytes | str | None) -> object:
    """The value of a JSON text; None if it is not JSON, or there is no text."""
    try:
        return None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def parsed_with_digits(text: str) -> Any:  # noqa: ANN401 - JSON
    """As `parsed`, with numbers that orjson writes with the digits that they have in the text."""
    with suppress(ValueError):  # orjson reads what is nested more deeply than Python can
        return None if parsed(text) is None else _DIGITS_DECODER.decode(text)
    return None


def at(value: Any, *keys: str, model_id: str = "") -> Any:  # noqa: ANN401
    """The value under these keys, each inside the last, or None; a list means its model's entry."""
    for key in keys:
        if isinstance(value, list):
            # The only model counts, whatever its id: some servers accept any name for their model.
            value = value[0] if len(value) == 1 else row_of(value, model_id)
        value = value.get(key) if isinstance(value, dict) else None
    return value


def rows(value: object) -> list[Any]:
    """The value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def names(listed: object, key: str) -> tuple[str, ...] | None:
    """The texts under `key` in the rows of a list; None if it is no list."""
    if not isinstance(listed, list):
        return None
    return tuple(name for row in listed if isinstance(name := at(row, key), str))


def whole(value: object) -> int | None:
    """The value if it is an integer, else None."""
    # Not `isinstance`: true is no number.
    return value if type(value) is int else None


def text_at(value: object, *keys: str) -> str:
    """The text under these keys, as `at` finds it; "" if there is none."""
    text = at(value, *keys)
    return text if isinstance(text, str) else ""


def row_of(listed: object, model_id: str | None) -> Any:  # noqa: ANN401
    """The row of a model in a list of them; None if it is not listed."""
    return next((row for row in rows(listed) if at(row, "id") == model_id), None)
