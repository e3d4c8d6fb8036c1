"""What a query's text asks for.

Any text asks for something: there is no syntax to get wrong. What reads like a phrase in quotes,
or like a word of a title, asks for that, too; every other sign is mere text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

_QUOTED = re.compile(r'"([^"\n]+)"')
_OF_TITLE = re.compile(r'\btitle:(?:"([^"\n]+)"|([^\s"]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is looked for."""

    words: str
    """Anywhere, each for itself."""
    phrases: tuple[str, ...] = ()
    """Anywhere, as they stand: what was in quotes, in part of the text or all of it."""
    titles: tuple[str, ...] = ()
    """In titles, as they stand: what came after `title:`."""


def read_query(text: str) -> Asked:
    """What a text asks for; words of phrases and titles are words like all others, too."""
    # Replies of models do hold halves of surrogate pairs, which no index can look for.
    text = text.encode(errors="replace").decode()
    titles = (quoted or word for quoted, word in _OF_TITLE.findall(text))
    phrases = _QUOTED.findall(_OF_TITLE.sub(" ", text))
    return Asked(
        words=_OF_TITLE.sub(lambda found: f" {found[1] or found[2]} ", text),
        phrases=_first_of(phrases),
        titles=_first_of(titles),
    )


_MOST_PHRASES = 16
_LONGEST_PHRASE = 400
"""Letters."""


def _first_of(phrases: Iterable[str]) -> tuple[str, ...]:
    """Different ones that somebody may have meant; not a megabyte of quotes."""
    meant = (phrase for phrase in phrases if len(phrase) <= _LONGEST_PHRASE)
    return tuple(islice(dict.fromkeys(meant), _MOST_PHRASES))
