"""Putting sections back into a document, rewritten or new, without touching the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.compress.blocks import BLANK, blocks_of, unpadded
from harness.compress.sections import Section, sections_of
from harness.errors import InvalidInput

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
