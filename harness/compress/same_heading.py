"""Which sections of two texts are the same, by their headings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Sequence

from harness.compress.sections import Section

# `1.`, `2.3`, `(a)`, `IV)`, `Section 4:`; not the bare number of `3 reasons` or `2024 results`.
_NUMBERING = re.compile(
    r"(?:section|chapter|part|step)\s+\d+(?:\.\d+)*\s*[-–—:.)]*\s+"  # noqa: RUF001
    r"|\(?(?:\d+(?:\.\d+)*|[a-z]|[ivxl]+)[.):]+\s+"
    r"|\d+(?:\.\d+)+\s+"
)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")


def matches_of(
    returned: Sequence[Section], sections: Sequence[Section], *, preferred: Collection[int]
) -> dict[int, int]:
    """The index in `sections` of each returned section that has its heading there, by its own.

    First where only one can be meant: those that are alike but for case and markup, then those of
    another level, then those numbered otherwise. Then those with one heading, in order.

    Args:
        returned: What a model wrote.
        sections: What it was shown.
        preferred: Indices that are meant rather than others with the same heading.
    """
    matches: dict[int, int] = {}
    likenesses: tuple[tuple[Callable[[Section], Hashable], bool], ...] = (
        (_alike, True),
        (lambda section: plain_title(section.title), True),
        (lambda section: _unnumbered(section.title), True),
        (_alike, False),
    )
    for likeness, only_one in likenesses:
        by_likeness: dict[Hashable, list[int]] = {}
        for index, section in enumerate(sections):
            if section.level:
                by_likeness.setdefault(likeness(section), []).append(index)
        last = -1
        for number, section in enumerate(returned):
            if number not in matches and section.level:
                taken = set(matches.values())
                alike = [i for i in by_likeness.get(likeness(section), ()) if i not in taken]
                meant = [index for index in alike if index in preferred] or alike
                if len(meant) == 1 or (meant and not only_one):
                    matches[number] = next((index for index in meant if index > last), meant[0])
            last = matches.get(number, last)
    return matches


def _alike(section: Section) -> Hashable:
    return section.level, plain_title(section.title)


def plain_title(title: str) -> str:
    """A title as it is compared: no matter its case, its markup and the signs at its end."""
    text = _LINK.sub(r"\1", unicodedata.normalize("NFKC", title))
    return " ".join(re.sub(r"[*_`~\\]", "", text).split()).rstrip(" :.#").casefold()


def _unnumbered(title: str) -> str:
    plain = plain_title(title)
    return _NUMBERING.sub("", plain, count=1) if _NUMBERING.match(plain) else plain
