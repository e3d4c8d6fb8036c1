"""Putting rewritten sections back into a document, without touching the others."""

from __future__ import annotations

from collections.abc import Mapping

from harness.compress.blocks import BLANK, blocks_of, unpadded
from harness.compress.sections import Section, sections_of
from harness.errors import InvalidInput

# Tried in this order behind a text that would run on into the next section: the blank line that a
# paragraph, a table or an HTML tag needs; a comment, which ends an open comment or declaration,
# and a list that an indented heading would belong to; the ends of the other kinds of raw HTML.
_CLOSERS = ("\n", "\n\n<!-- -->", "\n</pre>", "\n?>", "\n]]>")


def splice(document: str, replacements: Mapping[int, str]) -> str:
    """The document with some sections replaced, all else byte for byte as it was.

    Replacements go by index into `sections_of(document)`. A section keeps its heading: one that
    opens the replacement and has the same title, or is not of a deeper level, stands for it and
    is not repeated; without one, the replacement is the new body. A section also keeps the blank
    lines at its end. What a replacement leaves open (a code fence, an HTML comment) is closed, so
    that the sections after it stay sections. Headings further down in a replacement stay, and
    make sections of their own.

    Raises:
        InvalidInput: There is no such section, or the replacement would empty it.
    """
    sections = sections_of(document)
    unknown = sorted(replacements.keys() - set(range(len(sections))))
    if unknown:
        raise InvalidInput(
            f"there is no section {unknown[0]}; the document has {len(sections)}, counted from 0"
        )
    following = [*(section.heading for section in sections[1:]), ""]
    return "".join(
        _fitted(replacements[index], index=index, section=section, following=following[index])
        if index in replacements
        else section.text
        for index, section in enumerate(sections)
    )


def _fitted(replacement: str, *, index: int, section: Section, following: str) -> str:
    """The section's new text: its own heading, the new body, its own end."""
    body = unpadded(_without_heading(replacement, section))
    if replacement == section.text or not (body or section.body.strip()):
        return section.text
    if not body:
        raise InvalidInput(
            f"the replacement for section {index} ('{section.title}') has no text; "
            "leave the section out of the replacements to keep it as it is"
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
        "nest it less deeply"
    )
