"""JSON as evaluators write it: small slips are read, anything broken is an error.

Commas too many, single quotes, keys without quotes and comments are slips. Reading takes linear
time.
"""

from __future__ import annotations

import json
import re

_MOST_NESTED = 24
_TOKEN = re.compile(
    r"(?>(?:\s++|(?://|\#)[^\n]*+|/\*(?>(?:(?!\*/).)*)\*/)*)"
    r"(?:(?P<text>\"(?>(?:[^\"\\]|\\.)*)\"|'(?>(?:[^'\\]|\\.)*)')|(?P<mark>[{}\[\],:])"
    r"|(?P<bare>(?!/\*)[^\s\"'{}\[\],:\#](?>(?:[^\"'{}\[\],:\n/\#]|/(?![/*]))*)))",
    re.DOTALL,
)

Value = str | list["Value"] | dict[str, "Value"] | None
"""A list, an object, or a text; numbers, `true` and `null` are texts as well. None is the value of
a key that stands twice in its object."""


def json_at(text: str, position: int) -> tuple[Value, int]:
    """The value that begins at a position, and where it ends.

    Raises:
        ValueError: It is broken.
    """
    return _value(_token(text, position), depth=0)


def _token(text: str, position: int) -> re.Match[str]:
    token = _TOKEN.match(text, position)
    if token is None:
        raise ValueError
    return token


def _value(token: re.Match[str], *, depth: int) -> tuple[Value, int]:
    """The value that begins with a token inside of `depth` others, and where it ends."""
    # A bracket that is too deep is no leaf, and so an error: recursion has an end.
    if token["mark"] == "{" and depth < _MOST_NESTED:
        return _object(token.string, token.end(), depth=depth + 1)
    if token["mark"] == "[" and depth < _MOST_NESTED:
        return _list(token.string, token.end(), depth=depth + 1)
    return _leaf(token), token.end()


def _list(text: str, position: int, *, depth: int) -> tuple[list[Value], int]:
    items: list[Value] = []
    while (token := _token(text, position))["mark"] != "]":
        position = token.end()
        if token["mark"] != ",":
            item, position = _value(token, depth=depth)
            items.append(item)
    return items, token.end()


def _object(text: str, position: int, *, depth: int) -> tuple[dict[str, Value], int]:
    members: dict[str, Value] = {}
    while (token := _token(text, position))["mark"] != "}":
        position = token.end()
        if token["mark"] == ",":
            continue
        key = _leaf(token).strip().casefold()
        colon = _token(text, position)
        if colon["mark"] != ":":
            raise ValueError
        value, position = _value(_token(text, colon.end()), depth=depth)
        # Which of two values is meant is unknown.
        members[key] = None if key in members else value
    return members, token.end()


def _leaf(token: re.Match[str]) -> str:
    """The text of a token that is no bracket, comma or colon."""
    if token["mark"]:
        raise ValueError
    if token["bare"]:
        return token["bare"].rstrip()
    text = token["text"][1:-1]
    try:
        text = json.loads(f'"{text}"', strict=False)
    except ValueError:
        text = re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
    # Half a pair of surrogates is no text.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
