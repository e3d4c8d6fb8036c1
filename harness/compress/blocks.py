"""A Markdown document cut into its top-level blocks: the only module that parses Markdown.

The blocks partition the text: joined, they give it back character for character. CommonMark, with
tables, decides what a block is: a `#` in a code fence is code, and a heading in a list belongs to
the list. Front matter is not CommonMark: its `---` is read as a rule or as a heading's underline.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

BlockKind = Literal["heading", "paragraph", "item", "code", "table", "quote", "other"]

_KINDS: dict[str, BlockKind] = {
    "heading_open": "heading",
    "paragraph_open": "paragraph",
    "list_item_open": "item",
    "fence": "code",
    "code_block": "code",
    "table_open": "table",
    "blockquote_open": "quote",
}

# The line ends of CommonMark. `str.splitlines` knows more of them (form feed, U+2028 and others)
# and would number the lines otherwise than the parser does.
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")
BLANK = " \t\r\n"
"""The white space of blank lines; a form feed, say, is text to CommonMark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of a document, with the blank lines that follow it."""

    kind: BlockKind
    """An `item` is one item of a list; `other` is HTML, a rule, link definitions, blank lines."""
    text: str
    """Its source, verbatim. Blank lines that open the document belong to its first block."""
    level: int = 0
    """1 to 6 for a heading, 0 for the rest."""
    label: str = ""
    """The title of a heading, or what stands behind the opening fence of code."""
    fence: str = ""
    """The backticks or tildes that open fenced code; empty for all else."""


def blocks_of(markdown: str) -> tuple[Block, ...]:
    """The top-level blocks of a document, in order; none for an empty text."""
    lines = lines_of(markdown)
    found: dict[int, Block] = {}  # by first line, still without text
    line = 0
    for start, end, block in _parsed(markdown):
        found |= _unparsed(lines, line, start)
        found[start] = block
        line = end
    found |= _unparsed(lines, line, len(lines))
    if lines and not found:
        found[0] = Block(kind="other", text="")
    # Each block reaches to the next one; the first takes the blank lines before it as well.
    starts = [*found, len(lines)]
    starts[0] = 0
    return tuple(
        replace(block, text="".join(lines[start:end]))
        for block, (start, end) in zip(found.values(), pairwise(starts), strict=True)
    )


def lines_of(text: str) -> list[str]:
    """The lines of a text with their ends, as CommonMark counts them."""
    return _LINE.findall(text)


def unpadded(text: str) -> str:
    """A text without the blank lines before it and the white space after it."""
    lines = lines_of(text.rstrip(BLANK))
    first = next((number for number, line in enumerate(lines) if line.strip(BLANK)), 0)
    return "".join(lines[first:])


def _parsed(markdown: str) -> Iterator[tuple[int, int, Block]]:
    """First line, line after the last, and kind of every block that the parser reports."""
    tokens = _parser().parse(markdown)
    for index, token in enumerate(tokens):
        # A list is taken apart, so that its items can be kept or dropped one by one.
        item = token.level == 1 and token.type == "list_item_open"
        whole = token.level == 0 and not token.type.endswith("_list_open")
        if token.map is None or not (item or whole):
            continue
        kind = _KINDS.get(token.type, "other")
        if kind == "heading":
            title = " ".join(tokens[index + 1].content.split())
            block = Block(kind=kind, text="", level=int(token.tag[1:]), label=title)
        elif token.type == "fence":
            block = Block(kind=kind, text="", label=token.info.strip(), fence=token.markup)
        else:
            block = Block(kind=kind, text="")
        yield token.map[0], token.map[1], block


def _unparsed(lines: list[str], start: int, end: int) -> dict[int, Block]:
    """The block between two that the parser reports, if one is: link definitions leave no trace."""
    written = (number for number in range(start, end) if lines[number].strip(BLANK))
    return {number: Block(kind="other", text="") for number in list(written)[:1]}


@cache
def _parser() -> MarkdownIt:
    # Imported at the first use: it takes 45 ms, and many runs never parse a document.
    from markdown_it import MarkdownIt  # noqa: PLC0415

    # Inline markup is most of the work of a parse, and nobody here looks at it. Below the nesting
    # limit the parser skips the rest of the document, headings included: the preset allows 20.
    return MarkdownIt("commonmark", {"maxNesting": 100}).enable("table").disable("inline")
