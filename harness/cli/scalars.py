"""Metadata as it is given on the command line: `name=value`, where values have types."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from harness.cli.values import read_pairs
from harness.errors import InvalidInput
from harness.memory import Scalar


def read_metadata(pairs: Iterable[str]) -> dict[str, Scalar]:
    """What `--metadata` gave, by name.

    Raises:
        InvalidInput: One has no `=`, or stands twice.
    """
    given = read_pairs(pairs, option="--metadata", form="name=value")
    return {name: scalar_of(text) for name, text in given.items()}


def read_filter(pairs: Iterable[str]) -> dict[str, list[Scalar]] | None:
    """What `--where` gave: by name, the values of which a passage must have one; None for none.

    Raises:
        InvalidInput: One has no `=`.
    """
    wanted: dict[str, list[Scalar]] = {}
    for pair in pairs:
        ((name, text),) = read_pairs([pair], option="--where", form="name=value").items()
        # A title or a source is a text, whatever it looks like.
        wanted.setdefault(name, []).append(text if name in {"title", "source"} else scalar_of(text))
    return wanted or None


def scalar_of(text: str) -> Scalar:
    """A number or a boolean where the text is one in JSON, a text in quotes too; else the text."""
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInput(f"{text} is too large a number", code="option.too-large")
    return value if isinstance(value, str | int | float | bool) else text
