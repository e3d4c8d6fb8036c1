"""What the store keeps: a piece of text and what is known about it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from harness.errors import InvalidInput

Scalar = str | int | float | bool
"""What a passage's metadata may hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A piece of text worth recalling. Raises `InvalidInput` for one that cannot be stored."""

    text: str
    """What is recalled."""
    title: str = ""
    """Heading or headline; it counts in both lanes."""
    source: str = ""
    """Where the text comes from: a URL, a path, the name of a run."""
    quality: float | None = None
    """How good it was judged to be, 0 to 10; None when nobody judged."""
    created: datetime | None = None
    """When it came into being, with its time zone; the time of storing when None."""
    metadata: Mapping[str, Scalar] = field(default_factory=dict, hash=False)
    """Anything else the caller wants back, or to filter by; never searched."""
    id: str = ""
    """What it is known by. When left out: 32 hexadecimal digits of source, title and text, so that
    equal content has an equal id."""

    def __post_init__(self) -> None:
        if not self.searchable.strip():
            raise InvalidInput(
                "a passage has neither title nor text; leave it out", code="passage.empty"
            )
        if self.quality is not None and not 0 <= self.quality <= 10:
            raise InvalidInput(
                f"quality is {self.quality}; it must lie between 0 and 10",
                code="passage.quality-out-of-range",
            )
        if self.created is not None and self.created.utcoffset() is None:
            raise InvalidInput(
                f"created is {self.created}; it must have a time zone", code="passage.no-time-zone"
            )
        for name in ("text", "title", "source", "id"):
            _check_encodes(getattr(self, name), name)
        for key, value in self.metadata.items():
            _check_metadata(key, value)
        # Nobody's later change to their own mapping reaches what is kept.
        object.__setattr__(self, "metadata", dict(self.metadata))
        if not self.id:
            object.__setattr__(self, "id", self._digest())

    @property
    def searchable(self) -> str:
        """What both lanes read."""
        # A blank, not a line break: small embedders have a vector for "\n" and average it in.
        return f"{self.title} {self.text}" if self.title else self.text

    def _digest(self) -> str:
        # JSON keeps the three apart; a plain join would let "a" + "bc" meet "ab" + "c".
        content = json.dumps([self.source, self.title, self.text]).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def _check_metadata(key: object, value: object) -> None:
    if not isinstance(key, str) or not key or key in RESERVED:
        raise InvalidInput(
            f"a passage's metadata has a field {key!r}; its name must be a text, and none of "
            f"{', '.join(RESERVED)}",
            code="passage.field-name",
        )
    _check_encodes(key, "metadata")
    if not isinstance(value, str | int | float | bool):
        raise InvalidInput(
            f"metadata '{key}' is {type(value).__name__}; it must be a text, a number or a boolean",
            code="passage.field-type",
        )
    if not is_finite(value):
        raise InvalidInput(
            f"metadata '{key}' is not finite, or greater than any float; no filter and no JSON can "
            "hold that",
            code="passage.field-not-finite",
        )
    if isinstance(value, str):
        _check_encodes(value, f"metadata '{key}'")


def is_finite(value: Scalar) -> bool:
    """Whether it is no number that JSON or a filter would refuse."""
    try:
        return isinstance(value, str) or math.isfinite(value)
    except OverflowError:  # an int beyond any float, whose digits Python will not write either
        return False


def _check_encodes(value: str, name: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"a passage's {name} holds half of a surrogate pair at character {error.start}, which "
            "no file can hold; decode it with errors='replace'",
            code="passage.not-encodable",
        ) from error


RESERVED = ("id", "text", "title", "source", "quality", "created")
"""A passage's own fields: no metadata has such a name, so that a filter says what it means."""
