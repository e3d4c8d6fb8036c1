"""Shortening a document by leaving things out: what stays is verbatim, nothing is paraphrased."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.compress.cut_middle import cut_middle
from harness.compress.parts import Kept, SectionParts, added_chars, parts_of, shown, tail_of
from harness.compress.sections import Section, sections_of
from harness.compress.worth import BestFirst
from harness.errors import InvalidInput, Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class Condensed:
    """A text that was shortened, or was short enough."""

    text: str
    """The text to use."""
    before_chars: int
    """Length of the text that was given."""
    after_chars: int
    """Length of `text`."""
    compressed: bool
    """Whether anything was left out: scores of the full and of a compressed text do not compare."""
    summarised: bool = False
    """Whether a summariser wrote `text`: then it is not verbatim."""
    refused: Notice | None = None
    """Why a summariser wrote none of it, where there was one and the text was too long."""


def condense(
    markdown: str,
    *,
    budget_chars: int,
    focus: str = "",
    keep_tail_chars: int = 300,
    cap_chars: int | None = None,
) -> Condensed:
    """The document, shortened to `budget_chars` if it is longer, by leaving parts of it out.

    All headings stay, in order. Of the rest, the last `keep_tail_chars` characters are kept first:
    a draft that was cut off shows it there. Then, as long as there is room, what says most that is
    not yet said for its length: the characteristic words of its section, numbers and quotations,
    and what `focus` is about. Sentences of paragraphs are kept one by one; list items, quotes,
    tables and code whole or not at all, except code that the tail begins in. What is left out
    leaves a mark: `[…]`, or a line that says how much code or how large a table it was.

    Headings and marks alone may be longer than the budget, and are kept then. Only over `cap_chars`
    they are cut: 85 % of that is their beginning, the rest is the end of the document.

    Not promised: the tail is missing if there is hardly room for it beside headings and marks, as
    when it begins in a long table, quote or list item. And nothing is rephrased, so a pronoun may
    have lost what it stood for.
    """
    if cap_chars is not None:
        budget_chars = min(budget_chars, cap_chars)
    if len(markdown) <= budget_chars:
        return _condensed(markdown, markdown)
    sections = sections_of(markdown)
    cut = len(markdown) - keep_tail_chars
    parts = parts_of(sections, cut=cut)

    # 1. Put the tail back, from its end.
    kept: dict[int, str] = {}
    room = budget_chars - sum(map(len, _shown_all(sections, parts, kept)))
    for part in (p for blocks in reversed(parts) for ps in reversed(blocks) for p in reversed(ps)):
        text = tail_of(part, cut)
        takes = added_chars(part, text, kept)
        if part.end <= cut:
            break
        if takes <= room:
            kept[part.start] = text
            room -= takes

    # 2. Put back what is worth most.
    text = _filled(sections, parts, kept, budget_chars=budget_chars, focus=focus)

    # 3. In a document of short parts the marks can cost more than they save.
    text = min(markdown, text, key=len)
    if cap_chars is not None and len(text) > cap_chars:
        text = cut_middle(text, end_of=markdown, chars=cap_chars)
    return _condensed(markdown, text)


def condense_around(
    markdown: str, *, sections: Collection[int], budget_chars: int, focus: str = ""
) -> Condensed:
    """The document with some sections byte for byte, and of the others the headings.

    As long as there is room, the others keep what says most, as in `condense`. The sections that
    are named stay whole even if they alone are over the budget; of the others there are then the
    headings and marks.

    Args:
        markdown: The whole document.
        sections: Indices into `sections_of(markdown)`.
        budget_chars: The length to stay within, if named sections, headings and marks allow it.
        focus: A text whose words are preferred in the other sections.

    Raises:
        InvalidInput: There is no such section.
    """
    found = sections_of(markdown)
    if unknown := sorted(set(sections) - set(range(len(found)))):
        raise InvalidInput(
            f"there is no section {unknown[0]}; the document has {len(found)}, counted from 0",
            code="compress.unknown-section",
        )
    if len(markdown) <= budget_chars:
        return _condensed(markdown, markdown)
    parts = parts_of(found, cut=len(markdown))
    kept = {part.start: part.text for index in sections for block in parts[index] for part in block}
    text = _filled(found, parts, kept, budget_chars=budget_chars, focus=focus)
    return _condensed(markdown, min(markdown, text, key=len))


def _condensed(before: str, after: str) -> Condensed:
    return Condensed(
        text=after, before_chars=len(before), after_chars=len(after), compressed=after != before
    )


def _filled(
    sections: Sequence[Section],
    parts: Sequence[SectionParts],
    kept: dict[int, str],
    *,
    budget_chars: int,
    focus: str,
) -> str:
    """The document with what is kept, and as much more as the budget has room for."""
    flat = [[part for block in blocks for part in block] for blocks in parts]
    best = BestFirst(flat, focus=focus, kept=kept)
    texts = _shown_all(sections, parts, kept)
    # What is chosen often takes less than it was counted for, so that there is room for more.
    while chosen := best.fitting(budget_chars - sum(map(len, texts)), kept=kept):
        kept |= {part.start: part.text for part in chosen}
        for index in {part.section for part in chosen}:
            texts[index] = shown(sections[index], parts[index], kept)
    return "".join(texts)


def _shown_all(sections: Sequence[Section], parts: Sequence[SectionParts], kept: Kept) -> list[str]:
    return [
        shown(section, section_parts, kept)
        for section, section_parts in zip(sections, parts, strict=True)
    ]
