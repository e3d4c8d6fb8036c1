"""Where in a draft an issue is: sections found by their headings as a model writes them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.compress import Section
from harness.rubric.draft import Draft
from harness.rubric.finding import Finding
from harness.rubric.judging.judgement import Issue

_LEAST_OF_A_TITLE = 8
"""Letters by which the beginning of a longer heading is recognised."""
_NUMBERING = re.compile(
    r"(?:section |chapter |part )?\(?(?:\d+(?:[. ]\d+)*|[ivx]+(?=[.)]))[.):]*\s+"
)


def located(issue: Issue, draft: Draft) -> Finding:
    """The issue as a finding: at its section, or of the whole draft if no one section is meant."""
    index = section_named(issue.section, draft.sections)
    title = None if index is None else draft.sections[index].title
    return Finding(issue.problem, title, index)


def section_named(heading: str, sections: Sequence[Section]) -> int | None:
    """Which section has this heading, whatever its case, numbering and markup.

    None if none has, or more than one: a revision of the wrong one would be worse than of all.
    """
    wanted = _plain(heading)
    titles = [_plain(section.title) if section.level else "" for section in sections]
    bare = [_NUMBERING.sub("", title, count=1) for title in titles]
    for candidates, sought in (
        (titles, wanted),
        (bare, _NUMBERING.sub("", wanted, count=1)),
        (bare, re.sub(r"^the | section$", "", wanted)),
    ):
        found = [index for index, title in enumerate(candidates) if title and title == sought]
        if found:
            return found[0] if len(found) == 1 else None
    if len(wanted) < _LEAST_OF_A_TITLE:
        return None
    begun = [index for index, title in enumerate(bare) if title.startswith(wanted)]
    return begun[0] if len(begun) == 1 else None


def _plain(heading: str) -> str:
    """Without markup, in one case."""
    text = re.sub(r"\[([^\[\]]*)\]\([^()]*\)", r"\1", heading)
    return " ".join(
        re.sub(r"[*_`#~\"'\u201c\u201d\u2018\u2019]", "", text).casefold().split()
    ).strip(" :.-\u2013\u2014")
