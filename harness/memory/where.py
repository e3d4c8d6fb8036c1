"""Filters: only passages whose metadata, source or title have certain values.

Each pair of a name and a value is a tag, a short text of fixed length. A passage has the tags of
all that it can be filtered by, in SQLite as rows and in the lexical lane as terms.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from harness.errors import InvalidInput
from harness.memory.passage import RESERVED, Passage, Scalar, is_finite

Filter = Mapping[str, Scalar | Collection[Scalar]]
"""What a caller writes: `{"topic": "otters", "year": [2024, 2025]}`."""

_OWN_FIELDS = ("source", "title")


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A filter that was understood. All names must match, each with any of its values."""

    tags: tuple[tuple[str, ...], ...]
    """For each name, the tags of which a passage must have one."""

    @classmethod
    def parse(cls, mapping: Filter) -> Self:
        """The filter that `mapping` asks for.

        Numbers are equal whether they are whole by type or by value; booleans are no numbers.

        Raises:
            InvalidInput: No passage can have such a field, or such a value.
        """
        return cls(
            tags=tuple(
                tuple(_tag(name, value) for value in _values(name, wanted))
                for name, wanted in mapping.items()
            )
        )


def tags_of(passage: Passage) -> list[str]:
    """All that this passage can be filtered by, each as 32 hexadecimal digits."""
    return [
        _tag("source", passage.source),
        _tag("title", passage.title),
        *(_tag(name, value) for name, value in passage.metadata.items()),
    ]


def _values(name: str, wanted: object) -> tuple[Scalar, ...]:
    if not isinstance(name, str) or not name or (name in RESERVED and name not in _OWN_FIELDS):
        raise InvalidInput(
            f"a filter cannot ask for {name!r}; it can for a field of the metadata, or for "
            f"{' or '.join(repr(own) for own in _OWN_FIELDS)}",
            code="filter.unknown-field",
        )
    if isinstance(wanted, Scalar):
        values: tuple[object, ...] = (wanted,)
    elif isinstance(wanted, Collection) and not isinstance(wanted, bytes | bytearray | Mapping):
        values = tuple(wanted)
    else:
        values = (wanted,)
    if not values:
        raise InvalidInput(
            f"the filter '{name}' has no value; leave it out, or give it one",
            code="filter.no-value",
        )
    return tuple(_scalar(name, value) for value in values)


def _scalar(name: str, value: object) -> Scalar:
    if not isinstance(value, Scalar):
        raise InvalidInput(
            f"the filter '{name}' asks for {value!r}; a value is a text, a number or a boolean, or "
            "a list of these",
            code="filter.value-type",
        )
    if not is_finite(value):
        raise InvalidInput(
            f"the filter '{name}' asks for a number that is not finite, or too great",
            code="filter.value-not-finite",
        )
    return value


def _tag(name: str, value: Scalar) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # so that 2 and 2.0 are one tag, as they are equal
    content = json.dumps([name, value]).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
