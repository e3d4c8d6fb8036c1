"""The names of dimensions, as models write them down."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ALIASES = {"grounded": "groundedness", "groundedness": "grounded"}
"""What models take for one another."""

_SUFFIX = "score|rating|grade|evaluation"


class Labels:
    """Finds the dimensions of a rubric by their names.

    Args:
        names: Of all its dimensions, those that are not asked for among them: a score of theirs
            must not be taken for another's.
    """

    def __init__(self, names: Iterable[str]) -> None:
        known = list(names)
        aliases = {_ALIASES[n]: n for n in known if n in _ALIASES and _ALIASES[n] not in known}
        self._by_key = {_key(name): name for name in known} | aliases
        # The longest first: `depth_of_field` is not `depth`.
        alternatives = "|".join(
            r"[\s_-]{1,3}".join(map(re.escape, key.split("_")))
            for key in sorted(self._by_key, key=len, reverse=True)
        )
        # Not inside a word: neither the `clear` of `unclear` nor the `depth` of `in-depth`.
        self.pattern = re.compile(
            rf"(?<![\w-])(?P<name>{alternatives})(?:[ \t_-]{{0,3}}(?:{_SUFFIX}))?(?![\w-])",
            re.IGNORECASE,
        )
        """A dimension's name in a text, as the group `name`."""

    def find(self, written: str) -> str | None:
        """The dimension that a key or a heading names: `1. Relevance score (0-10)`."""
        plain = re.sub(r"\([^()]*+\)|^\W*\d{1,2}[.)]\s", " ", written[:200])
        key = re.sub(rf"_(?:{_SUFFIX})$", "", _key(plain))
        return self._by_key.get(_key(plain)) or self._by_key.get(key)


def _key(written: str) -> str:
    """No matter the case, the markup, and how words are joined."""
    return re.sub(r"[\W_]+", "_", written.casefold()).strip("_")
