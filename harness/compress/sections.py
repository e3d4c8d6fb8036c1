"""The sections of a Markdown document: a flat partition at its headings."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from harness.compress.blocks import Block, blocks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands below it, up to the next heading of whatever level."""

    title: str
    """The heading's text as written, inline markup included; empty before the first heading."""
    level: int
    """1 to 6; 0 for the text before the first heading."""
    heading: str
    """The heading's line or lines and the blank lines after it, verbatim."""
    blocks: tuple[Block, ...]
    """What stands below the heading."""

    @property
    def body(self) -> str:
        """The text below the heading, verbatim."""
        return "".join(block.text for block in self.blocks)

    @property
    def text(self) -> str:
        """Heading and body, verbatim."""
        return self.heading + self.body


def sections_of(markdown: str) -> tuple[Section, ...]:
    """The sections of a document, in order: their texts, joined, are the document.

    Headings are those of CommonMark, underlined ones included, at the top level of the document:
    not the ones inside code, lists or quotes. Text before the first heading is a section of its
    own, with level 0; an empty document has no sections.
    """
    blocks = blocks_of(markdown)
    starts = [index for index, block in enumerate(blocks) if block.kind == "heading" or index == 0]
    return tuple(_section(blocks[start:end]) for start, end in pairwise([*starts, len(blocks)]))


def _section(blocks: tuple[Block, ...]) -> Section:
    first = blocks[0]
    if first.kind != "heading":
        return Section(title="", level=0, heading="", blocks=blocks)
    return Section(title=first.label, level=first.level, heading=first.text, blocks=blocks[1:])
