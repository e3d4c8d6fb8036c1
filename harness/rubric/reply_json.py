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
"""A text, a number, `true` or `null` without quotes, or what has several; None for what a key that
stands twice says."""


def json_at(text: str, position: int) -> tuple[Value, int]:
    """The value that begins at a position, and where it ends.

    Raises:
        ValueError: It is broken.
    """
    return _value(_token(text, position))


def _token(text: str, position: int) -> re.Match[str]:
    token = _TOKEN.match(text, position)
    if token is None:
        raise ValueError
    return token


def _value(token: re.Match[str], *, depth: int = 0) -> tuple[Value, int]:
    """The value that begins with a token, with small slips, and where it ends.

    Raises:
        ValueError: It is broken.
    """
    opening, text, end = token["mark"], token.string, token.end()
    # Too deep a bracket is no leaf, and so an error: recursion has an end.
    if opening not in {"{", "["} or depth == _MOST_NESTED:
        return _leaf(token), end
    members: dict[str, Value] = {}
    items: list[Value] = []
    while (token := _token(text, end))["mark"] != {"{": "}", "[": "]"}[opening]:
        end = token.end()
        if token["mark"] == ",":
            continue
        if opening == "[":
            item, end = _value(token, depth=depth + 1)
            items.append(item)
            continue
        key, colon = _leaf(token).strip().casefold(), _token(text, end)
        if colon["mark"] != ":":
            raise ValueError
        value, end = _value(_token(text, colon.end()), depth=depth + 1)
        # Which of two values is meant is unknown.
        members[key] = None if key in members else value
    return members if opening == "{" else items, token.end()


def _leaf(token: re.Match[str]) -> str:
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
