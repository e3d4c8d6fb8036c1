"""The sections that a model returned, matched to the document that they are to go back into.

A model is asked for some sections and returns them in its own way: in a fence, with a courtesy
before them, with other numbers or markup in the headings. What is matched here is put back by
`splice`, so that all the rest stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from harness.compress.blocks import BLANK, unpadded
from harness.compress.matter import matter_of
from harness.compress.parts import MARK
from harness.compress.same_heading import matches_of
from harness.compress.sections import Section, sections_of
from harness.compress.splice import splice
from harness.compress.unwrapped import unwrapped
from harness.errors import Notice

# `Sure! Here is the revised text:` on a line of its own.
_COURTESY = re.compile(
    r"\s*(?:sure|certainly|of course|okay|absolutely|below|here|the (?:revised|updated))\b"
    r"[^\r\n]*:[*_]*[ \t]*(?:\r?\n\s*\n|\r\r)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedSection:
    """A section whose heading the document does not have."""

    follows: int
    """Index of the section it comes behind; -1 for the beginning of the document."""
    level: int
    """1 to 6."""
    text: str
    """Its heading, with `#` marks, and its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What a reply changes in a document."""

    replacements: Mapping[int, str] = field(default_factory=dict)
    """The new text of sections, by index into `sections_of(document)`, headings included."""
    added: tuple[AddedSection, ...] = ()
    """New sections, in the order of the reply."""
    refused: Mapping[int, Notice] = field(default_factory=dict)
    """Why a section that was returned is no edit, by index: it has no text, or has the marks of
    what was left out. One that came back as it was is in neither."""

    def __bool__(self) -> bool:
        """Whether there is anything to apply."""
        return bool(self.replacements or self.added)


def edits_in(reply: str, document: str, *, allowed: Collection[int] | None = None) -> Edits:
    """The sections of a reply that say something new, matched to the document by their headings.

    Headings match whatever their case, markup and white space, and, where only one section can be
    meant, whatever their level and numbers. Of several sections with the same heading, allowed ones
    are meant first, and those behind the section that the reply had before. A heading that matches
    none makes an added section, behind the one it followed. If no heading matches, there are no
    edits, but for a single section that says something else than any of the document's: that is
    added at the end. The text before the first heading is a courtesy to the reader and left out,
    unless the document has such a text too and its section 0 is allowed by name.

    A section that holds a mark of what was left out, and so was copied from a shortened text, never
    replaces the full one.

    Args:
        reply: As the model wrote it. A Markdown fence around all of it is taken off.
        document: What it was asked to revise, in full.
        allowed: The sections that it was asked for. What it returned beside them is matched as
            well; `apply_edits` leaves it out.
    """
    sections = sections_of(document)
    titles = [section.title for section in sections if section.level]
    returned = sections_of(unwrapped(reply, titles=titles))
    asked = frozenset(allowed or ())
    matches = matches_of(returned, sections, preferred=asked)
    if 0 in asked and [s.level for s in (*returned[:1], *sections[:1])] == [0, 0]:
        matches[0] = 0

    replacements: dict[int, str] = {}
    refused: dict[int, Notice] = {}
    for number, index in sorted(matches.items()):
        body, full = returned[number].body, sections[index].body
        if not sections[index].level:
            body = _COURTESY.sub("", body, count=1)
        if _lines(body) == _lines(full):
            continue
        if fault := _fault(body, instead_of=full):
            refused[index] = fault
        else:
            heading = sections[index].heading
            replacements[index] = heading + ("" if heading[-1:] in "\r\n" else "\n\n") + body
    is_known = bool(matches) or _is_one_more(returned, sections)
    return Edits(
        replacements=replacements,
        added=_added(returned, sections, matches) if is_known else (),
        refused=refused,
    )


def apply_edits(document: str, edits: Edits, *, allowed: Collection[int] | None = None) -> str:
    """The document with the edits in place, all else byte for byte as it was.

    Args:
        document: The one that the edits were found for.
        edits: From `edits_in`.
        allowed: The only sections that may change; None allows every one, and new ones. Where
            sections are named, a new one is taken only as a part of one of them: directly behind
            it, and with a deeper heading.

    Raises:
        InvalidInput: The edits are not for this document, or one is nested too deeply to be
            closed before the section after it.
    """
    sections = sections_of(document)
    replacements = {
        index: text
        for index, text in edits.replacements.items()
        if allowed is None or index in allowed
    }
    insertions: dict[int, list[str]] = {}
    for new in edits.added:
        if allowed is None or (new.follows in allowed and new.level > sections[new.follows].level):
            insertions.setdefault(new.follows, []).append(new.text)
    return splice(document, replacements, insertions=insertions)


def _lines(body: str) -> list[str]:
    """A body without what does not count as a change: line ends, white space behind the lines."""
    return [line.rstrip() for line in unpadded(body).splitlines()]


def _fault(body: str, *, instead_of: str = "") -> Notice | None:
    """Why a text must not be taken; None if it may be."""
    if not body.strip(BLANK):
        return Notice(code="edit.without-text", message="it has no text")
    if len(MARK.findall(body)) > len(MARK.findall(instead_of)):
        return Notice(
            code="edit.of-shortened-text",
            message="it has the mark of what was left out of a shortened text",
        )
    return None


def _is_one_more(returned: Sequence[Section], sections: Sequence[Section]) -> bool:
    """Whether a reply without a known heading is one new section, not an old one by a new name."""
    headed = [section for section in returned if section.level]
    if len(headed) != 1 or not any(section.level for section in sections):
        return False
    said = matter_of(headed[0].body)
    return all(2 * len(said & matter_of(section.body)) < len(said) for section in sections)


def _added(
    returned: Sequence[Section], sections: Sequence[Section], matches: Mapping[int, int]
) -> tuple[AddedSection, ...]:
    """The sections of the reply that the document does not have."""
    found = []
    # Before all that matched, a section comes before the first of them.
    follows = matches[min(matches)] - 1 if matches else len(sections) - 1
    for number, section in enumerate(returned):
        if number in matches:
            follows = matches[number]
        elif section.level and not _fault(section.body):
            # Not between a section and those below it: these would become the new one's.
            deeper = (other.level > section.level for other in sections[follows + 1 :])
            follows += sum(takewhile(bool, deeper))
            text = f"{'#' * section.level} {section.title}\n\n{section.body}"
            found.append(AddedSection(follows=follows, level=section.level, text=text))
    return tuple(found)
