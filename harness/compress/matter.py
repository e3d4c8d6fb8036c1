"""The words by which texts are compared."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w{4,}")


def matter_of(text: str) -> frozenset[str]:
    """The words that carry the matter, those of four letters and more, whatever their case."""
    return frozenset(_WORD.findall(text.casefold()))
