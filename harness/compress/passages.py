"""A document cut into passages for a memory store."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from harness.compress.blocks import BLANK, Block, lines_of, unpadded
from harness.compress.sections import Section, sections_of
from harness.compress.sentences import sentence_pieces
from harness.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """One passage of a document."""

    title: str
    """The headings above it, outermost first: `Guide > Install > Windows`; empty above them all."""
    text: str
    """Its source, verbatim, without the blank lines around it and without its heading."""


def passages_of(markdown: str, *, max_chars: int = 900) -> tuple[Excerpt, ...]:
    """The passages of a document, in order: together its whole text except the headings.

    A passage never crosses a heading. Within a section, paragraphs, list items, code and tables
    are packed together up to `max_chars`; only one that is longer by itself is cut: paragraphs at
    sentence ends, the rest at line ends, and a longer sentence or line between words, or anywhere
    if it has no space. Pieces of cut code keep no fence but the one they contain.

    Raises:
        InvalidInput: `max_chars` is not positive.
    """
    if max_chars < 1:
        raise InvalidInput(
            f"max_chars is {max_chars}; a passage needs at least 1 character",
            code="compress.no-room",
        )
    excerpts: list[Excerpt] = []
    above: list[Section] = []
    for section in sections_of(markdown):
        above = [s for s in above if s.level < section.level]
        if section.level:
            above.append(section)
        title = " > ".join(s.title for s in above if s.title)
        texts = _packed(section.blocks, max_chars)
        excerpts += [Excerpt(title=title, text=text) for text in texts if text]
    return tuple(excerpts)


def _packed(blocks: Iterable[Block], max_chars: int) -> Iterator[str]:
    """The blocks as texts of at most `max_chars`, each as long as it can be."""
    text = ""
    for block in blocks:
        for piece in _pieces(block, max_chars):
            if text and len(text) + len(piece.rstrip(BLANK)) > max_chars:
                yield unpadded(text)
                text = ""
            text += piece
    yield unpadded(text)


def _pieces(block: Block, max_chars: int) -> list[str]:
    """The block whole if it fits; otherwise its sentences or lines, cut where they do not fit."""
    if len(unpadded(block.text)) <= max_chars:
        return [block.text]
    pieces = sentence_pieces(block.text) if block.kind == "paragraph" else lines_of(block.text)
    # As many characters as may be, up to a space if there is one, and the white space after them.
    part = re.compile(
        rf".{{1,{max_chars}}}(?=[{BLANK}]|\Z)[{BLANK}]*|.{{1,{max_chars}}}", re.DOTALL
    )
    return [text for piece in pieces for text in part.findall(piece)]
