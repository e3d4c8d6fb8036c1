"""The sections that a model returned, matched to the document that they are to go back into.

A model is asked for some sections and returns them in its own way: in a fence, with a courtesy
before them, with other numbers or markup in the headings. What is matched here is put back by
`splice`, so that all the rest stays byte for byte.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from harness.compress.condense import MARK
from harness.compress.markdown import (
    BLANK,
    Section,
    blocks_of,
    lines_of,
    matter_of,
    sections_of,
    unpadded,
)
from harness.errors import InvalidInput, Notice

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


# Tried in this order behind a text that would run on into the next section: the blank line that a
# paragraph, a table or an HTML tag needs; a comment, which ends an open comment or declaration,
# and a list that an indented heading would belong to; the ends of the other kinds of raw HTML.
_CLOSERS = ("\n", "\n\n<!-- -->", "\n</pre>", "\n?>", "\n]]>")


def splice(
    document: str,
    replacements: Mapping[int, str],
    *,
    insertions: Mapping[int, Sequence[str]] | None = None,
) -> str:
    """The document with some sections replaced or added, all else byte for byte as it was.

    Replacements go by index into `sections_of(document)`. A section keeps its heading: one that
    opens the replacement and has the same title, or is not of a deeper level, stands for it and
    is not repeated; without one, the replacement is the new body. A section also keeps the blank
    lines at its end. What a replacement leaves open (a code fence, an HTML comment) is closed, so
    that the sections after it stay sections. Headings further down in a replacement stay, and
    make sections of their own.

    Insertions begin with a heading of `#` marks. They go behind the section of that index, in
    order, or before the first one for -1. Only a section that the document's end left open, in a
    code fence for example, is changed by what is inserted behind it: it is closed.

    Raises:
        InvalidInput: There is no such section; the replacement would empty it; an insertion has no
            heading, or would take in the text before the first one.
    """
    sections = sections_of(document)
    added = insertions or {}
    _check_indices(sections, replacements, added)
    headings = [*(section.heading for section in sections), ""][1:]
    texts = [_in_a_row(added.get(-1, ()), following=next((s.heading for s in sections), ""))]
    for index, (section, following) in enumerate(zip(sections, headings, strict=True)):
        new = added.get(index, ())
        text = section.text
        if index in replacements:
            behind = "" if new else following
            text = _fitted(replacements[index], index=index, section=section, following=behind)
        if new:
            end = "" if text.endswith(("\n", "\r")) else "\n\n"
            text = _closed(text, end=end, following=_heading(new[0]))
        texts += [text, _in_a_row(new, following=following)]
    return "".join(texts)


def _check_indices(
    sections: Sequence[Section],
    replacements: Mapping[int, str],
    insertions: Mapping[int, Sequence[str]],
) -> None:
    count = len(sections)
    unknown = sorted(
        (replacements.keys() - set(range(count))) | (insertions.keys() - set(range(-1, count)))
    )
    if unknown:
        raise InvalidInput(
            f"there is no section {unknown[0]}; the document has {count}, counted from 0",
            code="compress.unknown-section",
        )
    for index, texts in insertions.items():
        if not all(any(s.level for s in sections_of(text)[:1]) for text in texts):
            raise InvalidInput(
                f"an insertion after section {index} begins without a heading; "
                "to add to a section's text, replace the section",
                code="compress.insertion-without-heading",
            )
    if insertions.get(-1) and sections and not sections[0].level:
        raise InvalidInput(
            "the document begins without a heading; insert after section 0, not before it",
            code="compress.before-untitled-text",
        )


def _in_a_row(insertions: Sequence[str], *, following: str) -> str:
    """The new sections between two of the document, each kept apart from the next."""
    nexts = [*(_heading(text) for text in insertions), following][1:]
    return "".join(
        _closed(unpadded(text), end="\n\n" if after else "\n", following=after)
        for text, after in zip(insertions, nexts, strict=True)
    )


def _heading(text: str) -> str:
    return sections_of(text)[0].heading


def _fitted(replacement: str, *, index: int, section: Section, following: str) -> str:
    """The section's new text: its own heading, the new body, its own end."""
    body = unpadded(_without_heading(replacement, section))
    if replacement == section.text or not (body or section.body.strip()):
        return section.text
    if not body:
        raise InvalidInput(
            f"the replacement for section {index} ('{section.title}') has no text; "
            "leave the section out of the replacements to keep it as it is",
            code="compress.replacement-without-text",
        )
    heading = section.heading
    if heading and not heading.endswith(("\n", "\r")):
        heading += "\n\n"
    end = section.text[len(section.text.rstrip(BLANK)) :]
    return _closed(heading + body, end=end, following=following)


def _without_heading(replacement: str, section: Section) -> str:
    """The replacement without the heading that it opens with, if that is the section's own."""
    first = next(iter(sections_of(replacement)), section)
    same_title = first.title.casefold() == section.title.casefold()
    if section.level and (same_title or first.level <= section.level):
        return replacement.removeprefix(first.heading)
    return replacement


def _closed(text: str, *, end: str, following: str) -> str:
    """The text with its end, and between them what it takes to keep the next heading a heading."""
    following = following or "\n\n# -\n"  # the last section must not stay open either
    fence = "\n" + blocks_of(text)[-1].fence
    for closer in ("", fence, *_CLOSERS):
        closed = text + closer + end
        if sections_of(closed + following)[-1].text == following.lstrip("\n"):
            return closed
    raise InvalidInput(
        "a replacement nests lists so deeply that it would swallow the section after it; "
        "nest it less deeply",
        code="compress.nested-too-deeply",
    )


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


# --- a fence around a reply ---

_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<label>[^`\r\n]*?)[ \t\r\n]*")


def unwrapped(reply: str, *, titles: Collection[str]) -> str:
    """What is in the fence around a reply, if that is what the fence is for; else the reply.

    It is if it says Markdown, or a heading that is asked for comes first in it; and no such heading
    stands before it or behind it. The parser would not do to find its end: to it, code in the fence
    that opens with as many backticks ends it.

    Args:
        reply: As it came.
        titles: The headings that the reply may have.
    """
    lines = lines_of(reply)
    found = (
        (number, match) for number, line in enumerate(lines) if (match := _FENCE.fullmatch(line))
    )
    start, opening = next(found, (0, None))
    if opening is None or opening["label"].casefold() not in {"", "md", "markdown"}:
        return reply
    closing = [n for n, line in enumerate(lines) if n > start and _closes(line, opening["fence"])]
    end = closing[-1] if closing else len(lines)
    inside = "".join(lines[start + 1 : end])
    outside = "".join([*lines[:start], "\n", *lines[end + 1 :]])
    wanted = {plain_title(title) for title in titles}
    first = next((section.title for section in sections_of(inside)), "")
    begins = bool(opening["label"]) or plain_title(first) in wanted - {""}
    return inside if begins and not wanted & _titles_in(outside) else reply


def _closes(line: str, fence: str) -> bool:
    line = line.strip()
    return line.startswith(fence) and not line.strip(fence[0])


def _titles_in(text: str) -> set[str]:
    return {plain_title(section.title) for section in sections_of(text) if section.level}
